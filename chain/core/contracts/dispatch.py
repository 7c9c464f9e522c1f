"""From calldata to a handler and back, the same for every system contract.

CHECKS before a handler runs: the selector, gas, the static flag, the value, the arguments.  A refusal
becomes revert data of a declared error.  Invariant: whatever bytes a user sends, the outcome is return
data, ``Revert`` or ``OutOfGas``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chain.core.abi.codec import SELECTOR_BYTES, AbiDecodingError, ContractCodec, FunctionCodec
from chain.core.abi.declare import Contract, Mutability
from chain.core.abi.refusal import Refusal
from chain.core.contracts.gas import CALLDATA_BYTE_GAS, UNKNOWN_FUNCTION_GAS, VIEW_GAS, WRITE_GAS
from chain.core.native import BlockContext, CallContext, Meter, NativeContract, ProcessBlockEnd, Revert
from chain.core.records import Log
from chain.core.turn import Turn
from chain.core.types import Address, Amount


@dataclass(slots=True)
class Call:
    """One call as a handler sees it."""

    turn: Turn
    """State, height, seed, events."""
    sender: Address
    """Who calls; the only identity a handler may trust."""
    value: Amount
    """Wei that came with the call, already in the contract's account."""
    meter: Meter
    """For work that depends on the arguments."""


Handler = Callable[..., "tuple[object, ...] | None"]
"""(call, *arguments) -> outputs in order, None for no outputs."""


def build_contract(
    contract: Contract,
    handlers: Mapping[str, Handler],
    codecs: Mapping[Address, ContractCodec],
    process_block_end: Callable[[Turn], None] | None = None,
) -> NativeContract:
    """Join a declaration with its handlers; ``codecs`` encode the events of every contract a turn may touch."""
    codec = codecs[Address(contract.address)]
    assert set(handlers) == {function.name for function in contract.functions}

    def process_call(context: CallContext, data: bytes) -> bytes:
        try:
            return _process_call(context, data, codec, handlers, codecs)
        except Refusal as refusal:
            raise Revert(codec.encode_error(refusal.name, refusal.values), str(refusal)) from refusal

    def process_end(context: BlockContext) -> None:
        assert process_block_end is not None
        turn = Turn(
            state=context.state, height=context.height, seed=context.block_seed, genesis_hash=context.genesis_hash
        )
        process_block_end(turn)
        context.logs.extend(_encode_logs(turn, codecs))

    end: ProcessBlockEnd | None = process_end if process_block_end is not None else None
    return NativeContract(
        name=contract.name, address=Address(contract.address), process_call=process_call, process_block_end=end
    )


def _process_call(
    context: CallContext,
    data: bytes,
    codec: ContractCodec,
    handlers: Mapping[str, Handler],
    codecs: Mapping[Address, ContractCodec],
) -> bytes:
    found = codec.by_selector.get(bytes(data[:SELECTOR_BYTES]))
    if found is None:
        context.meter.charge(UNKNOWN_FUNCTION_GAS)
        raise Refusal("UnknownFunction", bytes(data[:SELECTOR_BYTES]).ljust(SELECTOR_BYTES, b"\0"))
    function = found.function
    is_view = function.mutability is Mutability.VIEW
    context.meter.charge((VIEW_GAS if is_view else WRITE_GAS[function.name]) + CALLDATA_BYTE_GAS * len(data))
    if context.is_static and not is_view:
        raise Refusal("WriteInStaticCall")
    if context.value and function.mutability is not Mutability.PAYABLE:
        raise Refusal("NotPayable", context.value)
    arguments = _decode_arguments(found, data)
    turn = Turn(state=context.state, height=context.height, seed=context.block_seed, genesis_hash=context.genesis_hash)
    call = Call(turn=turn, sender=context.sender, value=context.value, meter=context.meter)
    outputs = handlers[function.name](call, *arguments)
    context.logs.extend(_encode_logs(turn, codecs))
    return found.encode_outputs(outputs) if outputs is not None else b""


def _decode_arguments(found: FunctionCodec, data: bytes) -> tuple[Any, ...]:
    try:
        return found.decode_inputs(bytes(data[SELECTOR_BYTES:]))
    except AbiDecodingError as error:
        raise Refusal("BadCalldata", str(error)) from error


def _encode_logs(turn: Turn, codecs: Mapping[Address, ContractCodec]) -> list[Log]:
    return [codecs[contract].encode_log(name, values) for contract, name, values in turn.events]
