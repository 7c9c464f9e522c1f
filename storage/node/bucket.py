"""Cold shards in a bucket: S3-compatible, or any other that obstore opens by URL (SPEC.md 9).

One object a shard, ``<blob hex>.<shard>``. The bucket is one node's own; what else lies there is left alone. Invariant:
whatever the bucket answers but "not found" is ShelfUnavailable, and nothing is ever deleted because of a listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, S3Store, from_url

from da.core.types import BlobId, ShardIndex
from storage.core.errors import ShelfUnavailable

if TYPE_CHECKING:
    from obstore.store import S3Config

T = TypeVar("T")

REQUEST_SECONDS = 60
"""Longest wait for one answer of the bucket."""

RETRY_SECONDS = 20
"""Longest time of all tries of one request together."""

PART_BYTES = 16 << 20
"""Larger shards go up in parts of this size."""


class BucketReader:
    """A shard in a bucket, read by ranges."""

    def __init__(self, store: ObjectStore, name: str, num_bytes: int) -> None:
        """Read object ``name`` of ``store``."""
        self._store = store
        self._name = name
        self._num_bytes = num_bytes

    def read(self, start: int, num_bytes: int) -> bytes:
        """See ``ShardReader``; raises ShelfUnavailable."""
        stop = min(start + num_bytes, self._num_bytes)
        if start >= stop:
            return b""
        return bytes(_ask(self._name, lambda: obstore.get_range(self._store, self._name, start=start, end=stop)))

    def close(self) -> None:
        """See ``ShardReader``."""


class BucketShelf:
    """See ``Shelf``."""

    def __init__(self, store: ObjectStore) -> None:
        """Keep shards in ``store``."""
        self._store = store

    def put(self, blob: BlobId, shard: ShardIndex, body: Path) -> None:
        """See ``Shelf``; an object appears whole or not at all."""
        name = _make_name(blob, shard)
        expected = body.stat().st_size
        _ask(name, lambda: obstore.put(self._store, name, body, chunk_size=PART_BYTES))
        got = self.get_bytes(blob, shard)
        if got != expected:
            raise ShelfUnavailable(what=name, reason=f"put {expected} bytes, the bucket has {got}")

    def get_bytes(self, blob: BlobId, shard: ShardIndex) -> int | None:
        """See ``Shelf``."""
        name = _make_name(blob, shard)
        try:
            return int(_ask(name, lambda: obstore.head(self._store, name))["size"])
        except FileNotFoundError:
            return None

    def open(self, blob: BlobId, shard: ShardIndex) -> BucketReader:
        """See ``Shelf``."""
        num_bytes = self.get_bytes(blob, shard)
        name = _make_name(blob, shard)
        if num_bytes is None:
            raise FileNotFoundError(f"no object {name} in the bucket")
        return BucketReader(self._store, name, num_bytes)

    def delete(self, blob: BlobId, shard: ShardIndex) -> None:
        """See ``Shelf``."""
        name = _make_name(blob, shard)
        try:
            _ask(name, lambda: obstore.delete(self._store, name))
        except FileNotFoundError:
            return

    def iterate_keys(self) -> Iterator[tuple[BlobId, ShardIndex]]:
        """See ``Shelf``."""
        pages = iter(_ask("the listing", lambda: obstore.list(self._store)))
        while (page := _ask("the listing", lambda: next(pages, None))) is not None:
            for item in page:
                key = _parse_name(item["path"])
                if key is not None:
                    yield key


def open_bucket(url: str, *, config: dict[str, str] | None = None) -> BucketShelf:
    """Open a bucket by URL: ``s3://bucket/prefix``, also file:// and memory://.

    ``config`` overrides what obstore reads from the environment: ``endpoint``, ``region``, ``access_key_id``, ...

    Raises: ShelfUnavailable for a URL that makes no sense.
    """
    try:
        return BucketShelf(_open_s3(url, config or {}) if url.startswith(("s3:", "s3a:")) else from_url(url))
    except (BaseError, ValueError) as error:
        raise ShelfUnavailable(what=url, reason=str(error)) from error


def _open_s3(url: str, config: dict[str, str]) -> S3Store:
    return S3Store.from_url(
        url,
        config=cast("S3Config", config),
        client_options={
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "allow_http": config.get("endpoint", "").startswith("http://"),
        },
        retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    )


def _ask(what: str, question: Callable[[], T]) -> T:
    try:
        return question()
    except (NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(what) from error
    except (BaseError, OSError) as error:
        raise ShelfUnavailable(what=what, reason=str(error).splitlines()[0][:300]) from error


def _make_name(blob: BlobId, shard: ShardIndex) -> str:
    return f"{blob.hex()}.{shard}"


def _parse_name(name: str) -> tuple[BlobId, ShardIndex] | None:
    blob, _, shard = name.rpartition("/")[2].rpartition(".")
    if len(blob) != 64 or not shard.isdecimal():
        return None
    try:
        return BlobId(bytes.fromhex(blob)), ShardIndex(int(shard))
    except ValueError:
        return None
