"""Turns audits that a seat fails again and again into bonded challenges on the chain (storage/core/accusation.py).

What is suspected is in memory: after a restart a seat must fail anew. Invariant: a challenge is sent only for a leaf
that the seat failed to show to this node, and never while this node may be the one that is cut off.
"""

from __future__ import annotations

import asyncio
import logging

from contracts.bindings.errors import BindingError, ContractError
from da.core.types import BlobId, Height, ShardIndex
from storage.core.accusation import AccusationPolicy, Suspicions, drop, note_failure, plan_accusation
from storage.core.errors import StorageError
from storage.node.chain_port import ChallengePort
from storage.node.daemon_thread import DaemonThread

log = logging.getLogger(__name__)


class Accuser:
    """One node's suspicions and challenges; of one event loop."""

    def __init__(self, port: ChallengePort, policy: AccusationPolicy) -> None:
        """Challenge through ``port``, in a thread of its own: a transaction waits for its block."""
        self._port = port
        self._policy = policy
        self._thread = DaemonThread("accusations")
        self._accused_at: Height | None = None
        self.suspicions: Suspicions = ()
        self.num_accused = 0
        """Challenges opened since the start."""

    def note_failure(self, blob: BlobId, shard: ShardIndex, leaf: int, height: Height) -> None:
        """Remember that a seat failed to prove a leaf."""
        self.suspicions = note_failure(self.suspicions, blob, shard, leaf, height)

    def clear(self, blob: BlobId, shard: ShardIndex) -> None:
        """Forget a suspicion: the leaf was proved, or nobody has to keep it any more."""
        self.suspicions = drop(self.suspicions, [(blob, shard)])

    async def act(self, height: Height) -> None:
        """Challenge one seat, if it is time."""
        found = plan_accusation(self.suspicions, self._policy, height, accused_at=self._accused_at)
        if found is None:
            return
        self._accused_at = height
        call = asyncio.get_running_loop().run_in_executor(
            self._thread, self._port.accuse, found.blob, found.shard, found.leaf
        )
        what = f"seat {found.shard} of blob {found.blob.hex()}, leaf {found.leaf}"
        try:
            due = await call
        except ContractError as error:
            # It did not sign, somebody else was faster, or its time is over: all settle the matter.
            log.info("no challenge of %s: %s", what, error)
        except (BindingError, StorageError, OSError) as error:
            log.warning("%s is not challenged now: %s; next: see that the operator's account has funds", what, error)
            return
        else:
            self.num_accused += 1
            log.warning("%s challenged after %d failed audits: due at height %d", what, found.num_failed, due)
        self.clear(found.blob, found.shard)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
