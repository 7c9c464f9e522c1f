"""Stores that lie, to readers, writers and repair: the bytes are right, the liar is named, nobody waits for it.

Four seats stand one liar (f = 1). It sits in the first seat, is asked first, and has signed for everything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from da.blocking import BlobClient
from da.codec import encode_blob
from da.core.blob import encode_header
from da.core.errors import FaultKind
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from storage.core.repair import BlobFacts, compute_window_end, plan_missing
from storage.node import auditor, repairer
from storage.node.keys import ReceiptKey
from storage.node.proofs import is_intact
from storage.node.repairer import MAX_PAGES, Repairer
from storage.node.watch import ChainWatch
from storage.node.workplace import Workplace

GENESIS_HASH = bytes(range(32))
PATIENCE = 12.0
"""Seconds that any read may take, beside other work on two cores: far less than the liar's stalling."""

HABITS = ("forget", "other bytes", "another blob", "cut", "stall", "drip", "endless", "junk")


@pytest.fixture(scope="module")
def town(shared_fleet: Any, lying: Any) -> Iterator[tuple[Any, Committee]]:
    """A liar in seat 0 and three honest nodes, over the fleet's chain file."""
    nodes = shared_fleet.start_all(["n1", "n2", "n3"])
    liar = lying.LyingStore(ReceiptKey(bytes(31) + b"\x01"), genesis_hash=GENESIS_HASH, habit=lying.Habit.FORGET)
    seats = [(liar.key.public, liar.url), *((node.key, node.url) for node in nodes)]
    entry = {"epoch": 1, "seats": [{"key": key.hex(), "url": url} for key, url in seats]}
    shared_fleet.save_chain(height=101, committees=[entry])
    yield liar, make_committee(seats)
    liar.close()


def make_committee(seats: list[tuple[bytes, str]]) -> Committee:
    return Committee(
        epoch=Epoch(1),
        seats=tuple(Seat(index=ShardIndex(index), key=key, url=url) for index, (key, url) in enumerate(seats)),
    )


def put(client: BlobClient, committee: Committee, data: bytes, tier: Tier = Tier.HOT) -> Any:
    return client.disperse(data, committee=committee, genesis_hash=GENESIS_HASH, tier=tier, expiry=Height(90_000))


@pytest.mark.integration
@pytest.mark.parametrize("habit", HABITS)
def test_a_read_from_a_liar_is_right_and_soon(town: Any, lying: Any, habit: str) -> None:
    """Wrong bytes of the right length, an old shard under a new name, half a shard, none, or one without end."""
    liar, committee = town
    liar.habit = lying.Habit.FORGET
    data = random.Random(habit).randbytes(3_000_000)
    with BlobClient(deadline_seconds=60) as client:
        put(client, committee, data[:1_000_000])  # which is what it gives out as another's
        certificate = put(client, committee, data)
        blob = certificate.terms.blob
        liar.habit = lying.Habit(habit)
        started = time.monotonic()
        found = client.retrieve(blob, committee=committee, max_bytes=len(data))
        assert found.data == data
        assert 0 not in found.report.seats
        reader = client.open_ranges(blob, committee=committee)
        for start in (0, 777_777, 2_900_000):
            assert client.read_range(reader, start, start + 50_000) == data[start : start + 50_000]
        assert time.monotonic() - started < PATIENCE
        if habit not in ("stall", "drip"):  # those are left for others before they have failed
            named = {fault.seat: fault for fault in found.report.faults}
            assert set(named) == {0}
            if habit in ("other bytes", "another blob"):
                assert named[0].kind in (FaultKind.BAD_SHARD, FaultKind.BAD_HEADER)


@pytest.mark.integration
def test_a_receipt_over_other_terms_is_no_receipt(town: Any) -> None:
    liar, committee = town
    liar.signs_wrongly = True
    try:
        with BlobClient(deadline_seconds=10) as client:
            certificate = put(client, committee, random.Random(3).randbytes(50_000))
    finally:
        liar.signs_wrongly = False
    assert [seat for seat, _ in certificate.signatures] == [1, 2, 3]


@pytest.mark.parametrize("habit", ["stall", "other bytes"])
async def test_repair_is_not_held_up_by_a_liar(
    town: Any, lying: Any, habit: str, open_engine: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists blobs without end that nobody has, and is asked for real ones first: it costs its deadline once."""
    liar, four = town
    liar.habit = lying.Habit.FORGET
    key = ReceiptKey(bytes(31) + b"\x09")
    chance = random.Random(habit)
    blobs = []
    with BlobClient(deadline_seconds=10) as client:
        for _ in range(8):
            blobs.append(put(client, four, chance.randbytes(400_000)).terms.blob)
    seats = (*four.seats[:3], replace(four.seats[3], key=key.public))
    chain.committees = (Committee(epoch=Epoch(1), seats=seats),)
    chain.facts = {
        blob: BlobFacts(
            blob=blob, tier=Tier.HOT, epoch=Epoch(1), expiry=Height(90_000), release=Height(90_000), is_live=True
        )
        for blob in blobs
    }
    asked: list[BlobId] = []
    get_facts = chain.get_facts
    monkeypatch.setattr(chain, "get_facts", lambda blob: asked.append(blob) or get_facts(blob))
    monkeypatch.setattr(repairer, "HEADER_SECONDS", 0.4)
    monkeypatch.setattr(repairer, "STREAM_SECONDS", 2.0)
    liar.habit = lying.Habit(habit)
    liar.asked.clear()
    engine = open_engine()
    with ThreadPoolExecutor(3) as threads:
        watch = ChainWatch(chain, threads, poll_seconds=60)
        await watch.refresh()
        assert watch.view is not None
        work = Workplace(engine=engine, watch=watch, chain=chain, key=key.public, questions=threads, disk=threads)
        made = Repairer(work, bytes_per_second=1 << 30, every_blocks=1)
        await made._repair(watch.view, with_inventories=True)
        await made._links.close()
    assert (made.counts.rebuilt, made.counts.failed) == (8, 0)
    assert all(is_intact(engine, blob, ShardIndex(3)) for blob in blobs)
    assert set(asked) >= set(blobs)
    assert not any(blob.startswith(bytes(24)) for blob in asked), "the chain is not asked about inventions"
    assert liar.asked["inventory"] <= MAX_PAGES
    assert liar.asked["header"] + liar.asked["shard"] <= 2, "then it is asked last"


def test_inventories_are_compared_as_far_as_honest_ones_reach() -> None:
    a, b, c = (BlobId(bytes([number]) * 32) for number in (1, 5, 9))
    assert compute_window_end([None, None, None], num_liars=1) is None
    assert compute_window_end([a, None, None], num_liars=1) is None, "one that lists without end holds up nobody"
    assert compute_window_end([a, c, b, None], num_liars=1) == b
    assert compute_window_end([a, c, b], num_liars=0) == a


def test_what_too_few_list_is_not_asked_about() -> None:
    one, two = BlobId(bytes(32)), BlobId(bytes([1]) * 32)
    listed = {ShardIndex(0): [one, two], ShardIndex(1): [two]}
    assert plan_missing(listed, [], least_holders=2) == {two: (0, 1)}


async def test_stallers_cost_an_audit_one_deadline_and_not_one_each(
    lying: Any, open_engine: Any, make_shard: Any, keep: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ReceiptKey(bytes(31) + b"\x05")
    liars = [
        lying.LyingStore(ReceiptKey(bytes(31) + bytes([number])), genesis_hash=GENESIS_HASH, habit=lying.Habit.STALL)
        for number in range(20, 26)
    ]
    seats = [(key.public, "http://127.0.0.1:1"), *((liar.key.public, liar.url) for liar in liars)]
    chain.committees = (make_committee(seats),)
    encoded = encode_blob(random.Random(4).randbytes(30_000), num_data=3, num_shards=7, leaf_bytes=1024)
    engine = open_engine()
    offer = replace(
        make_shard(b"x").offer,
        blob=encoded.blob,
        header=encoded.header,
        header_bytes=encode_header(encoded.header),
        shard_bytes=sum(map(len, encoded.shards[0])),
        expiry=Height(90_000),
    )
    with engine.upload(offer) as upload:
        upload.write(b"".join(encoded.shards[0]))
        engine.commit(upload)
    chain.facts = {
        encoded.blob: BlobFacts(
            blob=encoded.blob,
            tier=Tier.HOT,
            epoch=Epoch(1),
            expiry=Height(90_000),
            release=Height(90_000),
            is_live=True,
        )
    }
    monkeypatch.setattr(auditor, "DEADLINE_SECONDS", 0.6)
    try:
        with ThreadPoolExecutor(3) as threads:
            watch = ChainWatch(chain, threads, poll_seconds=60)
            await watch.refresh()
            work = Workplace(engine=engine, watch=watch, chain=chain, key=key.public, questions=threads, disk=threads)
            made = auditor.Auditor(work, every_blocks=1, chance=random.Random(1))
            started = time.monotonic()
            await made._audit_round(Height(chain.height))
            assert time.monotonic() - started < 6 * 0.6, "leaves, then folds: twice the deadline, not twelve times"
            assert made.counts.leaves_failed == 6
            await made._links.close()
    finally:
        for liar in liars:
            liar.close()
