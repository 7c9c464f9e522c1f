"""Anything at a live validator: every function with extreme arguments, every type of transaction with extreme fields.

The outcome is a receipt or a refusal with its reason; what fails changes nothing but nonce and fee; the chain goes on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import coincurve
import pytest
from eth_account import Account

from chain.core import rlp
from chain.core.abi.declare import Field, Struct
from chain.core.contracts.registry import CODECS
from chain.core.hashing import keccak256
from chain.store import Reader
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import RpcError
from contracts.bindings.sender import Sender

pytestmark = pytest.mark.integration

FAUCET_KEY = b"\x11" * 32
GWEI = 10**9
CALL_GAS = 900_000
DEADLINE_SECONDS = 90.0
CONTRACT_STATE = (b"t/", b"s/", b"k/")
KINDS = ("zero", "max", "empty", "unknown", "past", "future")


@pytest.fixture(scope="module")
def client(devnet: Any) -> Iterator[ChainClient]:
    with ChainClient([devnet.url]) as client:
        yield client


@pytest.fixture
def chain_id(client: ChainClient) -> int:
    return int(client.request("eth_chainId"), 16)


def wait(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return value


def extreme(field: Field, kind: str, height: int) -> Any:
    """Return one extreme value of a field."""
    if field.is_array:
        one = Field(field.name, field.kind)
        return [] if kind in ("zero", "empty") else [extreme(one, kind, height)] * (20 if kind == "max" else 2)
    if isinstance(field.kind, Struct):
        return tuple(extreme(each, kind, height) for each in field.kind.fields)
    if field.kind.startswith("uint"):
        top = 2 ** int(field.kind[4:]) - 1
        wanted = {"zero": 0, "max": top, "empty": 0, "unknown": 77_777, "past": 1, "future": height + 10**6}
        return min(wanted[kind], top)
    if field.kind == "bool":
        return kind in ("max", "unknown", "future")
    if field.kind == "string":
        return {"max": "x" * 3_000, "unknown": "http://nobody:1\u0000", "future": "é" * 60}.get(kind, "")
    if field.kind == "bytes":
        return {"max": b"\xff" * 3_000, "unknown": b"\x93\xc4", "past": bytes(64), "future": bytes(999)}.get(kind, b"")
    size = 20 if field.kind == "address" else int(field.kind.removeprefix("bytes"))
    return {"zero": b"\0", "max": b"\xff", "empty": b"\0", "unknown": b"\x7e"}.get(kind, b"\x01") * size


def read_contract_state(devnet: Any) -> dict[bytes, bytes]:
    with Reader(devnet.home / "app") as reader, reader.snapshot() as snapshot:
        return {
            key: value for prefix in CONTRACT_STATE for key, value in snapshot.state.iterate(prefix, prefix[:-1] + b"0")
        }


def test_every_function_with_extreme_arguments(devnet: Any, client: ChainClient, chain_id: int) -> None:
    """Each alone reverts with an error of the contract's ABI or works; reverts leave the contracts' state as it was."""
    account = Account.create()
    Sender(client, FAUCET_KEY).transfer(account.address, 1_000 * 10**18)
    before = read_contract_state(devnet)
    height = client.height()
    sent: list[tuple[str, str, bytes, str]] = []
    nonce = 0
    for address, codec in CODECS.items():
        for name, function in codec.by_name.items():
            for kind in KINDS:
                data = function.encode_inputs([extreme(field, kind, height) for field in function.function.inputs])
                for value in (0, 1) if kind == "zero" else (0,):
                    request = {"to": "0x" + address.hex(), "data": data, "value": value, "gas": CALL_GAS}
                    request |= {"nonce": nonce, "chainId": chain_id, "type": 2}
                    request |= {"maxFeePerGas": 2 * GWEI, "maxPriorityFeePerGas": 0}
                    raw = account.sign_transaction(request).raw_transaction
                    sent.append((f"{codec.contract.name}.{name}", kind, address, "0x" + keccak256(raw).hex()))
                    client.request("eth_sendRawTransaction", "0x" + raw.hex())
                    nonce += 1
    wait(lambda: client.nonce(account.address) == nonce, f"all {nonce} calls are executed")
    succeeded: dict[str, str] = {}
    for name, kind, address, transaction in sent:
        receipt = client.request("eth_getTransactionReceipt", transaction)
        if receipt["status"] == "0x1":
            succeeded[name] = kind
            continue
        assert receipt["logs"] == []
        if "out of gas" not in receipt["error"]:
            reverted = CODECS[address].decode_error(bytes.fromhex(receipt["revertReason"][2:]))  # type: ignore[index]
            assert reverted is not None, (name, kind, receipt["error"])
    views = {name for name in succeeded if is_view(name)}
    writes = set(succeeded) - views
    # Whoever is nobody may still bond, and free the bond; all else needs more than extreme arguments.
    assert writes <= {"Staking.bond", "Staking.unbond"}, writes
    after = read_contract_state(devnet)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    owner = bytes.fromhex(account.address[2:])
    assert {key for key in changed if owner not in key and key != b"k/t"} == set()


def test_runs_with_absurd_parameters(devnet: Any, client: ChainClient, chain_id: int) -> None:
    """Each parameter at its extremes, in a new run and in one that is there: BadParams names it, or the run lives."""
    account = Account.create()
    Sender(client, FAUCET_KEY).transfer(account.address, 1_000 * 10**18)
    training = next(codec for codec in CODECS.values() if codec.contract.name == "Training")
    create, change = training.by_name["createRun"], training.by_name["setParams"]
    params = create.function.inputs[0].kind
    assert isinstance(params, Struct)
    sane = (4, 1, 20, 100, 1, 16, 120, 10, 10, 30, 60, 200, 20, 8, 2, 2_000, False, False, 0, 0)
    first = int(client.training.num_runs()) + 1
    calls = [("sane", create.encode_inputs([sane, b"F = 4\n", b"\x01" * 32]))]
    for index, field in enumerate(params.fields):
        assert isinstance(field.kind, str)
        top = 1 if field.kind == "bool" else 2 ** int(field.kind[4:]) - 1
        for value in (0, 1, top // 2, top):
            odd = (*sane[:index], bool(value) if field.kind == "bool" else value, *sane[index + 1 :])
            calls.append((field.name, create.encode_inputs([odd, b"", b"\x02" * 32])))
            calls.append((field.name, change.encode_inputs([first, odd])))
    sent = []
    for nonce, (name, data) in enumerate(calls):
        request = {"to": "0x" + "00" * 18 + "1000", "data": data, "value": 0, "gas": CALL_GAS, "nonce": nonce}
        request |= {"chainId": chain_id, "type": 2, "maxFeePerGas": 2 * GWEI, "maxPriorityFeePerGas": 0}
        raw = account.sign_transaction(request).raw_transaction
        sent.append((name, client.request("eth_sendRawTransaction", "0x" + raw.hex())))
    wait(lambda: client.nonce(account.address) == len(calls), "all runs are made or refused")
    refused: set[str] = set()
    for name, transaction in sent:
        receipt = client.request("eth_getTransactionReceipt", transaction)
        if receipt["status"] == "0x0":
            reverted = training.decode_error(bytes.fromhex(receipt["revertReason"][2:]))
            assert reverted is not None, (name, receipt["error"])
            assert reverted[0] in ("BadParams", "SealedNotSupported", "PaidRunNeedsAllowList"), (name, reverted)
            refused.add(name)
    assert refused == {field.name for field in params.fields} - {"isAllowListed", "memberBond"}
    height = client.height()
    wait(lambda: client.height() >= height + 3, "blocks go on with all these runs")
    assert devnet.process.poll() is None


def is_view(name: str) -> bool:
    contract, function = name.split(".")
    codec = next(codec for codec in CODECS.values() if codec.contract.name == contract)
    return str(codec.by_name[function].function.mutability) == "view"


def sign(key: coincurve.PrivateKey, kind: int, fields: list[Any], chain_id: int) -> bytes:
    """Sign fields as they are, however absurd: what eth-account would refuse to."""
    items = [each if isinstance(each, bytes | list) else rlp.encode_integer(each) for each in fields]
    if kind == 0:
        digest = keccak256(rlp.encode([*items, rlp.encode_integer(chain_id), b"", b""]))
    else:
        digest = keccak256(bytes([kind]) + rlp.encode(items))
    signature = key.sign_recoverable(digest, hasher=None)
    r, s, parity = signature[:32].lstrip(b"\0"), signature[32:64].lstrip(b"\0"), signature[64]
    if kind == 0:
        return rlp.encode([*items, rlp.encode_integer(35 + 2 * chain_id + parity), r, s])
    return bytes([kind]) + rlp.encode([*items, rlp.encode_integer(parity), r, s])


def absurd_transactions(key: coincurve.PrivateKey, chain_id: int, block_gas: int) -> dict[str, bytes]:
    """By name: nothing of it may be executed."""
    nonce = 0
    to, top64, top256 = b"\xaa" * 20, 2**64 - 1, 2**256 - 1
    found: dict[str, bytes] = {"empty": b"", "zero": b"\0", "text": b"hello", "deep": b"\xc1" * 900 + b"\xc0"}

    def dynamic(**changes: Any) -> list[Any]:
        fields = {"chain": chain_id, "nonce": nonce, "tip": 0, "fee": 2 * GWEI, "gas": 21_000, "to": to}
        fields |= {"value": 0, "data": b"", "access": []}
        assert changes.keys() <= fields.keys()
        return list({**fields, **changes}.values())

    def listed(**changes: Any) -> list[Any]:
        fields = dynamic(**changes)
        del fields[2]
        return fields

    changes: dict[str, dict[str, Any]] = {
        "other chain": {"chain": chain_id + 1}, "chain 0": {"chain": 0}, "chain max": {"chain": top256},
        "nonce max": {"nonce": top64}, "nonce far": {"nonce": nonce + 5_000}, "nonce too wide": {"nonce": 2**64},
        "gas 0": {"gas": 0}, "gas low": {"gas": 20_999}, "gas max": {"gas": top64}, "gas above": {"gas": block_gas + 1},
        "fee 0": {"fee": 0}, "fee max": {"fee": top256}, "value max": {"value": top256},
        "value too wide": {"value": 2**256}, "short to": {"to": b"\xaa" * 19}, "long to": {"to": b"\xaa" * 21},
        "initcode too long": {"to": b"", "data": bytes(49_153), "gas": 5_000_000},
        "bytes too many": {"data": bytes(131_073), "gas": 5_000_000},
        "access no list": {"access": b"\x01"}, "access short": {"access": [[b"\xaa" * 19, []]], "gas": 90_000},
        "leading zero": {"value": b"\x00\x01"},
    }  # fmt: skip
    for name, change in changes.items():
        found[f"type 2, {name}"] = sign(key, 2, dynamic(**change), chain_id)
        found[f"type 1, {name}"] = sign(key, 1, listed(**change), chain_id)
        if "access" not in change and "chain" not in change:
            found[f"legacy, {name}"] = sign(key, 0, listed(**change)[1:-1], chain_id)
    found["type 2, tip above fee"] = sign(key, 2, dynamic(tip=3 * GWEI), chain_id)
    found["type 2, a field less"] = b"\x02" + rlp.encode([b""] * 11)
    for kind in (3, 4, 5, 0x7F):
        found[f"type {kind}"] = sign(key, kind, dynamic(), chain_id)
    good = sign(key, 2, dynamic(), chain_id)
    found["trailing byte"] = good + b"\0"
    found["cut"] = good[:-1]
    fields = rlp.decode(good[1:])
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    for name, position, value in (
        ("r is 0", 10, b""), ("s is 0", 11, b""), ("r is the order", 10, order.to_bytes(32, "big")),
        ("s is high", 11, (order - int.from_bytes(fields[11], "big")).to_bytes(32, "big")), ("parity 2", 9, b"\x02"),
    ):  # fmt: skip
        found[name] = b"\x02" + rlp.encode([*fields[:position], value, *fields[position + 1 :]])
    return found


def test_every_type_of_transaction_with_extreme_fields(devnet: Any, client: ChainClient, chain_id: int) -> None:
    """Each is refused with a reason and leaves no trace: neither in the queue nor in a block."""
    account = Account.create()
    Sender(client, FAUCET_KEY).transfer(account.address, 10**18)
    key = coincurve.PrivateKey(bytes(account.key))
    block_gas = int(client.request("eth_getBlockByNumber", "latest", False)["gasLimit"], 16)
    for name, raw in absurd_transactions(key, chain_id, block_gas).items():
        try:
            taken = client.request("eth_sendRawTransaction", "0x" + raw.hex())
            pytest.fail(f"{name} was taken: {taken}")
        except RpcError as error:
            message = str(error)
        assert "internal error" not in message.lower(), name
        assert re.search(r"[a-z]{3}", message), name
        if len(raw) > 0:
            assert client.request("eth_getTransactionReceipt", "0x" + keccak256(raw).hex()) is None, name
    assert client.nonce(account.address, is_pending=True) == 0, "none waits"
    height = client.height()
    outcome = Sender(client, bytes(account.key)).transfer("0x" + "aa" * 20, 1)
    assert outcome.height > height, "the chain goes on, and the first nonce is still free"
    assert devnet.process.poll() is None
