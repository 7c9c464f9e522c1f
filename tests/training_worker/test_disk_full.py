"""No room on the disk: training survives, the last good state stays, nothing unrecorded is sent (case 24)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.core.recipe_text import parse_recipe
from training.memory import compute_disk_bytes, describe_short_disk, plan_needs
from training.recipes.shipped import load_shipped
from training.worker.loop import LoopEnd


def _refuse(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.parametrize("where", ["state", "journal", "payloads", "trace"])
def test_a_worker_outlives_a_full_disk_and_sends_later_what_it_learned(
    net: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, where: str
) -> None:
    net.create_run(minMembers=2, numRounds=12, roundBlocks=100)
    ann = net.worker("ann", gain=1, steps=4, step_seconds=0.005)
    bob = net.worker("bob", gain=1000, steps=4, step_seconds=0.005)
    state = {"is_full": False, "refused": 0}

    def check(path: Path, kind: str) -> None:
        if state["is_full"] and kind == where and ann.home in path.parents:
            state["refused"] += 1
            _refuse(path)

    keep = ann.rules._keep

    def keeping(engine: Any) -> Any:
        save = engine.save

        def saving(path: Path) -> None:
            check(path, "state")
            save(path)

        engine.save = saving
        return keep(engine)

    ann.rules._keep = keeping
    for module, kind in (("journal", "journal"), ("source", "payloads")):
        from training.worker.durable import save_durable

        def saving(path: Path, data: bytes, kind: str = kind) -> None:
            check(path, kind)
            save_durable(path, data)

        monkeypatch.setattr(f"training.worker.{module}.save_durable", saving)

    class Lines:
        """The trace's file, without room at times."""

        def __init__(self, file: Any) -> None:
            self._file = file
            self.name, self.close, self.flush = file.name, file.close, file.flush

        @property
        def closed(self) -> bool:
            return bool(self._file.closed)

        def write(self, text: str) -> None:
            check(Path(self.name), "trace")
            self._file.write(text)

    from training.worker.trace import Trace

    begin = Trace.__init__

    def beginning(self: Trace, *args: Any) -> None:
        begin(self, *args)
        self._file = Lines(self._file)  # type: ignore[assignment]

    monkeypatch.setattr(Trace, "__init__", beginning)
    with caplog.at_level("WARNING", logger="trainer"):
        ann.start()
        bob.start()
        net.wait_for(lambda: net.info().num_settled >= 3)
        named = ann.home / "journal.json"
        state["is_full"] = True
        refused_at = net.info().num_settled
        net.wait_for(lambda: state["refused"] >= 2 and net.info().num_settled >= refused_at + 2)
        assert named.exists()
        state["is_full"] = False
        for worker in (ann, bob):
            worker.join()
            assert worker.error is None, worker.error
    assert ann.summary.end is LoopEnd.FINISHED
    assert ann.summary.root == bob.summary.root == net.info().head_root.hex()
    # gain 1 and gain 1000: the last digits are ann's inner steps in theta, each exactly once.
    assert ann.engine.canonical.theta % 1000 == 4 * net.info().params.num_rounds
    assert "No space left" in caplog.text
    assert [path.name for path in ann.home.rglob("*.tmp")] == []


def test_the_warning_of_a_small_disk_has_figures_that_say_something(tmp_path: Path) -> None:
    """It read `has 0.00 GB free, may need 0.00 GB`."""
    needs = plan_needs(parse_recipe(load_shipped("tiny")))
    said = describe_short_disk(needs, tmp_path, 4_096)
    assert said is not None
    needed = compute_disk_bytes(needs) / 1e6
    assert f"has 4.10 kB free, a worker of this size may need {needed:.2f} MB;" in said
    assert needed > 0.1


LIMITED = """
import resource, sys
from pathlib import Path
from contracts.bindings.failures import describe_failure
from training.worker.durable import is_disk_full, save_durable
from training.worker.metrics_sinks import JsonLines
from training.worker.trace import EventKind, Trace

home = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
trace, lines = Trace(home / "trace.jsonl"), JsonLines(home / "metrics.jsonl", 0.0)
for step in range(200):
    with trace.span(EventKind.TRAIN, step):
        pass
    lines.write(step, 1.0, {"train/loss": 1.0})
trace.close()
lines.close()
save_durable(home / "state", b"old")
try:
    save_durable(home / "state", bytes(5_000))
except OSError as error:
    assert is_disk_full(error), error
    print(describe_failure(error))
assert (home / "state").read_bytes() == b"old"
"""


def test_a_limit_on_the_length_of_files_is_survived_as_a_full_disk_is(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: it ended the worker with "File too large", without a path or a step."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ulimit -f" in done.stdout
