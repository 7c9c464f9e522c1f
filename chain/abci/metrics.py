"""Prometheus metrics of the application: how often each ABCI request came, how long it took, what blocks held.

The application has no port of its own.  It writes ``<home>/abci.prom`` (text format, in one step) at most once a
second after a Commit, and the JSON-RPC process shows it under ``/metrics``: one address to scrape for a node.
Counting costs less than a microsecond a request, so CheckTx may be counted too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from chain.abci.server import Application, Checker, Handler

log = logging.getLogger(__name__)

FILE_NAME = "abci.prom"
WRITE_SECONDS = 1.0
"""Between two writes of the file."""
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds: a block must stay well below the second between two of them."""
_TIMED = ("prepare_proposal", "finalize_block", "commit")
"""Requests whose times are kept as a distribution."""

PREFIX = "archipelago_abci_"

HELP = {
    "requests": "Requests of CometBFT that were answered since the application began, by request.",
    "request_seconds": "Seconds spent in them, by request.",
    "seconds": "Seconds of one request, as a distribution: prepare_proposal, finalize_block, commit.",
    "checks": "Checks of transactions for the queue, first and again after blocks, by result code; 0 passed.",
    "transactions": "Transactions in blocks since the application began, by result code; 0 succeeded.",
    "height": "Height of the newest block that was executed.",
    "block_transactions": "Transactions of that block.",
    "written_seconds": "When these figures were written, Unix seconds: old ones mean that the application is dead.",
}
"""Of every series, with its unit."""


class MeteredApplication:
    """An application whose handlers are counted and timed; it answers exactly as the one inside."""

    def __init__(self, application: Application, path: Path, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Measure ``application``, writing to ``path``."""
        self._application = application
        self._path = path
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._check_codes: dict[int, int] = {}
        self._result_codes: dict[int, int] = {}
        self._written = float("-inf")
        self._registry = CollectorRegistry()
        self._registry.register(_Counts(self))
        self._durations = Histogram(*_name("seconds"), ["request"], buckets=BUCKETS, registry=self._registry)
        self._height = Gauge(*_name("height"), registry=self._registry)
        self._block_transactions = Gauge(*_name("block_transactions"), registry=self._registry)
        self._moment = Gauge(*_name("written_seconds"), registry=self._registry)

    def get_handler(self, name: str) -> Handler:
        """Return the handler of a request name, measured."""
        handler = self._application.get_handler(name)
        clock, counts, seconds = self._clock, self._counts, self._seconds
        counts[name] = 0
        seconds[name] = 0.0
        observe = self._durations.labels(name).observe if name in _TIMED else None
        note = {"check_tx": self._note_check, "finalize_block": self._note_block}.get(name)
        is_commit = name == "commit"

        def measured(request: Message) -> Message:
            started = clock()
            response = handler(request)
            spent = clock() - started
            counts[name] += 1
            seconds[name] += spent
            if observe is not None:
                observe(spent)
            if note is not None:
                note(request, response)
            if is_commit:
                self._write_if_due(started + spent)
            return response

        return measured

    def get_checker(self) -> Checker:
        """Return what answers plain CheckTx requests, measured."""
        return _MeteredChecker(self._application.get_checker(), self._clock, self._note_checked)

    def attach(self, drain: Callable[[], None], resume: Callable[[], None]) -> None:
        """Hand on what takes CometBFT's requests in while a block is executed, and goes on with a check."""
        self._application.attach(drain, resume)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counts as Prometheus has them."""
        requests = CounterMetricFamily(*_name("requests"), labels=["request"])
        spent = CounterMetricFamily(*_name("request_seconds"), labels=["request"])
        for name, count in self._counts.items():
            requests.add_metric([name], count)
            spent.add_metric([name], self._seconds[name])
        checks = CounterMetricFamily(*_name("checks"), labels=["code"])
        for code, count in self._check_codes.items():
            checks.add_metric([str(code)], count)
        results = CounterMetricFamily(*_name("transactions"), labels=["code"])
        for code, count in self._result_codes.items():
            results.add_metric([str(code)], count)
        return requests, spent, checks, results

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)

    def _note_check(self, request: Message, response: Message) -> None:
        code = response.code
        self._check_codes[code] = self._check_codes.get(code, 0) + 1

    def _note_checked(self, code: int, seconds: float) -> None:
        self._counts["check_tx"] += 1
        self._seconds["check_tx"] += seconds
        self._check_codes[code] = self._check_codes.get(code, 0) + 1

    def _note_block(self, request: Message, response: Message) -> None:
        results = response.tx_results
        for result in results:
            self._result_codes[result.code] = self._result_codes.get(result.code, 0) + 1
        self._height.set(request.height)
        self._block_transactions.set(len(results))

    def _write_if_due(self, now: float) -> None:
        if now - self._written < WRITE_SECONDS:
            return
        self._written = now
        self._moment.set(time.time())
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(self.render())
            fresh.replace(self._path)
        except OSError as error:
            log.warning("metrics can't be written to %s: %s", self._path, error)


class _MeteredChecker:
    """A checker whose checks are counted and timed."""

    __slots__ = ("_check", "_clock", "_note", "is_pending", "look_ahead")

    def __init__(self, checker: Checker, clock: Callable[[], float], note: Callable[[int, float], None]) -> None:
        """Tell ``note`` each check's code and seconds."""
        self.look_ahead = checker.look_ahead
        self.is_pending = checker.is_pending
        self._check = checker.check
        self._clock = clock
        self._note = note

    def check(self, transaction: bytes) -> tuple[int, bytes]:
        """Do as the one inside."""
        started = self._clock()
        answer = self._check(transaction)
        self._note(answer[0], self._clock() - started)
        return answer


class _Counts(Collector):
    """The counts of an application, as a collector."""

    def __init__(self, metered: MeteredApplication) -> None:
        """Collect from ``metered``."""
        self._metered = metered

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the families."""
        return self._metered.collect()


def _name(name: str) -> tuple[str, str]:
    return PREFIX + name, HELP[name]


def read_metrics(home: Path) -> bytes:
    """Return what the application has written last, empty where it has written nothing."""
    try:
        return (home / FILE_NAME).read_bytes()
    except OSError:
        return b""
