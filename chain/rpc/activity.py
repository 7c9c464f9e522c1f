"""Blocks and transactions as a person reads them: which contract, which function, which arguments, what came of it.

The page's own view (`/api/blocks`, `/api/transactions`); Ethereum clients have `chain.rpc.views`.  Calldata of a
system contract is decoded by its declaration; of any other contract only the selector is shown.
"""

from __future__ import annotations

from typing import Any

from chain.core.abi.codec import SELECTOR_BYTES, AbiDecodingError
from chain.core.blocks import compute_block_bytes
from chain.core.contracts.registry import CODECS
from chain.core.evm.addresses import compute_create_address
from chain.core.records import Block, Log, Receipt, Transaction
from chain.core.types import Address
from chain.rpc.contract_views import show_fields
from chain.rpc.faults import BlockPruned
from chain.rpc.values import hex_data
from chain.store import Snapshot

MAX_BLOCK_TRANSACTIONS = 200
"""Shown of one block; the count beside them is whole."""
MAX_TEXT = 160
"""Characters of one argument that are shown."""
MAX_ITEMS = 8
"""Items of one list that are shown."""


def describe_call(transaction: Transaction) -> dict[str, Any]:
    """Return what a transaction asks for: kind, and for a system contract its function and arguments."""
    if transaction.to is None:
        created = compute_create_address(transaction.sender, transaction.nonce)
        return {"kind": "create", "contract": hex_data(created), "function": "", "arguments": {}}
    codec = CODECS.get(transaction.to)
    if codec is None:
        kind = "call" if transaction.data else "transfer"
        return {"kind": kind, "contract": "", "function": hex_data(transaction.data[:4]), "arguments": {}}
    name, arguments = "", {}
    function = codec.by_selector.get(transaction.data[:SELECTOR_BYTES])
    if function is not None:
        name = function.function.name
        try:
            values = function.decode_inputs(transaction.data[SELECTOR_BYTES:])
        except AbiDecodingError:
            name += " (arguments don't decode)"
        else:
            arguments = _shorten(show_fields(function.function.inputs, values))
    return {"kind": "system", "contract": codec.contract.name, "function": name, "arguments": arguments}


def describe_transaction(transaction: Transaction, receipt: Receipt, block: Block, index: int) -> dict[str, Any]:
    """Return a transaction in one line of the page."""
    return {
        "hash": hex_data(transaction.hash),
        "height": block.height,
        "index": index,
        "time": block.time_seconds,
        "from": hex_data(transaction.sender),
        "to": None if transaction.to is None else hex_data(transaction.to),
        "value": str(transaction.value),
        "nonce": transaction.nonce,
        "call": describe_call(transaction),
        "status": receipt.status,
        "error": receipt.error,
        "gasUsed": receipt.gas_used,
        "fee": str(receipt.gas_used * receipt.effective_gas_price),
    }


def describe_block(snapshot: Snapshot, height: int) -> dict[str, Any] | None:
    """Return a block with its transactions and what its timers did; None above the newest; raises BlockPruned."""
    if 0 < height < snapshot.first_height:
        raise BlockPruned(height, snapshot.first_height)
    block = snapshot.block(height)
    if block is None:
        return None
    return {
        "height": block.height,
        "hash": hex_data(block.hash),
        "parentHash": hex_data(block.parent_hash),
        "appHash": hex_data(block.app_hash),
        "time": block.time_seconds,
        "proposer": hex_data(block.proposer),
        "gasUsed": block.gas_used,
        "gasLimit": block.gas_limit,
        "sizeBytes": compute_block_bytes(block),
        "numTransactions": len(block.transactions),
        "transactions": list_transactions(snapshot, block, MAX_BLOCK_TRANSACTIONS),
        "timerEvents": [describe_log(log) for log in snapshot.timer_logs(height)],
    }


def find_transaction(snapshot: Snapshot, transaction_hash: bytes) -> dict[str, Any] | None:
    """Return a transaction with its events, None where it was never executed."""
    found = snapshot.transaction(transaction_hash)
    if found is None:
        return None
    transaction, height, index = found
    block = snapshot.block(height)
    if block is None:
        return None
    receipt = snapshot.receipts(height)[index]
    events = [describe_log(log) for log in receipt.logs]
    return {**describe_transaction(transaction, receipt, block, index), "events": events}


def list_transactions(snapshot: Snapshot, block: Block, limit: int) -> list[dict[str, Any]]:
    """Return the first transactions of a block."""
    found = []
    receipts = snapshot.receipts(block.height) if block.transactions else []
    for index, receipt in enumerate(receipts[:limit]):
        stored = snapshot.transaction(receipt.transaction)
        if stored is not None:
            found.append(describe_transaction(stored[0], receipt, block, index))
    return found


def describe_log(log: Log) -> dict[str, Any]:
    """Return an event by name and fields where a system contract emitted it."""
    codec = CODECS.get(Address(log.address))
    decoded = codec.decode_log(log) if codec is not None else None
    if codec is None or decoded is None:
        return {"contract": hex_data(log.address), "event": "", "fields": {}}
    name, values = decoded
    event = next(each for each in codec.contract.events if each.name == name)
    return {
        "contract": codec.contract.name,
        "event": name,
        "fields": _shorten(show_fields(event.fields, [values[field.name] for field in event.fields])),
    }


def _shorten(value: Any) -> Any:
    """Cut what would make the answer long: certificates, recipes, lists of addresses."""
    if isinstance(value, dict):
        return {key: _shorten(each) for key, each in value.items()}
    if isinstance(value, list):
        cut = [_shorten(each) for each in value[:MAX_ITEMS]]
        return [*cut, f"… {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else cut
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… ({len(value)} characters)"
    return value
