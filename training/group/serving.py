"""The life of one process of a group: it meets the others, answers its parent, and ends with it (CASES 20).

The parent says what to do, one order at a time, and gets one answer.  A process whose parent is gone ends at
once.  One that is told to stop (SIGTERM, which a service manager sends to every process) passes that on and
serves until the parent closes it: the parent saves first.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, parent_process
from pathlib import Path
from types import FrameType

import psutil
import torch
from torch import distributed

from training.core.errors import NonFiniteUpdateError
from training.inner import Precision

LOG = logging.getLogger("trainer")

END_SECONDS = 5.0
"""Given to a child to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """What a process must know to be one of a group."""

    index: int
    """From 0: its stage, or its shard."""
    num_processes: int
    """In the group."""
    device: str
    """Of this process, with its number: cpu, cuda:3."""
    num_threads: int
    """CPU threads of torch, 0 for its own choice."""
    precision: Precision
    """Of products in the model."""
    rendezvous: Path
    """File by which the processes find one another; no port is agreed for it."""
    timeout_seconds: float
    """Longest a process waits for another."""


def run_process(
    create: Callable[..., object],
    config: ProcessConfig,
    orders: connection.Connection,
    notices: connection.Connection,
    left_behind: tuple[Path, ...],
) -> None:
    """Be one process of the group until the parent says to close, or is gone: the entry point.

    ``create(config, *arguments)`` makes what answers the orders; ``left_behind``: the parent's temporary folders, to be
    removed where it is killed.
    """
    _pass_on_stops(notices)
    parent = parent_process()
    assert parent is not None
    ending = threading.Thread(target=_end_with_parent, args=(parent.sentinel, left_behind), daemon=True)
    ending.start()
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    device = torch.device(config.device)
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # before the mesh, which otherwise chooses a device by rank
        torch.cuda.set_device(device)  # before NCCL and any stream: both belong to the current device
    else:
        _listen_on_this_host_only()
    distributed.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"file://{config.rendezvous}",
        rank=config.index,
        world_size=config.num_processes,
        timeout=timedelta(seconds=config.timeout_seconds),
        device_id=device if is_cuda else None,
    )
    try:
        serve_orders(create, config, orders)
    finally:
        distributed.destroy_process_group()
        if not parent.is_alive():
            ending.join(END_SECONDS)


def serve_orders(create: Callable[..., object], config: ProcessConfig, orders: connection.Connection) -> None:
    """Answer (method, arguments) until "close"; a refusal that a worker knows goes back as its class."""
    worker: object = None
    while True:
        try:
            order, arguments = pickle.loads(orders.recv_bytes())
        except EOFError:
            return
        if order == "close":
            return
        try:
            if order == "start":
                worker = create(config, *arguments)
                _answer(orders, "done", None)
            else:
                _answer(orders, "done", getattr(worker, order)(*arguments))
        except NonFiniteUpdateError as error:
            _answer(orders, "non-finite", (error.tensor, error.num_bad, error.num_elements))
        except Exception as error:  # the outermost loop: say it, then end
            _answer(orders, "failed", f"{type(error).__name__}: {error}")
            raise


def _answer(orders: connection.Connection, kind: str, value: object) -> None:
    """Answer in plain bytes: `Connection.send` would pass each tensor as a descriptor of shared memory."""
    orders.send_bytes(pickle.dumps((kind, value)))


def _pass_on_stops(notices: connection.Connection) -> None:
    """Let SIGTERM write a byte for the parent, also while the main thread waits inside torch; ignore Ctrl-C.

    Ctrl-C reaches the whole group by itself, and the parent decides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_blocking(notices.fileno(), False)
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.set_wakeup_fd(notices.fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked by the parent, for the start


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Stand where SIGTERM would end the process."""


def _listen_on_this_host_only() -> None:
    """Bind gloo's sockets to the loopback interface: the group is on one host, and the sockets ask nobody's name."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _end_with_parent(sentinel: int, left_behind: tuple[Path, ...]) -> None:
    """End this process at once when the parent has ended, whatever the main thread waits for.

    A parent that was killed leaves its temporary folders: each of its children removes them.
    """
    connection.wait([sentinel])
    for folder in left_behind:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
