"""Quality at equal tokens, bytes and speed: AllReduce, DiLoCo, DiLoCoX, eager, ours, SparseLoCo, int8.

``python -m benchmarks.training`` trains every method on the standard library's source from the same start, samples and
learning rates, prints a table, and writes ``benchmarks/results/training.json``, ``training_runs.json`` (every loss by
seed and step) and ``training.svg``.  Two seeds; ``FULL=1`` trains longer and more methods.
Small models overstate every gap; differences under 0.006 nats are noise (TRAINING).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean

import torch

from benchmarks.report import RESULTS, Row, write_report
from benchmarks.training_plot import write_plot
from training.baselines import train_allreduce
from training.core.canonical import CanonicalState, create_genesis
from training.core.codecs.protocol import Slot
from training.core.codecs.registry import codec_of, plan_slot
from training.core.layout import build_layout
from training.core.payload import plan_payload
from training.core.recipe import (
    Q15_ONE,
    CodecKind,
    CodecRecipe,
    DataRecipe,
    InnerRecipe,
    ModelRecipe,
    OptimizerKind,
    OuterRecipe,
    Recipe,
    RoundsRecipe,
    StartKind,
)
from training.core.schedule import OuterCoefficients
from training.core.settle import step_tensor
from training.data.corpus import Corpus, load_corpus
from training.evaluation import evaluate_state
from training.simulate import SimulatedRound, compute_traffic, simulate

RAMP = OuterRecipe()
"""mu 0 -> 0.9, eta 1 -> 0.7: best for synchronous DiLoCo and for ours (TRAINING)."""

PLAIN = OuterRecipe(momentum_start_q15=0, momentum_end_q15=0, rate_start_q15=Q15_ONE, rate_end_q15=Q15_ONE)
"""mu 0, eta 1: best for one round late, for eager and for SparseLoCo (TRAINING, and its paper)."""

CLASSIC = OuterRecipe(momentum_start_q15=29491, momentum_end_q15=29491, rate_start_q15=22938, rate_end_q15=22938)
"""mu 0.9, eta 0.7, as DiLoCo was published."""

FRAGMENTS = 10
"""F of our default (TRAINING)."""

RANK = 16
"""Of our default: 0.09 bytes a parameter and exchange at this width."""

TRAFFIC_STEPS = 125
"""H of the rows about bytes (DiLoCoX's)."""

NUM_POINTS = 8
"""Losses along a run, for the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to train."""

    name: str
    """Row and legend."""
    recipe: Callable[[Recipe], Recipe]
    """Turns the common recipe into the method's."""
    is_allreduce: bool = False
    """One model, averaged gradients."""
    is_full_only: bool = False
    """Left out of the quick run."""


def main() -> None:
    """Train, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    is_full = os.environ.get("FULL", "") not in ("", "0")
    parser.add_argument("--steps", type=int, default=800 if is_full else 300, help="inner steps of each worker")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4, help="D")
    parser.add_argument("--local-steps", type=int, default=20, help="H")
    parser.add_argument("--only", action="append", default=[], help="only this method; may be given again")
    parser.add_argument("--resume", action="store_true", help="keep what a stopped run of the same conditions has")
    options = parser.parse_args()
    torch.set_num_threads(1)
    methods = [
        method
        for method in METHODS
        if (method.name in options.only if options.only else is_full or not method.is_full_only)
    ]
    common = make_common(options.steps, options.local_steps)
    corpus = load_corpus(common.data)
    runs: dict[str, list[Run]] = {method.name: [] for method in methods}
    parameters = build_layout(common).num_parameters
    conditions = (
        f"{parameters} parameters, D {options.workers}, H {options.local_steps}, {options.steps} steps a worker,"
        f" batch {common.inner.batch_size} x {common.model.context} bytes, {options.seeds} seed(s) from 0,"
        f" one inner learning rate {common.inner.learning_rate}, held-out nats a byte"
    )
    if options.resume:
        runs |= load_runs(conditions)
    for seed in range(options.seeds):
        for method in methods:
            if seed < len(runs[method.name]):
                continue
            run = train(method, replace(common, seed=seed), corpus, options.workers)
            runs[method.name].append(run)
            print(f"{method.name:18s} seed {seed}  loss {run.points[-1][1]:.4f}  {run.seconds:.0f} s", flush=True)
            save_runs(runs, conditions)
    runs = {name: each for name, each in runs.items() if each}
    write_report("training", [*make_loss_rows(runs, conditions), *make_byte_rows(common), *make_speed_rows()])
    write_plot(RESULTS / "training.svg", {name: each[0].points for name, each in runs.items()}, conditions)


def load_runs(conditions: str) -> dict[str, list[Run]]:
    """Read what `save_runs` wrote, where it was under the same conditions."""
    path = RESULTS / "training_runs.json"
    saved = json.loads(path.read_text()) if path.exists() else {"conditions": "", "runs": {}}
    if saved["conditions"] != conditions:
        return {}
    return {
        name: [Run(points=[(step, loss) for step, loss in run["points"]], seconds=run["seconds"]) for run in each]
        for name, each in saved["runs"].items()
    }


def save_runs(runs: dict[str, list[Run]], conditions: str) -> None:
    """Write every loss so far, so that a run that is stopped has not been in vain."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    details = {name: [{"seconds": run.seconds, "points": run.points} for run in each] for name, each in runs.items()}
    (RESULTS / "training_runs.json").write_text(json.dumps({"conditions": conditions, "runs": details}, indent=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training."""

    points: list[tuple[int, float]]
    """(inner steps a worker, held-out loss of the agreed theta); the last one after the flush."""
    seconds: float
    """Compute of all workers and the exchange, in one thread."""


def make_common(num_steps: int, local_steps: int) -> Recipe:
    """Return the recipe that all methods share: 0.17M parameters."""
    return Recipe(
        name="benchmark",
        seed=0,
        model=ModelRecipe(width=64, num_layers=3, num_heads=4, hidden=176, context=64),
        data=DataRecipe(eval_windows=512),
        inner=InnerRecipe(batch_size=8, learning_rate=0.004, warmup_steps=min(40, num_steps // 5)),
        codec=CodecRecipe(kind=CodecKind.NONE, rank=RANK),
        rounds=RoundsRecipe(
            num_fragments=1, overlap=0, local_steps=local_steps, num_rounds=max(1, num_steps // local_steps)
        ),
        outer=RAMP,
    )


def _whole(
    overlap: int, outer: OuterRecipe, start: StartKind, codec: CodecKind = CodecKind.NONE
) -> Callable[[Recipe], Recipe]:
    def make(common: Recipe) -> Recipe:
        return replace(
            common,
            outer=outer,
            codec=replace(common.codec, kind=codec),
            rounds=replace(common.rounds, overlap=overlap, start=start),
        )

    return make


def _in_turn(
    codec: CodecKind, rank: int = RANK, optimizer: OptimizerKind = OptimizerKind.ADAMW
) -> Callable[[Recipe], Recipe]:
    def make(common: Recipe) -> Recipe:
        rounds = common.rounds
        return replace(
            common,
            codec=replace(common.codec, kind=codec, rank=rank),
            inner=replace(common.inner, optimizer=optimizer),
            rounds=replace(rounds, num_fragments=FRAGMENTS, overlap=1, num_rounds=rounds.num_rounds * FRAGMENTS),
        )

    return make


def _muon(common: Recipe) -> Recipe:
    return replace(common, inner=replace(common.inner, optimizer=OptimizerKind.MUON))


METHODS = (
    Method(name="allreduce", recipe=lambda common: common, is_allreduce=True),
    Method(name="diloco", recipe=_whole(0, RAMP, StartKind.CONTINUE)),
    Method(name="dilocox", recipe=_whole(1, PLAIN, StartKind.REWIND, CodecKind.LOW_RANK_INT4)),
    Method(name="eager", recipe=_whole(1, PLAIN, StartKind.EAGER)),
    Method(name="default", recipe=_in_turn(CodecKind.LOW_RANK_2BIT)),
    Method(name="sparseloco", recipe=_whole(0, PLAIN, StartKind.REWIND, CodecKind.SPARSE_2BIT)),
    Method(name="int8", recipe=_whole(0, RAMP, StartKind.CONTINUE, CodecKind.DENSE_INT8)),
    Method(name="default_muon", recipe=_in_turn(CodecKind.LOW_RANK_2BIT, optimizer=OptimizerKind.MUON)),
    Method(name="allreduce_muon", recipe=_muon, is_allreduce=True, is_full_only=True),
    Method(
        name="diloco_muon", recipe=lambda common: _muon(_whole(0, RAMP, StartKind.CONTINUE)(common)), is_full_only=True
    ),
    Method(name="diloco_classic", recipe=_whole(0, CLASSIC, StartKind.CONTINUE), is_full_only=True),
    Method(name="delayed", recipe=_whole(1, PLAIN, StartKind.REWIND), is_full_only=True),
    Method(name="default_exact", recipe=_in_turn(CodecKind.NONE), is_full_only=True),
    Method(name="default_int4", recipe=_in_turn(CodecKind.LOW_RANK_INT4, rank=RANK // 2), is_full_only=True),
    Method(name="default_sparse", recipe=_in_turn(CodecKind.SPARSE_2BIT), is_full_only=True),
)
"""Those of the quick run first; ``delayed`` is DiLoCoX's overlap without its compression."""


def train(method: Method, common: Recipe, corpus: Corpus, num_workers: int) -> Run:
    """Train one method from one seed."""
    recipe = method.recipe(common)
    num_rounds = recipe.rounds.num_rounds
    points: list[tuple[int, float]] = []
    started = time.perf_counter()
    spent_on_losses = 0.0

    def see(round_index: int, state: CanonicalState) -> None:
        nonlocal spent_on_losses
        if (
            round_index < num_rounds
            and (round_index + 1) * NUM_POINTS // num_rounds != round_index * NUM_POINTS // num_rounds
        ):
            before = time.perf_counter()
            steps = (round_index + 1) * recipe.rounds.local_steps // recipe.rounds.num_fragments
            points.append((steps, evaluate_state(recipe, state, corpus)))
            spent_on_losses += time.perf_counter() - before

    def see_round(done: SimulatedRound) -> None:
        see(done.round_index, done.settlement.state)

    if method.is_allreduce:
        state = train_allreduce(recipe, corpus, num_workers, see)
    else:
        state, _ = simulate(recipe, corpus, num_workers, see_round)
    seconds = time.perf_counter() - started - spent_on_losses
    points.append((points[-1][0], evaluate_state(recipe, state, corpus)))
    return Run(points=points, seconds=seconds)


def make_loss_rows(runs: dict[str, list[Run]], conditions: str) -> list[Row]:
    """Return a row for each method beside uncompressed synchronous DiLoCo, and the gaps."""
    losses = {name: mean(run.points[-1][1] for run in each) for name, each in runs.items()}
    peer = "diloco" if "diloco" in losses else next(iter(losses))
    rows = [
        Row(
            name=f"loss_{name}",
            value=loss,
            unit="nats/byte",
            peer=peer,
            peer_value=losses[peer],
            conditions=f"{conditions}; each seed: {', '.join(f'{run.points[-1][1]:.4f}' for run in runs[name])}",
        )
        for name, loss in losses.items()
    ]
    for name, (ours, theirs) in {
        "gap_default_vs_diloco_pct": ("default", "diloco"),
        "gap_dilocox_vs_diloco_pct": ("dilocox", "diloco"),
        "gap_diloco_vs_allreduce_pct": ("diloco", "allreduce"),
        "gap_default_vs_allreduce_pct": ("default", "allreduce"),
        "gap_default_muon_vs_allreduce_pct": ("default_muon", "allreduce"),
    }.items():
        if ours in losses and theirs in losses:
            gap = 100.0 * (losses[ours] / losses[theirs] - 1.0)
            rows.append(Row(name=name, value=gap, unit="%", peer=theirs, peer_value=0.0, conditions=conditions))
    return rows


def make_byte_rows(common: Recipe) -> list[Row]:
    """Return what our default moves beside bf16 AllReduce at H = 125: payloads up with n/k, and down."""
    num_workers = 4
    recipe = _in_turn(CodecKind.LOW_RANK_2BIT)(
        replace(common, rounds=replace(common.rounds, local_steps=TRAFFIC_STEPS))
    )
    state, parameters = create_genesis(recipe), build_layout(recipe).num_parameters
    payload_bytes = sum(
        plan_payload(recipe, state, round_index, rank=RANK).num_bytes for round_index in range(FRAGMENTS)
    )
    traffic = compute_traffic(payload_bytes, num_workers)
    ours = (traffic.up_bytes + traffic.down_bytes) / TRAFFIC_STEPS
    allreduce = 2 * 2 * (num_workers - 1) / num_workers * 2 * parameters
    conditions = (
        f"a worker and step, sent and received: ours {ours:,.0f} bytes (payloads of"
        f" {payload_bytes / parameters:.4f} bytes a parameter and exchange, n/k = 2, H {TRAFFIC_STEPS}, F {FRAGMENTS},"
        f" D {num_workers}), ring AllReduce of bf16 gradients {allreduce:,.0f}; checkpoints and chain not counted"
    )
    return [
        Row(
            name="bytes_per_token_vs_allreduce",
            value=allreduce / ours,
            unit="x less",
            peer="bf16 AllReduce",
            peer_value=1.0,
            conditions=conditions,
        ),
        Row(
            name="bytes_per_parameter",
            value=payload_bytes / parameters,
            unit="bytes",
            peer="bf16 gradient",
            peer_value=2.0,
            conditions="one payload of every fragment over all parameters",
        ),
    ]


def make_speed_rows() -> list[Row]:
    """Return codec and outer step, one thread, CPU seconds of the best of three."""
    shape = (768, 3072)
    generator = torch.Generator().manual_seed(0)
    units = (torch.randn(shape, generator=generator) * 2**20).long()
    slot = plan_slot(CodecKind.LOW_RANK_2BIT, "matrix", shape, rank=24, exponent=14)
    codec = codec_of(slot)
    first = codec.compress(units, slot, None, bytes(32))
    compress = _measure(lambda: codec.compress(units, slot, first.warm, bytes(32)))
    total = torch.zeros(shape, dtype=torch.int64)
    add = _measure(lambda: total.add_(codec.decode(first.body, slot)[0]))
    num_bytes = 4 * units.numel()
    where = "768 x 3072, rank 24 (3 % of the width), fp32 bytes a CPU second, one thread, best of 3"
    rows = [
        Row(
            name=name,
            value=num_bytes / seconds / 1e9,
            unit="GB/s",
            peer="dense int8",
            peer_value=num_bytes / peer / 1e9,
            conditions=where,
        )
        for name, seconds, peer in (
            ("codec_gb_s", compress, _measure_int8(units, is_compress=True)),
            ("decode_and_sum_gb_s", add, _measure_int8(units, is_compress=False)),
        )
    ]
    pieces = 10
    theta = torch.randint(-(2**28), 2**28, (12_500_000,), generator=generator, dtype=torch.int32)
    update = torch.randint(-(2**20), 2**20, (12_500_000,), generator=generator)
    coefficients = OuterCoefficients(momentum_q15=20_000, rate_q15=30_000)
    step = pieces * _measure(lambda: step_tensor(theta, theta, update, coefficients))
    values = theta.float()
    adamw = pieces * _measure(lambda: values.mul(0.9).add_(update.float()))
    rows.append(
        Row(
            name="outer_step_125m_s",
            value=step,
            unit="s",
            peer="the same in float32, not agreed",
            peer_value=adamw,
            conditions="ten tensors of 12.5M, momentum and step in int64, CPU seconds of one thread, best of 3",
        )
    )
    return rows


def _measure_int8(units: torch.Tensor, *, is_compress: bool) -> float:
    slot: Slot = plan_slot(CodecKind.DENSE_INT8, "matrix", tuple(units.shape), rank=1, exponent=10)
    codec = codec_of(slot)
    body = codec.compress(units, slot, None, bytes(32)).body
    if is_compress:
        return _measure(lambda: codec.compress(units, slot, None, bytes(32)))
    total = torch.zeros_like(units)
    return _measure(lambda: total.add_(codec.decode(body, slot)[0]))


def _measure(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, best of three: other processes take time, but no CPU time of ours."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


if __name__ == "__main__":
    main()
