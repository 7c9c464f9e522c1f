"""The engine of one worker, without chain or network (interface; the body follows)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from training.core.canonical import CanonicalState
from training.core.recipe import Recipe
from training.core.settle import Settlement
from training.data.corpus import Corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """What the inner steps of a round did."""

    steps: int
    """Inner steps done (fewer than asked when ``should_stop`` said so)."""
    tokens: int
    """Bytes predicted."""
    loss_micro: int
    """Mean training loss, micronats a token; 0 without steps."""
    skipped: int
    """Steps whose gradient was not finite and that changed nothing."""


class LocalWorker:
    """One worker's weights, inner optimizer and error feedback."""

    def __init__(
        self,
        recipe: Recipe,
        canonical: CanonicalState,
        version: int,
        member: bytes,
        device: str | torch.device = "cpu",
        *,
        corpus: Corpus,
    ) -> None:
        """Start fresh at ``version`` of the agreed state: nothing in flight, no error feedback."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """Settled rounds applied here."""
        raise NotImplementedError

    @property
    def canonical(self) -> CanonicalState:
        """The agreed state applied here."""
        raise NotImplementedError

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Rounds whose own update has been sent and neither counted nor returned, ascending."""
        raise NotImplementedError

    def train(
        self,
        round_index: int,
        num_steps: int,
        should_stop: Callable[[], bool] | None = None,
        *,
        data_seed: bytes | None = None,
        participants: Sequence[bytes] = (),
        on_step: Callable[[int, float], None] | None = None,
    ) -> TrainReport:
        """Do up to ``num_steps`` inner steps on this member's samples of the round.

        ``data_seed`` is the chain's (default: from the recipe's seed and the round); ``participants`` are the
        members of V, among whom the samples are shared out; ``should_stop`` is asked before each step.
        Called again for the same round it goes on where it stopped.
        """
        raise NotImplementedError

    def send(self, round_index: int, *, rank: int) -> bytes:
        """Compress this round's fragment, keep it as in flight, return the payload. Save before sending it.

        Called again for the same round it returns the same bytes. Raises `NonFiniteUpdateError`.
        """
        raise NotImplementedError

    def apply(self, settlement: Settlement, round_index: int, own_accepted: bool | None) -> None:
        """Move to version ``round_index + 1``; own_accepted: counted, not counted, or None where nothing was sent.

        Raises `VersionMismatchError`.
        """
        raise NotImplementedError

    def return_unaccepted(self, round_index: int) -> None:
        """Take an update that will not count back into error feedback (late, or never committed). Idempotent."""
        raise NotImplementedError

    def adopt(self, round_index: int, payload: bytes, *, rank: int) -> None:
        """Mark an own payload found on the chain, unknown to an older saved state, as in flight."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Make the whole worker state durable: write, sync, rename; the one before stays as ``<path>.previous``."""
        raise NotImplementedError

    @classmethod
    def load(
        cls, path: Path, recipe: Recipe, member: bytes, device: str | torch.device = "cpu", *, corpus: Corpus
    ) -> LocalWorker:
        """Restore what ``save`` wrote, bit for bit; the previous one where the newest is damaged (with a warning).

        Raises `WorkerStateMissingError`, `WorkerStateDamagedError`, `WorkerStateForeignError`.
        """
        raise NotImplementedError

    def digest(self) -> bytes:
        """Return the hash of the whole worker state, 32 bytes."""
        raise NotImplementedError

    def evaluate(self, state: CanonicalState) -> float:
        """Return the held-out loss of an agreed state, nats a byte."""
        raise NotImplementedError
