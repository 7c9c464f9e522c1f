"""The demo from the first block to the last check: devnet, run, two workers, a kill, the chain's own words.

Each step has a name; whatever fails in it is told with that name, the reason, the end of the log and what to
do next.  All processes hang on one supervisor, so none outlives the demo unless KEEP asks for the devnet.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from contracts.bindings.amounts import WEI_PER_TOKEN, format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError
from contracts.bindings.keys import address_of, create_key, load_key
from contracts.bindings.sender import Sender
from contracts.bindings.types import RoundState, RunState, UpdateFate
from localnet.command import CommandRunner, get_command
from localnet.core.errors import ChildExited, DevnetNotUp, LocalnetError, NotReadyInTime, StepFailed
from localnet.core.snapshot import Snapshot
from localnet.core.traffic import format_bytes
from localnet.demo import settings as wanted
from localnet.demo.checkpoint import Pulled, pull_and_check
from localnet.demo.facts import FactSource, Worker, get_evaluations
from localnet.demo.pace import Pace, TroubleSpotter, measure_pace
from localnet.demo.reading import read_state
from localnet.demo.settings import RUN, DemoSettings
from localnet.demo.solo import SoloProgress, load_progress
from localnet.demo.table import Display, render_line, render_totals
from localnet.identity import check_is_ours
from localnet.process import Child
from localnet.record import DevnetRecord, Phase, load_record
from localnet.stopping import StopRequest
from localnet.supervisor import Stage, Supervisor

DEVNET_DEADLINE_SECONDS = 120.0
"""From nothing to storage seats: about 12 s on two idle cores."""
COMMAND_DEADLINE_SECONDS = 90.0
"""One command of ours; loading torch on a busy machine is most of it."""
RUN_DEADLINE_SECONDS = 600.0
"""All rounds; the aim is 150 s on two cores. Stretched on a slow machine, as STALL_SECONDS is."""
STALL_SECONDS = 120.0
"""A run in which no round settles for so long is given up; a round's own timers take about 60 s at most."""
DEMO_DEADLINE_SECONDS = 1500.0
"""Everything; four minutes are usual. Whatever hangs, the demo ends and says so."""
SOLO_DEADLINE_SECONDS = 120.0
"""What is left of the comparison when the run has ended; without it the demo goes on."""
LAST_WORDS_SECONDS = 30.0
"""From the last round's settlement to its certified checkpoint and recorded loss: a few seconds."""
LEFT_ROUNDS = 8
"""A kill later than this many rounds before the end leaves too little to come back in."""
POLL_SECONDS = 0.7
"""How often the table is refreshed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the demo found."""

    first_loss: float
    """Held-out loss of version 0, or of the first evaluation."""
    last_loss: float
    """Held-out loss of the newest version."""
    num_final: int
    """Rounds that became FINAL."""
    num_void: int
    """Rounds that became VOID."""
    rejoined_round: int | None
    """First round after the kill in which the killed worker's update was counted."""
    seconds: float
    """Of the run."""
    snapshot: Snapshot
    """The last one."""
    solo: SoloProgress | None
    """The worker alone."""
    pulled: Pulled
    """The checkpoint that a fresh process pulled."""


class Demo:
    """One run of the demo."""

    def __init__(self, settings: DemoSettings, supervisor: Supervisor, stop: StopRequest, console: Console) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._supervisor = supervisor
        self._stop = stop
        self._console = console
        self._commands = CommandRunner(supervisor, stop)
        self.devnet: Child | None = None
        """`localnet up`, which KEEP leaves alone."""
        self.record: DevnetRecord | None = None
        """What it says is up."""

    def run(self) -> Result:
        """Do everything; raises StepFailed, or Stopped when a person asks to stop."""
        self._stop.set_deadline("the whole demo", DEMO_DEADLINE_SECONDS)
        with self._step("bring the devnet up", "make clean, then make demo again"):
            record = self._start_devnet()
        client = ChainClient([record.rpc_url])
        with self._step("create the run"):
            check_is_ours(client, record.rpc_url, record.chain_id)
            recipe_path, num_parameters, pace = self._write_recipe()
            workers = self._create_run(client, record, recipe_path, pace)
        with self._step("start two workers"):
            for worker in workers:
                self._start_worker(worker, record)
        solo = self._start_solo(recipe_path)
        with self._step("train together", f"the logs are in {self._supervisor.logs}"):
            snapshot, killed_at, seconds = self._train(client, workers, num_parameters, pace)
        with self._step("let the workers end"):
            for worker in workers:
                self._let_end(worker)
        with self._step("read the chain with web3.py"):
            self._headline("What the contract says")
            for line in read_state(record.rpc_url, RUN):
                self._say(line)
        with self._step("pull the checkpoint in a fresh process"):
            self._headline("A fresh process pulls the checkpoint from chain and storage alone")
            pulled = pull_and_check(
                self._commands, client, record.rpc_url, self._settings.home / "model", self._settings.data, self._say
            )
        with self._step("wait for the worker alone"):
            alone = self._finish_solo(solo)
        with self._step("count the rounds"):
            result = self._conclude(client, workers[-1], killed_at, seconds, snapshot, alone, pulled)
        client.close()
        return result

    def _start_devnet(self) -> DevnetRecord:
        home = self._settings.home
        self._headline("A devnet: one validator on the real CometBFT, JSON-RPC, four storage nodes")
        command = [sys.executable, "-m", "localnet.cli", "up", "--home", str(home / "devnet"), "--reset"]
        command += ["--rpc-port", str(self._settings.rpc_port)]
        self.devnet = self._supervisor.start(
            "devnet", command, stage=Stage.CHAIN, is_leashed=not self._settings.is_kept
        )
        child, shown = self.devnet, 0

        def is_ready() -> bool:
            nonlocal shown
            child.check()
            lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            for line in lines[shown:]:
                if line.endswith("\n"):
                    self._say(line.rstrip())
                    shown += 1
            with contextlib.suppress(DevnetNotUp):
                self.record = load_record(home / "devnet")
            return self.record is not None and self.record.phase is Phase.READY

        self._stop.wait_until(is_ready, "the devnet", deadline_seconds=DEVNET_DEADLINE_SECONDS)
        assert self.record is not None
        return self.record

    def _write_recipe(self) -> tuple[Path, int, Pace]:
        from training.core.recipe_text import parse_recipe
        from training.data.corpus import load_corpus

        text = create_recipe_text(self._settings.data)
        path = self._settings.home / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        recipe = parse_recipe(text)
        pace, num_parameters = measure_pace(text, load_corpus(recipe.data, self._settings.data))
        rounds = recipe.rounds
        self._headline("A run: one model for two owners")
        self._say(
            f"byte-level GPT of {num_parameters:,} parameters, F = {rounds.num_fragments} fragments, "
            f"d = {rounds.overlap} round of overlap, H = {rounds.local_steps} inner steps, {rounds.num_rounds} rounds "
            f"and {rounds.num_fragments} that flush; text: {self._settings.data or 'the Python standard library'}"
        )
        warning = pace.describe_slowness()
        if warning is not None:
            self._say(f"WARNING: {warning}")
        return path, num_parameters, pace

    def _create_run(self, client: ChainClient, record: DevnetRecord, recipe: Path, pace: Pace) -> list[Worker]:
        home = self._settings.home
        keys = home / "keys"
        owner = create_key(keys / "owner.key")
        workers = [
            Worker(
                name=name,
                address=address_of(create_key(keys / f"worker-{name}.key")),
                key_file=keys / f"worker-{name}.key",
                home=home / f"worker-{name}",
            )
            for name in wanted.WORKER_NAMES
        ]
        faucet = Sender(client, load_key(Path(record.faucet_key)))
        faucet.transfer(address_of(owner), wanted.OWNER_TOKENS * WEI_PER_TOKEN)
        for worker in workers:
            self._stop.check()
            faucet.transfer(worker.address, wanted.WORKER_TOKENS * WEI_PER_TOKEN)
        self._commands.run(
            "run-create",
            [
                *(get_command("trainer"), "run", "create", str(recipe), "--chain", record.rpc_url),
                *("--key-file", str(keys / "owner.key"), "--escrow", str(wanted.ESCROW_TOKENS), "--json"),
                *("--reward", wanted.REWARD_TOKENS, "--round-seconds", f"{pace.round_seconds:.1f}"),
                *("--attest-seconds", f"{pace.attest_seconds:.1f}"),
                *("--checkpoint-rounds", str(wanted.CHECKPOINT_ROUNDS)),
                *(part for worker in workers for part in ("--allow", worker.address)),
            ],
            step="create the run (trainer run create)",
            deadline_seconds=COMMAND_DEADLINE_SECONDS,
        )
        info = client.training.run(RUN)
        self._say(
            f"run {RUN} is on the chain: recipe 0x{info.recipe_digest.hex()[:16]}..., genesis root "
            f"0x{info.genesis_root.hex()[:16]}..., escrow {format_tokens(info.escrow)}"
        )
        return workers

    def _start_worker(self, worker: Worker, record: DevnetRecord) -> None:
        command = [get_command("trainer"), "join", "--chain", record.rpc_url, "--run", str(RUN)]
        command += ["--key-file", str(worker.key_file), "--home", str(worker.home), "--threads", "1"]
        if self._settings.data is not None:
            command += ["--data", str(self._settings.data)]
        worker.child = self._supervisor.start(f"worker-{worker.name}", command, stage=Stage.WORK)
        worker.fate = ""

    def _start_solo(self, recipe: Path) -> Child | None:
        if not self._settings.is_solo_run:
            return None
        command = [sys.executable, "-m", "localnet.demo.solo", str(recipe), "--out", str(self._solo_path)]
        if self._settings.data is not None:
            command += ["--data", str(self._settings.data)]
        return self._supervisor.start("solo", command, stage=Stage.WORK, nice=19)

    def _train(
        self, client: ChainClient, workers: list[Worker], num_parameters: int, pace: Pace
    ) -> tuple[Snapshot, int, float]:
        stall_seconds, run_seconds = STALL_SECONDS * pace.slowness, RUN_DEADLINE_SECONDS * pace.slowness
        trouble = TroubleSpotter()
        facts = FactSource(client, RUN, workers, num_parameters)
        victim = workers[-1]
        began = settled_at = time.monotonic()
        killed_at, num_settled, is_back = -1, 0, False
        with Display(self._console) as display:
            display.note("two workers start: trainer join --chain ... --run 1")
            while True:
                self._stop.pause(POLL_SECONDS)
                self._check_processes(workers, killed_at, victim)
                now = time.monotonic()
                try:
                    snapshot = facts.collect()
                except BindingError as error:
                    if now - settled_at > stall_seconds:
                        raise
                    display.note(f"no answer from the chain: {error}")
                    continue
                display.show(snapshot)
                if snapshot.num_settled > num_settled:
                    num_settled, settled_at = snapshot.num_settled, now
                if snapshot.run_state == RunState.FINISHED.name and snapshot.num_settled == snapshot.num_rounds_total:
                    break
                for line in trouble.look(snapshot, away=victim.name if killed_at >= 0 and not is_back else ""):
                    display.note(line)
                if now - settled_at > stall_seconds:
                    raise NotReadyInTime("the next round to settle", stall_seconds, render_line(snapshot))
                if now - began > run_seconds:
                    raise NotReadyInTime("all rounds to settle", run_seconds, render_line(snapshot))
                if killed_at < 0 and is_time_to_kill(snapshot):
                    killed_at = self._kill_and_restart(victim, snapshot, display, facts)
                elif killed_at >= 0 and not is_back:
                    counted = _find_counted_round(client, victim.address, killed_at, snapshot.num_settled)
                    if counted is not None:
                        is_back = True
                        display.note(f"worker {victim.name} caught up by itself: its update of round {counted} counted")
            display.note(f"all {snapshot.num_rounds_total} rounds have settled; the run is FINISHED")
            seconds = time.monotonic() - began
            self._wait_for_last_words(client, snapshot)
            final = facts.collect()
            display.show(final)
        if not self._console.is_terminal:
            self._say(render_line(final))
            self._say(render_totals(final))
        return final, killed_at, seconds

    def _kill_and_restart(self, victim: Worker, snapshot: Snapshot, display: Display, facts: FactSource) -> int:
        """End the victim as a power cut would, show that, start it again; return the newest round open then."""
        assert victim.child is not None
        assert self.record is not None
        newest = max((row.index for row in snapshot.rounds), default=snapshot.num_settled)
        pid = victim.child.id.pid
        victim.child.kill()
        victim.fate = "KILLED (signal 9)"
        display.note(
            f"worker {victim.name}, process {pid}, KILLED in the middle of round {newest}: kill -9, no farewell"
        )
        self._supervisor.release(victim.child)
        end = time.monotonic() + wanted.DOWN_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(BindingError):
                display.show(facts.collect())
            self._stop.pause(POLL_SECONDS)
        self._start_worker(victim, self.record)
        assert victim.child is not None
        display.note(f"worker {victim.name} started again as process {victim.child.id.pid}, with the same command")
        return newest

    def _check_processes(self, workers: list[Worker], killed_at: int, victim: Worker) -> None:
        assert self.devnet is not None
        self.devnet.check()
        for worker in workers:
            assert worker.child is not None
            code = worker.child.exit_code
            if code not in (None, 0):
                raise ChildExited(f"worker {worker.name}", code or 0, str(worker.child.log), worker.child.read_tail())

    def _wait_for_last_words(self, client: ChainClient, snapshot: Snapshot) -> None:
        """Give the members a moment to store the last checkpoint and to record its loss."""

        def is_recorded() -> bool:
            has_loss = any(one.version == snapshot.num_rounds_total for one in get_evaluations(client, RUN))
            return has_loss and client.training.run(RUN).certified_version == snapshot.num_rounds_total

        with contextlib.suppress(NotReadyInTime):
            self._stop.wait_until(
                is_recorded, "the last checkpoint", deadline_seconds=LAST_WORDS_SECONDS, poll_seconds=0.3
            )

    def _let_end(self, worker: Worker) -> None:
        """A worker of a finished run ends by itself; one that does not is asked to."""
        assert worker.child is not None
        child = worker.child
        with contextlib.suppress(NotReadyInTime):
            self._stop.wait_until(lambda: child.exit_code is not None, "the worker to end", deadline_seconds=20)
        if child.exit_code not in (None, 0):
            child.check()

    def _finish_solo(self, solo: Child | None) -> SoloProgress | None:
        if solo is None:
            return None
        self._say("... a worker alone, on as many tokens as one of the two, for comparison")
        shown = ""

        def is_done() -> bool:
            nonlocal shown
            progress = load_progress(self._solo_path)
            if progress is not None:
                line = (
                    f"    {progress.num_steps} of {progress.num_steps_total} steps, held-out loss {progress.loss:.3f}"
                )
                if line != shown:
                    shown = line
                    self._say(line)
                if progress.is_done:
                    return True
            if solo.exit_code not in (None, 0):
                solo.check()
            return False

        with contextlib.suppress(NotReadyInTime):
            self._stop.wait_until(is_done, "the worker alone", deadline_seconds=SOLO_DEADLINE_SECONDS, poll_seconds=0.3)
        return load_progress(self._solo_path)

    def _conclude(
        self,
        client: ChainClient,
        victim: Worker,
        killed_at: int,
        seconds: float,
        snapshot: Snapshot,
        solo: SoloProgress | None,
        pulled: Pulled,
    ) -> Result:
        states = [client.training.round(RUN, index).state for index in range(snapshot.num_settled)]
        if not snapshot.losses:
            raise StepFailed("count the rounds", "no held-out loss was recorded on the chain", "read the workers' logs")
        return Result(
            first_loss=snapshot.losses[0][1],
            last_loss=snapshot.losses[-1][1],
            num_final=states.count(RoundState.FINAL),
            num_void=states.count(RoundState.VOID),
            rejoined_round=_find_counted_round(client, victim.address, killed_at, snapshot.num_settled),
            seconds=seconds,
            snapshot=snapshot,
            solo=solo,
            pulled=pulled,
        )

    @property
    def _solo_path(self) -> Path:
        return self._settings.home / "solo.json"

    @contextlib.contextmanager
    def _step(self, name: str, next_step: str = "") -> Iterator[None]:
        """Name what is going on, so that a failure says where it happened."""
        advice = next_step or f"the logs are in {self._supervisor.logs}; make demo starts again from nothing"
        try:
            yield
        except StepFailed:
            raise
        except ChildExited as error:
            how = f"signal {-error.exit_code}" if error.exit_code < 0 else f"exit code {error.exit_code}"
            raise StepFailed(name, f"{error.name} ended with {how}; log {error.log}", advice, error.tail) from error
        except (LocalnetError, BindingError, OSError, json.JSONDecodeError) as error:
            tail = "\n".join(f"{child.name}: {child.read_tail(3)}" for child in self._supervisor.children)
            raise StepFailed(name, str(error), advice, tail) from error

    def _headline(self, text: str) -> None:
        self._console.print(f"\n{text}", style="bold", highlight=False, markup=False)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def create_recipe_text(data: Path | None) -> str:
    """Return the demo's recipe, for a person's own text where there is one."""
    from training.core.recipe_text import parse_recipe
    from training.data.corpus import load_corpus
    from training.recipes.shipped import load_shipped

    text = load_shipped("demo")
    if data is None:
        return text
    digest = load_corpus(parse_recipe(text).data, data).digest.hex()
    return text.replace('source = "python_stdlib"', f'source = "file"\ndigest = "{digest}"')


def is_time_to_kill(snapshot: Snapshot) -> bool:
    """Say whether the kill shows something: half-way, everybody at work, and rounds enough left to come back.

    A worker that is dropped or still joining could not be told from one that the kill took out.
    """
    first, last = snapshot.num_rounds_total // 2 - 1, snapshot.num_rounds_total - LEFT_ROUNDS
    is_everybody_active = all(row.state == "ACTIVE" and row.is_alive and not row.num_missed for row in snapshot.workers)
    return first <= snapshot.num_settled <= last and is_everybody_active


def _find_counted_round(client: ChainClient, worker: str, after: int, num_settled: int) -> int | None:
    """Return the first settled round after ``after`` in which the worker's update counted."""
    if after < 0:
        return None
    for index in range(after + 1, num_settled):
        if client.training.update(RUN, index, worker).fate is UpdateFate.ACCEPTED:
            return index
    return None


def describe_wire(snapshot: Snapshot) -> str:
    """Say how many bytes went over the wire, and against what."""
    sent, allreduce = snapshot.bytes_sent, snapshot.allreduce_bytes
    ratio = f"{allreduce / sent:.0f} times less" if sent else "no bytes counted"
    return (
        f"{format_bytes(sent)} sent at the workers' sockets, JSON-RPC, erasure coding and checkpoints included; "
        f"AllReduce in bf16 would have sent {format_bytes(allreduce)} for the same inner steps: {ratio}"
    )
