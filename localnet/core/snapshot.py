"""What the demo's table shows at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """An open round."""

    index: int
    """t."""
    fragment: int
    """t mod F."""
    phase: str
    """OPEN, REVEAL, ATTEST, DISPUTE."""
    num_committed: int
    """Updates in."""
    num_eligible: int
    """Members of V."""
    num_votes: int
    """Votes for a root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker."""

    name: str
    """A, B, ..."""
    address: str
    """Worker key."""
    process: str
    """`pid 123`, or what happened to it."""
    is_alive: bool
    """Whether its process runs."""
    state: str
    """Of the member, as the chain has it."""
    activity: str
    """What it did last, from its trace."""
    num_accepted: int
    """Updates counted so far."""
    num_refused: int
    """Updates refused so far."""
    num_tokens: int
    """Bytes of text trained on, self-reported."""
    earned: int
    """Wei."""
    num_steps: int
    """Inner steps, from its trace."""
    bytes_sent: int
    """At its sockets, all processes of this worker together."""
    bytes_received: int
    """Likewise."""
    num_missed: int = 0
    """Rounds missed in a row, as the chain has it."""
    num_asked: int = 0
    """Settled rounds that counted on it: those in which it was a member at the opening."""
    rejoin_height: int = 0
    """A dropped member may rejoin from this block on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A whole table."""

    height: int
    """Newest block."""
    seconds: float
    """Since the run began."""
    run_state: str
    """Of the run."""
    num_settled: int
    """Rounds settled."""
    num_rounds_total: int
    """Rounds of the run with the flush rounds."""
    rounds: tuple[RoundRow, ...]
    """Open ones, oldest first."""
    workers: tuple[WorkerRow, ...]
    """In order of their names."""
    losses: tuple[tuple[int, float], ...]
    """(version, held-out loss of the agreed theta in nats a byte), oldest first."""
    certified_version: int
    """Newest certified checkpoint."""
    paid_rewards: int
    """Wei."""
    paid_storage: int
    """Wei."""
    escrow: int
    """Wei that is left."""
    allreduce_bytes: int
    """What AllReduce in bf16 would have sent for the same steps, all workers together."""

    @property
    def bytes_sent(self) -> int:
        """At the sockets of all workers."""
        return sum(worker.bytes_sent for worker in self.workers)

    @property
    def bytes_received(self) -> int:
        """At the sockets of all workers."""
        return sum(worker.bytes_received for worker in self.workers)

    @property
    def newest_loss(self) -> float | None:
        """Held-out loss of the newest evaluated version."""
        return self.losses[-1][1] if self.losses else None
