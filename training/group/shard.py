"""One process of a sharded worker: every tensor's rows from its own part of the batch (FSDP, arXiv 2304.11277).

Each process has a slice of rows of each weight, its gradient and its moments; torch gathers a block's weights for
as long as it is computed and scatters the mean gradient.  What a worker keeps of the outer loop is with the parent,
in host memory: rows travel through one mapped file, each process its own.  Norms and loss are summed over all
processes before anybody decides, so all skip a step or none does (CASES 12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from training import muon
from training.core.layout import build_layout
from training.core.recipe import ModelKind, OptimizerKind, Recipe
from training.group.accumulating import finish_step
from training.group.serving import ProcessConfig
from training.inner import InnerLoop
from training.models.gpt import Gpt, compute_loss
from training.models.registry import create_module

WEIGHTS = "weights"
"""Kind of rows beside the optimizer's moments, which go by their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """What is the same for all shards of a worker."""

    recipe: Recipe
    """The run's."""
    exchange: Path
    """Mapped file of one float32 a parameter, laid out as `plan_slots` says."""


def plan_slots(recipe: Recipe) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return where each tensor lies in the mapped file, in elements, and its shape."""
    slots, at = {}, 0
    for tensor in sorted(build_layout(recipe).tensors, key=lambda tensor: tensor.name):
        slots[tensor.name] = (at, tensor.shape)
        at += tensor.num_elements
    return slots


def map_exchange(path: Path, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Return the tensors of a mapped file, shared with whoever else maps it."""
    slots = plan_slots(recipe)
    size = build_layout(recipe).num_parameters
    flat = torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)
    return {name: flat[at : at + _count(shape)].view(shape) for name, (at, shape) in slots.items()}


def cut_rows(num_rows: int, index: int, num_shards: int) -> slice:
    """Return the rows of one shard, as `torch.chunk` cuts them: the last shards may have fewer, or none.

    >>> [cut_rows(5, index, 4) for index in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    size = -(-num_rows // num_shards)
    return slice(min(index * size, num_rows), min((index + 1) * size, num_rows))


class ShardLoop(InnerLoop):
    """The inner loop of one shard."""

    def __init__(self, config: ShardConfig, process: ProcessConfig) -> None:
        """Build the model in slices; the process group must be up."""
        device = torch.device(process.device)
        self._mesh = init_device_mesh(device.type, (process.num_processes,))
        module = create_sharded(config.recipe, self._mesh, device)
        super().__init__(config.recipe, device, module, process.precision)
        self._parameters: dict[str, DTensor] = {}
        for name, parameter in module.named_parameters():
            assert isinstance(parameter, DTensor), name
            self._parameters[name] = parameter
        self._process = process
        self._rows = {
            name: cut_rows(parameter.shape[0], process.index, process.num_processes)
            for name, parameter in self._parameters.items()
        }
        # The slices themselves, by name; a process without rows of a tensor has nothing to do for it.
        self.weights = {
            name: parameter.to_local().detach()  # type: ignore[misc]
            for name, parameter in self._parameters.items()
            if parameter.to_local().numel()
        }

    @property
    def rows(self) -> Mapping[str, slice]:
        """Return the rows of every tensor that are here."""
        return self._rows

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do one step on this shard's part of the batch; all shards return the same."""
        self.model.zero_grad(set_to_none=True)
        with self.autocast():
            loss = compute_loss(self.model, samples_BT.to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        names = sorted(self._parameters)
        shared = torch.zeros(len(names) + 1, dtype=torch.float64, device=self.device)
        gradients = []
        for index, name in enumerate(names):
            gradient = self._parameters[name].grad
            assert isinstance(gradient, DTensor), name
            own = gradient.to_local()
            shared[index] = own.double().square().sum()
            if name in self.weights:
                self.weights[name].grad = own
                gradients.append(own)
        shared[-1] = loss.detach() / self._process.num_processes
        distributed.all_reduce(shared)
        return finish_step(self, gradients, shared[:-1].sqrt(), shared[-1], rate)

    def update(self, rate: float) -> None:
        """Do one update of this shard's rows; Muon's matrices are gathered, since it needs them whole."""
        if self._inner.optimizer is not OptimizerKind.MUON:
            super().update(rate)
            return
        if not self._moments:
            self._moments = {name: self._create_moments(name, weight) for name, weight in self.weights.items()}
        chosen = sorted(name for name, whole in self._parameters.items() if muon.is_muon_weight(name, whole))
        with torch.no_grad():
            for name in chosen:
                self._update_muon(name, rate)
        self._update_adamw(rate, [name for name in self.weights if name not in chosen])

    def read_moment(self, name: str, moment: str) -> torch.Tensor | None:
        """Return this shard's rows of one moment, None where there is none."""
        return self._moments.get(name, {}).get(moment)

    def set_moment(self, name: str, moment: str, rows: torch.Tensor) -> None:
        """Restore this shard's rows of one moment."""
        self._moments.setdefault(name, {})[moment] = rows.to(self.device, copy=True)

    def _update_muon(self, name: str, rate: float) -> None:
        whole, weight = self._parameters[name], self.weights.get(name)
        gradient = whole.grad
        assert isinstance(gradient, DTensor)
        ahead = gradient.to_local()
        if weight is not None:
            ahead = muon.compute_ahead(ahead, self._moments[name]["exp_avg"], self._inner.momentum)
        shared = DTensor.from_local(ahead, self._mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
        direction_MN = muon.compute_direction(name, shared.full_tensor())
        if weight is not None:
            muon.apply_direction(weight, direction_MN[self._rows[name]], rate, self._inner.weight_decay)


class ShardWorker:
    """What answers the parent in one process of a sharded worker."""

    def __init__(self, config: ShardConfig, process: ProcessConfig) -> None:
        """Build the model and map the file that rows travel through."""
        self._loop = ShardLoop(config, process)
        self._exchange = map_exchange(config.exchange, config.recipe)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do this shard's part of an inner step."""
        return self._loop.step(samples_BT, rate)

    def show(self, kind: str, names: Sequence[str]) -> list[str]:
        """Write the own rows of tensors into the mapped file; return the names that there are of this kind."""
        shown = []
        for name in names:
            rows = self._find(kind, name)
            if rows is not None:
                self._exchange[name][self._loop.rows[name]].copy_(rows)
                shown.append(name)
        return shown

    def take(self, kind: str, names: Sequence[str]) -> None:
        """Read the own rows of tensors from the mapped file."""
        with torch.no_grad():
            for name in names:
                own = self._exchange[name][self._loop.rows[name]]
                if kind == WEIGHTS and name in self._loop.weights:
                    self._loop.weights[name].copy_(own)
                elif name in self._loop.weights:
                    self._loop.set_moment(name, kind, own)

    def read_counts(self) -> dict[str, float]:
        """Return the optimizer's steps by tensor; equal in all shards that have rows of it."""
        counts = {name: self._loop.read_moment(name, "step") for name in self._loop.weights}
        return {name: float(count) for name, count in counts.items() if count is not None}

    def set_counts(self, counts: Mapping[str, float]) -> None:
        """Restore what `read_counts` returned."""
        for name, count in counts.items():
            if name in self._loop.weights:
                self._loop.set_moment(name, "step", torch.tensor(count, dtype=torch.float32))

    def _find(self, kind: str, name: str) -> torch.Tensor | None:
        if kind == WEIGHTS:
            return self._loop.weights.get(name)
        return self._loop.read_moment(name, kind)


def create_sharded(recipe: Recipe, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """Return the recipe's model with every parameter cut into rows over the mesh, block by block.

    Our GPT is built without memory, so that no process ever holds the whole; a model of transformers is built on
    the host first, since only its library knows what its buffers hold.
    """
    if recipe.model.kind is ModelKind.GPT:
        with torch.device("meta"):
            module: nn.Module = Gpt(recipe.model)
    else:
        module = create_module(recipe.model)
    for child in list(module.modules()):
        if isinstance(child, nn.ModuleList):
            for block in child:
                fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    if isinstance(module, Gpt):
        module.to_empty(device=device)
        module.fill_tables()
    return module


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
