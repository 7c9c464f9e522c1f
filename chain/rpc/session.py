"""What a method may look at while it runs: one snapshot of the chain and the parts shared by all requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chain.core.executor import Contracts
from chain.rpc.archive_leaves import ArchiveLeaves
from chain.rpc.filters import FilterRegistry
from chain.rpc.heads import Head
from chain.rpc.peers import Peer
from chain.rpc.values import Params
from chain.store import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One request's view."""

    snapshot: Snapshot
    """The chain as of one block; the same for all calls of a batch."""
    contracts: Contracts
    """The system contracts by address."""
    head: Head
    """What is known of the snapshot's block already."""
    filters: FilterRegistry
    """Of all clients."""
    archives: ArchiveLeaves
    """Leaves of archived rounds."""
    peer: Peer
    """Who asks."""


Method = Callable[[Session, Params], Any]
"""Runs in a worker thread; returns what goes into ``result``; raises RpcFault."""
