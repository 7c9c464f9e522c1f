"""One history: of several URLs, those that serve other blocks than we have seen are not asked (case 19).

The newest block that a URL told of, and shows, is remembered as an anchor; before another URL is believed it must have
the same block there.  A chain with one-block finality never goes back, so a node with another block at that height
follows another history (a second quorum, a copy that went its own way, a liar), whatever chain id it names.

An anchor is as good as the URL that told of it: where that one doesn't show the block any more, or only gives errors,
a URL that is behind is believed all the same if both have the same block at the newest height of the one behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.bindings.encoding import UNREADABLE, read_bytes, read_quantity
from contracts.bindings.errors import BadAnswer

ANCHOR_SECONDS = 20.0
"""How old an anchor may be: a URL that left our history later is found out after that long."""
_HASH_BYTES = 32

Call = tuple[str, tuple[Any, ...]]
"""A JSON-RPC method and its parameters."""
Ask = Callable[[str, Sequence[Call]], Sequence[Mapping[str, Any]] | None]
"""(URL, calls) -> that URL's answers in the order of the calls, None where it gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    url: str
    height: int
    hash: str
    at_seconds: float


class Lineage:
    """What is known of the chain's history, shared by threads."""

    def __init__(self) -> None:
        """Nothing is known yet: the first URL that answers is believed."""
        self._lock = threading.Lock()
        self._anchor: _Anchor | None = None
        self._confirmed: set[str] = set()

    def find_fault(self, url: str, ask: Ask, *, failed: Collection[str] = ()) -> str | None:
        """Say why a URL must not be believed, None where it has our history.

        ``failed`` are those that have just answered the same question with an error.
        Raises one of UNREADABLE where what it answers is no block.
        """
        with self._lock:
            anchor = self._anchor
            is_fresh = anchor is not None and time.monotonic() < anchor.at_seconds + ANCHOR_SECONDS
            if is_fresh and url in self._confirmed:
                return None
        if anchor is not None and url != anchor.url:
            answers = ask(url, [_block_at(anchor.height)])
            if answers is None or "error" in answers[0]:
                return None  # it says nothing of blocks: its other answers will have to do
            block = answers[0].get("result")
            if block is None:
                return self._find_fault_behind(url, anchor, ask, is_doubted=anchor.url in failed)
            if block["hash"] != anchor.hash:
                return _describe_other(anchor.height, block["hash"], anchor.url, anchor.hash)
        if not is_fresh:
            newest, fault = _read_newest(url, ask)
            if fault is not None:
                return fault
            anchor = newest or anchor
        self._confirm(url, anchor)
        return None

    def _find_fault_behind(self, url: str, anchor: _Anchor, ask: Ask, *, is_doubted: bool) -> str | None:
        """Say why a URL without the anchor's block must not be believed: the anchor may be false."""
        behind = f"is behind block {anchor.height}, which {anchor.url} has"
        newest, fault = _read_newest(url, ask)
        if newest is None:
            return fault or behind
        answers = ask(anchor.url, [_block_at(anchor.height), _block_at(newest.height)])
        if answers is None:
            return behind
        told, common = answers
        has_withdrawn = "error" not in told and (told["result"] is None or told["result"]["hash"] != anchor.hash)
        if not (has_withdrawn or is_doubted) or common.get("result") is None:
            return behind
        if common["result"]["hash"] != newest.hash:
            return _describe_other(newest.height, newest.hash, anchor.url, common["result"]["hash"])
        self._confirm(url, newest)
        return None

    def _confirm(self, url: str, anchor: _Anchor | None) -> None:
        with self._lock:
            if anchor is not self._anchor:
                self._confirmed = set()
                self._anchor = anchor
            self._confirmed.add(url)


def show_block(url: str, height: int, ask: Ask) -> str | None:
    """Return the hash of the block of a height, None where a URL doesn't show one that follows from the block before.

    A number alone is quickly said.  Who makes up whole blocks is not found out by that: ``chain-node verify`` checks
    signatures.
    """
    answers = ask(url, [_block_at(height), *([_block_at(height - 1)] if height > 1 else [])])
    if answers is None or "error" in answers[0]:
        return None
    try:
        block = answers[0]["result"]
        if read_quantity(block["number"]) != height or len(read_bytes(block["hash"])) != _HASH_BYTES:
            return None
        if height > 1 and "error" not in answers[1]:  # the one before may be pruned
            before = answers[1]["result"]
            if read_quantity(before["number"]) != height - 1 or before["hash"] != block["parentHash"]:
                return None
        return str(block["hash"])
    except (BadAnswer, *UNREADABLE):
        return None


def _read_newest(url: str, ask: Ask) -> tuple[_Anchor | None, str | None]:
    """Return the newest block of a URL, None where it tells of none, and what is wrong with it."""
    answers = ask(url, [("eth_getBlockByNumber", ("latest", False))])
    block = answers[0].get("result") if answers is not None else None
    if not block:
        return None, None
    height = read_quantity(block["number"])
    if show_block(url, height, ask) != block["hash"]:
        return None, f"says that its newest block is {height}, and doesn't show it"
    return _Anchor(url=url, height=height, hash=block["hash"], at_seconds=time.monotonic()), None


def _block_at(height: int) -> Call:
    return "eth_getBlockByNumber", (hex(height), False)


def _describe_other(height: int, got: str, url: str, expected: str) -> str:
    return f"has another block {height}, {got}, than {url}, {expected}"
