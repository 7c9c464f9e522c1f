"""A worker whose inner loop is sharded over several processes (FSDP): `LocalWorker` with another inner loop.

The parent is an ordinary worker: agreed state, error feedback, codec and payloads are here, whole, in host memory;
weights, gradients and moments are in the shards, a slice each.  Its worker state is the same file as one process
writes, so a worker may stop with four shards and go on with none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training.core.canonical import CanonicalState
from training.core.layout import build_layout
from training.core.recipe import Recipe
from training.data.corpus import Corpus
from training.group.processes import GroupProcesses, plan_processes
from training.group.shape import GroupConfig
from training.group.shard import WEIGHTS, ShardConfig, ShardWorker, map_exchange
from training.group.worker import GroupWorker
from training.local import LocalWorker

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedWorker(GroupWorker):
    """One worker, each of its weights over several processes."""

    def _open(
        self,
        recipe: Recipe,
        member: bytes,
        device: torch.device,
        group: GroupConfig,
        on_end: Callable[[], None] | None,
    ) -> None:
        self._shards = ShardedLoop(recipe, device, group, on_end)
        self._processes = self._shards.processes

    def _begin(self, recipe: Recipe, canonical: CanonicalState, version: int, member: bytes, corpus: Corpus) -> None:
        """Be a whole worker with another inner loop."""
        shards: Any = self._shards
        LocalWorker.__init__(self, recipe, canonical, version, member, shards.device, corpus=corpus, inner=shards)


class ShardedLoop:
    """What a worker steps, reads and sets, with the surface of `InnerLoop`: all shards at once.

    Rows travel through one mapped file of a float32 a parameter, in which each shard reads and writes its own.
    """

    def __init__(
        self, recipe: Recipe, device: str | torch.device, group: GroupConfig, on_end: Callable[[], None] | None
    ) -> None:
        """Start the shards."""
        configs = plan_processes(group, device)
        self.device = torch.device(configs[0].device)
        self._num_shards = group.num_shards
        with _create_exchange(build_layout(recipe).num_parameters * 4) as path:
            self._exchange = map_exchange(path, recipe)
            config = ShardConfig(recipe=recipe, exchange=path)
            self.processes = GroupProcesses("shard", partial(ShardWorker, config), configs, on_end)
            try:
                self._ask("start")
            except BaseException:
                self.processes.close()
                raise
        self.weights = SharedWeights(self._exchange, self._show)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do one step, each shard on its part of the batch; they all say the same."""
        parts = samples_BT.chunk(self._num_shards)
        loss: float | None = self.processes.ask("step", [(part_BT.clone(), rate) for part_BT in parts])[0]
        return loss

    def set_weights(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy values into the weights of the same names."""
        self._take(WEIGHTS, values)

    def moments(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state, keyed ``<moment>/<tensor>``; empty before the first step."""
        counts: dict[str, float] = self._ask("read_counts")[0]
        found = {f"step/{name}": torch.tensor(count, dtype=torch.float32) for name, count in counts.items()}
        for moment in _MOMENTS:
            for name in self._show(moment, list(self._exchange)):
                found[f"{moment}/{name}"] = self._exchange[name].clone()
        return found

    def set_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Restore what `moments` returned."""
        for moment in _MOMENTS:
            prefix = f"{moment}/"
            own = {key.removeprefix(prefix): value for key, value in moments.items() if key.startswith(prefix)}
            if own:
                self._take(moment, own)
        counts = {key.removeprefix("step/"): float(value) for key, value in moments.items() if key.startswith("step/")}
        self._ask("set_counts", counts)

    def _ask(self, order: str, *arguments: Any) -> list[Any]:
        return self.processes.ask(order, [arguments] * self._num_shards)

    def _show(self, kind: str, names: Sequence[str]) -> list[str]:
        """Let the shards write rows into the mapped file; the first shard has rows of every tensor."""
        shown: list[str] = self._ask("show", kind, names)[0]
        return shown

    def _take(self, kind: str, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self._exchange[name].copy_(value)
        self._ask("take", kind, list(values))


class SharedWeights(Mapping[str, torch.Tensor]):
    """The weights by name, fetched from the shards when they are read; what is returned is a copy."""

    def __init__(self, exchange: Mapping[str, torch.Tensor], show: Callable[[str, Sequence[str]], list[str]]) -> None:
        self._exchange = exchange
        self._show = show

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a copy of one weight."""
        self._show(WEIGHTS, [name])
        return self._exchange[name].clone()

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._exchange)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._exchange)


@contextmanager
def _create_exchange(num_bytes: int) -> Iterator[Path]:
    """Create the file that is mapped, with all its room reserved, and keep it open for the processes to map.

    On Linux it is memory without a name, so nothing is left behind however anybody ends; elsewhere a temporary file.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("archipelago-shards")
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    else:
        descriptor, name = tempfile.mkstemp(prefix="archipelago-shards-")
        path = Path(name)
    try:
        if sys.platform == "linux":
            os.posix_fallocate(descriptor, 0, num_bytes)  # a lack is said now, not by a signal later
        else:
            os.truncate(descriptor, num_bytes)
        yield path
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            path.unlink()
