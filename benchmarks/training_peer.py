"""A peer on the same work: torchft's DiLoCo beside ours, loss and speed.

``python -m benchmarks.training_peer`` installs torchft (PyPI) into an environment of its own under ``.cache`` that
borrows this one's torch, runs its DiLoCo as its documentation has it (a lighthouse, a manager a replica, Nesterov at
0.7 and 0.9, fp32 over gloo), then ours from the same start and samples: with its outer steps, uncompressed; with our
default outer loop around the same AdamW; and our default, with Muon inside (`quality_methods`).
Writes ``benchmarks/results/training_peer.json``.  Speed is inner steps a CPU second and worker, exchange and outer step
included: other programs on the machine take time, but no CPU time of ours.
"""

from __future__ import annotations

import argparse
import json
import site
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.peer_torchft import OUTER_MOMENTUM, OUTER_RATE, PeerTask
from benchmarks.quality_methods import METHODS, Scenario, make_recipe
from benchmarks.report import Row, write_report
from training.core.layout import build_layout
from training.core.recipe import Recipe
from training.data.corpus import Corpus, load_corpus
from training.evaluation import evaluate_state
from training.recipes.writing import write_recipe
from training.simulate import simulate

PEER = "torchft==0.2.0"
"""What is compared with."""

ENVIRONMENT = Path(__file__).parent.parent / ".cache" / "peer-torchft"
"""Where it is installed; removed by `make distclean`."""

RUN = "from benchmarks.peer_torchft import main; main()"
"""What its interpreter runs."""

INSTALL_SECONDS, RUN_SECONDS = 300.0, 600.0
"""Longest waits."""

NUM_WORKERS = 2
"""D: a core each."""

OURS = {
    "ours_classic": ("diloco_classic", "ours with the same outer steps, uncompressed, synchronous"),
    "ours_default_adamw": (
        "default_adamw",
        "our default around the same AdamW: fragments in turn, 2-bit low rank",
    ),
    "ours_default": ("default", "our default: fragments in turn one round late, compressed, Muon inside, ramp"),
}
"""By row: the method, and what people read."""


class NoPeer(Exception):
    """torchft cannot be had here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way to train."""

    loss: float
    """Held-out nats a byte of the last agreed weights."""
    cpu_seconds: float
    """Of one worker, for all its steps and exchanges."""


def main() -> None:
    """Train by each, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="inner steps of each worker")
    parser.add_argument("--local-steps", type=int, default=20, help="H")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenario = Scenario(
        name="peer", methods=(), num_workers=NUM_WORKERS, num_steps=options.steps, local_steps=options.local_steps
    )
    recipes = {name: make_recipe(METHODS[method], scenario, 0) for name, (method, _) in OURS.items()}
    common = recipes["ours_classic"]
    corpus = load_corpus(common.data)
    try:
        peer = run_peer(install_peer(), common, options.steps)
    except NoPeer as error:
        sys.exit(f"no peer on the same work: {error}")
    ours = {name: run_ours(recipe, corpus) for name, recipe in recipes.items()}
    write_report("training_peer", make_rows(common, options.steps, peer, ours))


def install_peer() -> Path:
    """Return the interpreter of the peer's environment, made at the first call. Raises `NoPeer`."""
    python = ENVIRONMENT / "bin" / "python"
    if not _has_peer(python):
        ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        library = next((ENVIRONMENT / "lib").glob("python*/site-packages"))
        (library / "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise NoPeer(f"{PEER} was not installed in {INSTALL_SECONDS:.0f} s") from error
        if done.returncode or not _has_peer(python):
            raise NoPeer(f"{PEER} cannot be installed: {done.stderr.strip()[-500:]}")
    return python


def run_peer(python: Path, recipe: Recipe, num_steps: int) -> Run:
    """Train by torchft. Raises `NoPeer`."""
    task = PeerTask(recipe=write_recipe(recipe), num_steps=num_steps, num_workers=NUM_WORKERS)
    with tempfile.TemporaryDirectory(prefix="archipelago-peer-") as folder:
        path = Path(folder) / "task.json"
        path.write_text(json.dumps(asdict(task)))
        command = [str(python), "-c", RUN, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if done.returncode:
        raise NoPeer(f"{PEER} failed: {done.stderr.strip()[-2000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    return Run(loss=said["loss"], cpu_seconds=said["cpu_seconds"])


def run_ours(recipe: Recipe, corpus: Corpus) -> Run:
    """Train by our rounds, both workers in turn; the sum that every worker computes is counted for one of them."""
    started = time.process_time()
    state, _ = simulate(recipe, corpus, NUM_WORKERS)
    spent = time.process_time() - started
    return Run(loss=evaluate_state(recipe, state, corpus), cpu_seconds=spent / NUM_WORKERS)


def make_rows(recipe: Recipe, num_steps: int, peer: Run, ours: dict[str, Run]) -> list[Row]:
    """Return losses and speeds side by side."""
    conditions = (
        f"{build_layout(recipe).num_parameters} parameters, D {NUM_WORKERS}, H {recipe.rounds.local_steps},"
        f" {num_steps} steps a worker, batch {recipe.inner.batch_size} x {recipe.model.context} bytes, seed 0,"
        f" {PEER}, fp32, outer Nesterov {OUTER_RATE} and {OUTER_MOMENTUM}"
    )
    rows = []
    for name, run in ours.items():
        what = OURS[name][1]
        rows.append(
            Row(
                name="peer_loss" if name == "ours_default" else f"peer_loss_{name}",
                value=peer.loss,
                unit="nats/byte",
                peer=name,
                peer_value=run.loss,
                conditions=f"torchft's loss beside {what}; {conditions}",
            )
        )
        rows.append(
            Row(
                name=f"speed_{name}",
                value=num_steps / run.cpu_seconds,
                unit="steps/CPU s",
                peer="torchft",
                peer_value=num_steps / peer.cpu_seconds,
                conditions=f"{what}; {conditions}",
            )
        )
    return rows


def _has_peer(python: Path) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), "-c", "import torchft"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
