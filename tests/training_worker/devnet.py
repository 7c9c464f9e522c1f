"""A devnet of real processes, a run on it, and its workers as people start them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from contracts.bindings.client import ChainClient
from contracts.bindings.keys import load_key
from contracts.bindings.sender import Sender
from contracts.bindings.types import UpdateFate
from training.cli import main

UP_SECONDS = 240.0
WAIT_SECONDS = 150.0
"""For what a worker does after its start: that alone took 75 s on two cores with a load of 12."""
STOP_SECONDS = 10.0


def run_trainer(*arguments: object, code: int = 0) -> str:
    """Run a trainer command in this process, as the console script does; return what it printed."""
    out, err, got = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["trainer", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit_:
            got = int(exit_.code or 0)
    assert got == code, f"exit {got}\n{out.getvalue()}{err.getvalue()}"
    return out.getvalue() if code == 0 else err.getvalue()


def run_localnet(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "localnet.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass
class Worker:
    """One ``trainer join`` process."""

    name: str
    folder: Path
    url: str
    address: str
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / self.name

    @property
    def key_file(self) -> Path:
        return self.folder / f"{self.name}.key"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def start(self) -> Worker:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "training.cli", "join", "--run", "1", "--chain", self.url),
                    *("--key-file", self.key_file, "--home", self.home, "--threads", "1", "--evaluate-every", "8"),
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
            )
        return self

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@dataclass(kw_only=True)
class Devnet:
    """The devnet, the run and its workers."""

    folder: Path
    client: ChainClient
    url: str
    owner: Sender | None = None
    workers: dict[str, Worker] = field(default_factory=dict)

    def info(self) -> Any:
        return self.client.training.run(1)

    def member(self, name: str) -> Any:
        return self.client.training.member(1, self.workers[name].address)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            tails = "\n".join(f"--- {worker.name}\n{worker.log[-1500:]}" for worker in self.workers.values())
            assert time.monotonic() < deadline, f"not in {seconds} s: {what}\n{self.info()}\n{tails}"
            time.sleep(0.05)

    def wait_for_counted(self, name: str, first_round: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until an update of a round that had not been opened when it was ``first_round``'s turn has counted."""
        address = self.workers[name].address

        def has_counted() -> bool:
            return any(
                self.client.training.update(1, t, address).fate is UpdateFate.ACCEPTED
                for t in range(first_round, self.info().num_settled)
            )

        self.wait_for(has_counted, f"an update of {name} from round {first_round} on counts", seconds)

    def fates(self, name: str) -> list[UpdateFate]:
        address = self.workers[name].address
        return [self.client.training.update(1, t, address).fate for t in range(self.info().num_settled)]

    def create_run(self, recipe: str, *arguments: object) -> None:
        """Create run 1 for the workers there are, with rounds of seconds."""
        (self.folder / "recipe.toml").write_text(recipe)
        created = run_trainer(
            *("run", "create", self.folder / "recipe.toml", "--chain", self.url),
            *("--key-file", self.folder / "owner.key", "--json", *arguments),
            *("--round-seconds", "5", "--grace-seconds", "1.5", "--attest-seconds", "3", "--recover-seconds", "20"),
            *(part for worker in self.workers.values() for part in ("--allow", worker.address)),
        )
        assert json.loads(created)["run"] == 1


@contextlib.contextmanager
def open_devnet(folder: Path, names: Sequence[str], create: Callable[..., Devnet] = Devnet) -> Iterator[Any]:
    """Bring a devnet up, with a funded owner and a funded key for each worker; take all down at the end."""
    net = folder / "net"
    found: Devnet | None = None
    try:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        run_localnet("up", "--detach", "--home", net, "--rpc-port", port)
        url = json.loads(run_localnet("status", "--home", net, "--json"))["rpc_urls"][0]
        found = create(folder=folder, client=ChainClient([url]), url=url)
        addresses = {
            name: json.loads(run_trainer("keys", "new", folder / f"{name}.key", "--json"))["address"]
            for name in ("owner", *names)
        }
        run_localnet("fund", addresses["owner"], "--home", net)
        found.owner = Sender(found.client, load_key(folder / "owner.key"))
        for name in names:
            found.owner.transfer(addresses[name], 10**19)
            found.workers[name] = Worker(name=name, folder=folder, url=url, address=addresses[name])
        yield found
    finally:
        if found is not None:
            for worker in found.workers.values():
                if worker.process is not None and worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait(STOP_SECONDS)
            found.client.close()
        if net.exists():
            run_localnet("down", "--home", net)
