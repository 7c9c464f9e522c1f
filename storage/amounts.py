"""Amounts as people write them: tokens; wei inside."""

from __future__ import annotations

import re

from contracts.bindings.amounts import WEI_PER_TOKEN, format_tokens

_TOKENS = re.compile(r"(\d{1,15})(?:\.(\d{1,18}))?", re.ASCII)


def parse_tokens(text: str) -> int:
    """Return wei.

    >>> parse_tokens("1"), parse_tokens("0.5")
    (1000000000000000000, 500000000000000000)

    Raises: ValueError.
    """
    match = _TOKENS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no amount: expected tokens; next: write it as 1 or 0.25")
    return int(match.group(1)) * WEI_PER_TOKEN + int((match.group(2) or "").ljust(18, "0"))


def format_wei(amount: int) -> str:
    """Return an amount for people, as every tool writes it; exact wei are in the --json output.

    >>> format_wei(10**17), format_wei(0), format_wei(1)
    ('0.1 tokens', '0 tokens', '0.000000001 gwei')
    """
    return format_tokens(amount)
