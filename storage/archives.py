"""Archives in the store: the cheap form of kept checkpoints (core/delta.py, SPEC.md 10).

    keep:     contents - contents of the base -> planes -> zstd -> put, cold
    restore:  the archive and its bases (at most five blobs) -> contents, checked by their digest

Works in files beside the target, block by block, so size is no matter. Invariant: nothing stands under the target's
name before all of it is right.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.bindings.sender import Sender
from da.core.types import BlobId, Tier
from da.input_file import open_input
from da.landing import check_target
from da.slabs import FileSource
from storage.archiving import Chain, read_archive, read_header, write_archive
from storage.client import StorageClient, Stored
from storage.core.delta import MAX_DEPTH
from storage.core.errors import MalformedArchive


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What came of keeping a file."""

    stored: Stored
    size_bytes: int
    """Of the contents."""
    depth: int
    """Archives below."""
    base: BlobId | None
    """The archive that this one builds on."""

    @property
    def gain(self) -> float:
        """How many times smaller than its contents it is."""
        return self.size_bytes / max(1, self.stored.size_bytes)


def keep_file(
    storage: StorageClient,
    path: Path,
    *,
    blocks: int,
    sender: Sender,
    width: int = 4,
    base: BlobId | None = None,
    tier: Tier = Tier.COLD,
) -> Archived:
    """Put a file as an archive; as the difference to the archive ``base``, unless that has four below it already.

    Raises: NotAFile; MalformedArchive when ``base`` is none; what ``StorageClient.put`` and ``get`` raise.
    """
    with ExitStack() as stack:
        source = stack.enter_context(os.fdopen(open_input(path), "rb"))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=".archive-", dir=path.parent))
        chain = None
        if base is not None:
            chain = stack.enter_context(_open_chain(storage, base, Path(directory)))
            if chain.depth >= MAX_DEPTH:
                chain = None
        target = Path(directory) / "new"
        with target.open("wb") as file:
            header = write_archive(source, file, width=width, base=chain)
        with FileSource(target) as archive:
            stored = storage.put(archive, tier=tier, blocks=blocks, sender=sender)
    return Archived(
        stored=stored, size_bytes=header.size_bytes, depth=header.depth, base=base if chain is not None else None
    )


def restore_file(storage: StorageClient, blob: BlobId, out: Path) -> int:
    """Write the contents of an archive to ``out`` and return their size.

    Raises: NotAFile; MalformedArchive; what ``StorageClient.get`` raises.
    """
    check_target(out)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=out.parent) as directory:
        with _open_chain(storage, blob, Path(directory)) as chain:
            target = Path(directory) / "contents"
            with target.open("wb") as file:
                header = read_archive(chain.files, file)
                file.flush()
                os.fsync(file.fileno())
        os.replace(target, out)
    return header.size_bytes


@contextmanager
def _open_chain(storage: StorageClient, blob: BlobId, directory: Path) -> Iterator[Chain]:
    """Fetch an archive and its bases, and open them, the whole one first."""
    with ExitStack() as stack:
        files, name, expected = [], blob, None
        while True:
            path = directory / name.hex()
            storage.get_to_file(name, path)
            file = stack.enter_context(path.open("rb"))
            header = read_header(file)
            if expected is not None and header.depth != expected:
                raise MalformedArchive(f"archive {name.hex()} has depth {header.depth}, expected {expected}")
            files.append(file)
            if header.depth == 0:
                break
            name, expected = BlobId(header.base), header.depth - 1
        yield Chain(files=tuple(reversed(files)), blob=blob, depth=len(files) - 1)
