"""What the application and its verifier say to each other: ABCI's frames around msgpack.

| to the verifier | |
|---|---|
| terms | [chain id, genesis hash, [[epoch, [key of each seat]]]] |
| batch | [number, [transaction]] |

| from the verifier | |
|---|---|
| answer | [number of the batch, [record or empty, one a transaction], [[key, signature, message]] that are valid] |

The first answer has number 0 and nothing in it: the verifier is ready.  A record (``_RECORD``) is a transaction's
fields, big-endian; calldata is named by its place, and what doesn't fit (an access list) has no record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from chain.abci.wire import encode_frame
from chain.core.records import Transaction
from chain.core.types import Amount
from da.core.types import Committee, Epoch, Seat, ShardIndex

_RECORD = struct.Struct(">32s20sB20sBQQQII32s32s32s32s32s")
"""Hash, sender, 1 and target (0 without), type, nonce, gas limit, v, calldata's start and stop, value, max fee,
priority fee, r, s."""

_read_amount: Callable[..., Amount] = int.from_bytes  # type: ignore[assignment]

Signed = tuple[bytes, bytes, bytes]
"""(ed25519 key, signature, message)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What transactions and certificates are judged by."""

    chain_id: int
    """EVM chain id."""
    genesis_hash: bytes
    """32 bytes."""
    committees: Mapping[int, Committee]
    """By epoch: those whose certificates the chain takes."""


def encode_terms(terms: Terms) -> bytes:
    """Return the frame that has the verifier judge by ``terms`` from now on."""
    committees = [[epoch, [seat.key for seat in each.seats]] for epoch, each in terms.committees.items()]
    return encode_frame(msgpack.packb([terms.chain_id, terms.genesis_hash, committees]))


def encode_batch(number: int, transactions: Sequence[bytes]) -> bytes:
    """Return the frame that asks for verdicts."""
    return encode_frame(msgpack.packb([number, transactions]))


def encode_answer(number: int, records: Sequence[bytes], signed: Sequence[Signed]) -> bytes:
    """Return the frame of a batch's verdicts."""
    return encode_frame(msgpack.packb([number, records, signed]))


def decode_question(message: bytes) -> Terms | tuple[int, list[bytes]]:
    """Read what the application says."""
    first, *rest = msgpack.unpackb(message)
    if len(rest) == 1:
        return first, rest[0]
    genesis_hash, committees = rest
    return Terms(
        chain_id=first, genesis_hash=genesis_hash, committees={epoch: _seat(epoch, keys) for epoch, keys in committees}
    )


def decode_answer(message: bytes) -> tuple[int, list[bytes], list[Signed]]:
    """Read what the verifier says; raises ValueError."""
    try:
        number, records, signed = msgpack.unpackb(message, use_list=False)
    except TypeError as error:
        raise ValueError(f"an answer of another shape: {error}") from error
    return number, records, signed


def encode_record(transaction: Transaction) -> bytes:
    """Return the fields of a transaction that was verified; empty where a record can't hold them."""
    to = transaction.to
    start = transaction.raw.find(transaction.data) if transaction.data else 0
    if transaction.access_list:
        return b""
    return _RECORD.pack(
        transaction.hash,
        transaction.sender,
        to is not None,
        to or b"",
        transaction.type,
        transaction.nonce,
        transaction.gas_limit,
        transaction.v,
        start,
        start + len(transaction.data),
        *(
            number.to_bytes(32, "big")
            for number in (
                transaction.value,
                transaction.max_fee,
                transaction.max_priority_fee,
                transaction.r,
                transaction.s,
            )
        ),
    )


def decode_record(record: bytes, raw: bytes, chain_id: int) -> Transaction:
    """Undo ``encode_record``, given the transaction's bytes and the chain that it was verified for.

    Raises ValueError for what is no record.
    """
    if len(record) != _RECORD.size:
        raise ValueError(f"a record of {len(record)} bytes, expected {_RECORD.size}")
    fields: tuple[Any, ...] = _RECORD.unpack(record)
    digest, sender, has_target, to, kind, nonce, gas_limit, v, start, stop, value, max_fee, priority, r, s = fields
    return Transaction(
        hash=digest,
        raw=raw,
        type=kind,
        chain_id=chain_id,
        sender=sender,
        nonce=nonce,
        to=to if has_target else None,
        value=_read_amount(value, "big"),
        data=raw[start:stop],
        gas_limit=gas_limit,
        max_fee=_read_amount(max_fee, "big"),
        max_priority_fee=_read_amount(priority, "big"),
        v=v,
        r=_read_amount(r, "big"),
        s=_read_amount(s, "big"),
    )


def _seat(epoch: int, keys: Sequence[bytes]) -> Committee:
    seats = tuple(Seat(index=ShardIndex(index), key=key, url="") for index, key in enumerate(keys))
    return Committee(epoch=Epoch(epoch), seats=seats)
