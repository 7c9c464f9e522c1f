"""What a transaction did, instruction by instruction or call by call (go-ethereum's structLogs and callTracer).

A traced frame runs the same rules; each opcode is wrapped by one that tells the tracer first.  Nothing of it is part
of a block.  Costs of calls and creations include the gas handed on, as in go-ethereum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eth.abc import ComputationAPI, MessageAPI, StateAPI, TransactionContextAPI
from eth.exceptions import Halt, VMError
from eth.vm import opcode_values
from eth.vm.logic.invalid import InvalidOpcode

from chain.core.environment import Watch
from chain.core.evm.computation import EvmComputation
from chain.core.evm.reasons import decode_reason, describe_failure

_CALLS = {
    opcode_values.CALL: "CALL",
    opcode_values.CALLCODE: "CALLCODE",
    opcode_values.DELEGATECALL: "DELEGATECALL",
    opcode_values.STATICCALL: "STATICCALL",
    opcode_values.CREATE: "CREATE",
    opcode_values.CREATE2: "CREATE2",
}
MAX_TRACE_BYTES = 64 << 20
"""Of an answer: each instruction may have a megabyte of memory, or a thousand words of stack."""
_STEP_BYTES = 150
_WORD_BYTES = 70
"""Of a word in JSON."""
_SLOT_OPCODES = (opcode_values.SLOAD, opcode_values.SSTORE)


class TraceTooLong(Exception):
    """The transaction runs more instructions than are shown; not an EVM error, so it ends everything."""

    def __init__(self, limit: int) -> None:
        """Keep the limit."""
        super().__init__(f"the transaction runs more than {limit} instructions; next: ask for the callTracer")
        self.limit = limit


class TraceTooLarge(Exception):
    """What the transaction did is more than is kept; not an EVM error, so it ends everything."""

    def __init__(self, limit: int, got: int) -> None:
        """Keep both sizes, bytes."""
        super().__init__(
            f"the trace takes {got} bytes so far, at most {limit}; next: ask without enableMemory, with"
            " disableStack and disableStorage, or for onlyTopCall"
        )
        self.limit = limit
        self.got = got


@dataclass(slots=True, kw_only=True)
class CallFrame:
    """One call or creation."""

    kind: str
    """The opcode's name; CALL or CREATE for the transaction itself."""
    sender: bytes
    to: bytes
    """Whose code ran, or where the new code lies."""
    value: int
    """Wei."""
    gas: int
    data: bytes
    """Calldata or initcode."""
    gas_used: int = 0
    output: bytes = b""
    error: str = ""
    """Empty where it succeeded."""
    reason: str = ""
    """What a revert said in words."""
    calls: list[CallFrame] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Step:
    """One instruction, as it found the machine."""

    pc: int
    name: str
    gas: int
    depth: int
    """1 in the transaction's own frame."""
    gas_cost: int = 0
    stack: tuple[int, ...] | None = None
    """The top last."""
    memory: bytes | None = None
    slots: dict[int, int] | None = None
    """After SLOAD and SSTORE: every slot of the contract that was looked at so far."""
    error: str = ""


@dataclass(slots=True, kw_only=True)
class TraceOptions:
    """What is wanted."""

    max_steps: int
    """0: only the calls."""
    is_cut: bool = False
    """Leave out what comes after them; else more are too many."""
    has_inner_calls: bool = True
    has_stack: bool = True
    has_memory: bool = False
    has_slots: bool = True


class Tracer:
    """Collects."""

    def __init__(self, options: TraceOptions, watch: Watch) -> None:
        """Ask ``watch`` at each instruction whether to give up."""
        self.options = options
        self.root: CallFrame | None = None
        self.steps: list[Step] = []
        self._watch = watch
        self._open_frames: list[CallFrame] = []
        self._open_steps: list[Step | None] = []
        self._last_opcode: list[int] = []
        self._slots: dict[bytes, dict[int, int]] = {}
        self._num_bytes = 0

    def enter(self, message: MessageAPI, parent: ComputationAPI | None) -> None:
        """A frame begins."""
        self._watch()
        if parent is None:
            kind, sender = ("CREATE" if message.is_create else "CALL"), message.sender
        else:
            kind, sender = _CALLS[self._last_opcode[-1]], parent.msg.storage_address
            step = self._open_steps[-1]
            if step is not None:
                step.gas_cost = step.gas - parent.get_gas_remaining()
        is_shown = parent is None or self.options.has_inner_calls
        data = message.code if message.is_create else message.data
        self._count(_STEP_BYTES + 2 * len(data) if is_shown else 0)
        frame = CallFrame(
            kind=kind,
            sender=bytes(sender),
            to=bytes(message.storage_address if message.is_create else message.code_address),
            value=message.value,
            gas=message.gas,
            data=bytes(data) if is_shown else b"",
        )
        if not self._open_frames:
            self.root = frame
        elif is_shown:
            self._open_frames[-1].calls.append(frame)
        self._open_frames.append(frame)

    def leave(self, computation: ComputationAPI) -> None:
        """It has ended."""
        frame = self._open_frames.pop()
        frame.gas_used = frame.gas - computation.get_gas_remaining()
        frame.output = bytes(computation.output)
        self._count(2 * len(frame.output) if self._open_frames == [] or self.options.has_inner_calls else 0)
        if computation.is_error:
            output = frame.output
            frame.error = describe_failure(computation.error, b"")
            frame.reason = decode_reason(output) if output else ""

    def begin(self, computation: EvmComputation, opcode: int, name: str) -> None:
        """An instruction begins."""
        self._watch()
        self._last_opcode.append(opcode)
        options = self.options
        if not options.max_steps:
            self._open_steps.append(None)
            return
        if len(self.steps) >= options.max_steps:
            if options.is_cut:
                self._open_steps.append(None)
                return
            raise TraceTooLong(options.max_steps)
        step = Step(
            pc=computation.code.program_counter - 1,
            name=name,
            gas=computation.get_gas_remaining(),
            depth=computation.msg.depth + 1,
        )
        num_words = len(computation._stack.values) if options.has_stack else 0  # type: ignore[attr-defined]
        num_bytes = len(computation._memory) if options.has_memory else 0
        self._count(_STEP_BYTES + _WORD_BYTES * num_words + 2 * num_bytes)
        if options.has_stack:
            step.stack = tuple(_to_int(value) for value in computation._stack.values)  # type: ignore[attr-defined]
        if options.has_memory:
            step.memory = bytes(computation._memory._bytes)  # type: ignore[attr-defined]
        if options.has_slots and opcode in _SLOT_OPCODES:
            step.slots = self._look_at_slot(computation, opcode)
        self.steps.append(step)
        self._open_steps.append(step)

    def end(self, computation: EvmComputation, error: VMError | None) -> None:
        """It has ended."""
        self._last_opcode.pop()
        step = self._open_steps.pop()
        if step is None:
            return
        if error is not None:
            step.error = describe_failure(error, b"")
        if not step.gas_cost:
            step.gas_cost = step.gas - computation.get_gas_remaining()

    def _look_at_slot(self, computation: EvmComputation, opcode: int) -> dict[int, int] | None:
        stack: list[int | bytes] = computation._stack.values  # type: ignore[attr-defined]
        if len(stack) < (1 if opcode == opcode_values.SLOAD else 2):
            return None
        address = computation.msg.storage_address
        slot = _to_int(stack[-1])
        known = self._slots.setdefault(bytes(address), {})
        known[slot] = (
            computation.state.get_storage(address, slot) if opcode == opcode_values.SLOAD else _to_int(stack[-2])
        )
        self._count(2 * _WORD_BYTES * len(known))
        return dict(known)

    def _count(self, num_bytes: int) -> None:
        """Add to what the answer takes; raises TraceTooLarge."""
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_TRACE_BYTES:
            raise TraceTooLarge(MAX_TRACE_BYTES, self._num_bytes)


class _TracedOpcode:
    """An opcode that tells the tracer before and after."""

    __slots__ = ("_inner", "_name", "_opcode", "gas_cost", "mnemonic")

    def __init__(self, opcode: int, inner: Any) -> None:
        self._opcode = opcode
        self._inner = inner
        self.mnemonic: str = "INVALID" if isinstance(inner, InvalidOpcode) else inner.mnemonic
        self.gas_cost: int = inner.gas_cost
        # Before the merge the opcode was called so; go-ethereum says PREVRANDAO too.
        self._name = {"DIFFICULTY": "PREVRANDAO", "SHA3": "KECCAK256"}.get(self.mnemonic, self.mnemonic)

    def __call__(self, computation: EvmComputation) -> Any:
        tracer: Tracer = computation.state.tracer  # type: ignore[attr-defined]
        tracer.begin(computation, self._opcode, self._name)
        try:
            result = self._inner(computation=computation)
        except VMError as error:
            tracer.end(computation, error)
            raise
        except Halt:  # STOP, RETURN and the like
            tracer.end(computation, None)
            raise
        tracer.end(computation, None)
        return result


class TracedComputation(EvmComputation):
    """One frame that tells what it does."""

    opcodes: dict[int, Any] = {
        opcode: _TracedOpcode(opcode, EvmComputation.opcodes.get(opcode) or InvalidOpcode(opcode))
        for opcode in range(256)
    }

    @classmethod
    def apply_message(
        cls,
        state: StateAPI,
        message: MessageAPI,
        transaction_context: TransactionContextAPI,
        parent_computation: ComputationAPI | None = None,
    ) -> ComputationAPI:
        """Run a call; the frame of a creation is told by ``apply_create_message``."""
        if message.is_create:
            return super().apply_message(state, message, transaction_context, parent_computation)
        tracer: Tracer = state.tracer  # type: ignore[attr-defined]
        tracer.enter(message, parent_computation)
        computation = super().apply_message(state, message, transaction_context, parent_computation)
        tracer.leave(computation)
        return computation

    @classmethod
    def apply_create_message(
        cls,
        state: StateAPI,
        message: MessageAPI,
        transaction_context: TransactionContextAPI,
        parent_computation: ComputationAPI | None = None,
    ) -> ComputationAPI:
        """Run a creation."""
        tracer: Tracer = state.tracer  # type: ignore[attr-defined]
        tracer.enter(message, parent_computation)
        computation = super().apply_create_message(state, message, transaction_context, parent_computation)
        tracer.leave(computation)
        return computation


def _to_int(value: int | bytes) -> int:
    return value if isinstance(value, int) else int.from_bytes(value, "big")
