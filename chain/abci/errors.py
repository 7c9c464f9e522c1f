"""Every reason for which the application refuses to go on: CometBFT asked for what can't be, each named.

    AbciError
    |-- UnsupportedAbciVersion   the core speaks another protocol
    |-- UnsupportedRules         governance has activated rules that this software doesn't know
    `-- OutOfOrder               the core called what can't come now, or the database is damaged

None of them is a transaction's fault; each ends the process with its message (``chain.abci.server``).
"""

from __future__ import annotations


class AbciError(Exception):
    """Root of the tree."""


class UnsupportedAbciVersion(AbciError):
    """The core speaks another protocol."""

    def __init__(self, expected: str, got: str, core: str) -> None:
        """Keep both versions."""
        super().__init__(f"CometBFT {core} speaks ABCI {got}, this application {expected}; next: use CometBFT v0.38.x")
        self.expected = expected
        self.got = got


class UnsupportedRules(AbciError):
    """Governance has activated rules that this software doesn't know."""

    def __init__(self, height: int, expected: int, got: int) -> None:
        """Keep both versions."""
        super().__init__(
            f"from block {height} on the chain follows rules {got}, this software knows them up to {expected};"
            " next: install the release that the proposal names and start again, nothing is lost"
        )
        self.expected = expected
        self.got = got


class OutOfOrder(AbciError):
    """The core called what can't come now."""
