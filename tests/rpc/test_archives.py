"""Rounds that have left the state are still shown, and proved: over JSON-RPC, by the verifying client, on the chain.

`trainer data explain` is asked here of them, too: of a node that has executed the blocks, and of one that began from a
snapshot, each a server process over a store of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contracts_native"))

from driver import Chain, Reverted, make_address
from eth_abi import encode

from chain import verified_reads
from chain.core.accumulator import Accumulator, is_member
from chain.core.blocks import seal_block
from chain.core.genesis import parse_genesis, save_parameters
from chain.core.hashing import keccak256
from chain.core.light import LightError
from chain.core.rounds.archive import KEPT_ROUNDS, compute_record_leaf
from chain.core.rounds.records import RoundState
from chain.core.smt import Tree
from chain.core.state import Overlay
from chain.core.types import Address, Amount, Hash, Height
from chain.light_client import JsonRpcSource
from chain.rpc import archive_leaves
from chain.rpc.dispatch import Dispatcher
from chain.rpc.metrics import Metrics
from chain.rpc.peers import UNKNOWN_PEER
from chain.store import Candidate, Store
from chain.system import CONTRACTS
from training.cli import main
from training.core.recipe import ANY_TEXT, DataSource
from training.core.recipe_text import parse_recipe
from training.core.sampling import plan_samples
from training.data.corpus import load_corpus
from training.recipes.shipped import load_shipped
from training.recipes.writing import write_recipe

NUM_ROUNDS = 30
TRAINING = "0x0000000000000000000000000000000000001000"
ASK_TRAINING = bytes.fromhex("604460165f395f5f60445f6110005afa5f5260205ff3")
"""Initcode that asks Training with the 68 bytes behind it, and returns whether it answered."""
NAMES = ("ann", "bob", "cid")
TINY = parse_recipe(load_shipped("tiny"))
RECIPE = replace(TINY, data=replace(TINY.data, source=DataSource.FILE, digest=ANY_TEXT))
NOWHERE = "http://127.0.0.1:1"
"""Nothing listens on port 1."""


@dataclass
class Archived:
    """A store in which the older rounds of a run have left the state."""

    home: Path
    chain: Chain
    store: Store
    run: int
    dispatcher: Dispatcher

    def commit(self) -> None:
        """Write what the contracts have changed as one block."""
        store, parent = self.store, self.store.committed
        changes = self.chain.state.changes()
        height = Height(0 if parent.is_empty else parent.height + 1)
        above = parent.block(height - 1)
        block = seal_block(
            height=height,
            parent_hash=above.hash if above is not None else Hash(bytes(32)),
            time_seconds=1,
            app_hash=Tree().update(changes).root,
            proposer=Address(bytes(20)),
            gas_limit=30_000_000,
            base_fee=Amount(10**9),
            cometbft_hash=bytes(32),
            receipts=(),
            block_logs=(),
            size_bytes=0,
        )
        store.commit(
            Candidate(
                height=height,
                app_hash=block.app_hash,
                changes=changes,
                block=block,
                receipts=(),
                transactions=(),
                timer_logs=(),
            )
        )
        self.chain.state = Overlay(store.committed.state)

    def answer(self, method: str, *params: Any) -> dict[str, Any]:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        answer: dict[str, Any] = json.loads(asyncio.run(self.dispatcher.answer(body, UNKNOWN_PEER)))
        return answer

    @property
    def accumulator(self) -> Accumulator:
        length, _, peaks = self.chain.view("Training", "archive", self.run)
        return Accumulator(length=length, peaks=tuple(peaks))


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    chain = Chain(num_nodes=1)
    save_parameters(chain.state, parse_genesis("archive-1", b'{"evmChainId": 4242}').parameters)
    home = tmp_path_factory.mktemp("archived")
    store = Store(home / "app", map_bytes=64 << 20)
    recipe = write_recipe(RECIPE).encode()
    run = chain.create_run(recipe=recipe, checkpointInterval=4, numCheckpointParts=1, numRounds=100)
    database: Any = SimpleNamespace(reader=lambda: store, close=lambda: None)
    upstream: Any = None
    dispatcher = Dispatcher(database=database, contracts=CONTRACTS, upstream=upstream, metrics=Metrics())
    made = Archived(home, chain, store, run, dispatcher)
    made.commit()
    chain.join(run, *NAMES)
    chain.advance()
    for t in range(NUM_ROUNDS):
        for name in NAMES:
            chain.commit(run, t, name)
        chain.advance()
        chain.attest(run, t, *NAMES)
        chain.advance()
        if (t + 1) % 4 == 0:
            uploader = chain.view("Training", "checkpointPartOf", run, t + 1)[0]
            chain.store_part(run, t + 1, 0, sender=uploader)
        made.commit()
    chain.advance(3)
    made.commit()
    assert made.accumulator.length == NUM_ROUNDS - KEPT_ROUNDS
    yield made
    dispatcher.close()
    store.close()


def _proof(archived: Archived, t: int, *length: str) -> dict[str, Any]:
    result: dict[str, Any] = archived.answer("archipelago_archivedRound", hex(archived.run), hex(t), *length)["result"]
    return result


def _bytes(texts: Any) -> list[bytes]:
    return [bytes.fromhex(text[2:]) for text in texts]


def test_every_archived_round_is_shown_with_its_path(archived: Archived) -> None:
    accumulator = archived.accumulator
    for t in range(accumulator.length):
        shown = _proof(archived, t)
        assert (shown["length"], _bytes(shown["peaks"])) == (hex(accumulator.length), list(accumulator.peaks))
        record, siblings = bytes.fromhex(shown["record"][2:]), _bytes(shown["siblings"])
        assert is_member(accumulator, t, compute_record_leaf(record), siblings)
    older = _proof(archived, 3, "0x5")
    shorter = Accumulator(length=5, peaks=tuple(_bytes(older["peaks"])))
    record, siblings = bytes.fromhex(older["record"][2:]), _bytes(older["siblings"])
    assert is_member(shorter, 3, compute_record_leaf(record), siblings)


def test_a_contract_reads_an_archived_round_by_its_proof(archived: Archived) -> None:
    chain, run = archived.chain, archived.run
    shown = _proof(archived, 2)
    record, siblings = bytes.fromhex(shown["record"][2:]), _bytes(shown["siblings"])
    with pytest.raises(Reverted, match="RoundArchived"):
        chain.view("Training", "round", run, 2)
    info, updates = chain.view("Training", "archivedRound", run, 2, record, siblings)
    assert (info[0], info[1], info[15]) == (2, int(RoundState.FINAL), len(NAMES))
    assert sorted(update[0] for update in updates) == sorted(make_address(name) for name in NAMES)
    wrong: list[tuple[int, bytes, list[bytes]]] = [
        (3, record, siblings),
        (2, record[:-1] + bytes([record[-1] ^ 1]), siblings),
        (2, record, siblings[:-1]),
        (2, record, [*siblings[:-1], bytes(32)]),
        (2, b"", []),
        (2**64 - 1, record, siblings),
    ]
    for t, bad_record, bad_siblings in wrong:
        with pytest.raises(Reverted) as refused:
            chain.view("Training", "archivedRound", run, t, bad_record, bad_siblings)
        assert refused.value.name == "BadArchiveProof"


def test_code_in_a_call_sees_what_it_would_see_in_a_transaction(archived: Archived) -> None:
    gone = archived.accumulator.length - 1
    for t, is_seen in ((gone, False), (gone + 1, True)):
        question = keccak256(b"round(uint64,uint64)")[:4] + encode(["uint64", "uint64"], [archived.run, t])
        shown = archived.answer("eth_call", {"to": TRAINING, "data": "0x" + question.hex()})
        assert int(shown["result"][2:66], 16) == t, "a node that keeps the round shows it to whoever asks the view"
        asked = archived.answer("eth_call", {"data": "0x" + (ASK_TRAINING + question).hex()})
        assert int(asked["result"], 16) == is_seen


def test_invalid_questions_are_told_what_is_there(archived: Archived) -> None:
    length = archived.accumulator.length
    for params in ([hex(archived.run), hex(length)], ["0x63", "0x0"], [hex(archived.run), "0x0", hex(length + 1)], []):
        assert archived.answer("archipelago_archivedRound", *params)["error"]["code"] == -32602


def test_leaves_are_computed_a_part_at_a_time(archived: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_leaves, "MAX_NEW_LEAVES", 4)
    database: Any = SimpleNamespace(reader=lambda: archived.store, close=lambda: None)
    upstream: Any = None
    fresh = Dispatcher(database=database, contracts=CONTRACTS, upstream=upstream, metrics=Metrics())
    again = Archived(archived.home, archived.chain, archived.store, archived.run, fresh)
    answers = [again.answer("archipelago_archivedRound", hex(again.run), "0x1") for _ in range(4)]
    assert ["error" in answer for answer in answers] == [True, True, True, False]
    assert "ask again" in answers[0]["error"]["message"]
    fresh.close()


class _Client:
    """A light client that has verified whatever the store says."""

    def __init__(self, archived: Archived) -> None:
        self.archived = archived
        self.trusted = SimpleNamespace(header=None)

    def read(self, key: bytes) -> tuple[bytes | None, int]:
        snapshot = self.archived.store.committed
        return snapshot.state.get(key), snapshot.height


class _Source:
    """A node, which may lie."""

    url = "http://node"

    def __init__(self, archived: Archived, change: Any = lambda answer: answer) -> None:
        self.archived, self.change = archived, change

    def ask_node(self, method: str, params: list[Any]) -> dict[str, Any]:
        result: dict[str, Any] = self.change(self.archived.answer(method, *params)["result"])
        return result


def test_the_verifying_client_believes_the_record_and_no_other(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified_reads, "compute_header_hash", lambda header: bytes(32))
    client: Any = _Client(archived)
    source: Any = _Source(archived)
    for t, is_archived in ((0, True), (NUM_ROUNDS - KEPT_ROUNDS - 1, True), (NUM_ROUNDS - 1, False)):
        found = verified_reads.read_round(client, source, archived.run, t)
        assert (found.is_archived, found.archived.round.round) == (is_archived, t)
        assert found.archived.round.state == RoundState.FINAL
        assert {worker for worker, _ in found.archived.updates} == {make_address(name) for name in NAMES}
        assert len(found.archived.votes) == len(NAMES)
    other = _proof(archived, 1)
    lies: list[Any] = [
        lambda answer: {**answer, "record": other["record"]},
        lambda answer: {**answer, **other},
        lambda answer: {**answer, "siblings": answer["siblings"][1:]},
        lambda answer: {**answer, "record": "0x"},
    ]
    for lie in lies:
        liar: Any = _Source(archived, lie)
        with pytest.raises(LightError, match="lies about round 0"):
            verified_reads.read_round(client, liar, archived.run, 0)
    with pytest.raises(LightError, match="no record in its answer"):
        verified_reads.read_round(client, _Source(archived, lambda answer: {}), archived.run, 0)  # type: ignore[arg-type]
    for run, t in ((archived.run, 10**6), (99, 0)):
        with pytest.raises(LightError, match="that is proved"):
            verified_reads.read_round(client, source, run, t)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Two servers of one chain."""

    whole: str
    """URL of the one that has executed all blocks."""
    young: str
    """URL of the one that began from a snapshot: it has the state and nothing that had left it."""
    text: Path
    """What the members train on."""


@pytest.fixture(scope="module")
def nodes(archived: Archived, tmp_path_factory: pytest.TempPathFactory, start_rpc: Callable[..., Any]) -> Nodes:
    folder = tmp_path_factory.mktemp("nodes")
    committed = archived.store.committed
    restored = Store(folder / "app", map_bytes=64 << 20)
    restored.put_entries(list(committed.iterate_entries()))
    restored.finish_restore(Height(committed.height), committed.app_hash)
    restored.close()
    whole, young = (
        start_rpc(home, NOWHERE, folder / f"{name}.log") for name, home in (("whole", archived.home), ("young", folder))
    )
    text = folder / "text.txt"
    text.write_bytes(bytes(range(32, 127)) * 400)
    return Nodes(whole.url, young.url, text)


@pytest.fixture
def explain(
    archived: Archived, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that asks `trainer data explain` as people do: (exit code, output, errors)."""

    def ask(t: int, member: str, *urls: str, options: tuple[str, ...] = ("--json",)) -> tuple[int, str, str]:
        arguments = ["--run", str(archived.run), "--round", str(t), "--member", "0x" + make_address(member).hex()]
        arguments += ["--data", str(nodes.text), *options, *(part for url in urls for part in ("--chain", url))]
        monkeypatch.setattr(sys, "argv", ["trainer", "data", "explain", *arguments])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return ask


def test_a_round_s_samples_are_explained_as_long_as_somebody_has_its_record(
    archived: Archived, nodes: Nodes, explain: Callable[..., tuple[int, str, str]]
) -> None:
    size = load_corpus(RECIPE.data, nodes.text).train.size
    last = archived.accumulator.length - 1
    for t, urls, num_archived in (
        (0, (nodes.whole,), None),
        (last, (nodes.whole,), None),
        (0, (nodes.young, nodes.whole), last + 1),
        (last, (nodes.young, NOWHERE, nodes.whole), last + 1),
        (last + 1, (nodes.young,), None),
        (NUM_ROUNDS, (nodes.young,), None),
    ):
        code, out, err = explain(t, "bob", *urls)
        assert (code, err) == (0, ""), (t, urls)
        found = json.loads(out)
        record = archived.answer("eth_call", {"to": TRAINING, "data": _round_call(archived.run, t)})["result"]
        seed = bytes.fromhex(record[2:])[-32:]
        plan = plan_samples(
            seed=RECIPE.seed,
            round_index=t,
            data_seed=seed,
            member=make_address("bob"),
            participants=[make_address(name) for name in NAMES],
            num_bytes=int(size),
            context=RECIPE.model.context,
        )
        assert found["data_seed"] == seed.hex()
        assert (found["num_members"], found["starts"]) == (len(NAMES), list(plan.starts(0, 8))), (t, urls)
        assert found["num_archived"] == num_archived
    code, out, _ = explain(0, "bob", nodes.young, nodes.whole, options=())
    assert code == 0
    assert f"of a record under the archive of rounds 0 to {last}" in out


def test_invalid_round_that_no_node_given_has(
    archived: Archived, nodes: Nodes, explain: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = explain(0, "bob", nodes.young)
    assert (code, out) == (2, "")
    what, _, step = err.partition("\nnext:  ")
    assert f"round 0 of run 1 has left the state, which keeps those from {archived.accumulator.length} on" in what
    assert f"{nodes.young}: answers: round 0 of run 1 left the state before this node came" in what
    assert "--chain URL of a node that has executed all blocks" in step
    num_opened = archived.chain.struct("Training", "run", archived.run)["numOpened"]
    code, _, err = explain(num_opened, "bob", nodes.young)
    assert code == 2
    assert f"round {num_opened} of run 1 has not opened, rounds 0 to {num_opened - 1} have\nnext:" in err


def test_invalid_member_that_is_no_participant(nodes: Nodes, explain: Callable[..., tuple[int, str, str]]) -> None:
    """It was told of samples all the same: those of a member that walks alone, which nobody trains on."""
    for urls in ((nodes.whole,), (nodes.young, nodes.whole)):
        code, out, err = explain(0, "eve", *urls)
        assert (code, out) == (2, "")
        assert f"0x{make_address('eve').hex()} is no participant of round 0 of run 1; its 3 are 0x" in err
        assert all(make_address(name).hex() in err.lower() for name in NAMES)
        assert "next:  name one of them" in err


def test_invalid_record_is_believed_of_no_node(
    archived: Archived, nodes: Nodes, explain: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = JsonRpcSource.ask_node

    def lie(source: Any, method: str, params: list[Any]) -> dict[str, Any]:
        return honest(source, method, [params[0], "0x1", *params[2:]])  # another round's, with that round's path

    monkeypatch.setattr(JsonRpcSource, "ask_node", lie)
    code, out, err = explain(0, "bob", nodes.young, nodes.whole)
    assert (code, out) == (2, "")
    assert f"{nodes.whole} lies about round 0 of run 1" in err


def _round_call(run: int, t: int) -> str:
    question = keccak256(b"round(uint64,uint64)")[:4] + encode(["uint64", "uint64"], [run, t])
    return "0x" + question.hex()
