"""The application, called as CometBFT calls it, without CometBFT."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgpack
import pytest
from abci_driver import Driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.abci import abci_pb2 as pb
from chain.abci import verdicts as module
from chain.abci.application import ChainApplication
from chain.abci.errors import OutOfOrder, UnsupportedAbciVersion
from chain.abci.evm_work import MAX_CONTRACTS, EvmWork
from chain.abci.verdicts import VerdictCache
from chain.core import transactions
from chain.core.errors import BlockGasExhausted, UnsupportedTransactionType, WrongChainId
from chain.core.genesis import process_genesis
from chain.core.records import Transaction
from chain.core.smt import EMPTY, Proof, verify
from chain.core.types import Address
from chain.store import Store

COUNTER = b"\x77" * 20
MakeApplication = Callable[[], ChainApplication]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "app")
    yield opened
    opened.close()


@pytest.fixture
def driver(store: Store, contracts: Any, app_state: dict[str, Any]) -> Driver:
    started = Driver(ChainApplication(store, contracts, process_genesis), app_state)
    started.init_chain()
    return started


def test_genesis_is_block_0(driver: Driver, store: Store) -> None:
    snapshot = store.committed
    block = snapshot.block(0)
    assert block is not None
    assert (snapshot.height, snapshot.app_hash) == (0, driver.app_hash)
    assert block.app_hash == driver.app_hash
    assert block.parent_hash == bytes(32)
    assert len(driver.app_hash) == 32
    info = driver.application.process_info(pb.RequestInfo())
    assert (info.last_block_height, info.last_block_app_hash) == (0, b"")
    assert (info.version, info.app_version) == (version("archipelago"), 1)
    driver.init_chain()
    assert store.committed.app_hash == driver.app_hash


def test_block_is_executed_committed_and_remembered(driver: Driver, store: Store, alice: Any) -> None:
    raws = [alice.raw(0), alice.raw(1, to=COUNTER, data=b"\x00", gas=90_000), alice.raw(9)]
    response = driver.finalize(raws)
    assert [result.code for result in response.tx_results] == [0, 1, 17]
    assert response.tx_results[1].data == b"\xde\xad"
    assert response.tx_results[1].gas_used == 26_004
    assert response.tx_results[2].log == "nonce too high: nonce 9, expected 2; next: send nonce 2 first"
    assert store.committed.height == 0, "FinalizeBlock writes nothing"
    driver.app_hash = response.app_hash
    driver.commit()
    snapshot = store.committed
    block, genesis_block = snapshot.block(1), snapshot.block(0)
    assert block is not None
    assert genesis_block is not None
    assert block.parent_hash == genesis_block.hash
    assert (snapshot.height, snapshot.app_hash, block.app_hash) == (1, driver.app_hash, driver.app_hash)
    assert [receipt.status for receipt in snapshot.receipts(1)] == [1, 0]
    assert len(block.transactions) == 2
    info = driver.application.process_info(pb.RequestInfo())
    assert (info.last_block_height, info.last_block_app_hash) == (1, driver.app_hash)


def test_a_type_that_is_not_supported_is_refused_wherever_it_comes(driver: Driver, alice: Any, set_code: bytes) -> None:
    """Told to its sender; in a block, where a stranger's proposal may put it, a no-op that leaves the nonce."""
    checked = driver.check(set_code)
    assert checked.code == UnsupportedTransactionType.code
    assert checked.log.startswith("transaction type 4 (EIP-7702, set code) is not supported; next: send type 2")
    assert driver.application.get_checker().check(set_code)[0] == checked.code
    assert driver.prepare([set_code]) == []
    proposal = pb.RequestProcessProposal(txs=[set_code, alice.raw(0)], height=1)
    answer = driver.application.process_process_proposal(proposal)
    assert answer.status == pb.ResponseProcessProposal.ACCEPT
    results = driver.block([set_code, alice.raw(0)]).tx_results
    assert [result.code for result in results] == [checked.code, 0]
    assert results[0].log == checked.log


def test_empty_blocks_leave_the_app_hash(driver: Driver) -> None:
    before = driver.app_hash
    for _ in range(3):
        assert driver.block([]).app_hash == before


def test_block_finalized_twice_after_a_crash_gives_the_same(
    driver: Driver, store: Store, contracts: Any, alice: Any
) -> None:
    driver.block([alice.raw(0)])
    first = driver.finalize([alice.raw(1)])
    again = Driver(ChainApplication(store, contracts, process_genesis), driver.app_state)
    again.height = 1
    assert again.finalize([alice.raw(1)]) == first
    assert again.finalize([alice.raw(1)]) == first


def test_invalid_order_of_calls(driver: Driver, store: Store, contracts: Any, alice: Any) -> None:
    with pytest.raises(OutOfOrder, match="Commit without FinalizeBlock"):
        driver.commit()
    driver.height = 4
    with pytest.raises(OutOfOrder, match="height 5, expected 1"):
        driver.finalize([])
    store.wipe()
    fresh = Driver(ChainApplication(store, contracts, process_genesis), driver.app_state)
    with pytest.raises(OutOfOrder, match="before InitChain"):
        fresh.prepare([alice.raw(0)])
    refused = fresh.check(alice.raw(0))  # a client's doing, while the node fetches its state: no reason to stop
    assert (refused.code, refused.log) == (2, "this node has no state yet: send to another, or wait")


def test_queries_are_answered_before_there_is_a_state(store: Store, contracts: Any, alice: Any) -> None:
    """A node that fetches its state, or waits for genesis, is asked by strangers, too."""
    driver = Driver(ChainApplication(store, contracts, process_genesis), {})
    for height in (0, 1, -1):
        request = pb.RequestQuery(path="/proofs", data=msgpack.packb([b"a/key"]), height=height)
        answer = driver.application.process_query(request)
        assert answer.code != 0
        assert "no state yet" in answer.log
    assert driver.query("/pending_nonce", alice.address).value == bytes(8)
    assert driver.query("/queue").value == bytes(8)
    assert driver.query("/state", b"a/key", prove=True).value == b""
    assert driver.query("/nothing").code != 0


def test_invalid_abci_version_names_both(driver: Driver) -> None:
    """Case 33: another protocol is refused; golden frames of the real node are in ``test_golden_frames``."""
    driver.application.process_info(pb.RequestInfo(abci_version="2.0.0", version="0.38.25"))
    with pytest.raises(
        UnsupportedAbciVersion, match=r"CometBFT 0\.34\.1 speaks ABCI 0\.17\.0, this application 2\.0\.0"
    ):
        driver.application.process_info(pb.RequestInfo(abci_version="0.17.0", version="0.34.1"))


def test_damaged_database_is_noticed(driver: Driver, store: Store, contracts: Any) -> None:
    with store._env.begin(write=True, db=store._databases[b"state"]) as transaction:
        transaction.put(b"a/" + b"\x05" * 20, b"\x00" * 40)
    store._reading.abort()
    store._begin_reading()
    with pytest.raises(OutOfOrder, match="the database is damaged"):
        ChainApplication(store, contracts, process_genesis)


def test_check_tx_says_why(driver: Driver, alice: Any) -> None:
    accepted = driver.check(alice.raw(0))
    assert (accepted.code, accepted.gas_wanted) == (0, 21_000)
    for raw, code, log in (
        (b"\x02\x01", 3, "malformed"),
        (alice.raw(0, chainId=5), 8, "chain id 5, this is chain id 4242"),
        (alice.raw(2_000), 17, "at most 1024 ahead"),
        (alice.raw(3, gas=100), 13, "below the intrinsic gas 21000"),
        (alice.raw(3, to=None, data=b"\x60", gas=7 * 10**6), 25, "for execution in the EVM, which has 6000000"),
        (alice.raw(3, to=None, data=bytes(50_000), gas=10**6), 24, "at most 49152"),
        (alice.raw(3, value=10**24), 21, "insufficient funds"),
        (alice.raw(0, value=2), 18, "nonce 0 is taken"),
    ):
        refused = driver.check(raw)
        assert (refused.code, refused.codespace) == (code, "archipelago")
        assert log in refused.log
    driver.block([alice.raw(0)])
    assert driver.check(alice.raw(0)).code == 16


def test_500_of_one_key_shuffled_all_execute(driver: Driver, alice: Any) -> None:
    raws = [alice.raw(nonce) for nonce in range(500)]
    random.Random(3).shuffle(raws)
    assert {driver.check(raw).code for raw in raws} == {0}
    nonce = driver.query("/pending_nonce", alice.address)
    assert int.from_bytes(nonce.value, "big") == 500
    assert driver.query("/queue").value == (500).to_bytes(8, "big")
    proposal = driver.prepare(raws)
    assert len(proposal) == 500
    assert {result.code for result in driver.block(proposal).tx_results} == {0}
    assert driver.query("/queue").value == bytes(8)
    assert driver.query("/pending_nonce", alice.address).value == (500).to_bytes(8, "big")


def test_proposal_is_bounded_and_leaves_out_what_cannot_run(driver: Driver, alice: Any, carol: Any) -> None:
    raws = [alice.raw(0), carol.raw(5), alice.raw(1), alice.raw(2)]
    for raw in raws:
        driver.check(raw)
    assert driver.prepare(raws, max_tx_bytes=2 * (len(raws[0]) + 2) + 5) == [raws[0], raws[2]]
    assert driver.prepare([*raws, b"nonsense"]) == [raws[0], raws[2], raws[3]]


def test_what_found_no_room_in_a_block_waits_for_the_next(driver: Driver, alice: Any, carol: Any) -> None:
    burner = alice.raw(0, gas=40_000_000, to=COUNTER, data=b"\x01")
    raws = [burner, carol.raw(0, gas=40_000_000), carol.raw(1), alice.raw(7)]
    for raw in raws:
        driver.check(raw)
    assert [result.code for result in driver.block(raws).tx_results] == [1, BlockGasExhausted.code, 17, 17]
    assert driver.query("/queue").value == (2).to_bytes(8, "big"), "both of carol's, alice's can never follow"
    proposal = driver.prepare([])
    assert proposal == raws[1:3]
    assert {result.code for result in driver.block(proposal).tx_results} == {0}
    assert driver.query("/queue").value == bytes(8)


def test_proposer_guesses_what_calls_take() -> None:
    work = EvmWork()
    writer, other = Address(b"\x01" * 20), Address(b"\x02" * 20)
    assert work.guess(writer, 23_000) == 23_000, "an unknown contract may take all of it"
    work.learn({writer: 800})
    assert (work.guess(writer, 23_000), work.guess(writer, 500), work.guess(other, 9)) == (800, 500, 9)
    work.learn({writer: 80})
    assert work.guess(writer, 23_000) == 700, "falls slowly"
    work.learn({writer: 5_000})
    assert work.guess(writer, 23_000) == 5_000, "rises at once"
    work.learn({Address(number.to_bytes(20, "big")): 1 for number in range(MAX_CONTRACTS)})
    assert work.guess(writer, 23_000) == 23_000, "only so many are remembered"


def test_no_signature_is_verified_twice(driver: Driver, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    recover = transactions.recover_sender

    def count(*arguments: Any) -> Any:
        calls.append(arguments[0])
        return recover(*arguments)

    monkeypatch.setattr(transactions, "recover_sender", count)
    raws = [alice.raw(nonce) for nonce in range(4)]
    for raw in raws:
        driver.check(raw)
    proposal = driver.prepare(raws)
    driver.application.process_process_proposal(pb.RequestProcessProposal(txs=proposal, height=1))
    driver.block(proposal)
    assert len(calls) == 4
    assert not driver.application._verdicts._verdicts, "what was executed is not kept"
    assert driver.application._verdicts._num_bytes == 0


def test_verdict_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VERDICTS", 10)
    cache = VerdictCache()
    for number in range(50):
        cache.decode(b"%d" % number, 1)
    assert len(cache._verdicts) == 10
    monkeypatch.setattr(module, "MAX_VERDICT_BYTES", 25)
    cache.decode(b"x" * 20, 1)
    assert cache._num_bytes <= 25


def test_verdicts_are_those_of_one_chain(alice: Any) -> None:
    cache = VerdictCache()
    raw = alice.raw(0)
    assert isinstance(cache.decode(raw, 4242), Transaction)
    assert isinstance(cache.decode(raw, 5), WrongChainId)
    assert isinstance(cache.decode(raw, 4242), Transaction)


def test_proposals_are_accepted_whatever_they_hold(driver: Driver, alice: Any) -> None:
    request = pb.RequestProcessProposal(txs=[b"", b"nonsense", alice.raw(7), alice.raw(0)], height=1)
    for _ in range(2):
        answer = driver.application.process_process_proposal(request)
        assert answer.status == pb.ResponseProcessProposal.ACCEPT
    response = driver.block(list(request.txs))
    assert len(response.tx_results) == 4
    assert [result.code for result in response.tx_results] == [3, 5, 17, 0]


def test_state_query_with_a_proof(driver: Driver, alice: Any) -> None:
    driver.block([alice.raw(0)])
    for key in (b"a/" + alice.address, b"a/" + b"\x01" * 20):
        answer = driver.query("/state", key, prove=True)
        siblings, other = msgpack.unpackb(answer.proof_ops.ops[0].data)
        proof = Proof(siblings=tuple(siblings), other_leaf=tuple(other) if other else None)
        verify(driver.app_hash, key, answer.value or None, proof)
    for path, data in (("/state", b""), ("/pending_nonce", b"\x01"), ("/nowhere", b"")):
        refused = driver.query(path, data)
        assert refused.code == 1
        assert refused.log
    assert driver.app_hash != EMPTY


def test_every_other_method_answers(driver: Driver) -> None:
    """Case 35, with ``test_abci_wire``."""
    application = driver.application
    assert not application.process_list_snapshots(pb.RequestListSnapshots()).snapshots
    offered = application.process_offer_snapshot(pb.RequestOfferSnapshot())
    assert offered.result == pb.ResponseOfferSnapshot.REJECT_FORMAT
    assert application.process_load_snapshot_chunk(pb.RequestLoadSnapshotChunk()).chunk == b""
    applied = application.process_apply_snapshot_chunk(pb.RequestApplySnapshotChunk())
    assert applied.result == pb.ResponseApplySnapshotChunk.REJECT_SNAPSHOT
    assert application.process_extend_vote(pb.RequestExtendVote()).vote_extension == b""
    verified = application.process_verify_vote_extension(pb.RequestVerifyVoteExtension(vote_extension=b"x"))
    assert verified.status == pb.ResponseVerifyVoteExtension.REJECT


STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["prepare", "process", "finalize", "check", "query", "info"]), max_size=5),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(heights=STEPS)
def test_legal_call_orders_give_one_history(
    heights: list[tuple[list[str], int, bool]],
    store: Store,
    contracts: Any,
    app_state: dict[str, Any],
    alice: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever comes between, as the ABCI grammar allows, block after block gives the hashes of a bare replay.

    A height is any number of proposal rounds, then FinalizeBlock and Commit; a crash before Commit repeats it.
    """
    driver = Driver(ChainApplication(store, contracts, process_genesis), app_state)
    driver.init_chain()
    blocks: list[list[bytes]] = []
    hashes: list[bytes] = []
    nonce = 0
    for rounds, num_transactions, is_crashing in heights:
        txs = [alice.raw(nonce + index, to=COUNTER, data=b"\x05", gas=60_000) for index in range(num_transactions)]
        nonce += num_transactions
        for step in rounds:
            if step == "prepare":
                assert driver.prepare(txs) == txs
            elif step == "process":
                driver.application.process_process_proposal(pb.RequestProcessProposal(txs=txs))
            elif step == "finalize":
                driver.finalize(txs[:1])
            elif step == "check":
                for raw in txs:
                    driver.check(raw)
            elif step == "query":
                driver.query("/pending_nonce", alice.address)
            else:
                assert driver.application.process_info(pb.RequestInfo()).last_block_height == driver.height
        if is_crashing:
            driver.finalize(txs)
            driver.application = ChainApplication(store, contracts, process_genesis)
        driver.block(txs)
        blocks.append(txs)
        hashes.append(driver.app_hash)
    other = Store(tmp_path_factory.mktemp("replay") / "app")
    replay = Driver(ChainApplication(other, contracts, process_genesis), app_state)
    replay.init_chain()
    assert [replay.block(txs).app_hash for txs in blocks] == hashes
    other.close()


CODE_REPLAY = """
import json, sys
from importlib.metadata import version
from pathlib import Path
from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis
application = ChainApplication(Store(Path(sys.argv[1])), CONTRACTS, process_system_genesis)
request = pb.RequestInitChain(chain_id="c", app_state_bytes=sys.argv[2].encode())
print(application.process_init_chain(request).app_hash.hex())
for height, txs in enumerate(json.loads(sys.stdin.read()), start=1):
    request = pb.RequestFinalizeBlock(
        txs=[bytes.fromhex(raw) for raw in txs], height=height, hash=bytes(32), proposer_address=b"9" * 20
    )
    answer = application.process_finalize_block(request)
    print(answer.app_hash.hex(), [(result.code, result.gas_used, result.data.hex()) for result in answer.tx_results])
    application.process_commit(pb.RequestCommit())
"""


@pytest.mark.integration
def test_same_blocks_give_the_same_hash_under_two_hash_seeds(
    tmp_path: Path, app_state: dict[str, Any], alice: Any, carol: Any
) -> None:
    staking = bytes(18) + b"\x10\x02"
    bond = bytes.fromhex("64c9ec6f")
    blocks = [
        [alice.raw(0).hex(), carol.raw(0, value=10**18).hex(), carol.raw(1, gasPrice=10**10).hex()],
        [alice.raw(1, to=staking, data=bond, value=5, gas=200_000).hex(), carol.raw(2, to=staking, gas=90_000).hex()],
        [],
        [alice.raw(2, to=staking, data=b"\xff" * 40, gas=200_000).hex()],
    ]
    outputs = set()
    for seed in ("0", "1"):
        ended = subprocess.run(
            [sys.executable, "-c", CODE_REPLAY, str(tmp_path / seed), json.dumps(app_state)],
            input=json.dumps(blocks),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        outputs.add(ended.stdout)
    assert len(outputs) == 1
    assert outputs.pop().count("\n") == 5
