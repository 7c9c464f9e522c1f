"""Set-up: what takes long ticks, and what fails shows the end of its log."""

from __future__ import annotations

import sys
from pathlib import Path

from localnet.bootstrap import read_end, run, ticking


def test_a_command_in_a_log_shows_its_end(tmp_path: Path) -> None:
    log = tmp_path / "pip.log"
    assert run([sys.executable, "-c", "print('\\n'.join(map(str, range(40)))); raise SystemExit(3)"], log=log) == 3
    assert read_end(log, 2) == "    38\n    39"
    assert "no log" in read_end(tmp_path / "none.log")


def test_a_command_that_is_not_there_is_told_and_not_raised(tmp_path: Path) -> None:
    assert run([tmp_path / "nothing"], log=tmp_path / "log") == 127


def test_ticking_ends_with_its_block() -> None:
    with ticking("building"):
        pass
