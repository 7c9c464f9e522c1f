"""State sync through ABCI, without CometBFT: what is offered, restored, refused and given up."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from abci_driver import Driver
from hypothesis import given
from hypothesis import strategies as st

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.core import snapshots as core
from chain.core.errors import InvalidSnapshot
from chain.core.genesis import process_genesis
from chain.core.hashing import sha256
from chain.core.snapshots import FORMAT, Manifest, compute_snapshot_hash, cut_chunks, decode_chunk, decode_manifest
from chain.core.snapshots import encode_manifest as encode
from chain.snapshots import SnapshotDirectory, SnapshotMaker
from chain.store import Store
from chain.stored_states import iterate_all

COUNTER = b"\x77" * 20
OFFER = pb.ResponseOfferSnapshot
APPLY = pb.ResponseApplySnapshotChunk


class Source(Driver):
    """A node with some history and a snapshot of it."""

    def __init__(self, home: Path, contracts: Any, app_state: dict[str, Any]) -> None:
        self.store = Store(home / "app")
        self.directory = SnapshotDirectory(home / "snapshots")
        application = ChainApplication(self.store, contracts, process_genesis, snapshots=self.directory)
        super().__init__(application, app_state)

    def offer(self) -> pb.Snapshot:
        """Return what a peer is offered."""
        return self.application.process_list_snapshots(pb.RequestListSnapshots()).snapshots[0]

    def chunk(self, index: int) -> bytes:
        request = pb.RequestLoadSnapshotChunk(height=self.offer().height, format=FORMAT, chunk=index)
        return self.application.process_load_snapshot_chunk(request).chunk

    def receive_offer(self, snapshot: pb.Snapshot, app_hash: bytes) -> int:
        request = pb.RequestOfferSnapshot(snapshot=snapshot, app_hash=app_hash)
        return self.application.process_offer_snapshot(request).result

    def receive(self, index: int, chunk: bytes, sender: str = "peer") -> pb.ResponseApplySnapshotChunk:
        request = pb.RequestApplySnapshotChunk(index=index, chunk=chunk, sender=sender)
        return self.application.process_apply_snapshot_chunk(request)


MakeNode = Callable[[str], Source]


@pytest.fixture
def make(tmp_path: Path, contracts: Any, app_state: dict[str, Any]) -> Iterator[MakeNode]:
    nodes: list[Source] = []

    def create(name: str) -> Source:
        nodes.append(Source(tmp_path / name, contracts, app_state))
        return nodes[-1]

    yield create
    for node in nodes:
        node.store.close()


@pytest.fixture
def source(make: MakeNode, alice: Any, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A node at height 4 with a snapshot of several small chunks."""
    monkeypatch.setattr(core, "CHUNK_BYTES", 200)
    node = make("source")
    node.init_chain()
    for nonce in range(0, 8, 2):
        node.block([alice.raw(nonce, to=bytes([nonce]) * 20), alice.raw(nonce + 1, to=COUNTER, data=b"", gas=90_000)])
    node.directory.make(node.store.committed)
    assert node.offer().chunks >= 4
    return node


def restore(source: Source, target: Source) -> None:
    offer = source.offer()
    assert target.receive_offer(offer, source.app_hash) == OFFER.ACCEPT
    for index in range(offer.chunks):
        assert target.receive(index, source.chunk(index)).result == APPLY.ACCEPT
    target.height, target.app_hash = offer.height, source.app_hash


def test_a_fresh_node_restores_and_follows(source: Source, make: MakeNode, alice: Any) -> None:
    target = make("target")
    restore(source, target)
    info = target.application.process_info(pb.RequestInfo())
    assert (info.last_block_height, info.last_block_app_hash) == (4, source.app_hash)
    ours, theirs = source.store.committed, target.store.committed
    assert list(theirs.iterate_entries()) == list(ours.iterate_entries())
    assert (theirs.first_height, theirs.block(3), theirs.block(4)) == (4, None, ours.block(4))
    block = ours.block(4)
    assert block is not None
    for executed in block.transactions:
        assert theirs.transaction(executed) == ours.transaction(executed)
    assert theirs.receipts(4) == ours.receipts(4)

    raws = [alice.raw(8), alice.raw(9, to=COUNTER, data=b"\x05", gas=90_000)]
    assert target.block(raws) == source.block(raws)
    assert target.store.committed.block(5) == source.store.committed.block(5), "also its parent's hash"
    reopened = ChainApplication(target.store, {}, process_genesis)
    assert reopened.process_info(pb.RequestInfo()).last_block_app_hash == source.app_hash


def test_what_strangers_ask_amid_a_restore_is_not_remembered(source: Source, make: MakeNode, alice: Any) -> None:
    """The state that a node reads by is what was restored, not what was there, or not, when somebody asked."""
    target, offer = make("target"), source.offer()
    keys = [key for key, _ in iterate_all(source.store.committed.state)]
    assert target.receive_offer(offer, source.app_hash) == OFFER.ACCEPT
    for index in range(offer.chunks):
        for key in keys:
            target.query("/state", key)
        assert target.receive(index, source.chunk(index)).result == APPLY.ACCEPT
    target.height, target.app_hash = offer.height, source.app_hash
    for key in keys:
        assert target.query("/state", key).value == source.query("/state", key).value
    raws = [alice.raw(8), alice.raw(9, to=COUNTER, data=b"\x05", gas=90_000)]
    assert target.block(raws) == source.block(raws)


def test_a_restored_node_can_be_the_next_source(source: Source, make: MakeNode) -> None:
    second, third = make("second"), make("third")
    restore(source, second)
    second.directory.make(second.store.committed)
    assert second.offer() == source.offer(), "the same state has one snapshot"
    restore(second, third)


def test_a_corrupt_chunk_is_asked_for_again_and_its_sender_named(source: Source, make: MakeNode) -> None:
    target = make("target")
    target.receive_offer(source.offer(), source.app_hash)
    good = source.chunk(0)
    for bad in (b"", good[:-1], good[:5] + bytes([good[5] ^ 1]) + good[6:], source.chunk(1)):
        answer = target.receive(0, bad, sender="liar")
        assert (answer.result, list(answer.refetch_chunks), list(answer.reject_senders)) == (APPLY.RETRY, [0], ["liar"])
    for index in range(source.offer().chunks):
        assert target.receive(index, source.chunk(index)).result == APPLY.ACCEPT
        assert target.receive(0, b"late").result in (APPLY.ACCEPT, APPLY.REJECT_SNAPSHOT)
    assert target.store.committed.app_hash == source.app_hash


def test_a_second_offer_aborts_a_half_applied_one(source: Source, make: MakeNode, alice: Any) -> None:
    """Case 45: what the first has written is gone, also a key that the second doesn't have."""
    target = make("target")
    other = make("other")
    other.init_chain()
    other.block([alice.raw(0, to=b"\xee" * 20)])
    other.directory.make(other.store.committed)
    assert target.receive_offer(other.offer(), other.app_hash) == OFFER.ACCEPT
    for index in range(other.offer().chunks - 1):
        target.receive(index, other.chunk(index))
    restore(source, target)
    proofs = pb.RequestQuery(path="/proofs", data=msgpack.packb([b"a/" + alice.address]))
    assert target.application.process_query(proofs).value == source.application.process_query(proofs).value
    assert target.receive_offer(other.offer(), other.app_hash) == OFFER.ACCEPT
    assert "no state yet" in target.application.process_query(proofs).log, "nothing is proven of what was given up"
    restore(source, target)
    assert list(target.store.committed.iterate_entries()) == list(source.store.committed.iterate_entries())


def test_a_sender_lost_in_the_middle_is_replaced(source: Source, make: MakeNode, alice: Any) -> None:
    """Case 45: the chunks of one snapshot may come from several peers; then the first block after it."""
    second, target = make("second"), make("target")
    restore(source, second)
    second.directory.make(second.store.committed)
    offer = source.offer()
    assert target.receive_offer(offer, source.app_hash) == OFFER.ACCEPT
    for index in range(2):
        assert target.receive(index, source.chunk(index), sender="lost").result == APPLY.ACCEPT
    answer = target.receive(2, b"", sender="lost")
    assert (answer.result, list(answer.reject_senders)) == (APPLY.RETRY, ["lost"])
    for index in range(2, offer.chunks):
        assert target.receive(index, second.chunk(index), sender="second").result == APPLY.ACCEPT
    target.height, target.app_hash = offer.height, source.app_hash
    raws = [alice.raw(8), alice.raw(9, to=COUNTER, data=b"\x05", gas=90_000)]
    assert target.block(raws) == source.block(raws), "the first block after"
    assert target.store.committed.app_hash == source.store.committed.app_hash


def test_a_restore_cut_short_counts_for_nothing(source: Source, make: MakeNode, contracts: Any) -> None:
    target = make("target")
    target.receive_offer(source.offer(), source.app_hash)
    target.receive(0, source.chunk(0))
    assert target.store.committed.is_empty
    target.application = ChainApplication(target.store, contracts, process_genesis)
    assert target.application.process_info(pb.RequestInfo()).last_block_height == 0
    assert list(target.store.committed.state.iterate(b"\x00", b"\xff")) == []
    assert target.receive(1, source.chunk(1)).result == APPLY.REJECT_SNAPSHOT, "no offer since the restart"
    restore(source, target)


def test_invalid_offers_are_refused_and_change_nothing(source: Source, make: MakeNode) -> None:
    target = make("target")
    target.init_chain()
    before = target.store.committed.app_hash
    offer = source.offer()
    manifest = decode_manifest(offer.metadata)
    assert (
        target.receive_offer(pb.Snapshot(format=FORMAT + 1, metadata=offer.metadata), source.app_hash)
        == OFFER.REJECT_FORMAT
    )
    wrong = [
        pb.Snapshot(height=4, format=FORMAT, chunks=offer.chunks, hash=offer.hash, metadata=b"\xc1"),
        pb.Snapshot(height=5, format=FORMAT, chunks=offer.chunks, hash=offer.hash, metadata=offer.metadata),
        pb.Snapshot(height=4, format=FORMAT, chunks=1, hash=offer.hash, metadata=offer.metadata),
        pb.Snapshot(height=4, format=FORMAT, chunks=offer.chunks, hash=bytes(32), metadata=offer.metadata),
        _offer_of(replace(manifest, app_hash=bytes(32))),
    ]
    for snapshot in wrong:
        assert target.receive_offer(snapshot, source.app_hash) == OFFER.REJECT_SENDER
    assert target.receive(0, source.chunk(0)).result == APPLY.REJECT_SNAPSHOT
    assert target.store.committed.app_hash == before


def _offer_of(manifest: Manifest) -> pb.Snapshot:
    metadata = encode(manifest)
    return pb.Snapshot(
        height=manifest.height,
        format=FORMAT,
        chunks=len(manifest.chunk_hashes),
        hash=compute_snapshot_hash(metadata),
        metadata=metadata,
    )


@pytest.mark.parametrize("kind", ["state", "block", "missing", "order", "garbage"])
def test_invalid_snapshot_of_a_liar_is_rejected_at_its_end(kind: str, source: Source, make: MakeNode) -> None:
    entries = list(source.store.committed.iterate_entries())
    if kind == "state":
        entries[0] = (entries[0][0], entries[0][1], b"\x00" + entries[0][2])
    elif kind == "block":
        index = next(i for i, entry in enumerate(entries) if entry[0] == core.EntryKind.BLOCK)
        fields = msgpack.unpackb(entries[index][2])
        entries[index] = (*entries[index][:2], msgpack.packb({**fields, "parent_hash": bytes(32)}))
    elif kind == "missing":
        entries.pop()
    elif kind == "order":
        entries[0], entries[1] = entries[1], entries[0]
    chunks = list(cut_chunks(entries))
    if kind == "garbage":
        chunks[-1] += b"\x93"
    manifest = replace(decode_manifest(source.offer().metadata), chunk_hashes=tuple(sha256(chunk) for chunk in chunks))
    target = make("target")
    assert target.receive_offer(_offer_of(manifest), source.app_hash) == OFFER.ACCEPT
    results = [target.receive(index, chunk).result for index, chunk in enumerate(chunks)]
    assert APPLY.REJECT_SNAPSHOT in results
    assert target.store.committed.is_empty
    assert list(target.store.committed.state.iterate(b"\x00", b"\xff")) == []
    restore(source, target)


def test_a_chunk_that_is_gone_is_none(source: Source) -> None:
    ask = source.application.process_load_snapshot_chunk
    for height, number, index in ((4, FORMAT, 999), (5, FORMAT, 0), (4, 9, 0), (2**63, FORMAT, 0)):
        assert ask(pb.RequestLoadSnapshotChunk(height=height, format=number, chunk=index)).chunk == b""


def test_old_snapshots_go_and_pin_old_blocks_until_then(source: Source, contracts: Any, alice: Any) -> None:
    application = ChainApplication(
        source.store, contracts, process_genesis, snapshots=source.directory, retain_blocks=2
    )
    source.application = application
    heights = []
    for _ in range(6):
        source.finalize([])
        heights.append(application.process_commit(pb.RequestCommit()).retain_height)
        source.height += 1
    assert heights == [4, 4, 4, 4, 4, 4], "a peer that restores the snapshot needs the blocks after it"
    assert source.store.committed.first_height == 4
    assert source.store.committed.block(3) is None
    assert source.store.committed.transaction(alice.transaction(0).hash) is None
    source.directory.make(source.store.committed)
    source.directory.prune(1)
    assert source.directory.heights() == [10]
    source.finalize([])
    assert application.process_commit(pb.RequestCommit()).retain_height == 10
    for height in range(11):
        assert (source.store.committed.block(height) is None) == (height < source.store.committed.first_height)


def test_snapshots_are_made_in_the_background(source: Source, tmp_path: Path) -> None:
    maker = SnapshotMaker(tmp_path / "source", interval_blocks=2, num_kept=1)
    try:
        source.height = 4
        deadline = time.monotonic() + 60
        while source.directory.heights() in ([], [4]):
            assert time.monotonic() < deadline, "no snapshot within a minute"
            source.block([])
            maker.process_committed(source.height)
            time.sleep(0.005)  # a block's pause: the maker is a process of its own and needs the machine too
    finally:
        maker.close()
    made = source.directory.load()[0].manifest
    assert made.app_hash == source.app_hash


def test_the_command_makes_one_now(source: Source, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chain.cli", "snapshot", "--home", str(tmp_path / "source"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert f'"app_hash": "{source.app_hash.hex()}"' in done.stdout


@given(st.binary(max_size=200))
def test_invalid_bytes_never_break_the_reader(data: bytes) -> None:
    for decode in (decode_chunk, decode_manifest):
        with contextlib.suppress(InvalidSnapshot):
            decode(data)


def test_known_answers() -> None:
    """Bytes that other versions must read."""
    manifest = Manifest(chain_id="c-1", height=7, app_hash=bytes(range(32)), chunk_hashes=(b"\x01" * 32, b"\x02" * 32))
    expected = "dccd1d146e9cc986642567cb1e08f744f288b6c80e9786f83d06e3703a0da40d"
    assert compute_snapshot_hash(encode(manifest)).hex() == expected
    assert [chunk.hex() for chunk in cut_chunks([(0, b"a/x", b"v"), (1, b"k", b"w")])] == [
        "9300c403612f78c401769301c4016bc40177"
    ]
