"""Blocks, transactions, receipts and logs as Ethereum clients read them.

The views of one transaction (block, receipt, logs, by hash, by index) are all made here from the same records, so
they agree.  A log of a contract's timer belongs to no transaction: it carries the block's hash as its transaction
hash and an index one past the block's last transaction, so (transaction hash, log index) stays unique.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chain.core.blocks import EMPTY_UNCLES_HASH, EXTRA_DATA, compute_block_bytes, compute_bloom
from chain.core.evm.addresses import compute_create_address
from chain.core.records import AccessList, Block, Log, Receipt, Transaction
from chain.rpc.values import hex_data, quantity
from chain.store import Snapshot

_DYNAMIC_FEE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLog:
    """A log and where it stands."""

    log: Log
    block: Block
    transaction_hash: bytes
    transaction_index: int
    log_index: int
    """Global in the block."""


def place_logs(block: Block, receipts: Sequence[Receipt], timer_logs: Sequence[Log]) -> Iterator[PlacedLog]:
    """Yield all logs of a block in order."""
    log_index = 0
    for transaction_index, receipt in enumerate(receipts):
        for log in receipt.logs:
            yield PlacedLog(
                log=log,
                block=block,
                transaction_hash=receipt.transaction,
                transaction_index=transaction_index,
                log_index=log_index,
            )
            log_index += 1
    for log in timer_logs:
        yield PlacedLog(
            log=log,
            block=block,
            transaction_hash=block.hash,
            transaction_index=len(block.transactions),
            log_index=log_index,
        )
        log_index += 1


def view_block(snapshot: Snapshot, block: Block, *, is_full: bool) -> dict[str, Any]:
    """Show a block with its transactions, or with their hashes."""
    if is_full:
        receipts = snapshot.receipts(block.height)
        transactions: list[Any] = [
            view_transaction(_transaction(snapshot, receipt.transaction), block, receipt, index)
            for index, receipt in enumerate(receipts)
        ]
    else:
        transactions = [hex_data(each) for each in block.transactions]
    return {
        "number": quantity(block.height),
        "hash": hex_data(block.hash),
        "parentHash": hex_data(block.parent_hash),
        "nonce": hex_data(bytes(8)),
        "mixHash": hex_data(bytes(32)),
        "sha3Uncles": hex_data(EMPTY_UNCLES_HASH),
        "logsBloom": hex_data(block.logs_bloom),
        "transactionsRoot": hex_data(block.transactions_root),
        "stateRoot": hex_data(block.app_hash),
        "receiptsRoot": hex_data(block.receipts_root),
        "miner": hex_data(block.proposer),
        "difficulty": quantity(0),
        "extraData": hex_data(EXTRA_DATA),
        "size": quantity(compute_block_bytes(block)),
        "gasLimit": quantity(block.gas_limit),
        "gasUsed": quantity(block.gas_used),
        "timestamp": quantity(block.time_seconds),
        "baseFeePerGas": quantity(block.base_fee),
        "transactions": transactions,
        "uncles": [],
    }


def view_transaction(transaction: Transaction, block: Block, receipt: Receipt, index: int) -> dict[str, Any]:
    """Show an executed transaction."""
    view: dict[str, Any] = {
        "hash": hex_data(transaction.hash),
        "type": quantity(transaction.type),
        "chainId": quantity(transaction.chain_id),
        "nonce": quantity(transaction.nonce),
        "from": hex_data(transaction.sender),
        "to": None if transaction.to is None else hex_data(transaction.to),
        "value": quantity(transaction.value),
        "input": hex_data(transaction.data),
        "gas": quantity(transaction.gas_limit),
        "gasPrice": quantity(receipt.effective_gas_price),
        "v": quantity(transaction.v),
        "r": quantity(transaction.r),
        "s": quantity(transaction.s),
        "blockHash": hex_data(block.hash),
        "blockNumber": quantity(block.height),
        "transactionIndex": quantity(index),
    }
    if transaction.type == _DYNAMIC_FEE:
        view |= {
            "maxFeePerGas": quantity(transaction.max_fee),
            "maxPriorityFeePerGas": quantity(transaction.max_priority_fee),
        }
    if transaction.type:
        view |= {"accessList": view_access_list(transaction.access_list), "yParity": quantity(transaction.v)}
    return view


def view_receipt(transaction: Transaction, block: Block, receipt: Receipt, index: int) -> dict[str, Any]:
    """Show what a transaction did; a failed one adds ``revertReason`` (revert data) and ``error`` (one line)."""
    logs = [
        PlacedLog(
            log=log,
            block=block,
            transaction_hash=receipt.transaction,
            transaction_index=index,
            log_index=receipt.log_index + offset,
        )
        for offset, log in enumerate(receipt.logs)
    ]
    view: dict[str, Any] = {
        "transactionHash": hex_data(receipt.transaction),
        "transactionIndex": quantity(index),
        "blockHash": hex_data(block.hash),
        "blockNumber": quantity(block.height),
        "from": hex_data(transaction.sender),
        "to": None if transaction.to is None else hex_data(transaction.to),
        "type": quantity(transaction.type),
        "status": quantity(receipt.status),
        "gasUsed": quantity(receipt.gas_used),
        "cumulativeGasUsed": quantity(receipt.cumulative_gas_used),
        "effectiveGasPrice": quantity(receipt.effective_gas_price),
        "contractAddress": _contract_address(transaction),
        "logs": [view_log(log) for log in logs],
        "logsBloom": hex_data(compute_bloom(receipt.logs)),
    }
    if not receipt.status:
        view |= {"revertReason": hex_data(receipt.output), "error": receipt.error}
    return view


def view_access_list(access_list: AccessList) -> list[dict[str, Any]]:
    """Show what a transaction keeps warm (EIP-2930)."""
    return [
        {"address": hex_data(address), "storageKeys": [hex_data(slot) for slot in slots]}
        for address, slots in access_list
    ]


def view_log(placed: PlacedLog) -> dict[str, Any]:
    """Show one event."""
    return {
        "address": hex_data(placed.log.address),
        "topics": [hex_data(topic) for topic in placed.log.topics],
        "data": hex_data(placed.log.data),
        "blockNumber": quantity(placed.block.height),
        "blockHash": hex_data(placed.block.hash),
        "blockTimestamp": quantity(placed.block.time_seconds),
        "transactionHash": hex_data(placed.transaction_hash),
        "transactionIndex": quantity(placed.transaction_index),
        "logIndex": quantity(placed.log_index),
        "removed": False,
    }


def _contract_address(transaction: Transaction) -> str | None:
    """Return where a creation put its contract, or would have put it."""
    return hex_data(compute_create_address(transaction.sender, transaction.nonce)) if transaction.to is None else None


def _transaction(snapshot: Snapshot, transaction_hash: bytes) -> Transaction:
    found = snapshot.transaction(transaction_hash)
    assert found is not None, "a receipt and its transaction are written together"
    return found[0]
