"""The thread that settles, votes and serves the run while the main thread trains (DESIGN 7, *Overlap*).

One pass: adopt what the chain has settled, vote on what it attests, fetch what is committed, then the slower
duties.  It ends a worker's session (``reset_reason``) when the agreed state it follows is not the run's any
more; the process then restores from the newest checkpoint and goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from contracts.bindings.errors import ChainUnreachable, ContractError, DeadlinePassed, RpcError, TransactionFailed
from contracts.bindings.types import MemberState
from training.worker.agreement import Agreement
from training.worker.duties import Duties
from training.worker.errors import AgreedRootMismatch, StateUnavailable
from training.worker.ports import PayloadPort, SenderPort
from training.worker.saying import Said
from training.worker.trace import Trace
from training.worker.view import ChainView
from training.worker.waking import WakingThread

LOG = logging.getLogger("trainer")

PASS_SECONDS = 0.5
"""Longest pause between two passes without a new view."""

TRAFFIC_SECONDS = 1.0
"""Between two records of the socket counters."""

SERVE_SECONDS = 0.5
"""Between two looks for missing checkpoint parts."""

RECOVER_SECONDS = 5.0
"""Between two offers of the certified root."""


class Exchange(WakingThread):
    """Runs an ``Agreement`` and its ``Duties``."""

    def __init__(
        self,
        *,
        agreement: Agreement,
        duties: Duties,
        sender: SenderPort,
        payloads: PayloadPort,
        trace: Trace,
        run: int,
        get_view: Callable[[], ChainView | None],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Work for one run; ``start`` begins."""
        super().__init__("exchange")
        self._agreement = agreement
        self._duties = duties
        self._sender = sender
        self._payloads = payloads
        self._trace = trace
        self._run = run
        self._get_view = get_view
        self._refresh = refresh
        self._served_at = float("-inf")
        self._said = Said()
        self._traffic_at = float("-inf")
        self._recover_at = float("-inf")
        self.reset_reason = ""
        """Why the session must start again from a checkpoint; empty while all is well."""
        self.is_reset_for_want = False
        """Whether it is for want of payloads, which may come back, rather than for another outcome."""
        self.served_version = -1
        """Newest version at which every duty has been looked at."""

    def work(self) -> None:
        """Make one pass over the newest view."""
        view = self._get_view()
        self._record_traffic()
        if view is None:
            return
        try:
            self._settle(view)
            self._agreement.prefetch(view)
            self._serve(view)
        except (ChainUnreachable, RpcError, DeadlinePassed) as error:
            self._say(f"chain: {error}")

    def _settle(self, view: ChainView) -> None:
        if view.run.head_version < self._agreement.version:
            self.reset_reason = (
                f"the run went back to version {view.run.head_version}; we were at {self._agreement.version}"
            )
            return
        try:
            while not self._stop.is_set() and self._agreement.adopt(view):
                pass
        except StateUnavailable as error:
            self._say(str(error))
            if view.run.certified_version > self._agreement.version:
                self.is_reset_for_want = True
                self.reset_reason = f"a newer checkpoint is certified and older payloads are gone ({error})"
            elif view.run.num_eligible == 0:
                self._offer_certified(view)
            return
        except AgreedRootMismatch as error:
            self.reset_reason = str(error)
            return
        if self._duties.attest(view, self._agreement):
            self._refresh()

    def _serve(self, view: ChainView) -> None:
        if self.reset_reason or self._stop.is_set():
            return
        has_acted = view.member.state is MemberState.DROPPED and self._duties.rejoin(view)
        has_acted = self._duties.keep_ready(view, self._agreement) or has_acted
        if time.monotonic() >= self._served_at + SERVE_SECONDS:
            self._served_at = time.monotonic()
            try:
                has_acted = self._duties.store_checkpoint(view, self._agreement) or has_acted
            except (StateUnavailable, AgreedRootMismatch) as error:
                self._say(f"checkpoint: {error}")
        if has_acted:
            self._served_at = float("-inf")
            self._refresh()
        version = self._agreement.version
        self._duties.evaluate(view, self._agreement)
        if not self._duties.is_evaluating:
            self.served_version = max(self.served_version, min(version, view.run.head_version))

    def _offer_certified(self, view: ChainView) -> None:
        """Nobody is left who can show the head: after T_recover the certified root takes the run back, in the open."""
        if time.monotonic() < self._recover_at:
            return
        self._recover_at = time.monotonic() + RECOVER_SECONDS
        try:
            self._sender.send("ready", self._run, view.run.certified_root)
        except (ContractError, TransactionFailed) as error:
            self._say(f"the head cannot be restored and the run does not go back yet: {error}")
            return
        LOG.warning("showed the certified root of version %d: later rounds are undone", view.run.certified_version)

    def _record_traffic(self) -> None:
        now = time.monotonic()
        if now >= self._traffic_at:
            self._traffic_at = now + TRAFFIC_SECONDS
            self._trace.record_traffic(self._payloads.traffic())

    def _say(self, text: str) -> None:
        """Log a warning, the same one now and then."""
        if self._said.is_due(text):
            LOG.warning("%s", text)

    def _pass(self) -> float | None:
        self.work()
        return PASS_SECONDS
