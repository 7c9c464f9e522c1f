"""One process of a pipeline: some layers, their AdamW, and their part of everything a worker keeps to itself.

Inner and outer optimizer live with their stage (DiLoCoX's dual optimizer): theta, momentum, residual, what is in
flight and the codec's warm starts of a tensor are here and nowhere else.  The parent says what to do, one request
at a time, and gets one answer; when the parent is gone the process ends at once (CASES 20).
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from training.core.canonical import CanonicalState
from training.core.errors import NonFiniteUpdateError
from training.core.payload import PayloadPlan
from training.core.recipe import Recipe
from training.core.settle import Settlement
from training.data.corpus import Corpus
from training.group.accumulating import finish_step, take_mean
from training.group.cutting import TIED, GptStage, compute_logit_loss, plan_stages
from training.inner import InnerLoop
from training.local import LocalWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """What a process must know to be one stage."""

    recipe: Recipe
    """The run's."""
    member: bytes
    """The worker's address."""
    stage: int
    """From 0."""
    num_stages: int
    """M."""
    num_micro_batches: int
    """Of one step; divides the batch."""
    schedule: str
    """1f1b or gpipe."""
    device: str
    """Of this stage."""
    num_threads: int
    """CPU threads of torch, 0 for its own choice."""
    rendezvous: Path
    """File by which the stages find one another; no port is taken for it."""
    timeout_seconds: float
    """Longest a stage waits for another."""


class StageLoop(InnerLoop):
    """The inner loop of one stage: same numbers, in the same order, as `AccumulatingLoop` has for its tensors."""

    def __init__(self, config: StageConfig) -> None:
        """Build the stage's layers and the schedule; the process group must be up."""
        recipe = config.recipe
        self._stage = GptStage(recipe.model, config.stage, config.num_stages)
        super().__init__(recipe, torch.device(config.device), self._stage)
        self.weights = self._stage.own_weights()
        self._config = config
        self._all_names = sorted(name for names in plan_stages(recipe, config.num_stages) for name in names)
        piped = PipelineStage(self._stage, config.stage, config.num_stages, self.device)
        kind = Schedule1F1B if config.schedule == "1f1b" else ScheduleGPipe
        self._schedule = kind(piped, config.num_micro_batches, loss_fn=compute_logit_loss, scale_grads=False)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do this stage's part of one step; all stages return the same."""
        self._stage.zero_grad(set_to_none=True)
        self._lend_tied_weight()
        samples_BT = samples_BT.to(self.device)
        losses: list[torch.Tensor] = []
        if self._stage.is_first:
            self._schedule.step(samples_BT[:, :-1].contiguous(), return_outputs=False)
        elif self._stage.is_last:
            self._schedule.step(target=samples_BT[:, 1:].contiguous(), losses=losses, return_outputs=False)
        else:
            self._schedule.step(return_outputs=False)
        self._return_tied_gradient()
        names = sorted(self.weights)
        gradients = take_mean(self, names, self._config.num_micro_batches)
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
            distributed.send(self.weights[TIED].detach(), dst=self._config.num_stages - 1)
        elif self._stage.is_last:
            distributed.recv(self._stage.head.detach(), src=0)

    def _return_tied_gradient(self) -> None:
        """Add the logits' gradient to the embedding's, on the stage that owns it."""
        if self._stage.is_last:
            assert self._stage.head.grad is not None
            distributed.send(self._stage.head.grad, dst=0)
        elif self._stage.is_first:
            received = torch.empty_like(self.weights[TIED])
            distributed.recv(received, src=self._config.num_stages - 1)
            self.weights[TIED].grad += received  # type: ignore[operator]


class StageWorker(LocalWorker):
    """A `LocalWorker` of some tensors."""

    def __init__(self, config: StageConfig, canonical: CanonicalState, version: int) -> None:
        """Place the stage's weights; the text stays with the parent."""
        names = plan_stages(config.recipe, config.num_stages)[config.stage]
        self._own = frozenset(names)
        nothing = np.zeros(config.recipe.model.context + 2, dtype=np.uint8)
        empty = Corpus(train=nothing, held_out=nothing, train_digest=b"", held_out_digest=b"")
        inner = StageLoop(config)
        super().__init__(config.recipe, canonical, version, config.member, config.device, corpus=empty, inner=inner)

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

    def adopt_part(self, round_index: int, payload: bytes, rank: int) -> None:
        """Hold this stage's part of a payload as in flight."""
        self.adopt(round_index, payload, rank=rank)

    def read(self) -> dict[str, torch.Tensor]:
        """Return everything this stage keeps, as named tensors."""
        return {name: value for name, value in self._to_tensors().items() if name != "about"}

    def restore(self, tensors: Mapping[str, torch.Tensor], about: Mapping[str, object]) -> None:
        """Take over what `read` returned."""
        self._restore(tensors, about)

    def _plan(self, round_index: int, rank: int) -> PayloadPlan:
        plan = super()._plan(round_index, rank)
        return replace(plan, slots=tuple(slot for slot in plan.slots if slot.name in self._own))


def run_stage(config: StageConfig, orders: connection.Connection) -> None:
    """Be one stage until the parent says to close, or is gone: the entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    device = torch.device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{config.rendezvous}",
        rank=config.stage,
        world_size=config.num_stages,
        timeout=timedelta(seconds=config.timeout_seconds),
    )
    try:
        serve_orders(config, orders)
    finally:
        distributed.destroy_process_group()


def serve_orders(config: StageConfig, orders: connection.Connection) -> None:
    """Answer (method, arguments) until "close"; a refusal that a worker knows goes back as its class."""
    worker: StageWorker | None = None
    while True:
        try:
            order, arguments = pickle.loads(orders.recv_bytes())
        except EOFError:
            return
        if order == "close":
            return
        if order == "start":
            worker = StageWorker(config, *arguments)
            _answer(orders, "done", None)
            continue
        assert worker is not None, "the first order is start"
        try:
            _answer(orders, "done", getattr(worker, order)(*arguments))
        except NonFiniteUpdateError as error:
            _answer(orders, "non-finite", (error.tensor, error.num_bad, error.num_elements))


def _answer(orders: connection.Connection, kind: str, value: object) -> None:
    """Answer in plain bytes: `Connection.send` would pass each tensor as a descriptor of shared memory."""
    orders.send_bytes(pickle.dumps((kind, value)))


def _end_with_parent() -> None:
    """End this process at once when the parent has ended, whatever the main thread waits for."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
