"""Options that mean nothing without another one: refused before anything is asked or written.

Such an option says so in its help, which begins ``With --other:``; tests/contracts/test_option_needs.py finds those of
every command line and gives each without the other.
"""

from __future__ import annotations

import typer


def check_needs(option: str, is_given: object, other: str, has_other: object) -> None:
    """Raise typer.BadParameter where ``option`` is given without ``other``, which it needs.

    >>> check_needs("--round", True, "--run", 7)
    """
    if is_given and not has_other:
        raise typer.BadParameter(f"{option} needs {other}: give both, or neither")
