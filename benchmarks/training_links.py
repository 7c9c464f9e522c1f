"""Throughput over shaped links: AllReduce DDP, DiLoCo and ours on the same model, machine and links.

``python -m benchmarks.training_links`` makes two workers, each in a network namespace behind a veth that the kernel
shapes to 1 Gbps, 100 and 10 Mbps (`link_namespaces`), pins each to one core, and writes
``benchmarks/results/training_links.json``.  Where the kernel allows no such links, or with ``--shaper user``, the
workers meet on the loopback and wait as long as a link would need (`link_user`).  *Ours* is AdamW with low rank 2-bit,
as in the recipes from 125M up, not the small recipes' default.  Utilisation is the time that the inner steps alone
would have taken, measured in the same place just before and after, over the time it took.  What takes seconds only is
done three times, and the one of the middle utilisation counts: a machine's speed changes within such a time.  For the
same reason the speed that is kept is a quotient of utilisations, not of times.  Each figure is compared with
what the model of speed (``training/core/throughput.py``) says.  Its terms are measured apart from it: what a plain flow
and the plain messages of a ring take on the link, and what a method spends beside compute and bytes without a shaper.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from benchmarks.link_namespaces import HUB_ADDRESS, Links, NoShapedLinks, enter_user_namespace, make_links
from benchmarks.link_rank import FRAGMENTS, NUM_RANKS, RANK, Task, make_recipe
from benchmarks.link_user import DEVICE, HOST, UserLinks
from benchmarks.report import Goal, Row, write_report
from training.core.layout import build_layout
from training.core.throughput import BF16_BYTES, Cluster, OuterLoop, compute_step_seconds

RATES = {"1gbps": 1_000_000_000, "100mbps": 100_000_000, "10mbps": 10_000_000}
"""Bits a second in each direction."""

LOCAL_STEPS = 250
"""H of DiLoCo and ours."""

CURVE_STEPS = 1000
"""Of each method without a shaper, whose losses are read."""

NUM_STEPS = 500
"""Of ours on each shaped link, twice H, so that most rounds hide an exchange; DiLoCo hides none, and does half."""

ALLREDUCE_STEPS = {"1gbps": 100, "100mbps": 25, "10mbps": 5}
"""Each takes the same time, so few do; as many exchanges are measured as bytes alone."""

UNSHAPED_EXCHANGES = 100
"""Of bytes alone, without a shaper."""

BUCKET_MESSAGES = 4
"""Messages in which gloo's ring sends a bucket between two ranks: two pieces a rank, to be summed and to be shared."""

FIRST_BUCKET_BYTES = 1 << 20
"""Gradients, float32, that DDP exchanges first; with one million parameters all others are the second bucket."""

NUM_REPEATS = 3
"""Of what takes seconds only."""

CALIBRATION_STEPS = 50
"""Of inner steps alone, before each measurement and after it."""

NUM_POINTS = 8
"""Held-out losses of a method's run without a shaper."""

STOP_SECONDS = 10.0
"""For a process to end when its input does."""

LEAST_KEPT, MOST_ALLREDUCE, MOST_ERROR_PCT = 0.95, 0.05, 15.0
"""Goals: of ours' own speed, where AllReduce's compute has so small a share; and how far the model of speed is off."""

THIN_LINKS = ("100mbps", "10mbps")
"""Where the goals for ours and for AllReduce hold."""

SHAPED_BY = {
    "kernel": "veth and TBF in both directions",
    "user": "shaped in user space, by waiting: loopback, bytes counted with their frames, each direction a queue",
}
"""For the conditions, by shaper."""

HUB = "from benchmarks.link_hub import main; main()"
WORKER = "from benchmarks.link_rank import main; main()"
"""What the namespaces run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One method over one link."""

    step_seconds: float
    """Wall time over inner steps, the slower rank's."""
    compute_seconds: float
    """An inner step alone, mean of just before and just after, of both ranks."""
    bytes_a_step: float
    """Sent and received by one rank, as the kernel counts."""
    points: tuple[tuple[int, float], ...]
    """Held-out losses."""
    payload_bytes: int
    """Ours: of one exchange of all fragments."""

    @property
    def utilisation(self) -> float:
        """Share of the time that computes."""
        return self.compute_seconds / self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAlone:
    """What bytes take, without anybody who trains."""

    flow_bits_a_second: float
    """Of one flow, one way."""
    ring_seconds: float
    """Of the messages of one AllReduce of bf16 gradients, both ways at once."""

    def compute_flow_goodput(self, rate: int) -> float:
        """Return the share of the rate that a flow gets."""
        return min(1.0, self.flow_bits_a_second / rate)

    def compute_ring_goodput(self, rate: int, parameters: int) -> float:
        """Return the share of the rate that each way of a ring gets."""
        return min(1.0, 8 * BF16_BYTES * parameters / self.ring_seconds / rate)


class Ranks:
    """The two workers, told what to do."""

    def __init__(self, processes: list[subprocess.Popen[str]], links: Links | UserLinks) -> None:
        """Wait until they have met."""
        self._processes = processes
        self._links = links
        for process in processes:
            _read_line(process)

    def work(self, task: Task) -> list[dict[str, Any]]:
        """Have both do one task; return both answers."""
        told = json.dumps(asdict(replace(task, paced_bits=self._links.paced_bits)))
        for process in self._processes:
            _input(process).write(told + "\n")
            _input(process).flush()
        return [_read_line(process) for process in self._processes]

    def measure_link(self, rate: int, num_exchanges: int) -> LinkAlone:
        """Measure a flow of a second, and the messages of so many exchanges."""
        flow_bytes = (rate or max(RATES.values())) // 8
        exchange_bytes = BF16_BYTES * count_parameters()  # each of two ranks sends half of it twice
        flow = self.work(Task(kind="flow", num_steps=flow_bytes))
        num_messages = 2 * BUCKET_MESSAGES * num_exchanges
        ring = self.work(Task(kind="ring", num_steps=exchange_bytes * num_exchanges, local_steps=num_messages))
        return LinkAlone(
            flow_bits_a_second=8 * flow_bytes / max(each["seconds"] for each in flow),
            ring_seconds=max(each["seconds"] for each in ring) / num_exchanges,
        )

    def measure(self, task: Task, *, again: Sequence[int] = ()) -> Measured:
        """Measure the task, and again with so many steps each; return that of the middle utilisation.

        The losses are those of the first.
        """
        done = [self._measure_once(task)]
        done += [self._measure_once(replace(task, num_steps=steps, num_points=0)) for steps in again]
        chosen = sorted(done, key=lambda each: each.utilisation)[len(done) // 2]
        return replace(chosen, points=done[0].points)

    def _measure_once(self, task: Task) -> Measured:
        """Measure the task, with inner steps alone before and after it."""
        calibration = Task(kind="compute", num_steps=CALIBRATION_STEPS)
        alone = self.work(calibration)
        done = self.work(task)
        alone += self.work(calibration)
        assert len({each["root"] for each in done}) == 1, "the ranks disagree about the agreed root"
        return Measured(
            step_seconds=max(each["seconds"] for each in done) / task.num_steps,
            compute_seconds=sum(each["seconds"] for each in alone) / len(alone) / CALIBRATION_STEPS,
            bytes_a_step=max(each["up_bytes"] + each["down_bytes"] for each in done) / task.num_steps,
            points=tuple((steps, loss) for steps, loss in done[0]["points"]),
            payload_bytes=done[0]["payload_bytes"],
        )


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=NUM_STEPS, help="inner steps of ours on a shaped link; DiLoCo half"
    )
    parser.add_argument("--free-steps", type=int, default=CURVE_STEPS, help="inner steps of each without a shaper")
    parser.add_argument("--link", action="append", default=[], choices=RATES, help="only this one; may be given again")
    parser.add_argument(
        "--shaper",
        choices=("auto", *SHAPED_BY),
        default="auto",
        help="auto: the kernel, or the ranks themselves where it may not",
    )
    options, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    rates = {link: rate for link, rate in RATES.items() if link in options.link or not options.link}
    steps = (options.steps, options.free_steps)
    try:
        if options.shaper == "user":
            raise NoShapedLinks("--shaper user")
        enter_user_namespace("benchmarks.training_links")
        with make_links(NUM_RANKS) as links, _start(links) as ranks:
            rows = measure_all(links, ranks, rates, *steps)
    except NoShapedLinks as error:
        if options.shaper == "kernel":
            sys.exit(f"no links shaped by the kernel, so no figures of throughput: {error}; next: --shaper user")
        print(f"links are shaped in user space, by waiting, and not by the kernel: {error}", flush=True)
        waiting = UserLinks(NUM_RANKS)
        with _start(waiting) as ranks:
            rows = measure_all(waiting, ranks, rates, *steps)
    write_report("training_links", rows)


def measure_all(
    links: Links | UserLinks, ranks: Ranks, rates: dict[str, int], num_steps: int, num_free_steps: int
) -> list[Row]:
    """Return the rows of all methods over all links."""
    measured: dict[tuple[str, str], Measured] = {}
    links_alone: dict[str, LinkAlone] = {}
    own = {"diloco": max(LOCAL_STEPS, num_steps // 2), "ours": num_steps}
    chosen = {link: {"allreduce": ALLREDUCE_STEPS[link], **own} for link in rates}
    short = {"allreduce": ALLREDUCE_STEPS["1gbps"], **own}
    for link, rate in {"unshaped": 0, **rates}.items():
        links.set_rate(rate)
        links_alone[link] = ranks.measure_link(rate, ALLREDUCE_STEPS.get(link, UNSHAPED_EXCHANGES))
        print(f"{link:9s} {links_alone[link]}", flush=True)
        for method in ("allreduce", "diloco", "ours"):
            task = Task(
                kind=method,
                num_steps=chosen[link][method] if rate else num_free_steps,
                local_steps=LOCAL_STEPS,
                num_points=0 if rate else NUM_POINTS,
            )
            again = () if method == "allreduce" and link in THIN_LINKS else (short[method],) * (NUM_REPEATS - 1)
            measured[method, link] = done = ranks.measure(task, again=again)
            print(
                f"{link:9s} {method:10s} {done.step_seconds * 1e3:8.2f} ms a step, "
                f"{done.compute_seconds * 1e3:6.2f} alone, utilisation {done.utilisation:.3f}, "
                f"{done.bytes_a_step:,.0f} bytes a step",
                flush=True,
            )
    links.set_rate(0)
    return make_rows(measured, links_alone, rates, SHAPED_BY["kernel" if isinstance(links, Links) else "user"])


def make_rows(
    measured: dict[tuple[str, str], Measured], links_alone: dict[str, LinkAlone], rates: dict[str, int], shaped_by: str
) -> list[Row]:
    """Return utilisation, kept speed, time to a loss, bytes, and the model's error."""
    recipe = make_recipe(NUM_STEPS, LOCAL_STEPS, FRAGMENTS)
    parameters = count_parameters()
    conditions = (
        f"{parameters} parameters, D {NUM_RANKS}, a core each, H {LOCAL_STEPS},"
        f" {recipe.inner.batch_size} x {recipe.model.context} tokens a step, AdamW in all, bf16 gradients and"
        f" pseudo-gradients; ours: F {FRAGMENTS}, low rank 2-bit at r {RANK}, not the small recipes' default;"
        f" {shaped_by}"
    )
    rows = []
    for link in rates:
        peer = measured["allreduce", link].utilisation
        for method in ("ours", "diloco", "allreduce"):
            each = measured[method, link]
            detail = f"{each.step_seconds * 1e3:.2f} ms a step, {each.compute_seconds * 1e3:.2f} of inner steps alone"
            name = f"utilisation_{method}_{link}"
            is_aim = method == "allreduce" and link in THIN_LINKS
            goal = Goal(most=MOST_ALLREDUCE) if is_aim else None
            rows.append(_make_row(name, each.utilisation, "share", "AllReduce", peer, f"{detail}; {conditions}", goal))
        rows.append(_make_kept_row(measured, link, conditions))
        rows.extend(_make_time_rows(measured, link, conditions))
        rows.append(_make_byte_row(measured, link, conditions))
    rows.append(_make_error_row(measured, links_alone, rates, parameters, conditions))
    return rows


def _make_kept_row(measured: dict[tuple[str, str], Measured], link: str, conditions: str) -> Row:
    kept = {
        method: measured[method, link].utilisation / measured[method, "unshaped"].utilisation
        for method in ("ours", "allreduce")
    }
    name = f"speed_kept_ours_{link}"
    goal = Goal(least=LEAST_KEPT) if link in THIN_LINKS else None
    return _make_row(name, kept["ours"], "of unshaped", "AllReduce", kept["allreduce"], conditions, goal)


def _make_time_rows(measured: dict[tuple[str, str], Measured], link: str, conditions: str) -> list[Row]:
    """The steps to the loss that every method has reached, times the time of a step over this link."""
    target = max(measured[method, "unshaped"].points[-1][1] for method in ("allreduce", "diloco", "ours"))
    seconds = {}
    for method in ("allreduce", "diloco", "ours"):
        steps = next(steps for steps, loss in measured[method, "unshaped"].points if loss <= target)
        seconds[method] = steps * measured[method, link].step_seconds
    detail = f"to {target:.3f} nats a byte, held out; steps of a run without a shaper times a step's time here"
    return [
        _make_row(
            f"seconds_to_loss_as_steps_by_step_time_{method}_{link}",
            seconds[method],
            "s",
            "AllReduce",
            seconds["allreduce"],
            f"{detail}; {conditions}",
        )
        for method in ("ours", "diloco")
    ]


def _make_byte_row(measured: dict[tuple[str, str], Measured], link: str, conditions: str) -> Row:
    ours, theirs = measured["ours", link].bytes_a_step, measured["allreduce", link].bytes_a_step
    detail = "sent and received by one worker, frames included; ours with storage nodes, n/k = 2"
    return _make_row(f"link_bytes_a_step_{link}", ours, "bytes", "AllReduce", theirs, f"{detail}; {conditions}")


def _make_error_row(
    measured: dict[tuple[str, str], Measured],
    links_alone: dict[str, LinkAlone],
    rates: dict[str, int],
    parameters: int,
    conditions: str,
) -> Row:
    """Return the largest deviation of a measured step from the model's, over all links and methods."""
    errors = {}
    for link, rate in rates.items():
        for method in ("allreduce", "diloco", "ours"):
            predicted = predict_step_seconds(
                method,
                measured[method, link],
                measured[method, "unshaped"],
                rate,
                (links_alone[link], links_alone["unshaped"]),
                parameters,
            )
            errors[f"{method} {link}"] = 100 * (measured[method, link].step_seconds / predicted - 1)
    listed = ", ".join(f"{name} {error:+.1f}" for name, error in errors.items())
    shares = ", ".join(
        f"{link} {links_alone[link].compute_flow_goodput(rate):.3f} / "
        f"{links_alone[link].compute_ring_goodput(rate, parameters):.3f}"
        for link, rate in rates.items()
    )
    return _make_row(
        "model_error_pct",
        max(abs(error) for error in errors.values()),
        "%",
        "goal",
        MOST_ERROR_PCT,
        f"largest of: {listed}; goodput of one flow / of a ring's messages: {shares}; {conditions}",
        Goal(most=MOST_ERROR_PCT),
    )


def predict_step_seconds(
    method: str,
    here: Measured,
    unshaped: Measured,
    rate: int,
    alone: tuple[LinkAlone, LinkAlone],
    parameters: int,
) -> float:
    """Return what the model of speed says of a method over a link.

    Its terms: inner steps alone, measured just before and after; the link's goodput for a flow, or for the messages of
    a ring (``alone``: of this link, and without a shaper); and what the method takes beyond that where there is none.
    """
    link, free = alone
    if method == "ours":
        cluster = _make_cluster(here, rate, link.compute_flow_goodput(rate), parameters)
        moved = unshaped.payload_bytes * (2 + NUM_RANKS - 1)  # dispersed with n/k = 2, then each other's fetched
        spent = LOCAL_STEPS * (unshaped.step_seconds - unshaped.compute_seconds)
        loop = OuterLoop(
            local_steps=LOCAL_STEPS,
            compression=cluster.exchange_bytes / moved if moved else 1.0,
            pause_seconds=max(0.0, spent),
        )
        return compute_step_seconds(cluster, loop, is_overlapped=True)
    cluster = _make_cluster(here, rate, link.compute_ring_goodput(rate, parameters), parameters)
    free_rate = 8 * cluster.exchange_bytes / free.ring_seconds
    unshaped_cluster = _make_cluster(unshaped, free_rate, 1.0, parameters)
    if method == "allreduce":
        early_share = FIRST_BUCKET_BYTES / (4 * parameters)
        own = unshaped.step_seconds - replace(unshaped_cluster, early_share=early_share).allreduce_step_seconds
        return replace(cluster, early_share=early_share, startup_seconds=max(0.0, own)).allreduce_step_seconds
    loop = OuterLoop(local_steps=LOCAL_STEPS, compression=1.0)
    own = LOCAL_STEPS * (unshaped.step_seconds - compute_step_seconds(unshaped_cluster, loop, is_overlapped=False))
    return compute_step_seconds(cluster, replace(loop, pause_seconds=max(0.0, own)), is_overlapped=False)


def _make_cluster(measured: Measured, bits_a_second: float, goodput: float, parameters: int) -> Cluster:
    return Cluster(
        num_parameters=parameters,
        num_workers=NUM_RANKS,
        bandwidth_bits=bits_a_second,
        goodput=goodput,
        tokens_per_second=1 / measured.compute_seconds,
        tokens_per_step=1,
    )


def count_parameters() -> int:
    """Return P."""
    return build_layout(make_recipe(NUM_STEPS, LOCAL_STEPS, FRAGMENTS)).num_parameters


def _make_row(
    name: str, value: float, unit: str, peer: str, peer_value: float, conditions: str, goal: Goal | None = None
) -> Row:
    return Row(name=name, value=value, unit=unit, peer=peer, peer_value=peer_value, conditions=conditions, goal=goal)


@contextmanager
def _start(links: Links | UserLinks) -> Iterator[Ranks]:
    """Start hub and ranks inside their namespaces, or on the loopback, and end them."""
    host, device = (HUB_ADDRESS, "uplink") if isinstance(links, Links) else (HOST, DEVICE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="archipelago-links-")))
        hub = _spawn(stack, links.wrap(links.hub, [sys.executable, "-c", HUB, str(folder), host]), folder / "hub.log")
        said = _read_line(hub)
        seats = folder / "seats.json"
        seats.write_text(json.dumps(said["seats"]))
        processes = []
        for rank, spoke in enumerate(links.spokes):
            home = folder / f"rank{rank}"
            home.mkdir()
            places = [str(seats), str(home), host, device]
            command = [sys.executable, "-c", WORKER, str(rank), str(said["port"]), *places]
            processes.append(_spawn(stack, links.wrap(spoke, command), folder / f"rank{rank}.log"))
        yield Ranks(processes, links)


def _spawn(stack: ExitStack, command: list[str], log: Path) -> subprocess.Popen[str]:
    file = stack.enter_context(log.open("w"))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True)
    stack.callback(_stop, process, log)
    return process


def _stop(process: subprocess.Popen[str], log: Path) -> None:
    """Close its input and wait; print its log where it failed."""
    _input(process).close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.returncode:
        print(f"{log.name}:\n{log.read_text()[-4000:]}", file=sys.stderr)
    assert process.stdout is not None
    process.stdout.close()


def _input(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _read_line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"`{' '.join(map(str, process.args))}` has ended")  # type: ignore[arg-type]
    return json.loads(line)


if __name__ == "__main__":
    main()
