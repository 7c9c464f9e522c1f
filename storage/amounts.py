"""Amounts as people write them: tokens with up to 18 decimals; wei inside."""

from __future__ import annotations

import re

WEI_PER_TOKEN = 10**18
"""Wei."""

_TOKENS = re.compile(r"(\d{1,15})(?:\.(\d{1,18}))?", re.ASCII)


def parse_tokens(text: str) -> int:
    """Return wei.

    >>> parse_tokens("1"), parse_tokens("0.5")
    (1000000000000000000, 500000000000000000)

    Raises: ValueError.
    """
    match = _TOKENS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no amount: expected tokens such as 1 or 0.25")
    return int(match.group(1)) * WEI_PER_TOKEN + int((match.group(2) or "").ljust(18, "0"))


def format_wei(amount: int) -> str:
    """Return an amount in tokens, exact.

    >>> format_wei(10**17), format_wei(0), format_wei(1)
    ('0.1 tokens', '0 tokens', '0.000000000000000001 tokens')
    """
    whole, rest = divmod(amount, WEI_PER_TOKEN)
    digits = f"{rest:018d}".rstrip("0")
    return f"{whole}.{digits} tokens" if digits else f"{whole} tokens"
