"""eth_getProof over the chain's own tree: account and slots proven against one app hash (chain/SPEC.md, State).

The shape is Ethereum's, the proofs are this chain's.  Each proof is a list: the value as it lies in the state ("0x"
where there is none), the other leaf at that place (path and value hash, 64 bytes; "0x" where the place is empty or the
key's own), then the siblings from the root down.  Slots hang in the same tree as accounts, so ``storageHash`` is the
app hash itself: the stateRoot of the block that the answer names in ``blockNumber``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chain.core import accounts
from chain.core.evm.layout import slot_key
from chain.core.hashing import keccak256, sha256
from chain.core.smt import Proof, compute_leaf, compute_root_from_proof
from chain.core.state import Overlay
from chain.core.types import Address
from chain.rpc.faults import InvalidParams
from chain.rpc.session import Session
from chain.rpc.state_views import open_view
from chain.rpc.upstream import Upstream
from chain.rpc.values import Params, hex_data, parse_quantity, quantity

MAX_PROVEN_SLOTS = 256
"""Of one eth_getProof."""
_EMPTY_LEAF = bytes(32)


Read = Callable[[Callable[[Session], Any]], Awaitable[Any]]
"""Runs a function on a snapshot of the chain."""


@dataclass(frozen=True, slots=True)
class _Proven:
    """A value as it lies in the state, empty where the key is absent, and its proof."""

    value: bytes
    proof: Proof


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A slot as the client wrote it, and its key."""

    shown: str
    key: bytes


async def get_proof(upstream: Upstream, read: Read, params: Params) -> dict[str, Any]:
    """eth_getProof of the newest block, or of one of those before whose trees the application keeps."""
    params.at_most(3)
    address = params.address(0, "address")
    slots = _read_slots(params.raw(1, "storageKeys"), address)
    keys = [accounts.ACCOUNT_PREFIX + address, *(slot.key for slot in slots)]

    def read_values(session: Session) -> tuple[int, list[bytes]]:
        view = open_view(session, params, 2)
        return view.height, [view.state.get(key) or b"" for key in keys]

    height, values = await read(read_values)
    proofs = await upstream.get_proofs(keys, height)
    proven = [_Proven(value, proof) for value, proof in zip(values, proofs, strict=True)]
    return _view(address, slots, height, proven)


def encode_proof(value: bytes, proof: Proof) -> list[str]:
    """Show a proof."""
    other = b"" if proof.other_leaf is None else b"".join(proof.other_leaf)
    return [hex_data(value), hex_data(other), *(hex_data(sibling) for sibling in proof.siblings)]


def decode_proof(shown: Sequence[str]) -> tuple[bytes | None, Proof]:
    """Return (value, proof) for ``chain.core.smt.verify``; the value is None where the key is absent."""
    value, other, *siblings = (bytes.fromhex(part.removeprefix("0x")) for part in shown)
    return value or None, Proof(siblings=tuple(siblings), other_leaf=(other[:32], other[32:]) if other else None)


def _view(address: Address, slots: Sequence[_Wanted], height: int, proven: Sequence[_Proven]) -> dict[str, Any]:
    account = proven[0]
    state = Overlay()
    if account.value:
        state.set(accounts.ACCOUNT_PREFIX + address, account.value)
    nonce, balance, code_hash = accounts.load_account(state, address)
    root = _compute_root(accounts.ACCOUNT_PREFIX + address, account)
    return {
        "address": hex_data(address),
        "balance": quantity(balance),
        "codeHash": hex_data(code_hash or keccak256(b"")),
        "nonce": quantity(nonce),
        "storageHash": hex_data(root),
        "accountProof": encode_proof(account.value, account.proof),
        "storageProof": [
            {
                "key": slot.shown,
                "value": quantity(int.from_bytes(answer.value, "big")),
                "proof": encode_proof(answer.value, answer.proof),
            }
            for slot, answer in zip(slots, proven[1:], strict=True)
        ],
        "blockNumber": quantity(height),
    }


def _compute_root(key: bytes, answer: _Proven) -> bytes:
    path = sha256(key)
    if answer.value:
        leaf = compute_leaf(path, sha256(answer.value))
    elif answer.proof.other_leaf is None:
        leaf = _EMPTY_LEAF
    else:
        leaf = compute_leaf(*answer.proof.other_leaf)
    return compute_root_from_proof(path, leaf, answer.proof.siblings)


def _read_slots(value: Any, address: Address) -> list[_Wanted]:
    if not isinstance(value, list) or len(value) > MAX_PROVEN_SLOTS:
        raise InvalidParams(f"storageKeys is no list of at most {MAX_PROVEN_SLOTS} slots")
    return [_Wanted(slot, slot_key(address, parse_quantity(slot, "storage key"))) for slot in value]
