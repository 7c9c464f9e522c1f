"""Rewrite the golden marks: ``python tests/histories/record.py``, only on purpose (see the test's message)."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("..", "contracts_native", "chain"))

from contracts_history import play_contracts
from executed_history import play_executed

from chain.core.contracts.staking.keys import NEWEST_RULES
from chain.recursion import allow_evm_depth

VECTOR = Path(__file__).parents[1] / "vectors" / "histories.json"


def main() -> None:
    """Play every history under every version of the rules."""
    allow_evm_depth()
    marks: dict[str, dict[str, str]] = {}
    for rules in range(1, NEWEST_RULES + 1):
        marks[f"contracts, rules {rules}"] = dict(play_contracts(rules))
        with tempfile.TemporaryDirectory() as home:
            marks[f"executed, rules {rules}"] = dict(play_executed(Path(home) / "app", rules))
    VECTOR.write_text(json.dumps(marks, indent=1) + "\n")


if __name__ == "__main__":
    main()
