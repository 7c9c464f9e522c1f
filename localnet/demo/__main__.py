"""`python -m localnet.demo`, which `make demo` runs; `KEEP=1 make demo` passes --keep."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from contracts.bindings.failures import describe_failure
from contracts.bindings.foreign_text import show_lines
from localnet.cli import INTERRUPTED, stop_devnet
from localnet.core.errors import LocalnetError, Stopped
from localnet.demo.report import build_checks, print_how_to_go_on, print_report
from localnet.demo.scenario import Demo, create_recipe_text
from localnet.demo.settings import DemoSettings
from localnet.devnet import hold_home, reset_home
from localnet.record import load_record
from localnet.stopping import StopRequest
from localnet.supervisor import Supervisor
from training.core.errors import TrainingError

DEFAULT_HOME = Path(".cache/demo")
"""Under the working directory; not in git."""
MARK_NAME = "demo.json"
"""Marks a directory as the demo's, so that it may be removed at the next start."""
LIBRARY_THREADS = "1"
"""Each process of the demo gets one compute thread: two workers on two cores."""


def demo(
    home: Annotated[Path, typer.Option(help="Where everything of the demo lies; removed at its start.")] = DEFAULT_HOME,
    data: Annotated[Path | None, typer.Option(help="Your own text file to train on.")] = None,
    rpc_port: Annotated[int, typer.Option(help="JSON-RPC; the next free port if busy.")] = 8545,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the devnet up at the end.")] = False,
    solo: Annotated[bool, typer.Option(help="Train a worker alone for comparison.")] = True,
) -> None:
    """Train one model with two workers on a devnet, kill one on the way, and read the chain at the end."""
    if data is not None:
        try:
            check_data(data)
        except (TrainingError, OSError) as error:
            print(describe_failure(error), file=sys.stderr)
            raise typer.Exit(2) from error
    settings = DemoSettings(
        home=home.resolve(),
        data=data.resolve() if data else None,
        is_kept=keep,
        rpc_port=rpc_port,
        is_solo_run=solo,
    )
    raise typer.Exit(run(settings))


def check_data(data: Path) -> None:
    """Refuse a text that the demo cannot train on, before anything starts.

    Raises CorpusMissingError or CorpusTooSmallError (training.core.errors), and OSError.
    """
    from training.core.errors import CorpusMissingError
    from training.core.recipe_text import parse_recipe
    from training.data.corpus import check_size, load_corpus

    if not data.is_file():
        raise CorpusMissingError(str(data))
    recipe = parse_recipe(create_recipe_text(data))
    check_size(load_corpus(recipe.data, data), recipe.model.context)


def run(settings: DemoSettings) -> int:
    """Run the demo and return its exit code; whatever happens, no process is left that should not be."""
    console = Console(highlight=False)
    stop = StopRequest()
    stop.listen()
    started = time.monotonic()
    try:
        stop_what_was_kept(settings.home / "devnet")
        with hold_home(settings.home):
            reset_home(settings.home, mark=MARK_NAME)
            (settings.home / MARK_NAME).write_text("{}\n", encoding="utf-8")
            environment = {**os.environ, "OMP_NUM_THREADS": LIBRARY_THREADS, "PYTHONUNBUFFERED": "1"}
            with Supervisor(
                logs=settings.home / "logs", environment=environment, adopts_orphans=not settings.is_kept
            ) as supervisor:
                demo = Demo(settings, supervisor, stop, console)
                result = demo.run()
                checks = build_checks(result, has_own_data=settings.data is not None)
                print_report(console, result, checks)
                console.print(f"\n{time.monotonic() - started:.0f} s in all", highlight=False)
                is_good = all(check.is_kept for check in checks)
                if settings.is_kept and demo.devnet is not None and demo.record is not None:
                    supervisor.release(demo.devnet)
                    print_how_to_go_on(console, settings, demo.record)
        if not is_good:
            print("demo: a check FAILED; the logs are in " + str(settings.home / "logs"), file=sys.stderr)
        return 0 if is_good else 1
    except Stopped:
        console.print("\nstopped; nothing is left running", highlight=False)
        return INTERRUPTED
    except LocalnetError as error:
        print(show_lines(f"\nerror: demo {error}"), file=sys.stderr)
        return 1


def stop_what_was_kept(devnet_home: Path) -> None:
    """Stop the devnet that an earlier KEEP=1 left up in the same place."""
    try:
        record = load_record(devnet_home)
    except LocalnetError:
        return
    if stop_devnet(record):
        print(f"stopped the devnet that was kept up in {os.path.relpath(devnet_home)}", flush=True)


if __name__ == "__main__":
    typer.run(demo)
