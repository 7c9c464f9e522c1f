"""Fees on their way from leases to seats (DESIGN 6; SPEC.md, *Money of storage*).

A lease pays its epoch's income evenly over its blocks; each epoch's seats share what has come in, at fixed heights.
A rate changes where a lease begins or ends; changes to come are kept by height, one record for all leases of an epoch.
Invariant: what came in is what was paid out, what is still held, and what later blocks will bring; wei for wei.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.accounts import transfer
from chain.core.contracts.storage.bonds import get_node_book, save_node_book
from chain.core.contracts.storage.keys import (
    STORAGE,
    committee_key,
    get_epoch_state,
    get_node_terms,
    income_change_key,
    income_key,
)
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address


@dataclass(slots=True, kw_only=True)
class Income:
    """What an epoch's seats have to share."""

    rate: int
    """Wei a block from now on."""
    accrued: int
    """Wei that came in by ``updated_height`` and were not paid out yet."""
    updated_height: int
    """Until where ``accrued`` is counted."""
    forfeited: int
    """Bitmap of seats that lost a shard they had signed for: they get nothing more."""


_INCOME = RecordCodec(Income)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a lease that was paid at one time: ``rate`` wei a block over [start, stop)."""

    start: int
    """First block."""
    stop: int
    """First block after it."""
    rate: int
    """Wei a block."""
    epoch: int
    """Whose seats get it."""


def get_income(state: Overlay, epoch: int, height: int) -> Income:
    """Return an epoch's income, counted up to ``height``."""
    value = state.get(income_key(epoch))
    if value is None:
        return Income(rate=0, accrued=0, updated_height=height, forfeited=0)
    income = _INCOME.decode(value)
    income.accrued += income.rate * (height - income.updated_height)
    income.updated_height = height
    return income


def save_income(state: Overlay, epoch: int, income: Income) -> None:
    """Write an epoch's income."""
    state.set(income_key(epoch), _INCOME.encode(income))


def process_fee(state: Overlay, *, fee: int, start: int, stop: int, epoch: int, height: int) -> Span:
    """Spread a fee that has been paid over [start, stop) and return the span; what does not divide comes in now."""
    rate, rest = divmod(fee, stop - start)
    income = get_income(state, epoch, height)
    income.accrued += rest
    if start <= height:
        income.rate += rate
    else:
        _change(state, start, epoch, plus=rate)
    save_income(state, epoch, income)
    _change(state, stop, epoch, minus=rate)
    return Span(start=start, stop=stop, rate=rate, epoch=epoch)


def compute_span_rest(span: Span, height: int) -> int:
    """Return the wei that a span still brings from ``height`` on."""
    return span.rate * max(0, span.stop - max(span.start, height))


def process_cut_span(state: Overlay, span: Span, *, cut: int, height: int) -> int:
    """End a span at ``cut``, now or later, and return the wei that it no longer brings."""
    if span.stop <= cut:
        return 0
    if span.start >= cut and span.start > height:  # it has not begun
        _change(state, span.start, span.epoch, plus=-span.rate)
    elif cut <= height:
        income = get_income(state, span.epoch, height)
        income.rate -= span.rate
        save_income(state, span.epoch, income)
    else:
        _change(state, cut, span.epoch, minus=span.rate)
    _change(state, span.stop, span.epoch, minus=-span.rate)
    return span.rate * (span.stop - max(span.start, cut))


def process_moved_span(state: Overlay, span: Span, *, epoch: int, height: int) -> Span:
    """Let what a span still brings go to another epoch's seats, and return it as it is from now on."""
    if span.epoch == epoch or span.stop <= height:
        return span
    start = max(span.start, height)
    fee = process_cut_span(state, span, cut=start, height=height)
    return process_fee(state, fee=fee, start=start, stop=span.stop, epoch=epoch, height=height)


def process_forfeit(state: Overlay, *, epoch: int, seat: int | None, amount: int, height: int) -> None:
    """Take a seat out of an epoch's income, None: no seat, and add ``amount`` for the others."""
    income = get_income(state, epoch, height)
    income.accrued += amount
    if seat is not None:
        income.forfeited |= 1 << seat
    save_income(state, epoch, income)


def process_income_block_end(turn: Turn) -> None:
    """Change the rates that change at this height, and pay the epochs whose turn it is."""
    state, height = turn.state, int(turn.height)
    for key, value in list(state.iterate(income_change_key(0, 0), income_change_key(height + 1, 0))):
        plus, minus = unpack(value)
        epoch = int.from_bytes(key[-8:], "big")
        income = get_income(state, epoch, height)
        income.rate += plus - minus
        save_income(state, epoch, income)
        state.delete(key)
    distance = get_node_terms(state).payout_blocks
    for epoch in range(height % distance or distance, get_epoch_state(state).epoch + 1, distance):
        _pay_seats(turn, epoch)


def _pay_seats(turn: Turn, epoch: int) -> None:
    state = turn.state
    seats = state.get(committee_key(epoch))
    if seats is None or state.get(income_key(epoch)) is None:
        return
    income = get_income(state, epoch, turn.height)
    paid = [Address(operator) for seat, (operator, _) in enumerate(unpack(seats)) if not income.forfeited >> seat & 1]
    share = income.accrued // len(paid) if paid else 0
    if share == 0:
        return
    for operator in paid:
        transfer(state, STORAGE, operator, share)
        book = get_node_book(state, operator)
        book.earned += share
        save_node_book(state, operator, book)
    income.accrued -= share * len(paid)
    save_income(state, epoch, income)
    turn.emit(STORAGE, "IncomePaid", epoch, share, len(paid))


def _change(state: Overlay, height: int, epoch: int, *, plus: int = 0, minus: int = 0) -> None:
    key = income_change_key(height, epoch)
    value = state.get(key)
    old_plus, old_minus = unpack(value) if value is not None else (0, 0)
    new = (old_plus + plus, old_minus + minus)
    if new == (0, 0):
        state.delete(key)
    else:
        state.set(key, pack(new))
