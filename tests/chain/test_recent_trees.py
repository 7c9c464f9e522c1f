"""Proofs of the newest blocks: which are kept, and what a query for them may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from abci_driver import Driver

from chain.abci import abci_pb2 as pb
from chain.abci import recent_trees
from chain.abci.application import ChainApplication
from chain.abci.queries import MAX_KEYS
from chain.abci.recent_trees import RecentTrees
from chain.core.accounts import ACCOUNT_PREFIX
from chain.core.genesis import process_genesis
from chain.core.smt import Proof, Tree, verify
from chain.store import Store


def test_trees_are_kept_by_number_and_by_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_trees, "MAX_TREES", 5)
    monkeypatch.setattr(recent_trees, "MAX_CHANGES", 100)
    trees = RecentTrees()
    assert trees.get(0) is None
    made = [Tree().update([(b"%d" % height, b"x")]) for height in range(12)]
    for height in range(8):
        trees.add(height, made[height], 1)
    assert [height for height in range(9) if trees.get(height) is not None] == [3, 4, 5, 6, 7]
    assert trees.first_height == 3
    assert trees.get(5) is made[5]
    trees.add(8, made[8], 98)
    assert [height for height in range(10) if trees.get(height) is not None] == [6, 7, 8]
    trees.add(9, made[9], 1_000)
    assert [height for height in range(11) if trees.get(height) is not None] == [9], "the newest is always there"
    trees.add(10, made[10], 0)
    assert trees.get(9) is None
    assert trees.get(10) is made[10]
    trees.clear()
    assert trees.get(10) is None
    assert trees.first_height is None


def test_many_keys_are_proven_against_one_block(
    tmp_path: Path, contracts: Any, app_state: dict[str, Any], alice: Any
) -> None:
    store = Store(tmp_path)
    application = ChainApplication(store, contracts, process_genesis)
    driver = Driver(application, app_state)
    driver.init_chain()
    driver.init_chain()  # again, as after a stop before block 1: nothing of the first is left
    keys = [ACCOUNT_PREFIX + alice.address, ACCOUNT_PREFIX + bytes(20), b"none"]
    seen = []
    for nonce in range(3):
        driver.block([alice.raw(nonce)])
        seen.append((driver.height, driver.app_hash, [store.committed.state.get(key) for key in keys]))
    for height, root, values in [*seen, (0, *seen[-1][1:])]:
        request = pb.RequestQuery(path="/proofs", data=msgpack.packb(keys), height=height)
        answer = application.process_query(request)
        assert (answer.code, answer.height) == (0, height or driver.height)
        for key, value, (siblings, other) in zip(keys, values, msgpack.unpackb(answer.value), strict=True):
            verify(root, key, value, Proof(siblings=tuple(siblings), other_leaf=tuple(other) or None))
    for data, height, said in (
        (b"\xc1", 0, "no msgpack"),
        (b"\x91" * 5_000, 0, "no msgpack"),
        (msgpack.packb(7), 0, "no list"),
        (msgpack.packb([]), 0, "no list"),
        (msgpack.packb([b"k"] * (MAX_KEYS + 1)), 0, "no list"),
        (msgpack.packb(["text"]), 0, "1 to 500 bytes"),
        (msgpack.packb([b"k" * 501]), 0, "1 to 500 bytes"),
        (msgpack.packb([b"k"]), 99, "block 99 are not kept, those of 0 to 3 are"),
        (msgpack.packb([b"k"]), -1, "block -1 are not kept"),
    ):
        answer = application.process_query(pb.RequestQuery(path="/proofs", data=data, height=height))
        assert answer.code != 0
        assert said in answer.log
    restarted = ChainApplication(store, contracts, process_genesis)
    request = pb.RequestQuery(path="/proofs", data=msgpack.packb(keys), height=driver.height)
    assert restarted.process_query(request).code == 0
    assert restarted.process_query(pb.RequestQuery(path="/proofs", data=msgpack.packb(keys), height=1)).code != 0
    store.close()
