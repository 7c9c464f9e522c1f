"""Answers challenges against this node before they run out, and reads its bond and income (SPEC.md 12).

Invariant: what fails is tried again until the due height; a lost shard is noted for repair, which may be in time.
"""

from __future__ import annotations

import logging
import threading

from contracts.bindings.errors import BindingError
from contracts.bindings.types import Challenge, NodeAccount
from da.core.blob import compute_shard_bytes, decode_header
from da.core.errors import MalformedHeader
from da.core.merkle import compute_num_leaves, encode_proof
from da.core.types import BlobId, ShardIndex
from storage.core.errors import ChainUnreachable, ShelfUnavailable, StorageError, UnknownShard
from storage.node.chain_port import ChallengePort
from storage.node.engine import StoreEngine
from storage.node.proofs import prove_leaf

log = logging.getLogger(__name__)


class Answerer:
    """Runs in a thread of its own: an answer waits for its block."""

    def __init__(self, engine: StoreEngine, port: ChallengePort, *, poll_seconds: float) -> None:
        """Ask every ``poll_seconds``."""
        self._engine = engine
        self._port = port
        self._poll_seconds = poll_seconds
        self.num_answered = 0
        self.num_failed = 0
        self.account: NodeAccount | None = None
        """Bond and book as the chain said last."""

    def run(self, stop: threading.Event) -> None:
        """Answer until ``stop``."""
        while not stop.is_set():
            try:
                self.account = self._port.get_account()
                challenges = self._port.get_challenges() if self.account.num_challenges else ()
            except ChainUnreachable as error:
                log.debug("challenges are unknown: %s", error)
                challenges = ()
            for challenge in challenges:
                self._answer(challenge)
            stop.wait(self._poll_seconds)

    def _answer(self, challenge: Challenge) -> None:
        blob, shard = BlobId(challenge.blob), ShardIndex(challenge.seat)
        try:
            header = decode_header(self._engine.get_header(blob))
            num_leaves = compute_num_leaves(compute_shard_bytes(header.size_bytes, header.num_data), header.leaf_bytes)
            found = prove_leaf(self._engine, blob, shard, challenge.leaf % num_leaves)
            self._port.answer(challenge, header=found.header_bytes, leaf=found.leaf, proof=encode_proof(found.proof))
        except UnknownShard as error:
            self.num_failed += 1
            self._engine.losses.add(blob, shard, "challenged")
            log.error("challenge until height %d: %s", challenge.due_height, error)
        except (BindingError, MalformedHeader, ShelfUnavailable, StorageError, OSError) as error:
            self.num_failed += 1
            log.error("challenge of shard %d of blob %s: %s", shard, blob.hex(), error)
        else:
            self.num_answered += 1
            log.info("challenge of shard %d of blob %s answered", shard, blob.hex())
