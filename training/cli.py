"""``trainer``: everything a run owner, a worker and a model user types (DESIGN 1).

Exit codes: 0 done, finished or stopped in order; 1 a defect of ours; 2 bad usage, or something that a retry
would not change; 3 gave up waiting; 130 stopped by a second Ctrl-C.

Importing this module loads no torch: only the commands that compute load it, when they are called.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.text import Text

from contracts.bindings.errors import (
    BindingError,
    ChainUnreachable,
    ContractError,
    DeadlinePassed,
    KeyFileError,
    NotJsonRpc,
)
from contracts.bindings.failures import SEPARATOR, describe_failure
from contracts.bindings.standing_alone import take_alone
from contracts.bindings.version import add_version
from da.core.errors import DataAvailabilityError, NotAFile
from training.commands import checkpoint, data, keys, membership, plan, recipes, runs, simulation, status, watch
from training.commands.asking import create_no_run
from training.commands.output import STDERR
from training.core.errors import TrainingError
from training.worker.ending import end_process
from training.worker.errors import EXIT_FATAL, EXIT_GAVE_UP, Fatal, GaveUp, PayloadError, WorkerError

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as shells have it."""

OWN_PACKAGES = ("training", "contracts", "da", "chain", "storage")
"""What can't be imported from these is a defect."""

LOAD_STEP = "give the process more memory (`ulimit -v`, the container's limit); else install the package anew"
"""A shared library that can't be mapped says it as an ImportError."""

app = typer.Typer(
    help="Train one model together: runs, workers, checkpoints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_version(app)
app.add_typer(keys.app, name="keys")
app.add_typer(runs.app, name="run")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(data.app, name="data")
app.command("recipe")(recipes.recipe)
app.command("join")(membership.join)
app.command("leave")(membership.leave)
app.command("status")(status.status)
app.command("watch")(watch.watch)
app.command("simulate")(simulation.simulate)
app.command("plan")(plan.plan)
app.command("evaluate")(checkpoint.evaluate)
app.command("generate")(checkpoint.generate)
take_alone(app)


def main() -> None:
    """Run the command line, and end in order whatever still computes."""
    try:
        _run()
    except SystemExit as end:
        end_process(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _run() -> None:
    """Run the command line; every expected error becomes one message, its next step and an exit code."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except WorkerError as error:
        _fail(error, error.exit_code)
    except NotJsonRpc as error:
        _fail(error, EXIT_FATAL)
    except (ChainUnreachable, DeadlinePassed) as error:
        _fail(error, EXIT_GAVE_UP)
    except ContractError as error:
        if error.name == "UnknownRun" and "run" in error.fields:
            _fail(create_no_run(error.fields["run"]), EXIT_FATAL)
        step = "" if SEPARATOR in error.text else f"{SEPARATOR}see `trainer run show` and `trainer status`"
        _fail(ValueError(f"the contract refused: {error.text}{step}"), EXIT_FATAL)
    except (KeyFileError, BindingError, TrainingError) as error:
        _fail(error, EXIT_FATAL)
    except (NotAFile, OSError) as error:
        _fail(error, EXIT_FATAL)
    except (ImportError, MemoryError) as error:
        if (getattr(error, "name", None) or "").partition(".")[0] in OWN_PACKAGES:
            raise
        _fail(Fatal(f"a package can't be loaded: {error or 'no memory is left'}", next_step=LOAD_STEP), EXIT_FATAL)
    except (DataAvailabilityError, PayloadError) as error:
        _fail(GaveUp(str(error), next_step="try again when more storage nodes answer"), EXIT_GAVE_UP)
    except ValueError as error:
        _fail(error, EXIT_FATAL)


def _fail(error: Exception, exit_code: int) -> NoReturn:
    for line in describe_failure(error).splitlines():
        name, _, text = line.partition(" ")
        colour = "red" if name == "error:" else "bold"
        STDERR.print(Text.assemble((name, colour), " ", text))
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
