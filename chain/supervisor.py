"""Run a node: the application, CometBFT and JSON-RPC as child processes, one log each (DESIGN 2).

CometBFT doesn't survive its application, nor the other way round, so these two are stopped and started
together, a bounded number of times.  JSON-RPC only reads: it is restarted alone, at growing intervals and for as
long as the node runs, so that whoever can end it never ends a validator with it.  Children are in process
groups of their own, so that Ctrl-C reaches only the supervisor, which stops them in order; the kernel kills them
if the supervisor is killed itself.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

from chain.home import (
    Addresses,
    AddressInUse,
    AppAheadOfCore,
    Listening,
    check_agreement,
    load_addresses,
    save_listening,
)

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often a condition is looked at."""
APP_DEADLINE_SECONDS = 120.0
"""For the application to listen: it rebuilds its tree, about 125,000 keys a second."""
CORE_DEADLINE_SECONDS = 600.0
"""For CometBFT to answer: it may replay blocks first."""
STOP_SECONDS = 3.0
"""For one child to end after SIGTERM; three of them stay below ten seconds."""
MAX_RESTARTS = 5
"""Within RESTART_WINDOW_SECONDS; more means that a restart doesn't help."""
RESTART_WINDOW_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.5
"""Before JSON-RPC's second start within the window; doubles with each."""
MAX_PAUSE_SECONDS = 30.0
"""Between two starts of JSON-RPC."""

_MAX_UNIX_PATH_BYTES = 100
"""A Unix socket's path has at most 107 bytes on Linux, 103 elsewhere."""
_PR_SET_PDEATHSIG = 1
"""prctl(2)."""
_APP_AHEAD = re.compile(rb"app block height \((\d+)\) is higher than core \((\d+)\)")
"""What CometBFT says when the application is ahead."""
_TAIL_BYTES = 64 << 10


class ChildFailed(Exception):
    """A child process ended, or didn't get ready, and restarting it is of no use."""

    def __init__(self, name: str, reason: str, log_path: Path) -> None:
        """Keep the child's name and log."""
        super().__init__(f"{name} {reason}; its log: {log_path}\n{read_tail(log_path)}")
        self.name = name
        self.log_path = log_path


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


class Child:
    """One child process."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path) -> None:
        """Start it, its output appended to ``log_path``."""
        self.name = name
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_make_leash(os.getpid()),
            )
        log.info("started %s, process %d", name, self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask it to end, and kill it when it doesn't."""
        if self.exit_code is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("%s didn't end within %.0f s, killing it", self.name, STOP_SECONDS)
            self._process.kill()
            self._process.wait()


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
        self._restarts: list[float] = []
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
        if plan.rpc_port and not _is_free(plan.rpc_host, plan.rpc_port):
            raise AddressInUse(f"{plan.rpc_host}:{plan.rpc_port}", "choose another with --rpc-listen")
        is_announced = False
        try:
            self._start_consensus()
            while not self._stopping.wait(POLL_SECONDS):
                self._restart_what_ended()
                if self._is_ready and not is_announced:
                    self._start_rpc()
                    save_listening(self._plan.home, self._describe())
                    announce(self._describe())
                    is_announced = True
        finally:
            self._stop_all()

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
        command = [sys.executable, "-m", "chain.cli", "abci", "--home", str(home), "--socket", str(socket_path)]
        if self._fault:
            command += ["--fault", self._fault]
            self._fault = ""
        self._app = Child("abci", command, home / "logs" / "abci.log")
        if not self._wait(self._app, lambda: _is_listening(socket_path), APP_DEADLINE_SECONDS):
            return
        command = [str(self._plan.cometbft), "start", "--home", str(home), "--proxy_app", f"unix://{socket_path}"]
        command += ["--rpc.laddr", f"tcp://{addresses.rpc}", "--p2p.laddr", f"tcp://{addresses.p2p}"]
        self._core = Child("cometbft", command, home / "logs" / "cometbft.log")
        self._is_ready = self._wait(self._core, lambda: fetch_status(self._core_url) is not None, CORE_DEADLINE_SECONDS)

    def _start_rpc(self) -> None:
        plan = self._plan
        if not plan.rpc_port:
            return
        command = [sys.executable, "-m", "chain.cli", "rpc", "--home", str(plan.home)]
        command += ["--cometbft-url", self._core_url, "--listen", f"{plan.rpc_host}:{plan.rpc_port}"]
        self._rpc = Child("rpc", command, plan.home / "logs" / "rpc.log")

    def _wait(self, child: Child, is_ready: Callable[[], bool], seconds: float) -> bool:
        """Wait for a child to be ready; False when it ended, or the supervisor should."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            if child.exit_code is not None or self._stopping.wait(POLL_SECONDS):
                return False
            if time.monotonic() > deadline:
                raise ChildFailed(child.name, f"wasn't ready after {seconds:.0f} s", child.log_path)
        return True

    def _restart_what_ended(self) -> None:
        ended = [child for child in (self._app, self._core) if child is not None and child.exit_code is not None]
        if ended:
            self._restart_consensus(ended[0])
            return
        rpc = self._rpc
        if rpc is not None and rpc.exit_code is not None:
            self._rpc = None
            seconds = self._rpc_pause.count(time.monotonic())
            self._rpc_due = time.monotonic() + seconds
            log.warning("rpc ended with exit code %d, starting again in %.1f s", rpc.exit_code, seconds)
        if self._rpc_due is not None and time.monotonic() >= self._rpc_due:
            self._rpc_due = None
            self._start_rpc()

    def _restart_consensus(self, ended: Child) -> None:
        core = self._core
        for child in (self._core, self._app):
            if child is not None:
                child.stop()
        if core is not None:
            _check_app_ahead(core, self._plan.home)
        self._count_restart(ended)
        self._start_consensus()

    def _count_restart(self, child: Child) -> None:
        now = time.monotonic()
        recent = [moment for moment in self._restarts if now - moment < RESTART_WINDOW_SECONDS]
        self._restarts = [*recent, now]
        reason = f"ended with exit code {child.exit_code}"
        if len(recent) >= MAX_RESTARTS:
            raise ChildFailed(child.name, f"{reason}, after {MAX_RESTARTS} restarts", child.log_path)
        log.warning("%s %s, starting again (%d of %d)", child.name, reason, len(recent) + 1, MAX_RESTARTS)

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


def fetch_status(url: str) -> dict[str, object] | None:
    """Return CometBFT's /status, None while it doesn't answer."""
    try:
        with urllib.request.urlopen(f"{url}/status", timeout=2.0) as answer:
            result: dict[str, object] = json.load(answer)["result"]
            return result
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return None


def find_free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nothing listens on now."""
    return find_free_ports(1, host)[0]


def find_free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different ports that nothing listens on now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def read_tail(path: Path, num_lines: int = 15) -> str:
    """Return the last lines of a log."""
    if not path.exists():
        return ""
    return "\n".join(_read_tail_bytes(path).decode(errors="replace").splitlines()[-num_lines:])


def _read_tail_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read()


def _check_app_ahead(core: Child, home: Path) -> None:
    match = _APP_AHEAD.search(_read_tail_bytes(core.log_path))
    if match is not None:
        raise AppAheadOfCore(home, int(match[2]), int(match[1]))


def _choose_addresses(home: Path) -> Addresses:
    """Return where CometBFT listens: as configured, or, where no peer relies on it, beside what is in use."""
    configured, has_peers = load_addresses(home)
    chosen: list[str] = []
    for address in (configured.rpc, configured.p2p):
        host, _, port = address.rpartition(":")
        is_free = port != "0" and _is_free(host, int(port)) and address not in chosen
        if not is_free and has_peers:
            raise AddressInUse(address, f"the peers of {home} expect this node there, stop what listens")
        chosen.append(address if is_free else f"{host}:{find_free_port(host)}")
        if not is_free:
            log.warning("%s is in use, taking %s", address, chosen[-1])
    return Addresses(rpc=chosen[0], p2p=chosen[1])


def _are_free(addresses: Addresses) -> bool:
    parts = [address.rpartition(":") for address in (addresses.rpc, addresses.p2p)]
    return all(_is_free(host, int(port)) for host, _, port in parts)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


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


def _make_leash(parent: int) -> Callable[[], None] | None:
    """Return what a child does before it runs: ask the kernel to die with its parent."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def put_on() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return put_on
