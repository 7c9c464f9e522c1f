"""Every method's answers against the table of shapes, and what is unknown is null."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address

sys.path.insert(0, str(Path(__file__).parent))

from schemas import (
    ACCESS_LIST,
    ADDRESS,
    ANY_TRANSACTION,
    BLOCK,
    DATA,
    DECIMAL,
    FEE_HISTORY,
    FULL_BLOCK,
    HASH,
    LEGACY_TRANSACTION,
    LISTED_TRANSACTION,
    LOG,
    PROOF,
    QUANTITY,
    RECEIPT,
    TRANSACTION,
    check,
    find_fault,
)

from chain.core.evm.layout import delete_slots, get_slot
from chain.core.hashing import keccak256
from chain.core.state import EmptyBase, Overlay
from chain.core.types import Address
from chain.rpc.dispatch import READ_METHODS
from chain.rpc.overrides import override
from chain.rpc.upstream_methods import UPSTREAM_METHODS

STAKING = "0x0000000000000000000000000000000000001002"
NOBODY = to_checksum_address("0x" + "aa" * 20)
NO_HASH = "0x" + "ab" * 32
FAR = "0xffffff"
LISTED = {"address": NOBODY, "storageKeys": [NO_HASH]}


def ask(url: str, method: str, *params: Any) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


def result(url: str, method: str, *params: Any) -> Any:
    answer = ask(url, method, *params)
    assert "error" not in answer, (method, params, answer)
    return answer["result"]


@dataclass(frozen=True)
class Known:
    """What is there to ask for."""

    url: str
    block_hash: str
    block: str
    """Number."""
    transaction: str
    index: str
    log_filter: str
    block_filter: str
    raw: str
    """A signed transaction that was not sent yet."""


@pytest.fixture
def known(solo: Any) -> Known:
    """A block with a transaction that has a log, and filters made before it."""
    log_filter = result(solo.url, "eth_newFilter", {"address": STAKING})
    block_filter = result(solo.url, "eth_newBlockFilter")
    sent = "0x" + solo.faucet.send("Staking", "bond", value=1).transaction_hash.hex()
    receipt = result(solo.url, "eth_getTransactionReceipt", sent)
    account = Account.create()
    solo.faucet.transfer(account.address, 10**18)
    transfer = {"to": NOBODY, "value": 0, "gas": 21_000, "gasPrice": 10**9, "nonce": 0, "chainId": 4242}
    return Known(
        url=solo.url,
        block_hash=receipt["blockHash"],
        block=receipt["blockNumber"],
        transaction=sent,
        index=receipt["transactionIndex"],
        log_filter=log_filter,
        block_filter=block_filter,
        raw="0x" + account.sign_transaction(transfer).raw_transaction.hex(),
    )


def table(k: Known) -> dict[str, list[tuple[list[Any], Any]]]:
    """By method: parameters, and the shape of the answer."""
    view = {"to": STAKING, "data": "0x" + selector("totalBonded()")}
    call = {"to": NOBODY, "value": "0x0"}
    unknown = [([NO_HASH], None)]
    return {
        "web3_clientVersion": [([], str)],
        "web3_sha3": [(["0x68656c6c6f"], HASH)],
        "net_version": [([], DECIMAL)],
        "net_listening": [([], bool)],
        "net_peerCount": [([], QUANTITY)],
        "eth_chainId": [([], QUANTITY)],
        "eth_syncing": [([], bool)],
        "eth_accounts": [([], [ADDRESS])],
        "eth_blockNumber": [([], QUANTITY)],
        "eth_gasPrice": [([], QUANTITY)],
        "eth_maxPriorityFeePerGas": [([], QUANTITY)],
        "eth_feeHistory": [(["0x4", "latest", [25, 75]], FEE_HISTORY), ([4, "latest"], FEE_HISTORY)],
        "eth_getBalance": [([STAKING, "latest"], QUANTITY), ([NOBODY], QUANTITY)],
        "eth_getTransactionCount": [([NOBODY, tag], QUANTITY) for tag in ("latest", "pending")],
        "eth_getCode": [([STAKING, "latest"], DATA), ([NOBODY, "latest"], DATA)],
        "eth_getStorageAt": [([STAKING, "0x0", "latest"], HASH)],
        "eth_getProof": [([STAKING, ["0x0"], "latest"], PROOF)],
        "eth_call": [([call, "latest"], DATA), ([view, "latest"], DATA)],
        "eth_estimateGas": [([call], QUANTITY), ([call, "latest"], QUANTITY)],
        "eth_createAccessList": [([call, "latest"], {"accessList": ACCESS_LIST, "gasUsed": QUANTITY, "error?": str})],
        "eth_getBlockByNumber": [
            ([k.block, False], BLOCK),
            ([k.block, True], FULL_BLOCK),
            *[([tag, False], BLOCK) for tag in ("earliest", "latest", "safe", "finalized", "pending")],
            ([FAR, False], None),
        ],
        "eth_getBlockByHash": [
            ([k.block_hash, False], BLOCK), ([k.block_hash, True], FULL_BLOCK), ([NO_HASH, True], None),
        ],
        "eth_getBlockReceipts": [([k.block], [RECEIPT]), ([k.block_hash], [RECEIPT]), ([FAR], None), ([NO_HASH], None)],
        "eth_getBlockTransactionCountByNumber": [([k.block], QUANTITY), ([FAR], None)],
        "eth_getBlockTransactionCountByHash": [([k.block_hash], QUANTITY), *unknown],
        "eth_getUncleCountByBlockNumber": [([k.block], QUANTITY), ([FAR], None)],
        "eth_getUncleCountByBlockHash": [([k.block_hash], QUANTITY), *unknown],
        "eth_getUncleByBlockNumberAndIndex": [([k.block, "0x0"], None)],
        "eth_getUncleByBlockHashAndIndex": [([k.block_hash, "0x0"], None)],
        "eth_getTransactionByHash": [([k.transaction], TRANSACTION), *unknown],
        "eth_getTransactionReceipt": [([k.transaction], RECEIPT), *unknown],
        "eth_getTransactionByBlockNumberAndIndex": [
            ([k.block, k.index], ANY_TRANSACTION), ([k.block, "0x63"], None), ([FAR, "0x0"], None),
        ],
        "eth_getTransactionByBlockHashAndIndex": [
            ([k.block_hash, k.index], ANY_TRANSACTION), ([k.block_hash, "0x63"], None), ([NO_HASH, "0x0"], None),
        ],
        "eth_getLogs": [([{"fromBlock": k.block, "toBlock": k.block}], [LOG]), ([{"blockHash": k.block_hash}], [LOG])],
        "eth_newFilter": [([{"address": STAKING, "topics": [None, [NO_HASH]]}], QUANTITY)],
        "eth_newBlockFilter": [([], QUANTITY)],
        "eth_getFilterChanges": [([k.log_filter], [LOG]), ([k.block_filter], [HASH])],
        "eth_getFilterLogs": [([k.log_filter], [LOG])],
        "eth_uninstallFilter": [([k.block_filter], bool), (["0x1"], bool)],
        "eth_getRawTransactionByHash": [([k.transaction], DATA), *unknown],
        "debug_getRawTransaction": [([k.transaction], DATA), *unknown],
        "debug_getRawHeader": [([k.block], DATA), ([k.block_hash], DATA), (["latest"], DATA), ([FAR], None)],
        "debug_getRawBlock": [([k.block], DATA), ([k.block_hash], DATA), (["latest"], DATA), ([FAR], None)],
        "eth_sendRawTransaction": [([k.raw], HASH)],
    }  # fmt: skip


def test_every_method_answers_in_its_shape(known: Known) -> None:
    checked = table(known)
    ours = {"archipelago_consensus", "archipelago_archivedRound"}  # no part of Ethereum's specification
    tracing = {"debug_traceTransaction"}  # test_traces
    assert set(checked) == {*READ_METHODS, *UPSTREAM_METHODS} - ours - tracing
    for method, cases in checked.items():
        for params, shape in cases:
            fault = find_fault(result(known.url, method, *params), shape, "result")
            assert fault is None, f"{method}{params}: {fault}"


def test_lists_that_were_checked_were_not_empty(known: Known) -> None:
    assert len(result(known.url, "eth_getFilterChanges", known.log_filter)) == 1
    assert len(result(known.url, "eth_getFilterChanges", known.block_filter)) >= 1
    assert result(known.url, "eth_getFilterChanges", known.log_filter) == []
    assert len(result(known.url, "eth_getBlockReceipts", known.block)) == 1


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ({"gasPrice": 10**9}, LEGACY_TRANSACTION),
        ({"type": 1, "gasPrice": 10**9, "accessList": [LISTED]}, LISTED_TRANSACTION),
        ({"type": 2, "maxFeePerGas": 2 * 10**9, "maxPriorityFeePerGas": 5}, TRANSACTION),
    ],
)  # fmt: skip
def test_each_type_of_transaction_has_its_fields(solo: Any, kind: dict[str, Any], shape: Any) -> None:
    account = Account.create()
    solo.faucet.transfer(account.address, 10**18)
    signed = account.sign_transaction({"to": NOBODY, "value": 1, "gas": 90_000, "nonce": 0, "chainId": 4242, **kind})
    sent = result(solo.url, "eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())
    shown = result(solo.url, "eth_getTransactionByHash", sent)
    check(shown, shape)
    assert shown["type"] == hex(kind.get("type", 0))
    receipt = result(solo.url, "eth_getTransactionReceipt", sent)
    check(receipt, RECEIPT)
    assert receipt["type"] == shown["type"]
    assert receipt["effectiveGasPrice"] == shown["gasPrice"]


def test_the_suggested_tip_is_what_others_paid(solo: Any) -> None:
    account = Account.create()
    solo.faucet.transfer(account.address, 10**18)
    assert result(solo.url, "eth_gasPrice") >= hex(10**9)
    solo.chain.mine(20)
    assert result(solo.url, "eth_maxPriorityFeePerGas") == "0x0", "no transaction in 20 blocks"
    for nonce, tip in enumerate((7, 9, 11)):
        fields = {"type": 2, "maxFeePerGas": 2 * 10**9, "maxPriorityFeePerGas": tip, "nonce": nonce}
        signed = account.sign_transaction({"to": NOBODY, "value": 1, "gas": 21_000, "chainId": 4242, **fields})
        result(solo.url, "eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())
    assert result(solo.url, "eth_maxPriorityFeePerGas") == "0x9"
    assert result(solo.url, "eth_gasPrice") == hex(10**9 + 9)
    solo.chain.mine(20)
    assert result(solo.url, "eth_maxPriorityFeePerGas") == "0x0"


def test_a_view_is_answered_anew_at_each_block_and_for_each_caller(solo: Any) -> None:
    view = {"to": STAKING, "data": "0x" + selector("bondOf(address)") + "00" * 12 + solo.faucet.address[2:].lower()}
    before = result(solo.url, "eth_call", view, "latest")
    assert result(solo.url, "eth_call", view, "latest") == before
    solo.faucet.send("Staking", "bond", value=3)
    assert int(result(solo.url, "eth_call", view, "latest"), 16) == int(before, 16) + 3
    assert (
        ask(solo.url, "eth_call", {**view, "value": "0x1", "from": solo.faucet.address}, "latest")["error"]["code"] == 3
    )
    assert ask(solo.url, "eth_call", view, FAR)["error"]["code"] == -32000
    assert ask(solo.url, "eth_call", {**view, "gas": "0x5208"}, "latest")["error"]["code"] == -32000


def test_a_call_sees_accounts_as_the_client_wants_them(solo: Any) -> None:
    """Slots, balances and code, none of which is so on the chain."""
    rich, word = "0x" + "66" * 20, "0x" + "00" * 31 + "2a"
    slot = "0x" + "00" * 31 + "01"
    load = {"code": "0x6001545f5260205ff3"}  # PUSH1 1 SLOAD PUSH0 MSTORE PUSH1 32 PUSH0 RETURN
    own = {"code": "0x475f5260205ff3"}  # SELFBALANCE
    sender = {"code": "0x33315f5260205ff3"}  # CALLER BALANCE

    def call(overrides: Any, **fields: Any) -> Any:
        return result(solo.url, "eth_call", {"to": NOBODY, **fields}, "latest", overrides)

    assert call({}) == "0x"
    assert call({NOBODY: {**load, "stateDiff": {slot: word}}}) == word
    assert call({NOBODY: {**load, "state": {slot: word}}}) == word
    assert int(call({NOBODY: load}), 16) == 0
    assert int(call({NOBODY: {**own, "balance": "0x2b"}}), 16) == 43
    assert int(call({NOBODY: sender, rich: {"balance": "0x2c"}}, **{"from": rich}), 16) == 44
    poor = ask(solo.url, "eth_call", {"to": NOBODY, "from": rich, "value": "0x5"}, "latest")
    assert "insufficient funds" in poor["error"]["message"]
    assert call({rich: {"balance": "0x5"}}, **{"from": rich, "value": "0x5"}) == "0x"
    paid = {"to": NOBODY, "from": rich, "value": "0x5"}
    assert int(result(solo.url, "eth_estimateGas", paid, "latest", {rich: {"balance": "0x5"}}), 16) == 21_000
    listed = result(solo.url, "eth_createAccessList", {"to": NOBODY}, "latest", {NOBODY: load})
    assert listed["accessList"] == [{"address": NOBODY.lower(), "storageKeys": [slot]}]
    assert int(result(solo.url, "eth_getBalance", rich, "latest"), 16) == 0, "of this call only"
    assert call(None) == "0x"
    view = {"to": STAKING, "data": "0x" + selector("totalBonded()")}
    bonded = result(solo.url, "eth_call", view, "latest")
    assert result(solo.url, "eth_call", view, "latest", {STAKING: {"balance": "0x1"}}) == bonded


def test_invalid_overrides_are_named(solo: Any) -> None:
    for overrides, said in (
        ([], "expected {address"),
        ({NOBODY: 7}, "expected {address"),
        ({"0x12": {}}, "has 1 bytes, expected 20"),
        ({NOBODY: {"balanc": "0x1"}}, "unknown state override 'balanc', did you mean balance?"),
        ({NOBODY: {"balance": 1}}, "balance is '1', expected a quantity"),
        ({NOBODY: {"nonce": hex(2**64)}}, "nonce is"),
        ({NOBODY: {"state": {}, "stateDiff": {}}}, "give one of them"),
        ({NOBODY: {"stateDiff": {"0x1": "0x2"}}}, "two hex digits a byte"),
        ({NOBODY: {"state": [1]}}, "expected {slot: value}"),
        ({NOBODY: {"stateDiff": 1}}, "expected {slot: value}"),
        ({STAKING: {"code": "0x00"}}, "only the balance can be overridden"),
        ({"0x" + f"{n:040x}": {} for n in range(101)}, "101 accounts and 0 slots, at most 100 and 1000"),
        ({NOBODY: {"state": {"0x" + f"{n:064x}": "0x" + "00" * 32 for n in range(1_001)}}}, "1001 slots"),
    ):
        answer = ask(solo.url, "eth_call", {"to": NOBODY}, "latest", overrides)
        assert answer["error"]["code"] == -32602, overrides
        assert said in answer["error"]["message"]


def test_a_call_sees_a_block_as_the_client_wants_it(solo: Any) -> None:
    """Each opcode that tells of the block; under go-ethereum's names of today and of before."""
    recipient, seed = "0x" + "66" * 20, "0x" + "5a" * 32
    names = ("number", "time", "gasLimit", "feeRecipient", "prevRandao", "baseFeePerGas")
    opcodes = ("43", "42", "45", "41", "44", "48")
    chosen = dict(zip(names, ("0x7fffffffffffffff", hex(2**64 - 1), "0x1234", recipient, seed, "0x7"), strict=True))
    code = "".join(f"{opcode}60{32 * index:02x}52" for index, opcode in enumerate(opcodes)) + "60c05ff3"

    def call(overrides: Any, method: str = "eth_call") -> Any:
        return result(solo.url, method, {"to": NOBODY}, "latest", {NOBODY: {"code": "0x" + code}}, overrides)

    def words(answer: str) -> list[int]:
        return [int(answer[2 + 64 * index : 66 + 64 * index], 16) for index in range(6)]

    block = result(solo.url, "eth_getBlockByNumber", "latest", False)
    plain = words(call(None))
    assert plain == words(call({}))
    assert plain[:4] == [int(block[name], 16) for name in ("number", "timestamp", "gasLimit", "miner")]
    assert words(call(chosen)) == [int(value, 16) for value in chosen.values()]
    for index, name in enumerate(names):
        changed = words(call({name: chosen[name]}))
        assert changed[index] == int(chosen[name], 16)
        assert [word for at, word in enumerate(changed) if at != index] == [
            word for at, word in enumerate(plain) if at != index
        ]
    old = {"coinbase": recipient, "random": seed, "baseFee": "0x7"}
    assert words(call(old))[3:] == [int(value, 16) for value in old.values()]
    assert call(None) == call({"number": None})
    # an estimate, and a past block
    late = "0x620f42404311600c575f5ffd5b00"  # PUSH3 1000000 NUMBER GT PUSH1 12 JUMPI revert; JUMPDEST STOP
    override = {NOBODY: {"code": late}}
    refused = ask(solo.url, "eth_estimateGas", {"to": NOBODY}, "latest", override)
    assert refused["error"]["code"] == 3
    needed = result(solo.url, "eth_estimateGas", {"to": NOBODY}, "latest", override, {"number": hex(10**6 + 1)})
    assert 21_000 < int(needed, 16) < 22_000
    solo.chain.mine(2)
    past = hex(int(block["number"], 16) + 1)
    before = result(solo.url, "eth_call", {"to": NOBODY}, past, {NOBODY: {"code": "0x" + code}}, {"time": "0x9"})
    assert words(before)[:2] == [int(past, 16), 9]


def test_a_call_in_a_later_block_sees_the_hashes_there_are(solo: Any) -> None:
    ask_hash = {NOBODY: {"code": "0x5f35405f5260205ff3"}}  # BLOCKHASH of the first word
    newest = result(solo.url, "eth_getBlockByNumber", "latest", False)
    number = int(newest["number"], 16)

    def call(wanted: int, *overrides: Any) -> Any:
        fields = {"to": NOBODY, "data": f"0x{wanted:064x}"}
        return result(solo.url, "eth_call", fields, newest["number"], ask_hash, *overrides)

    nothing = "0x" + "00" * 32
    assert call(number) == nothing, "no block knows its own"
    assert call(number, {"number": hex(number + 1)}) == newest["hash"]
    assert call(number + 1, {"number": hex(number + 9)}) == nothing, "not there yet"
    assert call(number, {"number": hex(number + 300)}) == nothing, "out of reach"
    estimate = [{"to": NOBODY, "data": f"0x{number + 1:064x}"}, newest["number"], ask_hash, {"number": hex(number + 9)}]
    assert int(result(solo.url, "eth_estimateGas", *estimate), 16) > 21_000


def test_a_view_of_a_system_contract_is_asked_for_another_block(solo: Any) -> None:
    """No answer of before stands in for it, nor it for a later one."""
    view = {"to": STAKING, "data": "0x" + selector("totalBonded()")}
    plain = result(solo.url, "eth_call", view, "latest")
    assert result(solo.url, "eth_call", view, "latest", None, {"number": "0xffff"}) == plain
    assert result(solo.url, "eth_call", view, "latest") == plain


def test_invalid_block_overrides_are_named(solo: Any) -> None:
    for overrides, said in (
        ([1], "block overrides are '[1]', expected {number, time, ...}"),
        ({"numbr": "0x1"}, "unknown block override 'numbr', did you mean number?"),
        ({"number": 1}, "number is '1', expected a quantity"),
        ({"number": hex(2**63)}, "number is 0x8000000000000000, expected 0x0 .. 0x7fffffffffffffff"),
        ({"time": "soon"}, "time is 'soon'"),
        ({"feeRecipient": "0x12"}, "feeRecipient has 1 bytes, expected 20"),
        ({"prevRandao": "0x12"}, "prevRandao has 1 bytes, expected 32"),
        ({"baseFee": "0x1", "baseFeePerGas": "0x2"}, "name baseFeePerGas twice"),
        ({"blobBaseFee": "0x1"}, "blobBaseFee is not supported: there are no blobs"),
        ({"difficulty": "0x1"}, "difficulty is not supported"),
    ):
        for method in ("eth_call", "eth_estimateGas"):
            answer = ask(solo.url, method, {"to": NOBODY}, "latest", None, overrides)
            assert answer["error"]["code"] == -32602, overrides
            assert said in answer["error"]["message"]


def test_overridden_balances_that_no_account_can_hold(solo: Any) -> None:
    """All the money there could be is what tools like to give; moved, minted or burned it is too much."""
    most, other = hex(2**256 - 1), "0x" + "66" * 20
    pay = "0x5f5f5f5f600173" + other[2:] + "5af1"  # CALL with one wei
    money = {name: {"balance": most} for name in (NOBODY, other)}
    for fields, overrides in (
        ({"to": NOBODY, "from": other, "value": "0x1"}, money),
        ({"to": NOBODY}, {**money, NOBODY: {"balance": most, "code": pay}}),
        ({"to": NOBODY}, {**money, NOBODY: {"balance": most, "code": "0x73" + other[2:] + "ff"}}),
        ({"from": other, "value": most, "data": "0x30ff"}, money),
        ({"to": STAKING, "from": other, "value": "0x1"}, {**money, STAKING: {"balance": most}}),
    ):
        for method in ("eth_call", "eth_estimateGas", "eth_createAccessList"):
            answer = ask(solo.url, method, fields, "latest", overrides)
            assert "balances come to more than 2^256 - 1 wei" in answer["error"]["message"], (method, fields)
    alone = {"to": NOBODY, "from": NOBODY, "value": most}
    assert result(solo.url, "eth_call", alone, "latest", {NOBODY: {"balance": most}}) == "0x"


def test_all_slots_are_overridden_without_a_look_at_them() -> None:
    """A contract may have millions: a call that hides them costs as much as any other."""

    class Counted(EmptyBase):
        def get(self, key: bytes) -> bytes | None:
            return b"\x07"

        def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
            if start[:2] == b"e/" and start[2:22] == emptied:
                raise AssertionError("slots of an emptied account are read")
            return iter([(b"e/" + emptied + bytes(32), b"\x07"), (b"e/" + other + bytes(32), b"\x07")])

    emptied, other = Address(b"\x11" * 20), Address(b"\x12" * 20)
    one = "0x" + "00" * 31 + "01"
    state = override(Counted(), {emptied: {"state": {one: one}}, other: {"stateDiff": {one: one}}})
    assert [get_slot(state, emptied, slot) for slot in (0, 1, 2)] == [0, 1, 0]
    assert [get_slot(state, other, slot) for slot in (0, 1, 2)] == [7, 1, 7]
    assert [key[2:22] for key, _ in state.iterate(b"e/", b"e0")] == [emptied, other, other]
    delete_slots(Overlay(state), emptied)


def selector(signature: str) -> str:
    return keccak256(signature.encode())[:4].hex()
