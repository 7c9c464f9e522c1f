"""A call with much calldata costs no more than one with none: its price in gas is the same."""

from __future__ import annotations

import gc
import time
import tracemalloc

import pytest
from evm_pair import Chain

from chain.core.evm.layout import set_code
from chain.core.types import Address

CALLER, READER = Address(b"\x7b" * 20), Address(b"\x7c" * 20)
GAS = 700_000
GROW = "60016204000052"
"""Touches 256 KiB of memory, 1 at the end of word 8,192."""


def call(to: str, size: str, gas: str = "5f") -> str:
    return f"5f5f62{size}5f5f73{to}{gas}f150"


def loop(to: str, size: str) -> bytes:
    return bytes.fromhex(GROW + "5b" + call(to, size) * 20 + "600756")


PRECOMPILES = [f"{number:040x}" for number in (4, 0x0C, 0x1001)]


@pytest.mark.parametrize("to", ["99" * 20, *PRECOMPILES])
def test_calldata_that_nobody_reads_is_not_copied(to: str, chain: Chain) -> None:
    def measure(size: str) -> float:
        set_code(chain.state, CALLER, loop(to, size))
        best = 1e9
        for _ in range(2):
            started = time.process_time()
            chain.call(CALLER, gas=GAS)
            best = min(best, time.process_time() - started)
        return best

    size = "0300c0"  # a multiple of what each of them takes
    assert measure(size) < 2.5 * measure("000000")


def test_a_frame_that_failed_leaves_no_memory_behind(chain: Chain) -> None:
    set_code(chain.state, CALLER, loop("00" * 19 + "04", "030000"))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        chain.call(CALLER, gas=GAS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert peak < 8 << 20, "of some two thousand frames"


def test_a_view_reads_as_calldata_does(chain: Chain) -> None:
    """The reader returns word 0x3fff0 (half of it behind the end), its size, and 64 bytes copied from there."""
    read = "62040010" + "355f52" + "366020" + "52" + "6040" + "62040010" + "6040" + "37" + "60805ff3"
    set_code(chain.state, READER, bytes.fromhex(read))
    code = GROW + "60805f62040020" + "5f5f73" + READER.hex() + "5af1" + "50" + "6001620600005260805ff3"
    set_code(chain.state, CALLER, bytes.fromhex(code))
    result = chain.call(CALLER, gas=GAS)
    assert result.status == 1
    words = [result.output[start : start + 32] for start in range(0, 128, 32)]
    shifted = (1).to_bytes(16, "big").ljust(32, b"\0")
    assert words == [shifted, (0x40020).to_bytes(32, "big"), shifted, bytes(32)]
