"""The models of speed and size: the published figures are pinned, the rest follows from the code's own constants."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from training.cli import app
from training.commands.plan import parse_bandwidth, parse_params
from training.core.codecs.registry import plan_slot
from training.core.errors import PlanError
from training.core.layout import build_layout
from training.core.recipe import CodecKind
from training.core.recipe_text import parse_recipe
from training.core.sizing import (
    SHAPES,
    compute_compression,
    compute_payload_density,
    compute_scale,
    count_parameters,
)
from training.core.throughput import ASSUMED_GPU_FLOPS, Cluster, OuterLoop, compute_least_compression, compute_speeds
from training.group.shape import GroupConfig
from training.inner import Precision
from training.memory import Needs
from training.recipes.shapes import create_recipe
from training.recipes.shipped import load_shipped
from training.recipes.writing import write_recipe
from training.worker.engine_rules import EngineRules


def _cluster(**changes: float) -> Cluster:
    """Return DiLoCoX's 107B on 20 clusters at 1 Gbps, its step fitted so that R is 356."""
    values: dict[str, float] = {
        "num_parameters": 107e9,
        "num_workers": 20,
        "bandwidth_bits": 1e9,
        "tokens_per_second": 3713.0,
        "tokens_per_step": 33_928.0,
    }
    return Cluster(**(values | changes))  # type: ignore[arg-type]


def test_published_figures() -> None:
    """TRAINING, *The model of speed*: 357 times, and the ablation of 3,728 / 2,197 / 1,168 / 10.4 tokens a second."""
    speeds = {each.scheme: each for each in compute_speeds(_cluster(), OuterLoop(local_steps=125, compression=4.4))}
    assert _cluster().ratio == pytest.approx(356, abs=0.05)
    assert round(speeds["overlap and compression"].speed_up) == 357
    assert round(speeds["overlap and compression"].tokens_per_second) == 3713
    assert round(speeds["without overlap"].tokens_per_second) == 2254
    assert round(speeds["without compression"].tokens_per_second) == 1304
    assert round(speeds["AllReduce"].tokens_per_second, 1) == 10.4
    assert compute_least_compression(_cluster(), 125) == pytest.approx(2.85, abs=0.005)


def test_thinner_link_needs_more_compression() -> None:
    thin = _cluster(bandwidth_bits=1e8)
    assert thin.ratio == pytest.approx(3560, abs=1)
    hidden, late = (
        compute_speeds(thin, OuterLoop(local_steps=125, compression=compression))[1] for compression in (28.5, 20.0)
    )
    assert hidden.utilisation == pytest.approx(1.0)
    assert late.utilisation == pytest.approx(125 * 20 / 3560, rel=1e-3)


def test_goodput_and_codec_time_are_terms_of_their_own() -> None:
    loop = OuterLoop(local_steps=125, compression=4.4, codec_seconds=1000.0)
    assert compute_speeds(_cluster(goodput=0.5), loop)[1].tokens_per_second < 3713 * 0.5
    assert _cluster(goodput=0.5).exchange_seconds == 2 * _cluster().exchange_seconds


def test_what_an_allreduce_begins_early_hides_behind_the_rest_of_backward() -> None:
    """One second of compute, two of transfer, a quarter of which may begin when a quarter of backward is done."""
    whole = _cluster(tokens_per_second=33_928.0, num_parameters=1e9 / 8 / (4 * 19 / 20) * 2)
    assert whole.transfer_seconds == pytest.approx(2.0)
    assert whole.allreduce_step_seconds == pytest.approx(3.0)
    assert replace(whole, early_share=0.2).allreduce_step_seconds == pytest.approx(3.0 - 0.2 * 2.0)
    assert replace(whole, early_share=0.5).allreduce_step_seconds == pytest.approx(3.0 - 0.5 * 2 / 3), "backward ends"
    assert replace(whole, early_share=0.2, startup_seconds=1.0).allreduce_step_seconds == pytest.approx(3.6)


@pytest.mark.parametrize(
    "changes",
    [
        *({"early_share": 1.0}, {"num_workers": 1}, {"bandwidth_bits": 0.0}, {"goodput": 1.5}, {"goodput": 1e-320}),
        *({"tokens_per_step": -1.0}, {"num_parameters": nan}, {"num_parameters": 1e30}, {"num_parameters": 0.5}),
        *({"bandwidth_bits": 1e-300}, {"tokens_per_second": inf}, {"num_workers": 10**30}, {"startup_seconds": nan}),
    ],
)
def test_invalid_cluster(changes: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="expected"):
        _cluster(**changes)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1Gbps", 1e9),
        ("100 Mbit/s", 1e8),
        ("2.5e8bps", 2.5e8),
        ("10mbps", 1e7),
        ("64kbits", 64e3),
        (".5 Gbit", 5e8),
        ("1. bit/s", 1.0),
    ],
)
def test_bandwidth(text: str, bits: float) -> None:
    assert parse_bandwidth(text) == bits


@pytest.mark.parametrize(
    "changes",
    [
        *({"compression": nan}, {"compression": inf}, {"compression": 0.0}, {"local_steps": 0}),
        *({"local_steps": 10**38}, {"codec_seconds": nan}, {"codec_seconds": -5.0}, {"pause_seconds": inf}),
    ],
)
def test_invalid_loop(changes: dict[str, float]) -> None:
    values: dict[str, float] = {"local_steps": 125, "compression": 4.4} | changes
    with pytest.raises(PlanError, match=r"is \S+, expected \S+ to \S+; next"):
        OuterLoop(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        *(["--params", "1e30"], ["--params", "nan"], ["--params", "0"], ["--params", "-1"], ["--workers", "0"]),
        *(["--bandwidth", "1.2.3Gbps"], ["--bandwidth", "1e400"], ["--bandwidth", "1e-300"], ["--goodput", "nan"]),
        *(["--compression", "nan"], ["--codec-seconds", "-5"], ["--tokens-per-second", "1e300"]),
        *(["--stages", "1000000000"], ["--fragments", "0"], ["--shards", "-1"], ["--seats", "65"]),
        *(["--precision", "fp8"], ["--shards", "2", "--stages", "2"]),
    ],
    ids=" ".join,
)
def test_command_refuses_absurd_figures(options: list[str]) -> None:
    """Named by its option, with what was expected: no table of inf and nan."""
    result = CliRunner().invoke(app, ["plan", *options])
    assert result.exit_code != 0
    said = result.output + str(result.exception)
    assert options[0] in said
    assert isinstance(result.exception, PlanError | SystemExit)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--params", "1e15", "--workers", "2"],
            "--tokens-per-step (not given: from --params 1e+15 and --workers 2) is 0.36303, expected",
        ),
        (["--params", "1", "--workers", "1000000"], "--tokens-per-second (not given: from --params 1 and --workers"),
        (
            ["--tokens-per-second", "1e15"],
            "--tokens-per-step (not given: from --tokens-per-second 1e+15) is 9.13762e+15",
        ),
        (["--tokens-per-second", "nan"], "--tokens-per-second is nan, expected"),
        (["--tokens-per-step", "1e16"], "--tokens-per-step is 1e+16, expected"),
    ],
)
def test_a_figure_that_nobody_gave_is_led_back_to_what_was_given(options: list[str], said: str) -> None:
    assert said in str(CliRunner().invoke(app, ["plan", *options]).exception)


@pytest.mark.parametrize(
    ("text", "count"), [("1.3B", 1.3e9), ("107b", 107e9), ("125M", 125e6), ("0.4m", 4e5), ("1.3e9", 1.3e9), ("7", 7)]
)
def test_parameters_are_written_as_sizes_are(text: str, count: float) -> None:
    assert parse_params(text) == pytest.approx(count)
    assert CliRunner().invoke(app, ["plan", "--params", "1.3B", "--json"]).exit_code == 0


@pytest.mark.parametrize("text", ["", "B", "1.3X", "large", "1.3 billion", "nan", "0", "2000T", "１B", "1_0B", "0x1B"])
def test_invalid_parameters(text: str) -> None:
    with pytest.raises(PlanError, match=r"such as 1\.3B"):
        parse_params(text)


@pytest.mark.parametrize(
    ("option", "number", "said"),
    [
        ("--workers", 10**400, "--workers is a number of more than 30 digits, expected 2 to 1000000; next: "),
        ("--workers", -(10**400), "--workers is a number of more than 30 digits"),
        ("--workers", 1_000_001, "--workers is 1000001, expected 2 to 1000000"),
        ("--workers", 1, "--workers is 1, expected 2 to"),
        ("--local-steps", 10**400, "--local-steps is a number of more than 30 digits, expected 1 to 1048576"),
        ("--local-steps", 0, "--local-steps is 0, expected 1 to"),
    ],
)
def test_invalid_count_of_any_length_is_refused_in_words(option: str, number: int, said: str) -> None:
    refused = CliRunner().invoke(app, ["plan", f"{option}={number}"]).exception
    assert isinstance(refused, PlanError)
    assert said in str(refused)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "1 GB/s", "-1Gbps", "1.2.3Gbps", ".", "1e5e5", "nan", "inf", "100", "2.5e8", "64k", "1.", "bps"],
)
def test_invalid_bandwidth(text: str) -> None:
    """Without a unit too: 100 was taken for 100 bits a second."""
    with pytest.raises(PlanError, match=r"--bandwidth is .*expected a number with its unit, such as 1Gbps or 100Mbps"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["-5", "-1.3B", "-.5", "0", "2000T"])
def test_parameters_out_of_bounds_are_told_the_bounds(text: str) -> None:
    with pytest.raises(PlanError, match=rf"--params is {text}, expected 1 to 1e\+15, such as"):
        parse_params(text)


def test_parameters_of_a_shape_are_those_of_the_model() -> None:
    recipe = parse_recipe(load_shipped("demo"))
    assert count_parameters(recipe.model) == build_layout(recipe).num_parameters
    assert SHAPES["0.4M"] == recipe.model


@pytest.mark.parametrize(("name", "low", "high"), [("10M", 9e6, 11e6), ("125M", 120e6, 130e6), ("1.3B", 1.2e9, 1.4e9)])
def test_shapes_are_as_large_as_they_are_called(name: str, low: float, high: float) -> None:
    assert low < count_parameters(SHAPES[name]) < high


def _plan_memory(*options: str) -> dict[str, dict[str, Any]]:
    memory: dict[str, dict[str, Any]] = json.loads(CliRunner().invoke(app, ["plan", *options, "--json"]).output)[
        "memory"
    ]
    return memory


@pytest.mark.parametrize("name", ["1.3B", "7B"])
@pytest.mark.parametrize(
    ("options", "group"),
    [
        ([], GroupConfig()),
        (["--micro-batches", "64"], GroupConfig(num_micro_batches=64)),
        (["--stages", "4"], GroupConfig(num_stages=4)),
        (["--shards", "8"], GroupConfig(num_shards=8)),
    ],
    ids=["plain", "micro-batches", "stages", "shards"],
)
def test_plan_says_what_join_checks(
    monkeypatch: pytest.MonkeyPatch, name: str, options: list[str], group: GroupConfig
) -> None:
    """The figures are those that the worker's own check holds against the devices, GPU and host."""
    checked: list[Needs] = []

    def check(needs: Needs, _free_bytes: Mapping[str, int]) -> None:
        checked.append(needs)
        raise InterruptedError

    rules = "training.worker.engine_rules"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr(f"{rules}.choose_device", lambda _wanted: "cuda:0")
    monkeypatch.setattr(f"{rules}.choose_precision", lambda _wanted, _device: Precision.BF16)
    monkeypatch.setattr(f"{rules}.read_free_bytes", lambda _device: 1)
    monkeypatch.setattr(f"{rules}.check_devices", check)
    with pytest.raises(InterruptedError):
        EngineRules(write_recipe(create_recipe(name)), member=b"m" * 20, device="auto", data_file=None, group=group)
    (needs,) = checked
    planned = _plan_memory(*options)[name]
    assert planned["parameters"] == needs.num_parameters
    assert planned["device_bytes"] == max(process.inner_bytes for process in needs.processes)
    assert planned["activation_bytes"] == max(process.activation_bytes for process in needs.processes)
    assert planned["host_bytes"] == needs.outer_bytes
    assert {process.device for process in needs.processes} == {f"cuda:{i}" for i in range(group.num_processes)}


MEASURE = """
import os, sys
from dataclasses import replace
from pathlib import Path
import psutil, torch
from training.core.canonical import create_genesis
from training.core.recipe import CodecKind
from training.core.recipe_text import parse_recipe
from training.core.settle import settle
from training.data.corpus import split_blocks
from training.group.pipeline import PipelineWorker
from training.group.shape import GroupConfig
from training.local import LocalWorker
from training.memory import plan_needs
from training.recipes.shipped import load_shipped

def read_peak(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

def main():
    width, num_stages, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    base = parse_recipe(load_shipped("tiny"))
    recipe = replace(
        base,
        model=replace(base.model, width=width, num_layers=4, num_heads=4, hidden=width * 2),
        inner=replace(base.inner, batch_size=2),
        codec=replace(base.codec, kind=CodecKind.LOW_RANK_2BIT, rank=4),
        rounds=replace(base.rounds, num_fragments=4, overlap=1, local_steps=4, num_rounds=20),
    )
    corpus, member = split_blocks(bytes(range(256)) * 1000, 1000), b"m" * 20
    state, group = create_genesis(recipe), GroupConfig(num_stages=num_stages, num_threads=1)
    worker = (
        PipelineWorker(recipe, state, 0, member, corpus=corpus, group=group)
        if num_stages > 1
        else LocalWorker(recipe, state, 0, member, corpus=corpus)
    )
    before = None
    for t in range(3):
        if before is not None:
            worker.apply(before, t - 1, True)
        worker.train(t, 1)
        before = settle(recipe, state, t, [worker.send(t, rank=4)], rank=4, local_steps=4)
        state = before.state
    worker.save(folder / "state")
    needs = plan_needs(recipe, group, ("cpu",) * num_stages)
    needed = needs.outer_bytes + sum(each.inner_bytes + each.activation_bytes for each in needs.processes)
    print(sum(read_peak(pid) for pid in (os.getpid(), *getattr(worker, "pids", ()))), needed)
    if num_stages > 1:
        worker.close()

if __name__ == "__main__":
    main()
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc for the peak of a process")
@pytest.mark.parametrize("num_stages", [1, 2])
def test_memory_is_what_processes_come_to_hold(tmp_path: Path, num_stages: int) -> None:
    """Peak RSS of a worker over rounds and a save, less that of a tiny one, beside what plan and join count."""
    script = tmp_path / "measure.py"
    script.write_text(textwrap.dedent(MEASURE))
    measured = []
    for width in (16, 448):
        command = [sys.executable, str(script), str(width), str(num_stages), str(tmp_path)]
        # What is freed goes back to the system at once, so that the peak is what is held.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(Path(__file__).parents[2])}
        output = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        measured.append([int(number) for number in output.split()])
    (tiny_peak, tiny_needs), (peak, needs) = measured
    assert needs - tiny_needs > 200e6, "enough to be seen beside torch itself"
    assert 0.7 < (peak - tiny_peak) / (needs - tiny_needs) < 1.3


def test_memory_is_shared_by_stages_and_shards() -> None:
    whole, stages, shards = (_plan_memory(*each)["7B"] for each in ([], ["--stages", "2"], ["--shards", "8"]))
    assert whole["device_bytes"] == 18 * whole["parameters"]
    assert stages["device_bytes"] == pytest.approx(whole["device_bytes"] / 2, rel=0.01)
    assert shards["device_bytes"] < whole["device_bytes"] / 4
    assert _plan_memory("--precision", "fp32")["7B"]["device_bytes"] == 16 * whole["parameters"]
    fewer = _plan_memory("--fragments", "2")["7B"]["host_bytes"] - whole["host_bytes"]
    assert fewer == pytest.approx(0.8 * 16 * whole["parameters"], rel=1e-6), "all of it is under way, not a fifth"


@pytest.mark.parametrize(("name", "fewest"), [("0.4M", 1), ("10M", 1), ("125M", 2), ("1.3B", 64), ("7B", None)])
def test_the_fewest_micro_batches_that_fit_a_gpu_are_told(name: str, fewest: int | None) -> None:
    """One fewer by half doesn't fit; 7B has 124 GB before any activation."""

    def measure(count: int) -> float:
        found = _plan_memory("--micro-batches", str(count))[name]
        return float(found["device_bytes"] + found["activation_bytes"])

    assert _plan_memory()[name]["fitting_micro_batches"] == fewest
    if fewest is None:
        assert measure(512) > 80e9
    elif fewest > 1:
        assert measure(fewest) <= 80e9 < measure(fewest // 2)


def test_activations_are_said_to_be_of_a_whole_batch() -> None:
    def plan(*options: str) -> str:
        return " ".join(
            CliRunner().invoke(app, ["plan", "--params", "125M", "--workers", "2", *options]).output.split()
        )

    said = plan()
    assert "Activations are those of a whole batch at once; `trainer join --micro-batches` divides them" in said
    assert "micro-batches for 80 GB" in said
    assert "of a batch in 8 micro-batches" in plan("--micro-batches", "8")
    assert "divides them" not in plan("--shards", "8"), "not with shards"
    assert "as many micro-batches as keep the stages busy" in plan("--stages", "2")


def test_memory_of_a_size_that_nobody_named_is_scaled() -> None:
    memory = _plan_memory("--params", "7B")
    assert memory["this"]["device_bytes"] == pytest.approx(7e9 * 18)
    assert memory["this"]["host_bytes"] == pytest.approx(memory["7B"]["host_bytes"] * 7e9 / memory["7B"]["parameters"])
    assert _plan_memory("--params", "107B")["this"]["device_bytes"] == pytest.approx(107e9 * 18)


def test_a_shape_that_cannot_be_is_said_in_its_row() -> None:
    memory = _plan_memory("--stages", "4")
    assert memory["0.4M"]["refusal"] == "4 stages, expected 1 to model.num_layers = 3"
    assert memory["7B"]["refusal"] == ""
    assert "4 stages, expected 1 to" in CliRunner().invoke(app, ["plan", "--stages", "4"], terminal_width=300).output


def test_scale_follows_from_the_codec() -> None:
    density = compute_payload_density(2048)
    slot = plan_slot(CodecKind.LOW_RANK_2BIT, "m", (2048, 2048), rank=61, exponent=0)
    assert density < slot.num_bytes / 2048**2
    scale = compute_scale(1e9, 64, width=2048, num_seats=6, bandwidth_bits=1e9)
    assert scale.payload_bytes == pytest.approx(density * 1e9)
    assert scale.dispersed_bytes == pytest.approx(1.5 * scale.payload_bytes)
    assert scale.down_bytes == pytest.approx(63 * scale.payload_bytes)
    assert scale.egress_bytes == pytest.approx(64 * scale.down_bytes)


def test_command_prints_the_tables() -> None:
    result = CliRunner().invoke(app, ["plan", "--compression", "4.4"])
    assert result.exit_code == 0, result.output
    for figure in ("357.0x", "3,713.0", "2,254.1", "1,303.8", "10.4", "R = 356"):
        assert figure in result.output
    document = json.loads(CliRunner().invoke(app, ["plan", "--bandwidth", "100Mbps", "--json"]).output)
    assert round(document["ratio"]) == 3560
    assert {each["scheme"] for each in document["speeds"]} >= {"AllReduce", "without overlap"}
    assert re.fullmatch(r"\d+", str(document["memory"]["7B"]["parameters"]))
    for letter in ("R:", "rho:", "H:", "N:", "D:", "F:", "seats:"):
        assert letter in result.output
    assert "1.00 PB" in result.output
    assert "1000." not in result.output


def test_speed_that_nobody_gave_is_scaled_and_said_to_be_assumed() -> None:
    """Operations a second a worker stay DiLoCoX's; its 107B tokens a second of a 1.3B were 82 times too few."""

    def plan(*options: str) -> tuple[dict[str, float], str]:
        command = ["plan", "--params", "1.3e9", "--workers", "4", "--bandwidth", "100Mbps", *options]
        text = " ".join(CliRunner().invoke(app, command).output.split())
        return json.loads(CliRunner().invoke(app, [*command, "--json"]).output), text

    figures, text = plan()
    assert figures["tokens_per_second"] == pytest.approx(3713 * 107 / 1.3 / 5)
    assert figures["tokens_per_step"] == 4 * 256 * 2048, "the batches of recipe 1.3B"
    assert figures["step_seconds"] == pytest.approx(6 * 1.3e9 * 256 * 2048 / (8 * ASSUMED_GPU_FLOPS))
    assert figures["is_compute_assumed"]
    assert "ASSUMED" in text
    assert "15 TFLOP/s" in text
    assert "524,288 tokens a worker, the batch of recipe 1.3B" in text
    assert "give --tokens-per-second and --tokens-per-step" in text
    figures, text = plan("--tokens-per-second", "1000")
    assert figures["step_seconds"] == pytest.approx(4 * 256 * 2048 / 1000)
    assert "give --tokens-per-step" in text
    figures, text = plan("--tokens-per-second", "1000", "--tokens-per-step", "500", "--compression", "4.4")
    assert (figures["step_seconds"], figures["is_compute_assumed"], figures["compression"]) == (0.5, False, 4.4)
    assert "ASSUMED" not in text


def test_an_assumed_step_grows_with_the_model() -> None:
    """Not DiLoCoX's 9.1 s at every size, under which any link hides a small model's exchange; that is its 107B's."""

    def step_seconds(size: str, *options: str) -> float:
        command = ["plan", "--params", size, "--workers", "2", *options, "--json"]
        return float(json.loads(CliRunner().invoke(app, command).output)["step_seconds"])

    seconds = [step_seconds(size) for size in ("10M", "125M", "1.3B")]
    assert seconds[0] < 0.02 < seconds[1] < 1 < seconds[2]
    assert step_seconds("107B") == pytest.approx(33_928 / 3713)
    assert step_seconds("125M", "--tokens-per-second", "2000", "--tokens-per-step", "1000") == 0.5
    text = CliRunner().invoke(app, ["plan", "--params", "125M", "--workers", "2", "--bandwidth", "1Mbps"]).output
    assert "this one is hidden, a bf16 exchange is not" in " ".join(text.split())


@pytest.mark.parametrize(
    ("workers", "bandwidth", "said"),
    [
        ("4", "100Mbps", "even a bf16 exchange is hidden"),
        ("4", "5Mbps", "this one is hidden, a bf16 exchange is not"),
        ("2", "100Mbps", "even a bf16 exchange is hidden"),
        ("1000", "10Mbps", "this one is not hidden"),
    ],
)
def test_speed_and_bytes_are_counted_with_one_codec(workers: str, bandwidth: str, said: str) -> None:
    """By default the exchange whose speed is told is the one whose bytes are, and says what it assumes."""
    command = ["plan", "--params", "1.3e9", "--workers", workers, "--bandwidth", bandwidth]
    figures = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    takes = figures["scales"][-1]["link_seconds"]
    assert figures["is_compression_assumed"]
    assert figures["exchange_seconds"] / figures["compression"] == pytest.approx(takes)
    rows = {each["scheme"]: each for each in figures["speeds"]}
    waited = figures["tokens_per_step"] / rows["without overlap"]["tokens_per_second"] - figures["step_seconds"]
    assert 125 * waited == pytest.approx(takes, rel=1e-6)
    text = " ".join(CliRunner().invoke(app, command, terminal_width=400).output.split())
    assert said in text
    assert f"{figures['scales'][-1]['bytes_a_parameter']:.4f} bytes a parameter (low_rank_2bit" in text
    given = CliRunner().invoke(app, [*command, "--compression", "4.4"]).output
    assert "by --compression" in " ".join(given.split())


def test_compression_counts_the_busier_way_of_a_link() -> None:
    def rho(num_workers: int) -> float:
        scale = compute_scale(1e9, num_workers, width=2048, num_seats=6, bandwidth_bits=1e9)
        return compute_compression(scale, _cluster(num_parameters=1e9, num_workers=num_workers).exchange_bytes)

    density = compute_payload_density(2048)
    assert rho(2) == pytest.approx(2 / (1.5 * density)), "sending, with parity"
    assert rho(4) == pytest.approx(3 / (3 * density)), "fetching"
    assert rho(1000) < 1 < rho(100)
