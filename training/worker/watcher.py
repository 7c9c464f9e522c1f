"""The thread that follows the chain by reading its state, so no event can be missed (cases 26-28).

It publishes ``ChainView``s of never falling height: a URL that lags behind what was already seen is ignored.  Only
where nothing as new comes for FALL_SECONDS, what was seen was false, and the lower height is taken.  While no URL
answers the last view stays, training goes on, and the silence is timed for those who wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from contracts.bindings.errors import ChainUnreachable, ContractError, RpcError
from contracts.bindings.types import RoundState
from training.worker.ports import ChainPort
from training.worker.view import ChainView

LOG = logging.getLogger("trainer")

POLL_SECONDS = 0.15
"""Half a devnet block: a state change is seen within half a block of its commit."""

WHOLE_LOOK_BLOCKS = 16
"""Blocks after which a run is read again although it told of nothing: a URL may have lagged when it was read."""

QUIET_SHARE = 0.75
"""Of the time between two blocks in which the next one is not asked for yet."""

LONGEST_QUIET_SECONDS = 2.0
"""At most, however slow blocks have been."""


STILL_SECONDS = 10.0
"""Without a block, from when on the log says so: blocks come every third of a second to every six."""


FALL_SECONDS = 8.0
"""A node that lags has caught up by then; less than STILL_SECONDS, as a chain that falls doesn't stand still."""


class Watcher:
    """Publishes the newest view of one run."""

    def __init__(self, chain: ChainPort, run: int, me: str, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Watch ``run`` as member ``me``; ``start`` begins."""
        self._chain = chain
        self._run = run
        self._me = me
        self._poll_seconds = poll_seconds
        self._view: ChainView | None = None
        self._participants: dict[int, tuple[str, ...]] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._silent_since: float | None = None
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[], None]] = []
        self._looked_height = -1
        self._pause_seconds = poll_seconds
        self._seen_at: float | None = None
        self._is_still = False
        self._fell_at: float | None = None
        self._thread = threading.Thread(target=self._follow, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self, deadline_seconds: float) -> None:
        """Stop and wait for the thread, at most ``deadline_seconds``."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(deadline_seconds)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` from the watcher's thread after each new view; it must not block."""
        self._listeners.append(listener)

    def latest(self) -> ChainView | None:
        """Return the newest view, None before the first; raises what ended the thread."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            return self._view

    def wait_for_newer(self, than: ChainView | None, timeout_seconds: float) -> ChainView | None:
        """Return a view newer than ``than``, or the same one after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._view is not than or self._failure is not None, timeout_seconds)
        return self.latest()

    def refresh(self) -> None:
        """Look again at once, for somebody who has just sent a transaction."""
        self._wake.set()

    def get_silence_seconds(self) -> float:
        """Return for how long no URL has answered, 0 while one does."""
        with self._changed:
            return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    def look(self) -> ChainView:
        """Read the run once, in the calling thread; raises ChainUnreachable."""
        height = self._chain.height()
        training = self._chain.training
        run = training.run(self._run)
        rounds = {index: training.round(self._run, index) for index in range(run.num_settled, run.num_opened)}
        for index in rounds:
            if index not in self._participants:
                self._participants[index] = training.participants(self._run, index)
        for index in [index for index in self._participants if index not in rounds]:
            del self._participants[index]
        return ChainView(
            height=height,
            run=run,
            member=training.member(self._run, self._me),
            rounds={index: info for index, info in rounds.items() if info.state is not RoundState.NONE},
            participants=dict(self._participants),
            seen_seconds=time.monotonic(),
        )

    def _follow(self) -> None:
        try:
            while not self._stop.is_set():
                self._poll()
                self._wake.wait(self._pause_seconds)
                self._wake.clear()
        except BaseException as error:  # the outermost loop of this thread: handed to whoever asks next
            LOG.exception("the watcher has failed")
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _poll(self) -> None:
        self._pause_seconds = self._poll_seconds
        try:
            view = self._look_if_changed()
        except (ChainUnreachable, RpcError, ContractError) as error:
            if isinstance(error, ContractError) and self._view is None:
                raise  # there is no such run; once it was seen, that is what a node says which lags, or lies
            with self._changed:
                if self._silent_since is None:
                    self._silent_since = time.monotonic()
                    LOG.warning("chain: no answer (%s); training goes on, asking again", error)
            return
        if view is None:
            self._note_standstill()
            return
        if self._is_still:
            LOG.info("chain: blocks come again, %d", view.height)
            self._is_still = False
        self._pause_seconds = max(self._poll_seconds, self._measure_quiet())
        with self._changed:
            if self._silent_since is not None:
                LOG.info("chain: answers again at block %d", view.height)
                self._silent_since = None
            if self._view is not None and view.height < self._view.height:
                if not self._has_fallen(view.height):
                    return
                LOG.warning(
                    "chain: block %d was false: for %.0f s the newest has been below it, now %d; going on from there",
                    self._view.height,
                    FALL_SECONDS,
                    view.height,
                )
            self._fell_at = None
            self._view = view
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def _note_standstill(self) -> None:
        """Say once that a chain that answers makes no blocks: nothing that waits for one gets any further."""
        still_seconds = 0.0 if self._seen_at is None else time.monotonic() - self._seen_at
        if self._view is None or self._is_still or still_seconds < STILL_SECONDS:
            return
        self._is_still = True
        LOG.warning(
            "chain: no block after %d for %.0f s: it answers and stands still, more than two thirds of the validators'"
            " power must be up; training goes on, waiting for it",
            self._view.height,
            still_seconds,
        )

    def _look_if_changed(self) -> ChainView | None:
        """Return a newer view, None where there is no newer block.

        Whatever changes a run tells of it in an event, so blocks without one cost two short questions (SPEC).
        """
        before = self._view
        if before is None or self._silent_since is not None:
            return self._look()
        height = self._chain.height()
        if self._has_fallen(height):
            return self._look()
        if height <= before.height:
            return None
        span = {"from_height": before.height + 1, "to_height": height}
        is_due = height >= self._looked_height + WHOLE_LOOK_BLOCKS
        if is_due or self._chain.has_events("Training", self._run.to_bytes(32, "big"), **span):
            return self._look()
        return replace(before, height=height, seen_seconds=time.monotonic())

    def _has_fallen(self, height: int) -> bool:
        """Say whether the newest block has been below the one that was seen for so long that that one was false."""
        if self._view is None or height >= self._view.height:
            self._fell_at = None
            return False
        now = time.monotonic()
        self._fell_at = self._fell_at if self._fell_at is not None else now
        return now >= self._fell_at + FALL_SECONDS

    def _look(self) -> ChainView:
        view = self.look()
        self._looked_height = view.height
        return view

    def _measure_quiet(self) -> float:
        """Return how long there is no point in asking, from the time between the last two new heights."""
        now, before = time.monotonic(), self._seen_at
        self._seen_at = now
        return 0.0 if before is None else min(QUIET_SHARE * (now - before), LONGEST_QUIET_SECONDS)
