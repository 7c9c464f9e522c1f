"""A toy engine with the real one's surface: the agreed state is a list of integers, a payload is one integer.

It keeps the worker's invariant in integers, so the tests can say exactly what a lost or doubled update would do:
``weight = theta - residual - in flight + progress``.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.core.adaptation import propose
from training.core.proposal import Link, Proposal
from training.core.recipe import Recipe
from training.core.schedule import plan_steps
from training.worker.errors import StateUnavailable, WorkerStateDamaged

BAD_PAYLOAD = b"not a payload"


@dataclass(frozen=True)
class ToyState:
    """theta, and which payloads made it."""

    theta: int = 0
    counted: tuple[tuple[int, int], ...] = ()

    def root(self) -> bytes:
        return hashlib.sha256(self._body()).digest()

    def encode_part(self, index: int, num_parts: int) -> bytes:
        body = self._body()
        size = -(-len(body) // num_parts)
        return bytes([index]) + body[index * size : (index + 1) * size]

    def _body(self) -> bytes:
        return json.dumps([self.theta, self.counted]).encode()


@dataclass(frozen=True)
class ToySettlement:
    state: ToyState
    refused: int
    reasons: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class ToyReport:
    steps: int
    tokens: int
    loss_micro: int
    skipped: int = 0
    global_step: int = 0
    rate_nano: int = 0


@dataclass
class ToyEngine:
    """Each inner step adds ``gain`` to the weight."""

    canonical: ToyState
    version: int
    gain: int
    step_seconds: float = 0.0
    pause: threading.Event = field(default_factory=threading.Event)
    residual: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    progress: int = 0
    position: list[int] = field(default_factory=lambda: [-1, 0])
    history: list[tuple[int, int, bool | None]] = field(default_factory=list)
    steps_when_sent: dict[int, int] = field(default_factory=dict)
    wanted_rank: int = 6
    recipe: Recipe | None = None

    @property
    def in_flight(self) -> tuple[int, ...]:
        return tuple(sorted(self.sent))

    def train(
        self,
        round_index: int,
        num_steps: int,
        should_stop: Callable[[], bool],
        *,
        data_seed: bytes,
        participants: Sequence[bytes],
    ) -> ToyReport:
        if self.position[0] != round_index:
            self.position = [round_index, 0]
        steps = 0
        while self.position[1] < num_steps and not should_stop():
            self.pause.wait(self.step_seconds)
            self.position[1] += 1
            self.progress += self.gain
            steps += 1
        return ToyReport(steps=steps, tokens=10 * steps, loss_micro=1_000_000)

    def send(self, round_index: int, *, rank: int) -> bytes:
        if round_index not in self.sent:
            self.steps_when_sent[round_index] = self.position[1]
            self.sent[round_index] = self.progress + self.residual
            self.progress, self.residual = 0, 0
        return struct.pack(">qqq", self.gain, self.sent[round_index], round_index)

    def get_payload(self, round_index: int) -> bytes | None:
        return self.send(round_index, rank=0) if round_index in self.sent else None

    def apply(self, settlement: Any, round_index: int, own_accepted: bool | None) -> None:
        assert round_index == self.version, (round_index, self.version)
        assert (own_accepted is None) == (round_index not in self.sent)
        self.canonical, self.version = settlement.state, round_index + 1
        self.history.append((round_index, self.canonical.theta, own_accepted))
        if own_accepted is not None:
            units = self.sent.pop(round_index)
            if not own_accepted:
                self.residual += units

    def propose(self, link: Link | None, *, rank: int) -> Proposal:
        """Propose H as the real engine does, where there is a recipe whose H may move."""
        local_steps = 0 if self.recipe is None else propose(self.recipe, (), rank, link).local_steps
        return Proposal(rank=self.wanted_rank, local_steps=local_steps)

    def save(self, path: Path) -> None:
        body = json.dumps(
            [
                [self.canonical.theta, self.canonical.counted],
                self.version,
                self.gain,
                self.residual,
                list(self.sent.items()),
                self.progress,
                self.position,
            ]
        )
        path.write_text(hashlib.sha256(body.encode()).hexdigest() + body)


class ToyRules:
    """The rules of the toy recipe."""

    def __init__(
        self,
        recipe: bytes,
        *,
        gain: int,
        steps: int = 2,
        step_seconds: float = 0.0,
        adapting: Recipe | None = None,
    ) -> None:
        """With ``adapting`` rounds have the steps of that recipe's schedule for the H that the chain says."""
        from eth_hash.auto import keccak

        self.recipe_digest = bytes(keccak(recipe))
        self.gain = gain
        self.steps = steps
        self.step_seconds = step_seconds
        self.adapting = adapting
        self.local_steps: dict[int, int] = {}
        self.pause = threading.Event()
        self.engines: list[ToyEngine] = []

    def create_genesis(self) -> ToyState:
        return ToyState()

    def decode_parts(self, parts: Sequence[bytes]) -> ToyState:
        try:
            theta, counted = json.loads(b"".join(part[1:] for part in parts))
        except (ValueError, TypeError) as error:
            raise StateUnavailable(f"parts are malformed: {error}", next_step="take another checkpoint") from error
        return ToyState(theta, tuple(tuple(item) for item in counted))

    def settle(
        self, state: ToyState, round_index: int, payloads: Sequence[bytes], *, rank: int, local_steps: int
    ) -> ToySettlement:
        theta, counted, refused = state.theta, list(state.counted), 0
        reasons = []
        for index, payload in enumerate(payloads):
            if len(payload) != 24:
                refused |= 1 << index
                reasons.append((index, f"length in bytes: {len(payload)}, expected 24"))
                continue
            gain, units, named = struct.unpack(">qqq", payload)
            if named != round_index:
                refused |= 1 << index
                reasons.append((index, f"round: {named}, expected {round_index}"))
                continue
            theta += units
            counted.append((round_index, gain))
        return ToySettlement(ToyState(theta, tuple(counted)), refused, tuple(reasons))

    def payload_bytes(self, state: ToyState, round_index: int, *, rank: int) -> int:
        return 24

    def skip(self, state: ToyState) -> ToySettlement:
        return ToySettlement(state, 0)

    def num_steps(self, round_index: int, local_steps: int) -> int:
        self.local_steps[round_index] = local_steps
        return self.steps if self.adapting is None else plan_steps(self.adapting.rounds, round_index, local_steps)

    def evaluate(self, state: ToyState) -> float:
        return 1.0 + state.theta / 1e6

    def describe_loss(self, loss: float) -> str:
        return f"{loss} nats a token"

    def compute_bits_a_byte(self, loss: float) -> float | None:
        return None

    def create_engine(self, state: ToyState, version: int) -> ToyEngine:
        return self._keep(ToyEngine(state, version, self.gain))

    def load_engine(self, path: Path) -> ToyEngine:
        text = path.read_text()
        if hashlib.sha256(text[64:].encode()).hexdigest() != text[:64]:
            raise WorkerStateDamaged(str(path), "hash differs")
        (theta, counted), version, gain, residual, sent, progress, position = json.loads(text[64:])
        state = ToyState(theta, tuple(tuple(item) for item in counted))
        engine = ToyEngine(
            state, version, gain, residual=residual, sent=dict(sent), progress=progress, position=position
        )
        return self._keep(engine)

    def _keep(self, engine: ToyEngine) -> ToyEngine:
        engine.step_seconds = self.step_seconds
        engine.recipe = self.adapting
        engine.pause = self.pause
        self.engines.append(engine)
        return engine
