"""What repair and audits work with: the store, the chain, and the threads in which each is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from da.core.types import BlobId, Committee, Epoch
from storage.core.repair import BlobFacts
from storage.node.chain_port import KeepingPort
from storage.node.engine import StoreEngine
from storage.node.threads import run_in
from storage.node.watch import ChainWatch

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """The same for all keepers of one node; of one event loop."""

    engine: StoreEngine
    watch: ChainWatch
    """Height and committees as they are known."""
    chain: KeepingPort
    """Asked in ``questions``' thread."""
    key: bytes
    """The node's receipt key: its seats are those that have it."""
    questions: Executor
    """One thread: the chain's client has one caller."""
    disk: Executor

    async def on_disk(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a disk thread."""
        return await run_in(self.disk, function, *args, **kwargs)

    async def ask_facts(self, blob: BlobId) -> BlobFacts:
        """Return what the chain says of a blob; raises ChainUnreachable."""
        return await asyncio.get_running_loop().run_in_executor(self.questions, self.chain.get_facts, blob)

    async def ask_committee(self, epoch: Epoch) -> Committee:
        """Return any epoch's committee; raises ChainUnreachable."""
        return await asyncio.get_running_loop().run_in_executor(self.questions, self.chain.get_committee, epoch)
