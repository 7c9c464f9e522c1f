"""Challenges: a seat shows one leaf of a shard that it signed for, or loses a part of its bond (DESIGN 4.1).

Anybody may accuse, with a bond: an answer takes it, silence returns it with half of what the node loses; the other half
goes to the epoch's other seats. Time is a height, so nobody judges. Each challenge that is open against a node gives
its next one a block more: a thousand at once are no way to an honest node's bond. Invariant: a seat loses a shard at
most once, and never for a blob that it may delete; who answers one challenge a block, most urgent first, loses none.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.refusal import Refusal
from chain.core.accounts import transfer
from chain.core.contracts.storage.blobs import Blob, compute_release_height, get_blob, save_blob
from chain.core.contracts.storage.bonds import get_node_book, save_node_book
from chain.core.contracts.storage.epochs import get_operator
from chain.core.contracts.storage.income import process_forfeit
from chain.core.contracts.storage.keys import (
    STORAGE,
    challenge_key,
    due_challenge_key,
    get_node_terms,
    node_challenge_key,
)
from chain.core.contracts.storage.nodes import NodeState, get_node, process_demotion
from chain.core.record_codec import RecordCodec
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address
from da.core.blob import compute_blob_id, compute_shard_bytes, decode_header
from da.core.errors import BadProof, MalformedHeader, MalformedProof
from da.core.merkle import compute_num_leaves, decode_proof, verify_proof
from da.core.scheme import MAX_SEATS

MAX_DUE_A_BLOCK = 32
"""Challenges that run out in one block at most; the rest in the next."""

MAX_LISTED = 64
"""Challenges that ``challengesOf`` returns, the most urgent ones."""


@dataclass(slots=True, kw_only=True)
class Challenge:
    """An open challenge."""

    challenger: Address
    """Who gets the bond back."""
    operator: Address
    """Who must answer."""
    leaf: int
    """Index of the leaf to show, taken modulo the number of leaves."""
    bond: int
    """Wei that the challenger risks."""
    due_height: int
    """Last height at which an answer is taken."""


_CHALLENGE = RecordCodec(Challenge)


def get_challenge(state: Overlay, blob: bytes, seat: int) -> Challenge | None:
    """Return an open challenge, None where there is none."""
    value = state.get(challenge_key(blob, seat)) if seat < MAX_SEATS else None
    return _CHALLENGE.decode(value) if value is not None else None


def get_challenges_of(state: Overlay, operator: Address) -> list[tuple[bytes, int, Challenge]]:
    """Return (blob, seat, challenge) of a node's open challenges, the most urgent first."""
    start = node_challenge_key(operator, 0, bytes(32), 0)
    found = []
    for key, _ in state.iterate(start, node_challenge_key(operator, 2**64 - 1, b"\xff" * 32, 2**16 - 1)):
        blob, seat = key[-34:-2], int.from_bytes(key[-2:], "big")
        challenge = get_challenge(state, blob, seat)
        assert challenge is not None, "the index names open challenges"
        found.append((blob, seat, challenge))
        if len(found) == MAX_LISTED:
            break
    return found


def process_challenge(turn: Turn, challenger: Address, blob_id: bytes, seat: int, leaf: int) -> int:
    """Open a challenge and return the bond that it takes."""
    # CHECKS
    state, height = turn.state, int(turn.height)
    terms = get_node_terms(state)
    blob = get_blob(state, blob_id)
    if blob is None:
        raise Refusal("UnknownBlob", blob_id)
    if seat >= MAX_SEATS or not blob.signers >> seat & 1:
        raise Refusal("NotSigned", blob_id, seat)
    if get_challenge(state, blob_id, seat) is not None:
        raise Refusal("ChallengeIsOpen", blob_id, seat)
    operator = get_operator(state, blob.epoch, seat)
    assert operator is not None, "only seats of its epoch sign for a blob"
    book = get_node_book(state, operator)
    due_height = height + terms.challenge_blocks + book.num_challenges
    bound_height = _compute_bound_height(state, blob, operator)
    if bound_height <= due_height:
        raise Refusal("LeaseTooShort", due_height + 1, bound_height)
    # EFFECTS
    challenge = Challenge(
        challenger=challenger, operator=operator, leaf=leaf, bond=terms.challenge_bond, due_height=due_height
    )
    state.set(challenge_key(blob_id, seat), _CHALLENGE.encode(challenge))
    state.set(due_challenge_key(due_height, blob_id, seat), b"")
    state.set(node_challenge_key(operator, due_height, blob_id, seat), b"")
    book.num_challenges += 1
    save_node_book(state, operator, book)
    # EVENTS
    turn.emit(STORAGE, "ChallengeOpened", blob_id, operator, challenger, seat, leaf, due_height)
    return terms.challenge_bond


def process_answer(turn: Turn, blob_id: bytes, seat: int, header_bytes: bytes, leaf: bytes, proof_bytes: bytes) -> None:
    """Check that a leaf is the one that was asked for; the challenger's bond pays the node."""
    # CHECKS
    challenge = get_challenge(turn.state, blob_id, seat)
    if challenge is None:
        raise Refusal("NoChallenge", blob_id, seat)
    _check_answer(challenge, blob_id, seat, header_bytes, leaf, proof_bytes)
    # EFFECTS
    _close(turn.state, blob_id, seat, challenge)
    transfer(turn.state, STORAGE, challenge.operator, challenge.bond)
    # EVENTS
    turn.emit(STORAGE, "ChallengeAnswered", blob_id, challenge.operator, seat)


def process_challenges_block_end(turn: Turn) -> None:
    """Slash the nodes whose time has run out; at most 32 a block."""
    state, height = turn.state, int(turn.height)
    start, stop = due_challenge_key(0, bytes(32), 0), due_challenge_key(height, bytes(32), 0)
    due = [key for key, _ in state.iterate(start, stop)][:MAX_DUE_A_BLOCK]
    for key in due:
        blob_id, seat = key[-34:-2], int.from_bytes(key[-2:], "big")
        challenge, blob = get_challenge(state, blob_id, seat), get_blob(state, blob_id)
        assert challenge is not None, "the index names open challenges"
        assert blob is not None, "a challenged blob is known"
        _close(state, blob_id, seat, challenge)
        transfer(state, STORAGE, challenge.challenger, challenge.bond)
        if _compute_bound_height(state, blob, challenge.operator) > height:
            _slash(turn, blob_id, blob, seat, challenge)
        else:  # its lease was released meanwhile: the node was free to delete it
            turn.emit(STORAGE, "ChallengeLapsed", blob_id, challenge.operator, seat)


def _slash(turn: Turn, blob_id: bytes, blob: Blob, seat: int, challenge: Challenge) -> None:
    state = turn.state
    book = get_node_book(state, challenge.operator)
    amount = book.bond * get_node_terms(state).slash_percent // 100
    reward = amount // 2
    book.bond -= amount
    book.num_faults += 1
    save_node_book(state, challenge.operator, book)
    transfer(state, STORAGE, challenge.challenger, reward)
    # The blob may have moved to another committee since: whoever has the seat there has lost nothing.
    is_its_seat = get_operator(state, blob.epoch, seat) == challenge.operator
    process_forfeit(
        state,
        epoch=blob.epoch,
        seat=seat if is_its_seat else None,
        amount=amount - reward,
        height=turn.height,
    )
    if is_its_seat:
        blob.signers &= ~(1 << seat)
        save_blob(state, blob_id, blob)
    turn.emit(STORAGE, "NodeSlashed", challenge.operator, blob_id, seat, amount)
    process_demotion(turn, challenge.operator)


def _compute_bound_height(state: Overlay, blob: Blob, operator: Address) -> int:
    """Return until when a seat must have the shard.

    A registered node stands by renewals and pins too; a retiring one by what it signed.
    """
    node = get_node(state, operator)
    assert node is not None, "nodes are never removed"
    release_height = compute_release_height(blob)
    return release_height if node.state == NodeState.REGISTERED else min(release_height, blob.signed_height)


def _check_answer(
    challenge: Challenge, blob_id: bytes, seat: int, header_bytes: bytes, leaf: bytes, proof_bytes: bytes
) -> None:
    try:
        header = decode_header(header_bytes)
        proof = decode_proof(proof_bytes)
    except (MalformedHeader, MalformedProof) as error:
        raise Refusal("BadAnswer", str(error)) from error
    if compute_blob_id(header) != blob_id:
        raise Refusal("BadAnswer", f"a header of blob {compute_blob_id(header).hex()}")
    if seat >= header.num_shards:
        raise Refusal("BadAnswer", f"seat {seat} of {header.num_shards} shards")
    shard_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
    wanted = challenge.leaf % compute_num_leaves(shard_bytes, header.leaf_bytes)
    if (proof.leaf_index, proof.size_bytes, proof.leaf_bytes) != (wanted, shard_bytes, header.leaf_bytes):
        raise Refusal(
            "BadAnswer",
            f"leaf {proof.leaf_index} of {proof.size_bytes} bytes by {proof.leaf_bytes}, expected leaf {wanted} of "
            f"{shard_bytes} by {header.leaf_bytes}",
        )
    try:
        verify_proof(header.shard_roots[seat], leaf, proof)
    except BadProof as error:
        raise Refusal("BadAnswer", str(error)) from error


def _close(state: Overlay, blob_id: bytes, seat: int, challenge: Challenge) -> None:
    state.delete(challenge_key(blob_id, seat))
    state.delete(due_challenge_key(challenge.due_height, blob_id, seat))
    state.delete(node_challenge_key(challenge.operator, challenge.due_height, blob_id, seat))
    book = get_node_book(state, challenge.operator)
    book.num_challenges -= 1
    save_node_book(state, challenge.operator, book)
