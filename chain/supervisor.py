"""Run a node: the application, CometBFT and JSON-RPC as child processes, with one log (DESIGN 2).

CometBFT doesn't survive its application, nor the other way round, so these two are stopped and started
together, at growing intervals and a bounded number of times.  JSON-RPC only reads: it is restarted alone, at growing
intervals and for as long as the node runs, so that whoever can end it never ends a validator with it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

from chain.child import HALTED, NUM_TAIL_LINES, Child, ChildFailed
from chain.documents import BrokenFile
from chain.home import (
    CONFIG_STEP,
    Addresses,
    AddressInUse,
    AppAheadOfCore,
    AppBelowBase,
    ApplicationTooOld,
    HomeNotWritable,
    Listening,
    check_agreement,
    hold_home,
    load_addresses,
    save_listening,
)
from chain.node_log import NodeLog, NodeLogHandler
from chain.own_modules import make_command
from chain.ports import find_free_port, is_free, split_address

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often a condition is looked at."""
APP_DEADLINE_SECONDS = 120.0
"""For the application to listen: it rebuilds its tree, about 125,000 keys a second."""
MIN_FREE_BYTES = 32 << 20
"""With less, application and CometBFT are not started: they would end at their first write."""
DISK_SECONDS = 5.0
"""Between two looks at a full disk."""
CORE_DEADLINE_SECONDS = 600.0
"""For CometBFT to answer: it may replay blocks first."""
MAX_RESTARTS = 5
"""Within RESTART_WINDOW_SECONDS; more means that a restart doesn't help."""
RESTART_WINDOW_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.5
"""Before a second start within the window; doubles with each."""
MAX_PAUSE_SECONDS = 30.0
"""Between two starts."""
LOG_NAME = "node.log"
"""Under HOME/logs."""

_MAX_UNIX_PATH_BYTES = 100
"""A Unix socket's path has at most 107 bytes on Linux, 103 elsewhere."""
_APP_AHEAD = re.compile(r"app block height \((\d+)\) is higher than core \((\d+)\)")
"""What CometBFT says when the application is ahead."""
_APP_BELOW_BASE = re.compile(r"app block height \((\d+)\) is too far below block store base \((\d+)\)")
"""What it says when the application lacks blocks that were pruned."""
_APP_FAILED = re.compile(r"(?:HandlerFailed|chain\.abci\.server): ABCI \w+: (\w+): (.*)")
"""What the application says last where a request was its end (``chain.abci.server``)."""
_MENDED_BY_NO_RESTART = ("UnsupportedRules", "UnsupportedAbciVersion")
"""Of ``chain.abci.errors``."""
_BAD_CONFIG = re.compile(r"(?:error decoding '\S+': .*|error in config file: .*)", re.IGNORECASE)
"""What it says when config.toml is TOML and has a value that can't be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What to run."""

    home: Path
    """The node's directory."""
    cometbft: Path
    """The binary."""
    rpc_host: str
    """JSON-RPC listens here."""
    rpc_port: int
    """0 starts no JSON-RPC."""
    fault: str = ""
    """A fault for the first run of the application; tests only."""


class Pause:
    """How long to wait before the next start of what ends again and again."""

    def __init__(self) -> None:
        """Remember no end."""
        self._ends: list[float] = []

    def count(self, now: float) -> float:
        """Note an end at ``now`` and return the seconds to wait: none after a first one, then twice as long each."""
        recent = [moment for moment in self._ends if now - moment < RESTART_WINDOW_SECONDS]
        self._ends = [*recent[-16:], now]
        return min(FIRST_PAUSE_SECONDS * 2 ** (len(recent) - 1), MAX_PAUSE_SECONDS) if recent else 0.0


class Supervisor:
    """Starts, watches and stops the children of one node."""

    def __init__(self, plan: NodePlan) -> None:
        """Start nothing yet."""
        self._plan = plan
        self._stopping = Event()
        self._app: Child | None = None
        self._core: Child | None = None
        self._rpc: Child | None = None
        self._log_path = plan.home / "logs" / LOG_NAME
        self._log: NodeLog | None = None
        self._restarts: list[float] = []
        self._consensus_pause = Pause()
        self._consensus_due: float | None = None
        """When application and CometBFT are to be started again."""
        self._rpc_pause = Pause()
        self._rpc_due: float | None = None
        """When JSON-RPC is to be started again."""
        self._fault = plan.fault
        self._is_ready = False
        self._core_url = ""
        self._addresses: Addresses | None = None
        self._socket_directory: tempfile.TemporaryDirectory[str] | None = None

    def request_stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End ``run``; usable as a signal handler."""
        self._stopping.set()

    def run(self, announce: Callable[[Listening], None]) -> None:
        """Run until ``request_stop``; raises HomeError (chain.home) or ChildFailed.

        ``announce`` is called once, when blocks are made and JSON-RPC was started.
        """
        plan = self._plan
        if plan.rpc_port and not is_free(plan.rpc_host, plan.rpc_port):
            raise AddressInUse(f"{plan.rpc_host}:{plan.rpc_port}", "choose another with --rpc-listen")
        try:
            node_log = self._log = NodeLog(self._log_path)
        except OSError as error:
            raise HomeNotWritable(self._log_path, error.strerror or str(error)) from error
        handler = NodeLogHandler(node_log)
        logging.getLogger().addHandler(handler)
        is_announced = False
        try:
            with hold_home(plan.home):
                self._start_consensus()
                while not self._stopping.wait(POLL_SECONDS):
                    self._restart_what_ended()
                    if self._is_ready and not is_announced:
                        self._start_rpc()
                        announce(self._describe())
                        is_announced = True
        finally:
            self._stop_all()
            logging.getLogger().removeHandler(handler)
            node_log.close()

    def _describe(self) -> Listening:
        rpc_url = f"http://{self._plan.rpc_host}:{self._plan.rpc_port}" if self._plan.rpc_port else ""
        return Listening(cometbft_url=self._core_url, rpc_url=rpc_url, supervisor_pid=os.getpid())

    def _start_consensus(self) -> None:
        home = self._plan.home
        self._is_ready = False
        self._core = None
        check_agreement(home)
        if self._addresses is None or not _are_free(self._addresses):
            # Also at a restart: somebody may have bound a port between our look and CometBFT's use of it.
            self._addresses = _choose_addresses(home)
        addresses = self._addresses
        self._core_url = f"http://{_to_local(addresses.rpc)}"
        socket_path = self._choose_socket()
        command = make_command("chain.cli", "abci", "--home", str(home), "--socket", str(socket_path))
        if self._fault:
            command += ["--fault", self._fault]
            self._fault = ""
        self._app = self._spawn("abci", command)
        if not self._wait(self._app, lambda: _is_listening(socket_path), APP_DEADLINE_SECONDS):
            return
        command = [str(self._plan.cometbft), "start", "--home", str(home), "--proxy_app", f"unix://{socket_path}"]
        command += ["--rpc.laddr", f"tcp://{addresses.rpc}", "--p2p.laddr", f"tcp://{addresses.p2p}"]
        self._core = self._spawn("cometbft", command)
        self._is_ready = self._wait(self._core, lambda: fetch_status(self._core_url) is not None, CORE_DEADLINE_SECONDS)
        if self._is_ready:
            save_listening(home, self._describe())

    def _start_rpc(self) -> None:
        plan = self._plan
        if not plan.rpc_port:
            return
        command = make_command("chain.cli", "rpc", "--home", str(plan.home))
        command += ["--cometbft-url", self._core_url, "--listen", f"{plan.rpc_host}:{plan.rpc_port}"]
        self._rpc = self._spawn("rpc", command)

    def _spawn(self, name: str, command: list[str]) -> Child:
        assert self._log is not None, "run opens it"
        return Child(name, command, self._log)

    def _wait(self, child: Child, is_ready: Callable[[], bool], seconds: float) -> bool:
        """Wait for a child to be ready; False when it ended, or the supervisor should."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            if child.exit_code is not None or self._stopping.wait(POLL_SECONDS):
                return False
            if time.monotonic() > deadline:
                raise self._fail(child, f"wasn't ready after {seconds:.0f} s")
        return True

    def _restart_what_ended(self) -> None:
        now = time.monotonic()
        ended = [
            child
            for child in (self._app, self._core)
            if child is not None and (child.exit_code is not None or child.has_halted)
        ]
        if ended:
            self._stop_consensus(ended[0], now)
        if self._consensus_due is not None and now >= self._consensus_due:
            if self._is_disk_full():
                self._consensus_due = now + DISK_SECONDS
            else:
                self._consensus_due = None
                self._restart_consensus()
        rpc = self._rpc
        if rpc is not None and rpc.exit_code is not None:
            self._rpc = None
            seconds = self._rpc_pause.count(now)
            self._rpc_due = now + seconds
            log.warning("rpc ended with exit code %d, starting again in %.1f s", rpc.exit_code, seconds)
        if self._rpc_due is not None and now >= self._rpc_due:
            self._rpc_due = None
            self._start_rpc()

    def _stop_consensus(self, ended: Child, now: float) -> None:
        """Stop what is left of the two, and say when both start again."""
        app, core = self._app, self._core
        reason = f"ended with exit code {ended.exit_code}"
        if ended.exit_code is None:
            reason = f"stopped making blocks: {_find_halt(ended.read_tail(NUM_TAIL_LINES))}"
        for child in (self._core, self._app):
            if child is not None:
                child.stop()
        self._core = self._app = None
        if core is not None:
            _check_refusal(core, self._plan.home)
        if app is not None and (failure := _find_failure(app, self._plan.home)):
            ended, reason = app, f"failed: {failure}"  # CometBFT ends with it, often first
        self._count_restart(ended, reason)
        seconds = self._consensus_pause.count(now)
        self._consensus_due = now + seconds
        log.warning("starting abci and cometbft again in %.1f s", seconds)

    def _restart_consensus(self) -> None:
        known_url = self._core_url
        self._start_consensus()
        if self._rpc is not None and self._core_url != known_url:  # somebody took the port: JSON-RPC must learn of it
            self._rpc.stop()
            self._rpc = None
            self._rpc_due = time.monotonic()

    def _is_disk_full(self) -> bool:
        """Say whether a start would fail for want of room, in the log too."""
        free = shutil.disk_usage(self._plan.home).free
        if free >= MIN_FREE_BYTES:
            return False
        log.warning(
            "%d MiB of disk are free under %s, waiting for %d", free >> 20, self._plan.home, MIN_FREE_BYTES >> 20
        )
        return True

    def _count_restart(self, child: Child, reason: str) -> None:
        now = time.monotonic()
        recent = [moment for moment in self._restarts if now - moment < RESTART_WINDOW_SECONDS]
        self._restarts = [*recent, now]
        if len(recent) >= MAX_RESTARTS:
            raise self._fail(child, f"{reason}, after {MAX_RESTARTS} restarts")
        log.warning("%s %s, restart %d of %d", child.name, reason, len(recent) + 1, MAX_RESTARTS)

    def _fail(self, child: Child, reason: str) -> ChildFailed:
        home = self._plan.home
        next_step = f"read {self._log_path}; `chain-node doctor --home {home}` looks for the usual causes"
        return ChildFailed(child.name, reason, child.read_tail(), next_step)

    def _stop_all(self) -> None:
        for child in (self._rpc, self._core, self._app):
            if child is not None:
                child.stop()
        if self._socket_directory is not None:
            self._socket_directory.cleanup()

    def _choose_socket(self) -> Path:
        path = self._plan.home.resolve() / "abci.sock"
        if len(os.fsencode(path)) <= _MAX_UNIX_PATH_BYTES:
            return path
        if self._socket_directory is None:
            self._socket_directory = tempfile.TemporaryDirectory(prefix="chain-node-")
        return Path(self._socket_directory.name) / "abci.sock"


def fetch_status(url: str) -> dict[str, Any] | None:
    """Return CometBFT's /status, None while it doesn't answer."""
    try:
        with urllib.request.urlopen(f"{url}/status", timeout=2.0) as answer:
            result: dict[str, Any] = json.load(answer)["result"]
            return result
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return None


def _find_halt(lines: str) -> str:
    """Return what CometBFT gave as the reason, shortened: a stack follows it."""
    return next((line.partition(HALTED)[2].strip() for line in lines.splitlines() if HALTED in line), "")[:200]


def _find_failure(app: Child, home: Path) -> str:
    """Return what ended the application within a request, empty where none did; raises what no restart will mend."""
    failures = _APP_FAILED.findall(app.read_tail(NUM_TAIL_LINES))
    if not failures:
        return ""
    kind, words = failures[-1]
    if kind in _MENDED_BY_NO_RESTART:
        raise ApplicationTooOld(home, words)
    return f"{kind}: {words}"


def _check_refusal(core: Child, home: Path) -> None:
    """Raise what no restart will mend, in words of ours."""
    tail = core.read_tail(NUM_TAIL_LINES)
    if (match := _APP_AHEAD.search(tail)) is not None:
        raise AppAheadOfCore(home, int(match[2]), int(match[1]))
    if (match := _APP_BELOW_BASE.search(tail)) is not None:
        raise AppBelowBase(home, int(match[2]), int(match[1]))
    if (match := _BAD_CONFIG.search(tail)) is not None:
        raise BrokenFile(home / "config" / "config.toml", ValueError(match[0].strip()), CONFIG_STEP)


def _choose_addresses(home: Path) -> Addresses:
    """Return where CometBFT listens: as configured, or, where no peer relies on it, beside what is in use."""
    configured, has_peers = load_addresses(home)
    chosen: list[str] = []
    for address in (configured.rpc, configured.p2p):
        host, port = split_address(address)
        is_taken = port == 0 or not is_free(host, port) or address in chosen
        if is_taken and has_peers:
            raise AddressInUse(address, f"the peers of {home} expect this node there, stop what listens")
        chosen.append(f"{host}:{find_free_port(host)}" if is_taken else address)
        if is_taken:
            log.warning("%s is in use, taking %s", address, chosen[-1])
    return Addresses(rpc=chosen[0], p2p=chosen[1])


def _are_free(addresses: Addresses) -> bool:
    return all(is_free(*split_address(address)) for address in (addresses.rpc, addresses.p2p))


def _to_local(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "") else address


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
