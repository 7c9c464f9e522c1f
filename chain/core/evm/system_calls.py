"""System contracts as users' contracts see them: precompiles that run the native handlers in the caller's frame.

State, money and gas are the frame's: a revert anywhere above undoes what the handler wrote, emitted and was paid.
A handler knows its caller by address, so code that runs as somebody else (DELEGATECALL, CALLCODE) is refused.
Invariant: under STATICCALL nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eth.abc import ComputationAPI
from eth.exceptions import OutOfGas, Revert

from chain.core import native
from chain.core.evm.precompiles import encode_reason
from chain.core.records import Log
from chain.core.types import Address, Amount

if TYPE_CHECKING:
    from chain.core.evm.state import EvmState

_DELEGATED = encode_reason("a system contract knows its caller by address: use CALL, not DELEGATECALL or CALLCODE")


def call_system_contract(computation: ComputationAPI) -> None:
    """Run the native contract at the frame's code address."""
    message = computation.msg
    state: EvmState = computation.state  # type: ignore[assignment]
    if message.storage_address != message.code_address:
        computation.output = _DELEGATED
        raise Revert("delegated call into a system contract")
    meter = native.Meter(limit=computation.get_gas_remaining())
    logs: list[Log] = []
    environment = state.environment
    context = native.CallContext(
        state=state.overlay,
        height=environment.height,
        genesis_hash=environment.parameters.genesis_hash,
        block_seed=environment.block_seed,
        sender=Address(message.sender),
        value=Amount(message.value),
        is_static=message.is_static,
        meter=meter,
        logs=logs,
    )
    mark = state.overlay.begin()
    try:
        output = state.contracts[Address(message.code_address)].process_call(context, message.data)  # type: ignore[arg-type]
    except native.Revert as refusal:
        computation.consume_gas(meter.used, reason="system contract")
        computation.output = refusal.data
        raise Revert(refusal.reason) from refusal
    except native.OutOfGas as error:
        raise OutOfGas(str(error)) from error
    assert not message.is_static or state.overlay.begin() == mark, "a view wrote"
    computation.consume_gas(meter.used, reason="system contract")
    for log in logs:
        topics = tuple(int.from_bytes(topic, "big") for topic in log.topics)
        computation.add_log_entry(log.address, topics, log.data)  # type: ignore[arg-type]
    computation.output = output
