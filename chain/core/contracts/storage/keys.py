"""Keys of the Storage contract's state, all under ``s/``, and what genesis fixes.

``p`` parameters; ``n`` operator -> node; ``i`` index -> operator, in order of registration; ``k`` receipt
key -> operator; ``g`` operator -> bond and book; ``e`` epoch and whether the set of nodes has changed; ``c`` epoch ->
seats; ``x`` epoch -> how long its seats are bound; ``w`` epoch -> income; ``f`` height + epoch -> change of income;
``b`` blob id -> blob; ``l`` blob id + owner -> lease; ``a`` owner -> account; ``o`` owner + index -> blob id; ``h``
blob id + seat -> open challenge; ``d`` due height + blob id + seat -> nothing; ``q`` operator + the same -> nothing;
``y`` height + blob id -> nothing, see ``pruning``.
Numbers in keys are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from chain.core.abi.storage import STORAGE_ADDRESS
from chain.core.contracts.params import ContractParams, TierParams
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.state import Base, Overlay
from chain.core.types import Address

STORAGE = Address(STORAGE_ADDRESS)
"""The contract's account: bonds, and fees on their way to the seats."""

_PARAMS_KEY = b"s/p"
_EPOCH_STATE_KEY = b"s/e"


@dataclass(slots=True, kw_only=True)
class EpochState:
    """The committee's clock and the register's counters."""

    epoch: int
    """Number of the newest committee, 0 before the first."""
    has_changed: bool
    """Whether the set of registered nodes or a key differs from the newest committee's."""
    num_nodes: int
    """Nodes ever registered."""


_EPOCH_STATE = RecordCodec(EpochState)


def node_key(operator: Address) -> bytes:
    """Return the key of a node."""
    return b"s/n" + operator


def node_index_key(index: int) -> bytes:
    """Return the key of the operator registered as number ``index``."""
    return b"s/i" + index.to_bytes(4, "big")


def receipt_key_key(key: bytes) -> bytes:
    """Return the key under which a receipt key's operator stands."""
    return b"s/k" + key


def committee_key(epoch: int) -> bytes:
    """Return the key of a committee."""
    return b"s/c" + epoch.to_bytes(8, "big")


def blob_key(blob: bytes) -> bytes:
    """Return the key of a blob."""
    return b"s/b" + blob


def due_blob_key(height: int, blob: bytes) -> bytes:
    """Return the key that has a blob looked at, at a height, whether its record may go."""
    return b"s/y" + height.to_bytes(8, "big") + blob


def lease_key(blob: bytes, owner: Address) -> bytes:
    """Return the key of an owner's lease of a blob."""
    return b"s/l" + blob + owner


def node_book_key(operator: Address) -> bytes:
    """Return the key of a node's bond and book."""
    return b"s/g" + operator


def bound_until_key(epoch: int) -> bytes:
    """Return the key of the height until which seats of an epoch are bound by what they signed."""
    return b"s/x" + epoch.to_bytes(8, "big")


def income_key(epoch: int) -> bytes:
    """Return the key of an epoch's income."""
    return b"s/w" + epoch.to_bytes(8, "big")


def income_change_key(height: int, epoch: int) -> bytes:
    """Return the key of a change of an epoch's income."""
    return b"s/f" + height.to_bytes(8, "big") + epoch.to_bytes(8, "big")


def owner_account_key(owner: Address) -> bytes:
    """Return the key of an owner's account."""
    return b"s/a" + owner


def owned_blob_key(owner: Address, index: int) -> bytes:
    """Return the key of the ``index``-th blob that an owner certified."""
    return b"s/o" + owner + index.to_bytes(8, "big")


def challenge_key(blob: bytes, seat: int) -> bytes:
    """Return the key of an open challenge."""
    return b"s/h" + blob + seat.to_bytes(2, "big")


def due_challenge_key(due_height: int, blob: bytes, seat: int) -> bytes:
    """Return the key of a challenge in the order of due heights."""
    return b"s/d" + due_height.to_bytes(8, "big") + blob + seat.to_bytes(2, "big")


def node_challenge_key(operator: Address, due_height: int, blob: bytes, seat: int) -> bytes:
    """Return the key of a challenge among those of one node."""
    return b"s/q" + operator + due_height.to_bytes(8, "big") + blob + seat.to_bytes(2, "big")


def initialise_storage(state: Overlay, params: ContractParams) -> None:
    """Write what genesis fixes."""
    tiers = [
        (t.id, t.name, t.picowei_per_byte_block, t.min_bytes, t.min_blocks, t.max_blocks)
        for t in sorted(params.tiers, key=lambda tier: tier.id)
    ]
    terms = (
        params.node_bond,
        params.challenge_bond,
        params.challenge_blocks,
        params.slash_percent,
        params.payout_blocks,
    )
    state.set(_PARAMS_KEY, pack((params.storage_epoch_blocks, tiers, terms)))


def get_epoch_blocks(state: Overlay) -> int:
    """Return the distance of heights at which committees may change."""
    return int(unpack(_get_params(state))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """What genesis fixes about bonds, challenges and pay; see ``ContractParams``."""

    node_bond: int
    """Wei."""
    challenge_bond: int
    """Wei."""
    challenge_blocks: int
    """Blocks."""
    slash_percent: int
    """0..100."""
    payout_blocks: int
    """Blocks."""


def get_node_terms(state: Overlay) -> NodeTerms:
    """Return what genesis fixes about bonds, challenges and pay."""
    node_bond, challenge_bond, challenge_blocks, slash_percent, payout_blocks = unpack(_get_params(state))[2]
    return NodeTerms(
        node_bond=node_bond,
        challenge_bond=challenge_bond,
        challenge_blocks=challenge_blocks,
        slash_percent=slash_percent,
        payout_blocks=payout_blocks,
    )


def get_tiers(state: Overlay) -> tuple[TierParams, ...]:
    """Return the tiers by ascending id."""
    return _decode_tiers(_get_params(state))


@lru_cache(maxsize=4)
def _decode_tiers(params: bytes) -> tuple[TierParams, ...]:
    return tuple(
        TierParams(
            id=id_,
            name=name,
            picowei_per_byte_block=price,
            min_bytes=min_bytes,
            min_blocks=min_blocks,
            max_blocks=max_blocks,
        )
        for id_, name, price, min_bytes, min_blocks, max_blocks in unpack(params)[1]
    )


def get_epoch_state(state: Base) -> EpochState:
    """Return the committee's clock."""
    value = state.get(_EPOCH_STATE_KEY)
    return _EPOCH_STATE.decode(value) if value is not None else EpochState(epoch=0, has_changed=False, num_nodes=0)


def save_epoch_state(state: Overlay, epoch_state: EpochState) -> None:
    """Write the committee's clock."""
    state.set(_EPOCH_STATE_KEY, _EPOCH_STATE.encode(epoch_state))


def _get_params(state: Overlay) -> bytes:
    value = state.get(_PARAMS_KEY)
    assert value is not None, "genesis has not run initialise_contracts"
    return value
