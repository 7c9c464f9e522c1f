"""The border between the executor and the native system contracts.

The executor makes a ``CallContext``, calls ``process_call`` of the contract at ``to`` and, on ``Revert``,
rolls the overlay back and keeps the nonce and the fee.  A native contract touches nothing but the context.
Any other exception stops the node on purpose (STYLE 13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chain.core.records import Log
from chain.core.state import Overlay
from chain.core.types import Address, Amount, Height


class Revert(Exception):
    """The call fails; ``data`` is an ABI-encoded custom error, ``reason`` the same for people."""

    def __init__(self, data: bytes, reason: str) -> None:
        """Keep both forms."""
        super().__init__(reason)
        self.data = data
        self.reason = reason


class OutOfGas(Exception):
    """A charge went past the limit."""

    def __init__(self, limit: int, wanted: int) -> None:
        """Keep both values."""
        super().__init__(f"out of gas: limit {limit}, needed {wanted}")
        self.limit = limit
        self.wanted = wanted


@dataclass(slots=True)
class Meter:
    """Gas of one transaction."""

    limit: int
    """Gas units."""
    used: int = 0
    """Gas units, at most ``limit``."""

    def charge(self, gas: int) -> None:
        """Use gas, or raise OutOfGas with the whole limit used."""
        wanted = self.used + gas
        if wanted > self.limit:
            self.used = self.limit
            raise OutOfGas(self.limit, wanted)
        self.used = wanted


@dataclass(slots=True, kw_only=True)
class CallContext:
    """Everything a native contract may look at or touch.

    ``value`` has been moved to the contract's account before the call.
    """

    state: Overlay
    height: Height
    """The block being executed."""
    genesis_hash: bytes
    """32 bytes."""
    block_seed: bytes
    """32 bytes, the same for all validators, fixed when the block is decided (the last app hash)."""
    sender: Address
    value: Amount
    is_static: bool
    """True under eth_call to a view or STATICCALL: writing must revert."""
    meter: Meter
    logs: list[Log] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class BlockContext:
    """What a contract's timers may look at or touch at the end of a block."""

    state: Overlay
    height: Height
    genesis_hash: bytes
    block_seed: bytes
    logs: list[Log] = field(default_factory=list)


ProcessCall = Callable[[CallContext, bytes], bytes]
"""(context, calldata) -> return data; raises Revert or OutOfGas."""

ProcessBlockEnd = Callable[[BlockContext], None]
"""Run timers; bounded work a block; never raises for anything a user can cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeContract:
    """A system contract as the executor sees it."""

    name: str
    address: Address
    process_call: ProcessCall
    process_block_end: ProcessBlockEnd | None = None
