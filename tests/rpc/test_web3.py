"""web3.py as a user writes it, against the solo chain: contract objects, transactions, events, errors by name."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from web3 import Web3
from web3.exceptions import ContractCustomError, TransactionNotFound, Web3RPCError
from web3.middleware import SignAndSendRawMiddlewareBuilder

from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.encoding import decode_error

WEI = 10**18


@pytest.fixture
def w3(solo: Any) -> Web3:
    w3 = Web3(Web3.HTTPProvider(solo.url))
    account = Account.create()
    solo.faucet.transfer(account.address, 100 * WEI)
    w3.middleware_onion.inject(SignAndSendRawMiddlewareBuilder.build(account), layer=0)
    w3.eth.default_account = account.address
    return w3


@pytest.fixture
def staking(w3: Web3) -> Any:
    abi = files("contracts").joinpath("abi/Staking.json").read_text()
    return w3.eth.contract(address=w3.to_checksum_address(ADDRESSES["Staking"]), abi=abi)


def test_node_introduces_itself(w3: Web3) -> None:
    assert w3.is_connected()
    assert re.fullmatch(r"archipelago/v[\w.]+/\w+-\w+/python3[\w.]+", w3.client_version), "in go-ethereum's four parts"
    assert version("archipelago") in w3.client_version
    assert w3.eth.chain_id == int(w3.net.version) == 4242
    assert w3.eth.syncing is False
    assert list(w3.eth.accounts) == []
    assert w3.net.listening
    assert w3.eth.gas_price == 10**9


def test_transfer_moves_money_and_burns_the_fee(w3: Web3) -> None:
    to = Account.create().address
    assert w3.eth.default_account
    before = w3.eth.get_balance(w3.eth.default_account)
    receipt = w3.eth.wait_for_transaction_receipt(w3.eth.send_transaction({"to": to, "value": 3 * WEI}), timeout=20)
    assert receipt["status"] == 1
    assert w3.eth.get_balance(to) == 3 * WEI
    fee = receipt["gasUsed"] * receipt["effectiveGasPrice"]
    assert w3.eth.get_balance(w3.eth.default_account) == before - 3 * WEI - fee


def test_contract_call_transact_wait_and_events(w3: Web3, staking: Any) -> None:
    sender = w3.eth.default_account
    assert staking.functions.bondOf(sender).call() == 0
    log_filter = staking.events.Bonded.create_filter(from_block="latest", argument_filters={"owner": sender})
    sent = staking.functions.bond().transact({"value": 2 * WEI})
    receipt = w3.eth.wait_for_transaction_receipt(sent, timeout=20)
    assert receipt["status"] == 1
    assert staking.functions.bondOf(sender).call() == 2 * WEI
    (event,) = staking.events.Bonded().process_receipt(receipt)
    assert event["args"]["owner"] == sender
    assert event["args"]["amount"] == 2 * WEI
    assert [dict(each["args"]) for each in log_filter.get_new_entries()] == [{"owner": sender, "amount": 2 * WEI}]
    assert log_filter.get_new_entries() == []
    found = staking.events.Bonded.get_logs(from_block=receipt["blockNumber"], argument_filters={"owner": sender})
    assert [each["transactionHash"] for each in found] == [sent]
    assert staking.events.Bonded.get_logs(from_block=0, argument_filters={"owner": Account.create().address}) == []


def test_custom_error_by_name_with_both_values(w3: Web3, staking: Any) -> None:
    with pytest.raises(ContractCustomError) as caught:
        staking.functions.unbond(5).call()
    data = bytes.fromhex(caught.value.data[2:])
    errors = {w3.keccak(text=signature_of(entry))[:4]: entry for entry in staking.abi if entry["type"] == "error"}
    error = errors[data[:4]]
    values = w3.codec.decode([parameter["type"] for parameter in error["inputs"]], data[4:])
    named = {parameter["name"]: value for parameter, value in zip(error["inputs"], values, strict=True)}
    assert (error["name"], named) == ("InsufficientBond", {"expected": 5, "got": 0})
    with pytest.raises(ContractCustomError):
        staking.functions.unbond(5).transact()
    known = decode_error(data)
    assert known is not None
    assert known.text.startswith("InsufficientBond: expected 5 wei, got 0 wei")


def test_the_specs_lines_read_a_custom_error_of_any_contract(w3: Web3, staking: Any) -> None:
    contracts = Path(__file__).resolve().parents[2] / "contracts"
    block = next(each for each in (contracts / "SPEC.md").read_text().split("```python\n") if "def read_error" in each)
    names: dict[str, Any] = {}
    exec(block.partition("```")[0], names)
    artifact = json.loads((contracts / "examples/Bounty.json").read_text())
    sent = w3.eth.contract(abi=artifact["abi"], bytecode=artifact["bytecode"]).constructor().transact()
    made = w3.eth.wait_for_transaction_receipt(sent, timeout=20)["contractAddress"]
    bounty = w3.eth.contract(address=made, abi=artifact["abi"])
    offer = bounty.functions.offer(10_000, 0, Account.create().address, 10**9)
    for call, expected in (
        (lambda: offer.call({"value": 1}), ("UnknownRun", (10_000,))),
        (lambda: offer.call(), ("NothingOffered", ())),
        (lambda: staking.functions.unbond(5).call(), ("InsufficientBond", (5, 0))),
    ):
        with pytest.raises(ContractCustomError) as caught:
            call()
        assert names["read_error"](w3, caught.value.data, bounty.abi, staking.abi) == expected
    assert names["read_error"](w3, "0x01020304", bounty.abi, staking.abi) is None


def signature_of(entry: Any) -> str:
    return f"{entry['name']}({','.join(parameter['type'] for parameter in entry['inputs'])})"


def test_failed_transaction_has_receipt_used_nonce_and_fee(w3: Web3, staking: Any) -> None:
    """Case 49."""
    sender = w3.eth.default_account
    nonce, balance = w3.eth.get_transaction_count(sender), w3.eth.get_balance(sender)
    sent = staking.functions.unbond(5).transact({"gas": 200_000})
    receipt = w3.eth.wait_for_transaction_receipt(sent, timeout=20)
    assert receipt["status"] == 0
    assert receipt["logs"] == []
    assert w3.eth.get_transaction_count(sender) == nonce + 1
    assert w3.eth.get_balance(sender) == balance - receipt["gasUsed"] * receipt["effectiveGasPrice"]
    assert w3.eth.get_transaction(sent)["blockNumber"] == receipt["blockNumber"]


def test_block_filter_tells_each_new_block_once(w3: Web3, solo: Any) -> None:
    block_filter = w3.eth.filter("latest")
    solo.chain.mine(3)
    hashes = block_filter.get_new_entries()
    assert hashes == [
        w3.eth.get_block(height)["hash"] for height in range(solo.chain.height - 2, solo.chain.height + 1)
    ]
    assert block_filter.get_new_entries() == []
    assert w3.eth.uninstall_filter(block_filter.filter_id)
    with pytest.raises(Web3RPCError, match="filter not found"):
        block_filter.get_new_entries()


def test_unknown_transaction_is_not_found(w3: Web3) -> None:
    for ask in (w3.eth.get_transaction, w3.eth.get_transaction_receipt):
        with pytest.raises(TransactionNotFound):
            ask("0x" + "cd" * 32)


def test_legacy_transaction_lands(w3: Web3, solo: Any) -> None:
    receipt = w3.eth.wait_for_transaction_receipt(
        w3.eth.send_transaction({"to": Account.create().address, "value": 1, "gasPrice": 2 * 10**9, "gas": 21_000}),
        timeout=20,
    )
    assert receipt["type"] == 0
    assert receipt["effectiveGasPrice"] == 2 * 10**9
    assert w3.eth.get_transaction(receipt["transactionHash"])["v"] in (4242 * 2 + 35, 4242 * 2 + 36)


def test_batch_of_reads(w3: Web3) -> None:
    with w3.batch_requests() as batch:
        batch.add(w3.eth.get_block("latest"))
        batch.add(w3.eth.get_block(0))
        batch.add(w3.eth.get_balance(ADDRESSES["Staking"]))  # type: ignore[arg-type]
        newest, genesis, _ = batch.execute()
    assert newest["number"] > 0
    assert genesis["number"] == 0


def test_fee_history_and_storage_and_code(w3: Web3) -> None:
    address = w3.to_checksum_address(ADDRESSES["Training"])
    assert w3.eth.get_code(address) == b"\xfe"
    assert w3.eth.get_storage_at(address, 0) == bytes(32)
    history = w3.eth.fee_history(2, "latest", [50.0])
    assert history["baseFeePerGas"][-1] == 10**9
    assert w3.eth.max_priority_fee == 0


def test_what_the_readme_shows_runs_as_it_is_printed(
    solo: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From any folder; states and refusals come in words; the run asked for is one that no other test has made."""
    monkeypatch.chdir(tmp_path)
    root = Path(__file__).parents[2]
    blocks = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.S)
    block = next(text for text in blocks if "http://127.0.0.1:8545" in text)
    source = block.replace("http://127.0.0.1:8545", solo.url)
    assert ".run(1)" in source
    source = source.replace(".run(1)", ".run(9999)").replace(".updates(1, 0)", ".updates(9999, 0)")
    exec(compile(source, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("NONE ")
    assert printed[-1].startswith("UnknownRun: run 9999; next: ")
