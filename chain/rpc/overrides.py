"""State overrides of a call (eth_call, eth_estimateGas): what accounts would hold, for this call only.

As go-ethereum has them: ``{address: {balance, nonce, code, state | stateDiff}}``, where ``state`` replaces all slots
and ``stateDiff`` some.  A system contract runs no code of the EVM and has no slots, so of one only the balance can be
chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from chain.core import accounts
from chain.core.evm.layout import SLOT_PREFIX, set_code, set_slot
from chain.core.executor import Contracts
from chain.core.state import Base, Overlay
from chain.core.types import Address
from chain.rpc.faults import InvalidParams
from chain.rpc.values import find_nearest, parse_data, parse_quantity

MAX_ACCOUNTS = 100
"""Of one call."""
MAX_SLOTS = 1_000
"""Of all its accounts together."""
MAX_NONCE = 2**64 - 2
"""EIP-2681."""

_PREFIX_BYTES = len(SLOT_PREFIX) + 20
_FIELDS = frozenset({"balance", "nonce", "code", "state", "stateDiff"})


def check_overrides(value: Any, contracts: Contracts) -> dict[Address, Mapping[str, Any]]:
    """Read the accounts that a call overrides; raises InvalidParams."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(fields, dict) for fields in value.values()):
        raise InvalidParams(f"state overrides are {str(value)[:80]!r}, expected {{address: {{balance, ...}}}}")
    slots = [fields.get(name) for fields in value.values() for name in ("state", "stateDiff")]
    num_slots = sum(len(each) for each in slots if isinstance(each, dict))
    if len(value) > MAX_ACCOUNTS or num_slots > MAX_SLOTS:
        raise InvalidParams(
            f"state overrides name {len(value)} accounts and {num_slots} slots, at most {MAX_ACCOUNTS} and {MAX_SLOTS}"
        )
    chosen = {Address(parse_data(key, "overridden address", 20)): fields for key, fields in value.items()}
    for address, fields in chosen.items():
        for name in fields.keys() - _FIELDS:
            nearest = find_nearest(name, _FIELDS)
            advice = f"did you mean {nearest}?" if nearest else f"known are {', '.join(sorted(_FIELDS))}"
            raise InvalidParams(f"unknown state override {name[:40]!r}, {advice}")
        if address in contracts and fields.keys() - {"balance"}:
            raise InvalidParams(f"of a system contract (0x{address.hex()}) only the balance can be overridden")
        if fields.get("state") is not None and fields.get("stateDiff") is not None:
            raise InvalidParams(f"0x{address.hex()} has both state and stateDiff: give one of them")
    return chosen


def override(base: Base, chosen: Mapping[Address, Mapping[str, Any]]) -> Base:
    """Return a state in which accounts hold what a call wants them to; raises InvalidParams."""
    if not chosen:
        return base
    emptied = frozenset(SLOT_PREFIX + address for address, fields in chosen.items() if fields.get("state") is not None)
    state = Overlay(_Emptied(base, emptied) if emptied else base)
    for address, fields in chosen.items():
        nonce, balance, code_hash = accounts.load_account(state, address)
        if fields.get("nonce") is not None:
            nonce = parse_quantity(fields["nonce"], "nonce", MAX_NONCE)
        if fields.get("balance") is not None:
            balance = parse_quantity(fields["balance"], "balance")
        accounts.save_account(state, address, nonce, balance, code_hash)
        if fields.get("code") is not None:
            set_code(state, address, parse_data(fields["code"], "code"))
        for name in ("state", "stateDiff"):
            for slot, value in _read_slots(fields.get(name), name).items():
                set_slot(state, address, slot, value)
    return state


class _Emptied:
    """A base without the slots of some accounts, which may have millions: none of them is looked at."""

    def __init__(self, base: Base, prefixes: Set[bytes]) -> None:
        """Hide what lies under the accounts' ``prefixes``."""
        self._base = base
        self._prefixes = prefixes

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none or it is hidden."""
        return None if key[:_PREFIX_BYTES] in self._prefixes else self._base.get(key)

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, ascending, but for what is hidden."""
        if start[:_PREFIX_BYTES] in self._prefixes and stop.startswith(start[:_PREFIX_BYTES]):
            return iter(())
        return (pair for pair in self._base.iterate(start, stop) if pair[0][:_PREFIX_BYTES] not in self._prefixes)


def _read_slots(value: Any, name: str) -> dict[int, int]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidParams(f"{name} is {str(value)[:80]!r}, expected {{slot: value}}")
    return {
        int.from_bytes(parse_data(slot, "slot", 32), "big"): int.from_bytes(parse_data(word, "slot value", 32), "big")
        for slot, word in value.items()
    }
