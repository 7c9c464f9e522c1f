"""Call sequences drawn from CometBFT's grammar of ABCI (spec/abci, *CometBFT's expected behavior*), state sync too.

    start        = clean-start | recovery
    clean-start  = info (init-chain | state-sync) consensus
    state-sync   = *(offer *apply) offer 1*apply           (the last one is whole)
    recovery     = info [replay] consensus
    consensus    = *height ; height = *round finalize commit
    round        = [prepare] *process

At any place a crash (the application starts again from disk), CheckTx, Query, Info, and the two requests of peers
that restore.  A model executes the same blocks once, in a straight line; whatever the way, heights, app hashes and
results must be the model's.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from abci_driver import Driver

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.core import snapshots as core
from chain.core.genesis import process_genesis
from chain.core.snapshots import FORMAT
from chain.snapshots import SnapshotDirectory
from chain.store import Store

NUM_BLOCKS = 12
SNAPSHOT_HEIGHTS = (4, 8)
COUNTER = b"\x77" * 20


class Model:
    """The blocks, what each must answer, and snapshots of some."""

    def __init__(self, directory: Path, contracts: Any, app_state: dict[str, Any], signer: Any) -> None:
        self.store = Store(directory / "app")
        self.snapshots = SnapshotDirectory(directory / "snapshots")
        application = ChainApplication(self.store, contracts, process_genesis, snapshots=self.snapshots)
        driver = Driver(application, app_state)
        driver.init_chain()
        self.blocks: list[list[bytes]] = []
        self.answers: list[pb.ResponseFinalizeBlock] = []
        rng = random.Random(7)
        nonce = 0
        for height in range(1, NUM_BLOCKS + 1):
            raws = []
            for _ in range(rng.randrange(3)):
                kind = rng.choice(("transfer", "call", "revert", "gap", "garbage"))
                if kind == "transfer":
                    raws.append(signer.raw(nonce, to=bytes([height]) * 20))
                elif kind in ("call", "revert"):
                    data = b"\x00" if kind == "revert" else b""
                    raws.append(signer.raw(nonce, to=COUNTER, data=data, gas=90_000))
                else:
                    raws.append(signer.raw(nonce + 50) if kind == "gap" else b"\x02garbage")
                    continue
                nonce += 1
            self.blocks.append(raws)
            self.answers.append(driver.block(raws))
            if height in SNAPSHOT_HEIGHTS:
                self.snapshots.make(self.store.committed)
        self.application = application
        self.offers = list(application.process_list_snapshots(pb.RequestListSnapshots()).snapshots)

    def app_hash(self, height: int) -> bytes:
        return bytes(self.answers[height - 1].app_hash)

    def chunk(self, offer: pb.Snapshot, index: int) -> bytes:
        request = pb.RequestLoadSnapshotChunk(height=offer.height, format=FORMAT, chunk=index)
        return self.application.process_load_snapshot_chunk(request).chunk


class Walk:
    """One random way through the grammar."""

    def __init__(self, seed: int, model: Model, directory: Path, contracts: Any, app_state: dict[str, Any]) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self.directory = directory
        self.contracts = contracts
        self.app_state = app_state
        self.store = Store(directory)
        self.trace: list[str] = []
        self.start()

    def start(self) -> None:
        application = ChainApplication(self.store, self.contracts, process_genesis)
        self.driver = Driver(application, self.app_state)

    def crash(self) -> None:
        """Lose all that isn't on disk."""
        self.trace.append("crash")
        self.store.close()
        self.store = Store(self.directory)
        self.start()

    def play(self) -> None:
        """Go until the last block is committed, by whatever way."""
        for _ in range(60):
            if self.attempt():
                return
            self.crash()
        raise AssertionError(f"not done: {self.trace}")

    def attempt(self) -> bool:
        """One life of the application; False when it was cut short."""
        info = self.driver.application.process_info(pb.RequestInfo(abci_version="2.0.0"))
        self.trace.append(f"info {info.last_block_height}")
        height = info.last_block_height
        if height:
            assert info.last_block_app_hash == self.model.app_hash(height)
        elif self.rng.random() < 0.5:
            height = self.sync()
            if not height:
                return False
        else:
            self.driver.init_chain()
            self.trace.append("init")
        self.driver.height = height
        while self.driver.height < NUM_BLOCKS:
            if not self.make_block():
                return False
        return True

    def sync(self) -> int:
        """Offer snapshots, some given up half-way, some chunks corrupt, until one is whole; 0 after a crash."""
        application = self.driver.application
        while True:
            offer = self.rng.choice(self.model.offers)
            app_hash = self.model.app_hash(offer.height)
            request = pb.RequestOfferSnapshot(snapshot=offer, app_hash=app_hash)
            assert application.process_offer_snapshot(request).result == pb.ResponseOfferSnapshot.ACCEPT
            self.trace.append(f"offer {offer.height}")
            stop = self.rng.choice((offer.chunks, offer.chunks, self.rng.randrange(offer.chunks)))
            for index in range(stop):
                self.disturb()
                if self.rng.random() < 0.1:
                    self.apply(index, b"corrupt", pb.ResponseApplySnapshotChunk.RETRY)
                if self.rng.random() < 0.03:
                    return 0
                self.apply(index, self.model.chunk(offer, index), pb.ResponseApplySnapshotChunk.ACCEPT)
            if stop == offer.chunks:
                info = application.process_info(pb.RequestInfo())
                assert (info.last_block_height, info.last_block_app_hash) == (offer.height, app_hash)
                return int(offer.height)

    def apply(self, index: int, chunk: bytes, expected: int) -> None:
        request = pb.RequestApplySnapshotChunk(index=index, chunk=chunk, sender="peer")
        assert self.driver.application.process_apply_snapshot_chunk(request).result == expected

    def make_block(self) -> bool:
        """Some rounds, then FinalizeBlock and Commit; False when a crash comes first."""
        height = self.driver.height + 1
        raws = self.model.blocks[height - 1]
        for _ in range(self.rng.randrange(3)):
            self.disturb()
            if self.rng.random() < 0.5:
                self.driver.prepare(raws)
            self.driver.application.process_process_proposal(pb.RequestProcessProposal(txs=raws, height=height))
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            answer = self.driver.finalize(raws)
            assert answer == self.model.answers[height - 1], self.trace
            if self.rng.random() < 0.05:
                return False
        self.disturb()
        self.driver.commit()
        self.trace.append(f"commit {height}")
        return self.rng.random() >= 0.05

    def disturb(self) -> None:
        """What other connections may ask at any time."""
        application = self.driver.application
        for _ in range(self.rng.randrange(3)):
            kind = self.rng.randrange(5)
            if kind == 0:
                raws = self.rng.choice(self.model.blocks) or [b""]
                application.process_check_tx(pb.RequestCheckTx(tx=self.rng.choice(raws)))
            elif kind == 1:
                application.process_query(pb.RequestQuery(path="/state", data=b"a/x", prove=True))
            elif kind == 2:
                application.process_info(pb.RequestInfo())
            elif kind == 3:
                application.process_list_snapshots(pb.RequestListSnapshots())
            else:
                application.process_load_snapshot_chunk(pb.RequestLoadSnapshotChunk(height=4, format=FORMAT))


@pytest.fixture
def model(
    tmp_path: Path, contracts: Any, app_state: dict[str, Any], alice: Any, monkeypatch: pytest.MonkeyPatch
) -> Model:
    monkeypatch.setattr(core, "CHUNK_BYTES", 150)
    return Model(tmp_path / "model", contracts, app_state, alice)


@pytest.mark.parametrize("num_walks", [60, pytest.param(3_000, marks=pytest.mark.soak)])
def test_every_way_through_the_grammar_leads_to_the_same_chain(
    num_walks: int, model: Model, tmp_path: Path, contracts: Any, app_state: dict[str, Any]
) -> None:
    seen: set[str] = set()
    for seed in range(num_walks):
        walk = Walk(seed, model, tmp_path / "walk", contracts, app_state)
        walk.play()
        committed = walk.store.committed
        assert (committed.height, committed.app_hash) == (NUM_BLOCKS, model.app_hash(NUM_BLOCKS)), seed
        for height in range(committed.first_height, NUM_BLOCKS + 1):
            assert committed.block(height) == model.store.committed.block(height), (seed, height)
        seen |= {word.split()[0] for word in walk.trace}
        walk.store.close()
        shutil.rmtree(tmp_path / "walk")
    assert seen == {"info", "init", "offer", "crash", "commit"}
    model.store.close()
