"""JSON that a stranger sent: how deep it nests is known before it is parsed.

Python's parser and printer take a piece of the machine's stack for each level, so a body of brackets alone may cost
the process where the interpreter's limit was raised (the EVM needs that).  No message of ours nests deeper than 8.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 64
"""Lists and objects in each other."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOO_DEEP = re.compile(rb"[\[{]{%d}" % (MAX_DEPTH + 1))
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))


class TooDeep(ValueError):
    """Nests deeper than any message does."""

    def __init__(self) -> None:
        """Name the bound."""
        super().__init__(f"JSON nests deeper than {MAX_DEPTH} levels")


def parse_json(body: bytes) -> Any:
    """Parse a stranger's JSON; raises ValueError, and nothing else.

    >>> parse_json(b'[1, {"a": []}]')
    [1, {'a': []}]
    """
    check_depth(body)
    try:
        return json.loads(body, parse_constant=_refuse_constant, parse_float=_parse_float)
    except RecursionError as error:
        raise TooDeep from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _parse_float(text: str) -> float:
    """Read a number; one that is too large for a float would be printed as no JSON."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def check_depth(body: bytes) -> None:
    """Raise TooDeep where a body may nest deeper than MAX_DEPTH; linear in its length."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    left = _STRING.sub(b"", body).translate(None, _OTHERS)
    for _ in range(MAX_DEPTH):
        if _TOO_DEEP.search(left):
            raise TooDeep
        shorter = left.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(left):
            break
        left = shorter
    # What doesn't close is no JSON; what is left of it must not be deep either.
    if left.count(b"[") + left.count(b"{") > MAX_DEPTH:
        raise TooDeep
