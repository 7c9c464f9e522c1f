"""Bonds of storage nodes: what a node risks for what it signs (DESIGN 4.1, *Slashable*).

A bond is held with the registration and is free again when nothing that the node signed still runs.
Invariant: the contract's account covers all bonds.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.refusal import Refusal
from chain.core.accounts import transfer
from chain.core.contracts.storage.keys import (
    STORAGE,
    bound_until_key,
    get_epoch_state,
    get_node_terms,
    node_book_key,
)
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Amount

NEVER = 2**64 - 1
"""Height at which a bond is free that is not about to be."""


@dataclass(slots=True, kw_only=True)
class NodeBook:
    """A node's money and record."""

    bond: int
    """Wei that it can lose."""
    earned: int
    """Wei that it was paid so far."""
    num_faults: int
    """Challenges that it did not answer."""
    num_challenges: int
    """Open challenges."""
    last_epoch: int
    """Newest epoch in which it has a seat, 0 before the first."""


_BOOK = RecordCodec(NodeBook)


def get_node_book(state: Overlay, operator: Address) -> NodeBook:
    """Return a node's book, an empty one where there is none."""
    value = state.get(node_book_key(operator))
    if value is None:
        return NodeBook(bond=0, earned=0, num_faults=0, num_challenges=0, last_epoch=0)
    return _BOOK.decode(value)


def save_node_book(state: Overlay, operator: Address, book: NodeBook) -> None:
    """Write a node's book."""
    state.set(node_book_key(operator), _BOOK.encode(book))


def process_bond(turn: Turn, operator: Address, amount: int, *, is_registering: bool) -> None:
    """Add money that has arrived to a node's bond.

    Refuses a registration with less than genesis asks for.
    """
    state = turn.state
    book = get_node_book(state, operator)
    minimum = get_node_terms(state).node_bond
    if is_registering and book.bond + amount < minimum:
        raise Refusal("BondTooSmall", minimum, book.bond + amount)
    if amount == 0:
        return
    book.bond += amount
    save_node_book(state, operator, book)
    turn.emit(STORAGE, "NodeBonded", operator, amount, book.bond)


def process_withdraw_bond(turn: Turn, operator: Address, *, is_retiring: bool) -> Amount:
    """Pay a retired node's bond back."""
    # CHECKS
    state = turn.state
    book = get_node_book(state, operator)
    if book.bond == 0:
        raise Refusal("BondTooSmall", 1, 0)
    free_height = compute_free_height(state, book, is_retiring=is_retiring)
    if turn.height < free_height:
        raise Refusal("BondLocked", free_height, turn.height)
    # EFFECTS
    amount, book.bond = Amount(book.bond), 0
    save_node_book(state, operator, book)
    transfer(state, STORAGE, operator, amount)
    # EVENTS
    turn.emit(STORAGE, "NodeBondWithdrawn", operator, amount)
    return amount


def compute_free_height(state: Overlay, book: NodeBook, *, is_retiring: bool) -> int:
    """Return from when on a bond may be withdrawn.

    The node is retiring, certificates of its last epoch are no longer taken, and all that were taken have run out.
    """
    if not is_retiring or book.num_challenges:
        return NEVER
    if book.last_epoch == 0:
        return 0
    if get_epoch_state(state).epoch < book.last_epoch + 2:
        return NEVER
    return _get_bound_until(state, book.last_epoch)


def note_signed(state: Overlay, epoch: int, expiry_height: int) -> None:
    """Remember that the seats of an epoch are bound until ``expiry_height``.

    Only the current epoch and the one before get new certificates, so each epoch knows the longest promise of itself
    and of all before it.
    """
    for number in range(epoch, get_epoch_state(state).epoch + 1):
        if expiry_height > _get_bound_until(state, number):
            state.set(bound_until_key(number), pack(expiry_height))


def note_seats(state: Overlay, epoch: int, operators: list[Address]) -> None:
    """Remember that a new epoch has seated ``operators``."""
    bound_until = _get_bound_until(state, epoch - 1)
    if bound_until:
        state.set(bound_until_key(epoch), pack(bound_until))
    for operator in operators:
        book = get_node_book(state, operator)
        book.last_epoch = epoch
        save_node_book(state, operator, book)


def _get_bound_until(state: Overlay, epoch: int) -> int:
    value = state.get(bound_until_key(epoch))
    return int(unpack(value)) if value is not None else 0
