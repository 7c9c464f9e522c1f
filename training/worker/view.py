"""What the chain said last, and the decisions that follow from it alone (DESIGN 4.1).

Pure: a decision is a function of a view and of where the worker stands, so the table of cases in
``tests/training_worker/test_view.py`` is the whole policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.bindings.types import Member, MemberState, RoundInfo, RoundState, RunInfo, RunState
from training.worker.funding import find_short_escrow

MAX_INTERVALS_BACK = 2
"""Checkpoint intervals that a round may open ahead of the certified version (chain/core/rounds/opening.py)."""

SEE_RUN = "see `trainer run show`, then start again: nothing is lost"
"""Next step where nothing more is known."""

SETTLED_STATES = frozenset({RoundState.FINAL, RoundState.VOID})
"""A round in one of these never changes again, unless the run is reverted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """One consistent look at a run; never older than the one before it."""

    height: int
    """Newest complete block when the look began."""
    run: RunInfo
    """The run."""
    member: Member
    """Ourselves; state NONE before the first join."""
    rounds: Mapping[int, RoundInfo]
    """Rounds that are opened and not settled."""
    participants: Mapping[int, tuple[str, ...]]
    """V of each of them."""
    seen_seconds: float
    """Monotonic clock when the look was complete."""

    def is_participant(self, round_index: int, me: str) -> bool:
        """Whether we are in V of a round and still a live member."""
        is_live = self.member.state in (MemberState.READY, MemberState.ACTIVE)
        return is_live and me in self.participants.get(round_index, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the worker stands."""

    me: str
    """Checksummed address."""
    version: int
    """Settled rounds in the local weights."""
    last_sent_round: int
    """Newest round taken out of the weights, -1 for none."""
    is_behind: bool
    """The round we were in closed without us."""


def choose_round(view: ChainView, standing: Standing) -> RoundInfo | None:
    """Choose the OPEN round to train in: the oldest not sent yet, or the newest for a worker that fell behind.

    A round whose base is older than the local weights is sat out; so is one whose grace has begun, if a newer
    one is open.
    """
    candidates = [
        info
        for index, info in sorted(view.rounds.items())
        if info.state is RoundState.OPEN
        and index > standing.last_sent_round
        and info.base_version >= standing.version
        and view.is_participant(index, standing.me)
    ]
    if not candidates:
        return None
    if standing.is_behind:
        return candidates[-1]
    unhurried = [info for info in candidates if not is_time_to_send(view, info)]
    return unhurried[0] if unhurried else candidates[-1]


def is_time_to_send(view: ChainView, info: RoundInfo) -> bool:
    """Whether a worker in this round should send what it has: no more than the grace blocks are left.

    While round t-1 has not closed the clock of round t has not started, and nothing hurries.
    """
    if info.state is not RoundState.OPEN or info.due_height == 0:
        return False
    before = view.rounds.get(info.round - 1)
    if before is not None and before.state is RoundState.OPEN:
        return False
    return info.due_height - view.height <= view.run.params.grace_blocks


def is_closed(view: ChainView, round_index: int) -> bool:
    """Whether a round takes no more updates."""
    if round_index < view.run.num_settled:
        return True
    info = view.rounds.get(round_index)
    return info is not None and info.state is not RoundState.OPEN


def can_do_without_update(view: ChainView, round_index: int) -> bool:
    """Whether two thirds of a round's members have sent, so that it closes after grace without one that has nothing."""
    info = view.rounds.get(round_index)
    return info is not None and 3 * info.num_committed >= 2 * len(view.participants[round_index])


def is_to_wait_without_update(view: ChainView, info: RoundInfo) -> bool:
    """Whether a member with nothing to send waits for two thirds of the others: they are enough, and there is time.

    Near the end of the round it sends all the same, and with fewer than three members at once: a round without
    updates would be void, and one that waits for us would last as long as it may.
    """
    num_members = len(view.participants[info.round])
    are_enough = 3 * (num_members - 1) >= 2 * num_members
    return are_enough and not can_do_without_update(view, info.round) and not is_time_to_send(view, info)


def explain_wait(view: ChainView, standing: Standing) -> str:
    """Say in a few words why there is nothing to train in right now."""
    run = view.run
    if run.state is RunState.CREATED:
        return "the owner has not stored the genesis checkpoint yet"
    if run.state is RunState.WAITING:
        if run.num_eligible < run.params.min_members:
            return f"the run waits for members: {run.num_eligible} eligible, {run.params.min_members} needed"
        return f"the run waits for money: {find_short_escrow(run)}"
    if run.state is RunState.PAUSED:
        return "the owner has paused the run"
    if run.state is RunState.FINISHED:
        return "the run has finished"
    if view.member.state is MemberState.DROPPED:
        return f"dropped after missing rounds; may rejoin at block {view.member.rejoin_height} (now {view.height})"
    if view.member.state is MemberState.JOINED:
        return "joined; catching up before the next round opens"
    if any(index <= standing.last_sent_round for index in view.rounds):
        return f"sent; {_explain_oldest(view)}"
    interval = run.params.checkpoint_interval
    if run.num_opened - run.certified_version > MAX_INTERVALS_BACK * interval:
        return f"the next round opens once a checkpoint after version {run.certified_version} is stored"
    return "no open round for us yet"


def _explain_oldest(view: ChainView) -> str:
    """Say what the next round waits for: the oldest that has not settled, and till when."""
    info = view.rounds.get(view.run.num_settled)
    if info is None or info.state is not RoundState.OPEN:
        return "the next round opens when an earlier one has settled"
    sent = f"{info.num_committed} of its {len(view.participants[info.round])} members have sent"
    until = f", until block {info.due_height} at the latest" if info.due_height else ""
    return f"round {info.round} is open for the others{until}: {sent}"


def advise_wait(view: ChainView) -> str:
    """Say what a person does about a wait that has taken too long."""
    short = find_short_escrow(view.run)
    return SEE_RUN if short is None else f"{short.next_step}, then start again: nothing is lost"


def compute_rejoin_is_due(view: ChainView) -> bool:
    """Whether a worker that is no member (any more) may join now."""
    if view.member.state in (MemberState.NONE, MemberState.LEFT):
        return True
    return view.member.state is MemberState.DROPPED and view.height >= view.member.rejoin_height


def compute_start_version(view: ChainView, me: str, last_sent_round: int) -> int:
    """Return the version at which a worker without weights starts: the head, or the base of a round it can still do."""
    bases = [
        info.base_version
        for index, info in view.rounds.items()
        if info.state is RoundState.OPEN and index > last_sent_round and view.is_participant(index, me)
    ]
    return min([view.run.head_version, *bases])


def compute_checkpoint_versions(run: RunInfo) -> list[int]:
    """Return the versions at which a checkpoint is due or open, newest first.

    Interval 8, certified 8, head 25: [24, 16].  The last version of a finished run is one too.
    """
    interval = run.params.checkpoint_interval
    versions = set(range((run.certified_version // interval + 1) * interval, run.head_version + 1, interval))
    if run.state is RunState.FINISHED and run.head_version > run.certified_version:
        versions.add(run.head_version)
    return sorted(versions, reverse=True)
