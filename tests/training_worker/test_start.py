"""Commands that compute nothing answer at once: torch stays out of them (it takes seconds to load)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contracts.bindings.keys import create_key

HEAVY = ("torch", "numpy", "safetensors")

PROGRAM = """
import sys
from {module} import main
sys.argv = {arguments!r}
try:
    main()
except SystemExit as exit_:
    assert not exit_.code, exit_.code
loaded = [name for name in {heavy!r} if name in sys.modules]
assert not loaded, loaded
"""


def run_in_fresh_python(module: str, arguments: list[str], heavy: tuple[str, ...]) -> str:
    program = PROGRAM.format(module=module, arguments=arguments, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_key_is_shown_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "owner.key"
    create_key(path)
    assert run_in_fresh_python("training.cli", ["trainer", "keys", "show", str(path)], HEAVY).startswith("0x")


@pytest.mark.parametrize("module", ["storage.cli", "storage.node_cli", "chain.cli", "localnet.cli"])
def test_other_tools_start_without_torch(module: str) -> None:
    assert "Usage" in run_in_fresh_python(module, ["tool", "--help"], ("torch",))
