"""Calldata of a call in the EVM, as a view of its caller's memory.

The EVM's price of a call does not depend on how much it hands over, and py-evm copies all of it, twice: with a megabyte
of memory a call of 250 gas took half a millisecond.  A view costs nothing, and whoever reads it pays for what is read.
The caller stands still while the view is in use, so what it shows doesn't change; it is let go at the end of the frame,
because memory under a view can't grow in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eth import constants
from eth.abc import ComputationAPI
from eth.vm import mnemonics, opcode_values
from eth.vm.forks.prague.opcodes import PRAGUE_OPCODES
from eth.vm.opcode import as_opcode

_WORD_BYTES = 32
_CALLS = (opcode_values.CALL, opcode_values.CALLCODE, opcode_values.DELEGATECALL, opcode_values.STATICCALL)


def _call(inner: Any) -> Callable[[ComputationAPI], None]:
    def call(computation: ComputationAPI) -> None:
        computation.hands_over_view = True  # type: ignore[attr-defined]
        inner(computation=computation)

    return call


def _load(computation: ComputationAPI) -> None:
    """CALLDATALOAD."""
    start = computation.stack_pop1_int()
    word = bytes(computation.msg.data[start : start + _WORD_BYTES])
    computation.stack_push_int(int.from_bytes(word.ljust(_WORD_BYTES, b"\0"), "big"))


def _copy(computation: ComputationAPI) -> None:
    """CALLDATACOPY."""
    to, start, size = computation.stack_pop_ints(3)
    computation.extend_memory(to, size)
    computation.consume_gas(constants.GAS_COPY * ((size + _WORD_BYTES - 1) // _WORD_BYTES), reason="CALLDATACOPY")
    computation.memory_write(to, size, bytes(computation.msg.data[start : start + size]).ljust(size, b"\0"))


CALLDATA_OPCODES = {
    **{
        number: as_opcode(
            logic_fn=_call(PRAGUE_OPCODES[number]),
            mnemonic=PRAGUE_OPCODES[number].mnemonic,
            gas_cost=constants.GAS_NULL,  # the inner one charges
        )
        for number in _CALLS
    },
    opcode_values.CALLDATALOAD: as_opcode(
        logic_fn=_load, mnemonic=mnemonics.CALLDATALOAD, gas_cost=constants.GAS_VERYLOW
    ),
    opcode_values.CALLDATACOPY: as_opcode(
        logic_fn=_copy, mnemonic=mnemonics.CALLDATACOPY, gas_cost=constants.GAS_VERYLOW
    ),
}
"""In place of py-evm's."""
