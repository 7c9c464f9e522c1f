"""``arch://``: a read-only fsspec file system over the store, for torch, datasets, safetensors and whatever opens URLs.

    arch://HOST:PORT/<64 hex digits>[/any-name.ext]      the chain's JSON-RPC URL is http://HOST:PORT

The name after the id is for people and for libraries that look at endings. A read fetches the leaves that hold the
bytes, each checked by its Merkle path, and a little ahead; archives are not unpacked. Invariant: bytes that do not
verify are never returned.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, ClassVar

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from contracts.bindings.client import ChainClient
from da.blocking import BlobClient
from da.core.errors import RetrieveFailed
from da.core.types import BlobId
from storage.client import BlobReader, StorageClient, parse_blob_id
from storage.core.errors import UnknownBlob

BLOCK_BYTES = 256 << 10
"""Read ahead: four leaves. Libraries read headers of some bytes first, then tensors in one go."""

OPEN_BLOBS = 64
"""Blobs whose header and committee are kept."""


class ArchFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Blobs as files; every write is refused."""

    protocol: ClassVar[str] = "arch"
    cachable = True
    root_marker = ""

    def __init__(self, *args: Any, chain: str | None = None, deadline_seconds: float = 60.0, **options: Any) -> None:
        """Read through ``chain``, a JSON-RPC URL; by default the one in the path."""
        super().__init__(*args, **options)
        self._chain = chain
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._clients: dict[str, StorageClient] = {}
        self._readers: OrderedDict[BlobId, BlobReader] = OrderedDict()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("arch://").strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and type of a blob.

        Raises: FileNotFoundError when the chain does not know it.
        """
        client, blob = self._open_path(path)
        try:
            found = client.stat(blob)
        except UnknownBlob as error:
            raise FileNotFoundError(path) from error
        return {"name": self._strip_protocol(path), "size": found.size_bytes, "type": "file", "tier": found.tier}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the blob itself: the store has no directories."""
        info = self.info(path)
        return [info] if detail else [info["name"]]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return a blob's bytes, or some of them; negative positions count from its end."""
        client, blob = self._open_path(path)
        reader = self._get_reader(client, blob)
        first, stop, _step = slice(start, end).indices(reader.size_bytes)
        try:
            return reader.read(first, stop)
        except RetrieveFailed:
            with self._lock:
                self._readers.pop(blob, None)
        # Its seats may have moved, or the blob to another committee: once more, as the chain has it now.
        return self._get_reader(client, blob).read(first, stop)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> ArchFile:
        if mode != "rb":
            raise PermissionError(f"{path}: arch:// is read-only; use storage put")
        return ArchFile(self, path, mode, block_size or BLOCK_BYTES, cache_options=cache_options, **options)

    def _open_path(self, path: str) -> tuple[StorageClient, BlobId]:
        parts = self._strip_protocol(path).split("/")
        if self._chain is not None and len(parts[0]) >= 64:
            url, name = self._chain, parts[0]
        elif len(parts) >= 2:
            url, name = self._chain or f"http://{parts[0]}", parts[1]
        else:
            raise FileNotFoundError(f"{path}: expected arch://HOST:PORT/BLOB, or the option chain=URL")
        with self._lock:
            if url not in self._clients:
                chain, blobs = ChainClient([url]), BlobClient(deadline_seconds=self._deadline_seconds)
                weakref.finalize(self, _close, os.getpid(), chain, blobs)  # at exit, or when fsspec forgets us
                self._clients[url] = StorageClient(chain, blobs)
            return self._clients[url], parse_blob_id(name)

    def _get_reader(self, client: StorageClient, blob: BlobId) -> BlobReader:
        with self._lock:
            found = self._readers.get(blob)
            if found is not None:
                self._readers.move_to_end(blob)
                return found
        found = client.open(blob)
        with self._lock:
            self._readers[blob] = found
            while len(self._readers) > OPEN_BLOBS:
                self._readers.popitem(last=False)
        return found


def _close(pid: int, chain: ChainClient, blobs: BlobClient) -> None:
    """Close the connections of the process that opened them; a forked child has none of its threads."""
    if os.getpid() == pid:
        blobs.close()
        chain.close()


class ArchFile(AbstractBufferedFile):  # type: ignore[misc]
    """One open blob."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data
