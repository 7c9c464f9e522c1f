"""arch:// opens blobs of real nodes for libraries that know fsspec: by ranges, verified; nothing can be written."""

from __future__ import annotations

import gc
import json
import random
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import safetensors
import safetensors.torch
import torch

from da.blocking import BlobClient
from da.core.errors import NotEnoughShards
from da.core.types import BlobId, Committee, Height, Tier
from storage import filesystem as arch
from storage.client import BlobReader
from storage.core.errors import UnknownBlob
from storage.filesystem import ArchFileSystem

pytestmark = pytest.mark.integration

DATA = random.Random(5).randbytes(8_000_000)
LEAF = 65_536
CHAIN = "http://chain:8545"


class Client:
    """StorageClient over a committee and no chain; ``sizes`` are the blobs that it knows."""

    def __init__(self, blobs: BlobClient, committee: Committee) -> None:
        self.blobs = blobs
        self.committee = committee
        self.sizes: dict[BlobId, int] = {}

    def put(self, data: bytes) -> BlobId:
        certificate = self.blobs.disperse(
            data,
            committee=self.committee,
            genesis_hash=bytes(range(32)),
            tier=Tier.HOT,
            expiry=Height(9_000),
            leaf_bytes=LEAF,
        )
        self.sizes[certificate.terms.blob] = len(data)
        return certificate.terms.blob

    def stat(self, blob: BlobId) -> Any:
        if blob not in self.sizes:
            raise UnknownBlob(blob=blob)
        return SimpleNamespace(size_bytes=self.sizes[blob], tier=1)

    def open(self, blob: BlobId) -> BlobReader:
        return BlobReader(self.blobs, self.blobs.open_ranges(blob, committee=self.committee), self.committee)


@pytest.fixture(scope="module")
def nodes(shared_fleet: Any) -> list[Any]:
    found: list[Any] = shared_fleet.start_all([f"n{index}" for index in range(4)])
    return found


@pytest.fixture(scope="module")
def client(shared_fleet: Any, nodes: list[Any]) -> Iterator[Client]:
    with BlobClient(deadline_seconds=5.0) as blobs:
        yield Client(blobs, shared_fleet.seat(nodes))


@pytest.fixture
def filesystem(client: Client) -> ArchFileSystem:
    system = ArchFileSystem(skip_instance_cache=True)
    system._clients[CHAIN] = client  # type: ignore[assignment]
    return system


def name(blob: BlobId, ending: str = "file.bin") -> str:
    return f"arch://chain:8545/{blob.hex()}/{ending}"


def test_a_range_costs_the_leaves_that_hold_it(filesystem: ArchFileSystem, client: Client) -> None:
    blob = client.put(DATA)
    path = name(blob)
    assert filesystem.info(path)["size"] == len(DATA)
    assert filesystem.cat_file(path, 3_999_990, 4_000_010) == DATA[3_999_990:4_000_010], "across two shards"
    before = client.blobs.bytes_received
    assert filesystem.cat_file(path, 5_000_000, 5_000_100) == DATA[5_000_000:5_000_100]
    assert filesystem.cat_file(path, -7) == DATA[-7:]
    assert client.blobs.bytes_received - before < 3 * LEAF, "two leaves and their paths, not 8 MB"
    with filesystem.open(path) as file:
        file.seek(2_000_000)
        assert file.read(10) == DATA[2_000_000:2_000_010]
        file.seek(-7, 2)
        assert file.read() == DATA[-7:]
    assert filesystem.cat(path) == DATA
    small = client.put(b"short")
    assert filesystem.cat_file(name(small), 1, 3) == b"ho", "a blob without folds is read as a whole"
    assert [item["type"] for item in filesystem.ls(path)] == ["file"]


def test_dead_and_damaged_seats_cost_time_not_bytes(
    filesystem: ArchFileSystem, client: Client, nodes: list[Any], shared_fleet: Any
) -> None:
    data = DATA[1:6_000_001]
    blob = client.put(data)
    shard = nodes[0].home / "shards" / blob.hex()[:2] / f"{blob.hex()}.0.shard"
    body = bytearray(shard.read_bytes())
    body[1_000_000] ^= 1
    shard.write_bytes(body)
    assert filesystem.cat_file(name(blob), 900_000, 1_200_000) == data[900_000:1_200_000]
    with urllib.request.urlopen(nodes[0].url + "/v1/status", timeout=5) as answer:
        assert json.load(answer)["repair"]["losses"] == 1, "the node has noticed what it keeps"
    late = client.put(DATA[2:6_000_002])
    first = filesystem.cat_file(name(late), 0, 100_000)
    altered = nodes[0].home / "shards" / late.hex()[:2] / f"{late.hex()}.0.shard"
    body = bytearray(altered.read_bytes())
    body[50_000] ^= 1
    altered.write_bytes(body)
    assert filesystem.cat_file(name(late), 0, 100_000) == first, "bad leaves under a good tree do not verify"
    nodes[1].kill()
    assert filesystem.cat_file(name(late), 2_999_000, 3_001_000) == DATA[2_999_002:3_001_002]
    nodes[2].kill()
    with pytest.raises(NotEnoughShards, match="expected 2"):
        filesystem.cat_file(name(late), 0, 10)
    for index in (1, 2):
        nodes[index] = shared_fleet.start(f"n{index}", port=int(nodes[index].url.rpartition(":")[2]))


def test_torch_safetensors_and_parquet_read_what_they_need(
    filesystem: ArchFileSystem, client: Client, tmp_path: Any
) -> None:
    tensors = {f"layer.{index}": torch.full((500_000,), float(index)) for index in range(4)}
    weights, module = client.put(safetensors.torch.save(tensors)), tmp_path / "module.pt"
    torch.save(tensors, module)
    with filesystem.open(name(client.put(module.read_bytes()), "module.pt")) as file:
        assert torch.equal(torch.load(file, weights_only=True)["layer.3"], tensors["layer.3"])
    table = pyarrow.table({f"c{index}": list(range(index, 200_000 + index)) for index in range(6)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", compression="none", use_dictionary=False)
    parquet = client.put((tmp_path / "t.parquet").read_bytes())

    before = client.blobs.bytes_received
    with filesystem.open(name(parquet, "t.parquet")) as file:
        column = pyarrow.parquet.read_table(file, columns=["c4"])
    assert column.equals(table.select(["c4"]))
    with filesystem.open(name(weights, "model.safetensors")) as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))["layer.2"]
        start, stop = entry["data_offsets"]
        file.seek(8 + length + start)
        assert torch.equal(
            torch.frombuffer(bytearray(file.read(stop - start)), dtype=torch.float32), tensors["layer.2"]
        )
    assert client.blobs.bytes_received - before < 6_000_000, "of 18 MB: one column of six, one tensor of four"

    fsspec.register_implementation("arch", ArchFileSystem, clobber=True)
    local = fsspec.filesystem("simplecache", fs=filesystem, cache_storage=str(tmp_path / "cache"))
    with local.open(name(weights, "model.safetensors")) as file:
        opened = safetensors.safe_open(file.name, framework="pt")
        assert torch.equal(opened.get_tensor("layer.1"), tensors["layer.1"])


def test_datasets_open_it(client: Client, tmp_path: Any) -> None:
    import datasets  # type: ignore[import-untyped, unused-ignore]

    blob = client.put(b"".join(json.dumps({"text": f"line {index}"}).encode() + b"\n" for index in range(5_000)))

    class Known(ArchFileSystem):
        """The file system with this test's client, however a library makes it."""

        cachable = False

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._clients[CHAIN] = client  # type: ignore[assignment]

    fsspec.register_implementation("arch", Known, clobber=True)
    try:
        found = datasets.load_dataset(
            "json", data_files=name(blob, "lines.jsonl"), split="train", streaming=True, cache_dir=str(tmp_path)
        )
        assert [row["text"] for row in found.take(2)] == ["line 0", "line 1"]
    finally:
        fsspec.register_implementation("arch", ArchFileSystem, clobber=True)


def test_invalid_paths_and_writes(filesystem: ArchFileSystem, client: Client) -> None:
    with pytest.raises(FileNotFoundError):
        filesystem.info(f"arch://chain:8545/{'03' * 32}")
    with pytest.raises(FileNotFoundError, match="expected arch://"):
        filesystem.info("arch://chain:8545")
    with pytest.raises(PermissionError, match="read-only"):
        filesystem.open(f"arch://chain:8545/{'01' * 32}", "wb")


def test_the_protocol_is_known_to_fsspec() -> None:
    fsspec.register_implementation("arch", ArchFileSystem, clobber=True)
    assert fsspec.get_filesystem_class("arch") is ArchFileSystem


def test_what_was_opened_is_closed_with_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Client:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def close(self) -> None:
            closed.append("client")

    monkeypatch.setattr(arch, "ChainClient", Client)
    monkeypatch.setattr(arch, "BlobClient", Client)
    opened = arch.ArchFileSystem(skip_instance_cache=True)
    opened._open_path(f"127.0.0.1:8545/{'ab' * 32}")
    del opened
    gc.collect()
    assert closed == ["client", "client"]
