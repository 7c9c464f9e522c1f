"""Which pages of an LMDB file can be reached: it may rightly lack pages at its end that were never written.

LMDB itself ends the process when it touches a page behind the end. Layout of LMDB 0.9, little-endian: a page has a
header of 16 bytes (number 8, pad 2, flags 2, lower 2, upper 2) and node offsets u16 up to ``lower``; a node has low 2,
high 2, flags 2, key length 2, key, value. Only read here, and only files that are too short.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from da.core.errors import NotAFile
from da.input_file import open_input

HEADER_BYTES = 16
NODE_BYTES = 8
TREE_BYTES = 48
"""Of a tree's description: its root is the last 8 bytes."""
META_TREES_AT = HEADER_BYTES + 24
"""Magic, version, address and map size stand before the two trees."""
BRANCH, LEAF, OVERFLOW = 1, 2, 4
BIG_VALUE, SUB_TREE = 1, 2
NO_PAGE = 2**64 - 1


MAGIC = 0xBEEFC0DE
"""Of a root page, behind its header."""


def find_damage(path: Path) -> str:
    """Return what is wrong with a database's file, without changing it; empty: nothing that can be seen so."""
    try:
        with os.fdopen(open_input(path), "rb") as file:
            data = file.read(META_TREES_AT + 4)
    except FileNotFoundError:
        return ""
    except NotAFile as error:
        return f"{path.name} {error.found}"
    if not data:
        return ""
    if len(data) < META_TREES_AT + 4 or _read(data, HEADER_BYTES, 4) != MAGIC:
        return "it is no LMDB file"
    page_bytes = _read(data, META_TREES_AT, 4)
    if not 512 <= page_bytes <= 65_536:
        return f"its pages have {page_bytes} bytes"
    return "" if is_complete(path, page_bytes) else "pages are missing from it"


def is_complete(path: Path, page_bytes: int) -> bool:
    """Tell whether every page that can be reached from the newest root lies within the file."""
    with path.open("rb") as file:
        return _is_complete(file, page_bytes)


def _is_complete(file: BinaryIO, page_bytes: int) -> bool:
    num_bytes = os.fstat(file.fileno()).st_size
    metas = [_read_page(file, number, page_bytes) for number in (0, 1)]
    if any(len(meta) < page_bytes for meta in metas):
        return False
    newest = max(metas, key=lambda meta: _read(meta, META_TREES_AT + 2 * TREE_BYTES + 8, 8))
    waiting = [_get_root(newest, META_TREES_AT), _get_root(newest, META_TREES_AT + TREE_BYTES)]
    seen = set(waiting)
    while waiting:
        number = waiting.pop()
        if number == NO_PAGE:
            continue
        page = _read_page(file, number, page_bytes) if number * page_bytes < num_bytes else b""
        if len(page) < page_bytes or _read(page, 0, 8) != number:
            return False
        if _read(page, 10, 2) & OVERFLOW:
            if (number + _read(page, 12, 4)) * page_bytes > num_bytes:
                return False
            continue
        fresh = [child for child in _get_children(page) if child not in seen]
        seen.update(fresh)
        waiting += fresh
    return True


def _read_page(file: BinaryIO, number: int, page_bytes: int) -> bytes:
    """Return a page, or what the file has of it: one page is in memory at a time, however long the file is."""
    file.seek(number * page_bytes)
    return file.read(page_bytes)


def _get_children(page: bytes) -> list[int]:
    """Return the pages that a page of a tree names."""
    flags, children = _read(page, 10, 2), []
    for slot in range(HEADER_BYTES, min(_read(page, 12, 2), len(page)), 2):
        at = _read(page, slot, 2)
        node_flags = _read(page, at + 4, 2)
        if flags & BRANCH:
            children.append(_read(page, at, 4) | node_flags << 32)
            continue
        value_at = at + NODE_BYTES + _read(page, at + 6, 2)
        if node_flags & SUB_TREE:
            children.append(_get_root(page, value_at))
        elif node_flags & BIG_VALUE:
            children.append(_read(page, value_at, 8))
    return children


def _get_root(page: bytes, tree_at: int) -> int:
    return _read(page, tree_at + TREE_BYTES - 8, 8)


def _read(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
