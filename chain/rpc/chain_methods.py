"""Methods that read blocks, transactions, receipts and logs; all of one snapshot."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from chain.core.blocks import encode_block, encode_header
from chain.core.records import Block, Receipt
from chain.rpc.faults import BlockPruned, HistoryTooLong, InvalidParams
from chain.rpc.logs import QUERY_SECONDS, find_logs, parse_query
from chain.rpc.session import Method, Session
from chain.rpc.values import Params, hex_data, parse_quantity, quantity
from chain.rpc.views import view_block, view_log, view_receipt, view_transaction

MAX_FEE_HISTORY_BLOCKS = 1_024
"""As go-ethereum: most blocks of one eth_feeHistory."""
_MAX_PERCENTILES = 100
_BASIS = 10**6
"""Ratios are computed in millionths, so that one block always shows the same number."""


def get_block_number(session: Session, params: Params) -> str:
    """eth_blockNumber."""
    params.at_most(0)
    return quantity(session.snapshot.height)


def get_block_by_number(session: Session, params: Params) -> Any:
    """eth_getBlockByNumber."""
    params.at_most(2)
    height = params.height(0, session.snapshot.height)
    return _view_block(session, _find_block(session, height), params.flag(1, "fullTransactions"))


def get_block_by_hash(session: Session, params: Params) -> Any:
    """eth_getBlockByHash."""
    params.at_most(2)
    return _view_block(session, _block_of_hash(session, params), params.flag(1, "fullTransactions"))


def get_transaction_by_hash(session: Session, params: Params) -> Any:
    """eth_getTransactionByHash; null until it is in a block."""
    params.at_most(1)
    found = session.snapshot.transaction(params.hash(0, "hash"))
    if found is None:
        return None
    transaction, height, index = found
    return view_transaction(transaction, _block(session, height), session.snapshot.receipts(height)[index], index)


def get_transaction_by_number_and_index(session: Session, params: Params) -> Any:
    """eth_getTransactionByBlockNumberAndIndex."""
    params.at_most(2)
    return _view_indexed(session, _find_block(session, params.height(0, session.snapshot.height)), params)


def get_transaction_by_hash_and_index(session: Session, params: Params) -> Any:
    """eth_getTransactionByBlockHashAndIndex."""
    params.at_most(2)
    return _view_indexed(session, _block_of_hash(session, params), params)


def get_transaction_receipt(session: Session, params: Params) -> Any:
    """eth_getTransactionReceipt; null for what is in no block."""
    params.at_most(1)
    found = session.snapshot.transaction(params.hash(0, "hash"))
    if found is None:
        return None
    transaction, height, index = found
    return view_receipt(transaction, _block(session, height), session.snapshot.receipts(height)[index], index)


def get_block_receipts(session: Session, params: Params) -> Any:
    """eth_getBlockReceipts."""
    block = _named_block(session, params)
    if block is None:
        return None
    views = []
    for index, receipt in enumerate(session.snapshot.receipts(block.height)):
        found = session.snapshot.transaction(receipt.transaction)
        assert found is not None, "a receipt and its transaction are written together"
        views.append(view_receipt(found[0], block, receipt, index))
    return views


def count_transactions_by_number(session: Session, params: Params) -> Any:
    """eth_getBlockTransactionCountByNumber."""
    block = _find_block(session, params.height(0, session.snapshot.height))
    return None if block is None else quantity(len(block.transactions))


def count_transactions_by_hash(session: Session, params: Params) -> Any:
    """eth_getBlockTransactionCountByHash."""
    block = _block_of_hash(session, params)
    return None if block is None else quantity(len(block.transactions))


def count_uncles_by_number(session: Session, params: Params) -> str | None:
    """eth_getUncleCountByBlockNumber: there are none in any block."""
    return None if _find_block(session, params.height(0, session.snapshot.height)) is None else quantity(0)


def count_uncles_by_hash(session: Session, params: Params) -> str | None:
    """eth_getUncleCountByBlockHash: there are none in any block."""
    return None if _block_of_hash(session, params) is None else quantity(0)


def get_uncle(session: Session, params: Params) -> None:
    """eth_getUncleBy...: there are none."""
    return


def get_logs(session: Session, params: Params) -> Any:
    """eth_getLogs."""
    params.at_most(1)
    query = parse_query(params.raw(0, "filter"), session.snapshot.height)
    return [view_log(log) for log in find_logs(session.snapshot, query)]


def new_filter(session: Session, params: Params) -> str:
    """eth_newFilter."""
    newest = session.snapshot.height
    return session.filters.add(parse_query(params.raw(0, "filter"), newest), newest, session.peer)


def new_block_filter(session: Session, params: Params) -> str:
    """eth_newBlockFilter."""
    return session.filters.add(None, session.snapshot.height, session.peer)


def get_filter_changes(session: Session, params: Params) -> Any:
    """eth_getFilterChanges."""
    return session.filters.changes(session.snapshot, str(params.raw(0, "filter id")))


def get_filter_logs(session: Session, params: Params) -> Any:
    """eth_getFilterLogs."""
    return session.filters.logs(session.snapshot, str(params.raw(0, "filter id")))


def uninstall_filter(session: Session, params: Params) -> bool:
    """eth_uninstallFilter."""
    return session.filters.remove(str(params.raw(0, "filter id")))


def get_fee_history(session: Session, params: Params) -> Any:
    """eth_feeHistory: base fee, fullness and, where percentiles are asked for, tips weighted by gas."""
    params.at_most(3)
    snapshot = session.snapshot
    count = params.raw(0, "blockCount")
    is_number = (
        isinstance(count, int) and not isinstance(count, bool) and count >= 0
    )  # as go-ethereum, beside a quantity
    num_blocks = count if is_number else parse_quantity(count, "blockCount")
    newest = params.height(1, snapshot.height, "newestBlock")
    percentiles = _read_percentiles(params.raw(2, "rewardPercentiles", None))
    if newest > snapshot.height:
        raise InvalidParams(f"newestBlock is {newest}, the newest block is {snapshot.height}")
    oldest = max(snapshot.first_height, newest - min(num_blocks, MAX_FEE_HISTORY_BLOCKS) + 1)
    blocks = [_block(session, height) for height in range(oldest, newest + 1)]
    history: dict[str, Any] = {
        "oldestBlock": quantity(oldest),
        "baseFeePerGas": [quantity(block.base_fee) for block in blocks] + [quantity(_block(session, newest).base_fee)],
        "gasUsedRatio": [block.gas_used * _BASIS // block.gas_limit / _BASIS for block in blocks],
    }
    if percentiles is not None:
        history["reward"] = _collect_tips(session, blocks, percentiles)
    return history


def compute_tips(receipts: Sequence[Receipt], base_fee: int, percentiles: Sequence[float]) -> list[int]:
    """Return the tip (wei a gas) at each percentile, ascending, of the block's gas; 0 for an empty block."""
    by_tip = sorted((receipt.effective_gas_price - base_fee, receipt.gas_used) for receipt in receipts)
    total = sum(gas for _, gas in by_tip)
    left = iter(by_tip)
    tips = []
    tip = passed = 0
    for percentile in percentiles:
        while passed * 100 < total * percentile or not passed:
            following = next(left, None)
            if following is None:
                break
            tip = following[0]
            passed += following[1]
        tips.append(tip)
    return tips


def _collect_tips(session: Session, blocks: Sequence[Block], percentiles: Sequence[float]) -> list[list[str]]:
    deadline = time.monotonic() + QUERY_SECONDS
    rewards: list[list[str]] = []
    for block in blocks:
        if time.monotonic() > deadline:
            raise HistoryTooLong(QUERY_SECONDS, len(rewards), len(blocks))
        receipts = session.snapshot.receipts(block.height) if block.transactions else []
        rewards.append([quantity(tip) for tip in compute_tips(receipts, block.base_fee, percentiles)])
    return rewards


def _read_percentiles(value: Any) -> list[float] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MAX_PERCENTILES:
        raise InvalidParams(f"rewardPercentiles is no list of at most {_MAX_PERCENTILES} numbers")
    if not all(isinstance(item, int | float) and 0 <= item <= 100 for item in value) or value != sorted(value):
        raise InvalidParams("rewardPercentiles must be numbers from 0 to 100, ascending")
    return value


def _view_block(session: Session, block: Block | None, is_full: bool) -> Any:
    return None if block is None else view_block(session.snapshot, block, is_full=is_full)


def _view_indexed(session: Session, block: Block | None, params: Params) -> Any:
    index = params.number(1, "index", 2**32)
    if block is None or index >= len(block.transactions):
        return None
    found = session.snapshot.transaction(block.transactions[index])
    assert found is not None, "a block and its transactions are written together"
    return view_transaction(found[0], block, session.snapshot.receipts(block.height)[index], index)


def _find_block(session: Session, height: int) -> Block | None:
    """Return a block, None above the newest; raises BlockPruned below the oldest that is kept."""
    first = session.snapshot.first_height
    if height < first:
        raise BlockPruned(height, first)
    return session.snapshot.block(height)


def _block_of_hash(session: Session, params: Params) -> Block | None:
    height = session.snapshot.height_of_block_hash(params.hash(0, "hash"))
    return None if height is None else session.snapshot.block(height)


def _block(session: Session, height: int) -> Block:
    block = _find_block(session, height)
    assert block is not None, f"block {height} is below the newest and must be there"
    return block


def get_raw_transaction(session: Session, params: Params) -> str | None:
    """eth_getRawTransactionByHash and debug_getRawTransaction: the bytes that were signed."""
    params.at_most(1)
    found = session.snapshot.transaction(params.hash(0, "hash"))
    return None if found is None else hex_data(found[0].raw)


def get_raw_header(session: Session, params: Params) -> str | None:
    """debug_getRawHeader: the RLP whose keccak256 is the block's hash."""
    block = _named_block(session, params)
    return None if block is None else hex_data(encode_header(block))


def get_raw_block(session: Session, params: Params) -> str | None:
    """debug_getRawBlock: the RLP of header, transactions and no uncles."""
    block = _named_block(session, params)
    if block is None:
        return None
    found = (session.snapshot.transaction(each) for each in block.transactions)
    return hex_data(encode_block(block, [each[0].raw for each in found if each is not None]))


def _named_block(session: Session, params: Params) -> Block | None:
    """Return the block that the one parameter names by hash, number or tag."""
    params.at_most(1)
    value = params.raw(0, "block", "latest")
    if isinstance(value, dict):
        value = value.get("blockHash") or value.get("blockNumber", value)  # EIP-1898
        params = Params([value])
    if isinstance(value, str) and len(value) == 66:
        return _block_of_hash(session, params)
    return _find_block(session, params.height(0, session.snapshot.height))


CHAIN_METHODS: Mapping[str, Method] = {
    "eth_blockNumber": get_block_number,
    "eth_getBlockByNumber": get_block_by_number,
    "eth_getBlockByHash": get_block_by_hash,
    "eth_getBlockReceipts": get_block_receipts,
    "eth_getBlockTransactionCountByNumber": count_transactions_by_number,
    "eth_getBlockTransactionCountByHash": count_transactions_by_hash,
    "eth_getUncleCountByBlockNumber": count_uncles_by_number,
    "eth_getUncleCountByBlockHash": count_uncles_by_hash,
    "eth_getUncleByBlockNumberAndIndex": get_uncle,
    "eth_getUncleByBlockHashAndIndex": get_uncle,
    "eth_getTransactionByHash": get_transaction_by_hash,
    "eth_getTransactionByBlockNumberAndIndex": get_transaction_by_number_and_index,
    "eth_getTransactionByBlockHashAndIndex": get_transaction_by_hash_and_index,
    "eth_getTransactionReceipt": get_transaction_receipt,
    "eth_getRawTransactionByHash": get_raw_transaction,
    "debug_getRawTransaction": get_raw_transaction,
    "debug_getRawHeader": get_raw_header,
    "debug_getRawBlock": get_raw_block,
    "eth_getLogs": get_logs,
    "eth_newFilter": new_filter,
    "eth_newBlockFilter": new_block_filter,
    "eth_getFilterChanges": get_filter_changes,
    "eth_getFilterLogs": get_filter_logs,
    "eth_uninstallFilter": uninstall_filter,
    "eth_feeHistory": get_fee_history,
}
"""By JSON-RPC name."""
