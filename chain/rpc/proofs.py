"""eth_getProof over the chain's own tree: account and slots proven against one app hash (chain/SPEC.md, State).

The shape is Ethereum's, the proofs are this chain's.  Each proof is a list: the value as it lies in the state ("0x"
where there is none), the other leaf at that place (path and value hash, 64 bytes; "0x" where the place is empty or the
key's own), then the siblings from the root down.  Slots hang in the same tree as accounts, so ``storageHash`` is the
app hash itself: the stateRoot of the block that the answer names in ``blockNumber``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chain.core import accounts
from chain.core.evm.layout import slot_key
from chain.core.hashing import keccak256, sha256
from chain.core.smt import Proof, compute_leaf, compute_root_from_proof
from chain.core.state import Overlay
from chain.core.types import Address
from chain.rpc.faults import InvalidParams, StateGone, UpstreamDown
from chain.rpc.upstream import ProvenValue, Upstream
from chain.rpc.values import Params, hex_data, is_newest_tag, parse_quantity, quantity

MAX_PROVEN_SLOTS = 256
"""Of one eth_getProof: each is a query of its own."""
MAX_TRIES = 5
"""A block may come between two queries; all answers must be of one height."""

_EMPTY_LEAF = bytes(32)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A slot as the client wrote it, and its key."""

    shown: str
    key: bytes


async def get_proof(upstream: Upstream, params: Params) -> dict[str, Any]:
    """eth_getProof of the newest block."""
    params.at_most(3)
    address = params.address(0, "address")
    slots = _read_slots(params.raw(1, "storageKeys"), address)
    block = params.raw(2, "block", "latest")
    key = accounts.ACCOUNT_PREFIX + address
    for _ in range(MAX_TRIES):
        proven = [await upstream.get_proven_value(each) for each in (key, *(slot.key for slot in slots))]
        height = proven[0].height
        if any(answer.height != height for answer in proven):
            continue
        if not is_newest_tag(block) and parse_quantity(block, "block") != height:
            raise StateGone(parse_quantity(block, "block"), height)
        return _view(address, slots, proven)
    raise UpstreamDown("the application", f"no two queries of {MAX_TRIES} tries fell into one block: ask again")


def encode_proof(value: bytes, proof: Proof) -> list[str]:
    """Show a proof."""
    other = b"" if proof.other_leaf is None else b"".join(proof.other_leaf)
    return [hex_data(value), hex_data(other), *(hex_data(sibling) for sibling in proof.siblings)]


def decode_proof(shown: Sequence[str]) -> tuple[bytes | None, Proof]:
    """Return (value, proof) for ``chain.core.smt.verify``; the value is None where the key is absent."""
    value, other, *siblings = (bytes.fromhex(part.removeprefix("0x")) for part in shown)
    return value or None, Proof(siblings=tuple(siblings), other_leaf=(other[:32], other[32:]) if other else None)


def _view(address: Address, slots: Sequence[_Wanted], proven: Sequence[ProvenValue]) -> dict[str, Any]:
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
        "blockNumber": quantity(account.height),
    }


def _compute_root(key: bytes, answer: ProvenValue) -> bytes:
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
