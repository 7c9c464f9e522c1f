"""Users' contracts on the executor alone: one core, no signatures, no consensus, state in memory.
Seconds are the processor's, so a busy machine measures the same.

Each figure's peer is plain transfers through the same function in the same invocation.  ``worst`` rows run loops of
one opcode for a block's worth of gas: what a hostile block takes.  ``python -m benchmarks.evm``; half a minute.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from benchmarks.report import Row, write_report
from chain.core import rlp
from chain.core.evm.gas import EVM_BLOCK_GAS
from chain.core.evm.layout import set_code
from chain.core.executor import BlockEnvironment, process_block, simulate_call
from chain.core.genesis import parse_genesis
from chain.core.hashing import keccak256
from chain.core.records import Receipt, Transaction
from chain.core.state import Overlay
from chain.core.types import Address, Amount, Hash, Height, Nonce
from chain.recursion import allow_evm_depth
from chain.system import CONTRACTS, process_system_genesis

SENDER = Address(b"\xaa" * 20)
STAKING = Address(bytes(18) + b"\x10\x02")
NUM_TRANSACTIONS = 2_000
REPEATS = 3
"""The best of so many, since the machine is shared."""
GWEI = 10**9

STORE = bytes.fromhex("5f3560203555" + "00")
"""Puts calldata's first word into the slot that its second word names."""
TOKEN = bytes.fromhex(
    "33545f35818111602757" + "9003335560203580545f350190555f355f5260205fa05f5f5260205ff3" + "5b5f5ffd"
)
"""The storage work of a token's transfer: two reads, a comparison, two writes, one log."""
FORWARD = bytes.fromhex("63" + keccak256(b"totalBonded()")[:4].hex() + "5f5260205f6004601c5f6110025af160205ff3")
"""Calls a view of Staking and returns its answer."""
CREATION = bytes.fromhex("6020600c60003960206000f3") + b"\x60\x01" * 16
"""Initcode of a contract of 32 bytes."""
PAIR = (
    1,
    2,
    0x198E9393920D483A7260BFB731FB5D25F1AA493335A9E71297E485B7AEF312C2,
    0x1800DEEF121F1E76426A00665E5C4479674322D4F75EDADD46DEBD5CD992F6ED,
    0x090689D0585FF075EC9E99AD690C3395BC4B313370B38EF355ACDADCD122975B,
    0x12C85EA5DB8C6DEB4AAB71808DCB408FE3D1E7690C43D37B4CE6CC0166FA7DAA,
)
"""The generators of alt_bn128, as the pairing check takes them."""


def _call_for_ever(words: tuple[int, ...], address: int, num_bytes: int, *, copies: int = 1) -> str:
    """Return a program that puts words into memory, ``copies`` times, and calls a precompile with them for ever."""
    code = "".join(f"7f{word:064x}61{32 * index:04x}52" for index, word in enumerate(words))
    code += "".join(f"61{num_bytes:04x}5f61{num_bytes * copy:04x}5e" for copy in range(1, copies))
    start = len(code) >> 1
    return code + f"5b604061{0x1000:04x}61{num_bytes * copies:04x}5f5f60{address:02x}5af15061{start:04x}56"


LOOPS = {
    "jump": "5b5f56",
    "add": "5b6001600201505f56",
    "keccak": "5b60205f20505f56",
    "sload": "5b5f54505f56",
    "mstore": "5b5f5f525f56",
    "call": "5b5f5f5f5f5f60045af1505f56",
    "exp": "5b7f" + "ff" * 32 + "80" + "0a505f56",
    "bn254_add": _call_for_ever((1, 2, 1, 2), 6, 128),
    "bn254_multiply": _call_for_ever((1, 2, 2**254 - 1), 7, 96),
    "bn254_pairing": _call_for_ever(PAIR, 8, 192),
    "bn254_pairings": _call_for_ever(PAIR, 8, 192, copies=8),
    "bls12_map": _call_for_ever((0, 5), 0x10, 64),
}
"""Programs that repeat one opcode until the gas is gone."""


def main() -> None:
    """Measure and write the report."""
    allow_evm_depth()
    transfers = _measure(lambda n: (Address(b"\x11" * 20), b"", 21_000, 1))
    rows = [_row("transfer", transfers, transfers, "a core, without signatures")]
    for name, make, words in (
        ("native_call", lambda n: (STAKING, keccak256(b"bond()")[:4], 120_000, 1), "Staking.bond()"),
        ("sstore_call", lambda n: (_at(1), _words(n + 1, n), 60_000, 0), "one new slot each"),
        ("token_transfer", lambda n: (_at(2), _words(1, n + 7), 100_000, 0), "two slots and a log each"),
        ("solidity_to_system", lambda n: (_at(3), b"", 60_000, 0), "a view of Staking through a user's contract"),
        ("create", lambda n: (None, CREATION, 120_000, 0), "32 bytes of code each"),
    ):
        rows.append(_row(name, _measure(make), transfers, words))
    rows += [_worst(name, bytes.fromhex(code)) for name, code in LOOPS.items()]
    write_report("evm", rows)


def _at(number: int) -> Address:
    return Address(bytes([0xC0 + number]) * 20)


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


def _start() -> tuple[Overlay, BlockEnvironment]:
    document = {"evmChainId": 4242, "alloc": {"0x" + SENDER.hex(): str(10**30)}, "gasLimit": 10**12}
    genesis = parse_genesis("benchmark", json.dumps({**document, "evmGasLimit": 10**12}).encode())
    base = Overlay()
    process_system_genesis(base, genesis)
    for number, code in ((1, STORE), (2, TOKEN), (3, FORWARD)):
        set_code(base, _at(number), code)
    base.set(b"e/" + _at(2) + SENDER.rjust(32, b"\0"), (10**20).to_bytes(9, "big"))
    environment = BlockEnvironment(
        height=Height(1),
        time_seconds=1,
        proposer=Address(b"\x99" * 20),
        block_seed=bytes(32),
        parameters=genesis.parameters,
    )
    return base, environment


def _measure(make: Callable[[int], tuple[Address | None, bytes, int, int]]) -> float:
    transactions = [_transaction(nonce, *make(nonce)) for nonce in range(NUM_TRANSACTIONS)]
    best = 0.0
    for _ in range(REPEATS):
        base, environment = _start()
        state = Overlay(base)
        started = time.process_time()
        execution = process_block(state, environment, transactions, CONTRACTS)
        best = max(best, NUM_TRANSACTIONS / (time.process_time() - started))
        failed = [each for each in execution.results if not isinstance(each, Receipt) or not each.status]
        assert not failed, failed[0]
    return best


def _transaction(nonce: int, to: Address | None, data: bytes, gas: int, value: int) -> Transaction:
    raw = rlp.encode([rlp.encode_integer(nonce), to or b"", data])
    return Transaction(
        hash=Hash(keccak256(raw)),
        raw=raw,
        type=2,
        chain_id=4242,
        sender=SENDER,
        nonce=Nonce(nonce),
        to=to,
        value=Amount(value),
        data=data,
        gas_limit=gas,
        max_fee=Amount(2 * GWEI),
        max_priority_fee=Amount(0),
        v=0,
        r=1,
        s=1,
    )


def _worst(name: str, code: bytes) -> Row:
    base, environment = _start()
    set_code(base, _at(9), code)
    started = time.process_time()
    result = simulate_call(base, environment, sender=SENDER, to=_at(9), gas_limit=EVM_BLOCK_GAS, contracts=CONTRACTS)
    seconds = time.process_time() - started
    assert not result.status
    return Row(
        name=f"worst_{name}",
        value=result.gas_used / seconds / 1e6,
        unit="Mgas/s",
        peer="a block's EVM gas a second",
        peer_value=EVM_BLOCK_GAS / 1e6,
        conditions=f"{seconds:.2f} s for a block of nothing else",
    )


def _row(name: str, value: float, transfers: float, conditions: str) -> Row:
    return Row(name=name, value=value, unit="tx/s", peer="transfer", peer_value=transfers, conditions=conditions)


if __name__ == "__main__":
    main()
