"""Figures for people's tools: wandb's history, Prometheus, TensorBoard, each read back by what nobody here wrote."""

from __future__ import annotations

import errno
import json
import os
import re
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.worker.errors import Fatal
from training.worker.evaluating import Evaluating
from training.worker.metrics import FIGURES, Metrics
from training.worker.metrics_sinks import JsonLines, Prometheus, TensorBoard, Thinned
from training.worker.process import _open_metrics
from training.worker.trace import EXCHANGE_KINDS, EventKind, Trace, TraceEvent


def _event(kind: EventKind, round_index: int, start: float, seconds: float, **rest: Any) -> TraceEvent:
    return TraceEvent(
        kind=kind,
        round=round_index,
        start_seconds=start,
        end_seconds=start + seconds,
        wall_seconds=1_000.0 + start + seconds,
        **rest,
    )


def _train(round_index: int, start: float, *, global_step: int) -> TraceEvent:
    counters = {
        "steps": 10,
        "tokens": 640,
        "loss_micro": 2_500_000,
        "skipped": 1,
        "global_step": global_step,
        "rate_nano": 4_000_000,
    }
    return _event(EventKind.TRAIN, round_index, start, 2.0, counters=counters)


def _story(metrics: Metrics) -> None:
    metrics.note(_train(0, 10.0, global_step=10))
    metrics.note(_event(EventKind.COMPRESS, 0, 12.0, 1.0, num_bytes=4_096))
    metrics.note(_train(1, 14.0, global_step=20))
    metrics.note(_event(EventKind.APPLY, 0, 16.0, 0.1, counters={"accepted": 1}))
    metrics.note(_event(EventKind.EVALUATE, 1, 16.2, 0.3, note="2.1250", counters={"bits_a_byte_micro": 1_500_000}))
    metrics.note(_event(EventKind.TRAFFIC, -1, 17.0, 0.0, counters={"payload_sent": 9_000, "rpc_sent": 500}))
    metrics.note(_event(EventKind.TRAFFIC, -1, 18.0, 0.0, counters={"payload_sent": 9_500, "rpc_sent": 700}))


def test_the_file_is_a_history_as_wandb_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):  # a restart appends
        metrics = Metrics([JsonLines(path, started_seconds=1_000.0)])
        _story(metrics)
        metrics.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 14
    for row in rows:
        assert {"_step", "_timestamp", "_runtime"} < row.keys()
        assert all(isinstance(value, int | float) for value in row.values()), "flat, numbers only"
    first, second = rows[0], rows[2]
    assert (first["_step"], first["train/loss"], first["train/rate"]) == (10, 2.5, 0.004)
    assert first["train/tokens_per_second"] == 320
    assert second["_step"] == 20
    assert second["train/steps"] == 20
    assert second["train/utilisation"] == pytest.approx(0.5), "two of the four seconds since the last steps"
    assert rows[3]["updates/accepted"] == 1
    assert rows[3]["run/version"] == 1
    assert rows[4]["held_out/loss"] == 2.125
    assert rows[4]["held_out/bits_a_byte"] == 1.5


def test_a_restart_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    """wandb drops a row whose step falls; a total that begins at zero again is none."""
    path = tmp_path / "metrics.jsonl"
    for start, first_step in ((1_000.0, 0), (1_100.0, 20)):
        lines = JsonLines(path, started_seconds=start)
        assert lines.last_step == first_step
        metrics = Metrics([lines], first_step=lines.last_step)
        metrics.note(replace(_event(EventKind.WAIT, -1, 1.0, 1.0), wall_seconds=start + 2.0))
        metrics.note(replace(_train(0, 10.0, global_step=30 if first_step else 20), wall_seconds=start + 12.0))
        metrics.note(
            replace(_event(EventKind.TRAFFIC, -1, 17.0, 0.0, counters={"rpc_sent": 500}), wall_seconds=start + 17.0)
        )
        metrics.close()
        with path.open("a") as file:
            file.write('{"_step": 99, "_runt')  # kill -9
    rows = [json.loads(line) for line in path.read_text().splitlines() if not line.endswith("_runt")]
    assert [row["_step"] for row in rows] == [0, 20, 20, 20, 30, 30]
    assert [row["_runtime"] for row in rows] == [2.0, 12.0, 17.0, 19.0, 29.0, 34.0]
    assert [row["train/steps"] for row in rows if "train/steps" in row] == [10, 20]
    assert [row["bytes/rpc_sent"] for row in rows if "bytes/rpc_sent" in row] == [500, 1_000]
    assert all(row["train/loss"] == 2.5 for row in rows if "train/loss" in row), "only totals add up"


def test_a_worker_that_starts_again_begins_at_the_step_of_the_one_before(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(run=1, metrics_port=None, tensorboard_folder=None)
    for _ in range(2):
        metrics = _open_metrics(config, tmp_path, "0xabc")
        metrics.note(_event(EventKind.WAIT, -1, 1.0, 1.0))
        metrics.note(_train(0, 10.0, global_step=95))
        metrics.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["_step"] for row in rows] == [0, 95, 95, 95]


def test_traffic_alone_is_a_row_in_ten_seconds_and_none_where_nothing_moves(tmp_path: Path) -> None:
    """An idle worker wrote a row a second."""
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics([Thinned(JsonLines(path, started_seconds=1_000.0))])
    for second in range(60):
        moved = 100 * min(second, 34)
        metrics.note(_event(EventKind.TRAFFIC, -1, float(second), 0.0, counters={"rpc_sent": moved, "rpc_received": 7}))
        if second == 15:
            metrics.note(_event(EventKind.WAIT, 0, 14.5, 1.0))
    metrics.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["_runtime"] for row in rows] == [0.0, 10.0, 15.5, 26.0, 36.0]
    assert [row.get("bytes/rpc_sent") for row in rows] == [0, 1_000, 1_500, 2_600, 3_400]
    assert [row.get("bytes/rpc_received") for row in rows] == [7, None, None, None, None]
    assert rows[2]["seconds/wait"] == 1.0


def test_the_last_traffic_is_not_lost(tmp_path: Path) -> None:
    metrics = Metrics([Thinned(JsonLines(tmp_path / "metrics.jsonl", started_seconds=1_000.0))])
    _story(metrics)
    metrics.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["bytes/payload_sent"] == 9_500


def test_a_held_out_loss_has_the_digits_of_the_log(tmp_path: Path) -> None:
    metrics = Metrics([JsonLines(tmp_path / "metrics.jsonl", started_seconds=0.0)])
    trace = Trace(tmp_path / "trace.jsonl", (metrics.note,))
    rules: Any = SimpleNamespace(evaluate=lambda _: 2.123456789, compute_bits_a_byte=lambda _: None)
    evaluating = Evaluating(rules, trace)
    evaluating.start(None, 4)
    assert evaluating._thread is not None
    evaluating._thread.join(10)
    trace.close()
    metrics.close()
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert row["held_out/loss"] == 2.123457


def test_an_evaluation_that_failed_is_no_figure(tmp_path: Path) -> None:
    """Its note is why; the error itself goes its way, and no other one comes in its place."""
    metrics = Metrics([JsonLines(tmp_path / "metrics.jsonl", started_seconds=0.0)])
    trace = Trace(tmp_path / "trace.jsonl", (metrics.note,))
    with pytest.raises(MemoryError), trace.span(EventKind.EVALUATE, 4):
        raise MemoryError
    trace.close()
    metrics.close()
    assert not (tmp_path / "metrics.jsonl").read_text()


def test_prometheus_serves_what_its_own_parser_reads() -> None:
    sink = Prometheus("127.0.0.1", 0, {"run": "7", "worker": "0xabc"})
    metrics = Metrics([sink])
    try:
        _story(metrics)
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        metrics.close()
    samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["archipelago_worker_train_steps_total"].value == 20
    assert samples["archipelago_worker_bytes_payload_sent_total"].value == 9_500
    assert samples["archipelago_worker_train_loss"].value == 2.5
    assert samples["archipelago_worker_train_global_step"].value == 20
    assert samples["archipelago_worker_held_out_loss"].labels == {"run": "7", "worker": "0xabc"}
    with pytest.raises(OSError, match=r"refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=5)


def test_every_figure_says_what_it_is() -> None:
    """In HELP, with its unit, whatever the trace tells; and in the page's table."""
    sink = Prometheus("127.0.0.1", 0, {"run": "7"})
    metrics = Metrics([sink])
    traffic = dict.fromkeys(("payload_sent", "payload_received", "rpc_sent", "rpc_received"), 1)
    try:
        _story(metrics)
        metrics.note(_event(EventKind.TRAFFIC, -1, 19.0, 0.0, counters=traffic))
        for kind in (*EXCHANGE_KINDS, EventKind.COMPRESS, EventKind.WAIT, EventKind.CHECKPOINT):
            has_bytes = kind not in (EventKind.WAIT, EventKind.ATTEST)
            metrics.note(_event(kind, 1, 20.0, 1.0, num_bytes=int(has_bytes)))
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        metrics.close()
    help_of = {family.name: family.documentation for family in text_string_to_metric_families(text)}
    help_of = {name: each for name, each in help_of.items() if not name.endswith("_created")}
    shown = {"archipelago_worker_" + name.replace("/", "_"): each for name, each in FIGURES.items()}
    assert help_of == shown
    assert all(len(each.split()) > 3 for each in FIGURES.values())
    spec = (Path(__file__).parents[2] / "training/worker/SPEC.md").read_text().partition("\n## Metrics\n")[2]
    words = set(re.findall(r"[a-z_]+", spec.partition("\n## ")[0]))
    assert {name.partition("/")[2] for name in FIGURES} <= words


def test_a_taken_metrics_port_is_named_with_the_option() -> None:
    first = Prometheus("127.0.0.1", 0, {})
    try:
        with pytest.raises(Fatal, match=str(first.port)) as raised:
            Prometheus("127.0.0.1", first.port, {})
    finally:
        first.close()
    assert "--metrics-port" in raised.value.next_step


def test_tensorboard_reads_the_curves_back(tmp_path: Path) -> None:
    metrics = Metrics([TensorBoard(tmp_path)])
    _story(metrics)
    metrics.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("train/loss")] == [(10, 2.5), (20, 2.5)]
    assert events.Scalars("held_out/loss")[0].value == 2.125


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics([sink := JsonLines(tmp_path / "metrics.jsonl", started_seconds=1_000.0)])

    class Full:
        closed = False

        def write(self, _text: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sink, "_file", Full())
        _story(metrics)
    _story(metrics)
    metrics.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 7
