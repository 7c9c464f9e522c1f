"""Answers challenges against this node before they run out, and reads its bond and income (SPEC.md 12).

Several at once, as each reads a whole shard and waits for its block: who opens hundreds must find them answered.
Invariant: what fails is tried again until the due height; a lost shard is noted for repair, which may be in time.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait

from contracts.bindings.errors import BindingError
from contracts.bindings.types import Challenge, NodeAccount
from da.core.blob import compute_shard_bytes, decode_header
from da.core.errors import MalformedHeader
from da.core.merkle import compute_num_leaves, encode_proof
from da.core.types import BlobId, ShardIndex
from storage.core.errors import ChainUnreachable, ShelfUnavailable, StorageError, UnknownShard
from storage.node.chain_port import ChallengePort
from storage.node.daemon_thread import DaemonThread
from storage.node.engine import StoreEngine
from storage.node.proofs import prove_leaf

log = logging.getLogger(__name__)


NUM_AT_ONCE = 4
"""Answers under way; the chain gives a node time for one a block (chain/core/contracts/SPEC.md, *Money of storage*)."""


class Answerer:
    """Runs in a thread of its own, and starts others: an answer waits for its block."""

    def __init__(self, engine: StoreEngine, port: ChallengePort, *, poll_seconds: float) -> None:
        """Ask every ``poll_seconds``."""
        self._engine = engine
        self._port = port
        self._poll_seconds = poll_seconds
        self._free = [DaemonThread(f"answers-{number}") for number in range(NUM_AT_ONCE)]
        self._under_way: dict[tuple[bytes, int], tuple[DaemonThread, Future[bool]]] = {}
        # Challenges that are being answered, by blob and seat.
        self.num_answered = 0
        self.num_failed = 0
        self.account: NodeAccount | None = None
        """Bond and book as the chain said last."""

    def run(self, stop: threading.Event) -> None:
        """Answer until ``stop``."""
        while not stop.is_set():
            self._count()
            under_way = set(self._under_way)  # what is said next may be older than their ends
            try:
                self.account = self._port.get_account()
                challenges = self._port.get_challenges() if self.account.num_challenges else ()
            except ChainUnreachable as error:
                log.debug("challenges are unknown: %s", error)
                challenges = ()
            for challenge in challenges:
                if (challenge.blob, challenge.seat) not in under_way:
                    self._start(challenge, stop)
            stop.wait(self._poll_seconds)
        for thread in (*self._free, *(thread for thread, _ in self._under_way.values())):
            thread.shutdown()

    def _start(self, challenge: Challenge, stop: threading.Event) -> None:
        """Answer in the first thread that is free, unless that is being done already."""
        key = (challenge.blob, challenge.seat)
        while key not in self._under_way and not stop.is_set():
            if self._free:
                thread = self._free.pop()
                self._under_way[key] = (thread, thread.submit(self._answer, challenge))
                return
            futures = [future for _, future in self._under_way.values()]
            wait(futures, timeout=self._poll_seconds, return_when=FIRST_COMPLETED)
            self._count()

    def _count(self) -> None:
        """Note what has ended."""
        for key, (thread, future) in list(self._under_way.items()):
            if future.done():
                del self._under_way[key]
                self._free.append(thread)
                self.num_answered += future.result()
                self.num_failed += not future.result()

    def _answer(self, challenge: Challenge) -> bool:
        """Return whether it was answered."""
        blob, shard = BlobId(challenge.blob), ShardIndex(challenge.seat)
        try:
            header = decode_header(self._engine.get_header(blob))
            num_leaves = compute_num_leaves(compute_shard_bytes(header.size_bytes, header.num_data), header.leaf_bytes)
            found = prove_leaf(self._engine, blob, shard, challenge.leaf % num_leaves)
            self._port.answer(challenge, header=found.header_bytes, leaf=found.leaf, proof=encode_proof(found.proof))
        except UnknownShard as error:
            self._engine.losses.add(blob, shard, "challenged")
            log.error("challenge until height %d: %s", challenge.due_height, error)
        except (BindingError, MalformedHeader, ShelfUnavailable, StorageError, OSError) as error:
            log.error("challenge of shard %d of blob %s: %s", shard, blob.hex(), error)
        else:
            log.info("challenge of shard %d of blob %s answered", shard, blob.hex())
            return True
        return False
