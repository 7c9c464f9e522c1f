"""The torch engine behind ``Rules``: one recipe, one text, one device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from training.core.canonical import CanonicalState, create_genesis, decode_parts
from training.core.errors import StatePartError, WorkerStateError
from training.core.layout import build_layout
from training.core.loss_unit import LossUnit
from training.core.payload import plan_payload
from training.core.recipe import Recipe
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.core.schedule import plan_steps
from training.core.settle import Settlement, settle, settle_void
from training.data.corpus import Corpus, check_size, check_text, load_corpus
from training.evaluation import evaluate_state
from training.group.accumulating import create_inner_loop
from training.group.pipeline import PipelineWorker
from training.group.shape import GroupConfig, check_shape, plan_devices
from training.group.sharded import ShardedWorker
from training.group.worker import GroupWorker
from training.inner import InnerLoop, Precision
from training.local import LocalWorker
from training.memory import check_devices, describe_needs, plan_needs, read_free_bytes
from training.models.registry import check_module
from training.worker.errors import ANOTHER_CHECKPOINT, Fatal, StateUnavailable, WorkerStateDamaged

LOG = logging.getLogger("trainer")

BF16_CAPABILITY = (8, 0)
"""Least compute capability of a GPU with products in bf16: Ampere."""

EVALUATION_COPIES = 2
"""Of the float32 model, that an evaluation takes on its device with its activations, about."""


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
        precision: str = "fp32",
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Parse the recipe, see that the model fits the device, and read the text, which must be the run's.

        ``group`` says of how many processes the engine is made, and of how many micro-batches a step; ``on_end``
        hears when one of several processes ends unasked or is told to stop.
        """
        self.recipe: Recipe = parse_recipe(recipe_text)
        check_module(self.recipe.model)
        self._digest = compute_recipe_digest(recipe_text)
        self._member = member
        self._device = choose_device(device)
        self._precision = choose_precision(precision, self._device)
        self._on_end = on_end
        self._engine: GroupWorker | None = None
        shape = replace(GroupConfig() if group is None else group, precision=self._precision)
        self._shape = shape
        check_shape(self.recipe, shape)
        devices = plan_devices(self._device, shape.num_processes, torch.cuda.device_count())
        needs = plan_needs(self.recipe, shape, devices)
        free = {device: read_free_bytes(device) for device in sorted({*devices, "cpu"})}
        for line in describe_needs(needs, free):
            LOG.info("%s", line)
        check_devices(needs, free)
        self._corpus: Corpus = load_corpus(
            self.recipe.data, data_file, tokenizer_file=tokenizer_file, vocabulary=self.recipe.model.vocabulary
        )
        check_text(self.recipe.data, self._corpus, data_file)
        check_size(self._corpus, self.recipe.model.context)
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

    @property
    def loss_unit(self) -> LossUnit:
        """Return what losses over this text are counted in."""
        return self._corpus.loss_unit

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
            raise StateUnavailable(str(error), next_step=ANOTHER_CHECKPOINT) from error

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
        """Return the held-out loss of an agreed state, nats a token."""
        with self._evaluating:
            return evaluate_state(self.recipe, state, self._corpus, self._choose_evaluation_device())

    def describe_loss(self, loss: float) -> str:
        """Write a held-out loss with its unit, and in bits a byte where that is known."""
        return self._corpus.describe_loss(loss)

    def compute_bits_a_byte(self, loss: float) -> float | None:
        """Return a held-out loss in bits a byte of text; None where the text is a file of tokens."""
        return self._corpus.compute_bits_a_byte(loss)

    def create_engine(self, state: Any, version: int) -> LocalWorker:
        """Return a worker that starts fresh from an agreed state."""
        if self._shape.num_processes == 1:
            return LocalWorker(
                self.recipe,
                state,
                version,
                self._member,
                self._device,
                corpus=self._corpus,
                inner=self._create_inner(),
            )
        self.close()
        self._engine = self._kind(self._shape)(
            self.recipe,
            state,
            version,
            self._member,
            self._device,
            corpus=self._corpus,
            group=self._shape,
            on_end=self._on_end,
        )
        return self._engine

    def load_engine(self, path: Path) -> LocalWorker:
        """Return a worker as saved, by a group of any shape or by one process."""
        try:
            if self._shape.num_processes == 1:
                return LocalWorker.load(
                    path,
                    self.recipe,
                    self._member,
                    self._device,
                    corpus=self._corpus,
                    inner=self._create_inner(),
                )
            self.close()
            self._engine = self._kind(self._shape).load(
                path,
                self.recipe,
                self._member,
                self._device,
                corpus=self._corpus,
                group=self._shape,
                on_end=self._on_end,
            )
            return self._engine
        except WorkerStateError as error:
            raise WorkerStateDamaged(str(path), str(error)) from error

    def check(self) -> None:
        """Raise `GroupEndedError` where a process of the group has ended unasked."""
        if self._engine is not None:
            self._engine.check()

    def close(self) -> None:
        """End the group's processes, if there are any; idempotent."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _create_inner(self) -> InnerLoop:
        return create_inner_loop(
            self.recipe, torch.device(self._device), self._precision, self._shape.num_micro_batches
        )

    def _choose_evaluation_device(self) -> torch.device:
        """Return the worker's device; the CPU where the whole model has no room beside what is kept there."""
        device = torch.device(self._device)
        needed = EVALUATION_COPIES * 4 * build_layout(self.recipe).num_parameters
        if device.type == "cuda" and read_free_bytes(self._device) < needed:
            return torch.device("cpu")
        return device

    @staticmethod
    def _kind(group: GroupConfig) -> type[GroupWorker]:
        return ShardedWorker if group.num_shards > 1 else PipelineWorker


def choose_precision(wanted: str, device: str) -> Precision:
    """Return the precision to use: ``auto`` is bf16 on a GPU that has it, else fp32."""
    if wanted == "auto":
        chosen = torch.device(device)
        is_fast = chosen.type == "cuda" and torch.cuda.get_device_capability(chosen) >= BF16_CAPABILITY
        return Precision.BF16 if is_fast else Precision.FP32
    if wanted not in list(Precision):
        raise Fatal(f"no precision {wanted!r}", next_step="use fp32, bf16 or auto")
    return Precision(wanted)


def choose_device(wanted: str) -> str:
    """Return the device to use: ``auto`` is CUDA where there is one, else the CPU."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise Fatal(f"no device {wanted!r}", next_step="use cpu, cuda, cuda:1 or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise Fatal(f"no device {wanted!r}", next_step="use cpu, cuda, cuda:1 or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Fatal(f"--device {wanted}: no CUDA device here", next_step="use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"the last one is cuda:{torch.cuda.device_count() - 1}"
        raise Fatal(f"--device {wanted}: {found}", next_step="name one that is there, or auto")
    return wanted
