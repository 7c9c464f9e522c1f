"""The agreed state as this worker computes it, round after round (DESIGN 4.1, 7).

Invariant: ``state`` is the state of ``version`` and its root is the chain's root of that version.  A round
that is being attested is computed ahead and voted for; it becomes ours only when the chain says FINAL with
the same root.  Each step is an ``Outcome`` that the main thread later applies to the local weights.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.bindings.types import RefusalReason, RoundInfo, RoundState, Update, UpdateFate
from training.worker.errors import AgreedRootMismatch, StateUnavailable
from training.worker.ports import ChainPort, Rules, Settled
from training.worker.refusals import Refusals
from training.worker.source import Fetched, PayloadSource, compute_mask
from training.worker.trace import EventKind, Trace
from training.worker.view import SETTLED_STATES, ChainView

LOG = logging.getLogger("trainer")

MAX_AHEAD = 64
"""Outcomes kept for the main thread; a main thread further behind stops the agreement until it has applied some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a settled round does to the local weights."""

    round: int
    """t."""
    settlement: Settled
    """The state after it."""
    own: Update
    """Our update as the chain has it; fate NONE where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """How we would vote on the round that is being attested."""

    round: int
    """t."""
    retries: int
    """The attempt."""
    root: bytes
    """Root after the round; zero with ``missing``."""
    refused: int
    """Bit i: update i did not validate."""
    missing: int
    """Bit i: payload i cannot be had."""


class Agreement:
    """Follows the agreed state; one thread advances it, another takes outcomes."""

    def __init__(
        self,
        *,
        chain: ChainPort,
        rules: Rules,
        source: PayloadSource,
        trace: Trace,
        run: int,
        me: str,
        state: Any,
        version: int,
    ) -> None:
        """Start from the state of a version whose root was checked."""
        self._chain = chain
        self._rules = rules
        self._source = source
        self._trace = trace
        self._run = run
        self._me = me
        self._lock = threading.Condition()
        self._state = state
        self._version = version
        self._root: bytes = state.root()
        self._outcomes: dict[int, Outcome] = {}
        self._candidate: tuple[int, tuple[int, ...], Settled, bytes] | None = None
        self._kept: dict[int, Any] = {version: state}
        self._prefetched: dict[int, int] = {}
        self._refusals = Refusals(me)

    @property
    def version(self) -> int:
        """Settled rounds in the state."""
        with self._lock:
            return self._version

    @property
    def root(self) -> bytes:
        """Root of the state."""
        with self._lock:
            return self._root

    def get_state(self) -> tuple[Any, int]:
        """Return the state and its version."""
        with self._lock:
            return self._state, self._version

    def get_kept(self, version: int) -> Any | None:
        """Return the state of a checkpoint version, if we still have it."""
        with self._lock:
            return self._kept.get(version)

    def take_outcomes(self, first: int, stop: int) -> list[Outcome]:
        """Return the outcomes of rounds first..stop-1 and forget those before; all of them must be there."""
        with self._lock:
            taken = [self._outcomes[index] for index in range(first, stop)]
            for index in [index for index in self._outcomes if index < stop]:
                del self._outcomes[index]
            self._lock.notify_all()
            return taken

    def forget_outcomes(self) -> None:
        """Drop what nobody will apply: the local weights start at this very state."""
        with self._lock:
            self._outcomes.clear()

    def wait_for_version(self, version: int, timeout_seconds: float) -> bool:
        """Wait until the state has reached a version; False after the timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: self._version >= version, timeout_seconds)

    def adopt(self, view: ChainView) -> bool:
        """Take over the next round if the chain has settled it and its payloads are to be had.

        Returns whether the state has advanced.  Raises ``AgreedRootMismatch`` when our outcome is another one.
        """
        with self._lock:
            version = self._version
            if version >= view.run.head_version or len(self._outcomes) >= MAX_AHEAD:
                return False
        info = self._chain.training.round(self._run, version)
        if info.state not in SETTLED_STATES:
            return False
        if info.state is RoundState.VOID:
            own = self._chain.training.update(self._run, version, self._me)
            self._advance(info, self._rules.skip(self._state), own, view)
            return True
        updates = self._chain.training.updates(self._run, version)
        accepted = [(index, update) for index, update in enumerate(updates) if update.fate is UpdateFate.ACCEPTED]
        settled = self._find_candidate(info, updates) or self._settle(info, accepted, self._state)
        own = self._chain.training.update(self._run, version, self._me)
        self._explain_own(info, own)
        self._advance(info, settled, own, view)
        return True

    def prepare_ballot(self, view: ChainView, *, must_decide: bool) -> Ballot | None:
        """Compute the vote on the round that follows the state, if it is being attested.

        Payloads that cannot be had give None, or with ``must_decide`` the ballot that reports them.
        """
        version = self.version
        info = view.rounds.get(version)
        if info is None or info.state not in (RoundState.ATTEST, RoundState.DISPUTE):
            return None
        updates = self._chain.training.updates(self._run, version)
        candidates = [(index, update) for index, update in enumerate(updates) if update.fate is UpdateFate.PENDING]
        if not candidates:
            return None
        indices = tuple(index for index, _ in candidates)
        fetched = self._fetch(info, candidates, self._state)
        if fetched.missing:
            if not must_decide or info.state is RoundState.DISPUTE:
                return None
            mask = compute_mask(list(fetched.missing))
            return Ballot(round=version, retries=info.retries, root=bytes(32), refused=0, missing=mask)
        if self._candidate is None or self._candidate[:2] != (version, indices):
            settled = self._compute(info, [fetched.payloads[index] for index in indices], self._state)
            self._candidate = (version, indices, settled, settled.state.root())
            self._say_refused(info, candidates, fetched, settled)
        _, _, settled, root = self._candidate
        refused = compute_mask([index for bit, index in enumerate(indices) if settled.refused >> bit & 1])
        return Ballot(round=version, retries=info.retries, root=root, refused=refused, missing=0)

    def prefetch(self, view: ChainView) -> None:
        """Fetch what is committed in rounds that are still open, so that nothing is left to do at the vote."""
        for index, info in view.rounds.items():
            is_new = info.num_committed > self._prefetched.get(index, 0)
            if is_new and info.state in (RoundState.OPEN, RoundState.REVEAL, RoundState.ATTEST):
                updates = self._chain.training.updates(self._run, index)
                pending = [(i, update) for i, update in enumerate(updates) if update.fate is UpdateFate.PENDING]
                if not self._fetch(info, pending, self._state).missing:
                    self._prefetched[index] = len(updates)
        for index in [index for index in self._prefetched if index < view.run.num_settled]:
            del self._prefetched[index]

    def replay(self, state: Any, version: int, stop: int) -> Any:
        """Return the state of version ``stop`` from the one of ``version``, by the settled rounds between."""
        for index in range(version, stop):
            info = self._chain.training.round(self._run, index)
            if info.state is RoundState.FINAL:
                updates = self._chain.training.updates(self._run, index)
                accepted = [(i, update) for i, update in enumerate(updates) if update.fate is UpdateFate.ACCEPTED]
                state = self._settle(info, accepted, state).state
            root = state.root()
            if root != info.root:
                raise AgreedRootMismatch(index, info.root, root)
        return state

    def _find_candidate(self, info: RoundInfo, updates: Sequence[Update]) -> Settled | None:
        """Return what we voted for, if that is what the chain has settled."""
        if self._candidate is None or self._candidate[0] != info.round:
            return None
        _, indices, settled, root = self._candidate
        counted = {index for bit, index in enumerate(indices) if not settled.refused >> bit & 1}
        accepted = {index for index, update in enumerate(updates) if update.fate is UpdateFate.ACCEPTED}
        return settled if root == info.root and counted == accepted else None

    def _settle(self, info: RoundInfo, accepted: Sequence[tuple[int, Update]], state: Any) -> Settled:
        fetched = self._fetch(info, accepted, state)
        if fetched.missing:
            reasons = "; ".join(f"update {index}: {reason}" for index, reason in sorted(fetched.missing.items()))
            raise StateUnavailable(
                f"round {info.round} is settled but its payloads cannot be had: {reasons}",
                next_step="see `storage stat` for the nodes; the worker goes on as soon as enough of them answer",
            )
        settled = self._compute(info, [fetched.payloads[index] for index, _ in accepted], state)
        if settled.refused:
            LOG.warning("round %d: we would refuse updates that were accepted (%x)", info.round, settled.refused)
            self._say_refused(info, accepted, fetched, settled)
        return settled

    def _say_refused(
        self, info: RoundInfo, updates: Sequence[tuple[int, Update]], fetched: Fetched, settled: Settled
    ) -> None:
        """Say once which updates we refuse and why; of what never came whole, why it didn't."""
        refused = ((*updates[bit], why) for bit, why in settled.reasons)
        self._refusals.say(
            info.round, [(update.member, fetched.refused.get(index, why)) for index, update, why in refused]
        )

    def _explain_own(self, info: RoundInfo, own: Update) -> None:
        """Say why our update was refused as invalid, where no vote of ours has said it: we have its bytes."""
        if own.fate is not UpdateFate.REFUSED or own.reason is not RefusalReason.INVALID_PAYLOAD:
            return
        if self._refusals.has_said(info.round, self._me):
            return
        fetched = self._fetch(info, [(0, own)], self._state)
        if fetched.missing:
            return
        payload = fetched.payloads[0]
        once = self._rules.settle(self._state, info.round, [payload], rank=info.rank, local_steps=info.local_steps)
        self._say_refused(info, [(0, own)], fetched, once)
        if not once.reasons:
            LOG.warning("round %d: our update was refused and is valid here: see that all run one version", info.round)

    def _fetch(self, info: RoundInfo, updates: Sequence[tuple[int, Update]], state: Any) -> Fetched:
        """Fetch payloads; only the state's shapes matter for their length, so any version's will do."""
        num_bytes = self._rules.payload_bytes(state, info.round, rank=info.rank)
        return self._source.fetch(info.round, updates, num_bytes=num_bytes)

    def _compute(self, info: RoundInfo, payloads: Sequence[bytes], state: Any) -> Settled:
        with self._trace.span(EventKind.SETTLE, info.round) as span:
            span.num_bytes = sum(map(len, payloads))
            return self._rules.settle(state, info.round, payloads, rank=info.rank, local_steps=info.local_steps)

    def _advance(self, info: RoundInfo, settled: Settled, own: Update, view: ChainView) -> None:
        root = self._root if settled.state is self._state else settled.state.root()
        if root != info.root:
            raise AgreedRootMismatch(info.round, info.root, root)
        interval = view.run.params.checkpoint_interval
        with self._lock:
            self._state, self._version, self._root = settled.state, info.round + 1, root
            self._outcomes[info.round] = Outcome(round=info.round, settlement=settled, own=own)
            if self._version % interval == 0 or self._version == view.run.num_rounds_total:
                self._kept[self._version] = settled.state
            for version in [v for v in self._kept if v < view.run.certified_version]:
                del self._kept[version]
            self._candidate = None
            self._lock.notify_all()
        self._source.forget_before(view.run.certified_version)
