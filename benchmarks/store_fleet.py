"""Four real storage nodes for a benchmark, each in a process of its own, and committees of their seats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from da.core.types import Committee, Epoch, Height, Seat, ShardIndex

GENESIS = bytes(32)
"""Any chain."""

EXPIRY = Height(10_000)
"""Far beyond the height of the file's chain."""

START = "from benchmarks.store_node import main; main()"
"""Starts a node in a new interpreter."""

STOP_SECONDS = 10.0
"""For a node to stop when asked."""

MOUNT = 'mount -t tmpfs -o huge=within_size archipelago "$0" && exec "$@"'
"""A shell's script: a memory file system of huge pages at the folder $0, and the command $@ in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Running nodes."""

    chain: Path
    nodes: tuple[Seat, ...]
    """One seat each, as if they were the whole committee."""
    processes: tuple[int, ...]
    """Process ids of the nodes."""

    def get_cpu_seconds(self) -> float:
        """Return the CPU time that the nodes have used so far."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def seat(self, num_seats: int, epoch: int) -> Committee:
        """Make a committee of ``num_seats`` in which the nodes take turns, and tell the chain."""
        seats = tuple(
            Seat(index=ShardIndex(index), key=node.key, url=node.url)
            for index, node in ((index, self.nodes[index % len(self.nodes)]) for index in range(num_seats))
        )
        value = {
            "genesis": GENESIS.hex(),
            "height": 10 + epoch,
            "epoch": epoch,
            "seats": [{"key": seat.key.hex(), "url": seat.url} for seat in seats],
        }
        staged = self.chain.with_suffix(".new")
        staged.write_text(json.dumps(value))
        staged.replace(self.chain)
        return Committee(epoch=Epoch(epoch), seats=seats)


@contextmanager
def run_fleet(
    parent: Path | None,
    num_nodes: int = 4,
    host: str = "127.0.0.1",
    *,
    mounter: Sequence[str] = (),
    has_ram: bool = False,
) -> Iterator[Fleet]:
    """Start nodes with their homes under ``parent`` (None: the system's place), and end them and their bytes.

    With a ``mounter``, each home is a memory file system of huge pages; or, with ``has_ram``, only the folder where
    temporary shards lie.
    """
    root = Path(tempfile.mkdtemp(prefix="archipelago-bench-", dir=parent))
    processes: list[subprocess.Popen[str]] = []
    try:
        chain = root / "chain.json"
        for index in range(num_nodes):
            home, ram = root / f"node{index}", root / f"ram{index}"
            home.mkdir()
            ram.mkdir()
            prefix = [*mounter, str(ram if has_ram else home)] if mounter else []
            command = [*prefix, sys.executable, "-c", START, str(home), str(chain), host]
            command += [str(ram)] if has_ram else []
            with (root / f"node{index}.log").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
        yield Fleet(
            chain=chain,
            nodes=tuple(_read_seat(process, root, index) for index, process in enumerate(processes)),
            processes=tuple(process.pid for process in processes),
        )
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(root)


def find_mounter() -> tuple[str, ...]:
    """Return the command that runs FOLDER COMMAND with a memory file system of huge pages at FOLDER; empty: none may.

    The file system is in a name space of the command's own, and ends with it.
    """
    for flags in (("--mount",), ("--mount", "--map-root-user")):
        mounter = ("unshare", *flags, "sh", "-c", MOUNT)
        with tempfile.TemporaryDirectory() as folder:
            try:
                tried = subprocess.run([*mounter, folder, "true"], capture_output=True, timeout=STOP_SECONDS)
            except (OSError, subprocess.TimeoutExpired):
                return ()
        if tried.returncode == 0:
            return mounter
    return ()


def _read_seat(process: subprocess.Popen[str], root: Path, index: int) -> Seat:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"node {index} did not start: {(root / f'node{index}.log').read_text()}")
    said = json.loads(line)
    return Seat(index=ShardIndex(index), key=bytes.fromhex(said["key"]), url=said["url"])
