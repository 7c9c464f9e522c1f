"""Payloads of a run: own ones from the journal, others from the stores, each checked, each fetched once.

What is cached on disk is named by round and digest and checked again when it is read, so an altered or cut
file is fetched anew.  A payload whose bytes are certified but are not what its digest says, or whose blob is
badly encoded, counts as empty bytes: the engine refuses those, and every worker comes to the same verdict.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from contracts.bindings.types import Update
from training.worker.durable import save_durable
from training.worker.errors import PayloadInconsistent, PayloadUnavailable
from training.worker.ports import PayloadPort
from training.worker.trace import EventKind, Trace

LOG = logging.getLogger("trainer")

RETRY_SECONDS = 1.0
"""A blob that could not be had is not asked for again before."""

PARALLEL_FETCHES = 4
"""Payloads fetched at a time."""

MAX_PAYLOAD_BYTES = 1 << 30
"""A payload that claims more is refused unread; far above any fragment this version trains."""


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What a look for several payloads gave."""

    payloads: dict[int, bytes] = field(default_factory=dict)
    """By index in the round's updates."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why, by index."""


class PayloadSource:
    """Fetches and keeps the payloads of one run."""

    def __init__(
        self,
        folder: Path,
        payloads: PayloadPort,
        trace: Trace,
        *,
        find_own: Callable[[bytes], bytes | None] = lambda _digest: None,
    ) -> None:
        """Cache in ``folder``; ``find_own`` returns an own payload by digest."""
        self._folder = folder
        self._payloads = payloads
        self._trace = trace
        self._find_own = find_own
        self._not_before: dict[bytes, float] = {}
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL_FETCHES, thread_name_prefix="fetch")

    def fetch(self, round_index: int, updates: Iterable[tuple[int, Update]]) -> Fetched:
        """Return the payloads of some updates of a round, from wherever they are nearest."""
        outcome = Fetched()
        wanted = list(updates)
        for (index, _), got in zip(
            wanted, self._pool.map(lambda item: self._fetch_one(round_index, item[1]), wanted), strict=True
        ):
            if isinstance(got, bytes):
                outcome.payloads[index] = got
            else:
                outcome.missing[index] = str(got)
        return outcome

    def forget_before(self, round_index: int) -> None:
        """Remove cached payloads of rounds that a certified checkpoint covers."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            prefix = path.name.partition("-")[0]
            if prefix.isdigit() and int(prefix) < round_index:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop fetching."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch_one(self, round_index: int, update: Update) -> bytes | PayloadUnavailable:
        own = self._find_own(update.digest)
        if own is not None:
            return own
        path = self._folder / f"{round_index}-{update.digest.hex()}"
        if path.is_file():
            data = path.read_bytes()
            if compute_digest(data) == update.digest:
                return data
        if time.monotonic() < self._not_before.get(update.blob, 0.0):
            return PayloadUnavailable(update.blob, "was not to be had a moment ago")
        if update.size_bytes > MAX_PAYLOAD_BYTES:
            return b""
        try:
            with self._trace.span(EventKind.FETCH, round_index) as span:
                data = self._payloads.get(update.blob, max_bytes=update.size_bytes)
                span.num_bytes = len(data)
        except PayloadUnavailable as error:
            self._not_before[update.blob] = time.monotonic() + RETRY_SECONDS
            LOG.warning("round %d: payload of %s: %s", round_index, update.member, error.reason)
            return error
        except PayloadInconsistent as error:
            LOG.warning("round %d: payload of %s is refused: %s", round_index, update.member, error.reason)
            return b""
        if compute_digest(data) != update.digest:
            LOG.warning("round %d: payload of %s is refused: not what its digest says", round_index, update.member)
            return b""
        self._folder.mkdir(parents=True, exist_ok=True)
        save_durable(path, data)
        return data


def compute_digest(payload: bytes) -> bytes:
    """Return the digest that ``commit`` carries: blake3 of the payload, 32 bytes."""
    return blake3(payload).digest()


def compute_mask(indices: Sequence[int]) -> int:
    """Return the bitmap with these bits set: [0, 3] is 9."""
    return sum(1 << index for index in indices)
