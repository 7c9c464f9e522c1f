"""What is read and written is a file: no device is replaced, no pipe waited for, nothing stored as empty that isn't."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from da.core.errors import NotAFile, SourceChanged
from da.landing import open_part
from da.slabs import FileSource


def test_no_device_pipe_or_folder_is_replaced(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for target in (Path("/dev/null"), pipe, folder, Path()):
        with pytest.raises(NotAFile, match=r"expected a file; next: "):
            open_part(target)
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
    with pytest.raises(NotAFile):
        FileSource(tmp_path / name)


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
