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
    process_release,
    process_renewal,
)
from chain.core.contracts.storage.bonds import (
    compute_free_height,
    get_node_book,
    process_bond,
    process_withdraw_bond,
)
from chain.core.contracts.storage.certificates import process_certificate
from chain.core.contracts.storage.challenges import (
    Challenge,
    get_challenge,
    get_challenges_of,
    process_answer,
    process_challenge,
)
from chain.core.contracts.storage.epochs import get_seats
from chain.core.contracts.storage.income import get_income
from chain.core.contracts.storage.keys import STORAGE, get_epoch_state, get_node_terms, get_tiers
from chain.core.contracts.storage.leases import get_lease_expiries
from chain.core.contracts.storage.nodes import (
    Node,
    NodeState,
    get_node,
    get_nodes,
    process_register,
    process_retire,
    process_update,
)
from chain.core.contracts.storage.owners import get_owned_blobs, get_owner_account, process_owned_blob
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
    process_bond(call.turn, call.sender, call.value, is_registering=True)


def _process_update_node(call: Call, url: str, capacity: int) -> None:
    call.meter.charge(STORED_BYTE_GAS * len(url.encode()))
    process_update(call.turn, call.sender, url, capacity)


def _process_retire_node(call: Call) -> None:
    process_retire(call.turn, call.sender)


def _process_add_node_bond(call: Call) -> None:
    if get_node(call.turn.state, call.sender) is None:
        raise Refusal("UnknownNode", call.sender)
    process_bond(call.turn, call.sender, call.value, is_registering=False)


def _process_withdraw_node_bond(call: Call) -> None:
    node = get_node(call.turn.state, call.sender)
    if node is None:
        raise Refusal("UnknownNode", call.sender)
    process_withdraw_bond(call.turn, call.sender, is_retiring=node.state == NodeState.RETIRING)


def _process_certify(call: Call, certificate: bytes) -> tuple[object, ...]:
    # CHECKS
    turn = call.turn
    stored = process_certificate(turn, call.meter, certificate)
    fee = compute_lease_fee(turn.state, stored, call.sender, turn.height)
    if fee:  # a blob that only moves to another committee keeps the lease that it has
        check_lease(get_tier(turn.state, stored.tier), turn.height, stored.expiry_height)
    _take_fee(call, fee)
    # EFFECTS, EVENTS
    is_new = get_lease_expiry(turn.state, stored.blob, call.sender) == 0
    process_lease(turn, stored, call.sender, fee)
    if is_new:
        process_owned_blob(turn.state, call.sender, stored.blob)
    return (stored.blob,)


def _process_renew(call: Call, blob: bytes, expiry_height: int) -> None:
    _take_fee(call, process_renewal(call.turn, blob, call.sender, expiry_height))


def _process_release(call: Call, blob: bytes) -> None:
    call.meter.charge(LISTED_RECORD_GAS * len(get_lease_expiries(call.turn.state, blob)))
    process_release(call.turn, blob, call.sender)


def _process_challenge(call: Call, blob: bytes, seat: int, leaf: int) -> None:
    bond = process_challenge(call.turn, call.sender, blob, seat, leaf)
    _take_fee(call, bond)


def _process_answer_challenge(call: Call, blob: bytes, seat: int, header: bytes, leaf: bytes, proof: bytes) -> None:
    process_answer(call.turn, blob, seat, header, leaf, proof)


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
        return ((blob_id, _NO_ADDRESS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),)
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
            blob.signers,
            blob.signed_height,
        ),
    )


def _view_release_heights(call: Call, blob_ids: tuple[bytes, ...]) -> tuple[object, ...]:
    if len(blob_ids) > MAX_BLOBS_A_CALL:
        raise Refusal("TooMany", MAX_BLOBS_A_CALL, len(blob_ids))
    call.meter.charge(LISTED_RECORD_GAS * len(blob_ids))
    blobs = [get_blob(call.turn.state, blob_id) for blob_id in blob_ids]
    return ([compute_release_height(blob) if blob is not None else 0 for blob in blobs],)


def _view_signed_heights(call: Call, blob_ids: tuple[bytes, ...]) -> tuple[object, ...]:
    if len(blob_ids) > MAX_BLOBS_A_CALL:
        raise Refusal("TooMany", MAX_BLOBS_A_CALL, len(blob_ids))
    call.meter.charge(LISTED_RECORD_GAS * len(blob_ids))
    blobs = [get_blob(call.turn.state, blob_id) for blob_id in blob_ids]
    return ([blob.signed_height if blob is not None else 0 for blob in blobs],)


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


def _view_node_account(call: Call, operator: bytes) -> tuple[object, ...]:
    state = call.turn.state
    node, book = get_node(state, Address(operator)), get_node_book(state, Address(operator))
    free_height = compute_free_height(state, book, is_retiring=node is not None and node.state == NodeState.RETIRING)
    return ((book.bond, book.earned, book.num_faults, book.num_challenges, book.last_epoch, free_height),)


def _view_challenge_at(call: Call, blob: bytes, seat: int) -> tuple[object, ...]:
    challenge = get_challenge(call.turn.state, blob, seat)
    if challenge is None:
        return ((blob, seat, _NO_ADDRESS, _NO_ADDRESS, 0, 0, 0),)
    return (_challenge_values(blob, seat, challenge),)


def _view_challenges_of(call: Call, operator: bytes) -> tuple[object, ...]:
    found = get_challenges_of(call.turn.state, Address(operator))
    return (_charged_list(call, [_challenge_values(*item) for item in found]),)


def _view_income(call: Call, epoch: int) -> tuple[object, ...]:
    income = get_income(call.turn.state, epoch, call.turn.height)
    return ((income.rate, income.accrued, income.forfeited),)


def _view_owner_account(call: Call, owner: bytes) -> tuple[object, ...]:
    account = get_owner_account(call.turn.state, Address(owner))
    return ((account.num_blobs, account.paid, account.refunded),)


def _view_blobs_of(call: Call, owner: bytes, start: int, count: int) -> tuple[object, ...]:
    if count > MAX_BLOBS_A_CALL:
        raise Refusal("TooMany", MAX_BLOBS_A_CALL, count)
    blobs = get_owned_blobs(call.turn.state, Address(owner), start, count)
    call.meter.charge(LISTED_RECORD_GAS * len(blobs))
    return (blobs,)


def _view_node_terms(call: Call) -> tuple[object, ...]:
    terms = get_node_terms(call.turn.state)
    return ((terms.node_bond, terms.challenge_bond, terms.challenge_blocks, terms.slash_percent, terms.payout_blocks),)


STORAGE_HANDLERS: dict[str, Handler] = {
    "registerNode": _process_register_node,
    "updateNode": _process_update_node,
    "retireNode": _process_retire_node,
    "addNodeBond": _process_add_node_bond,
    "withdrawNodeBond": _process_withdraw_node_bond,
    "certify": _process_certify,
    "renew": _process_renew,
    "release": _process_release,
    "challenge": _process_challenge,
    "answerChallenge": _process_answer_challenge,
    "genesisHash": _view_genesis_hash,
    "epoch": _view_epoch,
    "committee": _view_committee,
    "node": _view_node,
    "nodes": _view_nodes,
    "blob": _view_blob,
    "releaseHeights": _view_release_heights,
    "signedHeights": _view_signed_heights,
    "leaseExpiry": _view_lease_expiry,
    "nodeAccount": _view_node_account,
    "challengeAt": _view_challenge_at,
    "challengesOf": _view_challenges_of,
    "income": _view_income,
    "ownerAccount": _view_owner_account,
    "blobsOf": _view_blobs_of,
    "nodeTerms": _view_node_terms,
    "quote": _view_quote,
    "tiers": _view_tiers,
}
"""By function name."""


def _node_values(node: Node) -> tuple[object, ...]:
    return (node.operator, node.key, node.url, node.capacity_bytes, int(node.state), node.registered_height)


def _challenge_values(blob: bytes, seat: int, challenge: Challenge) -> tuple[object, ...]:
    return (
        blob,
        seat,
        challenge.operator,
        challenge.challenger,
        challenge.leaf,
        challenge.bond,
        challenge.due_height,
    )


def _charged_list(call: Call, values: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    call.meter.charge(LISTED_RECORD_GAS * len(values))
    return values
