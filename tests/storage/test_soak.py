"""Nodes die, hang, lie, lose files, get altered ones and fill up, while blobs come, are read, given back and end.

A node that lies is one whose key and address a liar has taken over (lying_store.py): it signs for what it is given,
keeps none of it, and answers reads with other bytes, slowly, without end or not at all. At most f nodes are at fault at
a time: no byte is lost, every read is right; at the end counters equal the disk, and when all leases are over nothing
is left. ``python tests/storage/test_soak.py --minutes 25`` goes on for as long as asked and prints what it did;
``pytest -m soak`` does so for some ten seconds, and for half an hour.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from da.blocking import BlobClient
from da.core.errors import NotEnoughReceipts
from da.core.types import BlobId, Committee, Height, Tier
from storage.core.expiry import GRACE_BLOCKS
from storage.core.repair import LEAST_BLOCKS
from storage.node.doctor import Diagnosis, diagnose
from storage.node.engine import StoreEngine
from storage.node.keys import load_or_create_receipt_key

GENESIS_HASH = bytes(range(32))
BLOCK_SECONDS = 0.1
HEAL_SECONDS = 120.0
"""Longest wait until a node has all its shards again."""
MAX_LIVE = 60
"""Blobs at a time."""
MAX_BYTES = 1_500_000
CAPACITY = 1 << 28
FULL = 1 << 20
"""Capacity of a node that is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A blob that was certified, and how to make its bytes again."""

    blob: BlobId
    seed: int
    size_bytes: int
    tier: Tier
    release: int


class Soak:
    """One fleet, its chain, what was promised, and what went wrong so far."""

    def __init__(self, fleet: Any, lying: Any, *, num_nodes: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fleet = fleet
        self.lying = lying
        self.counts: Counter[str] = Counter()
        self.live: dict[BlobId, Put] = {}
        self.nodes = fleet.start_all([f"n{index}" for index in range(num_nodes)], is_keeping=True, capacity=CAPACITY)
        self.committee: Committee = fleet.seat(self.nodes)
        self.num_faulty = (num_nodes - 1) // 3
        self._lock = threading.Lock()
        self._put_lock = threading.Lock()
        """Held while a blob is put and certified."""
        self._num_liars = 0
        self._owed = [self._lie, self._choke, self._kill]
        """Faults that come first, so that the shortest soak has each of them."""
        self._stop = threading.Event()
        self._failure: list[BaseException] = []

    @property
    def height(self) -> int:
        height: int = self.fleet.chain["height"]
        return height

    def run(self, seconds: float) -> None:
        """Work for ``seconds``, heal, count, let everything end, and look again."""
        end = time.monotonic() + seconds
        with BlobClient(deadline_seconds=8.0) as client:
            threads = [
                threading.Thread(target=self._guard, args=(work,), name=name)
                for name, work in (
                    ("clock", self._tick),
                    ("writer", lambda: self._write(client)),
                    ("reader", lambda: self._read(client)),
                )
            ]
            for thread in threads:
                thread.start()
            try:
                while (time.monotonic() < end or self._owed) and not self._failure:
                    self._break_something()
                self._stop.set()
                for thread in threads[1:]:
                    thread.join(60)
                assert not self._failure, self._failure
                self._heal(range(len(self.nodes)))
                for put in list(self.live.values()):
                    self._check(client, put)
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join(60)
        assert not self._failure, self._failure
        self._compare_with_disk()
        self._let_all_end()

    # -- the world outside

    def _tick(self) -> None:
        while not self._stop.wait(BLOCK_SECONDS):
            with self._lock:
                height = self.height + 1
                for blob in [blob for blob, put in self.live.items() if put.release <= height + 5]:
                    del self.live[blob]
                self.fleet.save_chain(height=height)

    def _write(self, client: BlobClient) -> None:
        chance = random.Random(self.chance.randrange(2**32))
        while not self._stop.wait(0.05):
            if len(self.live) >= MAX_LIVE:
                continue
            with self._put_lock:
                self._put(client, chance)

    def _put(self, client: BlobClient, chance: random.Random) -> None:
        size, seed = chance.choice([chance.randrange(1, 5_000), chance.randrange(1, MAX_BYTES)]), self._new_seed()
        tier = chance.choice([Tier.TEMPORARY, Tier.HOT, Tier.HOT, Tier.COLD])
        if self._num_liars and tier is Tier.TEMPORARY:
            tier = Tier.HOT  # what a liar has signed for must be repaired before others fail
        release = self.height + (150 if tier is Tier.TEMPORARY else chance.randrange(200, 1_500))
        try:
            certificate = client.disperse(
                make_bytes(seed, size),
                committee=self.committee,
                genesis_hash=GENESIS_HASH,
                tier=tier,
                expiry=Height(release),
                leaf_bytes=chance.choice([1_024, 65_536]),
            )
        except NotEnoughReceipts:
            # Too few signed in time: nothing was promised, and what was stored ends by itself.
            self.counts["puts that were refused"] += 1
            return
        blob = certificate.terms.blob
        self._certify(Put(blob=blob, seed=seed, size_bytes=size, tier=tier, release=release))

    def _certify(self, put: Put) -> None:
        with self._lock:
            chain = self.fleet.chain
            facts = [int(put.tier), int(self.committee.epoch), put.release]
            self.fleet.save_chain(
                releases={**chain["releases"], put.blob.hex(): put.release},
                signed={**chain["signed"], put.blob.hex(): put.release},
                facts={**chain["facts"], put.blob.hex(): facts},
            )
            self.live[put.blob] = put
            self.counts["puts"] += 1
            self.counts["bytes put"] += put.size_bytes

    def _read(self, client: BlobClient) -> None:
        chance = random.Random(self.chance.randrange(2**32))
        while not self._stop.wait(0.02):
            puts = [put for put in list(self.live.values()) if put.release > self.height + 100]
            if not puts:
                continue
            put = chance.choice(puts)
            if chance.random() < 0.02:
                self._give_back(put)
            elif chance.random() < 0.3:
                self._check_range(client, put, chance)
            else:
                self._check(client, put)

    def _give_back(self, put: Put) -> None:
        """Its owner releases the lease: stores may delete it from now on."""
        with self._lock:
            self.live.pop(put.blob, None)
            facts = self.fleet.chain["facts"][put.blob.hex()][:2]
            self.fleet.save_chain(
                releases={**self.fleet.chain["releases"], put.blob.hex(): self.height},
                facts={**self.fleet.chain["facts"], put.blob.hex(): [*facts, self.height]},
            )
            self.counts["leases given back"] += 1

    def _check(self, client: BlobClient, put: Put) -> None:
        found = client.retrieve(put.blob, committee=self.committee, max_bytes=put.size_bytes).data
        assert found == make_bytes(put.seed, put.size_bytes), f"blob {put.blob.hex()} came back altered"
        self.counts["reads"] += 1
        self.counts["bytes read"] += put.size_bytes

    def _check_range(self, client: BlobClient, put: Put, chance: random.Random) -> None:
        reader = client.open_ranges(put.blob, committee=self.committee)
        start = chance.randrange(put.size_bytes)
        stop = min(put.size_bytes, start + chance.randrange(1, 100_000))
        assert client.read_range(reader, start, stop) == make_bytes(put.seed, put.size_bytes)[start:stop]
        self.counts["range reads"] += 1

    # -- what goes wrong

    def _break_something(self) -> None:
        """Let up to f nodes be at fault for a while, and wait until they are well."""
        victims = self.chance.sample(range(len(self.nodes)), self.chance.randrange(1, self.num_faulty + 1))
        faults: list[Callable[[int], None]] = [
            self._kill,
            self._hang,
            self._delete_files,
            self._alter_files,
            self._lose_index,
            self._fill_up,
            self._choke,
            self._lie,
        ]
        for victim in victims:
            fault = self._owed.pop(0) if self._owed else self.chance.choice(faults)
            self.counts[fault.__name__.strip("_").replace("_", " ")] += 1
            fault(victim)
        self._heal(range(len(self.nodes)))

    def _kill(self, index: int) -> None:
        self.nodes[index].kill()
        self._stop.wait(self.chance.uniform(0.1, 2.0))
        self._restart(index)

    def _hang(self, index: int) -> None:
        process = self.nodes[index].process
        process.send_signal(signal.SIGSTOP)
        self._stop.wait(self.chance.uniform(0.5, 3.0))
        process.send_signal(signal.SIGCONT)

    def _delete_files(self, index: int) -> None:
        for path in self._choose_files(index):
            path.unlink(missing_ok=True)
            self.counts["files deleted"] += 1

    def _alter_files(self, index: int) -> None:
        for path in self._choose_files(index):
            try:
                data = bytearray(path.read_bytes())
                if not data:
                    continue
                if self.chance.random() < 0.5:
                    data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                else:
                    del data[self.chance.randrange(len(data)) :]
                path.write_bytes(data)
            except FileNotFoundError:
                continue
            if not any(path.name.startswith(blob.hex()) for blob in self.live):
                path.unlink(missing_ok=True)  # the collector was faster: a file that we made would belong to nobody
                continue
            self.counts["files altered"] += 1

    def _lose_index(self, index: int) -> None:
        self.nodes[index].kill()
        shutil.rmtree(self.nodes[index].home / "index")
        self._restart(index)

    def _fill_up(self, index: int) -> None:
        assert self.nodes[index].stop() == 0
        self._restart(index, capacity=FULL)
        self._stop.wait(self.chance.uniform(1.0, 3.0))
        assert self.nodes[index].stop() == 0
        self._restart(index)

    def _choke(self, index: int) -> None:
        """Let no file of the live node grow beyond a size, as on a full disk."""
        pid = self.nodes[index].process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (self.chance.choice([0, 8_192, 1 << 16, 1 << 18]), hard))
        self._stop.wait(self.chance.uniform(0.5, 2.0))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))

    def _lie(self, index: int) -> None:
        """Let a liar answer at a node's address, with its key, for a while."""
        node = self.nodes[index]
        node.kill()
        self._num_liars += 1
        liar = self.lying.LyingStore(
            load_or_create_receipt_key(node.home / "receipt.key"),
            genesis_hash=GENESIS_HASH,
            habit=self.chance.choice(list(self.lying.Habit)),
            port=int(node.url.rpartition(":")[2]),
            seed=self.chance.randrange(2**32),
        )
        try:
            for _ in range(self.chance.randrange(1, 4)):
                self._stop.wait(self.chance.uniform(0.4, 1.2))
                liar.habit = self.chance.choice(list(self.lying.Habit))
        finally:
            liar.close()
        self.counts["requests to liars"] += sum(liar.asked.values())
        self.counts["receipts of liars"] += liar.asked["put"]
        with self._put_lock:  # what it has signed for is certified now, so that healing knows of it
            self._num_liars -= 1
        self._restart(index)

    def _restart(self, index: int, **options: Any) -> None:
        port = int(self.nodes[index].url.rpartition(":")[2])
        options = {"capacity": CAPACITY, **options}
        self.nodes[index] = self.fleet.start(f"n{index}", is_keeping=True, port=port, **options)

    def _choose_files(self, index: int) -> list[Path]:
        """Return some shard files of blobs that are repaired."""
        with self._lock:
            names = [
                put.blob.hex() for put in self.live.values() if put.tier is Tier.HOT and put.release > self.height + 300
            ]
        paths = [self.nodes[index].home / "shards" / name[:2] / f"{name}.{index}.shard" for name in names]
        paths = [path for path in paths if path.exists()]
        return self.chance.sample(paths, min(len(paths), self.chance.randrange(1, 6)))

    # -- what must be true

    def _heal(self, indices: Any) -> None:
        """Wait until nodes have every shard that they should have, whole."""
        end = time.monotonic() + HEAL_SECONDS
        for index in indices:
            while missing := self._find_missing(index):
                assert not self._failure, self._failure
                assert time.monotonic() < end, f"node {index} lacks {len(missing)} shards, {missing[:3]}"
                time.sleep(0.1)

    def _find_missing(self, index: int) -> list[str]:
        with self._lock:
            wanted = [
                put
                for put in self.live.values()
                if put.tier is not Tier.TEMPORARY and put.release > self.height + LEAST_BLOCKS + 100
            ]
        return [put.blob.hex() for put in wanted if not self._has_shard(index, put.blob)]

    def _has_shard(self, index: int, blob: BlobId) -> bool:
        """Ask for a fold of the shard: only who has all of it can give one; damaged ones are found by their root."""
        url = f"{self.nodes[index].url}/v1/blobs/{blob.hex()}/shards/{index}/leaves?first=0&count=1"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return blob not in self.live
        except OSError:
            return False

    def _compare_with_disk(self) -> None:
        """Stop every node, and compare counters, index and disk by reading all of it."""
        ports = [int(node.url.rpartition(":")[2]) for node in self.nodes]
        for index, node in enumerate(self.nodes):
            assert node.stop() == 0
            found = read_home(node.home)
            assert found.are_counters_right, f"node {index}: {found}"
            assert (found.missing, found.damaged, found.orphans) == ([], [], 0), f"node {index}: {found}"
            assert found.good == found.num_shards
            self.counts["shards at the end"] += found.num_shards
        names = [f"n{index}" for index in range(len(self.nodes))]
        self.nodes = self.fleet.start_all(names, ports=ports, is_keeping=True, capacity=CAPACITY)

    def _let_all_end(self) -> None:
        """Let every lease end: then nothing is kept, in no tier, on no medium."""
        with self._lock:
            last = max((release for release in self.fleet.chain["releases"].values()), default=self.height)
            self.fleet.save_chain(height=max(self.height, last) + 2 * GRACE_BLOCKS)
        end = time.monotonic() + HEAL_SECONDS
        for index, node in enumerate(self.nodes):
            while (space := get_status(node)["space"])["num_shards"]:
                assert time.monotonic() < end, f"node {index} still keeps {space}"
                with self._lock:
                    self.fleet.save_chain(height=self.height + 1)
                time.sleep(0.2)
            assert space["used_bytes"] == space["reserved_bytes"] == 0
            assert node.stop() == 0
            left = [path for name in ("shards", "staging") for path in (node.home / name).rglob("*") if path.is_file()]
            assert left == [], f"node {index} left {left[:5]}"
            assert read_home(node.home).num_shards == 0

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failure.append(error)
            self._stop.set()
            raise

    def _new_seed(self) -> int:
        return self.chance.randrange(2**32)


def make_bytes(seed: int, size_bytes: int) -> bytes:
    """Return the bytes of a blob again."""
    return random.Random(seed).randbytes(size_bytes)


def read_home(home: Path) -> Diagnosis:
    """Return what the doctor says of a home that is shut down."""
    engine = StoreEngine(home, capacity_bytes=1 << 40)
    try:
        return diagnose(engine)
    finally:
        engine.close()


def get_status(node: Any) -> dict[str, Any]:
    with urllib.request.urlopen(node.url + "/v1/status", timeout=10) as answer:
        value: dict[str, Any] = json.load(answer)
    return value


@pytest.mark.soak
@pytest.mark.integration
def test_a_fleet_under_fire_loses_nothing(fleet: Any, lying: Any) -> None:
    soak = Soak(fleet, lying, num_nodes=4, seed=random.randrange(2**32))
    soak.run(seconds=1)  # and until each of the first three faults has happened
    assert soak.counts["puts"] >= 5, soak.counts
    assert soak.counts["reads"] >= 20, soak.counts
    assert soak.counts["requests to liars"] >= 1, soak.counts


@pytest.mark.soak
@pytest.mark.timeout(45 * 60)
@pytest.mark.integration
def test_half_an_hour_under_fire(fleet: Any, lying: Any) -> None:
    soak = Soak(fleet, lying, num_nodes=7, seed=random.randrange(2**32))
    soak.run(seconds=30 * 60)
    assert soak.counts["puts"] >= 100, soak.counts


def main() -> None:
    """Go on for as long as asked."""
    parser = argparse.ArgumentParser(description="Soak a fleet of storage nodes.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("store_fleet", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    doubles = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = doubles
    spec.loader.exec_module(doubles)
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as directory:
        fleet = doubles.Fleet(Path(directory))
        try:
            soak = Soak(fleet, doubles.load_beside("lying_store.py"), num_nodes=arguments.nodes, seed=seed)
            try:
                soak.run(60 * arguments.minutes)
            finally:
                print(f"seed {seed}: {dict(soak.counts)}", flush=True)
            print("nothing lost, nothing left, counters equal the disk", flush=True)
        finally:
            fleet.close()


if __name__ == "__main__":
    main()
