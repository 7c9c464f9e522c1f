"""What one seat can do wrong, turned into one error with its name (da/core/errors.py, ``SeatFailed``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp

from contracts.bindings.foreign_text import show_foreign
from da.core.errors import FaultKind, Malformed, MalformedReceipt, SeatFailed, SeatFault
from da.core.receipt import Receipt, compute_receipt_message, is_signature_valid
from da.core.types import ReceiptTerms, Seat
from da.protocol import decode_receipt

MAX_REASON_CHARACTERS = 300
"""Of what a library says; some quote what a stranger sent."""


def fail(seat: Seat, kind: FaultKind, reason: str) -> SeatFailed:
    """Return the error that names ``seat`` and the reason."""
    return SeatFailed(SeatFault(seat=seat.index, url=seat.url, kind=kind, reason=show_foreign(reason)))


@asynccontextmanager
async def guard(seat: Seat, deadline_seconds: float, said: Sequence[str] = ()) -> AsyncIterator[None]:
    """Turn everything that sockets and HTTP can throw into ``SeatFailed``.

    ``said`` holds what a busy seat has answered so far: that is the reason then, and not the time that ran out.
    """
    try:
        async with asyncio.timeout(deadline_seconds):
            yield
    except TimeoutError as error:
        if said:
            raise fail(seat, FaultKind.REFUSED, f"{said[-1]} (so for {deadline_seconds:.1f} s)") from error
        raise fail(seat, FaultKind.TIMEOUT, f"no complete answer within {deadline_seconds:.1f} s") from error
    except (aiohttp.ClientError, OSError, EOFError, ValueError, Malformed) as error:
        raise fail(seat, FaultKind.UNREACHABLE, _describe(error)[:MAX_REASON_CHARACTERS]) from error


def check_receipt(seat: Seat, answer: bytes, terms: ReceiptTerms) -> Receipt:
    """Return the receipt in ``answer`` when it is the seat's under ``terms``; raises ``SeatFailed``."""
    return check_signature(
        seat,
        answer,
        compute_receipt_message(terms, seat.index),
        f"epoch {terms.epoch}, tier {int(terms.tier)}, expiry {terms.expiry}, genesis {terms.genesis_hash.hex()}",
    )


def check_signature(seat: Seat, answer: bytes, message: bytes, what: str) -> Receipt:
    """Return the receipt in ``answer`` when it is the seat's over ``message``; raises ``SeatFailed``."""
    try:
        receipt = decode_receipt(answer)
    except MalformedReceipt as error:
        raise fail(seat, FaultKind.BAD_RECEIPT, str(error)) from error
    if receipt.seat != seat.index:
        raise fail(seat, FaultKind.BAD_RECEIPT, f"receipt of seat {receipt.seat}, expected {seat.index}")
    if receipt.key != seat.key:
        raise fail(seat, FaultKind.BAD_RECEIPT, f"receipt of key {receipt.key.hex()}, expected {seat.key.hex()}")
    if not is_signature_valid(seat.key, receipt.signature, message):
        reason = f"signature does not verify for {what}; is the node on this chain?"
        raise fail(seat, FaultKind.BAD_RECEIPT, reason)
    return receipt


def _describe(error: Exception) -> str:
    """Say what a socket or HTTP has thrown; some of it comes without a word."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "the connection broke off"
