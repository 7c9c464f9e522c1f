"""The thread that brings our updates to the stores and onto the chain, each exactly once (case 27).

The way of an update: journal (payload and worker state are durable) -> stores -> certificate -> signed
transaction -> journal -> chain.  Whatever is asked twice is asked by name: ``update(run, t, me)`` and the
transaction's hash.  A signed transaction is always delivered, even when its round has closed meanwhile, so
that no later transaction of the key waits behind a nonce that never comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from contracts.bindings.errors import (
    ChainUnreachable,
    ContractError,
    DeadlinePassed,
    NonceTaken,
    RpcError,
    TransactionFailed,
)
from contracts.bindings.types import UpdateFate
from da.core.certificate import decode_certificate
from training.worker.durable import is_disk_full
from training.worker.errors import PayloadUnavailable
from training.worker.journal import Journal, SentUpdate
from training.worker.ports import ChainPort, PayloadPort, SenderPort
from training.worker.saying import Said
from training.worker.trace import EventKind, Trace
from training.worker.view import ChainView, is_closed
from training.worker.waking import WakingThread

LOG = logging.getLogger("trainer")

TEMPORARY_TIER = 0
"""Tier of payloads (da.core.types.Tier)."""

RETRY_SECONDS = 0.5
"""Between two tries while something is in the way."""

SAY_AGAIN_SECONDS = 10.0
"""Between two lines about the same kind of obstacle."""

DELIVER_SECONDS = 20.0
"""Longest wait for one receipt before the chain is asked afresh."""


class Outbox(WakingThread):
    """Sends what the journal holds."""

    def __init__(
        self,
        *,
        chain: ChainPort,
        sender: SenderPort,
        payloads: PayloadPort,
        journal: Journal,
        trace: Trace,
        run: int,
        get_view: Callable[[], ChainView | None],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Work for one run; ``start`` begins."""
        super().__init__("outbox")
        self._chain = chain
        self._sender = sender
        self._payloads = payloads
        self._journal = journal
        self._trace = trace
        self._run = run
        self._get_view = get_view
        self._refresh = refresh
        self._said = Said()

    def work(self) -> bool:
        """Try to bring every open update one step further; True when nothing is left to do."""
        is_done = True
        for update in self._journal.contents.sent:
            view = self._get_view()  # each time anew: bringing one of them away may take a round's time
            if view is None:
                return False
            if not update.is_committed and not update.note:
                try:
                    is_done = self._process_update(update, view) and is_done
                except (ChainUnreachable, RpcError, DeadlinePassed) as error:
                    self._say(update.round, "the commit has to wait", error)
                    is_done = False
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    # What cannot be written down is not sent: a restart would not know of it.
                    self._say(update.round, "the commit has to wait for room on the disk", error)
                    is_done = False
        return is_done

    def _process_update(self, update: SentUpdate, view: ChainView) -> bool:
        t = update.round
        known = self._chain.training.update(self._run, t, self._sender.address)
        if known.fate is not UpdateFate.NONE:
            if known.digest.hex() != update.digest:
                self._close(t, "another process with this key has sent an update for this round")
            else:
                self._journal.update_sent(t, lambda item: replace(item, is_committed=True))
                LOG.info("round %d: update is in block %d", t, known.height)
            return True
        if not update.raw_transaction:
            if is_closed(view, t):
                self._close(t, "late: the round closed before the update was there; it returns to error feedback")
                return True
            prepared = self._prepare(update, view)
            if prepared is None:
                return False
            raw, blob = prepared
            self._journal.update_sent(t, lambda item: replace(item, raw_transaction=raw.hex(), blob=blob.hex()))
        else:
            raw = bytes.fromhex(update.raw_transaction)
        return self._deliver(update, raw)

    def _prepare(self, update: SentUpdate, view: ChainView) -> tuple[bytes, bytes] | None:
        """Disperse the payload and sign the commit; None where the stores or the contract say no for now.

        Returns the raw transaction and the blob that it names.
        """
        try:
            payload = self._journal.load_payload(update)
        except FileNotFoundError as error:
            # Its round has settled meanwhile, and the main thread has put it away; or somebody has.
            if self._journal.find_sent(update.round) is not None:
                self._close(update.round, f"its payload is gone from the disk: {error.filename}")
            return None
        try:
            with self._trace.span(EventKind.DISPERSE, update.round) as span:
                span.num_bytes = len(payload)
                certificate = self._payloads.put(payload, tier=TEMPORARY_TIER, blocks=view.run.params.lease_blocks)
        except PayloadUnavailable as error:
            self._say(update.round, "the stores do not take the payload", error.reason)
            return None
        try:
            raw = self._sender.sign(
                "commit",
                self._run,
                update.round,
                bytes.fromhex(update.base_root),
                bytes.fromhex(update.digest),
                certificate,
                update.tokens,
                update.loss_micro,
            )
        except ContractError as error:
            self._process_refusal(update, error)
            return None
        return raw, bytes(decode_certificate(certificate).terms.blob)

    def _deliver(self, update: SentUpdate, raw: bytes) -> bool:
        try:
            with self._trace.span(EventKind.COMMIT, update.round) as span:
                span.num_bytes = len(raw)
                receipt = self._sender.deliver(raw, DELIVER_SECONDS)
        except NonceTaken:
            # Another transaction of this key was executed with the nonce: these bytes can never land.
            self._journal.update_sent(update.round, lambda item: replace(item, raw_transaction=""))
            return False
        except TransactionFailed as error:
            self._close(update.round, f"the commit failed: {error.reason or error}")
            return True
        except ContractError as error:
            self._journal.update_sent(update.round, lambda item: replace(item, raw_transaction=""))
            self._process_refusal(update, error)
            return False
        self._journal.update_sent(update.round, lambda item: replace(item, is_committed=True))
        self._refresh()
        LOG.info("round %d: update is in block %d", update.round, receipt.height)
        return True

    def _process_refusal(self, update: SentUpdate, error: ContractError) -> None:
        """Decide whether a refused commit is worth another try: only where another certificate may help."""
        if error.name in ("WrongEpoch", "CertificateExpired", "NotEnoughSignatures", "EscrowTooSmall"):
            self._say(update.round, error.name, error.text)
        elif error.name != "AlreadyCommitted":
            self._close(update.round, error.text)

    def _close(self, round_index: int, note: str) -> None:
        LOG.warning("round %d: our update does not count: %s", round_index, note)
        self._journal.update_sent(round_index, lambda item: replace(item, note=note))

    def _say(self, round_index: int, obstacle: str, reason: object) -> None:
        """Warn of what is in the way; while it stays there a line now and then is enough."""
        if self._said.is_due(obstacle, SAY_AGAIN_SECONDS):
            LOG.warning("round %d: %s: %s", round_index, obstacle, reason)

    def _pass(self) -> float | None:
        return None if self.work() else RETRY_SECONDS
