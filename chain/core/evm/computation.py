"""py-evm's Prague rules with this chain's precompiles, and seven corrections.

1. The initcode's gas is charged at depth 0 only: py-evm takes any frame whose sender is the origin for the first
   one, so an account that calls itself and creates would pay twice (``CREATE`` charges by itself).
2. ``SELFDESTRUCT`` warns through Python's warnings in py-evm; here it is just an opcode.
3. Jump targets are found in one pass (``chain.core.evm.code``).
4. A frame that has ended leaves its logs, refunds and deletions to its caller and is forgotten: py-evm keeps every
   frame, some 4 kB each, until the transaction ends.
5. What opcodes take from the stack and the gas meter is put into the frame at its start: py-evm's cached properties
   ask whether they are coroutines, 8 us each and three in the shortest call.
6. A call hands over a view of memory, not two copies of it (``chain.core.evm.calldata``).
7. The exception that ended a frame forgets where it was raised: with its traceback it and the frame hold each other,
   and whatever memory that had, until the cycle collector comes.
"""

from __future__ import annotations

from typing import Any

from eth import constants
from eth.abc import ComputationAPI, MessageAPI, StateAPI, TransactionContextAPI
from eth.vm import mnemonics, opcode_values
from eth.vm.forks.byzantium.opcodes import ensure_no_static
from eth.vm.forks.cancun.logic import selfdestruct_eip6780
from eth.vm.forks.prague.computation import PragueComputation
from eth.vm.forks.prague.opcodes import PRAGUE_OPCODES
from eth.vm.forks.tangerine_whistle.constants import GAS_SELFDESTRUCT_EIP150
from eth.vm.opcode import as_opcode

from chain.core.evm.calldata import CALLDATA_OPCODES
from chain.core.evm.code import EvmCode
from chain.core.evm.gas import SSTORE_WORK_GAS


def _store(computation: ComputationAPI) -> None:
    """Do SSTORE, and note what of its gas pays for state rather than for work."""
    meter = computation._gas_meter
    before = meter.gas_remaining
    PRAGUE_OPCODES[opcode_values.SSTORE](computation=computation)
    spent = before - meter.gas_remaining
    if spent > SSTORE_WORK_GAS:
        computation.state.unworked_gas += spent - SSTORE_WORK_GAS  # type: ignore[attr-defined]


class EvmComputation(PragueComputation):
    """One frame."""

    opcodes = {
        **PRAGUE_OPCODES,
        **CALLDATA_OPCODES,
        opcode_values.SSTORE: as_opcode(logic_fn=_store, mnemonic=mnemonics.SSTORE, gas_cost=constants.GAS_NULL),
        opcode_values.SELFDESTRUCT: as_opcode(
            logic_fn=ensure_no_static(selfdestruct_eip6780),
            mnemonic=mnemonics.SELFDESTRUCT,
            gas_cost=GAS_SELFDESTRUCT_EIP150,
        ),
    }

    def __init__(self, state: StateAPI, message: MessageAPI, transaction_context: TransactionContextAPI) -> None:
        """Start a frame."""
        super().__init__(state, message, transaction_context)
        self.code = EvmCode(message.code, state.jump_targets)  # type: ignore[attr-defined]
        stack = self._stack
        self.__dict__.update(
            stack_pop_ints=stack.pop_ints,
            stack_pop_bytes=stack.pop_bytes,
            stack_pop_any=stack.pop_any,
            stack_pop1_int=stack.pop1_int,
            stack_pop1_bytes=stack.pop1_bytes,
            stack_pop1_any=stack.pop1_any,
            stack_push_int=stack.push_int,
            stack_push_bytes=stack.push_bytes,
            consume_gas=self._gas_meter.consume_gas,
        )
        self.hands_over_view = False
        self._inherited_refund = 0
        self._inherited_deletions: set[bytes] = set()

    def add_child_computation(self, child_computation: ComputationAPI) -> None:
        """Take over what a frame that has ended leaves behind; a failed one leaves nothing."""
        super().add_child_computation(child_computation)
        self.children.pop()
        child_computation.msg.data = b""
        error = child_computation._error
        if error is not None:
            error.__traceback__ = error.__context__ = error.__cause__ = None
        if child_computation.is_success:
            self._log_entries.extend(child_computation.get_raw_log_entries())  # type: ignore[arg-type]
            self._inherited_refund += child_computation.get_gas_refund()
            self._inherited_deletions.update(child_computation.get_accounts_for_deletion())

    def memory_read_bytes(self, start_position: int, size: int) -> bytes:
        """Return what stands in memory: a view of it where a call is about to hand it over."""
        if self.hands_over_view:
            self.hands_over_view = False
            return self._memory.read(start_position, size)  # type: ignore[return-value]
        return bytes(self._memory.read(start_position, size))

    def get_gas_refund(self) -> int:
        """Return what this frame and those below it earned."""
        return 0 if self.is_error else self._gas_meter.gas_refunded + self._inherited_refund

    def get_accounts_for_deletion(self) -> list[Any]:
        """Return the contracts that self-destructed, ascending."""
        return [] if self.is_error else sorted({*self.accounts_to_delete, *self._inherited_deletions})

    @property
    def is_origin_computation(self) -> bool:
        """Say whether this is the transaction's first frame."""
        return bool(self.msg.depth == 0)

    @property
    def precompiles(self) -> Any:
        """Return what runs in place of code, by address: Ethereum's and the system contracts."""
        return self.state.precompiles  # type: ignore[attr-defined]


def _look(computation: ComputationAPI) -> None:
    computation.state.watch()  # type: ignore[attr-defined]


class WatchedComputation(EvmComputation):
    """One frame of a call outside any block, which may be given up: no loop is without a JUMPDEST or a frame."""

    opcodes = {
        **EvmComputation.opcodes,
        opcode_values.JUMPDEST: as_opcode(logic_fn=_look, mnemonic=mnemonics.JUMPDEST, gas_cost=constants.GAS_JUMPDEST),
    }

    def __init__(self, state: StateAPI, message: MessageAPI, transaction_context: TransactionContextAPI) -> None:
        """Start a frame, unless the call is given up."""
        super().__init__(state, message, transaction_context)
        _look(self)
