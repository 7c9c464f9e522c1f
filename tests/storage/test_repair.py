"""Missing and damaged shards come back from any k others; expired ones never do (cases 55, 62, 65)."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from da.blocking import BlobClient
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from storage import node_cli
from storage.core.repair import (
    LEAST_BLOCKS,
    BlobFacts,
    MissingShard,
    plan_missing,
    plan_repairs,
    should_rebuild,
)
from storage.node.keys import ReceiptKey
from storage.node.repairer import Repairer
from storage.node.watch import ChainWatch
from storage.node.workplace import Workplace

pytestmark = pytest.mark.integration
DATA = random.Random(3).randbytes(3_000_000)


def facts(number: int, *, release: int = 1_000, tier: Tier = Tier.HOT, is_live: bool = True) -> BlobFacts:
    return BlobFacts(
        blob=BlobId(bytes([number]) * 32),
        tier=tier,
        epoch=Epoch(1),
        expiry=Height(release),
        release=Height(release),
        is_live=is_live,
    )


def missing(number: int, holders: int, **changes: Any) -> MissingShard:
    return MissingShard(
        facts=facts(number, **changes),
        shard=ShardIndex(0),
        holders=tuple(ShardIndex(seat) for seat in range(1, holders + 1)),
        num_data=2,
    )


def test_the_lowest_margin_comes_first_and_what_goes_soon_is_left() -> None:
    plan = plan_repairs(
        [
            missing(1, 3),
            missing(2, 2),
            missing(3, 1),
            missing(4, 2, release=5_000),
            missing(5, 0, is_live=False),
            missing(6, 0, tier=Tier.TEMPORARY),
            missing(7, 0, release=100 + LEAST_BLOCKS),
        ],
        Height(100),
    )
    assert [item.facts.blob[0] for item in plan] == [3, 4, 2, 1]
    assert [item.margin for item in plan] == [-1, 0, 0, 1]


@given(st.dictionaries(st.integers(1, 5), st.sets(st.integers(0, 9))), st.sets(st.integers(0, 9)))
def test_missing_is_what_others_have(inventories: dict[int, set[int]], own: set[int]) -> None:
    names = {number: BlobId(bytes([number]) * 32) for number in range(10)}
    found = plan_missing(
        {ShardIndex(seat): [names[n] for n in blobs] for seat, blobs in inventories.items()}, [names[n] for n in own]
    )
    expected = set().union(*inventories.values()) - own
    assert set(found) == {names[n] for n in expected}
    for blob, holders in found.items():
        assert holders == tuple(sorted(seat for seat, blobs in inventories.items() if blob[0] in blobs))


def test_pinned_blobs_are_rebuilt() -> None:
    assert should_rebuild(facts(1, release=2**64 - 1), Height(10**9))


def get_status(node: Any) -> dict[str, Any]:
    with urllib.request.urlopen(node.url + "/v1/status", timeout=5) as answer:
        value: dict[str, Any] = json.load(answer)
    return value


def put(fleet: Any, client: BlobClient, committee: Committee, data: bytes, *, release: int = 5_000) -> BlobId:
    certificate = client.disperse(
        data,
        committee=committee,
        genesis_hash=bytes(range(32)),
        tier=Tier.HOT,
        expiry=Height(release),
        leaf_bytes=65536,
    )
    blob = certificate.terms.blob
    releases = {**fleet.chain["releases"], blob.hex(): release}
    known = {**fleet.chain["facts"], blob.hex(): [1, int(committee.epoch), release]}
    fleet.save_chain(releases=releases, facts=known)
    return blob


def has_shard(node: Any, blob: BlobId, seat: int) -> bool:
    return bool((node.home / "shards" / blob.hex()[:2] / f"{blob.hex()}.{seat}.shard").exists())


def has_all(nodes: list[Any], blob: BlobId) -> bool:
    return all(has_shard(node, blob, seat) for seat, node in enumerate(nodes))


def test_a_fleet_heals(fleet: Any, wait_until: Any) -> None:
    """A deleted file, a flipped bit, a lost disk and a seat that was away: all four have their shards again."""
    nodes = fleet.start_all([f"n{i}" for i in range(4)], is_keeping=True)
    committee = fleet.seat(nodes)
    with BlobClient(deadline_seconds=10) as client:
        blobs = [put(fleet, client, committee, DATA[i : 2_000_000 + i]) for i in range(3)]
        old = put(fleet, client, committee, DATA[:100_000], release=1_000)
        wait_until(
            lambda: all(has_shard(node, blob, i) for blob in blobs for i, node in enumerate(nodes)), "all signed"
        )
        # a file under a live node, and a flipped bit: the scrubber finds them
        path = nodes[0].home / "shards" / blobs[0].hex()[:2] / f"{blobs[0].hex()}.0.shard"
        path.unlink()
        flipped = nodes[1].home / "shards" / blobs[1].hex()[:2] / f"{blobs[1].hex()}.1.shard"
        with flipped.open("r+b") as file:
            file.seek(500_000)
            byte = file.read(1)
            file.seek(500_000)
            file.write(bytes([byte[0] ^ 1]))
        # a place that the medium can't read: a folder gives an error at each read, as a bad sector does
        bad_place = nodes[1].home / "shards" / blobs[2].hex()[:2] / f"{blobs[2].hex()}.1.shard"
        bad_place.unlink()
        bad_place.mkdir()
        url = f"{nodes[1].url}/v1/blobs/{blobs[2].hex()}/shards/1"
        with pytest.raises(urllib.error.HTTPError, match="404"):  # which notes a loss: its repair fails, and no more
            urllib.request.urlopen(url, timeout=10)
        wait_until(lambda: has_shard(nodes[0], blobs[0], 0), "the deleted file is back")
        wait_until(lambda: get_status(nodes[1])["repair"]["rebuilt"] >= 1, "the damaged one is rebuilt")
        wait_until(bad_place.is_file, "what can't be read is rebuilt")
        repair = get_status(nodes[0])["repair"]
        assert repair["bytes_read"] == 2 * repair["bytes_rebuilt"] == 2 * 1_000_000, "k bytes are read for one"
        # the whole disk but the keys, while an old blob expires
        assert nodes[2].stop() == 0
        for name in ("shards", "index", "small", "segments"):
            shutil.rmtree(nodes[2].home / name, ignore_errors=True)
        fleet.save_chain(height=1_100)
        nodes[2] = fleet.start("n2", is_keeping=True, port=int(nodes[2].url.rsplit(":", 1)[1]))
        wait_until(lambda: all(has_shard(nodes[2], blob, 2) for blob in blobs), "an empty disk fills")
        assert not has_shard(nodes[2], old, 2), "nothing expired comes back"
        # a put while one was away
        nodes[3].kill()
        late = put(fleet, client, committee, DATA[:1_500_000])
        nodes[3] = fleet.start("n3", is_keeping=True, port=int(nodes[3].url.rsplit(":", 1)[1]))
        wait_until(lambda: has_shard(nodes[3], late, 3), "who was away has its shard")
        # a light client sees it, and a home that is shut down is looked through
        sampling = client.sample(late, committee=committee, num_samples=2)
        assert (sampling.num_good, sampling.faults) == (2, ())
        assert sampling.miss == (0, 6), "two of four with k = 2: one shard alone can't give two good answers"
        assert nodes[3].stop() == 0
        checked = CliRunner().invoke(node_cli.app, ["doctor", "--home", str(nodes[3].home), "--json"])
        assert checked.exit_code == 0, checked.output
        assert json.loads(checked.stdout)["good"] >= 4
        bad = nodes[3].home / "shards" / late.hex()[:2] / f"{late.hex()}.3.shard"
        bad.write_bytes(bytes(len(bad.read_bytes())))
        checked = CliRunner().invoke(node_cli.app, ["doctor", "--home", str(nodes[3].home), "--json"])
        assert (checked.exit_code, json.loads(checked.stdout)["damaged"]) == (7, [f"{late.hex()}.3"])
        nodes[3] = fleet.start("n3", is_keeping=True, port=int(nodes[3].url.rsplit(":", 1)[1]))
        # then any two nodes are enough
        for node in nodes[:2]:
            node.kill()
        for index, blob in enumerate(blobs):
            assert client.retrieve(blob, committee=committee, max_bytes=1 << 24).data == DATA[index : 2_000_000 + index]
        audits = get_status(nodes[2])["audits"]
        assert audits["liars_named"] == 0


def test_a_liar_among_the_sources_is_named_and_left_out(fleet: Any, wait_until: Any) -> None:
    """Case 65: any k good shards suffice, the bad are listed."""
    nodes = fleet.start_all([f"n{i}" for i in range(4)])
    committee = fleet.seat(nodes)
    with BlobClient(deadline_seconds=10) as client:
        blob = put(fleet, client, committee, DATA[:2_000_000])
        wait_until(lambda: has_all(nodes, blob), "all signed")
    assert nodes[0].stop() == 0
    (nodes[0].home / "shards" / blob.hex()[:2] / f"{blob.hex()}.0.shard").unlink()
    liar = nodes[1].home / "shards" / blob.hex()[:2] / f"{blob.hex()}.1.shard"
    assert nodes[1].stop() == 0
    data = bytearray(liar.read_bytes())
    data[700_000] ^= 0xFF
    liar.write_bytes(data)
    nodes[1] = fleet.start("n1", port=int(nodes[1].url.rsplit(":", 1)[1]))
    nodes[0] = fleet.start("n0", is_keeping=True, port=int(nodes[0].url.rsplit(":", 1)[1]))
    wait_until(lambda: get_status(nodes[0])["repair"]["rebuilt"] == 1, "rebuilt without the liar")
    assert has_shard(nodes[0], blob, 0)
    assert get_status(nodes[0])["repair"]["failed"] == 0

    def is_named() -> bool:
        fleet.save_chain(height=fleet.chain["height"] + 1)
        audits = get_status(nodes[0])["audits"]
        return bool(audits["leaves_good"] and audits["liars_named"] and nodes[1].url in audits["faults_by_node"])

    wait_until(is_named, "the fold audit names the liar, whose random leaves are mostly good")
    assert set(get_status(nodes[0])["audits"]["faults_by_node"]) == {nodes[1].url}
    with urllib.request.urlopen(nodes[0].url + "/", timeout=5) as page:
        assert "faults by node" in page.read().decode()


async def test_a_thousand_repairs_against_dead_peers_leave_no_trace(
    open_engine: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 55: failed syncs must not stay in memory, nor their sockets, nor their staging files."""
    key = ReceiptKey(bytes(32))
    seats = [Seat(index=ShardIndex(index), key=bytes([index + 1]) * 32, url="http://127.0.0.1:1") for index in range(4)]
    seats[0] = Seat(index=ShardIndex(0), key=key.public, url="http://127.0.0.1:1")
    chain.committees = (Committee(epoch=Epoch(1), seats=tuple(seats)),)
    engine = open_engine()
    names = [BlobId(number.to_bytes(32, "big")) for number in range(1_000)]
    chain.facts = {name: replace(facts(1), blob=name) for name in names}
    monkeypatch.setattr(logging.getLogger("storage.node.repairer"), "disabled", True)
    with ThreadPoolExecutor(2) as threads:
        watch = ChainWatch(chain, threads, poll_seconds=60)
        await watch.refresh()
        assert watch.view is not None
        work = Workplace(engine=engine, watch=watch, chain=chain, key=key.public, questions=threads, disk=threads)
        repairer = Repairer(work, bytes_per_second=1 << 30, every_blocks=1)
        sizes = []
        for start in range(0, 1_000, 250):
            for name in names[start : start + 250]:
                engine.losses.add(name, ShardIndex(0), "missing")
            await repairer._repair(watch.view, with_inventories=False)
            gc.collect()
            sizes.append((len(gc.get_objects()), len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())))
        await repairer._links.close()
    assert repairer.counts.failed == 1_000
    assert sizes[-1][0] - sizes[0][0] < 500, f"objects, descriptors, tasks: {sizes}"
    assert sizes[-1][1:] == sizes[0][1:]
    assert not engine.losses.has_some()
    assert list((engine.disk.home / "staging").iterdir()) == []
