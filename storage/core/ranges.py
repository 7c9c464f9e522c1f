"""Byte ranges of a GET, one range a request (RFC 9110, 14.1.2; SPEC.md 5)."""

from __future__ import annotations

import re

from storage.core.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def parse_range(header: str | None, shard_bytes: int) -> tuple[int, int] | None:
    """Return the half-open span that a Range header asks for; None: all of it.

    A header of another form (several ranges, another unit) is ignored, as RFC 9110 wants.

    >>> parse_range("bytes=0-99", 50), parse_range("bytes=-10", 50), parse_range("bytes=7-", 50)
    ((0, 50), (40, 50), (7, 50))

    Raises: RangeNotSatisfiable when it starts behind the end, or is empty.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or header is None:
        return None
    first, last = match.groups()
    if first == "" and last == "":
        return None
    if first == "":
        start, stop = max(0, shard_bytes - int(last)), shard_bytes
    else:
        start, stop = int(first), min(shard_bytes, int(last) + 1 if last else shard_bytes)
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise RangeNotSatisfiable(asked=header, shard_bytes=shard_bytes)
    return start, stop
