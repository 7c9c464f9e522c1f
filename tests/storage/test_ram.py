"""Temporary shards in memory: what fits lies there, what does not goes to the home, and no promise gets weaker."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from da.core.types import Height, ShardIndex, Tier
from storage.core.errors import DiskFull, StorageError
from storage.core.expiry import GRACE_BLOCKS
from storage.node import disk as disk_module
from storage.node.collector import collect
from storage.node.config import NodeConfig
from storage.node.engine import StoreEngine
from storage.node.proofs import is_intact
from storage.node.ram import RamFolder, check_memory
from storage.node.reconcile import reconcile
from storage.node.service import _open_ram

SEAT = ShardIndex(0)
BODY_BYTES = 100_000
MAX_BYTES = 250_000
"""Room for two bodies."""

Open = Callable[..., StoreEngine]


@pytest.fixture
def open_ram(tmp_path: Path) -> Any:
    """Open the home with a memory folder, or without one; the one opened before is closed, as if it were killed."""
    opened: list[StoreEngine] = []
    (tmp_path / "ram").mkdir()

    def start(*, has_ram: bool = True, max_bytes: int = MAX_BYTES) -> StoreEngine:
        while opened:
            opened.pop().close()
        home = tmp_path / "home"
        ram = RamFolder(tmp_path / "ram", home, max_bytes=max_bytes) if has_ram else None
        engine = StoreEngine(home, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22, ram=ram)
        reconcile(engine)
        opened.append(engine)
        return engine

    yield start
    while opened:
        opened.pop().close()


def make_bodies(make_shard: Any, count: int, tier: Tier = Tier.TEMPORARY) -> list[Any]:
    return [make_shard(random.Random(seed).randbytes(BODY_BYTES), tier=tier) for seed in range(count)]


def get_used(tmp_path: Path) -> int:
    """Return the bytes that lie in memory, as the file system says."""
    return sum(path.stat().st_size for path in (tmp_path / "ram").rglob("*") if path.is_file())


def is_in_ram(engine: StoreEngine, shard: Any) -> bool:
    return engine.disk.get_body_path(shard.offer.blob, SEAT).is_symlink()


def check_counts(engine: StoreEngine, tmp_path: Path) -> None:
    ram = engine.disk._ram
    assert ram is not None
    assert ram.get_used_bytes() == get_used(tmp_path)


def test_what_fits_lies_in_memory_and_the_rest_at_home(
    open_ram: Any, make_shard: Any, keep: Any, tmp_path: Path
) -> None:
    engine, shards = open_ram(), make_bodies(make_shard, 4)
    for shard in shards:
        keep(engine, shard)
    assert [is_in_ram(engine, shard) for shard in shards] == [True, True, False, False]
    assert get_used(tmp_path) == 2 * BODY_BYTES
    for shard in shards:
        assert is_intact(engine, shard.offer.blob, SEAT)
        assert engine.get_record(shard.offer.blob, SEAT).shard_bytes == BODY_BYTES
    check_counts(engine, tmp_path)


def test_room_comes_back_when_shards_end(open_ram: Any, make_shard: Any, keep: Any, tmp_path: Path) -> None:
    engine, shards = open_ram(), make_bodies(make_shard, 4)
    for shard in shards[:2]:
        keep(engine, shard)

    class Released:
        def get_release_heights(self, blobs: Any) -> Any:
            return (0,) * len(blobs)

        get_signed_heights = get_release_heights

    height = Height(1_000 + GRACE_BLOCKS)
    assert collect(engine, Released(), height) == 2  # type: ignore[arg-type]
    assert get_used(tmp_path) == 0
    for shard in shards[2:]:
        keep(engine, shard)
        assert is_in_ram(engine, shard)
    check_counts(engine, tmp_path)


def test_uploads_under_way_count_and_give_back(open_ram: Any, make_shard: Any, keep: Any, tmp_path: Path) -> None:
    engine, shards = open_ram(), make_bodies(make_shard, 3)
    with ExitStack() as stack:
        uploads = [stack.enter_context(engine.upload(shard.offer)) for shard in shards]
        assert [engine.disk._is_in_ram(upload.staged.path) for upload in uploads] == [True, True, False]
    check_counts(engine, tmp_path)
    assert get_used(tmp_path) == 0
    keep(engine, shards[2])
    assert is_in_ram(engine, shards[2])


@pytest.mark.parametrize("has_ram", [True, False])
def test_a_killed_process_loses_nothing_whatever_the_settings_are_then(
    open_ram: Any, make_shard: Any, keep: Any, tmp_path: Path, has_ram: bool
) -> None:
    engine, shards = open_ram(), make_bodies(make_shard, 3)
    for shard in shards:
        keep(engine, shard)
    (engine.disk._ram.path / "0123.part").write_bytes(b"half a body")  # type: ignore[union-attr]
    (engine.disk._ram.path / f"{bytes(32).hex()}.0.shard").write_bytes(b"no link leads here")  # type: ignore[union-attr]
    engine = open_ram(has_ram=has_ram)
    for shard in shards:
        assert is_intact(engine, shard.offer.blob, SEAT)
    if has_ram:
        assert get_used(tmp_path) == 2 * BODY_BYTES
        check_counts(engine, tmp_path)
    else:
        blob = shards[0].offer.blob
        engine.disk.delete(blob, SEAT)
        assert not any(blob.hex() in path.name for path in tmp_path.rglob("*"))


def test_a_power_cut_takes_what_lay_in_memory_and_it_is_named(
    open_ram: Any, make_shard: Any, keep: Any, tmp_path: Path
) -> None:
    engine, shards = open_ram(), make_bodies(make_shard, 3)
    hot = make_shard(b"hot" * 1_000, tier=Tier.HOT)
    for shard in (*shards, hot):
        keep(engine, shard)
    for path in engine.disk._ram.path.iterdir():  # type: ignore[union-attr]
        path.unlink()
    engine.close()
    engine = StoreEngine(tmp_path / "home", capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22)
    found = reconcile(engine, is_new_boot=True).get_findings()
    assert found == {"terms_removed": 2, "lost": 2, "lost_blobs": found["lost_blobs"]}, found
    assert is_intact(engine, shards[2].offer.blob, SEAT)
    assert is_intact(engine, hot.offer.blob, SEAT)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_symlink()]
    assert reconcile(engine).get_findings() == {}
    engine.close()


@pytest.mark.parametrize("tier", [Tier.HOT, Tier.COLD])
def test_what_is_promised_for_longer_comes_home_synced(
    open_ram: Any,
    make_shard: Any,
    keep: Any,
    with_terms: Any,
    tmp_path: Path,
    tier: Tier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, (shard,) = open_ram(), make_bodies(make_shard, 1)
    keep(engine, shard)
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(disk_module.os, "fdatasync", lambda fd: (synced.append(os.fstat(fd).st_size), real(fd)))
    assert engine.renew(with_terms(shard, tier=tier, expiry=Height(2_000)).offer)
    assert max(synced) >= BODY_BYTES
    assert not is_in_ram(engine, shard)
    assert get_used(tmp_path) == 0
    assert is_intact(engine, shard.offer.blob, SEAT)
    check_counts(engine, tmp_path)


def test_a_lost_hot_shard_that_comes_as_a_temporary_one_stays_at_home(
    open_ram: Any, make_shard: Any, keep: Any, with_terms: Any, tmp_path: Path
) -> None:
    engine, (shard,) = open_ram(), make_bodies(make_shard, 1, Tier.HOT)
    keep(engine, shard)
    engine.disk.get_body_path(shard.offer.blob, SEAT).unlink()
    keep(engine, with_terms(shard, tier=Tier.TEMPORARY))
    assert not is_in_ram(engine, shard)
    assert is_intact(engine, shard.offer.blob, SEAT)
    assert get_used(tmp_path) == 0
    check_counts(engine, tmp_path)


def test_damage_in_memory_is_taken_out_and_its_room_with_it(
    open_ram: Any, make_shard: Any, keep: Any, tmp_path: Path
) -> None:
    engine, (shard,) = open_ram(), make_bodies(make_shard, 1)
    keep(engine, shard)
    engine.quarantine(shard.offer.blob, SEAT)
    assert get_used(tmp_path) == 0
    keep(engine, shard)
    assert is_in_ram(engine, shard)
    check_counts(engine, tmp_path)


def test_a_memory_file_system_that_takes_nothing_leaves_the_home(
    open_ram: Any, make_shard: Any, keep: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Full though its numbers say otherwise, then gone altogether."""
    engine, shards = open_ram(), make_bodies(make_shard, 2)
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if "/ram/" in str(path) and args[0] & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(disk_module.os, "open", refuse)
        keep(engine, shards[0])
    assert not is_in_ram(engine, shards[0])
    check_counts(engine, tmp_path)
    engine.disk._ram.path.rmdir()  # type: ignore[union-attr]
    keep(engine, shards[1])
    assert not is_in_ram(engine, shards[1])


@pytest.mark.parametrize("name", ["write", "symlink", "rename"])
def test_no_room_in_the_middle_is_a_refusal_that_leaves_nothing(
    open_ram: Any, make_shard: Any, keep: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    engine, (shard,) = open_ram(), make_bodies(make_shard, 1)
    real = getattr(os, name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if name != "rename" or str(args[1]).endswith(".shard"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, refuse)
        with pytest.raises(DiskFull):
            keep(engine, shard)
    assert get_used(tmp_path) == 0
    check_counts(engine, tmp_path)
    assert engine.index.get(shard.offer.blob, SEAT) is None
    keep(engine, shard)
    assert is_in_ram(engine, shard)


def test_two_homes_share_a_memory_file_system(tmp_path: Path, make_shard: Any, keep: Any) -> None:
    (shard,) = make_bodies(make_shard, 1)
    (tmp_path / "ram").mkdir()
    for name in ("one", "two"):
        ram = RamFolder(tmp_path / "ram", tmp_path / name, max_bytes=MAX_BYTES)
        engine = StoreEngine(tmp_path / name, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22, ram=ram)
        assert reconcile(engine).get_findings() == {}
        keep(engine, shard)
        engine.close()
    assert get_used(tmp_path) == 2 * BODY_BYTES


def test_settings_say_where(tmp_path: Path) -> None:
    config = NodeConfig(home=tmp_path, host="127.0.0.1", port=0, capacity_bytes=1 << 20)
    assert (config.ram, config.ram_bytes) == (None, 1 << 30)


def test_a_home_keeps_its_folder_when_it_is_moved_and_another_of_its_path_gets_its_own(tmp_path: Path) -> None:
    (tmp_path / "ram").mkdir()
    first = RamFolder(tmp_path / "ram", tmp_path / "home", max_bytes=1).path
    (tmp_path / "home").rename(tmp_path / "moved")
    assert RamFolder(tmp_path / "ram", tmp_path / "home", max_bytes=1).path != first
    assert RamFolder(tmp_path / "ram", tmp_path / "moved", max_bytes=1).path == first


@pytest.fixture
def memory() -> Iterator[Path]:
    """Give a folder of a memory file system."""
    try:
        check_memory(Path("/dev/shm"))
    except OSError as error:
        pytest.skip(f"no memory file system at /dev/shm: {error}")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["link", "open to all", "foreign", "no parent"])
def test_invalid_folders_of_others_and_mistyped_ones_are_refused(tmp_path: Path, memory: Path, kind: str) -> None:
    parent, home = memory / "ram", tmp_path / "home"
    parent.mkdir()
    folder = RamFolder(parent, home, max_bytes=1).path
    if kind == "link":
        folder.rename(memory / "elsewhere")
        folder.symlink_to(memory / "elsewhere")
    elif kind == "open to all":
        folder.chmod(0o777)
    elif kind == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65_534, 65_534)
    else:
        parent = memory / "rma"
    config = NodeConfig(home=home, host="127.0.0.1", port=0, capacity_bytes=1 << 20, ram=parent)
    with pytest.raises(StorageError, match=r"no folder for temporary shards in .*; next: name a mounted"):
        _open_ram(config)
    assert not (memory / "rma").exists()


def test_a_folder_on_a_disk_is_refused_as_one_that_is_not_mounted(tmp_path: Path, memory: Path) -> None:
    config = NodeConfig(home=tmp_path, host="127.0.0.1", port=0, capacity_bytes=1 << 20, ram=Path("/proc"))
    with pytest.raises(StorageError, match="lies on proc, expected ramfs or tmpfs; is the memory file system mounted"):
        _open_ram(config)
    assert _open_ram(dataclasses.replace(config, ram=memory)) is not None


def test_a_folder_that_is_replaced_takes_nothing_and_is_named(
    open_ram: Any, make_shard: Any, keep: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, shards = open_ram(), make_bodies(make_shard, 4)
    keep(engine, shards[0])
    folder = engine.disk._ram.path
    folder.rename(folder.with_name("unmounted"))
    folder.mkdir(mode=0o700)
    for shard in shards[1:3]:
        keep(engine, shard)
        assert not is_in_ram(engine, shard)
    assert list(folder.iterdir()) == []
    assert caplog.text.count("is not there any more: mount it again and restart the node") == 1
    assert engine.disk.get_memory_status()["is_there"] is False
    folder.rmdir()
    folder.with_name("unmounted").rename(folder)
    keep(engine, shards[3])
    assert is_in_ram(engine, shards[3]), "it is back"


UNMOUNTED = """
import os, subprocess, sys
from pathlib import Path
from storage.node.config import NodeConfig
from storage.node.service import _open_ram
from storage.core.errors import StorageError
place, home = Path(sys.argv[1]), Path(sys.argv[2])
config = NodeConfig(home=home, host="127.0.0.1", port=0, capacity_bytes=1 << 20, ram=place)
subprocess.run(["mount", "-t", "tmpfs", "archipelago", str(place)], check=True)
ram = _open_ram(config)
assert ram.reserve(5) is not None
subprocess.run(["umount", "-l", str(place)], check=True)
assert ram.reserve(5) is None
assert not ram.is_there()
try:
    _open_ram(config)
except StorageError as error:
    print(error)
assert list(place.iterdir()) == []
"""


def test_a_mount_that_has_gone_is_noticed_at_once_and_at_the_next_start(tmp_path: Path) -> None:
    """For real, in a mount table of its own."""
    spaces = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*spaces, "true"], capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("no mounts: this machine lets nobody have a mount table of its own (unshare --user --mount)")
    place = tmp_path / "ram"
    place.mkdir()
    done = subprocess.run(
        [*spaces, sys.executable, "-c", UNMOUNTED, str(place), str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is the memory file system mounted?; next: name a mounted memory file system" in done.stdout


def test_a_memory_file_system_that_turned_read_only_costs_no_put_and_no_end(
    open_ram: Any, make_shard: Any, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, (old, new) = open_ram(), make_bodies(make_shard, 2)
    keep(engine, old)
    (engine.disk._ram.path / "a folder").mkdir()
    (engine.disk._ram.path / "0123.part").write_bytes(b"half a body")
    real_open, real_unlink = os.open, os.unlink

    def refuse(real: Any) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if "/ram/" in str(path) and (real is real_unlink or args[0] & os.O_CREAT):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(path, *args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse(real_open))
        patched.setattr(os, "unlink", refuse(real_unlink))
        keep(engine, new)
        assert not is_in_ram(engine, new)
        assert engine.disk._ram._coming_bytes == 0
        engine.disk.delete(old.offer.blob, SEAT)
        assert engine.disk.get_body_bytes(old.offer.blob, SEAT) is None
        engine = open_ram()
    assert is_intact(engine, new.offer.blob, SEAT)
    engine = open_ram()
    assert [path.name for path in engine.disk._ram.path.iterdir()] == ["a folder"]
