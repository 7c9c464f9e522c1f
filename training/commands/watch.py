"""``trainer watch``: a live table of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from contracts.bindings.amounts import format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ChainUnreachable, RpcError
from contracts.bindings.types import RoundInfo, RunInfo, RunState, Update
from training.commands.asking import fetch_loss_unit, fetch_run
from training.commands.describing import describe_escrow
from training.commands.options import DEFAULT_CHAINS, ChainOption, JsonOption, RunOption
from training.commands.output import (
    STDOUT,
    create_table,
    format_bytes,
    format_hash,
    format_loss,
    format_name,
    print_json,
)

SHOWN_ROUNDS = 8
"""Newest rounds in the table."""

OPTIONAL_COLUMNS = ("root", "votes", "fragment", "counted", "payloads")
"""Left out one after the other where the terminal is too narrow for all."""

WIDEST = 1000
"""Columns in which any table is measured."""

LAST_CHECKPOINT_SECONDS = 30.0
"""Longest that a finished run is looked at for its last checkpoint, after which what is left in escrow returns."""

SHOWN_LOSSES = 12
"""Newest evaluations in the line below."""


def watch(
    run: RunOption,
    chain: ChainOption = DEFAULT_CHAINS,
    every: Annotated[float, typer.Option(min=0.2, max=86_400, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run live until it has finished or Ctrl-C; with --json one document a look.

    Where the output is no terminal, a line for each round that has settled.
    """
    client = ChainClient(chain)
    look = fetch_look(client, run)
    unit = look["loss_unit"]
    ending = Ending()
    if as_json:
        while True:
            print_json(look)
            if once or ending.is_over(look["run"]):
                return
            time.sleep(every)
            look = fetch_look(client, run, unit)
    if once:
        STDOUT.print(render_look(look, STDOUT.width))
        return
    if not STDOUT.is_terminal:
        _print_rounds(client, look, every)
        return
    with Live(render_look(look, STDOUT.width), console=STDOUT, auto_refresh=False) as live:
        while not ending.is_over(look["run"]):
            time.sleep(every)
            try:
                look = fetch_look(client, run, unit)
            except (ChainUnreachable, RpcError) as error:
                live.update(
                    Group(render_look(look, STDOUT.width), Text(f"chain: {error}; asking again", style="yellow")),
                    refresh=True,
                )
                continue
            live.update(render_look(look, STDOUT.width), refresh=True)


def _print_rounds(client: ChainClient, look: dict[str, Any], every: float) -> None:
    """Print a line a settled round until the run has finished, and one at the begin and end."""
    run, unit = look["run"].run, look["loss_unit"]
    news = News(look)
    _print_line(describe_look(look))
    ending = Ending()
    if ending.is_over(look["run"]):
        return
    while not ending.is_over(look["run"]):
        time.sleep(every)
        try:
            look = fetch_look(client, run, unit)
        except (ChainUnreachable, RpcError) as error:
            _print_line(f"chain: {error}; asking again")
            continue
        for line in news.describe(look):
            _print_line(line)
    _print_line(describe_look(look))


def _print_line(text: str) -> None:
    print(text, flush=True)


class Ending:
    """When there is nothing more to see: a run has finished, and its last checkpoint is certified or late."""

    def __init__(self) -> None:
        """Nothing has been seen to finish."""
        self._finished_seconds: float | None = None

    def is_over(self, run: RunInfo) -> bool:
        """Say whether this was the last look."""
        if run.state is not RunState.FINISHED:
            return False
        if self._finished_seconds is None:
            self._finished_seconds = time.monotonic()
        is_late = time.monotonic() - self._finished_seconds >= LAST_CHECKPOINT_SECONDS
        return is_late or run.certified_version == run.head_version


class News:
    """What looks have told already, so that each round and each loss is one line."""

    def __init__(self, look: dict[str, Any]) -> None:
        """Begin after a look."""
        self._num_settled: int = look["run"].num_settled
        self._losses = {item.version for item in look["evaluations"]}

    def describe(self, look: dict[str, Any]) -> list[str]:
        """Return a line for each round settled since, one for those that a look no longer has, and for each loss."""
        lines = []
        settled: int = look["run"].num_settled
        for round_info, updates in zip(look["rounds"], look["updates"], strict=True):
            if not self._num_settled <= round_info.round < settled:
                continue
            if round_info.round > self._num_settled:
                lines.append(f"rounds {self._num_settled} to {round_info.round - 1} settled meanwhile")
            self._num_settled = round_info.round + 1
            lines.append(_describe_round(round_info, updates))
        if settled < self._num_settled:
            lines.append(f"the run went back to version {settled}")
        self._num_settled = settled
        for item in look["evaluations"]:
            if item.version not in self._losses:
                self._losses.add(item.version)
                lines.append(
                    f"version {item.version}: held-out loss {format_loss(item.loss_micro)} {look['loss_unit']}"
                )
        return lines


def _describe_round(info: RoundInfo, updates: Sequence[Update]) -> str:
    losses = [update.loss_micro for update in updates if update.tokens]
    loss = f", training loss {format_loss(sum(losses) // len(losses))}" if losses else ""
    return (
        f"round {info.round}, fragment {info.fragment}: {format_name(info.state)} in block {info.settled_height}, "
        f"{info.num_accepted} of {info.num_eligible} counted{loss}"
    )


def describe_look(look: dict[str, Any]) -> str:
    """Return one line about the whole run."""
    info: RunInfo = look["run"]
    newest = look["evaluations"][-1:]
    loss = "".join(
        f", held-out loss {format_loss(item.loss_micro)} {look['loss_unit']} (version {item.version})"
        for item in newest
    )
    return (
        f"run {info.run}, {format_name(info.state)}, block {look['height']}: settled {info.num_settled} of "
        f"{info.num_rounds_total}, members {info.num_eligible} of {info.num_members}{loss}"
    )


def fetch_look(client: ChainClient, run: int, loss_unit: str | None = None) -> dict[str, Any]:
    """Read what one look shows; the recipe, which never changes, only where its unit isn't given."""
    height = client.height()
    info = fetch_run(client, run)
    first = max(0, info.num_opened - SHOWN_ROUNDS)
    rounds = [client.training.round(run, index) for index in range(first, info.num_opened)]
    updates = [client.training.updates(run, index) for index in range(first, info.num_opened)]
    # Evaluations are listed by version from 0 on; the newest are asked for.
    evaluations = client.training.evaluations(run, max(0, info.head_version - 64), 256)
    return {
        "height": height,
        "run": info,
        "rounds": rounds,
        "updates": updates,
        "evaluations": evaluations,
        "loss_unit": fetch_loss_unit(client, run) if loss_unit is None else loss_unit,
    }


def render_look(look: dict[str, Any], width: int) -> Group:
    """Return one look as a renderable for so many columns of a terminal."""
    info: RunInfo = look["run"]
    rows = []
    for round_info, updates in zip(look["rounds"], look["updates"], strict=True):
        losses = [update.loss_micro for update in updates if update.tokens]
        rows.append(
            (
                str(round_info.round),
                str(round_info.fragment),
                format_name(round_info.state),
                f"{round_info.num_committed} of {round_info.num_eligible}",
                str(round_info.num_votes),
                str(round_info.num_accepted) if round_info.settled_height else "",
                format_loss(sum(losses) // len(losses)) if losses else "flush" if updates else "",
                format_bytes(sum(update.size_bytes for update in updates)),
                format_hash(round_info.root),
            )
        )
    table = fit_table(
        f"run {info.run}, {format_name(info.state)}, block {look['height']}",
        ("round", "fragment", "phase", "updates", "votes", "counted", "training loss", "payloads", "root"),
        rows,
        width,
    )
    losses = look["evaluations"][-SHOWN_LOSSES:]
    curve = "  ".join(f"v{item.version} {format_loss(item.loss_micro)}" for item in losses) or "none yet"
    return Group(
        table,
        _make_line(f"held-out loss of the agreed weights, {look['loss_unit']}: {curve}"),
        _make_line(
            f"settled {info.num_settled} of {info.num_rounds_total}   "
            f"members {info.num_eligible} of {info.num_members}   checkpoint {info.certified_version}   "
            f"escrow {describe_escrow(info)}   "
            f"paid {format_tokens(info.paid_rewards)} rewards, {format_tokens(info.paid_storage)} storage"
        ),
    )


def _make_line(text: str) -> Text:
    """Return a line that goes on in the next one where the terminal is narrower."""
    return Text(text, no_wrap=False, overflow="fold")


def fit_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table without the columns that matter least, where it would be wider than ``width``."""
    shown = list(range(len(columns)))
    for name in ("", *OPTIONAL_COLUMNS):
        shown = [index for index in shown if columns[index] != name]
        table = create_table(
            title, [columns[index] for index in shown], [[row[index] for index in shown] for row in rows]
        )
        if STDOUT.measure(table, options=STDOUT.options.update(width=WIDEST)).maximum <= width:
            break
    return table
