"""What is read and written is a file: no device is replaced, no pipe waited for, nothing stored as empty that isn't."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from da import cli
from da.core.errors import FaultKind, NotAFile, NotEnoughReceipts, SeatFault, SourceChanged
from da.core.types import BlobId
from da.landing import create_new, open_part
from da.sealing import create_secret, load_secret
from da.slabs import FileSource
from storage.archives import keep_file, restore_file

NOBODY: Any = None
"""Neither chain nor store is asked."""


def test_no_device_pipe_or_folder_is_replaced(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for target in (Path("/dev/null"), pipe, folder, Path()):
        with pytest.raises(NotAFile, match=r"expected a file; next: "):
            open_part(target)
        with pytest.raises(NotAFile, match=r"expected a file; next: "):
            cli._write_file(target, b"a certificate")
        with pytest.raises(NotAFile, match=r"expected a file; next: "):
            restore_file(NOBODY, BlobId(bytes(32)), target)
    assert sorted(tmp_path.iterdir()) == [folder, pipe], "nothing was left behind"


def test_a_missing_folder_is_named_by_what_was_asked_for(tmp_path: Path) -> None:
    wanted = tmp_path / "none" / "out"
    with pytest.raises(FileNotFoundError, match="next: name a file in a folder") as caught:
        open_part(wanted)
    assert caught.value.filename == str(wanted)


def test_a_name_of_the_greatest_length_has_room_for_its_part(tmp_path: Path) -> None:
    fd, part = open_part(tmp_path / ("é" * 127))
    os.close(fd)
    os.replace(part, tmp_path / ("é" * 127))


@pytest.mark.parametrize("name", ["/dev/zero", "/proc/self/status", "pipe", "folder"])
def test_only_a_file_is_sent(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NotAFile):
        FileSource(tmp_path / name)
    if name == "/proc/self/status":
        return  # it has an end, and an archive keeps what is read
    with pytest.raises(NotAFile, match=r"expected a file; next: "):
        keep_file(NOBODY, tmp_path / name, blocks=1, sender=NOBODY)
    with pytest.raises(NotAFile, match=r"expected a file; next: "):
        cli._read_committee(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("change", ["longer", "other bytes"])
def test_a_file_that_is_written_to_is_not_the_one_that_was_opened(change: str, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(bytes(1000))
    os.utime(path, ns=(0, 0))
    with FileSource(path) as source:
        source.read_into(0, memoryview(bytearray(1000)))
        with path.open("r+b") as file:
            file.seek(0, os.SEEK_END if change == "longer" else os.SEEK_SET)
            file.write(b"x")
        with pytest.raises(SourceChanged, match="while it was read; next: leave it alone"):
            source.read_into(0, memoryview(bytearray(1000)))


def test_a_secret_is_a_short_file(tmp_path: Path) -> None:
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe, 0o600)
    long.write_bytes(b"0" * 5_000)
    long.chmod(0o600)
    for path in (pipe, long):
        with pytest.raises(NotAFile):
            load_secret(path)


def test_a_secret_that_can_not_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        create_secret(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_its_name_when_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, was_there = tmp_path / "key", os.fsync, []

    def sync(fd: int) -> None:
        was_there.append(path.exists())
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    key = create_secret(path)
    assert was_there == [False, True], "the file, then its folder"
    assert load_secret(path) == key
    with pytest.raises(FileExistsError) as caught:
        create_secret(path)
    assert caught.value.filename == str(path)
    assert load_secret(path) == key
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links_makes_new_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "key"
    key = create_secret(path)
    with pytest.raises(FileExistsError):
        create_new(path, b"another", mode=0o600)
    assert load_secret(path) == key
    assert list(tmp_path.iterdir()) == [path]


def test_no_shard_that_is_recovered_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = ["recover", f"0={tmp_path / 'pipe'}", "-o", str(tmp_path / "out"), "-k", "1", "-n", "1", "--size", "5"]
    done = CliRunner().invoke(cli.app, names)
    assert done.exit_code == 2
    assert "is a device, a pipe or a socket, expected a file" in done.output


def test_who_is_refused_is_not_told_to_wait_for_an_answer() -> None:
    refused = SeatFault(seat=0, url="http://a", kind=FaultKind.REFUSED, reason="400 Malformed: too long a lease")
    silent = SeatFault(seat=1, url="http://b", kind=FaultKind.TIMEOUT, reason="nothing")
    assert NotEnoughReceipts(expected=3, got=0, faults=(refused,)).next_step.startswith("mend what the seats say")
    assert "when these seats answer" in NotEnoughReceipts(expected=3, got=0, faults=(refused, silent)).next_step
