"""One run's records during one turn: loaded once, changed in memory, written back together.

Keys under ``t/``: ``c`` number of runs; ``r`` run; ``x`` recipe; ``a`` run + worker allow-list; ``m`` run +
worker member; ``i`` run + join index -> worker; ``E`` run roster of eligible members; ``L`` run last round;
``o`` run + t round; ``V`` run + t participants; ``u``/``v`` run + t + participant update/vote; ``R`` run +
version root; ``k`` run + version checkpoint; ``e`` run + version evaluation; ``A`` run accumulator of archived
rounds; ``d`` height + run due index.
Numbers in keys are big-endian u64 (participants one byte).  Invariant: a refused call has written nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from chain.core.abi.refusal import Refusal
from chain.core.abi.training import TRAINING_ADDRESS
from chain.core.accumulator import EMPTY_ACCUMULATOR, Accumulator
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.rounds.records import (
    Checkpoint,
    CheckpointState,
    Evaluation,
    LastRound,
    Member,
    Round,
    Run,
    Update,
    Vote,
)
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Root

TRAINING = Address(TRAINING_ADDRESS)
"""The contract's account: escrows and bonds."""

DUE_PREFIX = b"t/d"
"""Keys: prefix, height u64, run u64."""

_R = TypeVar("_R")

_NUM_RUNS_KEY = b"t/c"
_ADDRESS_BYTES = 20
_LARGEST_KEY_NUMBER = 2**64 - 1

_RUN: RecordCodec[Run] = RecordCodec(Run)
_ROUND: RecordCodec[Round] = RecordCodec(Round)
_UPDATE: RecordCodec[Update] = RecordCodec(Update)
_VOTE: RecordCodec[Vote] = RecordCodec(Vote)
_MEMBER: RecordCodec[Member] = RecordCodec(Member)
_CHECKPOINT: RecordCodec[Checkpoint] = RecordCodec(Checkpoint)
_EVALUATION: RecordCodec[Evaluation] = RecordCodec(Evaluation)
_ACCUMULATOR: RecordCodec[Accumulator] = RecordCodec(Accumulator)
_LAST_ROUND: RecordCodec[LastRound] = RecordCodec(LastRound)


def get_num_runs(state: Overlay) -> int:
    """Return how many runs were created."""
    value = state.get(_NUM_RUNS_KEY)
    return int(unpack(value)) if value is not None else 0


def save_new_run(turn: Turn, run: Run, recipe: bytes) -> None:
    """Write a run that is new; its book can be opened afterwards."""
    turn.state.set(_NUM_RUNS_KEY, pack(run.run))
    turn.state.set(_key(b"t/x", run.run), recipe)
    turn.state.set(_key(b"t/r", run.run), _RUN.encode(run))


class RunBook:
    """The records of one run."""

    __slots__ = ("_last", "_loaded", "_members", "_participants", "_roster", "_rounds", "_was_roster", "run", "turn")

    def __init__(self, turn: Turn, run: int) -> None:
        """Load a run, or refuse with UnknownRun."""
        value = turn.state.get(_key(b"t/r", run)) if run <= _LARGEST_KEY_NUMBER else None
        if value is None:
            raise Refusal("UnknownRun", run)
        self.turn = turn
        self.run: Run = _RUN.decode(value)
        self._loaded: dict[bytes, bytes] = {_key(b"t/r", run): value}
        self._rounds: dict[int, Round] = {}
        self._members: dict[Address, Member] = {}
        self._participants: dict[int, tuple[Address, ...]] = {}
        self._roster: list[Address] | None = None
        self._was_roster = b""
        self._last: LastRound | None = None

    # -- rounds

    def get_round(self, t: int) -> Round | None:
        """Return a round, None unless it is open or was opened since the last revert; RoundArchived where it left."""
        if not 0 <= t < self.run.num_opened:
            return None
        if t < self.run.num_archived and self.turn.state.get(_key(b"t/o", self.run.run, t)) is None:
            raise Refusal("RoundArchived", self.run.run, t, self.run.num_archived)
        if t not in self._rounds:
            self._rounds[t] = self._load(b"t/o", _ROUND, t)
        return self._rounds[t]

    def round(self, t: int) -> Round:
        """Return a round, or refuse with UnknownRound."""
        found = self.get_round(t)
        if found is None:
            raise Refusal("UnknownRound", self.run.run, t)
        return found

    def get_stale_round(self, t: int) -> Round | None:
        """Return what a reverted round left behind, None where there is nothing."""
        value = self.turn.state.get(_key(b"t/o", self.run.run, t))
        return _ROUND.decode(value) if value is not None and t >= self.run.num_opened else None

    def add_round(self, round_: Round, participants: tuple[Address, ...]) -> None:
        """Add a new round; ``run.num_opened`` has been raised."""
        self._rounds[round_.round] = round_
        self._participants[round_.round] = participants
        self.turn.state.set(_key(b"t/V", self.run.run, round_.round), b"".join(participants))

    def get_unsettled(self) -> list[Round]:
        """Return the rounds that are open or undecided, oldest first; at most overlap + 1."""
        return [self.round(t) for t in range(self.run.num_settled, self.run.num_opened)]

    def is_settled(self, t: int) -> bool:
        """Whether round t is FINAL or VOID; what is before the first round counts as settled."""
        return t < self.run.num_settled

    def get_participants(self, t: int) -> tuple[Address, ...]:
        """Return V(t)."""
        if t not in self._participants:
            joined = self._get_joined_participants(t)
            self._participants[t] = tuple(
                Address(joined[start : start + _ADDRESS_BYTES]) for start in range(0, len(joined), _ADDRESS_BYTES)
            )
        return self._participants[t]

    def _get_joined_participants(self, t: int) -> bytes:
        value = self.turn.state.get(_key(b"t/V", self.run.run, t))
        assert value is not None, "an opened round has participants"
        return value

    def get_position(self, t: int, worker: Address) -> int | None:
        """Return a worker's index in V(t), None where it is not in V."""
        joined = self._get_joined_participants(t)
        start = joined.find(worker)
        while start >= 0 and start % _ADDRESS_BYTES:  # across two addresses
            start = joined.find(worker, start + 1)
        return start // _ADDRESS_BYTES if start >= 0 else None

    # -- the archive

    def get_accumulator(self) -> Accumulator:
        """Return what the rounds that left the state are under."""
        value = self.turn.state.get(_key(b"t/A", self.run.run))
        return _ACCUMULATOR.decode(value) if value is not None else EMPTY_ACCUMULATOR

    def save_accumulator(self, accumulator: Accumulator) -> None:
        """Write it."""
        self.turn.state.set(_key(b"t/A", self.run.run), _ACCUMULATOR.encode(accumulator))

    def take_round(self, round_: Round) -> tuple[bytes, bytes, list[bytes], list[tuple[int, bytes]]]:
        """Remove a settled round's records; return round, participants, updates and (participant, vote).

        What a reverted round or an earlier attempt left under other participants goes without being returned.
        """
        run, t = self.run.run, round_.round
        updates = [self._take(_key(b"t/u", run, t) + bytes([position])) for position in round_.order]
        votes = [(position, self._take(_key(b"t/v", run, t) + bytes([position]))) for position in round_.voters]
        for prefix in (_key(b"t/u", run, t), _key(b"t/v", run, t)):
            for key, _ in self.turn.state.iterate(prefix, prefix + b"\xff\xff"):
                self.turn.state.delete(key)
        taken = self._take(_key(b"t/o", run, t)), self._take(_key(b"t/V", run, t)), updates, votes
        self._rounds.pop(t, None)
        self._participants.pop(t, None)
        return taken

    def forget_version(self, version: int, *, stale_evaluation: int) -> None:
        """Remove a version's root and old checkpoint, an evaluation of another root, and one that is too old."""
        run, state = self.run.run, self.turn.state
        if version in self.get_evaluated(version, version + 1) and self.get_evaluation(version) is None:
            state.delete(_key(b"t/e", run, version))
        checkpoint = self.get_checkpoint(version)
        if checkpoint is not None and checkpoint.state == CheckpointState.SUPERSEDED:
            state.delete(_key(b"t/k", run, version))
        if version > 0:  # genesis' root is asked for by everybody who joins
            state.delete(_key(b"t/R", run, version))
        if stale_evaluation >= 0:
            state.delete(_key(b"t/e", run, stale_evaluation))

    def _take(self, key: bytes) -> bytes:
        value = self.turn.state.get(key)
        assert value is not None, "a record that another one names exists"
        self.turn.state.delete(key)
        return value

    # -- updates and votes, keyed by round and participant

    def get_update(self, t: int, position: int) -> Update:
        """Return a recorded update."""
        return self._load(b"t/u", _UPDATE, t, tail=bytes([position]))

    def save_update(self, t: int, position: int, update: Update) -> None:
        """Write an update."""
        self.turn.state.set(_key(b"t/u", self.run.run, t) + bytes([position]), _UPDATE.encode(update))

    def get_vote(self, t: int, position: int) -> Vote:
        """Return a recorded vote."""
        return self._load(b"t/v", _VOTE, t, tail=bytes([position]))

    def save_vote(self, t: int, position: int, vote: Vote) -> None:
        """Write a vote."""
        self.turn.state.set(_key(b"t/v", self.run.run, t) + bytes([position]), _VOTE.encode(vote))

    # -- members

    def get_member(self, worker: Address) -> Member | None:
        """Return a member, None where the worker never joined."""
        if worker not in self._members:
            key = _key(b"t/m", self.run.run) + worker
            value = self.turn.state.get(key)
            if value is None:
                return None
            self._loaded[key] = value
            self._members[worker] = _MEMBER.decode(value)
        return self._members[worker]

    def member(self, worker: Address) -> Member:
        """Return a member, or refuse with NotMember."""
        found = self.get_member(worker)
        if found is None:
            raise Refusal("NotMember", self.run.run, worker)
        return found

    def add_member(self, member: Member) -> None:
        """Add a worker that never joined before."""
        self.turn.state.set(_key(b"t/i", self.run.run, self.run.num_members), member.worker)
        self.run.num_members += 1
        self._members[member.worker] = member

    def get_members(self) -> list[Member]:
        """Return all members in order of joining."""
        workers = [self.turn.state.get(_key(b"t/i", self.run.run, index)) for index in range(self.run.num_members)]
        return [self.member(Address(worker)) for worker in workers if worker is not None]

    @property
    def roster(self) -> list[Address]:
        """READY and ACTIVE members, in the order in which they became eligible."""
        if self._roster is None:
            value = self.turn.state.get(_key(b"t/E", self.run.run)) or b""
            self._was_roster = value
            self._roster = [
                Address(value[start : start + _ADDRESS_BYTES]) for start in range(0, len(value), _ADDRESS_BYTES)
            ]
        return self._roster

    def is_allowed(self, worker: Address) -> bool:
        """Whether the allow-list has the worker."""
        return self.turn.state.get(_key(b"t/a", self.run.run) + worker) is not None

    def set_allowed(self, worker: Address, is_allowed: bool) -> None:
        """Change the allow-list."""
        key = _key(b"t/a", self.run.run) + worker
        if is_allowed:
            self.turn.state.set(key, b"\1")
        else:
            self.turn.state.delete(key)

    # -- roots, checkpoints, evaluations, recipe

    def get_root(self, version: int) -> Root | None:
        """Return the agreed root of a version, None beyond the head."""
        if not 0 <= version <= self.run.num_settled:
            return None
        value = self.turn.state.get(_key(b"t/R", self.run.run, version))
        return Root(value) if value is not None else None

    def set_root(self, version: int, root: Root) -> None:
        """Write the agreed root of a version."""
        self.turn.state.set(_key(b"t/R", self.run.run, version), root)

    def get_checkpoint(self, version: int) -> Checkpoint | None:
        """Return a checkpoint, None where there is none or its version was reverted."""
        if version > self.run.num_settled:
            return None
        value = self.turn.state.get(_key(b"t/k", self.run.run, version))
        return _CHECKPOINT.decode(value) if value is not None else None

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint."""
        self.turn.state.set(_key(b"t/k", self.run.run, checkpoint.version), _CHECKPOINT.encode(checkpoint))

    def delete_checkpoint(self, version: int) -> None:
        """Remove a checkpoint whose version was reverted."""
        self.turn.state.delete(_key(b"t/k", self.run.run, version))

    def get_evaluation(self, version: int) -> Evaluation | None:
        """Return the evaluation of a version, None where there is none of its agreed root."""
        value = self.turn.state.get(_key(b"t/e", self.run.run, version)) if version <= self.run.num_settled else None
        if value is None:
            return None
        evaluation = _EVALUATION.decode(value)
        is_agreed = version < self.run.num_archived or evaluation.root == self.get_root(version)
        return evaluation if is_agreed else None

    def save_evaluation(self, version: int, evaluation: Evaluation) -> None:
        """Write an evaluation."""
        self.turn.state.set(_key(b"t/e", self.run.run, version), _EVALUATION.encode(evaluation))

    def get_evaluated(self, start: int, stop: int) -> list[int]:
        """Return the versions in [start, stop) that have an evaluation."""
        return list(self.iterate_evaluated(start, stop))

    def iterate_evaluated(self, start: int, stop: int) -> Iterator[int]:
        """Yield the versions in [start, stop) that have an evaluation."""
        prefix = _key(b"t/e", self.run.run)
        for key, _ in self.turn.state.iterate(_key(b"t/e", self.run.run, start), _key(b"t/e", self.run.run, stop)):
            yield int.from_bytes(key[len(prefix) :], "big")

    def get_recipe(self) -> bytes:
        """Return the recipe."""
        value = self.turn.state.get(_key(b"t/x", self.run.run))
        assert value is not None
        return value

    @property
    def last(self) -> LastRound:
        """Who was accepted and who voted last."""
        if self._last is None:
            value = self.turn.state.get(_key(b"t/L", self.run.run))
            self._last = _LAST_ROUND.decode(value) if value is not None else LastRound(accepted=(), voters=())
        return self._last

    # -- the end of the turn

    def emit(self, name: str, *values: object) -> None:
        """Record an event of this run; the run id comes first."""
        self.turn.emit(TRAINING, name, self.run.run, *values)

    def save(self, *, due_height: int) -> None:
        """Write what has changed and put the run into the due index (0: nothing to wait for)."""
        run, state = self.run, self.turn.state
        if due_height != run.due_height:
            if run.due_height:
                state.delete(_key(DUE_PREFIX, run.due_height, run.run))
            if due_height:
                state.set(_key(DUE_PREFIX, due_height, run.run), b"")
            run.due_height = due_height
        self._store(_key(b"t/r", run.run), _RUN.encode(run))
        for t, round_ in self._rounds.items():
            if t < run.num_opened:  # a reverted round keeps what it was
                self._store(_key(b"t/o", run.run, t), _ROUND.encode(round_))
        for worker, member in self._members.items():
            self._store(_key(b"t/m", run.run) + worker, _MEMBER.encode(member))
        if self._roster is not None and (joined := b"".join(self._roster)) != self._was_roster:
            state.set(_key(b"t/E", run.run), joined)
        if self._last is not None:
            self._store(_key(b"t/L", run.run), _LAST_ROUND.encode(self._last))

    def touch(self) -> None:
        """Write what a call has changed; the run moves at the end of this block."""
        due = self.run.due_height
        self.save(due_height=min(due, self.turn.height) if due else self.turn.height)

    def _store(self, key: bytes, value: bytes) -> None:
        if self._loaded.get(key) != value:
            self.turn.state.set(key, value)
            self._loaded[key] = value

    def _load(self, prefix: bytes, codec: RecordCodec[_R], number: int, tail: bytes = b"") -> _R:
        key = _key(prefix, self.run.run, number) + tail
        value = self.turn.state.get(key)
        assert value is not None, "a record that another one names exists"
        self._loaded[key] = value
        return codec.decode(value)


def get_due_runs(state: Overlay, height: int, limit: int) -> list[int]:
    """Return the runs that are due, the longest waiting first, at most ``limit``."""
    due = state.iterate(DUE_PREFIX, DUE_PREFIX + (height + 1).to_bytes(8, "big"))
    return [int.from_bytes(key[-8:], "big") for _, (key, _) in zip(range(limit), due, strict=False)]


def _key(prefix: bytes, run: int, number: int | None = None) -> bytes:
    key = prefix + run.to_bytes(8, "big")
    return key if number is None else key + number.to_bytes(8, "big")
