"""The one exception with which a system contract refuses a call.

Each reason is an error of the contract's ABI declaration, so that there is no second copy of its name
and fields; a test checks that every refusal in the sources names a declared error with as many values.
"""

from __future__ import annotations


class Refusal(Exception):
    """A call is refused: the name of a declared error and its values, in declaration order."""

    def __init__(self, name: str, *values: object) -> None:
        """Keep name and values; the codec turns them into revert data."""
        super().__init__(f"{name}({', '.join(_shown(value) for value in values)})")
        self.name = name
        self.values = values


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return str(int(value)) if isinstance(value, int) else str(value)
