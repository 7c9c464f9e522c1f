"""The worker state on disk: whole or refused by name, never trusted half (CASES 9, 75, 76)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from training.core.errors import WorkerStateDamagedError, WorkerStateMissingError
from training.worker_file import encode_tensors, previous_path, read_worker_file, write_worker_file


def _tensors(value: int) -> dict[str, torch.Tensor]:
    return {"b": torch.full((3, 2), value), "a": torch.arange(5).float(), "empty": torch.zeros(0, 4)}


def _write(path: Path, value: int) -> None:
    write_worker_file(path, _tensors(value))


def test_round_trip_and_one_encoding(tmp_path: Path) -> None:
    path = tmp_path / "home" / "worker.state"
    _write(path, 1)
    read = read_worker_file(path)
    assert set(read) == {"a", "b", "empty"}
    assert torch.equal(read["b"], torch.full((3, 2), 1))
    assert list(encode_tensors(read)) == list(encode_tensors(dict(reversed(_tensors(1).items()))))
    assert [entry.name for entry in path.parent.iterdir()] == ["worker.state"]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "longer", "gone"])
def test_damaged_file_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "worker.state"
    _write(path, 1)
    _write(path, 2)
    _damage(path, damage)
    with pytest.warns(RuntimeWarning, match=r"worker\.state\.previous instead"):
        read = read_worker_file(path)
    assert int(read["b"][0, 0]) == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "longer"])
def test_invalid_damaged_file_without_another_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "worker.state"
    _write(path, 1)
    _damage(path, damage)
    with pytest.raises(WorkerStateDamagedError, match=r"worker\.state is damaged") as caught:
        read_worker_file(path)
    assert caught.value.path == str(path)


def test_invalid_both_damaged_names_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "worker.state"
    _write(path, 1)
    _write(path, 2)
    _damage(path, "empty")
    _damage(previous_path(path), "cut")
    with pytest.raises(WorkerStateDamagedError) as caught:
        read_worker_file(path)
    assert caught.value.path == str(path)


def test_invalid_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkerStateMissingError, match="start from a checkpoint"):
        read_worker_file(tmp_path / "worker.state")


@pytest.mark.parametrize("point", ["fsync", "link", "replace"])
def test_a_save_that_fails_leaves_the_last_good_one(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker.state"
    _write(path, 1)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path if point == "replace" else os, point, fail)
        with pytest.raises(OSError, match="No space left"):
            _write(path, 2)
    assert int(read_worker_file(path)["b"][0, 0]) == 1
    assert not list(tmp_path.glob("*.state.tmp"))
    _write(path, 3)
    assert int(read_worker_file(path)["b"][0, 0]) == 3


def _damage(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {
                "empty": b"",
                "cut": data[: len(data) // 2],
                "flipped": data[:-1] + bytes([data[-1] ^ 1]),
                "longer": data + b"\x00",
            }[damage]
        )
