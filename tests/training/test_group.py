"""A worker of several processes against one of a single process: the same bits, whatever the stages (CASES 20)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from typer.testing import CliRunner

from training.cli import app
from training.core.canonical import create_genesis
from training.core.errors import (
    CorpusMissingError,
    CorpusTooSmallError,
    GroupEndedError,
    NonFiniteUpdateError,
    RecipeValueError,
    ShardCountError,
    StageCountError,
    TextDigestError,
)
from training.core.layout import build_layout
from training.core.recipe import ANY_TEXT, CodecKind, DataSource, ModelKind, OptimizerKind, Recipe
from training.core.schedule import plan_steps
from training.core.settle import Settlement, settle
from training.data.corpus import Corpus
from training.evaluation import evaluate_state
from training.group.accumulating import AccumulatingLoop, create_inner_loop
from training.group.cutting import TIED, plan_stages
from training.group.pipeline import PipelineWorker
from training.group.shape import GroupConfig, check_shape, choose_micro_batches
from training.group.sharded import ShardedWorker
from training.group.worker import GroupWorker
from training.inner import InnerLoop, Precision
from training.local import LocalWorker
from training.memory import plan_needs
from training.recipes.shapes import create_recipe_for
from training.recipes.writing import write_recipe
from training.simulate import make_members, simulate
from training.worker.engine_rules import EngineRules
from training.worker_file import LaterTensor

MEMBERS = (b"\x01" * 20, b"\x02" * 20)
NUM_MICRO_BATCHES = 4


INNER = {
    "adamw, low rank": (OptimizerKind.ADAMW, CodecKind.LOW_RANK_2BIT),
    "muon, vector": (OptimizerKind.MUON, CodecKind.VECTOR),
}
"""What the shipped recipes train with: the large ones and the small ones."""


@pytest.fixture(scope="module")
def recipe(make_recipe) -> Recipe:  # type: ignore[no-untyped-def]
    base = make_recipe(CodecKind.LOW_RANK_2BIT, fragments=2, overlap=1, num_rounds=4)
    return replace(
        base,
        model=replace(base.model, num_layers=3),
        inner=replace(base.inner, batch_size=4, clip_norm=0.5),
        codec=replace(base.codec, forget_bps=2_000),
        rounds=replace(base.rounds, local_steps=4),
    )


def is_running(pid: int) -> bool:
    """Say whether a process still runs; one that nobody has reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def choose(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe with another inner optimizer and codec."""
    optimizer, codec = INNER[name]
    return replace(
        recipe,
        inner=replace(recipe.inner, optimizer=optimizer),
        codec=replace(recipe.codec, kind=codec),
    )


def create_reference(
    recipe: Recipe, corpus: Corpus, member: bytes, precision: Precision = Precision.FP32
) -> LocalWorker:
    """Return a worker of one process with the inner loop that `--micro-batches` gives it."""
    loop = create_inner_loop(recipe, torch.device("cpu"), precision, NUM_MICRO_BATCHES)
    return LocalWorker(recipe, create_genesis(recipe), 0, member, corpus=corpus, inner=loop)


def create_pipeline(
    recipe: Recipe,
    corpus: Corpus,
    member: bytes,
    num_stages: int,
    schedule: str,
    precision: Precision = Precision.FP32,
) -> PipelineWorker:
    group = GroupConfig(
        num_stages=num_stages,
        num_micro_batches=NUM_MICRO_BATCHES,
        schedule=schedule,
        num_threads=1,
        timeout_seconds=60.0,
        precision=precision,
    )
    return PipelineWorker(recipe, create_genesis(recipe), 0, member, corpus=corpus, group=group)


def read_all(worker: LocalWorker) -> dict[str, torch.Tensor]:
    """Return everything a worker is, here."""
    tensors = worker._to_tensors().items()
    return {name: value.fetch() if isinstance(value, LaterTensor) else value for name, value in tensors}


def run_rounds(
    recipe: Recipe, workers: Sequence[LocalWorker], rounds: range, settled: list[Settlement], rank: int = 4
) -> list[tuple[bytes, ...]]:
    """Run rounds as the simulator does; return every worker's payloads by round."""
    members = MEMBERS[: len(workers)]
    payloads = []
    for round_index in rounds:
        for worker in workers:
            while worker.version < round_index - recipe.rounds.overlap:
                worker.apply(settled[worker.version], worker.version, worker.version in worker.in_flight)
            steps = plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)
            worker.train(round_index, steps, participants=members)
        sent = tuple(worker.send(round_index, rank=rank) for worker in workers)
        state = settled[-1].state if settled else create_genesis(recipe)
        settled.append(settle(recipe, state, round_index, sent, rank=rank, local_steps=recipe.rounds.local_steps))
        payloads.append(sent)
    return payloads


def test_stages_cut_every_tensor_once(recipe: Recipe) -> None:
    names = sorted(tensor.name for tensor in build_layout(recipe).tensors)
    for num_stages in (1, 2, 3):
        stages = plan_stages(recipe, num_stages)
        assert sorted(name for stage in stages for name in stage) == names
        assert TIED in stages[0]
        assert all(stages)
    with pytest.raises(StageCountError, match=r"1 to model\.num_layers = 3"):
        plan_stages(recipe, 4)
    hugging_face = replace(recipe.model, kind=ModelKind.HUGGING_FACE, config="{}", tensors="a 2x2 ones")
    with pytest.raises(StageCountError, match=r"gpt"):
        plan_stages(replace(recipe, model=hugging_face), 2)


def test_micro_batches_divide_the_batch() -> None:
    assert choose_micro_batches(8, 2, 0) == 4
    assert choose_micro_batches(6, 2, 0) == 3
    with pytest.raises(RecipeValueError, match=r"multiple of the 3"):
        choose_micro_batches(8, 2, 3)


@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_micro_batches_make_the_step_of_the_whole_batch(recipe: Recipe, num_micro_batches: int) -> None:
    """The same step within rounding: sums of floats depend on their order."""
    cpu = torch.device("cpu")
    ordinary = create_inner_loop(recipe, cpu, Precision.FP32)
    accumulating = create_inner_loop(recipe, cpu, Precision.FP32, num_micro_batches)
    assert (type(ordinary), type(accumulating)) == (InnerLoop, AccumulatingLoop)
    torch.manual_seed(3)
    values = {name: 0.1 * torch.randn_like(weight) for name, weight in ordinary.weights.items()}
    samples = torch.randint(0, 256, (4, recipe.model.context + 1))
    losses = []
    for loop in (ordinary, accumulating):
        loop.set_weights(values)
        losses.append([loop.step(samples, 0.01) for _ in range(3)])
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-6, atol=0)
    for name, weight in ordinary.weights.items():
        torch.testing.assert_close(weight, accumulating.weights[name], rtol=1e-4, atol=1e-5)


def test_simulate_takes_micro_batches(recipe: Recipe, corpus: Corpus) -> None:
    whole, _ = simulate(recipe, corpus, 1, num_rounds=2)
    parts, workers = simulate(recipe, corpus, 1, num_rounds=2, num_micro_batches=NUM_MICRO_BATCHES)
    again = create_reference(recipe, corpus, make_members(1)[0])
    settled: list[Settlement] = []
    run_rounds(recipe, [again], range(2), settled, rank=recipe.codec.rank)
    assert parts.root() == settled[-1].state.root(), "by the inner loop of a worker with as many"
    assert [type(worker._inner) for worker in workers] == [AccumulatingLoop]
    assert evaluate_state(recipe, parts, corpus) == pytest.approx(evaluate_state(recipe, whole, corpus), rel=1e-3)
    with pytest.raises(RecipeValueError, match=r"multiple of the 3"):
        simulate(recipe, corpus, 1, num_micro_batches=3)


def test_micro_batches_take_less_for_activations(recipe: Recipe) -> None:
    """A quarter of the activations, and a copy of the embedding with its gradient, as the last of several stages."""
    whole, parts = (plan_needs(recipe, GroupConfig(num_micro_batches=count)).processes[0] for count in (0, 4))
    assert parts.activation_bytes == whole.activation_bytes // 4
    assert parts.inner_bytes == whole.inner_bytes + 8 * recipe.model.vocabulary * recipe.model.width


def test_a_model_of_transformers_takes_micro_batches() -> None:
    pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64, **sizes}
    base = create_recipe_for(describe_causal_lm(json.dumps(config), 16), "hf")
    recipe = replace(base, inner=replace(base.inner, batch_size=4))
    loops = [create_inner_loop(recipe, torch.device("cpu"), Precision.FP32, count) for count in (0, 2)]
    torch.manual_seed(3)
    values = {name: 0.1 * torch.randn_like(weight) for name, weight in loops[0].weights.items()}
    samples = torch.randint(0, 256, (4, recipe.model.context + 1))
    losses = []
    for loop in loops:
        loop.set_weights(values)
        losses.append([loop.step(samples, 0.01) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_invalid_micro_batches_of_shards(recipe: Recipe) -> None:
    with pytest.raises(ShardCountError, match=r"2 shards, expected 1 beside 4 micro-batches"):
        check_shape(recipe, GroupConfig(num_shards=2, num_micro_batches=4))
    command = ["join", "--run", "1", "--key-file", "none", "--micro-batches", "4", "--shards", "2"]
    refused = CliRunner().invoke(app, command, terminal_width=200)
    assert refused.exit_code == 2
    assert "4 beside --shards 2" in refused.output


@pytest.mark.integration
@pytest.mark.parametrize(
    ("num_stages", "schedule", "inner", "precision"),
    [
        (2, "gpipe", "adamw, low rank", Precision.FP32),
        (3, "1f1b", "adamw, low rank", Precision.FP32),
        (2, "1f1b", "muon, vector", Precision.FP32),
        (3, "gpipe", "muon, vector", Precision.FP32),
        (3, "1f1b", "muon, vector", Precision.BF16),
    ],
)
def test_pipeline_is_bitwise_one_process(
    recipe: Recipe, corpus: Corpus, tmp_path: Path, num_stages: int, schedule: str, inner: str, precision: Precision
) -> None:
    """Payloads, roots, losses and whole worker states are equal bits, over sends, refusals and other shapes."""
    recipe = choose(recipe, inner)
    pipeline = create_pipeline(recipe, corpus, MEMBERS[0], num_stages, schedule, precision)
    try:
        settled: list[Settlement] = []
        expected: list[Settlement] = []
        reference = create_reference(recipe, corpus, MEMBERS[0], precision)
        other = create_reference(recipe, corpus, MEMBERS[1])
        again = create_reference(recipe, corpus, MEMBERS[1])
        assert pipeline.digest() == reference.digest()
        got = run_rounds(recipe, [pipeline, other], range(3), settled)
        assert got == run_rounds(recipe, [reference, again], range(3), expected)
        assert [each.state.root() for each in settled] == [each.state.root() for each in expected]
        assert len({each.state.root() for each in settled}) == 3
        assert pipeline.digest() == reference.digest()
        assert pipeline.evaluate(settled[-1].state) == reference.evaluate(expected[-1].state)
        for worker in (pipeline, reference):
            worker.return_unaccepted(2)
        assert pipeline.digest() == reference.digest()
        pipeline.save(tmp_path / "state")
        loaded = LocalWorker.load(tmp_path / "state", recipe, MEMBERS[0], corpus=corpus)
        assert loaded.digest() == reference.digest()
    finally:
        pipeline.close()
    assert not any(is_running(pid) for pid in pipeline.pids)


@pytest.mark.integration
def test_pipeline_goes_on_where_one_process_stopped(recipe: Recipe, corpus: Corpus, tmp_path: Path) -> None:
    """A state saved by one process, loaded over two stages, trains on bit for bit; what isn't finite is never sent."""
    settled: list[Settlement] = []
    workers = [create_reference(recipe, corpus, member) for member in MEMBERS]
    run_rounds(recipe, list(workers), range(2), settled)
    workers[0].save(tmp_path / "state")
    group = GroupConfig(num_stages=2, num_micro_batches=NUM_MICRO_BATCHES, num_threads=1, timeout_seconds=60.0)
    pipeline = PipelineWorker.load(tmp_path / "state", recipe, MEMBERS[0], corpus=corpus, group=group)
    try:
        assert pipeline.digest() == workers[0].digest()
        for worker in (pipeline, workers[0]):
            worker.apply(settled[0], 0, True)
            worker.train(2, 2, participants=MEMBERS)
        assert pipeline.digest() == workers[0].digest()
        # CASES 12: the last stage's loss is a mean over nothing: no stage steps, none waits for another.
        samples = torch.randint(0, 256, (4, recipe.model.context + 1))
        masked = torch.full_like(samples, -100)
        assert pipeline._processes.ask("step", [(samples, 0.01), (masked, 0.01)]) == [None, None]
        assert pipeline.digest() == workers[0].digest()
        last = sorted(plan_stages(recipe, 2)[1])[0]
        tensors = read_all(pipeline)
        about = json.loads(bytes(tensors["about"].numpy()))
        tensors[f"weights/{last}"] = torch.full_like(tensors[f"weights/{last}"], float("nan"))
        pipeline._restore(tensors, about)
        fragment = build_layout(recipe).tensor(last).fragment
        with pytest.raises(NonFiniteUpdateError):
            pipeline.send(2 + (fragment - 2) % 2, rank=4)
        assert pipeline.train(3, 1, participants=MEMBERS).skipped == 1
    finally:
        pipeline.close()


def test_invalid_shape_is_said_before_joining(recipe: Recipe, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(256)) * 1000)
    for group, reason in (
        (GroupConfig(num_stages=4), StageCountError),
        (GroupConfig(num_stages=2, num_micro_batches=3), RecipeValueError),
    ):
        with pytest.raises(reason):
            EngineRules(write_recipe(recipe), member=MEMBERS[0], device="cpu", data_file=text, group=group)


def test_invalid_text_is_said_before_joining(recipe: Recipe, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(256)) * 1000)
    named = replace(recipe, data=replace(recipe.data, source=DataSource.FILE, digest="0" * 64))
    for rules, file, reason in (
        (named, text, TextDigestError),
        (named, None, CorpusMissingError),
        (recipe, text, TextDigestError),
    ):
        with pytest.raises(reason, match="next: "):
            EngineRules(write_recipe(rules), member=MEMBERS[0], device="cpu", data_file=file)


def test_invalid_small_text_is_said_before_joining(recipe: Recipe, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(1000))
    own = replace(recipe, data=replace(recipe.data, digest=ANY_TEXT))
    with pytest.raises(CorpusTooSmallError, match=f"needs at least {recipe.model.context + 2}; next: .*16 KiB"):
        EngineRules(write_recipe(own), member=MEMBERS[0], device="cpu", data_file=text)


@pytest.mark.integration
def test_join_makes_and_restores_a_group(recipe: Recipe, tmp_path: Path) -> None:
    """The engine of `trainer join --stages 2 --micro-batches 4`: made, saved, loaded again, gone with its rules.

    That of `trainer join --micro-batches 4`, of one process, is the same bits, and either goes on with the other's
    file; without the option it is another sum.
    """
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(256)) * 1000)
    group = GroupConfig(num_stages=2, num_micro_batches=NUM_MICRO_BATCHES, num_threads=1, timeout_seconds=60.0)
    recipe = replace(recipe, data=replace(recipe.data, digest=ANY_TEXT))

    def create_rules(shape: GroupConfig) -> EngineRules:
        return EngineRules(write_recipe(recipe), member=MEMBERS[0], device="cpu", data_file=text, group=shape)

    plain, one = create_rules(GroupConfig()), create_rules(GroupConfig(num_micro_batches=NUM_MICRO_BATCHES))
    alone, whole = (each.create_engine(each.create_genesis(), 0) for each in (one, plain))
    for each in (alone, whole):
        assert each.train(0, 2).steps == 2
    assert (type(alone), type(alone._inner), type(whole._inner)) == (LocalWorker, AccumulatingLoop, InnerLoop)
    assert alone.digest() != whole.digest()
    rules = create_rules(group)
    try:
        engine = rules.create_engine(rules.create_genesis(), 0)
        assert engine.train(0, 2).steps == 2
        engine.save(tmp_path / "state")
        digest = engine.digest()
        assert digest == alone.digest()
        again = rules.load_engine(tmp_path / "state")
        assert isinstance(engine, PipelineWorker)
        assert not any(is_running(pid) for pid in engine.pids)
        assert again.digest() == digest
        rules.check()
        loaded = one.load_engine(tmp_path / "state")
        for each in (again, loaded, alone):
            each.train(0, 3)
        assert again.digest() == loaded.digest() == alone.digest() != digest
    finally:
        rules.close()
    assert isinstance(again, PipelineWorker)
    assert not any(is_running(pid) for pid in again.pids)


def create_group(
    recipe: Recipe, corpus: Corpus, shape: str, num_processes: int, on_end: Callable[[], None]
) -> GroupWorker:
    group = GroupConfig(**{f"num_{shape}": num_processes}, num_threads=1, timeout_seconds=60.0)  # type: ignore[arg-type]
    kind = PipelineWorker if shape == "stages" else ShardedWorker
    return kind(recipe, create_genesis(recipe), 0, MEMBERS[0], corpus=corpus, group=group, on_end=on_end)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("shape", "num_processes", "index"),
    [("stages", 3, 0), ("stages", 3, 1), ("stages", 3, 2), ("shards", 2, 0), ("shards", 2, 1)],
)
def test_death_of_each_child_ends_all(
    recipe: Recipe,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    num_processes: int,
    index: int,
) -> None:
    """CASES 20: SIGKILL in the middle of training: known in ten seconds, nothing is left, and it starts again."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = threading.Event()
    worker = create_group(recipe, corpus, shape, num_processes, told.set)
    killed_at: list[float] = []

    def kill(_step: int, _rate: float) -> None:
        if not killed_at:
            os.kill(worker.pids[index], signal.SIGKILL)
            killed_at.append(time.monotonic())

    try:
        assert list(tmp_path.glob("archipelago-group-*"))
        name = shape.removesuffix("s")
        with pytest.raises(GroupEndedError, match=rf"{name} {index} \(pid {worker.pids[index]}\).*exit code -9"):
            worker.train(0, 100_000, on_step=kill)
        assert time.monotonic() - killed_at[0] < 10
        assert told.wait(5)
        with pytest.raises(GroupEndedError):
            worker.check()
        assert not any(is_running(pid) for pid in worker.pids), "one outlived the other's death"
    finally:
        worker.close()
    assert not list(tmp_path.glob("archipelago-*")), "the folder in which they met was left behind"
    if index == num_processes - 1:
        again = create_group(recipe, corpus, shape, num_processes, told.set)
        try:
            assert again.train(0, 2).steps == 2
        finally:
            again.close()
        assert not any(is_running(pid) for pid in again.pids)


@pytest.mark.integration
@pytest.mark.parametrize("shape", ["stages", "shards"])
def test_each_child_told_to_stop_stops_the_worker_in_order(
    recipe: Recipe, corpus: Corpus, tmp_path: Path, shape: str
) -> None:
    """A service manager sends SIGTERM to one or to every process: the parent still can save, and nobody has died."""
    told = threading.Event()
    worker = create_group(recipe, corpus, shape, 2, told.set)
    try:
        forker = psutil.Process(worker.pids[1]).ppid()
        for round_index, pids in enumerate([(worker.pids[0],), (forker, worker.pids[1])]):
            told.clear()

            def stop(_step: int, _rate: float, pids: tuple[int, ...] = pids) -> None:
                if not told.is_set():
                    for pid in pids:
                        os.kill(pid, signal.SIGTERM)

            began = time.monotonic()
            report = worker.train(round_index, 100_000, told.is_set, on_step=stop)
            assert time.monotonic() - began < 10
            assert 0 < report.steps < 100_000
        worker.save(tmp_path / "state")
        worker.check()
    finally:
        worker.close()
    assert not any(is_running(pid) for pid in worker.pids)


@pytest.fixture
def parent(recipe: Recipe, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process of its own that has a pipeline worker and trains for ever."""
    (tmp_path / "recipe.toml").write_text(write_recipe(recipe))
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from pathlib import Path
            from training.core.canonical import create_genesis
            from training.core.recipe_text import parse_recipe
            from training.data.corpus import split_blocks
            from training.group.pipeline import PipelineWorker
            from training.group.shape import GroupConfig

            if __name__ == "__main__":
                recipe = parse_recipe(Path(sys.argv[1]).read_text())
                corpus = split_blocks(bytes(range(256)) * 1000, 1000)
                group = GroupConfig(num_stages=2, num_threads=1)
                worker = PipelineWorker(recipe, create_genesis(recipe), 0, b"m" * 20, corpus=corpus, group=group)
                print(*worker.pids, flush=True)
                worker.train(0, 1_000_000)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "recipe.toml")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    try:
        yield process, children
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for pid in children:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.integration
def test_no_orphan_when_the_parent_is_killed(parent: tuple[subprocess.Popen[str], list[int]], tmp_path: Path) -> None:
    process, children = parent
    assert len(children) == 2
    assert list(tmp_path.glob("archipelago-group-*")), "the stages met somewhere else"
    assert list(tmp_path.glob("pymp-*")), "multiprocessing has its folder somewhere else"
    before = {path.name for path in tmp_path.glob("*.*")}  # the script and its recipe
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline, "a stage outlived its parent"
        time.sleep(0.05)
    left = {path.name for path in tmp_path.iterdir()} - before
    assert not left, "the folder in which they met, or multiprocessing's, was left behind"


def test_a_stage_that_takes_no_order_ends_the_worker(recipe: Recipe, corpus: Corpus) -> None:
    """Stopped, it reads nothing: an order larger than its pipe could be waited for without an end."""
    with contextlib.closing(create_pipeline(recipe, corpus, MEMBERS[0], 2, "1f1b")) as worker:
        worker._processes._timeout_seconds = 1.0
        os.kill(worker.pids[1], signal.SIGSTOP)
        samples = torch.zeros(20_000, recipe.model.context + 1, dtype=torch.int64)
        began = time.monotonic()
        with pytest.raises(GroupEndedError, match=rf"stage 1 \(pid {worker.pids[1]}\) took no order 'step' in 1 s"):
            worker._processes.ask("step", [(samples[:1], 0.0), (samples, 0.0)])
        assert time.monotonic() - began < 30.0
        assert not any(is_running(pid) for pid in worker.pids)
