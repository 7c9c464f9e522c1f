"""The simulation that tunes recipes: every round printed, every worker on one root."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from training.data.corpus import Corpus
from training.simulate import main


def test_simulation_prints_a_line_a_round(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.tobytes())
    monkeypatch.setattr("sys.argv", ["simulate", "tiny", "--data", str(text)])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == list(range(16))
    losses = [float(re.search(r"held-out (\S+)", line)[1]) for line in lines]  # type: ignore[index]
    assert losses[-1] < losses[0] < 6
