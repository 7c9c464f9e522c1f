"""Rounds that leave the state under an accumulator, so that the state stays bounded (DESIGN 8)."""

from __future__ import annotations

ARCHIVED_PREFIXES = frozenset({b"t/o", b"t/V", b"t/u", b"t/v", b"t/R"})
"""Keys of round, participants, update, vote and root; whoever deletes one has put it under the accumulator."""
