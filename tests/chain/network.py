"""Several real validators on this machine, whose links can be cut: each dials each through a forwarder of its own."""

from __future__ import annotations

import contextlib
import re
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from real_node import Node, wait_until

from chain.cometbft import Timing
from chain.home import Addresses, create_network
from chain.ports import find_free_ports
from chain.settings import NodeSettings, save_settings
from chain.store import Reader

MORE_BLOCKS = 4
SIGNED = "priv_validator_state.json"
"""What a validator's key has signed last."""
_READ_BYTES = 1 << 16


class Link:
    """Forwards one node's connections to another until it is cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_cut = False
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close what is open and take nothing new."""
        with self._lock:
            self._is_cut = True
            self._shut_all()

    def heal(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self._is_closed = True
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=2)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
                if self._is_cut:
                    self._shut_all()
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, near, far, contextlib.suppress(OSError):
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(_READ_BYTES)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)

    def _shut_all(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()


class Network:
    """Validators 0 .. n-1, and nodes that join later."""

    def __init__(
        self, directory: Path, app_state: dict[str, Any], *, num_validators: int, settings: NodeSettings, timing: Timing
    ) -> None:
        homes = [directory / f"v{index}" for index in range(num_validators)]
        listen = [f"127.0.0.1:{port}" for port in find_free_ports(2 * num_validators)]
        addresses = [Addresses(rpc=rpc, p2p=p2p) for rpc, p2p in zip(listen[::2], listen[1::2], strict=True)]
        self.keys = create_network(
            homes,
            chain_id="node-test",
            app_state=app_state,
            addresses=addresses,
            timing=timing,
            time=datetime.now(UTC),
        )
        self.links: dict[tuple[int, int], Link] = {}
        for dialling, home in enumerate(homes):
            peers = []
            for dialled, address in enumerate(addresses):
                if dialled != dialling:
                    host, _, port = address.p2p.rpartition(":")
                    link = self.links[dialling, dialled] = Link((host, int(port)))
                    peers.append(f"{self.keys[dialled].node_id}@127.0.0.1:{link.port}")
            path = home / "config" / "config.toml"
            text = re.sub(
                r"persistent_peers = .*", f'persistent_peers = "{",".join(peers)}"\npex = false', path.read_text()
            )
            path.write_text(text)
            save_settings(home, settings)
        self.nodes = [Node(home) for home in homes]

    def start(self, indices: Collection[int], *, rpc_port: int = 0) -> None:
        """Start several at once and wait for all; ``rpc_port`` is that of the first one's JSON-RPC."""
        for place, index in enumerate(indices):
            self.nodes[index].spawn(rpc_port=rpc_port if place == 0 else 0)
        for index in indices:
            self.nodes[index].wait_for_start()

    def isolate(self, group: Collection[int]) -> None:
        """Cut every link between a group and the rest."""
        for (dialling, dialled), link in self.links.items():
            if (dialling in group) != (dialled in group):
                link.cut()

    def heal(self) -> None:
        for link in self.links.values():
            link.heal()

    def kill(self, index: int) -> None:
        """Kill a node's supervisor; the kernel kills its children."""
        process = self.nodes[index].process
        assert process is not None
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        psutil.wait_procs(children, timeout=10)
        self.nodes[index].process = None

    @contextlib.contextmanager
    def paused(self, indices: Collection[int]) -> Iterator[None]:
        """Stop the processes of some nodes (SIGSTOP) while the block runs."""
        stopped = []
        for index in indices:
            process = self.nodes[index].process
            assert process is not None
            stopped += psutil.Process(process.pid).children(recursive=True)
        for each in stopped:
            each.suspend()
        try:
            yield
        finally:
            for each in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()

    def check_halted(self, indices: Collection[int], seconds: float) -> None:
        """See for a while that these make no blocks but the one that was under way."""
        nodes = [self.nodes[index] for index in indices]
        halted = max(node.height() for node in nodes) + 1
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert max(node.height() for node in nodes) <= halted, "two of four are no quorum"
            time.sleep(0.05)

    def close(self) -> None:
        """Leave nothing running."""
        for index, node in enumerate(self.nodes):
            if node.process is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.kill(index)
        for link in self.links.values():
            link.close()


def keep_app(node: Node, place: Path) -> None:
    """Copy the application's database of a node that is down."""
    shutil.copytree(node.home / "app", place)


def keep_core(node: Node, place: Path) -> None:
    """Copy CometBFT's data of a node that is down, but not what its key has signed: that must never go back."""
    shutil.copytree(node.home / "data", place, ignore=shutil.ignore_patterns(SIGNED))


def rewind_app(node: Node, older: Path) -> None:
    """Put an older database in place: the application is behind, or, with ``older`` missing, empty."""
    shutil.rmtree(node.home / "app")
    if older.exists():
        shutil.move(older, node.home / "app")


def rewind_core(node: Node, older: Path) -> None:
    """Put CometBFT's older data in place: the application is ahead."""
    shutil.copy(node.home / "data" / SIGNED, older / SIGNED)
    shutil.rmtree(node.home / "data")
    shutil.move(older, node.home / "data")


class Sender:
    """Sends one transaction after another and remembers them."""

    def __init__(self, signer: Any) -> None:
        self._signer = signer
        self.raws: list[bytes] = []

    def send(self, node: Node) -> None:
        """Send the next one and wait until ``node`` has executed it."""
        raw = self._signer.raw(len(self.raws))
        self.raws.append(raw)
        assert node.send(raw)["code"] == 0
        wait_until(lambda: node.find(raw), "executed")

    def send_shuffled(self, nodes: list[Node], count: int) -> None:
        """Send some, the last first and each to another node, and wait until all have executed all in order."""
        start = len(self.raws)
        self.raws += [self._signer.raw(start + index) for index in range(count)]
        for index, raw in enumerate(reversed(self.raws[start:])):
            assert nodes[index % len(nodes)].send(raw)["code"] == 0
        wait_until(lambda: all(node.find(self.raws[-1]) for node in nodes), "executed everywhere")
        places = [nodes[0].find(raw) for raw in self.raws]
        assert places == sorted(place for place in places if place is not None)


def grow(nodes: list[Node]) -> int:
    """Wait until each has some more blocks than the highest has now; return the height."""
    target = max(node.height() for node in nodes) + MORE_BLOCKS
    for node in nodes:
        node.wait_for_height(target)
    return target


def check_same_chain(nodes: list[Node]) -> int:
    """Compare all blocks that two nodes have; return how many were compared."""
    known: dict[int, Any] = {}
    compared = 0
    for node in nodes:
        with Reader(node.home / "app") as reader, reader.snapshot() as snapshot:
            for height in range(snapshot.first_height, snapshot.height + 1):
                block = snapshot.block(height)
                assert block is not None, (node.home.name, height)
                assert known.setdefault(height, block) == block, (node.home.name, height)
                compared += 1
    return compared
