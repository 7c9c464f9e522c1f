"""Traces against anvil's: every instruction with its gas and stack, and the tree of calls."""

from __future__ import annotations

from typing import Any

import pytest
from evm_pair import Anvil, Pair, bytecode, calldata

from chain.core.evm.addresses import compute_create_address
from chain.core.evm.tracing import CallFrame, TraceOptions, Tracer, TraceTooLong
from chain.core.executor import process_transaction
from chain.core.state import Overlay
from chain.core.transactions import decode_transaction
from chain.core.types import Address
from chain.system import CONTRACTS

pytestmark = pytest.mark.integration

CHAIN_ID = 4242


@pytest.fixture(scope="module")
def pair(anvil: Anvil) -> Pair:
    return Pair(anvil, b"\x37" * 32)


@pytest.fixture(scope="module")
def scenarios(pair: Pair, solidity: dict[str, Any]) -> Address:
    address = compute_create_address(pair.sender, pair.nonce)
    pair.compare(None, bytecode(solidity["Scenarios"]), value=10**18)
    pair.compare(address, calldata("make(uint256,uint256)", 5, 1_000))
    return address


def trace(pair: Pair, to: bytes | None, data: bytes, max_steps: int = 100_000, **fields: Any) -> tuple[Tracer, str]:
    """Trace on an overlay over the state, then execute on both; return the tracer and anvil's hash."""
    raw = pair.sign(to, data, **fields)
    transaction = decode_transaction(raw, CHAIN_ID)
    tracer = Tracer(TraceOptions(max_steps=max_steps), lambda: None)
    receipt = process_transaction(Overlay(pair.state), pair.environment(), transaction, CONTRACTS, tracer=tracer)
    executed = pair.compare(to, data, **fields)
    assert (receipt.status, receipt.gas_used, receipt.output) == (executed.status, executed.gas_used, executed.output)
    return tracer, "0x" + transaction.hash.hex()


def tree(frame: CallFrame) -> Any:
    calls = [tree(each) for each in frame.calls]
    return frame.kind, "0x" + frame.sender.hex(), "0x" + frame.to.hex(), frame.data.hex(), bool(frame.error), calls


def their_tree(frame: dict[str, Any]) -> Any:
    calls = [their_tree(each) for each in frame.get("calls", [])]
    return frame["type"], frame["from"], frame.get("to"), frame["input"][2:], "error" in frame, calls


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (("set(uint256,uint256)", 1, 5), {}),
        (("fill(uint256,uint256)", 10, 3), {}),
        (("failWithReason(string)", "not today"), {}),
        (("failWithPanic(uint256,uint256,uint256)", 1, 2, 0), {}),
        (("emitLogs(uint256)", 2), {}),
        (("make(uint256,uint256)", 6, 50), {}),
        (("make2(uint256,bytes32)", 8, b"\x09" * 32), {}),
        (("deep(uint256)", 4), {}),
        (("invalid()",), {"gas": 200_000}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_instructions_and_calls_are_anvils(
    call: tuple[Any, ...], fields: dict[str, Any], pair: Pair, scenarios: Address
) -> None:
    tracer, transaction = trace(pair, scenarios, calldata(*call), **fields)
    theirs = pair.anvil.ask("debug_traceTransaction", transaction, {})
    ours = [(step.pc, step.gas, step.depth, [hex(value) for value in step.stack or ()]) for step in tracer.steps]
    expected = [(step["pc"], step["gas"], step["depth"], step["stack"]) for step in theirs["structLogs"]]
    assert ours == expected
    names = [(step.name, expected["op"]) for step, expected in zip(tracer.steps, theirs["structLogs"], strict=True)]
    assert {(mine, other) for mine, other in names if mine != other} <= {("PREVRANDAO", "DIFFICULTY")}
    costs = [
        (step.name, step.gas_cost, expected["gasCost"])
        for step, expected in zip(tracer.steps, theirs["structLogs"], strict=True)
        if not step.error and step.gas_cost != expected["gasCost"]
    ]
    assert {name for name, _, _ in costs} <= {"CREATE", "CREATE2"}, costs
    assert tracer.root is not None
    calls = pair.anvil.ask("debug_traceTransaction", transaction, {"tracer": "callTracer"})
    assert tree(tracer.root) == their_tree(calls)


@pytest.mark.parametrize("way", ["delegate", "callcode", "staticCall", "plainCall"])
def test_ways_to_call_are_told_apart(way: str, pair: Pair, scenarios: Address) -> None:
    child = "0x" + pair.call(scenarios, calldata("child()")).output[12:].hex()
    for inner in (calldata("kept()"), calldata("refuse(uint256)", 3)):
        tracer, transaction = trace(pair, scenarios, calldata(f"{way}(address,bytes)", child, inner), 0)
        assert tracer.root is not None
        assert tracer.steps == []
        theirs = pair.anvil.ask("debug_traceTransaction", transaction, {"tracer": "callTracer"})
        assert tree(tracer.root) == their_tree(theirs)


def test_a_creation_is_a_frame(pair: Pair) -> None:
    tracer, transaction = trace(pair, None, bytes.fromhex("600a600c600039600a6000f3" + "60003560010160005500"))
    theirs = pair.anvil.ask("debug_traceTransaction", transaction, {"tracer": "callTracer"})
    assert tracer.root is not None
    assert tree(tracer.root) == their_tree(theirs)


def test_too_many_instructions_are_an_error(pair: Pair, scenarios: Address) -> None:
    transaction = decode_transaction(pair.sign(scenarios, calldata("spin()"), gas=200_000), CHAIN_ID)
    tracer = Tracer(TraceOptions(max_steps=50), lambda: None)
    with pytest.raises(TraceTooLong, match="more than 50"):
        process_transaction(Overlay(pair.state), pair.environment(), transaction, CONTRACTS, tracer=tracer)
