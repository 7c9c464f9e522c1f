"""Execute a block: a function of the state and of what CometBFT decided (DESIGN 4, yellow paper 6).

Each transaction is checked (nonce, funds, gas), pays for its whole gas limit, runs, and gets back what it didn't
use.  The base fee is burned, the priority fee goes to the proposer.  A transaction that fails its checks is
refused: it changes nothing and has no receipt.  One that runs and fails has a receipt, a used nonce and a fee.
Three ways to run: a system contract, a plain transfer, and the EVM for everything else; the EVM has a gas meter of
its own in each block.  Invariant: supply = sum of the balances; only the base fee, and self-destruction in the EVM,
make it smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chain.core import accounts
from chain.core.block_hashes import BLOCK_HASH_RULES, process_block_hashes
from chain.core.environment import BlockEnvironment as BlockEnvironment
from chain.core.environment import CallResult as CallResult
from chain.core.environment import Contracts as Contracts
from chain.core.environment import Watch as Watch
from chain.core.errors import (
    BlockGasExhausted,
    EvmGasLimitTooHigh,
    FeeCapTooLow,
    GasLimitTooHigh,
    InitcodeTooLarge,
    InsufficientFunds,
    IntrinsicGasTooLow,
    InvalidTransaction,
    NonceTooHigh,
    NonceTooLow,
    SenderIsContract,
)
from chain.core.evm.execution import needs_evm, run_evm
from chain.core.evm.gas import MAX_INITCODE_BYTES, WORK_RULES, compute_required_gas
from chain.core.evm.gas import compute_intrinsic_gas as compute_intrinsic_gas
from chain.core.evm.tracing import Tracer
from chain.core.genesis import ChainParameters, get_supply, set_supply
from chain.core.native import BlockContext, CallContext, Meter, OutOfGas, Revert
from chain.core.records import AccessList, Log, Receipt, Transaction
from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount, Nonce


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExecution:
    """What a block did, beside the changes in the overlay."""

    results: tuple[Receipt | InvalidTransaction, ...]
    """One for each transaction, in order."""
    receipts: tuple[Receipt, ...]
    """Of those that were executed, in order."""
    timer_logs: tuple[Log, ...]
    """Emitted by the contracts' timers after the last transaction; their log indices follow the receipts'."""
    evm_work: Mapping[Address, int]
    """The most that one call to a user's contract took of the EVM's meter, by contract."""


@dataclass(slots=True)
class Fees:
    """What transactions have paid, and nobody has got yet: every account but the proposer's is as it should be.

    Settled before anything could see the difference (code that runs, the proposer as a sender, the block's end), so a
    block of transfers writes the proposer's account and the supply once.
    """

    tips: int = 0
    """Wei for the proposer."""
    burned: int = 0
    """Wei that exist no more."""

    def settle(self, state: Overlay, proposer: Address) -> None:
        """Write both."""
        if self.tips:
            accounts.credit(state, proposer, self.tips)
        if self.burned:
            set_supply(state, Amount(get_supply(state) - self.burned))
        self.tips = self.burned = 0


_MOVED = CallResult(status=1, output=b"", gas_used=0, logs=(), error="", is_revert=False)
"""Of a transfer, whose gas stands in the receipt."""


def compute_cost(transaction: Transaction) -> Amount:
    """Return the most a transaction can take from its sender, wei."""
    return Amount(transaction.gas_limit * transaction.max_fee + transaction.value)


def check_transaction(transaction: Transaction, parameters: ChainParameters, contracts: Contracts) -> int:
    """Check what needs no state and return the least gas it takes; raises a subclass of InvalidTransaction."""
    if transaction.gas_limit > parameters.gas_limit:
        raise GasLimitTooHigh(parameters.gas_limit, transaction.gas_limit)
    if transaction.to is None and len(transaction.data) > MAX_INITCODE_BYTES:
        raise InitcodeTooLarge(MAX_INITCODE_BYTES, len(transaction.data))
    required = compute_required_gas(
        transaction.data,
        is_creation=transaction.to is None,
        is_native=transaction.to in contracts,
        access_list=transaction.access_list,
    )
    if transaction.gas_limit < required:
        raise IntrinsicGasTooLow(required, transaction.gas_limit)
    if transaction.max_fee < parameters.base_fee:
        raise FeeCapTooLow(parameters.base_fee, transaction.max_fee)
    return required


def compute_evm_gas(
    state: Base, transaction: Transaction, parameters: ChainParameters, contracts: Contracts
) -> int | None:
    """Return what a transaction may take from the EVM's own meter of the block, None where no user's code runs.

    Raises EvmGasLimitTooHigh for what no block can hold.
    """
    if not needs_evm(state, transaction.to, contracts):
        return None
    gas = transaction.gas_limit - compute_intrinsic_gas(
        transaction.data, is_creation=transaction.to is None, access_list=transaction.access_list
    )
    if gas > parameters.evm_gas_limit:
        raise EvmGasLimitTooHigh(parameters.evm_gas_limit, gas)
    return gas


def check_arrival(
    state: Base, transaction: Transaction, parameters: ChainParameters, contracts: Contracts
) -> tuple[Nonce, Amount]:
    """Check what is known of a transaction before it waits; return nonce and balance of its sender.

    Raises a subclass of InvalidTransaction for what no block could execute.
    """
    check_transaction(transaction, parameters, contracts)
    nonce, balance, code_hash = accounts.load_account(state, transaction.sender)
    if code_hash:
        raise SenderIsContract(transaction.sender)
    if transaction.gas_limit > parameters.evm_gas_limit:  # else it can't ask for more than there is
        compute_evm_gas(state, transaction, parameters, contracts)
    return Nonce(nonce), Amount(balance)


def process_block(
    state: Overlay,
    environment: BlockEnvironment,
    transactions: Sequence[Transaction | InvalidTransaction],
    contracts: Contracts,
) -> BlockExecution:
    """Execute the decoded transactions of a block in order, then the timers."""
    if transactions and environment.rules >= BLOCK_HASH_RULES:
        process_block_hashes(state, environment.height, environment.read_block_hash)
    results: list[Receipt | InvalidTransaction] = []
    receipts: list[Receipt] = []
    gas_used = 0
    num_logs = 0
    evm_meter = Meter(limit=environment.parameters.evm_gas_limit)
    fees = Fees()
    evm_work: dict[Address, int] = {}
    for transaction in transactions:
        if isinstance(transaction, InvalidTransaction):
            results.append(transaction)
            continue
        evm_used = evm_meter.used
        try:
            receipt = process_transaction(
                state,
                environment,
                transaction,
                contracts,
                gas_used_before=gas_used,
                log_index=num_logs,
                evm_meter=evm_meter,
                fees=fees,
            )
        except InvalidTransaction as error:
            results.append(error)
            continue
        work = evm_meter.used - evm_used
        if work and transaction.to is not None:
            evm_work[transaction.to] = max(work, evm_work.get(transaction.to, 0))
        gas_used = receipt.cumulative_gas_used
        num_logs += len(receipt.logs)
        receipts.append(receipt)
        results.append(receipt)
    fees.settle(state, environment.proposer)
    return BlockExecution(
        results=tuple(results),
        receipts=tuple(receipts),
        timer_logs=_process_timers(state, environment, contracts),
        evm_work=evm_work,
    )


def process_transaction(
    state: Overlay,
    environment: BlockEnvironment,
    transaction: Transaction,
    contracts: Contracts,
    *,
    gas_used_before: int = 0,
    log_index: int = 0,
    evm_meter: Meter | None = None,
    tracer: Tracer | None = None,
    fees: Fees | None = None,
) -> Receipt:
    """Execute one transaction; raises InvalidTransaction and changes nothing when it can't be.

    ``evm_meter`` is the block's, a fresh one by default; ``tracer`` is never given in a block.  ``fees`` takes what
    is paid, for later; without, it is written at once.
    """
    # CHECKS
    parameters = environment.parameters
    proposer = environment.proposer
    waiting_fees = Fees() if fees is None else fees
    if transaction.sender == proposer:
        waiting_fees.settle(state, proposer)
    required = check_transaction(transaction, parameters, contracts)
    sender, to, value = transaction.sender, transaction.to, transaction.value
    expected, balance, code_hash = accounts.load_account(state, sender)
    if transaction.nonce < expected:
        raise NonceTooLow(expected, transaction.nonce)
    if transaction.nonce > expected:
        raise NonceTooHigh(expected, transaction.nonce)
    if code_hash:
        raise SenderIsContract(sender)
    gas_left = parameters.gas_limit - gas_used_before
    if transaction.gas_limit > gas_left:
        raise BlockGasExhausted(gas_left, transaction.gas_limit)
    evm_gas = compute_evm_gas(state, transaction, parameters, contracts)
    if evm_gas == 0 and environment.rules < WORK_RULES:
        evm_gas = None
    evm_meter = evm_meter or Meter(limit=parameters.evm_gas_limit)
    if evm_gas is not None and evm_gas > evm_meter.limit - evm_meter.used:
        raise BlockGasExhausted(evm_meter.limit - evm_meter.used, evm_gas)
    cost = compute_cost(transaction)
    if balance < cost:
        raise InsufficientFunds(cost, balance)

    # EFFECTS
    price = min(transaction.max_fee, parameters.base_fee + transaction.max_priority_fee)
    if to is None or evm_gas is not None or to in contracts:
        waiting_fees.settle(state, proposer)
        accounts.pay_for_turn(state, sender, transaction.gas_limit * price)
        result = _run(
            state,
            environment,
            contracts,
            sender=sender,
            nonce=transaction.nonce,
            to=to,
            value=value,
            data=transaction.data,
            gas_limit=transaction.gas_limit,
            gas_price=price,
            access_list=transaction.access_list,
            is_evm=evm_gas is not None,
            tracer=tracer,
        )
        gas_used = result.gas_used
        evm_meter.used += result.evm_work
        refund = (transaction.gas_limit - gas_used) * price
        if refund:
            accounts.credit(state, sender, refund)
    else:  # what a transfer uses is known before, so its sender's account is written once
        result, gas_used = _MOVED, required
        accounts.save_account(state, sender, expected + 1, balance - gas_used * price - value, code_hash)
        if value:
            accounts.credit(state, to, value)
    waiting_fees.tips += gas_used * (price - parameters.base_fee)
    waiting_fees.burned += gas_used * parameters.base_fee
    if fees is None:
        waiting_fees.settle(state, proposer)
    return Receipt(
        transaction=transaction.hash,
        status=result.status,
        gas_used=gas_used,
        cumulative_gas_used=gas_used_before + gas_used,
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
    access_list: AccessList = (),
    is_traced: bool = False,
    watch: Watch | None = None,
) -> CallResult:
    """Run a call on a throwaway overlay at gas price 0 (eth_call, eth_estimateGas).

    ``is_traced`` asks for the access list of a call in the EVM.  ``watch`` may raise, and end it, while it runs in
    the EVM.  Raises InvalidTransaction where a transaction would be refused.
    """
    required = compute_required_gas(data, is_creation=to is None, is_native=to in contracts, access_list=access_list)
    if to is None and len(data) > MAX_INITCODE_BYTES:
        raise InitcodeTooLarge(MAX_INITCODE_BYTES, len(data))
    if gas_limit < required:
        raise IntrinsicGasTooLow(required, gas_limit)
    state = Overlay(base)
    nonce, balance, _ = accounts.load_account(state, sender)
    if balance < value:
        raise InsufficientFunds(value, balance)
    is_evm = needs_evm(state, to, contracts)
    if is_evm:
        accounts.bump_nonce(state, sender)
    return _run(
        state,
        environment,
        contracts,
        sender=sender,
        nonce=nonce,
        to=to,
        value=value,
        data=data,
        gas_limit=gas_limit,
        gas_price=0,
        access_list=access_list,
        is_evm=is_evm,
        is_traced=is_traced,
        watch=watch,
    )


def _run(
    state: Overlay,
    environment: BlockEnvironment,
    contracts: Contracts,
    *,
    sender: Address,
    nonce: int,
    to: Address | None,
    value: int,
    data: bytes,
    gas_limit: int,
    gas_price: int,
    access_list: AccessList,
    is_evm: bool,
    is_traced: bool = False,
    watch: Watch | None = None,
    tracer: Tracer | None = None,
) -> CallResult:
    """Run in the EVM, in a system contract, or just move the value."""
    if to is None or is_evm:
        return run_evm(
            state,
            environment,
            contracts,
            sender=sender,
            nonce=nonce,
            to=to,
            value=value,
            data=data,
            gas_limit=gas_limit,
            gas_price=gas_price,
            access_list=access_list,
            is_traced=is_traced,
            watch=watch,
            tracer=tracer,
        )
    if to in contracts:
        meter = Meter(limit=gas_limit, used=compute_intrinsic_gas(data, access_list=access_list))
        return _call_native(state, environment, contracts, meter, sender=sender, to=to, value=Amount(value), data=data)
    if value:
        accounts.transfer(state, sender, to, value)
    gas_used = compute_required_gas(data, is_creation=False, is_native=False, access_list=access_list)
    return CallResult(status=1, output=b"", gas_used=gas_used, logs=(), error="", is_revert=False)


def _call_native(
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
    """Move the value, run the system contract, and undo both when it fails."""
    mark = state.begin()
    logs: list[Log] = []
    output = b""
    error = ""
    is_revert = False
    if value:
        accounts.transfer(state, sender, to, value)
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
        output = contracts[to].process_call(context, data)
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
