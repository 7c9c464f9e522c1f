"""Where a worker's figures go: a JSONL file, a Prometheus port, TensorBoard.

The file's lines are what wandb keeps as a run's history: flat objects with ``_step``, ``_timestamp`` and ``_runtime``.
``for line in open("metrics.jsonl"): row = json.loads(line); wandb.log(row, step=row["_step"])`` shows the run there.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from training.worker.durable import close_with_gap, is_disk_full
from training.worker.errors import Fatal
from training.worker.metrics import FIGURES, MetricsSink

LOG = logging.getLogger("trainer")

PREFIX = "archipelago_worker_"
"""Of every Prometheus series."""

TRAFFIC = frozenset({"bytes/payload_sent", "bytes/payload_received", "bytes/rpc_sent", "bytes/rpc_received"})
"""Told each second, whatever happens."""

TRAFFIC_SECONDS = 10.0
"""Between two rows of a file that have nothing else: a few thousand a day."""

TOTALS = TRAFFIC | {"train/steps", "train/tokens", "updates/accepted", "updates/returned"}
"""Figures that only grow while a process lives: counters; the others are gauges. A file's lines go on with them."""

TAIL_BYTES = 1 << 20
"""Of a file that are read when a worker starts again: thousands of lines, each total in some of them."""


class JsonLines:
    """``metrics.jsonl``: one line an event, appended over restarts.

    Steps, times and totals go on from the file's last lines: wandb drops a row whose step is below the one before.
    """

    def __init__(self, path: Path, started_seconds: float) -> None:
        """Open for appending; ``_runtime`` counts on from ``started_seconds`` of the wall clock."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows, is_torn = _read_last_rows(path)
        self.last_step = max((int(row["_step"]) for row in rows), default=0)
        """Step of the newest line, 0 in an empty file."""
        self._started_seconds = started_seconds - max((row["_runtime"] for row in rows), default=0.0)
        self._before = {
            name: value
            for row in rows
            for name, value in row.items()
            if name in TOTALS and isinstance(value, int | float)
        }
        self._file = path.open("a", encoding="utf-8")
        if is_torn:
            self._file.write("\n")

    def write(self, step: int, wall_seconds: float, figures: Mapping[str, float]) -> None:
        """Append one line; on a full disk the file has a gap."""
        if self._file.closed:
            return
        runtime = max(0.0, wall_seconds - self._started_seconds)
        row = {"_step": step, "_timestamp": round(wall_seconds, 3), "_runtime": round(runtime, 3)}
        row |= {name: value + self._before.get(name, 0) for name, value in figures.items()}
        try:
            self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            if not is_disk_full(error):
                raise

    def close(self) -> None:
        """Close the file."""
        close_with_gap(self._file)


class Thinned:
    """Spares a file the rows that have nothing but traffic: at most one in ten seconds, else beside other figures."""

    def __init__(self, sink: MetricsSink) -> None:
        """Pass on to ``sink``."""
        self._sink = sink
        self._told: dict[str, float] = {}
        self._held: dict[str, float] = {}
        self._newest = (0, 0.0)
        self._told_at = float("-inf")

    def write(self, step: int, wall_seconds: float, figures: Mapping[str, float]) -> None:
        """Pass figures on, with the traffic that was held back; hold back traffic alone."""
        if figures.keys() <= TRAFFIC:
            self._held |= {name: value for name, value in figures.items() if self._told.get(name) != value}
            self._newest = (step, wall_seconds)
            if wall_seconds >= self._told_at + TRAFFIC_SECONDS:
                self._tell(step, wall_seconds, {})
        else:
            self._tell(step, wall_seconds, figures)

    def close(self) -> None:
        """Pass on what is held, then close."""
        self._tell(*self._newest, {})
        self._sink.close()

    def _tell(self, step: int, wall_seconds: float, figures: Mapping[str, float]) -> None:
        if self._held:
            self._told |= self._held
            self._told_at = wall_seconds
        if self._held or figures:
            self._sink.write(step, wall_seconds, {**figures, **self._held})
        self._held = {}


class Prometheus:
    """``http://host:port/metrics``."""

    def __init__(self, host: str, port: int, labels: Mapping[str, str]) -> None:
        """Serve from now on; ``labels`` name run and worker on every series. Raises `Fatal` where the port is taken."""
        self._registry = CollectorRegistry()
        self._labels = dict(labels)
        self._series: dict[str, Any] = {}
        self._told: dict[str, float] = {}
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise Fatal(
                f"metrics on {host}:{port}: {error.strerror}",
                next_step="give another --metrics-port, or 0 for a free one",
            ) from error
        self.port: int = self._server.server_port
        LOG.info("metrics on http://%s:%d/metrics", host, self.port)

    def write(self, step: int, wall_seconds: float, figures: Mapping[str, float]) -> None:
        """Keep the newest value of each figure."""
        for name, value in {"train/global_step": float(step), **figures}.items():
            if name in TOTALS:
                self._find(Counter, name).inc(max(0.0, value - self._told.get(name, 0.0)))
                self._told[name] = max(value, self._told.get(name, 0.0))
            else:
                self._find(Gauge, name).set(value)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _find(self, kind: type[Counter] | type[Gauge], name: str) -> Any:
        if name not in self._series:
            series, text = PREFIX + re.sub("[^a-z0-9]", "_", name), FIGURES.get(name, f"{name}, as in metrics.jsonl.")
            metric = kind(series, text, tuple(self._labels), registry=self._registry)
            self._series[name] = metric.labels(**self._labels)
        return self._series[name]


class TensorBoard:
    """Event files that ``tensorboard --logdir FOLDER`` shows; needs the extra ``tensorboard``."""

    def __init__(self, folder: Path) -> None:
        """Begin an event file. Raises `Fatal` without the package."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise Fatal(
                f"--tensorboard needs the package tensorboard ({error})",
                next_step="pip install 'archipelago[tensorboard]', or leave --tensorboard out",
            ) from error
        self._open: Callable[[], Any] = lambda: SummaryWriter(str(folder))
        self._folder = folder
        self._writer: Any = self._open()
        self._is_full = False

    def write(self, step: int, wall_seconds: float, figures: Mapping[str, float]) -> None:
        """Add one point to each figure's curve; on a full disk the curves have a gap."""
        try:
            if self._writer is None:
                self._writer = self._open()
            for name, value in figures.items():
                self._writer.add_scalar(name, value, step, walltime=wall_seconds)
        except OSError as error:
            self._bear(error)
        else:
            self._is_full = False

    def close(self) -> None:
        """Write out what is held."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._bear(error)

    def _bear(self, error: OSError) -> None:
        """Go on without the writer that a full disk has ended: the next point begins another file."""
        if not is_disk_full(error):
            raise error
        if not self._is_full:
            LOG.warning("%s has a gap: %s", self._folder, error.strerror)
        self._is_full, self._writer = True, None


def _read_last_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return the whole lines at a file's end, and whether a killed process has left half a line behind them."""
    if not path.exists():
        return [], False
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return [], False
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read()
    rows = []
    for line in tail.splitlines():
        try:
            row = json.loads(line)
            if all(isinstance(row[name], int | float) for name in ("_step", "_runtime")):
                rows.append(row)
        except (ValueError, KeyError, TypeError):  # cut by a kill, or where the tail begins
            continue
    return rows, not tail.endswith(b"\n")
