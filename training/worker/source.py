"""Payloads of a run: own ones from the journal, others from the stores, each checked, each fetched once.

An update is a blob and what its member says the blob's digest is.  What counts is what lies behind the blob: so
everything kept is named by it, and is compared with the digest each time.  A payload that isn't what its digest
says, whose length isn't the plan's, or whose blob is badly encoded, counts as empty bytes: the engine refuses those,
and every worker comes to the same verdict, whatever it has seen before.  Equal bytes of two members are one blob.
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
from training.worker.durable import is_disk_full, save_durable
from training.worker.errors import PayloadInconsistent, PayloadUnavailable
from training.worker.ports import PayloadPort
from training.worker.trace import EventKind, Trace

LOG = logging.getLogger("trainer")

RETRY_SECONDS = 1.0
"""A blob that could not be had is not asked for again before."""

PARALLEL_FETCHES = 4
"""Payloads fetched at a time."""

DIGEST_BYTES = 32
"""Of a kept blob's file: the digest of what follows."""


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What a look for several payloads gave."""

    payloads: dict[int, bytes] = field(default_factory=dict)
    """By index in the round's updates; empty for what is refused unseen."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why an update's payload is none, by index."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why, by index."""


def find_none(_blob: bytes) -> bytes | None:
    """Find nothing."""
    return None


@dataclass(frozen=True, slots=True)
class _NoPayload:
    """What lies behind a blob is not what its member promised."""

    reason: str


class PayloadSource:
    """Fetches and keeps the payloads of one run."""

    def __init__(
        self,
        folder: Path,
        payloads: PayloadPort,
        trace: Trace,
        *,
        find_own: Callable[[bytes], bytes | None] = find_none,
    ) -> None:
        """Cache in ``folder``; ``find_own`` returns an own payload by the blob that it was dispersed as."""
        self._folder = folder
        self._payloads = payloads
        self._trace = trace
        self._find_own = find_own
        self._not_before: dict[bytes, float] = {}
        self._inconsistent: dict[bytes, str] = {}
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL_FETCHES, thread_name_prefix="fetch")

    def fetch(self, round_index: int, updates: Iterable[tuple[int, Update]], *, num_bytes: int) -> Fetched:
        """Return the payloads of some updates of a round, from wherever they are nearest.

        ``num_bytes`` is the one length that the round's plan allows: nothing else is fetched.
        """
        outcome = Fetched()
        wanted = list(updates)
        got_all = self._pool.map(lambda item: self._fetch_one(round_index, item[1], num_bytes), wanted)
        for (index, _), got in zip(wanted, got_all, strict=True):
            if isinstance(got, bytes):
                outcome.payloads[index] = got
            elif isinstance(got, _NoPayload):
                outcome.payloads[index] = b""
                outcome.refused[index] = got.reason
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

    def _fetch_one(self, round_index: int, update: Update, num_bytes: int) -> bytes | _NoPayload | PayloadUnavailable:
        """Return what lies behind an update's blob if it is what the digest says."""
        if update.size_bytes != num_bytes:
            return _NoPayload(f"{update.size_bytes} bytes, expected {num_bytes}")
        data = self._read_blob(round_index, update)
        if isinstance(data, bytes) and compute_digest(data) != update.digest:
            return _NoPayload("not what its digest says")
        return data

    def _read_blob(self, round_index: int, update: Update) -> bytes | _NoPayload | PayloadUnavailable:
        """Return the bytes of a blob."""
        own = self._find_own(update.blob)
        if own is not None and compute_digest(own) == update.digest:  # anything else: what the stores have decides
            return own
        path = self._folder / f"{round_index}-{update.blob.hex()}"
        data = _load_kept(path)
        if data is not None:
            return data
        if update.blob in self._inconsistent:
            return _NoPayload(self._inconsistent[update.blob])
        if time.monotonic() < self._not_before.get(update.blob, 0.0):
            return PayloadUnavailable(update.blob, "was not to be had a moment ago")
        try:
            with self._trace.span(EventKind.FETCH, round_index) as span:
                data = self._payloads.get(update.blob, max_bytes=update.size_bytes)
                span.num_bytes = len(data)
        except PayloadUnavailable as error:
            self._not_before[update.blob] = time.monotonic() + RETRY_SECONDS
            LOG.warning("round %d: payload of %s: %s", round_index, update.member, error.reason)
            return error
        except PayloadInconsistent as error:
            self._inconsistent[update.blob] = error.reason
            return _NoPayload(error.reason)
        self._keep(path, data)
        return data

    def _keep(self, path: Path, data: bytes) -> None:
        """Keep a blob beside its digest; without room it is fetched again when it is needed again."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save_durable(path, compute_digest(data) + data)
        except OSError as error:
            if not is_disk_full(error):
                raise
            LOG.warning("%s is not kept: %s", path.name, error.strerror)


def _load_kept(path: Path) -> bytes | None:
    """Return a blob that was kept, None where it wasn't or its file was cut or altered: fetch it anew."""
    try:
        kept = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, data = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    return data if compute_digest(data) == digest else None


def compute_digest(payload: bytes) -> bytes:
    """Return the digest that ``commit`` carries: blake3 of the payload, 32 bytes."""
    return blake3(payload).digest()


def compute_mask(indices: Sequence[int]) -> int:
    """Return the bitmap with these bits set: [0, 3] is 9."""
    return sum(1 << index for index in indices)
