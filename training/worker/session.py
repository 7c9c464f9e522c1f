"""One stretch of a worker's life: from a proved state, through rounds, to an end or a reset.

``run_worker`` repeats sessions until one ends for good.  A session starts from the saved worker state, if it
is whole and the run has not left it behind, else from the newest certified checkpoint, and replays the settled
rounds since; then three threads (watcher, outbox, exchange) serve while the calling thread trains.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from contracts.bindings.errors import ChainUnreachable, ContractError, RpcError, TransactionFailed
from contracts.bindings.types import Member, MemberState, RunInfo, RunState, UpdateFate
from training.worker.agreement import Agreement
from training.worker.asking import RETRY_SECONDS, Interrupted, ask_patiently
from training.worker.durable import is_disk_full
from training.worker.duties import Duties, Parts, join_run
from training.worker.errors import (
    SEE_STORES,
    AgreedRootMismatch,
    ChainSilent,
    GaveUp,
    Refused,
    StateUnavailable,
    WorkerStateDamaged,
    WrongRecipe,
    WrongRun,
)
from training.worker.exchange import Exchange
from training.worker.journal import Journal, SentUpdate
from training.worker.loop import LoopEnd, Patience, RoundLoop
from training.worker.opening import check_not_ahead, open_journal
from training.worker.outbox import Outbox
from training.worker.pace import Pace
from training.worker.ports import ChainPort, LocalEngine, PayloadPort, Rules, SenderPort
from training.worker.restore import restore_newest
from training.worker.saying import Said
from training.worker.source import PayloadSource, compute_digest
from training.worker.trace import Trace
from training.worker.view import ChainView, compute_rejoin_is_due, compute_start_version
from training.worker.watcher import POLL_SECONDS, Watcher

LOG = logging.getLogger("trainer")

STOP_SECONDS = 2.0
"""Longest wait for each thread at a stop: three of them and a save stay well under ten seconds."""

MAX_RESETS_IN_ROW = 5
"""Resets without a settled round in between; one more means that this software cannot follow the run."""


ASK_AGAIN = "check --chain, then start again: nothing is lost"
"""Next step where the chain tells too little."""

WANT_SECONDS = 5.0
"""Between two starts from a checkpoint while the stores give none of what is needed."""

T = TypeVar("T")


class _StartAgain(Exception):
    """The agreed state must be restored from a checkpoint once more."""

    def __init__(self, reason: str, *, is_for_want: bool = False) -> None:
        super().__init__(reason)
        self.is_for_want = is_for_want


@dataclass(frozen=True, slots=True, kw_only=True)
class _SessionEnd:
    """How a session has ended."""

    end: LoopEnd
    version: int = 0
    """Settled rounds in the agreed state."""
    root: bytes = bytes(32)
    """Of it; zeros before there was one."""
    reason: str = ""
    """Of a reset."""
    is_for_want: bool = False
    """The reset is for want of payloads or checkpoint parts: what is away now may come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Everything a worker is made of."""

    chain: ChainPort
    sender: SenderPort
    payloads: PayloadPort
    rules: Rules
    trace: Trace
    home: Path
    run: int
    patience: Patience = Patience()
    evaluation_interval: int = 4
    """Versions between two recorded held-out losses."""
    poll_seconds: float = POLL_SECONDS
    """Between two looks at the chain."""
    pace: Pace | None = None
    """What the trace has measured, for proposals; without it H is never proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a worker's process has ended."""

    end: LoopEnd
    run: int
    worker: str
    version: int
    """Settled rounds in the agreed state."""
    root: str
    """Hex root of it; zeros before there was one."""
    accepted: int | None
    """Updates of ours that counted, as the chain has it; None where it gave no answer."""
    refused: int | None
    """Updates of ours that did not."""
    earned: int | None
    """Wei."""
    is_member: bool | None
    """Whether it is one now, also one that was dropped; None where the chain gave no answer."""


def run_worker(parts: WorkerParts, stop: threading.Event) -> Summary:
    """Join the run and train until it has finished or ``stop`` is set.

    Raises a ``WorkerError`` with exit code and next step when it cannot go on.
    """
    try:
        run = _retry(parts, stop, lambda: _read_run(parts))
        genesis_hash = _retry(parts, stop, parts.chain.genesis_hash)
    except Interrupted:
        return summarise(parts.chain, parts.run, parts.sender.address, LoopEnd.STOPPED)
    journal = open_journal(parts.home, genesis_hash, run, parts.sender.address)
    if run.recipe_digest != parts.rules.recipe_digest:
        raise WrongRecipe(run.recipe_digest, parts.rules.recipe_digest)
    resets, last_version, wanting_since = 0, -1, None
    while True:
        done = _run_session(parts, journal, stop)
        if done.end is not LoopEnd.RESET:
            return _summarise(parts, done)
        if done.version > last_version:
            resets, wanting_since = 0, None
        last_version = done.version
        if done.is_for_want:
            wanting_since = time.monotonic() if wanting_since is None else wanting_since
            if time.monotonic() > wanting_since + parts.patience.chain_seconds:
                raise StateUnavailable(done.reason, next_step=SEE_STORES)
            if stop.wait(WANT_SECONDS):
                return _summarise(parts, replace(done, end=LoopEnd.STOPPED))
        else:
            resets += 1
            if resets > MAX_RESETS_IN_ROW:
                raise Refused(
                    f"the agreed state could not be followed at version {done.version}, {resets} times in a row: "
                    f"{done.reason}",
                    next_step="use the same version of the software as the other members",
                )
        journal.reset()


def summarise(
    chain: ChainPort, run: int, address: str, end: LoopEnd, *, version: int = 0, root: bytes = bytes(32)
) -> Summary:
    """Say how a worker has ended, with its account as the chain has it, where that answers."""
    try:
        member: Member | None = chain.training.member(run, address)
    except (ChainUnreachable, RpcError, ContractError):
        member = None
    return Summary(
        end=end,
        run=run,
        worker=address,
        version=version,
        root=root.hex(),
        accepted=member.accepted if member else None,
        refused=member.refused if member else None,
        earned=member.earned if member else None,
        is_member=member.state not in (MemberState.NONE, MemberState.LEFT) if member else None,
    )


def describe_stop(summary: Summary) -> str:
    """Say what a stop leaves behind: also one that came before the worker had joined."""
    if summary.is_member is None:
        return "stopped; the chain gives no answer: nothing was sent to it after the stop"
    if not summary.is_member:
        return f"stopped, no member of run {summary.run}: nothing was joined, nothing was paid"
    return f"stopped; the membership is kept (trainer leave --run {summary.run} ends it)"


def _run_session(parts: WorkerParts, journal: Journal, stop: threading.Event) -> _SessionEnd:
    me = parts.sender.address
    watcher = Watcher(parts.chain, parts.run, me, poll_seconds=parts.poll_seconds)
    try:
        view = _retry(parts, stop, watcher.look)
        if compute_rejoin_is_due(view) and view.run.state is not RunState.FINISHED:
            _retry(parts, stop, lambda: _join(parts, view))
        engine = _retry(parts, stop, lambda: _load_engine(parts, journal, view))
        last_sent_round = _retry(parts, stop, lambda: _find_last_sent(parts, journal, view))
        if engine is not None:
            state, version = engine.canonical, engine.version
        else:
            state, version = _retry(parts, stop, lambda: _restore(parts, view, stop))
    except Interrupted:
        return _SessionEnd(end=LoopEnd.STOPPED)
    except StateUnavailable as error:
        return _SessionEnd(end=LoopEnd.RESET, reason=str(error), is_for_want=True)
    if stop.is_set():  # before a thread begins that sends something
        return _SessionEnd(end=LoopEnd.STOPPED, version=version, root=state.root())
    source = PayloadSource(
        parts.home / "payloads", parts.payloads, parts.trace, find_own=lambda blob: _find_own(journal, blob)
    )
    agreement = Agreement(
        chain=parts.chain,
        rules=parts.rules,
        source=source,
        trace=parts.trace,
        run=parts.run,
        me=me,
        state=state,
        version=version,
    )
    duties = Duties(
        Parts(
            chain=parts.chain,
            sender=parts.sender,
            payloads=parts.payloads,
            rules=parts.rules,
            trace=parts.trace,
            run=parts.run,
            evaluation_interval=parts.evaluation_interval,
        )
    )
    exchange = Exchange(
        agreement=agreement,
        duties=duties,
        sender=parts.sender,
        payloads=parts.payloads,
        trace=parts.trace,
        run=parts.run,
        get_view=watcher.latest,
        refresh=watcher.refresh,
    )
    outbox = Outbox(
        chain=parts.chain,
        sender=parts.sender,
        payloads=parts.payloads,
        journal=journal,
        trace=parts.trace,
        run=parts.run,
        get_view=watcher.latest,
        refresh=watcher.refresh,
    )
    watcher.add_listener(exchange.wake)
    watcher.start()
    outbox.start()
    is_fresh = engine is None
    try:
        if engine is None:
            engine = _catch_up(parts, agreement, watcher, stop, last_sent_round)
            if engine is None:
                return _SessionEnd(end=LoopEnd.STOPPED, version=agreement.version, root=agreement.root)
        trained = engine
        duties.set_proposer(lambda rank: _propose(trained, parts.pace, rank))
        exchange.start()
        end = RoundLoop(
            me=me,
            engine=engine,
            rules=parts.rules,
            agreement=agreement,
            watcher=watcher,
            outbox=outbox,
            exchange=exchange,
            journal=journal,
            trace=parts.trace,
            stop=stop,
            patience=parts.patience,
            last_sent_round=last_sent_round,
            is_fresh=is_fresh,
        ).run()
        reason = exchange.reset_reason if end is LoopEnd.RESET else ""
        if reason:
            LOG.warning("restoring from a checkpoint: %s", reason)
        return _SessionEnd(
            end=end,
            version=agreement.version,
            root=agreement.root,
            reason=reason,
            is_for_want=bool(reason) and exchange.is_reset_for_want,
        )
    except _StartAgain as error:
        LOG.warning("catching up, and restoring from a checkpoint: %s", error)
        return _SessionEnd(
            end=LoopEnd.RESET,
            version=agreement.version,
            root=agreement.root,
            reason=str(error),
            is_for_want=error.is_for_want,
        )
    finally:
        exchange.stop(STOP_SECONDS)
        outbox.stop(STOP_SECONDS)
        watcher.stop(STOP_SECONDS)
        source.close()


def _propose(engine: LocalEngine, pace: Pace | None, rank: int) -> tuple[int, int]:
    proposal = engine.propose(None if pace is None else pace.measure(), rank=rank)
    return proposal.rank, proposal.local_steps


def _catch_up(
    parts: WorkerParts, agreement: Agreement, watcher: Watcher, stop: threading.Event, last_sent_round: int
) -> LocalEngine | None:
    """Replay to where we start, and start fresh there; None when asked to stop.

    Raises `_StartAgain` where a checkpoint has overtaken us, and what has been in the way for longer than the patience.
    """
    view, said, idle_since = None, Said(), time.monotonic()
    failure: GaveUp | None
    while not stop.is_set():
        view = watcher.wait_for_newer(view, RETRY_SECONDS)
        before, failure = agreement.version, None
        try:
            engine = None if view is None else _replay(parts, agreement, view, stop, last_sent_round)
            if engine is not None or stop.is_set():
                return engine
        except (ChainUnreachable, RpcError) as error:
            failure = ChainSilent(f"catching up: {error}", next_step=ASK_AGAIN)
        except AgreedRootMismatch as error:
            raise _StartAgain(str(error)) from error
        except StateUnavailable as error:
            assert view is not None
            if view.run.certified_version > agreement.version:
                raise _StartAgain(str(error), is_for_want=True) from error
            _give_back(parts, view, agreement, said)
            failure = error
            stop.wait(RETRY_SECONDS)
        if agreement.version > before:
            idle_since = time.monotonic()
        if failure is not None and said.is_due(failure.message):
            LOG.warning("%s", failure)
        if time.monotonic() > idle_since + parts.patience.chain_seconds:
            raise failure or ChainSilent("catching up: the chain tells nothing new", next_step=ASK_AGAIN)
    return None


def _replay(
    parts: WorkerParts, agreement: Agreement, view: ChainView, stop: threading.Event, last_sent_round: int
) -> LocalEngine | None:
    """Adopt settled rounds up to where we start; None where the chain's nodes don't all know them yet."""
    target = compute_start_version(view, parts.sender.address, last_sent_round)
    while not stop.is_set() and agreement.version < target and agreement.adopt(view):
        agreement.forget_outcomes()
    if agreement.version >= target:
        state, version = agreement.get_state()
        LOG.info("caught up with version %d, root %s", version, agreement.root.hex()[:16])
        return parts.rules.create_engine(state, version)
    return None


def _give_back(parts: WorkerParts, view: ChainView, agreement: Agreement, said: Said) -> None:
    """Nobody can show the head: offer the certified root, which the chain takes after T_recover."""
    if view.run.num_eligible > 0:
        return
    try:
        parts.sender.send("ready", parts.run, view.run.certified_root)
    except (ContractError, TransactionFailed, RpcError, ChainUnreachable) as error:
        if said.is_due("give back"):
            LOG.info("version %d cannot be had and the run does not go back yet: %s", agreement.version + 1, error)


def _load_engine(parts: WorkerParts, journal: Journal, view: ChainView) -> LocalEngine | None:
    """Return the worker as saved, None where there is nothing usable."""
    contents = journal.contents
    if not contents.state_file:
        check_not_ahead(journal, view.run)
        return None
    path = journal.state_folder / contents.state_file
    try:
        engine = parts.rules.load_engine(path)
    except WorkerStateDamaged as error:
        LOG.warning("%s; restoring from the newest checkpoint instead", error)
        journal.reset()
        return None
    if engine.version > view.run.head_version:
        LOG.warning("the run went back behind our version %d: restoring from a checkpoint", engine.version)
        journal.reset()
        return None
    expected = parts.chain.training.root(parts.run, engine.version)
    if engine.canonical.root() != expected:
        LOG.warning("our saved version %d is not the run's any more: restoring from a checkpoint", engine.version)
        journal.reset()
        return None
    # Now that the state is proved: a run that went back, or a node that lags, would have been noticed by it.
    check_not_ahead(journal, view.run)
    _mend_payloads(journal, engine)
    LOG.info("resumed at version %d after round %d", engine.version, contents.last_sent_round)
    return engine


def _mend_payloads(journal: Journal, engine: LocalEngine) -> None:
    """Write own payloads whose files are gone or were altered anew, from the saved state that has them in flight."""
    for update in journal.contents.sent:
        try:
            journal.load_payload(update)
        except FileNotFoundError:
            payload = engine.get_payload(update.round)
            if payload is not None and compute_digest(payload).hex() == update.digest:
                _rewrite(journal, update, payload)


def _rewrite(journal: Journal, update: SentUpdate, payload: bytes) -> None:
    try:
        journal.save_payload(update, payload)
    except OSError as error:
        if not is_disk_full(error):
            raise
        LOG.warning("round %d: no room to write our payload anew: %s", update.round, error.strerror)
    else:
        LOG.info("round %d: our payload is written anew, from the saved worker state", update.round)


def _find_last_sent(parts: WorkerParts, journal: Journal, view: ChainView) -> int:
    """Return the newest round that has an update of ours, in the journal or (after an erased disk) on the chain."""
    on_chain = [
        index
        for index in view.rounds
        if parts.chain.training.update(parts.run, index, parts.sender.address).fate is not UpdateFate.NONE
    ]
    return max([journal.contents.last_sent_round, *on_chain])


def _restore(parts: WorkerParts, view: ChainView, stop: threading.Event) -> tuple[Any, int]:
    state, version = restore_newest(
        chain=parts.chain, payloads=parts.payloads, rules=parts.rules, trace=parts.trace, run=view.run, stop=stop
    )
    LOG.info("restored version %d, root %s as on the chain", version, state.root().hex()[:16])
    return state, version


def _join(parts: WorkerParts, view: ChainView) -> None:
    try:
        join_run(parts.sender, view, parts.rules.recipe_digest)
    except ContractError as error:
        if error.name != "AlreadyMember":
            raise Refused(f"join: {error.text}", next_step=_advise(error, parts.sender.address)) from error
    except TransactionFailed as error:
        raise Refused(f"join: {error}", next_step="try again") from error
    LOG.info("joined run %d as %s", parts.run, parts.sender.address)


def _advise(error: ContractError, address: str) -> str:
    advice = {
        "NotAllowed": f"ask the run's owner to allow {address}",
        "RunFull": "wait for a free place, or join another run",
        "RejoinTooEarly": "start again at the block named",
        "WrongRunState": "see `trainer run show`: the run takes no members now",
        "BondTooSmall": "fund the worker key with the bond",
    }
    return advice.get(error.name, "see `trainer run show`")


def _find_own(journal: Journal, blob: bytes) -> bytes | None:
    """Return an own payload by the blob that our certificate names: never by digest, which anybody can copy."""
    wanted = blob.hex()
    for update in journal.contents.sent:
        if update.blob == wanted:
            try:
                return journal.load_payload(update)
            except FileNotFoundError:
                return None
    return None


def _read_run(parts: WorkerParts) -> RunInfo:
    try:
        return parts.chain.training.run(parts.run)
    except ContractError as error:
        raise WrongRun(error.text, next_step="see `trainer run list`") from error


def _retry(parts: WorkerParts, stop: threading.Event, ask: Callable[[], T]) -> T:
    return ask_patiently(ask, parts.patience.chain_seconds, stop)


def _summarise(parts: WorkerParts, done: _SessionEnd) -> Summary:
    return summarise(parts.chain, parts.run, parts.sender.address, done.end, version=done.version, root=done.root)
