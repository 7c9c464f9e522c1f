"""Collect one snapshot: what the chain says, and what the workers' traces say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.bindings.client import ChainClient
from contracts.bindings.types import Evaluation, Member, RoundState
from localnet.core.snapshot import RoundRow, Snapshot, WorkerRow
from localnet.core.traffic import compute_allreduce_bytes, sum_over_lives
from localnet.process import Child
from training.worker.trace import EventKind, TraceEvent, load_trace

MICRO = 1_000_000
"""Losses on the chain are micronats."""
EVALUATIONS_A_CALL = 256
"""The most that one call of `evaluations` returns."""


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker of the demo."""

    name: str
    """A, B, ..."""
    address: str
    """Checksummed address of its key."""
    key_file: Path
    """Its key."""
    home: Path
    """Its files; the trace is among them."""
    child: Child | None = None
    """Its process, once started."""
    fate: str = ""
    """What happened to its process, where it is not simply running."""


class FactSource:
    """Takes snapshots of a run."""

    def __init__(self, client: ChainClient, run: int, workers: Sequence[Worker], num_parameters: int) -> None:
        """The clock of the table starts now."""
        self._client = client
        self._run = run
        self._workers = workers
        self._num_parameters = num_parameters
        self._began = time.monotonic()
        self._participants: list[tuple[str, ...]] = []
        """Of every settled round seen so far; they don't change any more."""

    def collect(self) -> Snapshot:
        """Ask the chain and read the traces; raises BindingError when the chain does not answer."""
        training = self._client.training
        run = training.run(self._run)
        members = {member.worker: member for member in training.members(self._run)}
        infos = [training.round(self._run, index) for index in range(run.num_settled, run.num_opened)]
        for index in range(len(self._participants), run.num_settled):
            self._participants.append(training.participants(self._run, index))
        rows = tuple(_build_worker_row(worker, members, self._count_asked(worker.address)) for worker in self._workers)
        return Snapshot(
            height=self._client.height(),
            seconds=time.monotonic() - self._began,
            run_state=run.state.name,
            num_settled=run.num_settled,
            num_rounds_total=run.num_rounds_total,
            rounds=tuple(
                RoundRow(
                    index=info.round,
                    fragment=info.fragment,
                    phase=info.state.name,
                    num_committed=info.num_committed,
                    num_eligible=info.num_eligible,
                    num_votes=info.num_votes,
                )
                for info in infos
                if info.state not in (RoundState.FINAL, RoundState.VOID)
            ),
            workers=rows,
            losses=tuple((one.version, one.loss_micro / MICRO) for one in get_evaluations(self._client, self._run)),
            certified_version=run.certified_version,
            paid_rewards=run.paid_rewards,
            paid_storage=run.paid_storage,
            escrow=run.escrow,
            allreduce_bytes=sum(
                compute_allreduce_bytes(
                    num_workers=len(rows), num_parameters=self._num_parameters, num_steps=row.num_steps
                )
                for row in rows
            ),
        )

    def _count_asked(self, address: str) -> int:
        return sum(1 for participants in self._participants if address in participants)


def get_evaluations(client: ChainClient, run: int) -> tuple[Evaluation, ...]:
    """Return every recorded evaluation by version, the first of each version, oldest first."""
    by_version: dict[int, Evaluation] = {}
    start = 0
    while True:
        page = client.training.evaluations(run, start, EVALUATIONS_A_CALL)
        for one in page:
            by_version.setdefault(one.version, one)
        if len(page) < EVALUATIONS_A_CALL:
            return tuple(by_version[version] for version in sorted(by_version))
        start += len(page)


def _build_worker_row(worker: Worker, members: Mapping[str, Member], num_asked: int) -> WorkerRow:
    member = members.get(worker.address)
    path = worker.home / "trace.jsonl"
    events = load_trace(path) if path.exists() else []
    traffic = sum_over_lives(event.counters for event in events if event.kind is EventKind.TRAFFIC)
    is_alive = worker.child is not None and worker.child.exit_code is None
    return WorkerRow(
        name=worker.name,
        address=worker.address,
        process=f"pid {worker.child.id.pid}" if is_alive and worker.child else worker.fate or "ended",
        is_alive=is_alive,
        state=member.state.name if member else "not joined",
        activity=_describe_activity(events) if is_alive else "-",
        num_accepted=member.accepted if member else 0,
        num_refused=member.refused if member else 0,
        num_tokens=member.tokens if member else 0,
        earned=member.earned if member else 0,
        num_missed=member.missed if member else 0,
        num_asked=num_asked,
        rejoin_height=member.rejoin_height if member else 0,
        num_steps=sum(event.counters.get("steps", 0) for event in events if event.kind is EventKind.TRAIN),
        bytes_sent=sum(value for name, value in traffic.items() if name.endswith("sent")),
        bytes_received=sum(value for name, value in traffic.items() if name.endswith("received")),
    )


def _describe_activity(events: Sequence[TraceEvent]) -> str:
    spans = [event for event in events if event.kind is not EventKind.TRAFFIC]
    if not spans:
        return "starting"
    newest = spans[-1]
    where = f" {newest.round}" if newest.round >= 0 else ""
    return f"{newest.kind.value}{where}" + (f": {newest.note}" if newest.note else "")
