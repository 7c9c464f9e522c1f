"""No input runs a node's process out of the machine's stack."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from chain.recursion import EVM_DEPTH, RECURSION_LIMIT, STACK_BYTES

PROBE = f"""
import json, resource, sys, threading
from chain.recursion import allow_evm_depth
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
allow_evm_depth()
assert sys.getrecursionlimit() == {RECURSION_LIMIT}, sys.getrecursionlimit()

class Calls:
    def __call__(self):
        return self()

class Names:
    def __getattr__(self, name):
        return getattr(self, name)

def nest():
    value = []
    for _ in range(100_000):
        value = [value]
    return json.dumps(value)

def go():
    for dive in (lambda: json.loads("[" * 100_000), nest, Calls(), lambda: Names().name):
        try:
            dive()
        except RecursionError:
            continue
        sys.exit("was not stopped")

go()
thread = threading.Thread(target=go)
thread.start()
thread.join()
print("alive")
"""


def test_depth_ends_in_an_error_and_not_in_the_process() -> None:
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if hard != resource.RLIM_INFINITY and hard < STACK_BYTES:
        pytest.skip("this machine's hard limit is below what a node needs")
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_the_deepest_call_fits() -> None:
    assert RECURSION_LIMIT >= EVM_DEPTH * 8 + 2_000


def test_invalid_stack_says_what_to_do() -> None:
    lines = "import resource; resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))\n"
    lines += "from chain.recursion import allow_evm_depth\nallow_evm_depth()\n"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert "1024 KiB, a node needs 65536 KiB" in done.stderr
