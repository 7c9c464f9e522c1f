"""Keys of the Storage contract's state, all under ``s/``, and what genesis fixes.

``p`` parameters; ``n`` operator -> node; ``i`` index -> operator, in order of registration; ``k`` receipt
key -> operator; ``e`` epoch and whether the set of nodes has changed; ``c`` epoch -> seats; ``b`` blob id ->
blob; ``l`` blob id + owner -> expiry of the lease.  Numbers in keys are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.storage import STORAGE_ADDRESS
from chain.core.contracts.params import ContractParams, TierParams
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.state import Overlay
from chain.core.types import Address

STORAGE = Address(STORAGE_ADDRESS)
"""The contract's account: fees paid are kept here."""

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


def lease_key(blob: bytes, owner: Address) -> bytes:
    """Return the key of an owner's lease of a blob."""
    return b"s/l" + blob + owner


def initialise_storage(state: Overlay, params: ContractParams) -> None:
    """Write what genesis fixes."""
    tiers = [
        (t.id, t.name, t.picowei_per_byte_block, t.min_bytes, t.min_blocks, t.max_blocks)
        for t in sorted(params.tiers, key=lambda tier: tier.id)
    ]
    state.set(_PARAMS_KEY, pack((params.storage_epoch_blocks, tiers)))


def get_epoch_blocks(state: Overlay) -> int:
    """Return the distance of heights at which committees may change."""
    return int(unpack(_get_params(state))[0])


def get_tiers(state: Overlay) -> tuple[TierParams, ...]:
    """Return the tiers by ascending id."""
    return tuple(
        TierParams(
            id=id_,
            name=name,
            picowei_per_byte_block=price,
            min_bytes=min_bytes,
            min_blocks=min_blocks,
            max_blocks=max_blocks,
        )
        for id_, name, price, min_bytes, min_blocks, max_blocks in unpack(_get_params(state))[1]
    )


def get_epoch_state(state: Overlay) -> EpochState:
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
