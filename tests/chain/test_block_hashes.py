"""BLOCKHASH: the hashes that JSON-RPC shows, the same on a node that replays, prunes, or was restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from abci_driver import Driver
from eth_account import Account

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.core import snapshots as core
from chain.core.block_hashes import NUM_RECENT_BLOCKS, get_next_height, get_stored_hash
from chain.core.evm.addresses import compute_create_address
from chain.core.snapshots import cut_chunks, decode_chunk, decode_manifest
from chain.snapshots import SnapshotDirectory
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis

CHAIN_ID = 7_777
KEY = Account.from_key(b"\x44" * 32)
SENDER = bytes.fromhex(KEY.address[2:])
CODE = bytes.fromhex("600c600c600039600c6000f3" + "5f3540805f555f5260205ff3")
"""Initcode: puts BLOCKHASH of calldata's number into slot 0 and returns it."""
CONTRACT = compute_create_address(SENDER, 0)


class Node(Driver):
    """A node with the real contracts."""

    def __init__(self, home: Path, *, rules: int = 3, retain_blocks: int = 0) -> None:
        self.store = Store(home / "app", map_bytes=64 << 20)
        self.directory = SnapshotDirectory(home / "snapshots")
        self.nonce = 0
        app_state = {"evmChainId": CHAIN_ID, "alloc": {KEY.address: str(10**24)}, "rules": rules}
        application = ChainApplication(
            self.store, CONTRACTS, process_system_genesis, snapshots=self.directory, retain_blocks=retain_blocks
        )
        super().__init__(application, app_state)

    def deploy(self) -> None:
        self.init_chain()
        self.block([self.sign(None, CODE)])

    def sign(self, to: bytes | None, data: bytes) -> bytes:
        request: dict[str, Any] = {"type": 2, "chainId": CHAIN_ID, "nonce": self.nonce, "value": 0, "gas": 300_000}
        request |= {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 0, "data": data}
        self.nonce += 1
        return bytes(KEY.sign_transaction({**request, "to": to} if to else request).raw_transaction)

    def ask(self, height: int) -> bytes:
        """Have the contract look at a height in a block of its own."""
        (result,) = self.block([self.sign(CONTRACT, height.to_bytes(32, "big"))]).tx_results
        assert result.code == 0, result.log
        return bytes(result.data)

    def shown(self, height: int) -> bytes:
        """What JSON-RPC shows."""
        block = self.store.committed.block(height)
        assert block is not None
        return block.hash


MakeNode = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeNode]:
    nodes: list[Node] = []

    def create(name: str, **options: Any) -> Node:
        nodes.append(Node(tmp_path / name, **options))
        return nodes[-1]

    yield create
    for node in nodes:
        node.store.close()


def test_code_sees_the_hashes_that_clients_see(make: MakeNode) -> None:
    node = make("node")
    node.deploy()
    for _ in range(3):
        node.block([])
    seen = [node.ask(height) for height in range(node.height)]
    assert seen == [node.shown(height) for height in range(len(seen))]
    assert node.ask(node.height + 1) == node.ask(node.height + 9) == bytes(32), "itself, and what is to come"


def test_only_the_last_256_are_there(make: MakeNode) -> None:
    node = make("node")
    node.deploy()
    for _ in range(NUM_RECENT_BLOCKS + 40):
        node.block([])
    newest = node.height
    assert node.ask(newest - NUM_RECENT_BLOCKS) == bytes(32)
    assert node.ask(node.height + 1 - NUM_RECENT_BLOCKS) == node.shown(node.height - NUM_RECENT_BLOCKS)
    assert node.ask(newest) == node.shown(newest)
    num_keys = sum(1 for _ in node.store.committed.state.iterate(b"h/", b"h0"))
    assert num_keys == NUM_RECENT_BLOCKS + 1


def test_an_idle_chain_keeps_its_app_hash(make: MakeNode) -> None:
    node = make("node")
    node.deploy()
    before = node.app_hash
    for _ in range(5):
        node.block([])
        assert node.app_hash == before


def test_replay_and_pruning_change_nothing(make: MakeNode) -> None:
    whole, pruned = make("whole"), make("pruned", retain_blocks=2)
    for node in (whole, pruned):
        node.deploy()
        for _ in range(12):
            node.block([])
    assert pruned.store.committed.block(2) is None
    for height in (2, 5, whole.height):
        assert whole.ask(height) == pruned.ask(height) == whole.shown(height)
        assert whole.app_hash == pruned.app_hash


def _restore(source: Node, target: Node, metadata: bytes, chunks: list[bytes]) -> int:
    manifest = decode_manifest(metadata)
    snapshot = pb.Snapshot(
        height=manifest.height,
        format=core.FORMAT,
        chunks=len(chunks),
        hash=core.compute_snapshot_hash(metadata),
        metadata=metadata,
    )
    request = pb.RequestOfferSnapshot(snapshot=snapshot, app_hash=source.app_hash)
    assert target.application.process_offer_snapshot(request).result == pb.ResponseOfferSnapshot.ACCEPT
    for index, chunk in enumerate(chunks):
        part = pb.RequestApplySnapshotChunk(index=index, chunk=chunk)
        result = target.application.process_apply_snapshot_chunk(part).result
        if result != pb.ResponseApplySnapshotChunk.ACCEPT:
            return int(result)
    target.height, target.app_hash, target.nonce = manifest.height, source.app_hash, source.nonce
    return int(pb.ResponseApplySnapshotChunk.ACCEPT)


@pytest.mark.parametrize("num_idle", [0, 1, 7, NUM_RECENT_BLOCKS + 3])
def test_a_restored_node_sees_the_same(make: MakeNode, num_idle: int) -> None:
    """Also hashes of blocks before the snapshot, of which it has no record."""
    source, target = make("source"), make("target")
    source.deploy()
    source.ask(0)
    for _ in range(num_idle):
        source.block([])
    assert get_next_height(source.store.committed.state) == 2
    chunks = list(cut_chunks(source.store.committed.iterate_entries()))
    manifest = source.directory.make(source.store.committed)
    assert _restore(source, target, core.encode_manifest(manifest), chunks) == pb.ResponseApplySnapshotChunk.ACCEPT
    height = source.height
    for wanted in (height, height - 1, max(height - 3, 0)):
        assert source.ask(wanted) == target.ask(wanted) == source.shown(wanted)
        assert source.app_hash == target.app_hash
    assert list(target.store.committed.iterate_entries()) == list(source.store.committed.iterate_entries())


def test_invalid_hashes_in_a_snapshot(make: MakeNode) -> None:
    source = make("source")
    source.deploy()
    for _ in range(4):
        source.block([])
    honest = list(decode_chunk(next(iter(cut_chunks(source.store.committed.iterate_entries())))))
    recent = [entry for entry in honest if entry[0] == core.EntryKind.RECENT_HASH]
    assert [int.from_bytes(key, "big") for _, key, _ in recent] == [1, 2, 3, 4, 5]
    rest = honest[: -len(recent)]
    wrong = {
        "missing": recent[:-1],
        "too many": [(recent[0][0], bytes(8), bytes(32)), *recent],
        "short": [*recent[:1], (recent[1][0], recent[1][1], b"\x01"), *recent[2:]],
        "other block": [*recent[:-1], (recent[-1][0], recent[-1][1], bytes(32))],
        "other parent": [*recent[:-2], (recent[-2][0], recent[-2][1], bytes(32)), recent[-1]],
    }
    for name, entries in wrong.items():
        target = make(name)
        chunks = list(cut_chunks([*rest, *entries]))
        manifest = core.Manifest(
            chain_id="test-chain",
            height=source.height,
            app_hash=source.app_hash,
            chunk_hashes=tuple(core.sha256(chunk) for chunk in chunks),
        )
        result = _restore(source, target, core.encode_manifest(manifest), chunks)
        assert result == pb.ResponseApplySnapshotChunk.REJECT_SNAPSHOT, name
    # What lies further back can't be checked at once: the first block with transactions gives another app hash.
    target = make("deep")
    chunks = list(cut_chunks([*rest, (recent[0][0], recent[0][1], bytes(32)), *recent[1:]]))
    manifest = core.Manifest(
        chain_id="test-chain",
        height=source.height,
        app_hash=source.app_hash,
        chunk_hashes=tuple(core.sha256(chunk) for chunk in chunks),
    )
    assert _restore(source, target, core.encode_manifest(manifest), chunks) == pb.ResponseApplySnapshotChunk.ACCEPT
    source.ask(0)
    target.ask(0)
    assert source.app_hash != target.app_hash


def test_before_rules_3_there_are_none(make: MakeNode) -> None:
    node = make("old", rules=2)
    node.deploy()
    assert node.ask(1) == bytes(32)
    assert get_next_height(node.store.committed.state) is None
    assert get_stored_hash(node.store.committed.state, 1) is None
