"""Moves a run's checkpoints from hot to cold as the policy says: copy, certify, flip, grace, delete (SPEC.md 13).

The catalogue, a JSON file written whole, names for each checkpoint its blobs and how far it has come; it is the pointer
that readers follow. Invariant: a step is noted after it is done and every step may be done twice, so a mover that was
killed goes on where it was, and what fails deletes nothing. Killed between a copy and its note, it may leave one
archive of one part to the end of its lease.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from contracts.bindings.checkpoints import is_complete
from contracts.bindings.client import ChainClient
from contracts.bindings.sender import Sender
from contracts.bindings.types import BlobState
from da.core.types import BlobId, Height, Tier
from da.foreign_json import parse_json
from da.input_file import read_input
from storage.archives import keep_file
from storage.client import StorageClient
from storage.core.errors import InvalidRetention, NotYourLease, UnknownBlob
from storage.core.expiry import PINNED
from storage.core.retention import Action, Kept, Retention, Step, plan_aging, plan_retention
from storage.whole_file import create_whole

log = logging.getLogger(__name__)

COLD_BLOCKS = 8_760_000
"""A month of blocks of 0.3 s; a cold lease is 30 days at least."""

MAX_CATALOGUE_BYTES = 1 << 30
"""Of a catalogue: a blob takes some 300 bytes in it."""

Plan = Callable[[Sequence[Kept], Height, int], tuple[tuple[Action, Kept], ...]]
"""What to do now with what a catalogue has, at a height; the number is the newest certified version."""


def make_retention_plan(retention: Retention) -> Plan:
    """Return the plan of a run's checkpoints."""
    return lambda kept, height, newest: plan_retention(kept, retention, height, newest_certified=newest)


def make_aging_plan(grace_blocks: int) -> Plan:
    """Return the plan of blobs that go cold by age."""
    return lambda kept, height, _: plan_aging(kept, grace_blocks, height)


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

    def __init__(self, port: MovePort, catalogue: Path, plan: Plan) -> None:
        """Keep the pointer in ``catalogue``; ``plan`` says what is due."""
        self._port = port
        self._path = catalogue
        self._plan = plan

    def step(self) -> tuple[tuple[Action, int], ...]:
        """Do what is due and return what was done."""
        checkpoints = load_catalogue(self._path)
        newest, certified = self._port.get_checkpoints()
        for version, blobs in certified.items():
            if version not in checkpoints:
                checkpoints[version] = Kept(version=version, step=Step.HOT, hot=blobs)
        save_catalogue(self._path, checkpoints)
        done = []
        for action, kept in self._plan(list(checkpoints.values()), self._port.get_height(), newest):
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
    """What all moves over a real chain and store share: copying and releasing in the name of who pays."""

    def __init__(
        self, chain: ChainClient, storage: StorageClient, sender: Sender, *, directory: Path, width: int = 4
    ) -> None:
        """Work in ``directory``, which needs room for some parts."""
        self._chain = chain
        self._storage = storage
        self._sender = sender
        self._directory = directory
        self._width = width

    def get_height(self) -> Height:
        """See ``MovePort``."""
        return Height(self._chain.height())

    def copy(self, blob: BlobId, base: BlobId | None) -> tuple[BlobId, BlobId | None]:
        """See ``MovePort``; raises NotFunded before anything is read, so a watch without money costs nothing."""
        least = self._storage.quote(tier=Tier.COLD, size_bytes=1, blocks=COLD_BLOCKS)
        self._storage.check_funds(least, sender=self._sender, what=f"keeping blob {blob.hex()} cold")
        with tempfile.TemporaryDirectory(prefix="move-", dir=self._directory) as directory:
            path = Path(directory) / "part"
            self._storage.get_to_file(blob, path)
            kept = keep_file(self._storage, path, blocks=COLD_BLOCKS, sender=self._sender, width=self._width, base=base)
        return kept.stored.blob, kept.base

    def release(self, blob: BlobId) -> None:
        """See ``MovePort``."""
        with contextlib.suppress(NotYourLease, UnknownBlob):  # released before: done
            self._storage.release(blob, sender=self._sender)


class RunMovePort(StoreMovePort):
    """MovePort of a run's checkpoints, for the run's owner."""

    def __init__(
        self, chain: ChainClient, storage: StorageClient, sender: Sender, *, run: int, directory: Path, width: int = 4
    ) -> None:
        """Move those of ``run``."""
        super().__init__(chain, storage, sender, directory=directory, width=width)
        self._run = run

    def get_checkpoints(self) -> tuple[int, dict[int, tuple[BlobId, ...]]]:
        """See ``MovePort``; versions are multiples of the interval, and the last one."""
        info = self._chain.training.run(self._run)
        interval = max(1, info.params.checkpoint_interval)
        versions = {*range(0, info.certified_version + 1, interval), info.certified_version}
        found = {}
        for version in sorted(versions):
            checkpoint = self._chain.training.checkpoint_at(self._run, version)
            if is_complete(checkpoint):
                found[version] = tuple(BlobId(blob) for blob in checkpoint.blobs)
        return info.certified_version, found


class AgedMovePort(StoreMovePort):
    """MovePort of an account's own blobs that are old enough, such as logs; a version is a place in its list."""

    def __init__(
        self,
        chain: ChainClient,
        storage: StorageClient,
        sender: Sender,
        *,
        after_blocks: int,
        directory: Path,
        width: int = 4,
    ) -> None:
        """Move blobs that were certified ``after_blocks`` ago or earlier; cold and pinned ones stay."""
        super().__init__(chain, storage, sender, directory=directory, width=width)
        self._after_blocks = after_blocks

    def get_checkpoints(self) -> tuple[int, dict[int, tuple[BlobId, ...]]]:
        """See ``MovePort``; the number means nothing here."""
        born_by = self._chain.height() - self._after_blocks
        found: dict[int, tuple[BlobId, ...]] = {
            index: (BlobId(info.blob),)
            for index, info in enumerate(self._storage.list_blobs(self._sender.address))
            if info.state is BlobState.LIVE
            and Tier(info.tier) is not Tier.COLD
            and info.release_height != PINNED
            and info.certified_height <= born_by
        }
        return 0, found

    def copy(self, blob: BlobId, base: BlobId | None) -> tuple[BlobId, BlobId | None]:
        """See ``MovePort``; these have nothing in common, so no archive builds on another."""
        return super().copy(blob, None)


def load_catalogue(path: Path) -> dict[int, Kept]:
    """Return the checkpoints of a catalogue; none where there is no file.

    Raises: InvalidRetention, NotAFile.
    """
    try:
        text = read_input(path, limit_bytes=MAX_CATALOGUE_BYTES)
    except FileNotFoundError:
        return {}
    try:
        items = parse_json(text)["checkpoints"]
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
