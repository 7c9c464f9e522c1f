"""What the worker's loop needs from the chain, the stores and the engine.

The loop sees only these protocols, so the tests drive it with the real contracts in memory, payloads in a
dictionary and a toy engine, and the process drives it with JSON-RPC, storage nodes and torch.  The engine's
protocols carry more than five methods because they are the engine's whole public surface, kept in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from contracts.bindings.readers import StorageReader, TrainingReader
from training.core.proposal import Link, Proposal


class ChainPort(Protocol):
    """Reads committed state; raises ``contracts.bindings.errors.ChainUnreachable`` while no URL answers."""

    @property
    def training(self) -> TrainingReader:
        """Views of the Training contract."""

    @property
    def storage(self) -> StorageReader:
        """Views of the Storage contract."""

    def height(self) -> int:
        """Return the newest complete block."""

    def has_events(self, contract: str, topic: bytes, *, from_height: int, to_height: int) -> bool:
        """Say whether a contract told of anything about ``topic`` (a run's number) in these blocks, ends included."""

    def genesis_hash(self) -> bytes:
        """Return the chain's 32-byte identity."""


class ReceiptLike(Protocol):
    """A mined transaction."""

    @property
    def height(self) -> int:
        """The block it is in."""


class SenderPort(Protocol):
    """One key's transactions to the Training contract, in three steps so that the raw bytes can be made durable."""

    @property
    def address(self) -> str:
        """Checksummed address of the key."""

    def send(self, function: str, *args: Any, value: int = 0, deadline_seconds: float = 30.0) -> ReceiptLike:
        """Sign, broadcast and wait; raises ContractError when the contract refuses."""

    def sign(self, function: str, *args: Any, value: int = 0) -> bytes:
        """Return a raw signed transaction."""

    def deliver(self, raw: bytes, deadline_seconds: float) -> ReceiptLike:
        """Broadcast a raw transaction, again if need be, and wait for its receipt; never signs a second one."""


class PayloadPort(Protocol):
    """Certified blobs in the stores."""

    def put(self, data: bytes, *, tier: int, blocks: int) -> bytes:
        """Disperse bytes and return the encoded certificate; raises PayloadUnavailable."""

    def get(self, blob: bytes, *, max_bytes: int) -> bytes:
        """Return verified bytes; raises PayloadUnavailable, or PayloadInconsistent (the same for every reader)."""

    def traffic(self) -> dict[str, int]:
        """Return the bytes at the sockets so far, by name."""


class AgreedState(Protocol):
    """The integers that the members agree on."""

    def root(self) -> bytes:
        """Return the 32-byte root."""

    def encode_part(self, index: int, num_parts: int) -> bytes:
        """Return one part of a checkpoint."""


class Settled(Protocol):
    """What a round makes of a state."""

    @property
    def state(self) -> Any:
        """The state after the round."""

    @property
    def refused(self) -> int:
        """Bit i set: payload i did not validate and has no weight."""

    @property
    def reasons(self) -> tuple[tuple[int, str], ...]:
        """(i, why payload i did not validate), for people."""


class Trained(Protocol):
    """What inner steps report."""

    @property
    def steps(self) -> int:
        """Inner steps done."""

    @property
    def tokens(self) -> int:
        """Tokens seen."""

    @property
    def loss_micro(self) -> int:
        """Mean training loss, micronats a token."""

    @property
    def skipped(self) -> int:
        """Steps among them that were not finite and changed nothing."""

    @property
    def global_step(self) -> int:
        """The run's step that comes next."""

    @property
    def rate_nano(self) -> int:
        """Inner learning rate of the last step, in units of 10^-9."""


class LocalEngine(Protocol):
    """One worker's weights and optimizers between two rounds."""

    @property
    def version(self) -> int:
        """Settled rounds that are in the local weights."""

    @property
    def canonical(self) -> Any:
        """The agreed state of ``version``."""

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Rounds of ours that were sent and are neither counted nor returned."""

    def train(
        self,
        round_index: int,
        num_steps: int,
        should_stop: Callable[[], bool],
        *,
        data_seed: bytes,
        participants: Sequence[bytes],
    ) -> Trained:
        """Run inner steps up to ``num_steps`` in all; called again for the same round it goes on where it stopped."""

    def send(self, round_index: int, *, rank: int) -> bytes:
        """Take the round's fragment out of the local progress and return its payload."""

    def get_payload(self, round_index: int) -> bytes | None:
        """Return the payload of ours that is in flight in a round, None where none is."""

    def apply(self, settlement: Any, round_index: int, own_accepted: bool | None) -> None:
        """Let a settled round enter the weights; None where nothing of ours was sent in it."""

    def propose(self, link: Link | None, *, rank: int) -> Proposal:
        """Return the rank and H this worker would have, from what it sent and measured; called from any thread."""

    def save(self, path: Path) -> None:
        """Write the whole worker state, hashed."""


class Rules(Protocol):
    """Everything about a recipe that does not belong to one worker's weights."""

    @property
    def recipe_digest(self) -> bytes:
        """keccak256 of the recipe's bytes."""

    def create_genesis(self) -> Any:
        """Return the state of version 0, None where the run begins from weights that only the stores have."""

    def decode_parts(self, parts: Sequence[bytes]) -> Any:
        """Return the state that checkpoint parts hold; raises StateUnavailable on malformed ones."""

    def settle(
        self, state: Any, round_index: int, payloads: Sequence[bytes], *, rank: int, local_steps: int
    ) -> Settled:
        """Return the exact outcome of a round; payloads in commit order."""

    def payload_bytes(self, state: Any, round_index: int, *, rank: int) -> int:
        """Return the one length that a payload of a round can have."""

    def skip(self, state: Any) -> Settled:
        """Return the outcome of a VOID round: the same state."""

    def num_steps(self, round_index: int, local_steps: int) -> int:
        """Return the inner steps of a round; 0 in flush rounds."""

    def evaluate(self, state: Any) -> float:
        """Return the held-out loss of the agreed weights, nats a token."""

    def describe_loss(self, loss: float) -> str:
        """Write a held-out loss with its unit, for people."""

    def compute_bits_a_byte(self, loss: float) -> float | None:
        """Return a held-out loss in bits a byte of text, None where it isn't known."""

    def create_engine(self, state: Any, version: int) -> LocalEngine:
        """Return a worker that starts fresh from an agreed state."""

    def load_engine(self, path: Path) -> LocalEngine:
        """Return a worker as saved; raises WorkerStateDamaged when the file is not whole."""
