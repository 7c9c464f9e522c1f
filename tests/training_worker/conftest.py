"""Workers on the in-memory chain, each in its own thread."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    full = f"training_worker_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


fakes = _load("fakes")
toy = _load("toy")
_load("tiny_recipe")
_load("views")
_load("devnet")  # for the stories on a real devnet, as training_worker_devnet

RECIPE = b'name = "toy"\n'


class Killed(BaseException):
    """The process of a worker ends here, as by kill -9: nothing after this line happens."""


class ToyWorker:
    """One worker: home, ports, rules, and the thread it runs in."""

    def __init__(self, chain: Any, name: str, home: Path, run: int, *, gain: int, **options: Any) -> None:
        self.chain = chain
        self.name = name
        self.home = home
        self.run = run
        self.gain = gain
        self.options = options
        self.ports = fakes.MemoryPorts(chain, name)
        self.rules = toy.ToyRules(RECIPE, gain=gain, **options)
        self.stop = threading.Event()
        self.summary: Any = None
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.patience_seconds = 20.0

    def start(self) -> ToyWorker:
        from training.worker.loop import Patience
        from training.worker.pace import Pace
        from training.worker.session import WorkerParts, run_worker
        from training.worker.trace import Trace

        self.stop = threading.Event()
        self.error = None
        pace = Pace()
        trace = Trace(self.home / "trace.jsonl", (pace.note,))
        parts = WorkerParts(
            chain=self.ports,
            sender=self.ports,
            payloads=self.ports,
            rules=self.rules,
            trace=trace,
            home=self.home,
            run=self.run,
            poll_seconds=0.01,
            patience=Patience(chain_seconds=self.patience_seconds, idle_seconds=20),
            pace=pace,
        )

        def body() -> None:
            try:
                self.summary = run_worker(parts, self.stop)
            except BaseException as error:  # noqa: BLE001  handed to the test
                self.error = error
            finally:
                trace.close()

        self.thread = threading.Thread(target=body, name=self.name, daemon=True)
        self.thread.start()
        return self

    def halt(self) -> None:
        self.stop.set()
        self.rules.pause.set()
        self.join()

    def join(self, seconds: float = 60.0) -> None:
        if self.thread is not None:
            self.thread.join(seconds)
            assert not self.thread.is_alive(), f"{self.name} did not end"

    @property
    def engine(self) -> Any:
        return self.rules.engines[-1]


class Net:
    """A chain with one run and its workers."""

    def __init__(self, folder: Path, chain: Any) -> None:
        self.folder = folder
        self.chain = chain
        self.workers: list[ToyWorker] = []
        self.run = 0

    def create_run(self, **params: Any) -> int:
        defaults = {
            "numFragments": 2,
            "numRounds": 6,
            "localSteps": 4,
            "roundBlocks": 60,
            "graceBlocks": 5,
            "attestBlocks": 15,
            "checkpointInterval": 4,
            "recoverBlocks": 30,
        }
        self.run = self.chain.create_run(toy.ToyState(), RECIPE, **{**defaults, **params})
        return self.run

    def worker(self, name: str, *, gain: int = 0, home: str | None = None, **options: Any) -> ToyWorker:
        number = gain or 10 ** (2 * len(self.workers))
        worker = ToyWorker(self.chain, name, self.folder / (home or name), self.run, gain=number, **options)
        self.workers.append(worker)
        return worker

    def info(self) -> Any:
        return self.chain.read("Training", "run", (self.run,))

    def wait_for(self, condition: Callable[[], bool], seconds: float = 15.0, what: str = "condition") -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            for worker in self.workers:
                if worker.error is not None:
                    raise AssertionError(f"{worker.name} failed") from worker.error
            assert time.monotonic() < deadline, f"not in {seconds} s: {what}; {self.info()}"
            time.sleep(0.005)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    chain = fakes.MemoryChain()
    found = Net(tmp_path, chain)
    chain.start()
    try:
        yield found
    finally:
        for worker in found.workers:
            worker.stop.set()
            worker.rules.pause.set()
        for worker in found.workers:
            if worker.thread is not None:
                worker.thread.join(10)
        chain.stop()
