"""A peer on the same work: torchft's DiLoCo beside ours, loss and speed.

``python -m benchmarks.training_peer`` installs torchft (PyPI) into an environment of its own under ``.cache`` that
borrows this one's torch, runs its DiLoCo as its documentation has it (a lighthouse, a manager a replica, Nesterov at
0.7 and 0.9, fp32 over gloo), then ours from the same start and samples: with its outer steps, uncompressed; with our
default outer loop around the same AdamW; and our default, with Muon inside (`quality_methods`).  Both have a process a
worker and gloo between them (`peer_torchft`, `peer_ours`).
Writes ``benchmarks/results/training_peer.json``.  Speed is inner steps a CPU second and worker, exchange and outer step
included on both sides: other programs on the machine take time, but no CPU time of ours.  Without the peer it ends with
code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import venv
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peer_torchft import OUTER_MOMENTUM, OUTER_RATE, PeerTask
from benchmarks.quality_methods import METHODS, Scenario, make_recipe
from benchmarks.report import Row, write_report
from training.core.layout import build_layout
from training.core.recipe import Recipe
from training.recipes.writing import write_recipe

PEER = "torchft==0.2.0"
"""What is compared with."""

ENVIRONMENT = Path(__file__).parent.parent / ".cache" / "peer-torchft"
"""Where it is installed; removed by `make distclean`."""

RUN_PEER = "from benchmarks.peer_torchft import main; main()"
"""What its interpreter runs."""

RUN_OURS = "from benchmarks.peer_ours import main; main()"
"""What this one does."""

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
    """torchft cannot be had here, or one side did not come to an end."""


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all processes are ended
    scenario = Scenario(
        name="peer", methods=(), num_workers=NUM_WORKERS, num_steps=options.steps, local_steps=options.local_steps
    )
    recipes = {name: make_recipe(METHODS[method], scenario, 0) for name, (method, _) in OURS.items()}
    common = recipes["ours_classic"]
    try:
        peer = run(install_peer(), RUN_PEER, common, options.steps)
        ours = {name: run(Path(sys.executable), RUN_OURS, each, options.steps) for name, each in recipes.items()}
    except NoPeer as error:
        sys.exit(f"no figures beside a peer: {error}")
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


def run(python: Path, code: str, recipe: Recipe, num_steps: int) -> Run:
    """Train with an interpreter's code, and end all that it started. Raises `NoPeer`."""
    task = PeerTask(recipe=write_recipe(recipe), num_steps=num_steps, num_workers=NUM_WORKERS)
    with tempfile.TemporaryDirectory(prefix="archipelago-peer-") as folder:
        path = Path(folder) / "task.json"
        path.write_text(json.dumps(asdict(task)))
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [str(python), "-c", code, str(path)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that its workers can be ended with it
            )
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NoPeer(f"`{code}` did not end in {RUN_SECONDS:.0f} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise NoPeer(f"`{code}` failed: {log.read_text().strip()[-2000:]}")
    said = json.loads(output.splitlines()[-1])
    return Run(loss=said["loss"], cpu_seconds=said["cpu_seconds"])


def make_rows(recipe: Recipe, num_steps: int, peer: Run, ours: dict[str, Run]) -> list[Row]:
    """Return losses and speeds side by side."""
    conditions = (
        f"{build_layout(recipe).num_parameters} parameters, D {NUM_WORKERS}, H {recipe.rounds.local_steps},"
        f" {num_steps} steps a worker, batch {recipe.inner.batch_size} x {recipe.model.context} bytes, seed 0,"
        f" {PEER}, fp32, outer Nesterov {OUTER_RATE} and {OUTER_MOMENTUM}; both: a process a worker, gloo over the"
        " loopback, CPU seconds of a worker's process, exchange and outer step included; torchft's lighthouse and our"
        " chain, stores and saved state are not"
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
