"""The torch engine behind ``Rules``: one recipe, one text, one device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from training.core.canonical import CanonicalState, create_genesis, decode_parts
from training.core.errors import StatePartError, WorkerStateError
from training.core.layout import build_layout
from training.core.payload import plan_payload
from training.core.recipe import Recipe, compute_recipe_digest, parse_recipe
from training.core.schedule import plan_steps
from training.core.settle import Settlement, settle, settle_void
from training.data.corpus import Corpus, load_corpus
from training.evaluation import evaluate_state
from training.group.cutting import plan_stages
from training.group.worker import GroupConfig, PipelineWorker, choose_micro_batches
from training.local import LocalWorker
from training.memory import check_device, compute_needs, describe_needs, read_free_bytes
from training.worker.errors import Fatal, StateUnavailable, WorkerStateDamaged

LOG = logging.getLogger("trainer")


class EngineRules:
    """What follows from a recipe, for one member on one device."""

    def __init__(
        self,
        recipe_text: str,
        *,
        member: bytes,
        device: str,
        data_file: Path | None,
        tokenizer_file: Path | None = None,
        group: GroupConfig | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        """Parse the recipe, see that the model fits the device, and read the text.

        With ``group`` the engine is a pipeline of processes; ``on_death`` hears when one of them ends unasked.
        """
        self.recipe: Recipe = parse_recipe(recipe_text)
        self._digest = compute_recipe_digest(recipe_text)
        self._member = member
        self._device = choose_device(device)
        self._group = group
        self._on_death = on_death
        self._pipeline: PipelineWorker | None = None
        num_stages = 1 if group is None else group.num_stages
        if group is not None:
            plan_stages(self.recipe, num_stages)
            choose_micro_batches(self.recipe.inner.batch_size, num_stages, group.num_micro_batches)
        needs = compute_needs(self.recipe, num_stages=num_stages)
        LOG.info("%s", describe_needs(needs, self._device))
        check_device(needs, self._device, read_free_bytes(self._device), num_stages)
        self._corpus: Corpus = load_corpus(
            self.recipe.data, data_file, tokenizer_file=tokenizer_file, vocabulary=self.recipe.model.vocabulary
        )
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

    def create_genesis(self) -> CanonicalState | None:
        """Return version 0; None where the recipe has given tensors (`trainer run create --weights`)."""
        if any(tensor.is_given for tensor in build_layout(self.recipe).tensors):
            return None
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
        if self._group is None:
            return LocalWorker(self.recipe, state, version, self._member, self._device, corpus=self._corpus)
        self.close()
        self._pipeline = PipelineWorker(
            self.recipe,
            state,
            version,
            self._member,
            self._device,
            corpus=self._corpus,
            group=self._group,
            on_death=self._on_death,
        )
        return self._pipeline

    def load_engine(self, path: Path) -> LocalWorker:
        """Return a worker as saved, by a group of any shape or by one process."""
        try:
            if self._group is None:
                return LocalWorker.load(path, self.recipe, self._member, self._device, corpus=self._corpus)
            self.close()
            self._pipeline = PipelineWorker.load(
                path,
                self.recipe,
                self._member,
                self._device,
                corpus=self._corpus,
                group=self._group,
                on_death=self._on_death,
            )
            return self._pipeline
        except WorkerStateError as error:
            raise WorkerStateDamaged(str(path), str(error)) from error

    def check(self) -> None:
        """Raise `StageDiedError` where a process of the group has ended unasked."""
        if self._pipeline is not None:
            self._pipeline.check()

    def close(self) -> None:
        """End the group's processes, if there are any; idempotent."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None


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
