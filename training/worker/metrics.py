"""A worker's figures for people's tools: a JSONL file that wandb understands, Prometheus, TensorBoard.

``Metrics`` hears every event of the trace and turns it into named figures at the run's global step; what becomes of
them is a sink's business.  Invariant: figures are told, never obeyed: nothing here can stop or change the training.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from training.worker.trace import EXCHANGE_KINDS, EventKind, TraceEvent

MICRO, NANO = 1_000_000, 1_000_000_000
"""Units of integer counters."""

FIGURES: dict[str, str] = {
    "train/global_step": "The run's inner step that comes next: a function of the round, so all workers agree on it.",
    "train/loss": "Mean training loss of the round's inner steps, nats a token (a byte, without a tokenizer).",
    "train/rate": "Inner learning rate of the newest step.",
    "train/round": "Round whose inner steps were done last.",
    "train/skipped": "Inner steps of that round whose gradient was no number: they changed no weight.",
    "train/steps": "Inner steps done since the process began.",
    "train/tokens": "Tokens trained on since the process began.",
    "train/tokens_per_second": "Tokens of the newest round over the seconds of its inner steps.",
    "train/utilisation": "Share, 0 to 1, of the time since the round before that inner steps had.",
    "run/version": "Settled rounds that are in this worker's weights.",
    "updates/accepted": "Own updates that counted, since the process began.",
    "updates/returned": "Own updates that did not count and went back to error feedback, since the process began.",
    "held_out/loss": "Loss of the agreed model on held-out text, nats a token (a byte, without a tokenizer).",
    "held_out/version": "Version of the agreed model that was evaluated: the settled rounds in it.",
    "held_out/bits_a_byte": "The same loss in bits a byte of the held-out text, to compare tokenizers by.",
    "seconds/train": "Seconds of the newest round's inner steps.",
    "seconds/apply": "Seconds in which the newest settled rounds entered the weights, between two rounds.",
    "seconds/compress": "Seconds to make the newest payload and save the worker's state.",
    "seconds/disperse": "Seconds to bring the newest own payload to the storage nodes.",
    "seconds/commit": "Seconds of the newest commit on the chain, until its receipt.",
    "seconds/fetch": "Seconds to fetch the newest payload of another worker.",
    "seconds/settle": "Seconds of the newest exact sum and outer step.",
    "seconds/attest": "Seconds of the newest vote for a root, until its receipt.",
    "seconds/checkpoint": "Seconds to bring the newest checkpoint part to the storage nodes.",
    "seconds/wait": "Seconds that the main thread had nothing to do, the last time it waited.",
    "bytes/payload_sent": "Bytes sent to storage nodes, parity included, counted at sockets since the process began.",
    "bytes/payload_received": "Bytes received from storage nodes, counted at sockets since the process began.",
    "bytes/rpc_sent": "Bytes sent to the chain's JSON-RPC, counted at sockets since the process began.",
    "bytes/rpc_received": "Bytes received from the chain's JSON-RPC, counted at sockets since the process began.",
    "bytes/compress": "Bytes of the newest own payload, without parity.",
    "bytes/disperse": "Bytes of the own payload dispersed last, without parity.",
    "bytes/commit": "Bytes of the newest commit's transaction.",
    "bytes/fetch": "Bytes of the newest payload of another worker.",
    "bytes/settle": "Bytes of all payloads that were summed last.",
    "bytes/checkpoint": "Bytes of the newest checkpoint part, without parity.",
}
"""Every figure there is, with unit and meaning: Prometheus' HELP."""


class MetricsSink(Protocol):
    """Where figures go."""

    def write(self, step: int, wall_seconds: float, figures: Mapping[str, float]) -> None:
        """Take named figures of one global step; must not raise for want of room or of a listener."""
        ...

    def close(self) -> None:
        """Write out what is held; nothing comes any more."""
        ...


class Metrics:
    """Turns the trace of one worker into figures; fed from several threads."""

    def __init__(self, sinks: Sequence[MetricsSink], *, first_step: int = 0) -> None:
        """Nothing has happened yet in this process; ``first_step``: where the one before had come to."""
        self._sinks = tuple(sinks)
        self._lock = threading.Lock()
        self._step = first_step
        self._totals = {"train/steps": 0.0, "train/tokens": 0.0, "updates/accepted": 0.0, "updates/returned": 0.0}
        self._trained_at: float | None = None

    def note(self, event: TraceEvent) -> None:
        """Take an event of the trace."""
        with self._lock:
            figures = self._read(event)
            if figures:
                for sink in self._sinks:
                    sink.write(self._step, event.wall_seconds, figures)

    def close(self) -> None:
        """Close the sinks."""
        with self._lock:
            for sink in self._sinks:
                sink.close()

    def _read(self, event: TraceEvent) -> dict[str, float]:
        seconds = event.end_seconds - event.start_seconds
        if event.kind is EventKind.TRAIN:
            return self._read_train(event, seconds)
        if event.kind is EventKind.APPLY:
            for fate in ("accepted", "returned"):
                self._totals[f"updates/{fate}"] += event.counters.get(fate, 0)
            counts = {name: self._totals[name] for name in ("updates/accepted", "updates/returned")}
            return {"run/version": event.round + 1, "seconds/apply": seconds, **counts}
        if event.kind is EventKind.EVALUATE:
            return self._read_evaluation(event)
        if event.kind is EventKind.TRAFFIC:
            return {f"bytes/{name}": count for name, count in event.counters.items()}
        if event.kind in EXCHANGE_KINDS or event.kind in (EventKind.COMPRESS, EventKind.WAIT, EventKind.CHECKPOINT):
            figures = {f"seconds/{event.kind.value}": seconds}
            return figures | ({f"bytes/{event.kind.value}": event.num_bytes} if event.num_bytes else {})
        return {}

    @staticmethod
    def _read_evaluation(event: TraceEvent) -> dict[str, float]:
        try:
            figures = {"held_out/loss": float(event.note), "held_out/version": float(event.round)}
        except ValueError:  # it failed: the note is why
            return {}
        bits = event.counters.get("bits_a_byte_micro")
        return figures if bits is None else {**figures, "held_out/bits_a_byte": bits / MICRO}

    def _read_train(self, event: TraceEvent, seconds: float) -> dict[str, float]:
        counters = event.counters
        if not counters.get("steps"):
            return {}
        self._step = max(self._step, counters["global_step"])
        self._totals["train/steps"] += counters["steps"]
        self._totals["train/tokens"] += counters["tokens"]
        since = self._trained_at if self._trained_at is not None else event.start_seconds
        self._trained_at = event.end_seconds
        return {
            "train/loss": counters["loss_micro"] / MICRO,
            "train/rate": counters["rate_nano"] / NANO,
            "train/round": event.round,
            "train/skipped": counters["skipped"],
            "train/steps": self._totals["train/steps"],
            "train/tokens": self._totals["train/tokens"],
            "train/tokens_per_second": counters["tokens"] / seconds if seconds > 0 else 0.0,
            "train/utilisation": seconds / max(seconds, event.end_seconds - since) if seconds > 0 else 0.0,
            "seconds/train": seconds,
        }
