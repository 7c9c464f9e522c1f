"""Users' contracts over JSON-RPC: web3.py and ethers deploy and play; proofs check; shapes are those of the schemas."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from web3 import Web3
from web3.exceptions import ContractCustomError
from web3.logs import DISCARD
from web3.middleware import SignAndSendRawMiddlewareBuilder

sys.path.insert(0, str(Path(__file__).parent))

from schemas import FULL_BLOCK, LOG, PROOF, RECEIPT, TRANSACTION, check

from chain.abci.recent_trees import MAX_TREES
from chain.core import accounts
from chain.core.evm.layout import slot_key
from chain.core.smt import verify
from chain.rpc.proofs import decode_proof
from contracts.bindings.client import ChainClient
from contracts.bindings.sender import Sender

WEI = 10**18
TRAINING = "0x0000000000000000000000000000000000001000"
BOUNTY = json.loads((Path(__file__).resolve().parents[2] / "contracts/examples/Bounty.json").read_text())
COUNTER = "0x600b600c600039600b6000f35f5460010180805f55a0" + "00"
"""Initcode: counts its calls in slot 0; each call logs nothing of use."""
NUM_BLOCKS = 3


@pytest.fixture
def account() -> Any:
    return Account.create()


@pytest.fixture
def w3(solo: Any, account: Any) -> Web3:
    return _connect(solo.url, solo.faucet, account)


def _connect(url: str, faucet: Sender, account: Any) -> Web3:
    w3 = Web3(Web3.HTTPProvider(url))
    faucet.transfer(account.address, 100 * WEI)
    w3.middleware_onion.inject(SignAndSendRawMiddlewareBuilder.build(account), layer=0)
    w3.eth.default_account = account.address
    return w3


def _wait(w3: Web3, sent: Any, seconds: float = 20) -> Any:
    receipt = w3.eth.wait_for_transaction_receipt(sent, timeout=seconds)
    assert receipt["status"] == 1
    return receipt


def _play_bounty(w3: Web3, run: int, mine: Callable[[int], None], seconds: float) -> None:
    """Deploy, offer, be refused, wait for the deadline, have the money back; estimates by the node all along."""
    factory = w3.eth.contract(abi=BOUNTY["abi"], bytecode=BOUNTY["bytecode"])
    receipt = _wait(w3, factory.constructor().transact(), seconds)
    assert w3.eth.get_code(receipt["contractAddress"]).hex() == BOUNTY["deployedBytecode"][2:]
    bounty = w3.eth.contract(address=receipt["contractAddress"], abi=BOUNTY["abi"])
    worker = Account.create().address
    with pytest.raises(ContractCustomError) as caught:
        bounty.functions.offer(10_000, 0, worker, 10**9).transact({"value": WEI})
    assert caught.value.data.startswith("0x" + w3.keccak(text="UnknownRun(uint64)")[:4].hex())
    deadline = w3.eth.block_number + NUM_BLOCKS
    sent = bounty.functions.offer(run, 0, worker, deadline + NUM_BLOCKS).transact({"value": WEI})
    (event,) = bounty.events.Offered().process_receipt(_wait(w3, sent, seconds))
    assert (event["args"]["worker"], event["args"]["amount"]) == (worker, WEI)
    offer = event["args"]["offer"]
    assert bounty.functions.offers(offer).call()[5] == w3.eth.get_balance(bounty.address) == WEI
    assert bounty.functions.isEarned(offer).call() is False
    with pytest.raises(ContractCustomError):
        bounty.functions.claim(offer).call()
    with pytest.raises(ContractCustomError):
        bounty.functions.refund(offer).call()
    mine(deadline + NUM_BLOCKS + 2)
    receipt = _wait(w3, bounty.functions.refund(offer).transact(), seconds)
    assert bounty.events.Refunded().process_receipt(receipt)[0]["args"]["amount"] == WEI
    assert w3.eth.get_balance(bounty.address) == 0


def _create_run(w3: Web3, seconds: float = 20) -> int:
    abi = files("contracts").joinpath("abi/Training.json").read_text()
    training = w3.eth.contract(address=w3.to_checksum_address(TRAINING), abi=abi)
    params = (4, 1, 20, 100, 1, 16, 120, 10, 10, 30, 60, 200, 20, 8, 2, 2_000, False, False, 0, 0)
    sent = training.functions.createRun(params, b"F = 4\n", b"\x01" * 32).transact({"value": WEI})
    (event,) = training.events.RunCreated().process_receipt(_wait(w3, sent, seconds), errors=DISCARD)
    return int(event["args"]["run"])


def test_web3_deploys_and_plays_the_bounty(w3: Web3, solo: Any) -> None:
    _play_bounty(w3, _create_run(w3), lambda height: solo.chain.mine(height - solo.chain.height), 20)


@pytest.mark.integration
def test_web3_plays_the_bounty_on_a_real_validator(devnet: Any, account: Any) -> None:
    with ChainClient([devnet.url]) as client:
        w3 = _connect(devnet.url, Sender(client, b"\x11" * 32), account)

        def wait(height: int) -> None:
            end = time.monotonic() + 60
            while w3.eth.block_number < height:
                assert time.monotonic() < end, f"no block {height} within a minute"
                time.sleep(0.05)

        _play_bounty(w3, _create_run(w3, 60), wait, 60)


def test_views_of_a_creation_have_the_shapes_of_the_schemas(w3: Web3, solo: Any) -> None:
    receipt = _wait(
        w3,
        w3.eth.send_transaction(
            {"data": COUNTER, "accessList": [{"address": TRAINING, "storageKeys": ["0x" + "01" * 32]}]}
        ),
    )
    contract = receipt["contractAddress"]
    called = _wait(w3, w3.eth.send_transaction({"to": contract}))
    ask = _asker(solo.url)
    block = ask("eth_getBlockByNumber", hex(receipt["blockNumber"]), True)
    check(block, FULL_BLOCK)
    (transaction,) = block["transactions"]
    check(transaction, TRANSACTION)
    assert transaction["accessList"] == [{"address": TRAINING, "storageKeys": ["0x" + "01" * 32]}]
    assert transaction["to"] is None
    shown = ask("eth_getTransactionReceipt", "0x" + receipt["transactionHash"].hex())
    check(shown, RECEIPT)
    shown = ask("eth_getTransactionReceipt", "0x" + called["transactionHash"].hex())
    check(shown, RECEIPT)
    check(shown["logs"][0], LOG)
    assert shown["logs"] == ask("eth_getLogs", {"address": contract, "fromBlock": hex(called["blockNumber"])})
    assert ask("eth_getStorageAt", contract, "0x0", "latest") == "0x" + "00" * 31 + "01"
    assert ask("eth_getStorageAt", contract, "0x" + "00" * 32, "latest") == "0x" + "00" * 31 + "01"


def test_access_list_of_a_call(w3: Web3, solo: Any) -> None:
    contract = _wait(w3, w3.eth.send_transaction({"data": COUNTER}))["contractAddress"]
    ask = _asker(solo.url)
    request = {"to": contract, "from": w3.eth.default_account}
    answer = ask("eth_createAccessList", request)
    assert answer["accessList"] == [{"address": contract.lower(), "storageKeys": ["0x" + "00" * 32]}]
    listed = _wait(w3, w3.eth.send_transaction({"to": contract, "accessList": answer["accessList"]}))
    assert listed["gasUsed"] <= int(answer["gasUsed"], 16)
    assert ask("eth_createAccessList", {"to": TRAINING, "data": "0x12345678"})["error"]


def test_proofs_check_against_the_state_root(w3: Web3, solo: Any) -> None:
    contract = _wait(w3, w3.eth.send_transaction({"data": COUNTER, "value": 0}))["contractAddress"]
    _wait(w3, w3.eth.send_transaction({"to": contract}))
    ask = _asker(solo.url)
    proven = ask("eth_getProof", contract, ["0x0", "0x7"], "latest")
    check(proven, PROOF)
    root = bytes.fromhex(ask("eth_getBlockByNumber", proven["blockNumber"], False)["stateRoot"][2:])
    assert proven["storageHash"] == "0x" + root.hex()
    address = bytes.fromhex(contract[2:])
    value, proof = decode_proof(proven["accountProof"])
    verify(root, accounts.ACCOUNT_PREFIX + address, value, proof)
    assert value is not None
    assert value[40:] == w3.keccak(w3.eth.get_code(contract)) == bytes.fromhex(proven["codeHash"][2:])
    for slot, wanted in ((0, b"\x01"), (7, None)):
        value, proof = decode_proof(proven["storageProof"][bool(slot)]["proof"])
        assert value == wanted
        verify(root, slot_key(address, slot), value, proof)
    absent = ask("eth_getProof", "0x" + "ab" * 20, [], "latest")
    value, proof = decode_proof(absent["accountProof"])
    assert (value, absent["balance"], absent["nonce"]) == (None, "0x0", "0x0")
    verify(bytes.fromhex(absent["storageHash"][2:]), accounts.ACCOUNT_PREFIX + b"\xab" * 20, None, proof)


def test_proofs_of_a_block_that_was_just_read(w3: Web3, solo: Any) -> None:
    contract = _wait(w3, w3.eth.send_transaction({"data": COUNTER, "value": 0}))["contractAddress"]
    places = [_wait(w3, w3.eth.send_transaction({"to": contract}))["blockNumber"] for _ in range(3)]
    ask = _asker(solo.url)
    for expected, height in enumerate(places, start=1):
        solo.chain.mine(2)
        named = {"blockHash": ask("eth_getBlockByNumber", hex(height), False)["hash"]}
        for block in (hex(height), named):
            proven = ask("eth_getProof", contract, ["0x0"], block)
            root = bytes.fromhex(ask("eth_getBlockByNumber", hex(height), False)["stateRoot"][2:])
            value, proof = decode_proof(proven["storageProof"][0]["proof"])
            assert (proven["blockNumber"], value) == (hex(height), bytes([expected]))
            verify(root, slot_key(bytes.fromhex(contract[2:]), 0), value, proof)
    solo.chain.mine(MAX_TREES + 1)
    gone = _answer(solo.url, "eth_getProof", contract, ["0x0"], hex(places[0]))["error"]
    assert gone["code"] == -32000
    assert "not kept" in gone["message"]
    newest = int(ask("eth_blockNumber"), 16)
    to_come = _answer(solo.url, "eth_getProof", contract, [], hex(newest + 9))["error"]
    assert f"block {newest + 9} is not there yet" in to_come["message"]
    assert ask("eth_getProof", contract, [hex(slot) for slot in range(256)], "latest")["blockNumber"] == hex(newest)


def test_failures_are_told_in_words(w3: Web3, solo: Any) -> None:
    answer = _answer(solo.url, "eth_call", {"data": "0x" + "5b5f56", "gas": "0x20000"})
    assert answer["error"]["code"] == -32000
    assert "out of gas" in answer["error"]["message"]
    answer = _answer(solo.url, "eth_estimateGas", {"data": "0xfe"})
    assert "invalid opcode" in answer["error"]["message"]
    answer = _answer(solo.url, "eth_call", {"data": "0x5f5ffd"})
    assert answer["error"] == {"code": 3, "message": "execution reverted", "data": "0x"}


ETHERS = """
const { JsonRpcProvider, Wallet, ContractFactory } = require(process.argv[1]);
const [url, key, artifactPath] = process.argv.slice(2);
const artifact = JSON.parse(require("fs").readFileSync(artifactPath, "utf8"));
(async () => {
  const provider = new JsonRpcProvider(url, undefined, { batchMaxCount: 20, cacheTimeout: -1 });
  provider.pollingInterval = 50;
  const wallet = new Wallet(key, provider);
  const factory = new ContractFactory(artifact.abi, artifact.bytecode, wallet);
  const bounty = await (await factory.deploy()).waitForDeployment();
  const out = { network: (await provider.getNetwork()).chainId.toString() };
  out.offers = (await bounty.numOffers()).toString();
  const offer = [77777n, 0n, wallet.address, 10n ** 9n, { value: 1n }];
  try { await bounty.offer.staticCall(...offer); } catch (e) { out.error = e.revert.name; }
  try { await bounty.offer(...offer); } catch (e) { out.again = bounty.interface.parseError(e.data).name; }
  const sent = await wallet.sendTransaction({ to: wallet.address, value: 5n });
  const receipt = await sent.wait();
  out.status = receipt.status;
  out.fee = (await provider.getFeeData()).maxFeePerGas.toString();
  out.code = await provider.getCode(await bounty.getAddress());
  out.block = (await provider.getBlock("latest", true)).prefetchedTransactions.length;
  process.stdout.write(JSON.stringify(out));
  provider.destroy();
})().catch((e) => { console.error(e); process.exit(1); });
"""


def test_ethers_session(solo: Any, account: Any, npm_package: Callable[[str], tuple[str, Path]]) -> None:
    node, folder = npm_package("ethers")
    solo.faucet.transfer(account.address, WEI)
    artifact = Path(__file__).resolve().parents[2] / "contracts/examples/Bounty.json"
    command = [node, "-e", ETHERS, str(folder), solo.url, account.key.hex(), str(artifact)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert (out["network"], out["offers"], out["error"], out["status"]) == ("4242", "0", "UnknownRun", 1)
    assert out["again"] == "UnknownRun"
    assert out["code"] == BOUNTY["deployedBytecode"]
    assert int(out["fee"]) >= 10**9
    assert out["block"] == 1


def _answer(url: str, method: str, *params: Any) -> Any:
    return Web3.HTTPProvider(url).make_request(method, list(params))  # type: ignore[arg-type]


def _asker(url: str) -> Callable[..., Any]:
    def ask(method: str, *params: Any) -> Any:
        answer = _answer(url, method, *params)
        assert "error" not in answer, answer
        return answer["result"]

    return ask
