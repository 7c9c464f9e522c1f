"""What a member owes the run beside its updates: votes, membership, checkpoints, evaluations (DESIGN 4.1).

Each duty looks at the view, does at most one thing, and remembers what it did only to spare the chain
questions: the contract itself refuses what was done before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from contracts.bindings.errors import ContractError, TransactionFailed
from contracts.bindings.types import CheckpointState, MemberState, RunState
from training.worker.agreement import Agreement
from training.worker.errors import PayloadUnavailable
from training.worker.evaluating import Evaluating
from training.worker.ports import ChainPort, PayloadPort, Rules, SenderPort
from training.worker.restore import restore_genesis, restore_version
from training.worker.saying import Said
from training.worker.trace import EventKind, Trace
from training.worker.view import ChainView, compute_checkpoint_versions, compute_rejoin_is_due

LOG = logging.getLogger("trainer")

HOT_TIER = 1
"""Tier of checkpoints (da.core.types.Tier)."""

READY_AGAIN_SECONDS = 5.0
"""Between two ``ready`` transactions while the run holds the opening back."""


CLIENT_NAME = f"archipelago/{metadata.version('archipelago')}"
"""What a member says it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the duties work with."""

    chain: ChainPort
    sender: SenderPort
    payloads: PayloadPort
    rules: Rules
    trace: Trace
    run: int
    evaluation_interval: int
    """A held-out loss is recorded each so many versions, by one member in turn; 0 for never."""


class Duties:
    """Fulfils them, one call at a time, from one thread."""

    def __init__(self, parts: Parts) -> None:
        """Nothing is done yet."""
        self._parts = parts
        self._said = Said()
        self._voted: tuple[int, int] = (-1, -1)
        self._reported: tuple[int, int] = (-1, -1)
        self._stored: set[tuple[int, int]] = set()
        self._evaluated = -1
        self._evaluating = Evaluating(parts.rules, parts.trace)
        self._ready_at = float("-inf")
        self._joined_at = float("-inf")
        self._opened_seen = (-1, 0)
        self._rebuilt: dict[int, Any] = {}
        self._propose: Callable[[int], tuple[int, int]] | None = None

    def set_proposer(self, propose: Callable[[int], tuple[int, int]]) -> None:
        """Let votes carry ``propose(rank)``: the rank and H that this worker would have; zeros propose nothing."""
        self._propose = propose

    def attest(self, view: ChainView, agreement: Agreement) -> bool:
        """Vote on the round that follows the agreed state; report payloads that cannot be had near the deadline.

        Who has reported may still vote in the same attempt, once the payloads are there.
        """
        t = agreement.version
        info = view.rounds.get(t)
        if info is None or self._voted == (t, info.retries) or not view.is_participant(t, self._parts.sender.address):
            return False
        is_last_call = info.due_height - view.height <= max(2, view.run.params.attest_blocks // 3)
        ballot = agreement.prepare_ballot(view, must_decide=is_last_call)
        if ballot is None or (ballot.missing and self._reported == (t, info.retries)):
            return False
        with self._parts.trace.span(EventKind.ATTEST, t) as span:
            try:
                if ballot.missing:
                    span.note = f"missing {ballot.missing:x}"
                    self._reported = (t, info.retries)
                    self._parts.sender.send("reportMissing", self._parts.run, t, ballot.retries, ballot.missing)
                    LOG.warning("round %d: reported payloads as missing (bits %x)", t, ballot.missing)
                    return True
                choice = (ballot.retries, ballot.root, ballot.refused)
                proposal = (0, 0) if self._propose is None else self._propose(info.rank)
                self._parts.sender.send("attest", self._parts.run, t, *choice, *proposal)
            except (ContractError, TransactionFailed) as error:
                span.note = _name_of(error)
                if _name_of(error) != "AlreadyVoted":
                    # Most often the round has settled meanwhile; the next view says so.
                    LOG.info("round %d: vote not taken: %s", t, error)
                    return False
        self._voted = (t, info.retries)
        return True

    def rejoin(self, view: ChainView) -> bool:
        """Join again after having been dropped, as soon as the chain allows it."""
        if not compute_rejoin_is_due(view) or time.monotonic() < self._joined_at + READY_AGAIN_SECONDS:
            return False
        self._joined_at = time.monotonic()
        try:
            join_run(self._parts.sender, view, self._parts.rules.recipe_digest)
        except (ContractError, TransactionFailed) as error:
            self._say("rejoin", str(error))
            return False
        LOG.info("joined again after having been dropped")
        return True

    def keep_ready(self, view: ChainView, agreement: Agreement) -> bool:
        """Show the agreed root: after joining, and again while the run opens nothing for a while."""
        is_joined = view.member.state is MemberState.JOINED
        if view.member.state not in (MemberState.JOINED, MemberState.READY, MemberState.ACTIVE):
            return False
        if view.run.state not in (RunState.RUNNING, RunState.WAITING):
            return False
        if view.run.num_opened != self._opened_seen[0]:
            self._opened_seen = (view.run.num_opened, view.height)
        is_held = not view.rounds and view.height - self._opened_seen[1] > max(2, view.run.params.round_blocks // 2)
        if not (is_joined or is_held) or agreement.version < view.run.head_version:
            return False
        if time.monotonic() < self._ready_at + (1.0 if is_joined else READY_AGAIN_SECONDS):
            return False
        self._ready_at = time.monotonic()
        try:
            self._parts.sender.send("ready", self._parts.run, agreement.root)
        except (ContractError, TransactionFailed) as error:
            self._say("ready", str(error))
            return False
        if is_joined:
            LOG.info("ready with the root of version %d: in from the next opening on", agreement.version)
        return True

    def store_checkpoint(self, view: ChainView, agreement: Agreement) -> bool:
        """Upload one part of a checkpoint: ours at once, anybody's after the grace blocks."""
        if view.member.state not in (MemberState.READY, MemberState.ACTIVE) and view.run.state is not RunState.FINISHED:
            return False
        self._stored = {(version, part) for version, part in self._stored if version >= view.run.certified_version}
        for version in compute_checkpoint_versions(view.run):
            if version > agreement.version:
                continue
            checkpoint = self._parts.chain.training.checkpoint_at(self._parts.run, version)
            if checkpoint.state not in (CheckpointState.NONE, CheckpointState.OPEN):
                continue
            uploaders = self._parts.chain.training.checkpoint_part_of(self._parts.run, version)
            num_parts = view.run.params.num_checkpoint_parts
            is_anybodys = view.height > checkpoint.height + view.run.params.grace_blocks
            for part in range(num_parts):
                is_there = part < len(checkpoint.blobs) and any(checkpoint.blobs[part])
                is_ours = part < len(uploaders) and uploaders[part] == self._parts.sender.address
                if is_there or (version, part) in self._stored or not (is_ours or is_anybodys):
                    continue
                state = agreement.get_kept(version) or self._rebuild(view, agreement, version)
                if state is not None and self._store_part(view, state, version, part):
                    return True
        return False

    def evaluate(self, view: ChainView, agreement: Agreement) -> None:
        """Evaluate the agreed weights when it is our turn, and record the held-out loss once it is there."""
        if self._evaluating.is_busy:
            ended = self._evaluating.take()
            if ended is None:
                return
            self._record_loss(*ended)  # and on: the newest version's turn may have come meanwhile
        interval = self._parts.evaluation_interval
        state, version = agreement.get_state()
        is_turn = version == view.run.num_rounds_total or (interval > 0 and version % interval == 0)
        if not is_turn or version <= self._evaluated or version != view.run.head_version:
            return
        self._evaluated = version
        members = [
            member.worker
            for member in self._parts.chain.training.members(self._parts.run)
            if member.state in (MemberState.READY, MemberState.ACTIVE)
        ]
        turn = version // max(1, interval)
        if not members or members[turn % len(members)] != self._parts.sender.address:
            return
        self._evaluating.start(state, version)

    @property
    def is_evaluating(self) -> bool:
        """Return whether a loss of ours is still to come."""
        return self._evaluating.is_busy

    def _record_loss(self, version: int, loss: float) -> None:
        LOG.info("version %d: held-out loss of the agreed weights %s", version, self._parts.rules.describe_loss(loss))
        try:
            self._parts.sender.send("recordEvaluation", self._parts.run, version, round(loss * 1_000_000))
        except (ContractError, TransactionFailed) as error:
            if _name_of(error) != "AlreadyEvaluated":
                LOG.warning("evaluation of version %d not recorded: %s", version, error)

    def _rebuild(self, view: ChainView, agreement: Agreement, version: int) -> Any | None:
        """Restore the certified checkpoint and replay up to a version that nobody has kept."""
        if version not in self._rebuilt and view.height > view.run.params.grace_blocks:
            base, parts = view.run.certified_version, self._parts
            if base == 0:
                state = restore_genesis(
                    chain=parts.chain, payloads=parts.payloads, rules=parts.rules, trace=parts.trace, run=view.run
                )
            else:
                state, _ = restore_version(
                    chain=parts.chain,
                    payloads=parts.payloads,
                    rules=parts.rules,
                    trace=parts.trace,
                    run=parts.run,
                    version=base,
                )
            self._rebuilt = {version: agreement.replay(state, base, version)}
        return self._rebuilt.get(version)

    def _store_part(self, view: ChainView, state: Any, version: int, part: int) -> bool:
        params = view.run.params
        data = state.encode_part(part, params.num_checkpoint_parts)
        try:
            with self._parts.trace.span(EventKind.CHECKPOINT, version) as span:
                span.num_bytes = len(data)
                certificate = self._parts.payloads.put(data, tier=HOT_TIER, blocks=params.lease_blocks)
                self._parts.sender.send("checkpoint", self._parts.run, version, part, certificate)
        except PayloadUnavailable as error:
            self._say("checkpoint", f"version {version}, part {part}: the stores do not take it: {error.reason}")
            return False
        except (ContractError, TransactionFailed) as error:
            if _name_of(error) in ("PartAlreadyStored", "WrongRunState", "UnknownVersion"):
                self._stored.add((version, part))
            LOG.info("checkpoint %d, part %d: %s", version, part, error)
            return False
        self._stored.add((version, part))
        LOG.info("checkpoint %d: stored part %d of %d", version, part + 1, params.num_checkpoint_parts)
        return True

    def _say(self, duty: str, reason: str) -> None:
        """Warn of what is in a duty's way; it is tried again in a moment, so a line now and then is enough."""
        if self._said.is_due(f"{duty}: {reason}"):
            LOG.warning("%s: %s", duty, reason)


def join_run(sender: SenderPort, view: ChainView, recipe_digest: bytes) -> None:
    """Send ``join`` with what is missing of the bond; rewards go to the worker key itself."""
    missing = max(0, view.run.params.member_bond - view.member.bond)
    sender.send("join", view.run.run, recipe_digest, sender.address, CLIENT_NAME, value=missing)


def _name_of(error: Exception) -> str:
    return error.name if isinstance(error, ContractError) else type(error).__name__
