"""The functions of the Storage contract, from decoded arguments to outputs."""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.accounts import transfer
from chain.core.contracts.dispatch import Call, Handler
from chain.core.contracts.gas import LISTED_RECORD_GAS, STORED_BYTE_GAS
from chain.core.contracts.storage.blobs import (
    compute_lease_fee,
    compute_release_height,
    get_blob,
    get_lease_expiry,
    process_lease,
    process_renewal,
)
from chain.core.contracts.storage.certificates import process_certificate
from chain.core.contracts.storage.epochs import get_seats
from chain.core.contracts.storage.keys import STORAGE, get_epoch_state, get_tiers
from chain.core.contracts.storage.nodes import (
    Node,
    get_node,
    get_nodes,
    process_register,
    process_retire,
    process_update,
)
from chain.core.contracts.storage.pricing import check_lease, compute_fee, get_tier
from chain.core.types import Address

MAX_BLOBS_A_CALL = 256
"""Of ``releaseHeights``; the ABI promises it."""

_LIVE, _RELEASED = 1, 2
_NO_ADDRESS = bytes(20)
_NO_HASH = bytes(32)


def _process_register_node(call: Call, url: str, key: bytes, key_proof: bytes, capacity: int) -> None:
    call.meter.charge(STORED_BYTE_GAS * len(url.encode()))
    process_register(call.turn, call.sender, url, key, key_proof, capacity)


def _process_update_node(call: Call, url: str, capacity: int) -> None:
    call.meter.charge(STORED_BYTE_GAS * len(url.encode()))
    process_update(call.turn, call.sender, url, capacity)


def _process_retire_node(call: Call) -> None:
    process_retire(call.turn, call.sender)


def _process_certify(call: Call, certificate: bytes) -> tuple[object, ...]:
    # CHECKS
    turn = call.turn
    stored = process_certificate(turn, call.meter, certificate)
    check_lease(get_tier(turn.state, stored.tier), turn.height, stored.expiry_height)
    fee = compute_lease_fee(turn.state, stored, call.sender, turn.height)
    _take_fee(call, fee)
    # EFFECTS, EVENTS
    process_lease(turn, stored, call.sender, fee)
    return (stored.blob,)


def _process_renew(call: Call, blob: bytes, expiry_height: int) -> None:
    _take_fee(call, process_renewal(call.turn, blob, call.sender, expiry_height))


def _take_fee(call: Call, fee: int) -> None:
    if call.value < fee:
        raise Refusal("FeeTooSmall", fee, call.value)
    transfer(call.turn.state, STORAGE, call.sender, call.value - fee)


def _view_genesis_hash(call: Call) -> tuple[object, ...]:
    return (call.turn.genesis_hash,)


def _view_epoch(call: Call) -> tuple[object, ...]:
    return (get_epoch_state(call.turn.state).epoch,)


def _view_committee(call: Call, epoch: int) -> tuple[object, ...]:
    return (_charged_list(call, [_node_values(node) for node in get_seats(call.turn.state, epoch)]),)


def _view_node(call: Call, operator: bytes) -> tuple[object, ...]:
    node = get_node(call.turn.state, Address(operator))
    return (_node_values(node) if node is not None else (_NO_ADDRESS, _NO_HASH, "", 0, 0, 0),)


def _view_nodes(call: Call) -> tuple[object, ...]:
    return (_charged_list(call, [_node_values(node) for node in get_nodes(call.turn.state)]),)


def _view_blob(call: Call, blob_id: bytes) -> tuple[object, ...]:
    blob = get_blob(call.turn.state, blob_id)
    if blob is None:
        return ((blob_id, _NO_ADDRESS, 0, 0, 0, 0, 0, 0, 0, 0),)
    release_height = compute_release_height(blob)
    return (
        (
            blob_id,
            blob.owner,
            blob.size_bytes,
            blob.tier,
            blob.epoch,
            blob.certified_height,
            blob.expiry_height,
            release_height,
            _RELEASED if call.turn.height >= release_height else _LIVE,
            blob.paid,
        ),
    )


def _view_release_heights(call: Call, blob_ids: tuple[bytes, ...]) -> tuple[object, ...]:
    if len(blob_ids) > MAX_BLOBS_A_CALL:
        raise Refusal("TooMany", MAX_BLOBS_A_CALL, len(blob_ids))
    call.meter.charge(LISTED_RECORD_GAS * len(blob_ids))
    blobs = [get_blob(call.turn.state, blob_id) for blob_id in blob_ids]
    return ([compute_release_height(blob) if blob is not None else 0 for blob in blobs],)


def _view_lease_expiry(call: Call, blob_id: bytes, owner: bytes) -> tuple[object, ...]:
    return (get_lease_expiry(call.turn.state, blob_id, Address(owner)),)


def _view_quote(call: Call, tier_id: int, size_bytes: int, blocks: int) -> tuple[object, ...]:
    return (compute_fee(get_tier(call.turn.state, tier_id), size_bytes, blocks),)


def _view_tiers(call: Call) -> tuple[object, ...]:
    return (
        [
            (tier.id, tier.name, tier.picowei_per_byte_block, tier.min_bytes, tier.min_blocks, tier.max_blocks)
            for tier in get_tiers(call.turn.state)
        ],
    )


STORAGE_HANDLERS: dict[str, Handler] = {
    "registerNode": _process_register_node,
    "updateNode": _process_update_node,
    "retireNode": _process_retire_node,
    "certify": _process_certify,
    "renew": _process_renew,
    "genesisHash": _view_genesis_hash,
    "epoch": _view_epoch,
    "committee": _view_committee,
    "node": _view_node,
    "nodes": _view_nodes,
    "blob": _view_blob,
    "releaseHeights": _view_release_heights,
    "leaseExpiry": _view_lease_expiry,
    "quote": _view_quote,
    "tiers": _view_tiers,
}
"""By function name."""


def _node_values(node: Node) -> tuple[object, ...]:
    return (node.operator, node.key, node.url, node.capacity_bytes, int(node.state), node.registered_height)


def _charged_list(call: Call, values: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    call.meter.charge(LISTED_RECORD_GAS * len(values))
    return values
