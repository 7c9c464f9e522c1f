"""Ethereum-shaped blocks over CometBFT's: header hash, bloom, roots (yellow paper, 4.3; EIP-1559).

``hash`` is keccak256 of the RLP header that JSON-RPC shows, so a client can recompute it and hashes chain from
block 0.  The two roots are tagged keccaks over lists, not Patricia tries; stateRoot is the app hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from chain.core import rlp
from chain.core.hashing import RECEIPTS_TAG, TRANSACTIONS_TAG, keccak256
from chain.core.records import Block, Log, Receipt
from chain.core.types import Address, Amount, Hash, Height

BLOOM_BYTES = 256
EMPTY_UNCLES_HASH = keccak256(rlp.encode([]))
"""sha3Uncles of every block."""
LEGACY_FROM = 0xC0
"""First byte of a legacy transaction, an RLP list; below it is an EIP-2718 type."""
STRING_BASE, LIST_BASE = 0x80, 0xC0
"""Of RLP lengths."""
EXTRA_DATA = b"archipelago"
"""At most 32 bytes, or clients refuse the block."""


def compute_bloom(logs: Iterable[Log]) -> bytes:
    """Return the 2048-bit bloom over addresses and topics (yellow paper, 4.3.1)."""
    items = dict.fromkeys(item for log in logs for item in (log.address, *log.topics))  # each once, most come often
    bloom = bytearray(BLOOM_BYTES)
    for item in items:
        digest = keccak256(item)
        for index in (0, 2, 4):
            bit = (digest[index] << 8 | digest[index + 1]) & 0x7FF
            bloom[-1 - (bit >> 3)] |= 1 << (bit & 7)
    return bytes(bloom)


def encode_receipt(receipt: Receipt) -> bytes:
    """Encode what is agreed of a receipt: status, gas, price, logs, output."""
    logs = b"".join(map(_encode_log, receipt.logs))
    payload = b"".join(
        (
            b"\xa0",
            receipt.transaction,
            _encode_number(receipt.status),
            _encode_number(receipt.gas_used),
            _encode_number(receipt.cumulative_gas_used),
            _encode_number(receipt.effective_gas_price),
            rlp.encode_header(0xC0, len(logs)),
            logs,
            rlp.encode(receipt.output),
        )
    )
    return rlp.encode_header(0xC0, len(payload)) + payload


def _encode_log(log: Log) -> bytes:
    topics = b"".join([b"\xa0" + topic for topic in log.topics])
    payload = b"\x94" + log.address + rlp.encode_header(0xC0, len(topics)) + topics + rlp.encode(log.data)
    return rlp.encode_header(0xC0, len(payload)) + payload


def _encode_number(number: int) -> bytes:
    if 0 < number < 0x80:
        return rlp.BYTES[number]
    encoded = rlp.encode_integer(number)
    return rlp.BYTES[0x80 + len(encoded)] + encoded


def encode_header(block: Block) -> bytes:
    """Encode the header in Ethereum's order, up to baseFeePerGas."""
    return rlp.encode(
        [
            block.parent_hash,
            EMPTY_UNCLES_HASH,
            block.proposer,
            block.app_hash,
            block.transactions_root,
            block.receipts_root,
            block.logs_bloom,
            b"",
            rlp.encode_integer(block.height),
            rlp.encode_integer(block.gas_limit),
            rlp.encode_integer(block.gas_used),
            rlp.encode_integer(block.time_seconds),
            EXTRA_DATA,
            bytes(32),
            bytes(8),
            rlp.encode_integer(block.base_fee),
        ]
    )


def compute_body_bytes(transactions: Iterable[bytes]) -> int:
    """Return the size of raw transactions in a block's body: typed ones stand there as RLP strings (EIP-2718)."""
    total = 0
    for raw in transactions:
        is_typed = raw[0] < LEGACY_FROM
        total += len(raw) + (len(rlp.encode_header(STRING_BASE, len(raw))) if is_typed else 0)
    return total


def compute_block_bytes(block: Block) -> int:
    """Return the size of a block as Ethereum has it: the RLP of header, transactions and no uncles."""
    body = len(rlp.encode_header(LIST_BASE, block.size_bytes)) + block.size_bytes
    payload = len(encode_header(block)) + body + len(rlp.encode([]))
    return len(rlp.encode_header(LIST_BASE, payload)) + payload


def encode_block(block: Block, transactions: Sequence[bytes]) -> bytes:
    """Encode a block with its raw transactions; as long as ``compute_block_bytes`` says."""
    body = b"".join(raw if raw[0] >= LEGACY_FROM else rlp.encode(raw) for raw in transactions)
    payload = encode_header(block) + rlp.encode_header(LIST_BASE, len(body)) + body + rlp.encode([])
    return rlp.encode_header(LIST_BASE, len(payload)) + payload


def seal_block(
    *,
    height: Height,
    parent_hash: Hash,
    time_seconds: int,
    app_hash: bytes,
    proposer: Address,
    gas_limit: int,
    base_fee: Amount,
    cometbft_hash: bytes,
    receipts: Sequence[Receipt],
    block_logs: Sequence[Log],
    size_bytes: int,
) -> Block:
    """Make the block of what was executed; ``block_logs`` are all its logs, those of timers included.

    ``size_bytes`` is that of its transactions (``compute_body_bytes``).
    """
    hashes = tuple(receipt.transaction for receipt in receipts)
    unsealed = Block(
        height=height,
        hash=Hash(bytes(32)),
        parent_hash=parent_hash,
        time_seconds=time_seconds,
        app_hash=app_hash,
        proposer=proposer,
        gas_limit=gas_limit,
        gas_used=receipts[-1].cumulative_gas_used if receipts else 0,
        base_fee=base_fee,
        logs_bloom=compute_bloom(block_logs),
        transactions_root=keccak256(TRANSACTIONS_TAG + b"".join(hashes)),
        receipts_root=keccak256(RECEIPTS_TAG + b"".join(keccak256(encode_receipt(receipt)) for receipt in receipts)),
        cometbft_hash=cometbft_hash,
        transactions=hashes,
        size_bytes=size_bytes,
    )

    return replace(unsealed, hash=keccak256(encode_header(unsealed)))
