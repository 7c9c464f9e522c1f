"""Leaves of rounds that have left the state, computed from this node's own archive once and remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict

from chain.core.abi.refusal import Refusal
from chain.core.rounds.archive import collect_archived, compute_record_leaf
from chain.core.rounds.book import RunBook
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.rpc.faults import InvalidParams, NotReady, RecordsGone
from chain.store import Snapshot

MAX_NEW_LEAVES = 1_000
"""Computed in one call, some 0.3 s of work; then it must be asked again."""
MAX_RUNS = 64
"""Whose leaves are remembered: 32 bytes a round."""


class ArchiveLeaves:
    """Leaves of the runs that were asked for, oldest round first; threads may share it."""

    def __init__(self) -> None:
        """Know none."""
        self._lock = threading.Lock()
        self._leaves: OrderedDict[tuple[bytes, int], list[bytes]] = OrderedDict()

    def get(self, snapshot: Snapshot, run: int, length: int) -> list[bytes]:
        """Return the first ``length`` leaves of a run; raises NotReady while there are too many new ones."""
        key = (snapshot.genesis_info().genesis_hash, run)
        with self._lock:
            known = self._leaves.setdefault(key, [])
            self._leaves.move_to_end(key)
            if len(self._leaves) > MAX_RUNS:
                self._leaves.popitem(last=False)
            stop = min(length, len(known) + MAX_NEW_LEAVES)
            book = open_archive(snapshot, run)
            for t in range(len(known), stop):
                known.append(compute_record_leaf(collect_record(book, t)))
            if stop < length:
                raise NotReady(f"{stop} of {length} leaves of run {run} are computed: ask again")
            return known[:length]


def open_archive(snapshot: Snapshot, run: int) -> RunBook:
    """Return a run's book over the state and this node's archive, on an overlay of its own; raises InvalidParams."""
    nothing = bytes(32)
    turn = Turn(state=Overlay(snapshot.state_and_archive), height=snapshot.height, seed=nothing, genesis_hash=nothing)
    try:
        return RunBook(turn, run)
    except Refusal as e:
        raise InvalidParams(f"there is no run {run}") from e


def collect_record(book: RunBook, t: int) -> bytes:
    """Return an archived round's record; raises RecordsGone."""
    try:
        return collect_archived(book, t)
    except Refusal as e:
        raise RecordsGone(book.run.run, t) from e
