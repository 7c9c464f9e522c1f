"""Ours beside the peer: the rounds that two processes do over gloo are those of the simulator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks.peer_torchft import PeerTask
from benchmarks.quality_methods import METHODS, SCENARIOS, make_recipe
from benchmarks.training_peer import RUN_OURS
from training.data.corpus import load_corpus
from training.recipes.writing import write_recipe
from training.simulate import simulate

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As each of the processes has: another number adds up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_two_processes_agree_with_the_simulator(tmp_path: Path) -> None:
    scenario = replace(SCENARIOS["main"], num_workers=2, local_steps=10, num_steps=20)
    recipe = make_recipe(METHODS["default"], scenario, 0)
    path = tmp_path / "task.json"
    path.write_text(json.dumps(asdict(PeerTask(recipe=write_recipe(recipe), num_steps=20, num_workers=2))))
    done = subprocess.run(
        [sys.executable, "-c", RUN_OURS, str(path)], capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    state, _ = simulate(recipe, load_corpus(recipe.data), 2)
    assert said["root"] == state.root().hex()
    assert said["cpu_seconds"] > 0
