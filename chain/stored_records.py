"""How the chain's records lie in LMDB: msgpack, amounts as 32 big-endian bytes.  No part of what is agreed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from chain.core.records import Block, Log, Receipt
from chain.core.types import Address, Amount, Hash


def encode_block(block: Block) -> bytes:
    """Encode a block as a msgpack map."""
    fields = {name: getattr(block, name) for name in Block.__dataclass_fields__}
    fields["base_fee"] = _encode_big(block.base_fee)
    packed: bytes = msgpack.packb(fields)
    return packed


def decode_block(value: bytes) -> Block:
    """Decode what ``encode_block`` made."""
    fields = msgpack.unpackb(value)
    fields["base_fee"] = Amount(int.from_bytes(fields["base_fee"], "big"))
    fields["transactions"] = tuple(fields["transactions"])
    return Block(**fields)


def encode_receipt(receipt: Receipt) -> list[Any]:
    """Turn a receipt into what msgpack holds."""
    return [
        receipt.transaction,
        receipt.status,
        receipt.gas_used,
        receipt.cumulative_gas_used,
        _encode_big(receipt.effective_gas_price),
        [encode_log(log) for log in receipt.logs],
        receipt.output,
        receipt.error,
        receipt.log_index,
    ]


def decode_receipt(fields: Sequence[Any]) -> Receipt:
    """Undo ``encode_receipt``."""
    transaction, status, gas_used, cumulative, price, logs, output, error, log_index = fields
    return Receipt(
        transaction=Hash(transaction),
        status=status,
        gas_used=gas_used,
        cumulative_gas_used=cumulative,
        effective_gas_price=Amount(int.from_bytes(price, "big")),
        logs=tuple(decode_log(log) for log in logs),
        output=output,
        error=error,
        log_index=log_index,
    )


def encode_log(log: Log) -> list[Any]:
    """Turn a log into what msgpack holds."""
    return [log.address, list(log.topics), log.data]


def decode_log(fields: Sequence[Any]) -> Log:
    """Undo ``encode_log``."""
    address, topics, data = fields
    return Log(address=Address(address), topics=tuple(topics), data=data)


def _encode_big(value: int) -> bytes:
    return value.to_bytes(32, "big")
