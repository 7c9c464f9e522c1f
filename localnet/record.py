"""devnet.json: which processes are up, where they listen, and how to reach them.

Written whole (temporary name, fsync, rename) by the supervisor alone; read by `status`, `down`, `fund` and the demo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from localnet.core.config import RECORD_NAME
from localnet.core.errors import BadDevnetRecord, DevnetNotUp, RecordNotWritten
from localnet.hints import home_option
from localnet.process import ProcessId, is_alive

FORMAT = 1
"""Version of this file's layout."""


class Phase(StrEnum):
    """How far a devnet is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    """Somebody has asked to stop; where its supervisor is gone, it was stopped in order, by force at the end."""
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedProcess:
    """A process of the devnet."""

    name: str
    """As in its log's name."""
    id: ProcessId
    """Which process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetRecord:
    """What is up."""

    home: str
    """Absolute path of the home."""
    phase: Phase
    """How far it is."""
    supervisor: ProcessId
    """The process of `localnet up`."""
    processes: tuple[NamedProcess, ...]
    """Those it started itself; theirs are found as descendants."""
    chain_id: str
    """CometBFT's chain id, new at each reset."""
    rpc_urls: tuple[str, ...]
    """JSON-RPC and the page as this machine reaches them, one a validator."""
    public_urls: tuple[str, ...]
    """The same as other machines reach them."""
    storage_urls: tuple[str, ...]
    """One a storage node."""
    faucet_key: str
    """Path of the faucet's key file."""
    why: str = ""
    """Phase FAILED: the reason; while it is up: why its chain stands still."""
    host: str = ""
    """Address it listens on; empty in a record of before this was kept."""
    advertise: str = ""
    """By which address other machines reach it; empty: the listen address."""
    rpc_port: int = 0
    """Port of the first validator's JSON-RPC, or the one wished for before it is chosen; 0: was not kept."""

    @property
    def rpc_url(self) -> str:
        """The first validator's URL; empty before it is chosen."""
        return self.rpc_urls[0] if self.rpc_urls else ""

    @property
    def is_up(self) -> bool:
        """Whether the supervisor runs."""
        return self.phase in (Phase.STARTING, Phase.READY) and is_alive(self.supervisor)


def save_record(record: DevnetRecord) -> None:
    """Write the record whole or not at all; raises RecordNotWritten."""
    path = Path(record.home) / RECORD_NAME
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8") as sink:
            json.dump({"format": FORMAT, **asdict(record)}, sink, indent=2)
            sink.write("\n")
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise RecordNotWritten(str(path), error.strerror or type(error).__name__) from error


def load_record(home: Path) -> DevnetRecord:
    """Read the record of a home.

    Raises DevnetNotUp where there is none and BadDevnetRecord where it is no record.
    """
    path = home / RECORD_NAME
    try:
        raw: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise BadDevnetRecord(str(path), f"format {raw['format']}, expected {FORMAT}")
        return DevnetRecord(
            home=raw["home"],
            phase=Phase(raw["phase"]),
            supervisor=ProcessId(**raw["supervisor"]),
            processes=tuple(NamedProcess(name=one["name"], id=ProcessId(**one["id"])) for one in raw["processes"]),
            chain_id=raw["chain_id"],
            rpc_urls=tuple(raw["rpc_urls"]),
            public_urls=tuple(raw["public_urls"]),
            storage_urls=tuple(raw["storage_urls"]),
            faucet_key=raw["faucet_key"],
            why=raw["why"],
            host=raw.get("host", ""),
            advertise=raw.get("advertise", ""),
            rpc_port=raw.get("rpc_port", 0),
        )
    except FileNotFoundError as error:
        raise DevnetNotUp(str(home), home_option(home)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDevnetRecord(str(path), f"{type(error).__name__}: {error}") from error


def load_up(home: Path) -> DevnetRecord:
    """Read the record of a devnet that is up; raises DevnetNotUp otherwise."""
    record = load_record(home)
    if not record.is_up:
        raise DevnetNotUp(str(home), home_option(home))
    return record
