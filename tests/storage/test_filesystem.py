"""arch:// opens blobs for libraries that know fsspec; nothing can be written."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import safetensors.torch
import torch

from da.core.types import BlobId
from storage.core.errors import UnknownBlob
from storage.filesystem import ArchFileSystem

DATA = random.Random(5).randbytes(100_000)
TENSORS = {"w": torch.arange(12.0).reshape(3, 4)}
BLOBS = {BlobId(b"\1" * 32): DATA, BlobId(b"\2" * 32): safetensors.torch.save(TENSORS)}


class Client:
    """A store with two blobs."""

    def __init__(self) -> None:
        self.num_reads = 0

    def stat(self, blob: BlobId) -> Any:
        if blob not in BLOBS:
            raise UnknownBlob(blob=blob)
        return SimpleNamespace(size_bytes=len(BLOBS[blob]), tier=1)

    def get(self, blob: BlobId) -> Any:
        self.num_reads += 1
        return SimpleNamespace(data=BLOBS[blob])


@pytest.fixture
def filesystem() -> ArchFileSystem:
    system = ArchFileSystem(skip_instance_cache=True)
    system._clients["http://chain:8545"] = Client()
    return system


def test_files_are_read_by_ranges_and_as_a_whole(filesystem: ArchFileSystem) -> None:
    path = f"arch://chain:8545/{'01' * 32}/checkpoint.bin"
    assert filesystem.info(path)["size"] == len(DATA)
    assert filesystem.cat(path) == DATA
    with filesystem.open(path) as file:
        file.seek(50_000)
        assert file.read(10) == DATA[50_000:50_010]
        file.seek(-7, 2)
        assert file.read() == DATA[-7:]
    assert filesystem._clients["http://chain:8545"].num_reads == 1
    assert [item["type"] for item in filesystem.ls(path)] == ["file"]


def test_torch_and_safetensors_open_it(filesystem: ArchFileSystem) -> None:
    with filesystem.open(f"arch://chain:8545/0x{'02' * 32}/model.safetensors") as file:
        assert torch.equal(safetensors.torch.load(file.read())["w"], TENSORS["w"])


def test_invalid_paths_and_writes(filesystem: ArchFileSystem) -> None:
    with pytest.raises(FileNotFoundError):
        filesystem.info(f"arch://chain:8545/{'03' * 32}")
    with pytest.raises(FileNotFoundError, match="expected arch://"):
        filesystem.info("arch://chain:8545")
    with pytest.raises(PermissionError, match="read-only"):
        filesystem.open(f"arch://chain:8545/{'01' * 32}", "wb")


def test_the_protocol_is_known_to_fsspec() -> None:
    fsspec.register_implementation("arch", ArchFileSystem, clobber=True)
    assert fsspec.get_filesystem_class("arch") is ArchFileSystem
