"""The processes of one worker: started, asked, watched and ended together (CASES 20).

Invariant: either all children live, or none does and every further question raises `GroupEndedError` at once.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import connection, resource_tracker
from multiprocessing.util import get_temp_dir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from training.core.errors import GroupEndedError, NonFiniteUpdateError
from training.group.serving import END_SECONDS, ProcessConfig, run_process
from training.group.shape import GroupConfig, plan_devices

LOG = logging.getLogger("trainer")

START_SECONDS = 300.0
"""For the processes to load torch, meet and take their tensors; a busy machine needs most of a minute."""

CLOSE_SECONDS = 0.5
"""To put the order to close, a few bytes, into each pipe: one that is full has a child that reads nothing."""

BLAME_SECONDS = 1.0
"""Waited, when a child fails, for another whose death may be the reason."""

PRELOADED = ["training.group.stage", "training.group.shard"]
"""Imported once by the process that is forked for each child."""


def plan_processes(group: GroupConfig, device: str | torch.device) -> list[ProcessConfig]:
    """Return what each process of a group must know; where they meet is filled in when they start.

    Raises `DeviceCountError`.
    """
    devices = plan_devices(device, group.num_processes, torch.cuda.device_count())
    return [
        ProcessConfig(
            index=index,
            num_processes=group.num_processes,
            device=each,
            num_threads=group.num_threads,
            precision=group.precision,
            rendezvous=Path(),
            timeout_seconds=group.timeout_seconds,
        )
        for index, each in enumerate(devices)
    ]


class GroupProcesses:
    """Children, one a stage or a shard."""

    def __init__(
        self,
        kind: str,
        create: Callable[..., object],
        configs: Sequence[ProcessConfig],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Start them; ``create(config, *arguments)`` makes what answers in a child, ``kind`` is what people call one.

        ``on_end`` is called from another thread when a child ends unasked or is told to stop: then the whole worker
        should end.  It may be called again.
        """
        self._kind = kind
        self._folder = TemporaryDirectory(prefix="archipelago-group-")
        rendezvous = Path(self._folder.name) / "rendezvous"
        # Where they meet, and, unless it is another process's, where multiprocessing's servers listen (`pymp-*`).
        is_own = multiprocessing.parent_process() is None
        left_behind = (Path(self._folder.name), *([Path(get_temp_dir())] if is_own else []))
        self._timeout_seconds = configs[0].timeout_seconds
        self._on_end = on_end
        self._asking = threading.Lock()
        self._ending = threading.Event()
        self._death: GroupEndedError | None = None
        self._orders: list[connection.Connection] = []
        self._notices: list[connection.Connection] = []
        self._children: list[multiprocessing.process.BaseProcess] = []
        # One process imports torch once and is forked for each child; it ends with this process.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        # It inherits SIGTERM as blocked: a service manager that tells every process to stop would end it, and with it
        # what it knows of the children.  They take it themselves (`serving`).  Starting the tracker would unblock it.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            for config in configs:
                ours, theirs = context.Pipe()
                hears, tells = context.Pipe(duplex=False)
                child = context.Process(
                    target=run_process,
                    args=(create, replace(config, rendezvous=rendezvous), theirs, tells, left_behind),
                    daemon=True,
                )
                child.start()
                theirs.close()
                tells.close()
                self._orders.append(ours)
                self._notices.append(hears)
                self._children.append(child)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._watcher = threading.Thread(target=self._watch, name="group", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the children's process ids."""
        return tuple(child.pid or 0 for child in self._children)

    def check(self) -> None:
        """Raise `GroupEndedError` where a child has ended unasked."""
        if self._death is not None:
            raise self._death

    def ask(self, order: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give every child an order with its own arguments and return all answers.

        Raises `GroupEndedError`, within the timeout, and `NonFiniteUpdateError` when a child says so.
        """
        with self._asking:
            self.check()
            timeout_seconds = max(self._timeout_seconds, START_SECONDS if order == "start" else 0.0)
            try:
                for index, (pipe, own) in enumerate(zip(self._orders, arguments, strict=True)):
                    _set_longest_wait(pipe, timeout_seconds)
                    try:
                        pipe.send_bytes(pickle.dumps((order, own)))
                    except BlockingIOError:
                        self._die(index, f"took no order {order!r} in {timeout_seconds:.0f} s")
                        self.check()
                answers = self._collect(order, timeout_seconds)
            except (OSError, EOFError) as error:
                self._watcher.join(END_SECONDS)
                self.check()
                raise GroupEndedError(self._kind, -1, 0, f"broke its pipe ({error})") from error
        for kind, value in answers:
            if kind == "non-finite":
                raise NonFiniteUpdateError(*value)
        return [value for _, value in answers]

    def close(self) -> None:
        """End all children and wait for them; idempotent."""
        self._ending.set()
        for pipe in self._orders:
            try:
                _set_longest_wait(pipe, CLOSE_SECONDS)
                pipe.send_bytes(pickle.dumps(("close", ())))
            except OSError:
                LOG.debug("a child's pipe is closed already, or full")
        deadline = time.monotonic() + END_SECONDS
        for child in self._children:
            child.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        for pipe in (*self._orders, *self._notices):
            pipe.close()
        self._folder.cleanup()

    def _collect(self, order: str, timeout_seconds: float) -> list[Any]:
        deadline = time.monotonic() + timeout_seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(self._orders):
            waiting = [pipe for index, pipe in enumerate(self._orders) if index not in answers]
            ready = connection.wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                index = next(index for index in range(len(self._orders)) if index not in answers)
                self._die(index, f"gave no answer to {order!r} in {timeout_seconds:.0f} s")
                self.check()
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                index = self._orders.index(pipe)
                kind, value = pickle.loads(pipe.recv_bytes())
                if kind == "failed":
                    self._blame_the_killed(index)
                    self._die(index, f"failed at {order!r}: {value}")
                    self.check()
                answers[index] = (kind, value)
        return [answers[index] for index in range(len(self._orders))]

    def _blame_the_killed(self, failed: int) -> None:
        """Name a child that was killed, before one that failed because it could not reach it any more."""
        others = {child.sentinel: index for index, child in enumerate(self._children) if index != failed}
        for sentinel in connection.wait(list(others), BLAME_SECONDS):
            assert isinstance(sentinel, int)
            child = self._children[others[sentinel]]
            child.join(END_SECONDS)
            if child.exitcode is not None and child.exitcode < 0:
                self._die(others[sentinel], f"ended with exit code {child.exitcode}")

    def _watch(self) -> None:
        """Wait for a child that ends unasked, which ends the others, and for one that is told to stop."""
        sentinels = [child.sentinel for child in self._children]
        notices = list(self._notices)
        while not self._ending.is_set():
            try:
                ready = connection.wait([*sentinels, *notices])
            except OSError:  # closed under us: the worker ends in order
                return
            if self._ending.is_set():
                return
            for index, sentinel in enumerate(sentinels):
                if sentinel in ready:
                    self._children[index].join(END_SECONDS)
                    self._die(index, f"ended with exit code {self._children[index].exitcode}")
                    return
            for index, notice in enumerate(self._notices):
                if notice not in ready or notice not in notices:
                    continue
                notices.remove(notice)
                if os.read(notice.fileno(), 1):  # nothing: the child has ended, as its sentinel will say
                    LOG.info("%s %d (pid %d) was told to stop: so is the worker", self._kind, index, self.pids[index])
                    self._say_end()

    def _die(self, index: int, reason: str) -> None:
        if self._death is None:
            self._death = GroupEndedError(self._kind, index, self._children[index].pid or 0, reason)
            LOG.error("%s", self._death)
            self._ending.set()
            self._kill()
            self._say_end()

    def _say_end(self) -> None:
        if self._on_end is not None:
            self._on_end()

    def _kill(self) -> None:
        for child in self._children:
            if child.is_alive():
                child.kill()
            child.join(END_SECONDS)


def _set_longest_wait(pipe: connection.Connection, seconds: float) -> None:
    """Let no single write or read wait longer: a pipe's other end may be a process that stands still."""
    whole = int(seconds)
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, int((seconds - whole) * 1_000_000)))
