"""The live table says everything that the demo promises to show."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from localnet.core.snapshot import RoundRow, Snapshot, WorkerRow
from localnet.demo.table import LINE_SECONDS, Display, render_curve, render_line, render_table, render_totals


def make_worker(name: str, *, is_alive: bool) -> WorkerRow:
    return WorkerRow(
        name=name,
        address="0x" + name.lower() * 40,
        process="pid 4711" if is_alive else "KILLED (signal 9)",
        is_alive=is_alive,
        state="ACTIVE",
        activity="train 13",
        num_accepted=10 if name == "A" else 12,
        num_refused=0,
        num_asked=12,
        num_tokens=491_520,
        earned=12 * 10**18,
        num_steps=240,
        bytes_sent=1_500_000,
        bytes_received=2_500_000,
    )


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(
        height=321,
        seconds=61.0,
        run_state="RUNNING",
        num_settled=12,
        num_rounds_total=28,
        rounds=(
            RoundRow(index=12, fragment=0, phase="ATTEST", num_committed=2, num_eligible=2, num_votes=1),
            RoundRow(index=13, fragment=1, phase="OPEN", num_committed=0, num_eligible=2, num_votes=0),
        ),
        workers=(make_worker("A", is_alive=True), make_worker("B", is_alive=False)),
        losses=((0, 5.545), (8, 3.5), (12, 3.1)),
        certified_version=8,
        paid_rewards=24 * 10**18,
        paid_storage=3 * 10**16,
        escrow=976 * 10**18,
        allreduce_bytes=300_000_000,
    )


def draw(snapshot: Snapshot, *, is_terminal: bool, width: int = 150) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=width, color_system=None)
    with Display(console) as display:
        display.note("worker B, process 4711, KILLED in the middle of round 13")
        display.show(snapshot)
    return output.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_table_and_lines_show_what_is_promised(snapshot: Snapshot, is_terminal: bool) -> None:
    text = draw(snapshot, is_terminal=is_terminal)
    for wanted in ("321", "12", "28", "ATTEST", "OPEN", "3.1", "3 MB", "5 MB", "300 MB", "0.03", "24", "KILLED"):
        assert wanted in text, wanted


def test_lines_come_when_something_happened_or_after_a_while(snapshot: Snapshot) -> None:
    output = io.StringIO()
    settled = replace(snapshot, seconds=snapshot.seconds + 1, num_settled=13)
    later = replace(settled, seconds=snapshot.seconds + LINE_SECONDS)
    with Display(Console(file=output, width=40)) as display:
        for one in (snapshot, snapshot, settled, settled, later, later):
            display.show(one)
    shown = (
        render_line(snapshot),
        render_totals(snapshot),
        render_line(settled),
        render_line(later),
        render_totals(later),
    )
    assert output.getvalue().splitlines() == list(shown)


def test_lines_say_what_each_worker_does_and_are_short(snapshot: Snapshot) -> None:
    line = render_line(snapshot)
    assert "A ACTIVE train 13 (10 of 12 counted); B DOWN (12 of 12 counted)" in line
    assert max(len(line), len(render_totals(snapshot))) <= 120


def test_columns_do_not_jump(snapshot: Snapshot) -> None:
    """The frame is the same whatever is in the cells."""

    def draw_frame(shown: Snapshot) -> list[str]:
        output = io.StringIO()
        Console(file=output, width=150, color_system=None).print(render_table(shown, [], 150))
        return [line for line in output.getvalue().splitlines() if line and line[0] in "┏┡└"]

    grown = replace(snapshot.workers[0], activity="fetch 13: a long word about it", num_tokens=10**9, earned=1)
    assert draw_frame(snapshot) == draw_frame(replace(snapshot, workers=(grown,)))


def test_sockets_are_summed_over_workers(snapshot: Snapshot) -> None:
    assert (snapshot.bytes_sent, snapshot.bytes_received, snapshot.newest_loss) == (3_000_000, 5_000_000, 3.1)


def test_curve_goes_from_the_largest_to_the_least() -> None:
    assert render_curve([4.0, 2.5, 1.0]) == "█▅▁"
    assert render_curve([2.0, 2.0]) == "▁▁"


@pytest.mark.parametrize(("width", "missing"), [(80, ("tokens", "received")), (110, ("received",)), (150, ())])
def test_a_narrow_window_goes_without_columns_and_cuts_none(
    snapshot: Snapshot, width: int, missing: tuple[str, ...]
) -> None:
    text = draw(snapshot, is_terminal=True, width=width)
    assert "…" not in text
    heading = next(line for line in text.splitlines() if "process" in line and "doing" in line)
    assert [name for name in missing if name in heading] == []
    assert all(name in heading for name in ("worker", "process", "doing", "counted"))
    assert ("a wider window shows" in text) == bool(missing)


def test_the_table_says_of_how_many_rounds_an_update_counted(snapshot: Snapshot) -> None:
    text = draw(snapshot, is_terminal=True)
    assert "10 of 12" in text
    assert "it was late" in text
    assert "times as much so far, checkpoints included" in text
