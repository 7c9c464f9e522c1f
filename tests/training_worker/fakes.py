"""The real system contracts in memory, behind the worker's ports: blocks by a ticker, payloads in a dictionary."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from blake3 import blake3

from chain.core.native import Revert
from contracts.bindings.encoding import checksummed, decode_error, decode_output, encode_call
from contracts.bindings.errors import ChainUnreachable, DeadlinePassed
from contracts.bindings.readers import StorageReader, TrainingReader
from da.core.types import Tier
from training.worker.errors import PayloadUnavailable


def _load_driver() -> ModuleType:
    name = "contracts_native_driver"
    if name not in sys.modules:
        path = Path(__file__).resolve().parent.parent / "contracts_native" / "driver.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


DRIVER = _load_driver()


class MemoryChain:
    """Contracts, a lock, and a thread that makes blocks."""

    def __init__(self, *, block_seconds: float = 0.02) -> None:
        self.inner = DRIVER.Chain()
        self.lock = threading.RLock()
        self.block_seconds = block_seconds
        self.blobs: dict[bytes, bytes] = {}
        self.withheld: set[bytes] = set()
        self.mined: dict[bytes, int] = {}
        self.sends: list[tuple[str, str, tuple[Any, ...]]] = []
        self.log_heights: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def create_run(self, genesis: Any, recipe: bytes, **params: Any) -> int:
        with self.lock:
            parts = params.get("numCheckpointParts", 2)
            run: int = self.inner.call(
                "Training",
                "createRun",
                DRIVER.run_params(**params),
                recipe,
                genesis.root(),
                sender="owner",
                value=10**20,
            )
            for part in range(parts):
                certificate = self.put(genesis.encode_part(part, parts), int(Tier.HOT), 2_000)
                self.inner.call("Training", "checkpoint", run, 0, part, certificate, sender="owner")
            self.inner.advance()
            return run

    def put(self, data: bytes, tier: int, blocks: int) -> bytes:
        with self.lock:
            blob = blake3(data + bytes([tier])).digest()
            self.blobs[blob] = data
            certificate: bytes = self.inner.certificate(
                blob, tier=Tier(tier), size=len(data), expiry=self.inner.height + blocks
            )
            return certificate

    def read(self, contract: str, function: str, arguments: tuple[Any, ...]) -> Any:
        with self.lock:
            context = self.inner._context(DRIVER.make_address("viewer"), 0, is_static=True, gas=10**9)
            try:
                output = self.inner.contracts[contract].process_call(
                    context, encode_call(contract, function, arguments)
                )
            except Revert as revert:
                error = decode_error(revert.data)
                assert error is not None
                raise error from revert
            return decode_output(contract, function, output)

    def execute(self, name: str, function: str, args: tuple[Any, ...], value: int) -> int:
        with self.lock:
            try:
                self.inner.call_raw("Training", encode_call("Training", function, args), sender=name, value=value)
            except DRIVER.Reverted as reverted:
                cause = reverted.__cause__
                assert isinstance(cause, Revert)
                error = decode_error(cause.data)
                assert error is not None
                raise error from reverted
            self.sends.append((name, function, args))
            self._stamp()
            return int(self.inner.height)

    def has_events(self, contract: str, topic: bytes, from_height: int, to_height: int) -> bool:
        with self.lock:
            stamped = zip(self.inner.logs, self.log_heights, strict=False)
            address = self.inner.contracts[contract].address
            return any(
                from_height <= height <= to_height and log.address == address and log.topics[1] == topic
                for log, height in stamped
            )

    def _stamp(self) -> None:
        """Note the block of the logs that are new."""
        self.log_heights += [int(self.inner.height)] * (len(self.inner.logs) - len(self.log_heights))

    def _tick(self) -> None:
        while not self._stop.wait(self.block_seconds):
            with self.lock:
                self._stamp()
                height = int(self.inner.height)
                self.inner.advance()
                self.log_heights += [height] * (len(self.inner.logs) - len(self.log_heights))


class MemoryReceipt:
    def __init__(self, height: int) -> None:
        self.height = height


class MemoryPorts:
    """One worker's chain, sender and stores; each can be cut off."""

    def __init__(self, chain: MemoryChain, name: str) -> None:
        self.memory = chain
        self.name = name
        self.address = checksummed("0x" + DRIVER.make_address(name).hex())
        self.is_cut = False
        self.lag_blocks = 0
        self.before_broadcast: Callable[[str], None] = lambda _function: None
        self.after_broadcast: Callable[[str], None] = lambda _function: None
        self.before_put: Callable[[], None] = lambda: None
        self.num_signed = 0
        self.training = TrainingReader(self._read)
        self.storage = StorageReader(self._read)

    # ChainPort

    def height(self) -> int:
        self._check()
        return int(self.memory.inner.height) - 1 - self.lag_blocks

    def has_events(self, contract: str, topic: bytes, *, from_height: int, to_height: int) -> bool:
        self._check()
        with self.memory.lock:
            return self.memory.has_events(contract, topic, from_height, to_height)

    def genesis_hash(self) -> bytes:
        return bytes(DRIVER.GENESIS_HASH)

    # SenderPort

    def send(self, function: str, *args: Any, value: int = 0, deadline_seconds: float = 30.0) -> MemoryReceipt:
        self._check()
        return MemoryReceipt(self.memory.execute(self.name, function, args, value))

    def sign(self, function: str, *args: Any, value: int = 0) -> bytes:
        self._check()
        self.num_signed += 1
        plain = [item.hex() if isinstance(item, bytes) else item for item in args]
        return json.dumps([self.num_signed, function, plain, [isinstance(item, bytes) for item in args]]).encode()

    def deliver(self, raw: bytes, deadline_seconds: float) -> MemoryReceipt:
        key = blake3(raw).digest()
        _, function, plain, is_bytes = json.loads(raw)
        self.before_broadcast(function)
        if self.is_cut:
            raise DeadlinePassed(key, deadline_seconds)
        with self.memory.lock:
            if key not in self.memory.mined:
                args = tuple(bytes.fromhex(item) if flag else item for item, flag in zip(plain, is_bytes, strict=True))
                self.memory.mined[key] = self.memory.execute(self.name, function, args, 0)
        self.after_broadcast(function)
        return MemoryReceipt(self.memory.mined[key])

    # PayloadPort

    def put(self, data: bytes, *, tier: int, blocks: int) -> bytes:
        self.before_put()
        return self.memory.put(data, tier, blocks)

    def get(self, blob: bytes, *, max_bytes: int) -> bytes:
        with self.memory.lock:
            if blob in self.memory.withheld or blob not in self.memory.blobs:
                raise PayloadUnavailable(blob, "no seat has it")
            return self.memory.blobs[blob]

    def traffic(self) -> dict[str, int]:
        return {"payload_sent": 0, "payload_received": 0, "rpc_sent": 0, "rpc_received": 0}

    def _read(self, contract: str, function: str, arguments: tuple[Any, ...]) -> Any:
        self._check()
        return self.memory.read(contract, function, arguments)

    def _check(self) -> None:
        if self.is_cut:
            raise ChainUnreachable([("memory", "cut off")])
