"""The processes of one worker: started, asked, watched and ended together (CASES 20).

Invariant: either all children live, or none does and every further question raises `StageDiedError` at once.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from training.core.errors import NonFiniteUpdateError, StageDiedError
from training.group.stage import StageConfig, run_stage

LOG = logging.getLogger("trainer")

START_SECONDS = 300.0
"""For the stages to load torch, meet and take their tensors; a busy machine needs most of a minute."""

END_SECONDS = 5.0
"""Given to a child to end by itself before it is killed."""


class StageProcesses:
    """Children, one a stage."""

    def __init__(self, configs: Sequence[StageConfig], on_death: Callable[[], None] | None = None) -> None:
        """Start them; ``on_death`` is called once, from another thread, when one ends unasked."""
        self._folder = TemporaryDirectory(prefix="archipelago-group-")
        rendezvous = Path(self._folder.name) / "rendezvous"
        self._timeout_seconds = configs[0].timeout_seconds
        self._on_death = on_death
        self._asking = threading.Lock()
        self._ending = threading.Event()
        self._death: StageDiedError | None = None
        self._orders: list[connection.Connection] = []
        self._children: list[multiprocessing.process.BaseProcess] = []
        # One process imports torch once and is forked for each stage; it ends with this process.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["training.group.stage"])
        try:
            for config in configs:
                ours, theirs = context.Pipe()
                child = context.Process(
                    target=run_stage, args=(replace(config, rendezvous=rendezvous), theirs), daemon=True
                )
                child.start()
                theirs.close()
                self._orders.append(ours)
                self._children.append(child)
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="stages", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the children's process ids."""
        return tuple(child.pid or 0 for child in self._children)

    def check(self) -> None:
        """Raise `StageDiedError` where a child has ended unasked."""
        if self._death is not None:
            raise self._death

    def ask(self, order: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give every child an order with its own arguments and return all answers.

        Raises `StageDiedError`, within the timeout, and `NonFiniteUpdateError` when a child says so.
        """
        with self._asking:
            self.check()
            try:
                for pipe, own in zip(self._orders, arguments, strict=True):
                    pipe.send_bytes(pickle.dumps((order, own)))
                answers = self._collect(order)
            except (OSError, EOFError) as error:
                self._watcher.join(END_SECONDS)
                self.check()
                raise StageDiedError(-1, 0, f"broke its pipe ({error})") from error
        for kind, value in answers:
            if kind == "non-finite":
                raise NonFiniteUpdateError(*value)
        return [value for _, value in answers]

    def close(self) -> None:
        """End all children and wait for them; idempotent."""
        self._ending.set()
        for pipe in self._orders:
            try:
                pipe.send_bytes(pickle.dumps(("close", ())))
            except OSError:
                LOG.debug("a stage's pipe is closed already")
        deadline = time.monotonic() + END_SECONDS
        for child in self._children:
            child.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        for pipe in self._orders:
            pipe.close()
        self._folder.cleanup()

    def _collect(self, order: str) -> list[Any]:
        timeout_seconds = max(self._timeout_seconds, START_SECONDS if order == "start" else 0.0)
        deadline = time.monotonic() + timeout_seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(self._orders):
            waiting = [pipe for index, pipe in enumerate(self._orders) if index not in answers]
            ready = connection.wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                stage = next(index for index in range(len(self._orders)) if index not in answers)
                self._die(stage, f"gave no answer to {order!r} in {timeout_seconds:.0f} s")
                self.check()
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                answers[self._orders.index(pipe)] = pickle.loads(pipe.recv_bytes())
        return [answers[index] for index in range(len(self._orders))]

    def _watch(self) -> None:
        """Wait for the first end of a child; an unasked one ends the others."""
        ended = connection.wait([child.sentinel for child in self._children])
        if self._ending.is_set():
            return
        stage = next(index for index, child in enumerate(self._children) if child.sentinel in ended)
        self._children[stage].join(END_SECONDS)
        self._die(stage, f"ended with exit code {self._children[stage].exitcode}")

    def _die(self, stage: int, reason: str) -> None:
        if self._death is None:
            self._death = StageDiedError(stage, self._children[stage].pid or 0, reason)
            LOG.error("%s", self._death)
            self._ending.set()
            self._kill()
            if self._on_death is not None:
                self._on_death()

    def _kill(self) -> None:
        for child in self._children:
            if child.is_alive():
                child.kill()
            child.join(END_SECONDS)
