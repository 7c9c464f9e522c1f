"""What an operator chooses for the application: ``<home>/config/app.toml``, read once at start.

| key | meaning | default |
|---|---|---|
| snapshot_interval_blocks | make a state-sync snapshot at multiples of this height; 0: none | 1000 |
| num_snapshots_kept | older ones are deleted | 2 |
| retain_blocks | newest blocks whose records and CometBFT blocks are kept; 0: all | 0 |
| verifier | a process that checks signatures beside the application; 0: never, 1: always, -1: while it helps | -1 |
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

MIN_RETAIN_BLOCKS = 100
"""Fewer would leave a peer that was away for a minute without the blocks it needs."""

FILE_NAME = "app.toml"


class InvalidSettings(Exception):
    """app.toml isn't what it should be."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        """Keep the path; ``line`` counts from 1."""
        place = f"{path}, line {line}" if line else str(path)
        super().__init__(f"{place}: {reason}; next: mend it, `chain-node doctor` checks it")
        self.path = path
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The file's content."""

    snapshot_interval_blocks: int = 1000
    """Height distance of snapshots, 0 for none."""
    num_snapshots_kept: int = 2
    """At least 1, so that a node that restores one finds it long enough."""
    retain_blocks: int = 0
    """Newest blocks that are kept, 0 for all."""
    verifier: int = -1
    """-1, 0 or 1 (``chain.abci.verifying.VerifierUse``)."""

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        if self.snapshot_interval_blocks < 0:
            raise ValueError(f"snapshot_interval_blocks is {self.snapshot_interval_blocks}, expected at least 0")
        if self.num_snapshots_kept < 1:
            raise ValueError(f"num_snapshots_kept is {self.num_snapshots_kept}, expected at least 1")
        if self.verifier not in (-1, 0, 1):
            raise ValueError(f"verifier is {self.verifier}, expected -1, 0 or 1")
        if self.retain_blocks and self.retain_blocks < MIN_RETAIN_BLOCKS:
            raise ValueError(f"retain_blocks is {self.retain_blocks}, expected 0 or at least {MIN_RETAIN_BLOCKS}")


def load_settings(home: Path) -> NodeSettings:
    """Read app.toml, or the defaults where there is none; raises InvalidSettings."""
    path = home / "config" / FILE_NAME
    if not path.exists():
        return NodeSettings()
    known = [field.name for field in fields(NodeSettings)]
    try:
        text = path.read_text()
        document = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise _describe_unreadable(path, error) from error
    for key, value in document.items():
        line = _find_line(text, key)
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            advice = f", did you mean {nearest[0]}?" if nearest else f", known are {', '.join(known)}"
            raise InvalidSettings(path, f"unknown key {key!r}{advice}", line)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidSettings(path, f"{key} is {value!r}, expected an integer", line)
    try:
        return NodeSettings(**document)
    except ValueError as error:
        named = next((key for key in document if str(error).startswith(key)), "")
        raise InvalidSettings(path, str(error), _find_line(text, named)) from error


def save_settings(home: Path, settings: NodeSettings) -> None:
    """Write app.toml."""
    path = home / "config" / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["# The application's settings; see chain/settings.py."]
    lines += [f"{field.name} = {getattr(settings, field.name)}" for field in fields(NodeSettings)]
    path.write_text("\n".join(lines) + "\n")


def _describe_unreadable(path: Path, error: Exception) -> InvalidSettings:
    """Name the line that is no TOML, and what stands there."""
    found = re.search(r" \(at line (\d+), column \d+\)$", str(error))
    if found is None:
        return InvalidSettings(path, f"can't be read as TOML: {error}")
    line = int(found[1])
    stands = path.read_text().splitlines()[line - 1].strip()[:80]
    return InvalidSettings(path, f"{stands!r} is no TOML ({str(error)[: found.start()]})", line)


def _find_line(text: str, key: str) -> int | None:
    """Return the line in which a key is given a value."""
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if re.match(rf"""\s*[\["']*{re.escape(key)}\b""", line)), None)
