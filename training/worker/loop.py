"""The main thread of a worker: inner steps, one round after another (DESIGN 4.1 and 7).

Invariants: the settled rounds up to base(t) enter the weights between send(t-1) and t's first inner step, and
at no other time; nothing is sent before worker state and payload are durable; a worker past base(t) sits t out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from contracts.bindings.types import MemberState, RoundInfo, RunState, UpdateFate
from training.core.errors import NonFiniteUpdateError
from training.worker.agreement import Agreement, Outcome
from training.worker.durable import is_disk_full
from training.worker.errors import ChainSilent, RunIdle
from training.worker.exchange import Exchange
from training.worker.journal import Journal, JournalContents, SentUpdate
from training.worker.outbox import Outbox
from training.worker.ports import LocalEngine, Rules
from training.worker.source import compute_digest
from training.worker.trace import EventKind, Trace, TraceEvent
from training.worker.view import (
    SEE_RUN,
    ChainView,
    Standing,
    advise_wait,
    can_do_without_update,
    choose_round,
    explain_wait,
    is_closed,
    is_time_to_send,
    is_to_wait_without_update,
)
from training.worker.watcher import Watcher

LOG = logging.getLogger("trainer")

WAIT_SECONDS = 0.5
"""Longest single wait, so that stop, failures and patience are looked at often."""

FINISH_SECONDS = 60.0
"""How long a finished worker stays to see the last checkpoint certified."""

SAVE_SECONDS = 600.0
"""Between two saves of inner steps that are not sent: what a kill costs at most. Shorter rounds save as they send."""

SAVE_SHARE = 0.02
"""Of the time, at most, that those saves take."""

BRIEF_SECONDS = 5.0
"""A wait for a settlement that is not worth a line."""

SAY_AGAIN_SECONDS = 30.0
"""Between two equal lines about what is waited for."""


class LoopEnd(StrEnum):
    """Why the loop has ended."""

    FINISHED = "finished"
    """All rounds are settled."""
    STOPPED = "stopped"
    """Somebody asked; state saved, membership kept."""
    LEFT = "left"
    """The member has left the run."""
    RESET = "reset"
    """The agreed state must be restored from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait before giving up."""

    chain_seconds: float = 3600.0
    """Without an answer from any URL."""
    idle_seconds: float = 86_400.0
    """Without a round for us."""
    first_contact_seconds: float = 60.0
    """Without an answer of a chain that this worker has never reached: a URL may be mistyped."""


@dataclass(slots=True)
class _Progress:
    """Inner steps since the last send."""

    round: int = -1
    round_steps: int = 0
    tokens: int = 0
    steps: int = 0
    loss_sum: int = 0

    def add(self, round_index: int, steps: int, tokens: int, loss_micro: int) -> None:
        """Count a stretch of inner steps."""
        if round_index != self.round:
            self.round, self.round_steps = round_index, 0
        self.round_steps += steps
        self.steps += steps
        self.tokens += tokens
        self.loss_sum += steps * loss_micro

    @property
    def loss_micro(self) -> int:
        """Mean training loss, micronats."""
        return self.loss_sum // self.steps if self.steps else 0


class RoundLoop:
    """Trains until the run has finished, somebody asks to stop, or the session must start again."""

    def __init__(
        self,
        *,
        me: str,
        engine: LocalEngine,
        rules: Rules,
        agreement: Agreement,
        watcher: Watcher,
        outbox: Outbox,
        exchange: Exchange,
        journal: Journal,
        trace: Trace,
        stop: threading.Event,
        patience: Patience,
        last_sent_round: int,
        is_fresh: bool = False,
    ) -> None:
        """Take over an engine that stands where the journal says; a fresh one has nothing of its own to send yet."""
        contents = journal.contents
        self._me = me
        self._engine = engine
        self._rules = rules
        self._agreement = agreement
        self._watcher = watcher
        self._outbox = outbox
        self._exchange = exchange
        self._journal = journal
        self._trace = trace
        self._stop = stop
        self._patience = patience
        self._last_sent = last_sent_round
        self._is_behind = False
        self._is_fresh = is_fresh
        self._progress = _Progress()
        if contents.trained_round >= 0:
            self._progress.add(
                contents.trained_round, contents.trained_steps, contents.trained_tokens, contents.trained_loss_micro
            )
        self._num_saves = 0
        self._saved_at = time.monotonic()
        self._save_interval_seconds = SAVE_SECONDS
        self._idle_since = time.monotonic()
        self._said = ("", float("-inf"))
        self._waiting: tuple[float, str] | None = None

    def run(self) -> LoopEnd:
        """Go through the rounds."""
        while True:
            end = self._step()
            if end is not None:
                if end in (LoopEnd.STOPPED, LoopEnd.FINISHED, LoopEnd.LEFT):
                    self._save_unsent("stopped")
                return end

    def _step(self) -> LoopEnd | None:
        """Do one round, or wait a little."""
        self._check()
        if self._stop.is_set():
            return LoopEnd.STOPPED
        if self._exchange.reset_reason:
            return LoopEnd.RESET
        view = self._watcher.latest()
        if view is None:
            is_silent = self._watcher.get_silence_seconds() > 0
            self._wait(None, "the chain gives no answer" if is_silent else "reading the run from the chain")
            return None
        if view.member.state is MemberState.LEFT:
            return LoopEnd.LEFT
        if view.run.state is RunState.FINISHED:
            return self._finish(view)
        standing = Standing(
            me=self._me, version=self._engine.version, last_sent_round=self._last_sent, is_behind=self._is_behind
        )
        info = choose_round(view, standing)
        if info is None:
            # No open round is ours, and one that opens later has a base at least at this head.
            self._apply_up_to(min(self._agreement.version, view.run.head_version))
            self._wait(view, explain_wait(view, standing))
            return None
        self._apply_up_to(min(self._agreement.version, info.base_version))
        if self._engine.version < info.base_version:
            self._wait_for_base(info)
            return None
        return self._train_round(info, view)

    def _train_round(self, info: RoundInfo, view: ChainView) -> LoopEnd | None:
        t = info.round
        is_flush = t >= view.run.params.num_rounds  # the owner may have shortened the run
        num_steps = 0 if is_flush else self._rules.num_steps(t, info.local_steps)
        if num_steps == 0 and self._is_fresh and is_to_wait_without_update(view, info):
            self._wait(view, f"no inner step of ours to send in round {t}: the others' updates come first")
            return None
        self._record_wait(t)
        self._idle_since = time.monotonic()
        if num_steps > 0:
            self._make_steps(info, view, num_steps)
        self._check()
        if self._stop.is_set():
            return LoopEnd.STOPPED
        if self._exchange.reset_reason:
            return LoopEnd.RESET
        newest = self._watcher.latest()
        assert newest is not None
        if is_closed(newest, t):
            LOG.warning("round %d closed without us; what it has trained stays in the weights for a later one", t)
            self._is_behind = True
            return None
        if self._is_fresh and can_do_without_update(newest, t):
            LOG.info("round %d: no inner step since we joined, so there is no update of ours to be paid for", t)
            self._last_sent = t
            return None
        return self._send(info)

    def _make_steps(self, info: RoundInfo, view: ChainView, num_steps: int) -> None:
        """Make a round's inner steps; those of a long round are saved on the way, so that a kill costs minutes."""
        t = info.round
        if not self._progress.steps:
            self._saved_at = time.monotonic()
        while True:
            due_at = self._saved_at + self._save_interval_seconds

            def should_pause(due_at: float = due_at) -> bool:
                return self._should_stop(t) or time.monotonic() >= due_at

            with self._trace.span(EventKind.TRAIN, t) as span:
                report = self._engine.train(
                    t,
                    num_steps,
                    should_pause,
                    data_seed=info.data_seed,
                    participants=[bytes.fromhex(member[2:]) for member in view.participants[t]],
                )
                span.counters = {
                    "steps": report.steps,
                    "tokens": report.tokens,
                    "loss_micro": report.loss_micro,
                    "skipped": report.skipped,
                    "global_step": report.global_step,
                    "rate_nano": report.rate_nano,
                }
            self._progress.add(t, report.steps, report.tokens, report.loss_micro)
            self._is_fresh = self._is_fresh and report.steps == 0
            if time.monotonic() < due_at or self._should_stop(t):
                return
            self._save_unsent("training")

    def _send(self, info: RoundInfo) -> LoopEnd | None:
        t = info.round
        try:
            with self._trace.span(EventKind.COMPRESS, t) as span:
                payload = self._engine.send(t, rank=info.rank)
                span.num_bytes = len(payload)
                is_recorded = self._record_if_room(lambda: self._record_sent(info, payload), f"round {t}")
        except NonFiniteUpdateError as error:
            LOG.error("round %d: %s", t, error)
            self._exchange.reset_reason = f"local weights are not finite any more ({error})"
            return LoopEnd.RESET
        LOG.info(
            "round %d: %s, %s %d bytes",
            t,
            self._describe_training(t),
            "sending" if is_recorded else "not made durable, so not sent and back to error feedback later:",
            len(payload),
        )
        self._last_sent = t
        self._is_behind = False
        self._progress = _Progress()
        if is_recorded:
            self._outbox.wake()
        return None

    def _describe_training(self, round_index: int) -> str:
        """Say what an update was made from; losses are in the unit that was said at the start."""
        progress = self._progress
        if not progress.steps:
            return "no inner steps, what was left over"
        steps = progress.round_steps if progress.round == round_index else 0
        return f"{steps} step{'s' if steps != 1 else ''}, training loss {progress.loss_micro / 1_000_000:.4f}"

    def _record_sent(self, info: RoundInfo, payload: bytes) -> None:
        digest = compute_digest(payload).hex()
        update = SentUpdate(
            round=info.round,
            base_root=info.base_root.hex(),
            digest=digest,
            payload_file=f"{info.round}-{digest}",
            tokens=self._progress.tokens,
            loss_micro=self._progress.loss_micro,
        )
        version = self._engine.version

        def change(contents: JournalContents) -> JournalContents:
            kept = tuple(item for item in contents.sent if item.round >= version and item.round != update.round)
            return replace(
                contents,
                sent=(*kept, update),
                last_sent_round=info.round,
                trained_round=-1,
                trained_steps=0,
                trained_tokens=0,
                trained_loss_micro=0,
            )

        self._journal.record_state(
            self._engine.save,
            name=self._name_state(f"sent-{info.round}"),
            change=change,
            payload=(update.payload_file, payload),
        )

    def _save_unsent(self, what: str) -> None:
        """Save the weights as they are, with the inner steps that are not sent yet."""
        began = time.monotonic()
        progress = self._progress
        version = self._engine.version

        def change(contents: JournalContents) -> JournalContents:
            return replace(
                contents,
                sent=tuple(item for item in contents.sent if item.round >= version),
                last_sent_round=self._last_sent,
                trained_round=progress.round,
                trained_steps=progress.round_steps,
                trained_tokens=progress.tokens,
                trained_loss_micro=progress.loss_micro,
            )

        def record() -> None:
            self._journal.record_state(self._engine.save, name=self._name_state(what), change=change)

        self._record_if_room(record, "the last inner steps")
        self._saved_at = time.monotonic()
        self._save_interval_seconds = max(SAVE_SECONDS, (self._saved_at - began) / SAVE_SHARE)

    def _record_if_room(self, record: Callable[[], None], what: str) -> bool:
        """Make something durable; on a full disk say so, keep the last good state, and go on (case 24)."""
        try:
            record()
        except OSError as error:
            if not is_disk_full(error):
                raise
            advice = "free some: a crash now would cost what was not saved"
            LOG.error("%s: no room in %s (%s); %s", what, self._journal.home, error.strerror, advice)
            return False
        return True

    def _name_state(self, what: str) -> str:
        self._num_saves += 1
        return f"{what}-{time.time_ns():x}-{self._num_saves}"

    def _apply_up_to(self, version: int) -> None:
        first = self._engine.version
        if version <= first:
            return
        with self._trace.span(EventKind.APPLY, version - 1) as span:
            for outcome in self._agreement.take_outcomes(first, version):
                own_accepted = self._judge_own(outcome)
                self._engine.apply(outcome.settlement, outcome.round, own_accepted)
                if own_accepted is not None:
                    fate = "accepted" if own_accepted else "returned"
                    span.counters[fate] = span.counters.get(fate, 0) + 1
                if own_accepted is False:
                    why = outcome.own.reason.name.lower().replace("_", " ")
                    said = f" ({why})" if outcome.own.fate is UpdateFate.REFUSED else ""
                    LOG.warning(
                        "round %d: our update was not counted%s; it returns to error feedback", outcome.round, said
                    )

    def _judge_own(self, outcome: Outcome) -> bool | None:
        """Say whether the update that left these weights counted; None where none has left them.

        An update that another process of the same key sent in the round is not the one in flight here.
        """
        if outcome.round not in self._engine.in_flight:
            return None
        sent = self._journal.find_sent(outcome.round)
        is_same = sent is None or sent.digest == outcome.own.digest.hex()
        return is_same and outcome.own.fate is UpdateFate.ACCEPTED

    def _should_stop(self, round_index: int) -> bool:
        if self._stop.is_set() or self._exchange.reset_reason:
            return True
        view = self._watcher.latest()
        if view is None:
            return False
        info = view.rounds.get(round_index)
        return is_closed(view, round_index) or (info is not None and is_time_to_send(view, info))

    def _finish(self, view: ChainView) -> LoopEnd | None:
        total = view.run.num_rounds_total
        if self._agreement.version < total:
            self._wait(view, "the run has finished; settling the last rounds")
            return None
        self._apply_up_to(total)
        is_served = view.run.certified_version >= total and self._exchange.served_version >= total
        if not is_served and time.monotonic() < self._idle_since + FINISH_SECONDS:
            self._wait(view, "the run has finished; storing the last checkpoint")
            return None
        return LoopEnd.FINISHED

    def _wait_for_base(self, info: RoundInfo) -> None:
        """Wait for a settlement; mostly it is a matter of moments, and not worth a line."""
        reason = f"settling up to version {info.base_version}"
        began, _ = self._waiting or (time.monotonic(), "")
        self._note_wait(reason, is_to_say=time.monotonic() > began + BRIEF_SECONDS)
        self._agreement.wait_for_version(min(info.base_version, self._engine.version + 1), WAIT_SECONDS)

    def _wait(self, view: ChainView | None, reason: str) -> None:
        self._note_wait(reason, next_step=SEE_RUN if view is None else advise_wait(view))
        self._watcher.wait_for_newer(view, WAIT_SECONDS)

    def _note_wait(self, reason: str, *, is_to_say: bool = True, next_step: str = SEE_RUN) -> None:
        """Say what is waited for, and give up where that has taken too long."""
        now = time.monotonic()
        if is_to_say and (reason != self._said[0] or now > self._said[1] + SAY_AGAIN_SECONDS):
            self._said = (reason, now)
            LOG.info("waiting: %s", reason)
        if self._watcher.get_silence_seconds() > self._patience.chain_seconds:
            raise ChainSilent(
                f"no chain URL has answered for {self._patience.chain_seconds:.0f} s",
                next_step="check --chain, then start again: nothing is lost",
            )
        if now > self._idle_since + self._patience.idle_seconds:
            raise RunIdle(
                f"no round for us in {self._patience.idle_seconds:.0f} s: {reason}",
                next_step=next_step,
            )
        if self._waiting is None:
            self._waiting = (time.monotonic(), reason)

    def _record_wait(self, round_index: int) -> None:
        """Write one event for the whole wait before a round."""
        if self._waiting is not None:
            start, reason = self._waiting
            self._waiting = None
            self._trace.record(
                TraceEvent(
                    kind=EventKind.WAIT,
                    round=round_index,
                    start_seconds=start,
                    end_seconds=time.monotonic(),
                    wall_seconds=time.time(),
                    note=reason,
                )
            )

    def _check(self) -> None:
        self._outbox.check()
        self._exchange.check()
