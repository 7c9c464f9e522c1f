"""debug_traceTransaction: a block again, up to the transaction that is asked for, on the state before the block.

The state of the last blocks is at hand (``chain.rpc.state_views``); an older transaction is a clear error.  The replay
must use the gas that the receipt says.  Two tracers, as go-ethereum's: structLogs (the default) and callTracer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chain.core.block_hashes import BLOCK_HASH_RULES, process_block_hashes
from chain.core.environment import Watch
from chain.core.evm.tracing import CallFrame, Step, TraceOptions, Tracer, TraceTooLarge, TraceTooLong
from chain.core.executor import process_transaction
from chain.core.native import Meter
from chain.core.records import Receipt, Transaction
from chain.core.state import Overlay
from chain.rpc.faults import CallTooLong, InvalidParams, TraceRefused
from chain.rpc.session import Method, Session
from chain.rpc.state_views import open_past
from chain.rpc.values import Params, hex_data, quantity

MAX_STEPS = 20_000
"""Instructions of one structLogs answer: some 20 MB of JSON."""
TRACE_SECONDS = 10.0
"""Longest replay: the gas of a block takes about three."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
"""Seconds."""
_DURATION = re.compile(r"(\d{1,9})(ms|s|m)")
_OPTIONS = frozenset(
    {"tracer", "tracerConfig", "disableStack", "disableStorage", "enableMemory", "enableReturnData", "timeout", "limit"}
)


def trace_transaction(session: Session, params: Params) -> Any:
    """debug_traceTransaction(hash, options)."""
    params.at_most(2)
    transaction_hash = params.hash(0, "hash")
    options = params.raw(1, "options", {})
    if not isinstance(options, dict) or not options.keys() <= _OPTIONS:
        raise InvalidParams(f"options know {', '.join(sorted(_OPTIONS))}")
    kind = options.get("tracer")
    if kind not in (None, "", "callTracer"):
        raise InvalidParams(f"tracer is {str(kind)[:40]!r}, known: callTracer, or none for structLogs")
    found = session.snapshot.transaction(transaction_hash)
    if found is None:
        raise TraceRefused(f"transaction 0x{transaction_hash.hex()} is in no block; next: wait for its receipt")
    transaction, height, index = found
    config = options.get("tracerConfig") or {}
    if not isinstance(config, dict):
        raise InvalidParams(f"tracerConfig is {str(config)[:40]!r}, expected an object")
    limit, seconds = _read_limit(options.get("limit")), _read_seconds(options.get("timeout"))
    is_alone = bool(kind and config.get("onlyTopCall"))
    tracer = Tracer(
        TraceOptions(
            has_inner_calls=not is_alone,
            max_steps=0 if kind else min(limit or MAX_STEPS, MAX_STEPS),
            is_cut=0 < limit <= MAX_STEPS,
            has_stack=not options.get("disableStack"),
            has_memory=bool(options.get("enableMemory")),
            has_slots=not options.get("disableStorage"),
        ),
        _make_watch(seconds),
    )
    try:
        receipt = _replay(session, transaction, height, index, tracer)
    except (TraceTooLong, TraceTooLarge) as e:
        raise TraceRefused(str(e)) from e
    if kind:
        return _view_call(_root(tracer, transaction, receipt), is_alone=is_alone)
    return {
        "gas": receipt.gas_used,
        "failed": not receipt.status,
        "returnValue": hex_data(receipt.output),
        "structLogs": [_view_step(step) for step in tracer.steps],
    }


def _read_limit(value: Any) -> int:
    """Read how many instructions are wanted at most; 0: all."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidParams(f"limit is {str(value)[:40]!r}, expected a number of instructions, 0 for all")
    return value


def _read_seconds(value: Any) -> float:
    """Read how long the replay may take, as go-ethereum writes it: 500ms, 5s, 1m; no longer than TRACE_SECONDS."""
    if value is None:
        return TRACE_SECONDS
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidParams(f"timeout is {str(value)[:40]!r}, expected a duration such as 500ms or 5s")
    return min(int(match[1]) * _UNITS[match[2]], TRACE_SECONDS)


def _replay(session: Session, transaction: Transaction, height: int, index: int, tracer: Tracer) -> Receipt:
    snapshot = session.snapshot
    block = snapshot.block(height)
    assert block is not None, "a transaction and its block are written together"
    before = open_past(session, height - 1)
    state = Overlay(before.state)
    environment = replace(
        before.environment,  # its seed, parameters and rules are those of the block to come
        height=block.height,
        time_seconds=block.time_seconds,
        proposer=block.proposer,
        read_block_hash=snapshot.find_block_hash,
    )
    if environment.rules >= BLOCK_HASH_RULES:
        process_block_hashes(state, height, snapshot.find_block_hash)
    meter = Meter(limit=environment.parameters.evm_gas_limit)
    receipts = snapshot.receipts(height)
    gas_used = 0
    for position, each in enumerate(block.transactions[: index + 1]):
        found = snapshot.transaction(each)
        assert found is not None, "a block and its transactions are written together"
        replayed = process_transaction(
            state,
            environment,
            found[0],
            session.contracts,
            gas_used_before=gas_used,
            evm_meter=meter,
            tracer=tracer if position == index else None,
        )
        gas_used = replayed.cumulative_gas_used
        expected = receipts[position]
        if (replayed.status, replayed.gas_used) != (expected.status, expected.gas_used):
            raise TraceRefused(
                f"the replay of 0x{each.hex()} used {replayed.gas_used} gas, its receipt says {expected.gas_used}:"
                " this node runs other software than the one that executed the block"
            )
    return replayed


def _make_watch(seconds: float) -> Watch:
    end = time.monotonic() + seconds

    def watch() -> None:
        if time.monotonic() > end:
            raise CallTooLong(seconds)

    return watch


def _root(tracer: Tracer, transaction: Transaction, receipt: Receipt) -> CallFrame:
    """Return the transaction's own frame, with all of its gas; one for what never got into the EVM."""
    root = tracer.root or CallFrame(
        kind="CALL",
        sender=transaction.sender,
        to=transaction.to or b"",
        value=transaction.value,
        gas=transaction.gas_limit,
        data=transaction.data,
        output=receipt.output,
        error=receipt.error.partition(":")[0] if not receipt.status else "",
        reason=receipt.error.partition(": ")[2],
    )
    root.gas, root.gas_used = transaction.gas_limit, receipt.gas_used
    return root


def _view_call(frame: CallFrame, *, is_alone: bool) -> dict[str, Any]:
    view: dict[str, Any] = {
        "type": frame.kind,
        "from": hex_data(frame.sender),
        "to": hex_data(frame.to),
        "gas": quantity(frame.gas),
        "gasUsed": quantity(frame.gas_used),
        "input": hex_data(frame.data),
    }
    if frame.kind != "STATICCALL":
        view["value"] = quantity(frame.value)
    if frame.output:
        view["output"] = hex_data(frame.output)
    if frame.error:
        view["error"] = frame.error
    if frame.reason:
        view["revertReason"] = frame.reason
    if frame.calls and not is_alone:
        view["calls"] = [_view_call(each, is_alone=False) for each in frame.calls]
    return view


def _view_step(step: Step) -> dict[str, Any]:
    view: dict[str, Any] = {
        "pc": step.pc,
        "op": step.name,
        "gas": step.gas,
        "gasCost": step.gas_cost,
        "depth": step.depth,
    }
    if step.stack is not None:
        view["stack"] = [quantity(value) for value in step.stack]
    if step.memory is not None:
        view["memory"] = [step.memory[start : start + 32].hex() for start in range(0, len(step.memory), 32)]
    if step.slots is not None:
        view["storage"] = {f"{slot:064x}": f"{value:064x}" for slot, value in sorted(step.slots.items())}
    if step.error:
        view["error"] = step.error
    return view


TRACE_METHODS: Mapping[str, Method] = {"debug_traceTransaction": trace_transaction}
"""By JSON-RPC name."""
