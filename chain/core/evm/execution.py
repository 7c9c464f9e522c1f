"""One call or creation in the EVM: everything between buying the gas and paying for it (yellow paper 6.2, 7, 8).

The caller has checked the transaction (``compute_required_gas``, funds for gas and value), has taken the gas money
and has counted the nonce up.  Invariant: a failed run leaves the overlay as it found it.
"""

from __future__ import annotations

from typing import Any, cast

from eth import exceptions
from eth.constants import CREATE_CONTRACT_ADDRESS
from eth.vm.forks.cancun.transaction_context import CancunTransactionContext
from eth.vm.message import Message

from chain.core import accounts
from chain.core.environment import BlockEnvironment, CallResult, Contracts, Watch
from chain.core.evm.addresses import compute_create_address
from chain.core.evm.computation import EvmComputation, WatchedComputation
from chain.core.evm.gas import REFUND_DIVISOR, WORK_RULES, compute_floor_gas, compute_intrinsic_gas
from chain.core.evm.precompiles import PRECOMPILES
from chain.core.evm.reasons import describe_failure
from chain.core.evm.state import EvmState
from chain.core.evm.tracing import TracedComputation, Tracer
from chain.core.genesis import get_supply, set_supply
from chain.core.records import AccessList, Log
from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount


def needs_evm(state: Base, to: Address | None, contracts: Contracts) -> bool:
    """Say whether a transaction to ``to`` runs code of a user: a creation, a contract, or a precompile."""
    if to is None:
        return True
    return to not in contracts and (to in PRECOMPILES or bool(accounts.get_code_hash(state, to)))


def run_evm(
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
    access_list: AccessList = (),
    is_traced: bool = False,
    watch: Watch | None = None,
    tracer: Tracer | None = None,
) -> CallResult:
    """Run a call, or a creation where ``to`` is None; ``nonce`` is the one the transaction carries.

    ``is_traced`` asks for the access list of what was touched; ``watch`` and ``tracer`` are never given in a block.
    """
    intrinsic = compute_intrinsic_gas(data, is_creation=to is None, access_list=access_list)
    target = compute_create_address(sender, nonce) if to is None else to
    evm = EvmState(state, environment, contracts, watch, tracer)
    evm.mark_address_warm(sender)
    evm.mark_address_warm(target)
    for address, slots in access_list:
        evm.mark_address_warm(address)
        for slot in slots:
            evm.mark_storage_warm(address, int.from_bytes(slot, "big"))
    start = evm.snapshot()
    computation = _run(evm, sender, target, value, data, gas_limit - intrinsic, gas_price, is_creation=to is None)

    gas_peak = gas_limit - computation.get_gas_remaining()
    refund = min(computation.get_gas_refund(), gas_peak // REFUND_DIVISOR)
    gas_used = max(gas_peak - refund, compute_floor_gas(data))
    if computation.is_error:
        evm.revert(start)
    else:
        for doomed in computation.get_accounts_for_deletion():
            evm.delete_account(doomed)
        if evm.burned:
            set_supply(state, Amount(get_supply(state) - evm.burned))
    error = describe_failure(computation.error, computation.output) if computation.is_error else ""
    return CallResult(
        status=0 if computation.is_error else 1,
        output=bytes(computation.output),
        gas_used=gas_used,
        logs=tuple(
            Log(
                address=Address(emitter),
                topics=tuple(topic.to_bytes(32, "big") for topic in topics),
                data=bytes(entry),
            )
            for emitter, topics, entry in computation.get_log_entries()
        ),
        error=error,
        is_revert=computation.is_error and isinstance(computation.error, exceptions.Revert),
        gas_peak=gas_peak,
        evm_work=gas_peak - intrinsic - (evm.unworked_gas if environment.rules >= WORK_RULES else 0),
        access_list=evm.get_access_list(without=(sender, target, environment.proposer)) if is_traced else (),
    )


def _run(
    evm: EvmState,
    sender: Address,
    target: Address,
    value: int,
    data: bytes,
    gas: int,
    gas_price: int,
    *,
    is_creation: bool,
) -> EvmComputation:
    context = CancunTransactionContext(gas_price=gas_price, origin=cast(Any, sender))
    message = Message(
        gas=gas,
        to=CREATE_CONTRACT_ADDRESS if is_creation else cast(Any, target),
        sender=cast(Any, sender),
        value=value,
        data=b"" if is_creation else data,
        code=data if is_creation else evm.get_code(target),
        create_address=cast(Any, target if is_creation else None),
    )
    kind = EvmComputation if evm.watch is None else WatchedComputation
    if evm.tracer is not None:
        kind = TracedComputation
    if not is_creation:
        return cast(EvmComputation, kind.apply_message(evm, message, context))
    if evm.has_code_or_nonce(target):
        computation = EvmComputation(evm, message, context)
        computation.error = exceptions.ContractCreationCollision(f"0x{target.hex()} holds a contract already")
        return computation
    return cast(EvmComputation, kind.apply_create_message(evm, message, context))
