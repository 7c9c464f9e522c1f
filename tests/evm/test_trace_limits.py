"""A trace takes bounded memory, whatever the transaction did: who asks for it has not paid for the node's."""

from __future__ import annotations

from typing import Any

import pytest
from evm_pair import Chain

from chain.core.evm.layout import set_code
from chain.core.evm.tracing import TraceOptions, Tracer, TraceTooLarge
from chain.core.executor import process_transaction
from chain.core.state import Overlay
from chain.core.transactions import decode_transaction
from chain.core.types import Address
from chain.system import CONTRACTS

PROGRAM = Address(b"\x7a" * 20)
GROW = "6001620a000052"
"""Touches 640 KiB of memory."""


def run(chain: Chain, code: str, options: TraceOptions) -> Tracer:
    set_code(chain.state, PROGRAM, bytes.fromhex(code))
    transaction = decode_transaction(chain.sign(PROGRAM, b"", gas=6_000_000), 4242)
    tracer = Tracer(options, lambda: None)
    process_transaction(Overlay(chain.state), chain.environment(), transaction, CONTRACTS, tracer=tracer)
    return tracer


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (GROW + "5b5f50600756", {"max_steps": 20_000, "has_memory": True}),
        ("5f" * 1_000 + "5b5f506103e856", {"max_steps": 20_000}),
        ("5f5b805450600101600156", {"max_steps": 20_000, "has_stack": False}),
        (GROW + "5b5f5f620a00005f5f60995af150600756", {"max_steps": 0}),
        (GROW + "5b5f5f60205f5f60995af150" + "5f5f620a00005f5f60045af150600756", {"max_steps": 0}),
    ],
    ids=["memory", "stack", "slots", "calldata", "output"],
)
def test_a_trace_that_grows_is_given_up(code: str, options: dict[str, Any], chain: Chain) -> None:
    with pytest.raises(TraceTooLarge, match="at most 67108864"):
        run(chain, code, TraceOptions(**options))


def test_only_the_top_call_keeps_no_other(chain: Chain) -> None:
    many = GROW + "5b5f5f620a00005f5f60995af150600756"
    tracer = run(chain, many, TraceOptions(max_steps=0, has_inner_calls=False))
    assert tracer.root is not None
    assert tracer.root.calls == []
