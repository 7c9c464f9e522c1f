"""``trainer``: everything a run owner, a worker and a model user types (DESIGN 1).

Exit codes: 0 done, finished or stopped in order; 1 a defect of ours; 2 bad usage, or something that a retry
would not change; 3 gave up waiting; 130 stopped by a second Ctrl-C.
"""

from __future__ import annotations

import sys

import typer

from contracts.bindings.errors import BindingError, ChainUnreachable, ContractError, DeadlinePassed, KeyFileError
from da.core.errors import DataAvailabilityError
from training.commands import checkpoint, keys, membership, plan, runs, simulation, status, watch
from training.commands.output import STDERR
from training.core.errors import TrainingError
from training.worker.errors import EXIT_FATAL, EXIT_GAVE_UP, PayloadError, WorkerError

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(
    help="Train one model together: runs, workers, checkpoints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(keys.app, name="keys")
app.add_typer(runs.app, name="run")
app.add_typer(checkpoint.app, name="checkpoint")
app.command("join")(membership.join)
app.command("leave")(membership.leave)
app.command("status")(status.status)
app.command("watch")(watch.watch)
app.command("simulate")(simulation.simulate)
app.command("plan")(plan.plan)
app.command("evaluate")(checkpoint.evaluate)
app.command("generate")(checkpoint.generate)


def main() -> None:
    """Run the command line; every expected error becomes one message, its next step and an exit code."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except WorkerError as error:
        _fail(error.message, error.next_step, error.exit_code)
    except (ChainUnreachable, DeadlinePassed) as error:
        _fail(str(error), "", EXIT_GAVE_UP)
    except ContractError as error:
        _fail(f"the contract refused: {error.text}", "", EXIT_FATAL)
    except (KeyFileError, BindingError, TrainingError) as error:
        _fail(str(error), "", EXIT_FATAL)
    except (DataAvailabilityError, PayloadError) as error:
        _fail(str(error), "try again when more storage nodes answer", EXIT_GAVE_UP)
    except ValueError as error:
        _fail(str(error), "see --help", EXIT_FATAL)


def _fail(message: str, next_step: str, exit_code: int) -> None:
    STDERR.print(f"[red]error:[/red] {_escape(message)}")
    if next_step:
        STDERR.print(f"next:  {_escape(next_step)}")
    sys.exit(exit_code)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


if __name__ == "__main__":
    main()
