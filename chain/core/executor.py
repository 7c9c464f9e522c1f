"""Execute a block: a function of the state and of what CometBFT decided (DESIGN 4, yellow paper 6).

Each transaction is checked (nonce, funds, gas), pays for its whole gas limit, runs, and gets back what it didn't
use.  The base fee is burned, the priority fee goes to the proposer.  A transaction that fails its checks is
refused: it changes nothing and has no receipt.  One that runs and fails has a receipt, a used nonce and a fee.
Without an EVM a target is a system contract, or a plain transfer; anything else is refused as UnsupportedTarget.
Invariant: supply = sum of the balances; only the base fee makes it smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chain.core import accounts
from chain.core.errors import (
    BlockGasExhausted,
    FeeCapTooLow,
    GasLimitTooHigh,
    InsufficientFunds,
    IntrinsicGasTooLow,
    InvalidTransaction,
    NonceTooHigh,
    NonceTooLow,
    UnsupportedTarget,
)
from chain.core.genesis import ChainParameters, get_supply, set_supply
from chain.core.native import BlockContext, CallContext, Meter, NativeContract, OutOfGas, Revert
from chain.core.records import Log, Receipt, Transaction
from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount, Height

Contracts = Mapping[Address, NativeContract]
"""The system contracts by address."""

TRANSACTION_GAS = 21_000
"""Of every transaction (yellow paper, G_transaction)."""
ZERO_BYTE_GAS = 4
"""Of a zero byte of calldata (G_txdatazero)."""
NONZERO_BYTE_GAS = 16
"""Of any other byte of calldata (EIP-2028)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEnvironment:
    """What is known before the first transaction of a block runs."""

    height: Height
    """Of the block that is executed."""
    time_seconds: int
    """BFT time, whole Unix seconds; shown, never decided by."""
    proposer: Address
    """Gets the priority fees."""
    block_seed: bytes
    """32 bytes: the app hash before this block."""
    parameters: ChainParameters
    """Of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExecution:
    """What a block did, beside the changes in the overlay."""

    results: tuple[Receipt | InvalidTransaction, ...]
    """One for each transaction, in order."""
    receipts: tuple[Receipt, ...]
    """Of those that were executed, in order."""
    timer_logs: tuple[Log, ...]
    """Emitted by the contracts' timers after the last transaction; their log indices follow the receipts'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a simulated call did."""

    status: int
    """1 succeeded, 0 failed."""
    output: bytes
    """Return data, or the ABI-encoded custom error of a revert."""
    gas_used: int
    """With the intrinsic gas."""
    logs: tuple[Log, ...]
    """Empty when it failed."""
    error: str
    """One readable line when it failed, else empty."""
    is_revert: bool
    """True when a contract reverted (JSON-RPC error 3), False for out of gas."""


def compute_intrinsic_gas(data: bytes) -> int:
    """Return the gas that a transaction costs before it runs."""
    num_zeros = data.count(0)
    return TRANSACTION_GAS + ZERO_BYTE_GAS * num_zeros + NONZERO_BYTE_GAS * (len(data) - num_zeros)


def compute_cost(transaction: Transaction) -> Amount:
    """Return the most a transaction can take from its sender, wei."""
    return Amount(transaction.gas_limit * transaction.max_fee + transaction.value)


def check_transaction(transaction: Transaction, parameters: ChainParameters, contracts: Contracts) -> None:
    """Check what needs no account; raises a subclass of InvalidTransaction."""
    if transaction.gas_limit > parameters.gas_limit:
        raise GasLimitTooHigh(parameters.gas_limit, transaction.gas_limit)
    intrinsic = compute_intrinsic_gas(transaction.data)
    if transaction.gas_limit < intrinsic:
        raise IntrinsicGasTooLow(intrinsic, transaction.gas_limit)
    if transaction.max_fee < parameters.base_fee:
        raise FeeCapTooLow(parameters.base_fee, transaction.max_fee)
    if transaction.to is None or (transaction.data and transaction.to not in contracts):
        raise UnsupportedTarget(transaction.to)


def process_block(
    state: Overlay,
    environment: BlockEnvironment,
    transactions: Sequence[Transaction | InvalidTransaction],
    contracts: Contracts,
) -> BlockExecution:
    """Execute the decoded transactions of a block in order, then the timers."""
    results: list[Receipt | InvalidTransaction] = []
    receipts: list[Receipt] = []
    gas_used = 0
    num_logs = 0
    for transaction in transactions:
        if isinstance(transaction, InvalidTransaction):
            results.append(transaction)
            continue
        try:
            receipt = process_transaction(
                state, environment, transaction, contracts, gas_used_before=gas_used, log_index=num_logs
            )
        except InvalidTransaction as error:
            results.append(error)
            continue
        gas_used = receipt.cumulative_gas_used
        num_logs += len(receipt.logs)
        receipts.append(receipt)
        results.append(receipt)
    return BlockExecution(
        results=tuple(results),
        receipts=tuple(receipts),
        timer_logs=_process_timers(state, environment, contracts),
    )


def process_transaction(
    state: Overlay,
    environment: BlockEnvironment,
    transaction: Transaction,
    contracts: Contracts,
    *,
    gas_used_before: int = 0,
    log_index: int = 0,
) -> Receipt:
    """Execute one transaction; raises InvalidTransaction and changes nothing when it can't be."""
    # CHECKS
    parameters = environment.parameters
    check_transaction(transaction, parameters, contracts)
    sender = transaction.sender
    expected = accounts.get_nonce(state, sender)
    if transaction.nonce < expected:
        raise NonceTooLow(expected, transaction.nonce)
    if transaction.nonce > expected:
        raise NonceTooHigh(expected, transaction.nonce)
    gas_left = parameters.gas_limit - gas_used_before
    if transaction.gas_limit > gas_left:
        raise BlockGasExhausted(gas_left, transaction.gas_limit)
    cost = compute_cost(transaction)
    balance = accounts.get_balance(state, sender)
    if balance < cost:
        raise InsufficientFunds(cost, balance)

    # EFFECTS
    price = min(transaction.max_fee, parameters.base_fee + transaction.max_priority_fee)
    accounts.pay_for_turn(state, sender, transaction.gas_limit * price)
    meter = Meter(limit=transaction.gas_limit, used=compute_intrinsic_gas(transaction.data))
    result = _process_call(state, environment, transaction, contracts, meter)
    refund = (transaction.gas_limit - meter.used) * price
    if refund:
        accounts.credit(state, sender, refund)
    tip = meter.used * (price - parameters.base_fee)
    if tip:
        accounts.credit(state, environment.proposer, tip)
    burned = meter.used * parameters.base_fee
    if burned:
        set_supply(state, Amount(get_supply(state) - burned))
    return Receipt(
        transaction=transaction.hash,
        status=result.status,
        gas_used=meter.used,
        cumulative_gas_used=gas_used_before + meter.used,
        effective_gas_price=Amount(price),
        logs=result.logs,
        output=result.output,
        error=result.error,
        log_index=log_index,
    )


def simulate_call(
    base: Base,
    environment: BlockEnvironment,
    *,
    sender: Address,
    to: Address | None,
    value: Amount = Amount(0),
    data: bytes = b"",
    gas_limit: int,
    contracts: Contracts,
) -> CallResult:
    """Run a call on a throwaway overlay at gas price 0 (eth_call, eth_estimateGas).

    The call's ``gas_used`` is what the transaction would use, so it is also the estimate: native calls cost the
    same with any limit.  Raises InvalidTransaction where a transaction would be refused.
    """
    intrinsic = compute_intrinsic_gas(data)
    if gas_limit < intrinsic:
        raise IntrinsicGasTooLow(intrinsic, gas_limit)
    if to is None or (data and to not in contracts):
        raise UnsupportedTarget(to)
    state = Overlay(base)
    balance = accounts.get_balance(state, sender)
    if balance < value:
        raise InsufficientFunds(value, balance)
    meter = Meter(limit=gas_limit, used=intrinsic)
    return _call(state, environment, contracts, meter, sender=sender, to=to, value=value, data=data)


def _process_call(
    state: Overlay, environment: BlockEnvironment, transaction: Transaction, contracts: Contracts, meter: Meter
) -> CallResult:
    assert transaction.to is not None, "check_transaction refuses creations"
    return _call(
        state,
        environment,
        contracts,
        meter,
        sender=transaction.sender,
        to=transaction.to,
        value=transaction.value,
        data=transaction.data,
    )


def _call(
    state: Overlay,
    environment: BlockEnvironment,
    contracts: Contracts,
    meter: Meter,
    *,
    sender: Address,
    to: Address,
    value: Amount,
    data: bytes,
) -> CallResult:
    """Move the value, run the contract if there is one, and undo both when it fails."""
    mark = state.begin()
    logs: list[Log] = []
    output = b""
    error = ""
    is_revert = False
    if value:
        accounts.transfer(state, sender, to, value)
    contract = contracts.get(to)
    if contract is not None:
        context = CallContext(
            state=state,
            height=environment.height,
            genesis_hash=environment.parameters.genesis_hash,
            block_seed=environment.block_seed,
            sender=sender,
            value=value,
            is_static=False,
            meter=meter,
            logs=logs,
        )
        try:
            output = contract.process_call(context, data)
        except Revert as revert:
            output, error, is_revert = revert.data, f"execution reverted: {revert.reason}", True
        except OutOfGas as out_of_gas:
            meter.used = meter.limit
            output, error = b"", str(out_of_gas)
    if error:
        state.rollback(mark)
        logs = []
    else:
        state.commit(mark)
    return CallResult(
        status=0 if error else 1,
        output=output,
        gas_used=meter.used,
        logs=tuple(logs),
        error=error,
        is_revert=is_revert,
    )


def _process_timers(state: Overlay, environment: BlockEnvironment, contracts: Contracts) -> tuple[Log, ...]:
    context = BlockContext(
        state=state,
        height=environment.height,
        genesis_hash=environment.parameters.genesis_hash,
        block_seed=environment.block_seed,
    )
    for address in sorted(contracts):
        process_block_end = contracts[address].process_block_end
        if process_block_end is not None:
            process_block_end(context)
    return tuple(context.logs)
