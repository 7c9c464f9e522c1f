"""Draw a snapshot: a live table on a terminal, one line every few seconds elsewhere."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from contracts.bindings.amounts import format_tokens
from localnet.core.snapshot import Snapshot, WorkerRow
from localnet.core.traffic import format_bytes

LINE_SECONDS = 15.0
"""Where there is no terminal, a plain line is printed when something happened, and at least so often."""
COLUMNS = (
    ("worker", 10),
    ("process", 17),
    ("member", 8),
    ("doing", 20),
    ("counted", 19),
    ("tokens", 9),
    ("sent", 8),
    ("received", 8),
    ("pay", 12),
)
"""Of the workers' table, with widths: fixed, so that nothing jumps while it is looked at."""
LEFT_OUT = ("received", "sent", "tokens", "member", "pay")
"""What a console that is too narrow goes without, the least important first."""
NUM_NOTES = 6
"""How many of the newest happenings stay in view."""
BARS = "▁▂▃▄▅▆▇█"
"""Eight heights for a curve of text."""
CURVE_WIDTH = 40
"""Characters of the loss curve."""


class Display:
    """Shows snapshots and happenings as they come."""

    def __init__(self, console: Console) -> None:
        """A terminal gets a live table; a pipe or a file gets lines."""
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None
        self._notes: list[str] = []
        self._newest: Snapshot | None = None
        self._printed_at = -LINE_SECONDS
        self._printed: object = None

    def __enter__(self) -> Display:
        """Begin to show."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        """Leave the last table in view."""
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Show a happening."""
        self._notes.append(text)
        if self._live:
            self._draw()
        else:
            self._console.print(f"  * {text}", highlight=False, markup=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot."""
        self._newest = snapshot
        if self._live:
            self._draw()
            return
        news = (snapshot.num_settled, snapshot.run_state, [(row.state, row.is_alive) for row in snapshot.workers])
        is_quiet_for_long = snapshot.seconds - self._printed_at >= LINE_SECONDS
        if news == self._printed and not is_quiet_for_long:
            return
        lines = [render_line(snapshot)] + ([render_totals(snapshot)] if is_quiet_for_long else [])
        self._printed = news
        if is_quiet_for_long:
            self._printed_at = snapshot.seconds
        self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    def _draw(self) -> None:
        if self._live and self._newest:
            self._live.update(render_table(self._newest, self._notes[-NUM_NOTES:], self._console.width))


def render_line(snapshot: Snapshot) -> str:
    """Return one line: where the run is, and what each worker does."""
    rounds = ", ".join(f"{row.index} {row.phase}" for row in snapshot.rounds) or "none"
    workers = "; ".join(
        f"{row.name} "
        + (f"{row.state} {row.activity.partition(':')[0]}" if row.is_alive else "DOWN")
        + f" ({describe_counted(row)} counted)"
        for row in snapshot.workers
    )
    settled = f"{snapshot.num_settled}/{snapshot.num_rounds_total}"
    return f"[{snapshot.seconds:4.0f} s] settled {settled}, open {rounds}; {workers}"


def render_totals(snapshot: Snapshot) -> str:
    """Return one line: block, loss, bytes, money."""
    loss = f"{snapshot.newest_loss:.3f}" if snapshot.newest_loss is not None else "-"
    return (
        f"         block {snapshot.height}; loss {loss}; {format_bytes(snapshot.bytes_sent)} sent, "
        f"{format_bytes(snapshot.bytes_received)} received, AllReduce {format_bytes(snapshot.allreduce_bytes)}; "
        f"storage {format_tokens(snapshot.paid_storage)}, pay {format_tokens(snapshot.paid_rewards)}"
    )


def render_table(snapshot: Snapshot, notes: list[str], width: int) -> RenderableType:
    """Return the live table for ``width`` characters: the run, its open rounds, its workers, what happened last."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row("block", f"{snapshot.height}    run {snapshot.run_state}    {snapshot.seconds:.0f} s")
    facts.add_row("rounds settled", f"{snapshot.num_settled} of {snapshot.num_rounds_total}")
    for row in snapshot.rounds:
        facts.add_row(
            f"round {row.index}",
            f"fragment {row.fragment}  {row.phase:<7}  {row.num_committed}/{row.num_eligible} updates in"
            + (f"  {row.num_votes} votes" if row.phase == "ATTEST" else ""),
        )
    facts.add_row("held-out loss", render_losses(snapshot))
    facts.add_row(
        "bytes on the wire",
        f"{format_bytes(snapshot.bytes_sent)} sent, {format_bytes(snapshot.bytes_received)} received at the workers' "
        f"sockets (chain and stores)",
    )
    facts.add_row(
        "AllReduce in bf16", f"{format_bytes(snapshot.allreduce_bytes)} sent for the same steps{_ratio(snapshot)}"
    )
    facts.add_row(
        "money",
        f"storage {format_tokens(snapshot.paid_storage)}   pay {format_tokens(snapshot.paid_rewards)}   "
        f"escrow {describe_escrow(snapshot)}",
    )
    facts.add_row("checkpoint", f"version {snapshot.certified_version} is certified in the stores")
    columns = choose_columns(width)
    workers = Table(pad_edge=False)
    for heading, size in columns.items():
        workers.add_column(heading, width=size, no_wrap=True, overflow="ellipsis")
    for worker in snapshot.workers:
        cells = build_cells(worker)
        workers.add_row(*(cells[heading] for heading in columns))
    hint = "counted: of the settled rounds it was a member for; in the others it was late, down, refused or untrained"
    if len(columns) < len(COLUMNS):
        hint += "\na wider window shows " + ", ".join(name for name, _ in COLUMNS if name not in columns)
    happenings = [Text(f"* {note}", style="yellow") for note in notes]
    return Group(
        Text("Archipelago: one model, two workers, one chain, four stores", style="bold"),
        facts,
        workers,
        Text(hint, style="dim"),
        *happenings,
    )


def choose_columns(width: int) -> dict[str, int]:
    """Return the columns, heading -> width, that stand side by side in ``width`` characters."""
    chosen = dict(COLUMNS)
    for name in LEFT_OUT:
        if sum(chosen.values()) + 3 * len(chosen) <= width:
            break
        del chosen[name]
    return chosen


def build_cells(worker: WorkerRow) -> dict[str, str | Text]:
    """Return a worker's row, heading -> cell."""
    return {
        "worker": f"{worker.name} {worker.address[:8]}",
        "process": Text(worker.process, style="" if worker.is_alive else "bold red"),
        "member": worker.state,
        "doing": worker.activity,
        "counted": describe_counted(worker),
        "tokens": f"{worker.num_tokens:,}",
        "sent": format_bytes(worker.bytes_sent),
        "received": format_bytes(worker.bytes_received),
        "pay": format_tokens(worker.earned),
    }


def describe_counted(worker: WorkerRow) -> str:
    """Say how many updates counted, of how many rounds, and how many were refused."""
    refused = f", {worker.num_refused} refused" if worker.num_refused else ""
    return f"{worker.num_accepted} of {worker.num_asked}{refused}"


def describe_escrow(snapshot: Snapshot) -> str:
    """Say what is left; the end of a run sends the rest back."""
    if snapshot.run_state == "FINISHED" and not snapshot.escrow:
        return "the rest went back to the owner"
    return f"{format_tokens(snapshot.escrow)} left"


def render_losses(snapshot: Snapshot) -> str:
    """Return the loss of the agreed theta: first, newest and a curve between."""
    if not snapshot.losses:
        return "not evaluated yet"
    values = [loss for _, loss in snapshot.losses]
    version, newest = snapshot.losses[-1]
    return f"{values[0]:.3f} -> {newest:.3f} nats a byte (version {version})  {render_curve(values)}"


def render_curve(values: list[float]) -> str:
    """Return the newest values as bars; the largest is full height.

    >>> render_curve([4.0, 2.0, 1.0])
    '█▃▁'
    """
    shown = values[-CURVE_WIDTH:]
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[0] * len(shown)
    return "".join(BARS[min(int((value - low) / (high - low) * len(BARS)), len(BARS) - 1)] for value in shown)


def _ratio(snapshot: Snapshot) -> str:
    if snapshot.bytes_sent == 0 or snapshot.allreduce_bytes == 0:
        return ""
    return f", {snapshot.allreduce_bytes / snapshot.bytes_sent:.0f} times as much so far, checkpoints included"
