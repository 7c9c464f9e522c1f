"""The torch engine behind ``Rules``: one recipe, one text, one device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from training.core.canonical import CanonicalState, create_genesis, decode_parts
from training.core.errors import StatePartError, WorkerStateError
from training.core.payload import plan_payload
from training.core.recipe import Recipe, compute_recipe_digest, parse_recipe
from training.core.schedule import plan_steps
from training.core.settle import Settlement, settle, settle_void
from training.data.corpus import Corpus, load_corpus
from training.evaluation import evaluate_state
from training.local import LocalWorker
from training.worker.errors import Fatal, StateUnavailable, WorkerStateDamaged


class EngineRules:
    """What follows from a recipe, for one member on one device."""

    def __init__(self, recipe_text: str, *, member: bytes, device: str, data_file: Path | None) -> None:
        """Parse the recipe and read the text."""
        self.recipe: Recipe = parse_recipe(recipe_text)
        self._digest = compute_recipe_digest(recipe_text)
        self._member = member
        self._device = choose_device(device)
        self._corpus: Corpus = load_corpus(self.recipe.data, data_file)
        self._evaluating = threading.Lock()

    @property
    def recipe_digest(self) -> bytes:
        """Return keccak256 of the recipe's bytes."""
        return self._digest

    @property
    def held_out_digest(self) -> bytes:
        """Return the digest of the held-out text, shown beside every loss."""
        return self._corpus.held_out_digest

    @property
    def device(self) -> str:
        """Return where the inner steps run."""
        return self._device

    def create_genesis(self) -> CanonicalState:
        """Return version 0."""
        return create_genesis(self.recipe)

    def decode_parts(self, parts: Sequence[bytes]) -> CanonicalState:
        """Return the state that checkpoint parts hold."""
        try:
            return decode_parts(self.recipe, parts)
        except StatePartError as error:
            raise StateUnavailable(str(error)) from error

    def settle(
        self, state: CanonicalState, round_index: int, payloads: Sequence[bytes], *, rank: int, local_steps: int
    ) -> Settlement:
        """Return the exact outcome of a round."""
        return settle(self.recipe, state, round_index, payloads, rank=rank, local_steps=local_steps)

    def payload_bytes(self, state: CanonicalState, round_index: int, *, rank: int) -> int:
        """Return the one length that a payload of a round can have."""
        return plan_payload(self.recipe, state, round_index, rank=rank).num_bytes

    def skip(self, state: CanonicalState) -> Settlement:
        """Return the outcome of a VOID round."""
        return settle_void(state)

    def num_steps(self, round_index: int, local_steps: int) -> int:
        """Return the inner steps of a round."""
        return plan_steps(self.recipe.rounds, round_index, local_steps)

    def evaluate(self, state: CanonicalState) -> float:
        """Return the held-out loss of an agreed state, nats a byte."""
        with self._evaluating:
            return evaluate_state(self.recipe, state, self._corpus, torch.device(self._device))

    def create_engine(self, state: Any, version: int) -> LocalWorker:
        """Return a worker that starts fresh from an agreed state."""
        return LocalWorker(self.recipe, state, version, self._member, self._device, corpus=self._corpus)

    def load_engine(self, path: Path) -> LocalWorker:
        """Return a worker as saved."""
        try:
            return LocalWorker.load(path, self.recipe, self._member, self._device, corpus=self._corpus)
        except WorkerStateError as error:
            raise WorkerStateDamaged(str(path), str(error)) from error


def choose_device(wanted: str) -> str:
    """Return the device to use: ``auto`` is CUDA where there is one, else the CPU."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise Fatal(f"no device {wanted!r}", next_step="use cpu, cuda, cuda:1 or auto") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Fatal(f"--device {wanted}: no CUDA device here", next_step="use --device cpu or auto")
    return wanted
