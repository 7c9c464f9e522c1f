"""A scripted history of signed transactions through the application itself: fees, refusals, users' contracts, timers.

After each chapter its mark is the app hash, the block's own hash (which covers receipts and gas) and a digest of what
CometBFT is told of each transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abci_driver import Driver
from eth_account import Account

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.core.abi.storage import STORAGE_ADDRESS
from chain.core.contracts.registry import CODECS
from chain.core.contracts.staking.keys import STAKING
from chain.core.evm.addresses import compute_create_address
from chain.core.hashing import keccak256, sha256
from chain.core.record_codec import pack
from chain.core.types import Address
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis

CHAIN_ID = 4242
ALICE, BOB = Account.from_key(b"\x0a" * 32), Account.from_key(b"\x0b" * 32)
VALIDATOR_KEY = bytes(range(32))
GAS = 1_000_000

PROBED = "43424148454647" + "3a3233343638"
"""NUMBER COINBASE TIMESTAMP BASEFEE GASLIMIT CHAINID SELFBALANCE; GASPRICE ORIGIN CALLER CALLVALUE CALLDATASIZE
CODESIZE."""
FORWARD = "6020360380" + "60205f37" + "5f5f825f5f355afa" + "3d5f5f3e" + "3d5f20" + "01" + "5f3555" + "3d5ff3"
"""Calls the address in the first word with the rest; keeps the answer's hash plus success in a slot of its own."""
REMEMBER = "5f3540805f555f5260205ff3"
"""Keeps BLOCKHASH of the first word in slot 0, and returns it."""
MAKE = "365f5f37" + "5f365f5ff5" + "5f5260205ff3"
"""CREATE2 of the calldata."""
LOG = "365f5f37" + "60016002365fa200"
"""LOG2 of the calldata."""
FLIP = "5f54" + "60015f5d" + "5f5c" + "015f55" + "5f5f5560015f5500"
"""SLOAD, TSTORE, TLOAD; then slot 0 is cleared and set again: refunds."""
DIE, REVERT, LOOP = "33ff", "60016001555f5ffd", "5b5f56"


class History(Driver):
    """One application, and who sends to it."""

    def __init__(self, home: Path, rules: int) -> None:
        self.store = Store(home, map_bytes=64 << 20)
        alloc = {ALICE.address: str(10**24), BOB.address: str(10**21)}
        app_state = {"evmChainId": CHAIN_ID, "alloc": alloc, "rules": rules, "storageEpochBlocks": 4}
        super().__init__(ChainApplication(self.store, CONTRACTS, process_system_genesis), app_state)
        self.nonces = {ALICE: 0, BOB: 0}
        self.told = b""
        self.codes: list[int] = []

    def begin(self) -> None:
        """Make block 0, with one validator."""
        request = self.make_init_request()
        request.validators.add(power=10).pub_key.ed25519 = VALIDATOR_KEY
        self.app_hash = self.application.process_init_chain(request).app_hash

    def sign(self, account: Any, to: bytes | None, data: str = "", **fields: Any) -> bytes:
        """Sign the account's next transaction."""
        request = {"type": 2, "chainId": CHAIN_ID, "nonce": self.nonces[account], "value": 0, "gas": GAS}
        request |= {"maxFeePerGas": 3 * 10**9, "maxPriorityFeePerGas": 10**8, "data": data, **fields}
        if "gasPrice" in fields:
            request = {name: value for name, value in request.items() if not name.startswith("max")}
        self.nonces[account] = max(self.nonces[account], request["nonce"] + 1)
        return bytes(account.sign_transaction(request | ({} if to is None else {"to": to})).raw_transaction)

    def play(self, *txs: bytes, evidence: int = 0) -> list[int]:
        """Execute one block; return the codes."""
        height = self.height + 1
        request = pb.RequestFinalizeBlock(
            txs=txs, height=height, hash=sha256(bytes([height])), proposer_address=sha256(VALIDATOR_KEY)[:20]
        )
        request.time.seconds = 1_700_000_000 + 3 * height
        if evidence:
            found = request.misbehavior.add(type=pb.DUPLICATE_VOTE, height=evidence)
            found.validator.address = sha256(VALIDATOR_KEY)[:20]
        answer = self.application.process_finalize_block(request)
        results = [[each.code, each.data, each.gas_wanted, each.gas_used] for each in answer.tx_results]
        updates = [[each.pub_key.ed25519, each.power] for each in answer.validator_updates]
        self.told = sha256(self.told + pack([results, updates]))
        self.app_hash = answer.app_hash
        self.commit()
        return [each.code for each in answer.tx_results]

    def mark(self) -> str:
        """Return what must not change."""
        block = self.store.committed.block(self.height)
        assert block is not None
        return f"{self.app_hash.hex()} {block.hash.hex()[:16]} {self.told.hex()[:16]}"


def play_executed(home: Path, rules: int) -> Iterator[tuple[str, str]]:
    """Yield each chapter's name and mark, under ``rules`` from block 1 on."""
    history = History(home, rules)
    try:
        history.begin()
        yield "genesis", history.mark()
        for name, chapter in (
            ("transfers", _transfer),
            ("refusals", _refuse),
            ("users' contracts", _run_code),
            ("precompiles", _call_precompiles),
            ("system contracts", _call_system),
            ("evidence", _punish),
        ):
            chapter(history)
            yield name, history.mark()
    finally:
        history.store.close()


def _transfer(history: History) -> None:
    target = sha256(b"target")[:20]
    listed = _list_slot(target)
    codes = history.play(
        history.sign(ALICE, target, value=5),
        history.sign(BOB, target, gasPrice=2 * 10**9, type=1, accessList=listed, value=7),
        history.sign(ALICE, bytes.fromhex(BOB.address[2:]), value=10**18, gas=21_000),
    )
    request = {"chainId": CHAIN_ID, "nonce": history.nonces[BOB], "gas": 30_000, "gasPrice": 10**9, "value": 0}
    history.nonces[BOB] += 1
    codes += history.play(bytes(BOB.sign_transaction(request | {"to": target, "data": "0x00ff"}).raw_transaction))
    assert codes == [0, 0, 0, 0]


def _refuse(history: History) -> None:
    nonce = history.nonces[ALICE]
    codes = history.play(
        b"\x02\xc0",
        b"\x04\xc0",
        history.sign(ALICE, bytes(20), nonce=nonce + 1),
        history.sign(ALICE, bytes(20), nonce=0),
        history.sign(ALICE, bytes(20), nonce=nonce, maxFeePerGas=1, maxPriorityFeePerGas=1),
        history.sign(ALICE, bytes(20), nonce=nonce, gas=20_999),
        history.sign(ALICE, bytes(20), nonce=nonce, value=10**30),
        history.sign(ALICE, bytes(20), nonce=nonce, chainId=1),
    )
    assert 0 not in codes
    history.nonces[ALICE] = nonce


def _deploy(history: History, runtime: str) -> tuple[bytes, Address]:
    size = len(runtime) // 2
    address = compute_create_address(bytes.fromhex(ALICE.address[2:]), history.nonces[ALICE])
    return history.sign(ALICE, None, f"0x61{size:04x}80600a5f395ff3{runtime}"), address


def _run_code(history: History) -> None:
    probe = "".join(f"{PROBED[i : i + 2]}60{16 * i:02x}52" for i in range(0, 14, 2))
    probe += "".join(f"{PROBED[i : i + 2]}61{16 * i:04x}52" for i in range(14, len(PROBED), 2)) + "6102005f205f5500"
    codes, made = [], {}
    names = {"probe": probe, "log": LOG, "make": MAKE, "flip": FLIP, "die": DIE, "revert": REVERT, "loop": LOOP}
    for name, runtime in {**names, "remember": REMEMBER}.items():
        raw, made[name] = _deploy(history, runtime)
        codes += history.play(raw)
    assert codes == [0] * len(made)
    initcode = "0x6003600c5f3960035ff3" + "0000" + "5f5ff3"
    codes = history.play(
        history.sign(BOB, made["probe"], value=9),
        history.sign(BOB, made["log"], "0x" + "ab" * 77),
        history.sign(BOB, made["make"], initcode),
        history.sign(BOB, made["make"], initcode),  # there already
        history.sign(BOB, made["flip"]),
        history.sign(BOB, made["flip"], accessList=_list_slot(made["flip"])),
        history.sign(BOB, made["die"], value=11),
        history.sign(BOB, made["remember"], "0x" + (2).to_bytes(32, "big").hex()),
    )
    assert codes == [0] * 8
    assert history.play(history.sign(BOB, made["revert"]), history.sign(BOB, made["loop"])) == [1, 1]


def _call_precompiles(history: History) -> None:
    raw, forward = _deploy(history, FORWARD)
    history.play(raw)
    inputs = {
        1: keccak256(b"m") + (27).to_bytes(32, "big") + sha256(b"r") + sha256(b"s"),
        2: b"abc",
        3: b"abc",
        4: b"abc",
        5: b"".join(number.to_bytes(32, "big") for number in (1, 1, 1)) + b"\x03\x05\x07",
        6: _words(1, 2, 1, 2),
        7: _words(1, 2, 9),
        8: b"",
        9: (12).to_bytes(4, "big") + bytes(range(208)) + b"\x01",
        10: bytes(192),
        11: bytes(256),
        17: bytes(128),
    }
    for number, data in inputs.items():
        word = number.to_bytes(32, "big")
        history.play(history.sign(ALICE, forward, "0x" + (word + data).hex()))  # one that fails takes nearly all gas
    epoch = CODECS[STORAGE_ADDRESS].by_name["epoch"].encode_inputs(())
    assert history.play(history.sign(ALICE, forward, "0x" + (bytes(12) + STORAGE_ADDRESS + epoch).hex())) == [0]


def _call_system(history: History) -> None:
    bond = CODECS[STAKING].by_name["bond"].encode_inputs(()).hex()
    unbond = CODECS[STAKING].by_name["unbond"].encode_inputs((10**17,)).hex()
    codes = history.play(
        history.sign(ALICE, STAKING, "0x" + bond, value=10**18),
        history.sign(ALICE, STAKING, "0x" + unbond),
        history.sign(BOB, STAKING, "0x" + unbond),  # has none
        history.sign(BOB, STAKING, "0xdeadbeef"),
    )
    assert codes == [0, 0, 1, 1]
    for _ in range(9):
        history.play()


def _punish(history: History) -> None:
    history.play(evidence=history.height - 1)
    history.play()


def _list_slot(address: bytes) -> list[dict[str, Any]]:
    return [{"address": "0x" + address.hex(), "storageKeys": ["0x" + "00" * 32]}]


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)
