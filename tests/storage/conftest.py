"""Shards to put, a chain that answers from memory, and real node processes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from da.core.blob import BlobHeader, compute_blob_id, encode_header
from da.core.merkle import compute_root
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from storage.core.errors import ChainUnreachable
from storage.core.repair import BlobFacts
from storage.node.collector import Collector
from storage.node.engine import StoreEngine
from storage.node.keys import ReceiptKey
from storage.node.reconcile import reconcile
from storage.node.server import Server
from storage.node.status import NodeState
from storage.node.trace import MemoryTrace
from storage.node.upload import ShardOffer
from storage.node.watch import ChainWatch

GENESIS_HASH = bytes(range(32))
START_SECONDS = 20.0
STOP_SECONDS = 10.0


@dataclass
class FakeChain:
    """ChainPort in memory; ``is_down`` makes every question fail."""

    height: int = 100
    committees: tuple[Committee, ...] = ()
    releases: dict[bytes, int] = field(default_factory=dict)
    signed: dict[bytes, int] = field(default_factory=dict)
    facts: dict[bytes, BlobFacts] = field(default_factory=dict)
    is_down: bool = False
    asked: list[tuple[BlobId, ...]] = field(default_factory=list)

    def get_genesis_hash(self) -> bytes:
        self._check()
        return GENESIS_HASH

    def get_height(self) -> Height:
        self._check()
        return Height(self.height)

    def get_committees(self) -> tuple[Committee, ...]:
        self._check()
        return self.committees

    def get_release_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        self._check()
        self.asked.append(tuple(blobs))
        return tuple(self.releases.get(blob, 0) for blob in blobs)

    def get_signed_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        self._check()
        return tuple(self.signed.get(blob, 0) for blob in blobs)

    def get_committee(self, epoch: Epoch) -> Committee:
        self._check()
        for committee in self.committees:
            if committee.epoch == epoch:
                return committee
        return Committee(epoch=epoch, seats=())

    def get_facts(self, blob: BlobId) -> BlobFacts:
        self._check()
        found = self.facts.get(blob)
        if found is None:
            return BlobFacts(
                blob=blob, tier=Tier.HOT, epoch=Epoch(0), expiry=Height(0), release=Height(0), is_live=False
            )
        return replace(found, is_live=found.release > self.height)

    def _check(self) -> None:
        if self.is_down:
            raise ChainUnreachable("the test has taken the chain down")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard with its bytes."""

    offer: ShardOffer
    body: bytes


def make_one_shard(
    body: bytes,
    *,
    tier: Tier = Tier.HOT,
    expiry: int = 1_000,
    epoch: int = 1,
    leaf_bytes: int = 1024,
) -> Shard:
    """Return the only shard of a blob for a committee of one seat."""
    header = BlobHeader(
        num_data=1,
        num_shards=1,
        leaf_bytes=leaf_bytes,
        size_bytes=len(body),
        shard_roots=(compute_root(body, leaf_bytes=leaf_bytes),),
    )
    offer = ShardOffer(
        blob=compute_blob_id(header),
        shard=ShardIndex(0),
        header=header,
        header_bytes=encode_header(header),
        shard_bytes=len(body),
        tier=tier,
        epoch=Epoch(epoch),
        expiry=Height(expiry),
    )
    return Shard(offer=offer, body=body)


def put_shard(engine: StoreEngine, shard: Shard) -> None:
    """Put a shard into an engine."""
    with engine.upload(shard.offer) as upload:
        upload.write(shard.body)
        engine.commit(upload)


def change_terms(shard: Shard, **terms: Any) -> Shard:
    """Return the same shard under other terms."""
    return replace(shard, offer=replace(shard.offer, **terms))


@pytest.fixture
def make_shard() -> Callable[..., Shard]:
    return make_one_shard


@pytest.fixture
def keep() -> Callable[[StoreEngine, Shard], None]:
    """Put a shard into an engine, as the server does."""
    return put_shard


@pytest.fixture
def chain() -> FakeChain:
    return FakeChain()


@pytest.fixture
def make_chain() -> type[FakeChain]:
    return FakeChain


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[Callable[..., StoreEngine]]:
    """Open the store of this test's home; opening it again closes the former one first."""
    opened: list[StoreEngine] = []

    def open_(**options: Any) -> StoreEngine:
        if opened:
            opened.pop().close()
        options = {"capacity_bytes": 1 << 30, "floor_bytes": 0, "map_bytes": 1 << 24, **options}
        opened.append(StoreEngine(tmp_path / "home", **options))
        return opened[-1]

    yield open_
    for engine in opened:
        engine.close()


def get_files(home: Path) -> dict[str, int]:
    """Return all files of a home that hold shard data: name -> bytes."""
    return {
        path.name: path.stat().st_size
        for directory in ("staging", "shards", "quarantine")
        for path in sorted((home / directory).rglob("*"))
        if path.is_file()
    }


@pytest.fixture(name="get_files")
def _get_files() -> Callable[[Path], dict[str, int]]:
    return get_files


@dataclass
class ServedNode:
    """A node's server in this process, over real sockets."""

    url: str
    engine: StoreEngine
    state: NodeState
    trace: MemoryTrace
    key: ReceiptKey
    watch: ChainWatch
    server: Server


@pytest.fixture
def serve(tmp_path: Path, chain: FakeChain) -> Callable[..., Any]:
    """Serve a node with one seat in epoch 1 of the fake chain, and close it."""

    @asynccontextmanager
    async def serve_(
        *, is_known: bool = True, max_uploads: int = 8, body_timeout_seconds: float = 5.0, **options: Any
    ) -> AsyncIterator[ServedNode]:
        key = ReceiptKey(secrets.token_bytes(32))
        trace = MemoryTrace()
        options = {"capacity_bytes": 1 << 30, "floor_bytes": 0, "map_bytes": 1 << 24, "trace": trace, **options}
        engine = StoreEngine(tmp_path / "served", **options)
        seat = Seat(index=ShardIndex(0), key=key.public, url="http://unused")
        chain.committees = (Committee(epoch=Epoch(1), seats=(seat,)),)
        with ThreadPoolExecutor(4) as executor:
            watch = ChainWatch(chain, executor, poll_seconds=0.05)
            if is_known:
                await watch.refresh()
            collector = Collector(engine, chain, watch, questions=executor, disk=executor, every_blocks=1)
            state = NodeState(
                engine=engine, watch=watch, collector=collector, key=key, address=None, found=reconcile(engine)
            )
            server = Server(state, executor, trace, max_uploads=max_uploads, body_timeout_seconds=body_timeout_seconds)
            runner = web.AppRunner(server.make_app(), shutdown_timeout=1.0, access_log=None)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield ServedNode(url, engine, state, trace, key, watch, server)
            finally:
                await runner.cleanup()
        engine.close()

    return serve_


@dataclass
class NodeProcess:
    """A node in a process of its own."""

    home: Path
    config: Path
    process: subprocess.Popen[str]
    url: str
    key: bytes

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """End it with SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def read_trace(self) -> list[dict[str, Any]]:
        """Return what it did."""
        return [json.loads(line) for line in (self.home / "trace.jsonl").read_text().splitlines()]


class Fleet:
    """Node processes over one chain file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._processes: list[subprocess.Popen[str]] = []
        self.chain_path = root / "chain.json"
        self.nodes: list[NodeProcess] = []
        self.chain: dict[str, Any] = {
            "genesis_hash": GENESIS_HASH.hex(),
            "height": 100,
            "committees": [],
            "releases": {},
            "signed": {},
            "facts": {},
            "is_down": False,
            "hang_seconds": 0,
        }
        self.save_chain()

    def save_chain(self, **changes: Any) -> None:
        """Change the chain, at once for all nodes."""
        self.chain.update(changes)
        staged = self._root / f"chain.{secrets.token_hex(4)}"
        staged.write_text(json.dumps(self.chain))
        os.replace(staged, self.chain_path)

    def start(self, name: str, *, port: int = 0, **options: Any) -> NodeProcess:
        """Start a node and wait until it listens."""
        return self.start_all([name], ports=[port], **options)[0]

    def start_all(self, names: Sequence[str], *, ports: Sequence[int] = (), **options: Any) -> list[NodeProcess]:
        """Start nodes side by side, on ``ports`` if given, and wait until each listens."""
        wanted = ports or [0] * len(names)
        started = [(name, *self._launch(name, port=port, **options)) for name, port in zip(names, wanted, strict=True)]
        nodes = []
        for name, config, process in started:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (self._root / f"{name}.log").read_text()
            said = json.loads(line)
            nodes.append(
                NodeProcess(
                    home=self._root / name,
                    config=config,
                    process=process,
                    url=said["url"],
                    key=bytes.fromhex(said["key"]),
                )
            )
        return nodes

    def _launch(
        self,
        name: str,
        *,
        port: int = 0,
        kill_at: str = "never",
        kill_passes: int = 1,
        capacity: int = 1 << 28,
        is_keeping: bool = False,
        has_challenges: bool = False,
        body_timeout_seconds: float = 30.0,
    ) -> tuple[Path, subprocess.Popen[str]]:
        config = self._root / f"{name}.{secrets.token_hex(4)}.json"
        values = {
            "home": str(self._root / name),
            "port": port,
            "chain": str(self.chain_path),
            "capacity_bytes": capacity,
            "kill_at": kill_at,
            "kill_passes": kill_passes,
            "is_keeping": is_keeping,
            "has_challenges": has_challenges,
            "body_timeout_seconds": body_timeout_seconds,
        }
        config.write_text(json.dumps(values))
        with (self._root / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("node_process.py")), str(config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        return config, process

    def seat(self, nodes: Sequence[NodeProcess]) -> Committee:
        """Make the nodes the committee of the next epoch, from 1, in a new block."""
        epoch = 1 + max((entry["epoch"] for entry in self.chain["committees"]), default=0)
        entry = {"epoch": epoch, "seats": [{"key": node.key.hex(), "url": node.url} for node in nodes]}
        self.save_chain(height=self.chain["height"] + 1, committees=[entry, *self.chain["committees"][:1]])
        return Committee(
            epoch=Epoch(epoch),
            seats=tuple(Seat(index=ShardIndex(index), key=node.key, url=node.url) for index, node in enumerate(nodes)),
        )

    def close(self) -> None:
        """End every process that was started."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(STOP_SECONDS)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Node processes of one test."""
    root = tmp_path / "fleet"
    root.mkdir()
    yield from _open_fleet(root)


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Node processes of a whole module: starting four takes seconds."""
    yield from _open_fleet(tmp_path_factory.mktemp("fleet"))


def _open_fleet(root: Path) -> Iterator[Fleet]:
    fleet = Fleet(root)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for a condition with a deadline."""

    def wait(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture
def wait_until_async() -> Callable[..., Any]:
    """Wait for a condition with a deadline, in an event loop."""

    async def wait(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}"
            await asyncio.sleep(0.01)

    return wait


def load_beside(path: str) -> Any:
    """Return a module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(f"beside_{Path(path).stem}", Path(__file__).parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def lying() -> Any:
    """Stores that lie, see lying_store.py."""
    return load_beside("lying_store.py")


@pytest.fixture
def with_terms() -> Callable[..., Shard]:
    """Return the same shard under other terms."""
    return change_terms


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real S3 server; skipped with the reason where it can be neither found nor built."""
    module = load_beside("s3_server/server.py")
    try:
        server = module.start(tmp_path_factory.mktemp("s3") / "buckets")
    except module.NoS3Server as error:
        pytest.skip(str(error))
    yield server
    server.stop()
