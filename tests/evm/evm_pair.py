"""This chain's executor and anvil side by side: the same raw transactions, compared after each."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eth_abi import encode
from eth_account import Account
from eth_account.signers.local import LocalAccount

from chain.core import accounts
from chain.core.environment import BlockEnvironment
from chain.core.evm.addresses import compute_create_address
from chain.core.evm.layout import get_code, get_slot, set_code
from chain.core.executor import process_block, simulate_call
from chain.core.genesis import ChainParameters, get_supply, parse_genesis
from chain.core.hashing import keccak256
from chain.core.records import Receipt
from chain.core.state import Overlay
from chain.core.transactions import decode_transaction
from chain.core.types import Address, Amount, Hash, Height
from chain.system import CONTRACTS, process_system_genesis

CHAIN_ID = 4242
GWEI = 10**9
WEI = 10**24
PROPOSER = Address(b"\x99" * 20)
ANVIL_SECONDS = 30.0
"""Until it listens, and for each answer."""


class Anvil:
    """One anvil, mining each transaction as it comes."""

    def __init__(self, program: Path) -> None:
        command = [
            program,
            "--port",
            "0",
            "--hardfork",
            "prague",
            "--chain-id",
            str(CHAIN_ID),
            "--accounts",
            "1",
            "--steps-tracing",
        ]
        command += ["--base-fee", str(GWEI), "--gas-limit", "30000000"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        end = time.monotonic() + ANVIL_SECONDS
        while (found := re.search(r"Listening on 127\.0\.0\.1:(\d+)", "".join(self.lines))) is None:
            assert time.monotonic() < end, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.02)
        self.connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=ANVIL_SECONDS)

    def answer(self, method: str, *params: Any) -> dict[str, Any]:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self.connection.request("POST", "/", body, {"Content-Type": "application/json"})
        found: dict[str, Any] = json.loads(self.connection.getresponse().read())
        return found

    def ask(self, method: str, *params: Any) -> Any:
        answer = self.answer(method, *params)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait(ANVIL_SECONDS)
        self.reader.join(ANVIL_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)


def new_state(*owners: LocalAccount) -> tuple[Overlay, ChainParameters]:
    """Genesis with funded keys."""
    alloc = {owner.address: str(WEI) for owner in owners}
    genesis = parse_genesis("evm-test", json.dumps({"evmChainId": CHAIN_ID, "alloc": alloc}).encode())
    state = Overlay()
    process_system_genesis(state, genesis)
    return state, genesis.parameters


def new_parameters(genesis_hash: bytes) -> ChainParameters:
    """Return parameters of a chain with a given genesis hash."""
    return replace(new_state()[1], genesis_hash=Hash(genesis_hash))


@dataclass
class Chain:
    """The executor alone: one transaction a block."""

    owner: LocalAccount = field(default_factory=lambda: Account.from_key(b"\x21" * 32))
    height: int = 0
    nonce: int = 0

    def __post_init__(self) -> None:
        self.state, self.parameters = new_state(self.owner)

    @property
    def sender(self) -> Address:
        return Address(bytes.fromhex(self.owner.address[2:]))

    def environment(self) -> BlockEnvironment:
        return BlockEnvironment(
            height=Height(self.height + 1),
            time_seconds=1_700_000_000 + self.height,
            proposer=PROPOSER,
            block_seed=bytes(32),
            parameters=self.parameters,
        )

    def sign(self, to: bytes | None, data: bytes = b"", **fields: Any) -> bytes:
        request: dict[str, Any] = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": self.nonce,
            "value": 0,
            "data": data,
            "gas": 3_000_000,
            "maxFeePerGas": 3 * GWEI,
            "maxPriorityFeePerGas": GWEI // 10,
            **fields,
        }
        if "gasPrice" in fields:
            del request["maxFeePerGas"], request["maxPriorityFeePerGas"]
        if to is not None:
            request["to"] = to
        return bytes(self.owner.sign_transaction(request).raw_transaction)

    def execute(self, raw: bytes) -> Receipt:
        """Run a block with one transaction, and check that no money was made or lost."""
        execution = process_block(self.state, self.environment(), [decode_transaction(raw, CHAIN_ID)], CONTRACTS)
        (result,) = execution.results
        assert isinstance(result, Receipt), result
        self.height += 1
        self.nonce += 1
        assert self.count_money() == get_supply(self.state)
        return result

    def send(self, to: bytes | None, data: bytes = b"", **fields: Any) -> Receipt:
        return self.execute(self.sign(to, data, **fields))

    def call(self, to: bytes | None, data: bytes = b"", *, value: int = 0, gas: int = 3_000_000) -> Any:
        return simulate_call(
            self.state,
            self.environment(),
            sender=self.sender,
            to=None if to is None else Address(to),
            value=Amount(value),
            data=data,
            gas_limit=gas,
            contracts=CONTRACTS,
        )

    def count_money(self) -> int:
        return sum(int.from_bytes(value[8:40], "big") for _, value in self.state.iterate(b"a/", b"a0"))

    def deploy(self, code: bytes, **fields: Any) -> Address:
        address = compute_create_address(self.sender, self.nonce)
        receipt = self.send(None, code, **fields)
        assert receipt.status == 1, receipt.error
        return address


class Pair(Chain):
    """The executor and anvil: every transaction runs on both."""

    def __init__(self, anvil: Anvil, key: bytes) -> None:
        super().__init__(Account.from_key(key))
        self.anvil = anvil
        anvil.ask("anvil_setBalance", self.owner.address, hex(WEI))
        anvil.ask("anvil_setCoinbase", "0x" + PROPOSER.hex())

    def install(self, address: bytes, code: bytes, *, balance: int = 0) -> None:
        """Put code and money somewhere on both."""
        old = accounts.get_balance(self.state, Address(address))
        set_code(self.state, address, code)
        accounts.transfer(self.state, self.sender, Address(address), balance - old)
        self.anvil.ask("anvil_setCode", "0x" + address.hex(), "0x" + code.hex())
        self.anvil.ask("anvil_setBalance", "0x" + address.hex(), hex(balance))

    def compare(self, to: bytes | None, data: bytes = b"", **fields: Any) -> Receipt:
        """Call, then send, on both; status, gas, logs, return data, address and code must be equal."""
        value, gas = fields.get("value", 0), fields.get("gas", 3_000_000)
        request = {"from": self.owner.address, "data": "0x" + data.hex(), "value": hex(value), "gas": hex(gas)}
        if to is not None:
            request["to"] = "0x" + to.hex()
        theirs_called = self.anvil.answer("eth_call", request, "latest")
        raw = self.sign(to, data, **fields)
        target = compute_create_address(self.sender, self.nonce) if to is None else to
        ours = self.execute(raw)
        transaction_hash = self.anvil.ask("eth_sendRawTransaction", "0x" + raw.hex())
        end = time.monotonic() + ANVIL_SECONDS
        while (theirs := self.anvil.ask("eth_getTransactionReceipt", transaction_hash)) is None:
            assert time.monotonic() < end, "anvil did not mine the transaction"
        shown = {
            "status": ours.status,
            "gas": ours.gas_used,
            "logs": [
                ("0x" + log.address.hex(), ["0x" + topic.hex() for topic in log.topics], "0x" + log.data.hex())
                for log in ours.logs
            ],
        }
        expected = {
            "status": int(theirs["status"], 16),
            "gas": int(theirs["gasUsed"], 16),
            "logs": [(log["address"], log["topics"], log["data"]) for log in theirs["logs"]],
        }
        assert shown == expected, ours.error
        output = theirs_called.get("result") or theirs_called["error"].get("data") or "0x"
        assert "0x" + ours.output.hex() == output
        if to is None:
            assert theirs["contractAddress"] == "0x" + target.hex()
        self.compare_account(target)
        return ours

    def compare_account(self, address: bytes, *slots: int) -> None:
        """Code, nonce, balance and slots of an account are equal."""
        shown = "0x" + address.hex()
        assert get_code(self.state, address).hex() == self.anvil.ask("eth_getCode", shown, "latest")[2:]
        nonce, balance = accounts.get_account(self.state, Address(address))
        assert balance == int(self.anvil.ask("eth_getBalance", shown, "latest"), 16)
        assert nonce == int(self.anvil.ask("eth_getTransactionCount", shown, "latest"), 16)
        for slot in slots:
            theirs = int(self.anvil.ask("eth_getStorageAt", shown, hex(slot), "latest"), 16)
            assert get_slot(self.state, address, slot) == theirs, slot


def bytecode(contract: dict[str, Any]) -> bytes:
    """Return the initcode."""
    return bytes.fromhex(contract["evm"]["bytecode"]["object"])


def calldata(signature: str, *values: object) -> bytes:
    """Encode a call, e.g. ``calldata("set(uint256,uint256)", 1, 2)``."""
    inner = signature[signature.index("(") + 1 : -1]
    types = inner.split(",") if inner else []
    return bytes(keccak256(signature.encode())[:4]) + encode(types, list(values))
