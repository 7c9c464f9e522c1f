"""Amounts as people read them: tokens; wei inside."""

from __future__ import annotations

from contracts.bindings.amounts import format_tokens


def format_wei(amount: int) -> str:
    """Return an amount for people, as every tool writes it; exact wei are in the --json output.

    >>> format_wei(10**17), format_wei(0), format_wei(1)
    ('0.1 tokens', '0 tokens', '0.000000001 gwei')
    """
    return format_tokens(amount)
