"""What fixed histories leave behind, under each version of the rules: a node that replays an old chain must get there.

An app hash that differs from the one agreed long ago stops every node that replays or joins, so no change may move it
unnoticed.  ``tests/vectors/histories.json`` holds the marks, ``record.py`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts_history import play_contracts
from executed_history import play_executed

from chain.core.contracts.staking.keys import NEWEST_RULES
from chain.recursion import allow_evm_depth

VECTOR = Path(__file__).parents[1] / "vectors" / "histories.json"
MARKS: dict[str, dict[str, str]] = json.loads(VECTOR.read_text())
ALL_RULES = range(1, NEWEST_RULES + 1)

WHAT_TO_DO = """
Blocks of a chain that lives are replayed by this code: where it gives another app hash, the node stops.
  - Not meant? Find what changed the state, the gas or the results of this chapter, and undo it.
  - Meant? Put the change behind a new version of the rules (NEWEST_RULES, chain/SPEC.md, Upgrades), so that the old
    ones give what they gave; then `python tests/histories/record.py` adds the marks of the new one, and `git diff`
    must show no line of the old ones.
  - Meant, and no chain is to be kept, as before a first release? Then run record.py, say so in chain/SPEC.md, and raise
    CHAIN_FORMAT (localnet/core/config.py), so that devnets of before say that they need `localnet up --reset`."""


def compare(name: str, played: Iterator[tuple[str, str]]) -> None:
    """Fail at the first chapter that leaves something else behind than it did."""
    left = dict(MARKS[name])
    for chapter, got in played:
        expected = left.pop(chapter, "nothing: it is new")
        if got != expected:
            pytest.fail(f"history {name!r}, chapter {chapter!r}: expected {expected}, got {got}\n{WHAT_TO_DO}")
    assert not left, f"history {name!r} has lost chapters: {', '.join(left)}\n{WHAT_TO_DO}"


@pytest.mark.parametrize("rules", ALL_RULES)
def test_system_contracts_leave_what_they_left(rules: int) -> None:
    compare(f"contracts, rules {rules}", play_contracts(rules))


@pytest.mark.parametrize("rules", ALL_RULES)
def test_executed_transactions_leave_what_they_left(tmp_path: Path, rules: int) -> None:
    allow_evm_depth()
    compare(f"executed, rules {rules}", play_executed(tmp_path / "app", rules))


def test_every_version_of_the_rules_has_marks() -> None:
    assert set(MARKS) == {f"{kind}, rules {rules}" for kind in ("contracts", "executed") for rules in ALL_RULES}
