"""JSON-RPC over HTTP as clients meet it: shapes, limits, errors, batches, CORS, health."""

from __future__ import annotations

import gzip
import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import rlp as oracle_rlp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from eth_account import Account
from eth_utils.address import to_checksum_address
from prometheus_client.parser import text_string_to_metric_families

from chain.core import rlp
from chain.core.hashing import keccak256
from chain.rpc import values
from chain.rpc.metrics import HELP, PREFIX
from chain.store import HISTORY_BLOCKS
from contracts.bindings.errors import RpcError
from contracts.bindings.types import RunParams, RunState
from da.core.receipt import key_proof_message

EPOCH_BLOCKS = 20
"""As in the solo chain's genesis."""
TRAINING = "0x0000000000000000000000000000000000001000"
NOBODY = "0x00000000000000000000000000000000000000aa"


def post(url: str, body: Any, *, path: str = "/") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        text = response.read()
    return json.loads(text) if text else None


def call(url: str, method: str, *params: Any) -> Any:
    return post(url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})


def error_of(url: str, method: str, *params: Any) -> dict[str, Any]:
    answer = call(url, method, *params)
    assert "error" in answer, answer
    error: dict[str, Any] = answer["error"]
    return error


def fresh_transfer(solo: Any, amount: int = 5) -> str:
    outcome = solo.faucet.transfer(Account.create().address, amount)
    return "0x" + outcome.transaction_hash.hex()


def all_quantities(value: Any, names: set[str]) -> list[str]:
    if isinstance(value, dict):
        here = [item for name, item in value.items() if name in names and isinstance(item, str)]
        return here + [each for item in value.values() for each in all_quantities(item, names)]
    if isinstance(value, list):
        return [each for item in value for each in all_quantities(item, names)]
    return []


def test_unknown_receipt_and_transaction_are_null(solo: Any) -> None:
    """Case 48."""
    assert call(solo.url, "eth_getTransactionReceipt", "0x" + "ab" * 32)["result"] is None
    assert call(solo.url, "eth_getTransactionByHash", "0x" + "ab" * 32)["result"] is None
    assert call(solo.url, "eth_getBlockByHash", "0x" + "ab" * 32, False)["result"] is None
    assert call(solo.url, "eth_getBlockByNumber", "0xffffff", False)["result"] is None


def test_views_of_one_transaction_agree(solo: Any) -> None:
    sent = fresh_transfer(solo)
    receipt = call(solo.url, "eth_getTransactionReceipt", sent)["result"]
    by_hash = call(solo.url, "eth_getTransactionByHash", sent)["result"]
    block = call(solo.url, "eth_getBlockByHash", receipt["blockHash"], True)["result"]
    index = receipt["transactionIndex"]
    assert block["transactions"][int(index, 16)] == by_hash
    assert call(solo.url, "eth_getTransactionByBlockHashAndIndex", block["hash"], index)["result"] == by_hash
    assert call(solo.url, "eth_getTransactionByBlockNumberAndIndex", block["number"], index)["result"] == by_hash
    assert receipt in call(solo.url, "eth_getBlockReceipts", block["number"])["result"]
    for named in (block["hash"], {"blockHash": block["hash"]}, {"blockNumber": block["number"]}):
        assert call(solo.url, "eth_getBlockReceipts", named)["result"][int(index, 16)] == receipt
    for name in ("blockHash", "blockNumber", "transactionIndex", "from", "to", "type"):
        assert receipt[name] == by_hash[name]
    assert receipt["effectiveGasPrice"] == by_hash["gasPrice"]
    assert receipt["status"] == "0x1"
    assert receipt["gasUsed"] == hex(21_000)


def test_quantities_have_no_leading_zeros(solo: Any) -> None:
    fresh_transfer(solo)
    block = call(solo.url, "eth_getBlockByNumber", "latest", True)["result"]
    receipts = call(solo.url, "eth_getBlockReceipts", "latest")["result"]
    names = {"number", "gasUsed", "gasLimit", "timestamp", "baseFeePerGas", "size", "difficulty", "nonce", "value"}
    names |= {
        "gas",
        "gasPrice",
        "status",
        "type",
        "cumulativeGasUsed",
        "transactionIndex",
        "blockNumber",
        "v",
        "r",
        "s",
    }
    found = all_quantities([block["transactions"], receipts], names)
    found += [block[name] for name in ("number", "gasUsed", "gasLimit", "timestamp", "baseFeePerGas", "size")]
    assert len(found) > 20
    assert [each for each in found if each != hex(int(each, 16))] == []


def test_blocks_chain_from_genesis_and_hash_to_their_header(solo: Any) -> None:
    """Case 51."""
    solo.chain.mine(3)
    types: set[int] = set()
    sender = Account.create()
    solo.faucet.transfer(sender.address, 10**18)
    fields = {"to": sender.address, "value": 1, "gas": 21_000, "gasPrice": 2 * 10**9, "nonce": 0}
    legacy = sender.sign_transaction({**fields, "chainId": solo.client.chain_id()})
    assert "result" in call(solo.url, "eth_sendRawTransaction", legacy.raw_transaction.to_0x_hex())
    newest = int(call(solo.url, "eth_blockNumber")["result"], 16)
    parent = "0x" + "00" * 32
    for height in range(newest + 1):
        block = call(solo.url, "eth_getBlockByNumber", hex(height), False)["result"]
        assert block["parentHash"] == parent
        parent = block["hash"]
        assert len(bytes.fromhex(block["extraData"][2:])) <= 32
        assert len(bytes.fromhex(block["logsBloom"][2:])) == 256
        data = ("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom")
        numbers = ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")
        header = [bytes.fromhex(block[name][2:]) for name in data]
        header += [rlp.encode_integer(int(block[name], 16)) for name in numbers]
        header += [bytes.fromhex(block[name][2:]) for name in ("extraData", "mixHash", "nonce")]
        header.append(rlp.encode_integer(int(block["baseFeePerGas"], 16)))
        assert keccak256(rlp.encode(header)).hex() == block["hash"][2:]
        with solo.chain.lock:
            stored = [solo.chain.store.committed.transaction(bytes.fromhex(each[2:])) for each in block["transactions"]]
        raws = [found[0].raw for found in stored]
        body = [raw if raw[0] < 0xC0 else oracle_rlp.decode(raw) for raw in raws]
        whole = oracle_rlp.encode([header, body, []])
        assert int(block["size"], 16) == len(whole) > 500
        assert call(solo.url, "debug_getRawBlock", hex(height))["result"] == "0x" + whole.hex()
        assert call(solo.url, "debug_getRawHeader", block["hash"])["result"] == "0x" + oracle_rlp.encode(header).hex()
        for raw, sent in zip(raws, block["transactions"], strict=True):
            for method in ("eth_getRawTransactionByHash", "debug_getRawTransaction"):
                assert call(solo.url, method, sent)["result"] == "0x" + raw.hex()
        types |= {min(raw[0], 0xC0) for raw in raws}
    assert {2, 0xC0} <= types, "typed transactions and a legacy one were counted"


def test_every_tag_names_the_newest_block_and_earliest_the_first(solo: Any) -> None:
    newest = call(solo.url, "eth_getBlockByNumber", "latest", False)["result"]
    for tag in ("safe", "finalized", "pending"):
        assert call(solo.url, "eth_getBlockByNumber", tag, False)["result"] == newest
    assert call(solo.url, "eth_getBlockByNumber", "earliest", False)["result"]["number"] == "0x0"


def test_state_of_a_block_that_is_too_old_or_to_come_is_a_clear_error(solo: Any) -> None:
    solo.chain.mine(HISTORY_BLOCKS + 1)
    error = error_of(solo.url, "eth_getBalance", NOBODY, "0x0")
    assert error["code"] == -32000
    assert "state of block 0 is not kept any more" in error["message"]
    assert "not there yet" in error_of(solo.url, "eth_getBalance", NOBODY, hex(10**6))["message"]
    newest = call(solo.url, "eth_getBlockByNumber", "latest", False)["result"]
    assert call(solo.url, "eth_getBalance", NOBODY, newest["number"])["result"] == "0x0"
    assert call(solo.url, "eth_getBalance", NOBODY, {"blockHash": newest["hash"]})["result"] == "0x0"


def test_system_contracts_show_code_and_others_none(solo: Any) -> None:
    assert call(solo.url, "eth_getCode", TRAINING, "latest")["result"] == "0xfe"
    assert call(solo.url, "eth_getCode", NOBODY, "latest")["result"] == "0x"
    assert call(solo.url, "eth_getStorageAt", TRAINING, "0x0", "latest")["result"] == "0x" + "00" * 32


def test_revert_is_code_3_with_the_custom_error(solo: Any) -> None:
    data = "0x" + keccak256(b"pause(uint64)")[:4].hex() + (99).to_bytes(32, "big").hex()
    error = error_of(solo.url, "eth_call", {"to": TRAINING, "data": data}, "latest")
    assert error["code"] == 3
    assert error["data"] == "0x" + keccak256(b"UnknownRun(uint64)")[:4].hex() + (99).to_bytes(32, "big").hex()
    assert error["message"].startswith("execution reverted")
    assert error_of(solo.url, "eth_estimateGas", {"to": TRAINING, "data": data})["code"] == 3


def test_call_to_an_address_without_contract_returns_nothing(solo: Any) -> None:
    assert call(solo.url, "eth_call", {"to": NOBODY, "data": "0x12345678"}, "latest")["result"] == "0x"
    assert call(solo.url, "eth_estimateGas", {"to": NOBODY, "data": "0x12345678"})["result"] == hex(21_000 + 160)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("eth_getBalance", [], -32602),
        ("eth_getBalance", ["0x12", "latest"], -32602),
        ("eth_getBalance", [NOBODY, "newest"], -32602),
        ("eth_getBalance", [NOBODY, "latest", 1], -32602),
        ("eth_getTransactionReceipt", ["0x12"], -32602),
        ("eth_getTransactionReceipt", [7], -32602),
        ("eth_call", ["no object", "latest"], -32602),
        ("eth_call", [{"to": NOBODY, "gas": "0x" + "f" * 65}, "latest"], -32602),
        ("eth_getLogs", [{"topics": ["0x12"]}], -32602),
        ("eth_getLogs", [{"fromBlock": "0x2", "toBlock": "0x1"}], -32602),
        ("eth_getLogs", [{"topics": [None] * 5}], -32602),
        ("eth_getBlockByNumber", ["latest", "yes"], -32602),
        ("eth_sendRawTransaction", ["0xzz"], -32602),
        ("eth_feeHistory", ["0x2", "latest", [90, 10]], -32602),
        ("eth_feeHistory", [-2, "latest", []], -32602),
        ("eth_feeHistory", [True, "latest", []], -32602),
        ("eth_getBlockReceipts", [{}], -32602),
        ("eth_getBlockReceipts", [{"blockHash": 7}], -32602),
        ("eth_getFilterChanges", ["0x1"], -32000),
        ("eth_mining_pool", [], -32601),
    ],
)
def test_invalid_calls_are_refused_with_their_code(solo: Any, method: str, params: list[Any], code: int) -> None:
    assert error_of(solo.url, method, *params)["code"] == code


def test_unknown_method_names_the_nearest(solo: Any) -> None:
    assert "did you mean eth_getBalance" in error_of(solo.url, "eth_getBalances")["message"]


@pytest.mark.parametrize(
    ("method", "hint"),
    [
        ("eth_simulateV1", "eth_call takes state and block overrides"),
        ("eth_sendTransaction", "this node holds no keys: sign in the client"),
        ("personal_unlockAccount", "this node holds no keys"),
        ("txpool_content", "eth_getTransactionCount(address, 'pending')"),
        ("debug_traceCall", "debug_traceTransaction"),
        ("anvil_setBalance", "eth_call takes overrides"),
        ("evm_increaseTime", "no simulated chain"),
    ],
)
def test_what_other_nodes_have_is_named_with_what_there_is(solo: Any, method: str, hint: str) -> None:
    error = error_of(solo.url, method, {"blockStateCalls": []}, "latest")
    assert error["code"] == -32601
    assert error["message"].startswith(f"the method {method} does not exist/is not available; ")
    assert hint in error["message"]


def test_a_name_of_megabytes_is_not_compared(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for the nearest one, which took 0.6 s of a processor."""
    long = "eth_" * 1_000_000
    error = error_of(solo.url, long)
    assert (error["code"], len(error["message"]) < 200) == (-32601, True)
    overridden = error_of(solo.url, "eth_call", {"to": NOBODY}, "latest", {NOBODY: {long: "0x1"}})
    assert (overridden["code"], len(overridden["message"]) < 200) == (-32602, True)
    monkeypatch.setattr(values.difflib, "get_close_matches", lambda *_: pytest.fail("it is compared"))
    assert values.find_nearest(long, ["eth_call"]) is None


@pytest.mark.parametrize("identifier", [{}, [1], {"a": [1]}])
def test_an_id_is_no_object(solo: Any, identifier: Any) -> None:
    answer = post(solo.url, json.dumps({"jsonrpc": "2.0", "id": identifier, "method": "eth_chainId"}).encode())
    assert (answer["error"]["code"], answer["id"]) == (-32600, None)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b"1", b"null", b'"x"', b"[]", b"[1]", b"{}"])
def test_broken_bodies_get_an_error_object(solo: Any, body: bytes) -> None:
    answer = post(solo.url, body)
    first = answer[0] if isinstance(answer, list) else answer
    assert first["error"]["code"] in (-32700, -32600)


def test_batch_keeps_order_and_mixes_results_with_errors(solo: Any) -> None:
    bodies = [
        {"jsonrpc": "2.0", "id": "a", "method": "eth_chainId", "params": []},
        {"jsonrpc": "2.0", "id": 2, "method": "eth_getBalance", "params": []},
        {"jsonrpc": "2.0", "method": "eth_blockNumber"},
        {"jsonrpc": "2.0", "id": None, "method": "eth_syncing"},
        5,
        {"jsonrpc": "2.0", "id": 6, "method": "eth_blockNumber", "params": {"named": 1}},
    ]
    answers = post(solo.url, bodies)
    assert [answer["id"] for answer in answers] == ["a", 2, None, None, 6]
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32602, None, -32600, -32602]
    assert answers[2]["result"] is False


def test_oversized_batch_and_body_are_refused(solo: Any) -> None:
    one = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    assert "at most 200" in post(solo.url, [one] * 201)["error"]["message"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(solo.url, b" " * (5 << 20) + b"{}")
    assert caught.value.code == 413
    caught.value.close()


def test_log_range_is_capped(solo: Any) -> None:
    solo.chain.mine()
    wide = {"fromBlock": "0x0", "toBlock": hex(10**7), "address": NOBODY}
    assert call(solo.url, "eth_getLogs", wide)["result"] == []
    from chain.rpc.faults import RangeTooWide
    from chain.rpc.logs import MAX_RANGE_BLOCKS, find_logs_between, parse_query

    with pytest.raises(RangeTooWide):
        find_logs_between(None, parse_query({}, 0), 0, MAX_RANGE_BLOCKS)  # type: ignore[arg-type]


def test_cross_origin_requests_are_allowed(solo: Any) -> None:
    request = urllib.request.Request(solo.url, method="OPTIONS", headers={"Origin": "http://wallet.example"})
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "POST" in response.headers["Access-Control-Allow-Methods"]


def test_health_and_metrics_tell_the_height_and_a_silent_core(solo: Any) -> None:
    solo.chain.mine()
    call(solo.url, "eth_chainId")
    with urllib.request.urlopen(solo.url + "/health", timeout=10) as response:
        assert json.loads(response.read())["height"] == solo.chain.height
    with urllib.request.urlopen(solo.url + "/metrics", timeout=10) as response:
        text = response.read().decode()
    assert f"archipelago_chain_height {float(solo.chain.height)}" in text
    families = [each for each in text_string_to_metric_families(text) if not each.name.endswith("_created")]
    help_of = {each.name: each.documentation for each in families if "_abci_" not in each.name}
    assert help_of == {PREFIX + name: meaning for name, meaning in HELP.items()}
    assert all(len(meaning.split()) > 3 for meaning in HELP.values())
    spec = (Path(__file__).parents[2] / "chain/rpc/SPEC.md").read_text()
    assert [name for name in help_of if f"`{name}`" not in spec] == []
    assert 'archipelago_rpc_calls_total{method="eth_chainId",outcome="ok"}' in text
    solo.chain.is_silent = True
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(solo.url + "/health", timeout=10)
    assert caught.value.code == 503
    assert "CometBFT does not answer" in json.loads(caught.value.read())["reason"]
    caught.value.close()
    assert "CometBFT does not answer" in error_of(solo.url, "eth_sendRawTransaction", "0x01")["message"]
    assert call(solo.url, "eth_chainId")["result"] == hex(4242)


def test_pending_nonce_counts_the_queue_and_latest_does_not(solo: Any) -> None:
    solo.chain.is_automatic = False
    before = solo.client.nonce(solo.faucet.address)
    transaction = {
        "to": to_checksum_address(NOBODY),
        "value": 1,
        "gas": 21_000,
        "maxFeePerGas": 10**10,
        "maxPriorityFeePerGas": 0,
    }
    key = bytes([0x11]) * 32
    for offset in range(3):
        signed = Account.sign_transaction({**transaction, "nonce": before + offset, "chainId": 4242, "type": 2}, key)
        raw = "0x" + signed.raw_transaction.hex()
        assert call(solo.url, "eth_sendRawTransaction", raw)["result"] == "0x" + signed.hash.hex()
    assert error_of(solo.url, "eth_sendRawTransaction", raw)["message"] == "already known"
    assert solo.client.nonce(solo.faucet.address) == before
    assert solo.client.nonce(solo.faucet.address, is_pending=True) == before + 3
    solo.chain.mine()
    assert solo.client.nonce(solo.faucet.address) == before + 3


def test_refused_transaction_carries_the_reason_of_the_application(solo: Any) -> None:
    poor = Account.create()
    signed = poor.sign_transaction(
        {
            "to": to_checksum_address(NOBODY),
            "value": 1,
            "gas": 21_000,
            "maxFeePerGas": 10**10,
            "maxPriorityFeePerGas": 0,
            "nonce": 0,
        }
        | {"chainId": 4242, "type": 2}
    )
    with pytest.raises(RpcError, match=r"insufficient funds .* balance 0 wei, needed \d+ wei"):
        solo.client.request("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())


def test_a_set_code_transaction_is_refused_by_name(solo: Any) -> None:
    """EIP-7702: as eth-account signs it, and as a wallet asks for its gas."""
    account = Account.create()
    authorization = account.sign_authorization({"chainId": 4242, "address": NOBODY, "nonce": 1})
    fields = {"to": to_checksum_address(NOBODY), "value": 0, "gas": 100_000, "nonce": 0, "chainId": 4242, "type": 4}
    fees = {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 0}
    signed = account.sign_transaction({**fields, **fees, "authorizationList": [authorization]})
    error = error_of(solo.url, "eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())
    assert (error["code"], error["data"]["abciCode"]) == (-32000, 5)
    assert "transaction type 4 (EIP-7702, set code) is not supported; next: send type 2" in error["message"]
    for method in ("eth_call", "eth_estimateGas", "eth_createAccessList"):
        error = error_of(solo.url, method, {"to": NOBODY, "authorizationList": [{"address": NOBODY}]})
        assert (error["code"], "type 4 (EIP-7702, set code)" in error["message"]) == (-32602, True)
    assert call(solo.url, "eth_call", {"to": NOBODY, "authorizationList": []})["result"] == "0x"


def test_slow_reader_of_an_answer_holds_no_snapshot(solo: Any) -> None:
    body = json.dumps(
        [{"jsonrpc": "2.0", "id": i, "method": "eth_getBlockByNumber", "params": ["latest", True]} for i in range(200)]
    ).encode()
    host, port = solo.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert slow.recv(16).startswith(b"HTTP/1.1 200")
        solo.chain.mine()
        readers = solo.chain.store._env.readers()
        assert not [line for line in readers.splitlines()[1:] if line.split()[-1] != "-"][1:], readers
        assert call(solo.url, "eth_blockNumber")["result"] == hex(solo.chain.height)


def test_fee_history_has_one_base_fee_more_than_blocks(solo: Any) -> None:
    fresh_transfer(solo)
    history = call(solo.url, "eth_feeHistory", "0x4", "latest", [25, 75])["result"]
    assert len(history["gasUsedRatio"]) == len(history["reward"]) == len(history["baseFeePerGas"]) - 1
    assert history["reward"][-1] == ["0x0", "0x0"]
    assert 0 < history["gasUsedRatio"][-1] < 1


def test_page_takes_nothing_from_outside_and_overview_serves_it(solo: Any) -> None:
    with urllib.request.urlopen(solo.url + "/", timeout=10) as response:
        page = response.read().decode()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    named = re.findall(r'(?:src|href)="([^"]*)"', page)
    files = [each for each in named if not each.startswith(("data:", "api/"))]
    assert sorted(files) == ["page/main.js", "page/style.css"]
    for name in (*files, "page/dom.js", "page/read.js"):
        with urllib.request.urlopen(f"{solo.url}/{name}", timeout=10) as response:
            text = response.read().decode()
            assert "script-src 'self'" in response.headers["Content-Security-Policy"]
        assert [word for word in ("@import", "https://", "url(") if word in text] == []
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(solo.url + "/page/..%2Fserver.py", timeout=10)
    assert missing.value.code == 404
    missing.value.close()
    with urllib.request.urlopen(solo.url + "/api/overview", timeout=10) as response:
        overview = json.loads(response.read())
    assert overview["chain"]["height"] == solo.chain.height
    asked = urllib.request.Request(solo.url + "/api/overview", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked, timeout=10) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert set(json.loads(gzip.decompress(response.read()))) == set(overview)
    assert [tier["name"] for tier in overview["storage"]["tiers"]] == ["temporary", "hot", "cold"]
    assert overview["run"] is None or overview["run"]["info"]["run"] >= 1
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(solo.url + "/api/overview?run=x", timeout=10)
    assert caught.value.code == 400
    caught.value.close()


def get(url: str) -> tuple[int, Any]:
    """Return status and JSON."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.load(e)


def test_reads_with_arguments_as_text(solo: Any) -> None:
    _, answer = get(f"{solo.url}/api/read/Storage/quote?tier=1&sizeBytes=1000000&blocks=0x10")
    assert answer["answer"] == str(solo.client.storage.quote(1, 1_000_000, 16))
    assert get(f"{solo.url}/api/read/Storage/signedHeights?blobs=0x{'11' * 32},0x{'22' * 32}")[1]["answer"] == [0, 0]
    for path, part in (
        ("Storage/quote?tier=256&sizeBytes=1&blocks=1", "tier is 256, expected 0 .. 2^8 - 1"),
        ("Storage/quote?tier=-1&sizeBytes=1&blocks=1", "tier is '-1', expected a number"),
        ("Storage/quote?tiers=1", "no argument 'tiers', expected tier, sizeBytes, blocks"),
        ("Storage/node?operator=0x12", "operator has 1 bytes, expected 20"),
        ("Storage/blob?id=zz", "expected hex digits after 0x"),
        ("Storage/certify", "has no view 'certify'"),
        ("Stake/validators", "expected one of Training, Storage, Staking"),
    ):
        status, answer = get(f"{solo.url}/api/read/{path}")
        assert (status, part in answer["error"]) == (400, True), (path, answer)


def test_block_and_transaction_as_a_person_reads_them(solo: Any) -> None:
    sent = solo.faucet.send("Staking", "bond", value=5)
    _, block = get(f"{solo.url}/api/blocks/{sent.height}")
    shown = next(each for each in block["transactions"] if each["hash"] == "0x" + bytes(sent.transaction_hash).hex())
    assert shown["call"] == {"kind": "system", "contract": "Staking", "function": "bond", "arguments": {}}
    assert (shown["value"], shown["status"], shown["from"]) == ("5", 1, solo.faucet.address.lower())
    _, whole = get(f"{solo.url}/api/transactions/{shown['hash']}")
    assert [(each["event"], each["fields"]["amount"]) for each in whole["events"]] == [("Bonded", "5")]
    _, overview = get(f"{solo.url}/api/overview")
    assert overview["transactions"][0]["hash"] == shown["hash"]
    assert get(f"{solo.url}/api/blocks/999999999")[0] == 404
    assert get(f"{solo.url}/api/transactions/0x{'99' * 32}")[0] == 404
    assert get(f"{solo.url}/api/transactions/0x12")[0] == get(f"{solo.url}/api/blocks/x")[0] == 400


def test_events_of_timers_belong_to_their_block(solo: Any) -> None:
    key = Ed25519PrivateKey.generate()
    proof = key.sign(key_proof_message(solo.client.genesis_hash(), bytes.fromhex(solo.faucet.address[2:])))
    start = solo.chain.height + 1  # the block of the registration itself may end an epoch
    solo.faucet.send("Storage", "registerNode", "http://127.0.0.1:1", key.public_key().public_bytes_raw(), proof, 10**9)
    solo.chain.mine(EPOCH_BLOCKS)
    found = solo.client.events("Storage", ["EpochStarted"], from_height=start, to_height=solo.chain.height)
    assert len(found) == 1
    block = call(solo.url, "eth_getBlockByNumber", hex(found[0].height), False)["result"]
    assert found[0].transaction_hash.hex() == block["hash"][2:]
    assert solo.client.storage.committee(found[0].fields["epoch"])[0].operator == solo.faucet.address
    by_hash = call(solo.url, "eth_getLogs", {"blockHash": block["hash"]})["result"]
    assert [log["logIndex"] for log in by_hash] == [hex(index) for index in range(len(by_hash))]


def test_overview_shows_a_run_as_its_views_do(solo: Any) -> None:
    numbers = {"num_fragments": 4, "overlap": 1, "local_steps": 40, "num_rounds": 8, "min_members": 1}
    numbers |= {"max_members": 8, "round_blocks": 120, "grace_blocks": 10, "reveal_blocks": 10, "attest_blocks": 30}
    numbers |= {"dispute_blocks": 60, "recover_blocks": 400, "lock_blocks": 100, "checkpoint_interval": 8}
    numbers |= {"num_checkpoint_parts": 1, "lease_blocks": 2_000, "reward_per_update": 10**16, "member_bond": 10**18}
    params = RunParams(**numbers, is_allow_listed=True, is_sealed=False)
    recipe = b'name = "a test"\n'
    outcome = solo.faucet.send("Training", "createRun", params, recipe, b"\x05" * 32, value=10**18)
    run = outcome.event("RunCreated").fields["run"]
    info = solo.client.training.run(run)
    assert (info.state, info.owner, info.params) == (RunState.CREATED, solo.faucet.address, params)
    assert solo.client.training.recipe(run) == recipe
    with urllib.request.urlopen(f"{solo.url}/api/read/Training/recipe?run={run}", timeout=10) as response:
        assert json.loads(response.read())["answer"] == "0x" + recipe.hex(), "the page reads the losses' unit from it"
    with urllib.request.urlopen(f"{solo.url}/api/overview?run={run}", timeout=10) as response:
        shown = json.loads(response.read())
    assert shown["runs"][0]["state"] == "CREATED"
    assert shown["run"]["info"]["genesisRoot"] == "0x" + "05" * 32
    assert shown["run"]["info"]["escrow"] == str(10**18)
    assert shown["run"]["info"]["params"]["numFragments"] == 4
    assert shown["run"]["members"] == shown["run"]["rounds"] == shown["run"]["evaluations"] == []


def test_a_replayed_transaction_leaves_the_first_receipt(solo: Any) -> None:
    """Case 50: the same bytes again are refused, in the core's cache or by the nonce, and change nothing."""
    raw = solo.faucet.sign("Staking", "bond", value=1)
    sent = "0x" + solo.faucet.broadcast(raw).hex()
    first = call(solo.url, "eth_getTransactionReceipt", sent)["result"]
    assert error_of(solo.url, "eth_sendRawTransaction", "0x" + raw.hex())["message"] == "already known"
    solo.chain.seen.clear()  # as after a restart of the core
    assert "nonce too low" in error_of(solo.url, "eth_sendRawTransaction", "0x" + raw.hex())["message"]
    solo.chain.mine()
    assert call(solo.url, "eth_getTransactionReceipt", sent)["result"] == first
