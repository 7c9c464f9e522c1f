"""One history: of several URLs, those that serve other blocks than we have seen are not asked (case 19).

The newest block that a URL told of is remembered as an anchor; before another URL is believed it must have the same
block there.  A chain with one-block finality never goes back, so a node with another block at that height follows
another history (a second quorum, a copy that went its own way, a liar), whatever chain id it names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ANCHOR_SECONDS = 20.0
"""How old an anchor may be: a URL that left our history later is found out after that long."""

Ask = Callable[[str, tuple[Any, ...]], Mapping[str, Any] | None]
"""(method, parameters) -> the answer of one URL, None where it gives none."""


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

    def find_fault(self, url: str, ask: Ask) -> str | None:
        """Say why a URL must not be believed, None where it has our history."""
        with self._lock:
            anchor = self._anchor
            is_fresh = anchor is not None and time.monotonic() < anchor.at_seconds + ANCHOR_SECONDS
            if is_fresh and url in self._confirmed:
                return None
        if anchor is not None and url != anchor.url:
            answer = ask("eth_getBlockByNumber", (hex(anchor.height), False))
            if answer is None or "error" in answer:
                return None  # it says nothing of blocks: its other answers will have to do
            block = answer.get("result")
            if block is None:
                return f"is behind block {anchor.height}, which {anchor.url} has"
            if block["hash"] != anchor.hash:
                return f"has another block {anchor.height}, {block['hash']}, than {anchor.url}, {anchor.hash}"
        self._confirm(url, anchor if is_fresh else self._read_anchor(url, ask) or anchor)
        return None

    def _confirm(self, url: str, anchor: _Anchor | None) -> None:
        with self._lock:
            if anchor is not self._anchor:
                self._confirmed = set()
                self._anchor = anchor
            self._confirmed.add(url)

    def _read_anchor(self, url: str, ask: Ask) -> _Anchor | None:
        """Return the newest block of a URL that has our history."""
        newest = ask("eth_getBlockByNumber", ("latest", False))
        block = newest.get("result") if newest is not None else None
        if not block:
            return None
        height = int(block["number"], 16)
        return _Anchor(url=url, height=height, hash=block["hash"], at_seconds=time.monotonic())
