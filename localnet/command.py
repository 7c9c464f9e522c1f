"""Run one of the project's own commands to its end, as a step that can be stopped and that explains its failure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from localnet.core.errors import NotReadyInTime, StepFailed
from localnet.stopping import StopRequest
from localnet.supervisor import Stage, Supervisor


def get_command(name: str) -> str:
    """Return the path of a console script of this project, beside the running Python."""
    return str(Path(sys.executable).with_name(name))


class CommandRunner:
    """Runs commands one after the other under a supervisor."""

    def __init__(self, supervisor: Supervisor, stop: StopRequest) -> None:
        """Logs go where the supervisor keeps its own."""
        self._supervisor = supervisor
        self._stop = stop

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        step: str,
        deadline_seconds: float,
        next_step: str = "read the log below",
        stage: Stage = Stage.WORK,
    ) -> str:
        """Run ``command`` and return its standard output.

        Raises StepFailed when it ends with another exit code than 0 or not before the deadline, and Stopped.
        """
        output = self._supervisor.logs / f"{name}.out"
        child = self._supervisor.start(name, command, stage=stage, output=output)
        try:
            self._stop.wait_until(lambda: child.exit_code is not None, name, deadline_seconds=deadline_seconds)
        except NotReadyInTime as error:
            raise StepFailed(step, f"not done after {deadline_seconds:.0f} s", next_step, child.read_tail()) from error
        self._supervisor.release(child)
        text = output.read_text(encoding="utf-8", errors="replace")
        if child.exit_code != 0:
            tail = "\n".join([child.read_tail(), *text.splitlines()[-5:]])
            raise StepFailed(step, f"{Path(command[0]).name} ended with exit code {child.exit_code}", next_step, tail)
        return text
