"""Moves a run's checkpoints from hot to cold as the policy says: copy, certify, flip, grace, delete (SPEC.md 13).

The catalogue, a JSON file written whole, names for each checkpoint its blobs and how far it has come; it is the pointer
that readers follow. Invariant: a step is noted after it is done and every step may be done twice, so a mover that was
killed goes on where it was, and what fails deletes nothing. Killed between a copy and its note, it may leave one
archive of one part to the end of its lease.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ContractError
from contracts.bindings.sender import Sender
from contracts.bindings.types import CheckpointState
from da.core.types import BlobId, Height
from storage.archives import keep_file
from storage.client import StorageClient
from storage.core.errors import InvalidRetention
from storage.core.retention import Action, Kept, Retention, Step, plan_retention
from storage.whole_file import create_whole

log = logging.getLogger(__name__)

COLD_BLOCKS = 8_760_000
"""A month of blocks of 0.3 s; a cold lease is 30 days at least."""


class MovePort(Protocol):
    """What a mover asks of chain and store."""

    def get_height(self) -> Height:
        """Return the newest block height."""

    def get_checkpoints(self) -> tuple[int, dict[int, tuple[BlobId, ...]]]:
        """Return the newest certified version, and the blobs of all certified ones by version."""

    def copy(self, blob: BlobId, base: BlobId | None) -> tuple[BlobId, BlobId | None]:
        """Keep a part cold, as the difference to ``base`` where that is possible; return the archive and its base.

        Returning means certified.
        """

    def release(self, blob: BlobId) -> None:
        """Give back the owner's lease; one that has ended is no error."""


class Mover:
    """One run's checkpoints; call ``step`` from time to time."""

    def __init__(self, port: MovePort, catalogue: Path, retention: Retention) -> None:
        """Keep the pointer in ``catalogue``."""
        self._port = port
        self._path = catalogue
        self._retention = retention

    def step(self) -> tuple[tuple[Action, int], ...]:
        """Do what is due and return what was done."""
        checkpoints = load_catalogue(self._path)
        newest, certified = self._port.get_checkpoints()
        for version, blobs in certified.items():
            if version not in checkpoints:
                checkpoints[version] = Kept(version=version, step=Step.HOT, hot=blobs)
        save_catalogue(self._path, checkpoints)
        done = []
        plan = plan_retention(
            list(checkpoints.values()), self._retention, self._port.get_height(), newest_certified=newest
        )
        for action, kept in plan:
            checkpoints[kept.version] = self._do(action, kept, checkpoints)
            save_catalogue(self._path, checkpoints)
            done.append((action, kept.version))
            log.info("checkpoint %d: %s", kept.version, action)
        return tuple(done)

    def _do(self, action: Action, kept: Kept, checkpoints: dict[int, Kept]) -> Kept:
        match action:
            case Action.COPY:
                bases = _find_bases(kept, checkpoints)
                for part in range(len(kept.cold), len(kept.hot)):
                    archive, base = self._port.copy(kept.hot[part], bases[part])
                    more = () if base is None else (base,)
                    kept = replace(kept, cold=(*kept.cold, archive), bases=(*kept.bases, *more))
                    checkpoints[kept.version] = kept
                    save_catalogue(self._path, checkpoints)
                return replace(kept, step=Step.COPIED)
            case Action.FLIP:
                return replace(kept, step=Step.FLIPPED, flipped_height=self._port.get_height())
            case Action.RELEASE_HOT:
                self._release(kept.hot)
                return replace(kept, step=Step.COLD)
            case Action.DROP_HOT:
                self._release((*kept.hot, *kept.cold))
                return replace(kept, step=Step.DROPPED)
            case Action.DROP_COLD:
                self._release(kept.cold)
                return replace(kept, step=Step.DROPPED)

    def _release(self, blobs: Sequence[BlobId]) -> None:
        for blob in blobs:
            self._port.release(blob)


class StoreMovePort:
    """MovePort over a real chain and store, for the run's owner."""

    def __init__(
        self, chain: ChainClient, storage: StorageClient, sender: Sender, *, run: int, directory: Path, width: int = 4
    ) -> None:
        """Work in ``directory``, which needs room for some parts."""
        self._chain = chain
        self._storage = storage
        self._sender = sender
        self._run = run
        self._directory = directory
        self._width = width

    def get_height(self) -> Height:
        """See ``MovePort``."""
        return Height(self._chain.height())

    def get_checkpoints(self) -> tuple[int, dict[int, tuple[BlobId, ...]]]:
        """See ``MovePort``; versions are multiples of the interval, and the last one."""
        info = self._chain.training.run(self._run)
        interval = max(1, info.params.checkpoint_interval)
        versions = {*range(0, info.certified_version + 1, interval), info.certified_version}
        found = {}
        for version in sorted(versions):
            checkpoint = self._chain.training.checkpoint_at(self._run, version)
            if checkpoint.state in (CheckpointState.CERTIFIED, CheckpointState.SUPERSEDED):
                found[version] = tuple(BlobId(blob) for blob in checkpoint.blobs)
        return info.certified_version, found

    def copy(self, blob: BlobId, base: BlobId | None) -> tuple[BlobId, BlobId | None]:
        """See ``MovePort``."""
        with tempfile.TemporaryDirectory(prefix="move-", dir=self._directory) as directory:
            path = Path(directory) / "part"
            self._storage.get_to_file(blob, path)
            kept = keep_file(self._storage, path, blocks=COLD_BLOCKS, sender=self._sender, width=self._width, base=base)
        return kept.stored.blob, kept.base

    def release(self, blob: BlobId) -> None:
        """See ``MovePort``."""
        try:
            self._storage.release(blob, sender=self._sender)
        except ContractError as error:
            if error.name not in ("NoLease", "UnknownBlob"):
                raise


def load_catalogue(path: Path) -> dict[int, Kept]:
    """Return the checkpoints of a catalogue; none where there is no file.

    Raises: InvalidRetention.
    """
    if not path.exists():
        return {}
    try:
        items = json.loads(path.read_text(encoding="utf-8"))["checkpoints"]
        found = [_decode(item) for item in items]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRetention(f"{path} is no catalogue: {error}; next: move it away to begin anew") from error
    return {kept.version: kept for kept in found}


def save_catalogue(path: Path, checkpoints: dict[int, Kept]) -> None:
    """Write a catalogue, whole or not at all."""
    items = [_encode(kept) for _, kept in sorted(checkpoints.items())]
    with create_whole(path) as write:
        write(json.dumps({"checkpoints": items}, indent=1).encode())


def get_readable(kept: Kept) -> tuple[tuple[BlobId, ...], bool]:
    """Return what a reader takes now, and whether these are archives."""
    is_cold = kept.step in (Step.FLIPPED, Step.COLD)
    return (kept.cold, True) if is_cold else (kept.hot, False)


def _find_bases(kept: Kept, checkpoints: dict[int, Kept]) -> list[BlobId | None]:
    """Return for each part the archive of the newest older checkpoint that is kept cold."""
    older = [
        other
        for other in checkpoints.values()
        if other.version < kept.version
        and other.step in (Step.COPIED, Step.FLIPPED, Step.COLD)
        and len(other.cold) == len(kept.hot)
    ]
    if not older:
        return [None] * len(kept.hot)
    return list(max(older, key=lambda other: other.version).cold)


def _encode(kept: Kept) -> dict[str, Any]:
    return {
        "version": kept.version,
        "step": kept.step.value,
        "hot": [blob.hex() for blob in kept.hot],
        "cold": [blob.hex() for blob in kept.cold],
        "bases": [blob.hex() for blob in kept.bases],
        "flipped_height": kept.flipped_height,
    }


def _decode(item: dict[str, Any]) -> Kept:
    return Kept(
        version=int(item["version"]),
        step=Step(item["step"]),
        hot=tuple(BlobId(bytes.fromhex(text)) for text in item["hot"]),
        cold=tuple(BlobId(bytes.fromhex(text)) for text in item["cold"]),
        bases=tuple(BlobId(bytes.fromhex(text)) for text in item["bases"]),
        flipped_height=Height(int(item["flipped_height"])),
    )
