"""Amounts as every tool of this project writes them: tokens, at most six significant digits."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Context, Decimal

WEI_PER_TOKEN = 10**18
"""Wei in one token; there are 18 decimals, as wallets expect."""
WEI_PER_GWEI = 10**9
"""Wei in one gwei."""
LEAST_TOKENS_WEI = 10**12
"""Amounts below this, 10^-6 tokens, are written in gwei: a storage lease of a small payload."""

_TOKENS = re.compile(r"(\d{1,15})(?:\.(\d{1,18}))?", re.ASCII)
_SIX_DIGITS = Context(prec=6, rounding=ROUND_HALF_EVEN)


def format_tokens(wei: int) -> str:
    """Write an amount for people, with its unit.

    >>> format_tokens(15 * 10**17), format_tokens(10**18), format_tokens(0), format_tokens(227_300_000_000)
    ('1.5 tokens', '1 token', '0 tokens', '227.3 gwei')
    """
    if 0 < abs(wei) < LEAST_TOKENS_WEI:
        return f"{_write(wei, WEI_PER_GWEI)} gwei"
    return _name_tokens(_write(wei, WEI_PER_TOKEN))


def format_exact_tokens(wei: int) -> str:
    """Write an amount to its last digit, for two that would be rounded alike.

    >>> format_exact_tokens(999_999_992_314_622_183), format_exact_tokens(10**18), format_exact_tokens(1)
    ('0.999999992314622183 tokens', '1 token', '0.000000000000000001 tokens')
    """
    whole, rest = divmod(wei, WEI_PER_TOKEN)
    return _name_tokens(f"{whole}.{rest:018d}".rstrip("0").rstrip("."))


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


def _write(amount: int, unit: int) -> str:
    exact = Decimal(amount).scaleb(-(len(str(unit)) - 1))
    # Rounding takes decimals only, never digits before the point: a million tokens and one are both whole.
    shown = exact.to_integral_value() if abs(exact) >= 10**5 else _SIX_DIGITS.plus(exact)
    text = f"{shown:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _name_tokens(number: str) -> str:
    return f"{number} token" + ("" if number == "1" else "s")
