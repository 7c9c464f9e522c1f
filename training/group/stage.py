"""One process of a pipeline: some layers, their AdamW, and their part of everything a worker keeps to itself.

Inner and outer optimizer live with their stage (DiLoCoX's dual optimizer): theta, momentum, residual, what is in
flight and the codec's warm starts of a tensor are here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from training.core.canonical import CanonicalState
from training.core.payload import PayloadPlan
from training.core.recipe import Recipe
from training.core.settle import Settlement
from training.data.corpus import Corpus
from training.group.accumulating import finish_step, take_mean
from training.group.cutting import TIED, GptStage, compute_logit_loss, plan_stages
from training.group.serving import ProcessConfig
from training.inner import InnerLoop
from training.local import LocalWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """What is the same for all stages of a worker."""

    recipe: Recipe
    """The run's."""
    member: bytes
    """The worker's address."""
    num_micro_batches: int
    """Of one step; divides the batch."""
    schedule: str
    """1f1b or gpipe."""


class StageLoop(InnerLoop):
    """The inner loop of one stage: same numbers, in the same order, as `AccumulatingLoop` has for its tensors."""

    def __init__(self, config: StageConfig, process: ProcessConfig) -> None:
        """Build the stage's layers and the schedule; the process group must be up."""
        recipe, num_stages = config.recipe, process.num_processes
        self._stage = GptStage(recipe.model, process.index, num_stages)
        super().__init__(recipe, torch.device(process.device), self._stage, process.precision)
        self.weights = self._stage.own_weights()
        self._num_micro_batches = config.num_micro_batches
        self._last = num_stages - 1
        self._all_names = sorted(name for names in plan_stages(recipe, num_stages) for name in names)
        piped = PipelineStage(self._stage, process.index, num_stages, self.device)
        kind = Schedule1F1B if config.schedule == "1f1b" else ScheduleGPipe
        self._schedule = kind(piped, config.num_micro_batches, loss_fn=compute_logit_loss, scale_grads=False)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do this stage's part of one step; all stages return the same."""
        self._stage.zero_grad(set_to_none=True)
        self._lend_tied_weight()
        samples_BT = samples_BT.to(self.device)
        losses: list[torch.Tensor] = []
        with self.autocast():  # of forward passes; a backward pass keeps the types that its forward had
            if self._stage.is_first:
                self._schedule.step(samples_BT[:, :-1].contiguous(), return_outputs=False)
            elif self._stage.is_last:
                self._schedule.step(target=samples_BT[:, 1:].contiguous(), losses=losses, return_outputs=False)
            else:
                self._schedule.step(return_outputs=False)
        self._return_tied_gradient()
        names = sorted(self.weights)
        gradients = take_mean(self, names, self._num_micro_batches)
        shared = torch.zeros(len(self._all_names) + 1, device=self.device)
        for name, gradient in zip(names, gradients, strict=True):
            shared[self._all_names.index(name)] = torch.linalg.vector_norm(gradient)
        if self._stage.is_last:
            shared[-1] = torch.stack([loss.detach() for loss in losses]).mean()
        distributed.all_reduce(shared)
        return finish_step(self, gradients, shared[:-1], shared[-1], rate)

    def _lend_tied_weight(self) -> None:
        """Copy the embedding to the last stage, whose logits use it."""
        if self._stage.is_first:
            distributed.send(self.weights[TIED].detach(), dst=self._last)
        elif self._stage.is_last:
            distributed.recv(self._stage.head.detach(), src=0)

    def _return_tied_gradient(self) -> None:
        """Add the logits' gradient to the embedding's, on the stage that owns it."""
        if self._stage.is_last:
            assert self._stage.head.grad is not None
            distributed.send(self._stage.head.grad, dst=0)
        elif self._stage.is_first:
            received = torch.empty_like(self.weights[TIED])
            distributed.recv(received, src=self._last)
            self.weights[TIED].grad += received  # type: ignore[operator]


class StageWorker(LocalWorker):
    """A `LocalWorker` of some tensors."""

    def __init__(self, config: StageConfig, process: ProcessConfig, canonical: CanonicalState, version: int) -> None:
        """Place the stage's weights; the text stays with the parent."""
        names = plan_stages(config.recipe, process.num_processes)[process.index]
        self._own = frozenset(names)
        self._saved: dict[str, torch.Tensor] = {}
        nothing = np.zeros(config.recipe.model.context + 2, dtype=np.uint8)
        empty = Corpus(train=nothing, held_out=nothing, train_digest=b"", held_out_digest=b"")
        inner = StageLoop(config, process)
        super().__init__(config.recipe, canonical, version, config.member, process.device, corpus=empty, inner=inner)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do this stage's part of an inner step."""
        return self._inner.step(samples_BT, rate)

    def check(self, round_index: int, rank: int) -> None:
        """Look whether this stage could send. Raises `NonFiniteUpdateError`."""
        for slot in self._plan(round_index, rank).slots:
            self._weights_in_units(slot.name)

    def send_part(self, round_index: int, rank: int, num_members: int) -> tuple[bytes, Mapping[str, Any]]:
        """Return this stage's part of the payload, header first, and the spectra of what it sent."""
        self._num_members = num_members
        return self.send(round_index, rank=rank), self._spectra

    def apply_part(self, part: CanonicalState, round_index: int, own_accepted: bool | None) -> None:
        """Apply a settled round: ``part`` has the agreed tensors of this stage that moved, and all small numbers."""
        known = self._canonical
        state = replace(
            known,
            theta={**known.theta, **part.theta},
            momentum={**known.momentum, **part.momentum},
            exponents=part.exponents,
            ranks=part.ranks,
            local_steps=part.local_steps,
            step=part.step,
            entry_cache={},
        )
        self.apply(Settlement(state=state, refused=0, num_accepted=0), round_index, own_accepted)

    def describe(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return name, type and shape of everything this stage keeps."""
        return {name: (value.dtype, tuple(value.shape)) for name, value in self._own_tensors().items()}

    def read(self, name: str | None) -> torch.Tensor | None:
        """Return one of the tensors that `describe` named: whoever saves them all has one at a time."""
        return None if name is None else self._own_tensors()[name].detach().cpu()

    def take(self, name: str | None, value: torch.Tensor | None) -> None:
        """Keep one tensor of a saved state for `restore`."""
        if name is not None and value is not None:
            self._saved[name] = value

    def restore(self, about: Mapping[str, object]) -> None:
        """Take over what `take` was given."""
        self._restore(self._saved, about)
        self._saved = {}

    def _own_tensors(self) -> dict[str, torch.Tensor]:
        """Return everything this stage keeps itself, where it is."""
        moments = {f"moments/{name}": value for name, value in self._inner.own_moments().items()}
        weights = {f"weights/{name}": value for name, value in self._inner.weights.items()}
        return {**moments, **weights, **self._outer_tensors()}

    def _plan(self, round_index: int, rank: int) -> PayloadPlan:
        plan = super()._plan(round_index, rank)
        return replace(plan, slots=tuple(slot for slot in plan.slots if slot.name in self._own))
