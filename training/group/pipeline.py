"""A worker of several stages behind the surface of `LocalWorker` (SPEC, *Groups*).

The parent keeps the agreed state as every member must, the text and the payloads' bytes; weights, optimizers and
error feedback are with the stages.  Its worker state is the same file, bit for bit, as one process writes that adds
up the same micro-batches: a worker may stop with three stages and go on with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from training.core.canonical import CanonicalState
from training.core.errors import UnknownUpdateError, VersionMismatchError
from training.core.payload import HEADER_BYTES, PayloadPlan, plan_payload
from training.core.recipe import Recipe
from training.core.settle import Settlement
from training.data.corpus import Corpus
from training.group.cutting import plan_stages
from training.group.processes import GroupProcesses, plan_processes
from training.group.shape import GroupConfig, choose_micro_batches
from training.group.stage import StageConfig, StageWorker
from training.group.worker import GroupWorker
from training.local import InFlight
from training.worker_file import AnyTensor, LaterTensor


class PipelineWorker(GroupWorker):
    """One worker, its layers over several processes."""

    def _open(
        self,
        recipe: Recipe,
        member: bytes,
        device: torch.device,
        group: GroupConfig,
        on_end: Callable[[], None] | None,
    ) -> None:
        self._stages = plan_stages(recipe, group.num_stages)
        config = StageConfig(
            recipe=recipe,
            member=member,
            num_micro_batches=choose_micro_batches(recipe.inner.batch_size, group.num_stages, group.num_micro_batches),
            schedule=group.schedule,
        )
        configs = plan_processes(group, device)
        self._processes = GroupProcesses("stage", partial(StageWorker, config), configs, on_end)
        self._inner = _PipelineLoop(self._processes, torch.device(configs[0].device))  # type: ignore[assignment]

    def _begin(self, recipe: Recipe, canonical: CanonicalState, version: int, member: bytes, corpus: Corpus) -> None:
        """Keep what the parent keeps, and let each stage place its weights."""
        self._recipe, self._canonical, self._version = recipe, canonical, version
        self._member, self._corpus = member, corpus
        self._in_flight: dict[int, InFlight] = {}
        self._data_round, self._data_steps, self._num_members = -1, 0, 1
        self._spectra = {}
        self._ask("start", [(self._part(names, names), version) for names in self._stages])

    def send(self, round_index: int, *, rank: int) -> bytes:
        """Let each stage compress its tensors of the fragment, and join the parts; see `LocalWorker.send`.

        All stages are asked first whether they can: none has changed where one cannot.
        """
        if round_index in self._in_flight:
            return self._in_flight[round_index].payload
        self._ask("check", [(round_index, rank)] * len(self._stages))
        answers = self._ask("send_part", [(round_index, rank, self._num_members)] * len(self._stages))
        payload = _join([part for part, _ in answers], self._plan(round_index, rank), self._stages)
        for _, spectra in answers:
            self._spectra |= spectra
        self._in_flight[round_index] = InFlight(payload=payload, units={}, num_members=self._num_members)
        return payload

    def apply(self, settlement: Settlement, round_index: int, own_accepted: bool | None) -> None:
        """Move to version ``round_index + 1`` on all stages; see `LocalWorker.apply`."""
        if round_index != self._version:
            raise VersionMismatchError(self._version, round_index)
        if own_accepted and round_index not in self._in_flight:
            raise UnknownUpdateError(round_index, self.in_flight)
        before, self._canonical = self._canonical, settlement.state
        moved = {name for name, theta in settlement.state.theta.items() if theta is not before.theta[name]}
        moved |= {name for name, momentum in settlement.state.momentum.items() if momentum is not before.momentum[name]}
        parts = [self._part(names, moved & set(names)) for names in self._stages]
        self._ask("apply_part", [(part, round_index, own_accepted) for part in parts])
        self._version = round_index + 1
        self._in_flight.pop(round_index, None)

    def return_unaccepted(self, round_index: int) -> None:
        """Take an update that will not count back into error feedback, on all stages. Idempotent."""
        if self._in_flight.pop(round_index, None) is not None:
            self._ask("return_unaccepted", [(round_index,)] * len(self._stages))

    def _ask(self, order: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self._processes.ask(order, arguments)

    def _part(self, names: Iterable[str], moved: Iterable[str]) -> CanonicalState:
        """Return the agreed state as one stage keeps it: all small numbers, the tensors ``moved``."""
        state = self._canonical
        moved = sorted(moved)
        return replace(
            state,
            theta={name: state.theta[name] for name in moved},
            momentum={name: state.momentum[name] for name in moved},
            fraction_bits={name: state.fraction_bits[name] for name in names},
            entry_cache={},
        )

    def _to_tensors(self) -> Mapping[str, AnyTensor]:
        """Return everything this worker is, as `LocalWorker` names it; what a stage has is fetched as it is written."""
        described = self._ask("describe", [()] * len(self._stages))
        return {
            **{
                name: LaterTensor(dtype=dtype, shape=shape, fetch=partial(self._read, stage, name))
                for stage, own in enumerate(described)
                for name, (dtype, shape) in own.items()
            },
            **self._about_tensors(),
        }

    def _read(self, stage: int, name: str) -> torch.Tensor:
        """Return one tensor of one stage."""
        value: torch.Tensor = self._ask("read", self._only(stage, name))[stage]
        return value

    def _only(self, stage: int, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return an order's arguments for one stage, and nothing for the others."""
        nothing = (None,) * len(arguments)
        return [arguments if index == stage else nothing for index in range(len(self._stages))]

    def _restore(self, tensors: Mapping[str, torch.Tensor], about: Mapping[str, object]) -> None:
        self._data_round, self._data_steps = about["data"]  # type: ignore[misc]
        self._num_members = about["num_members"]  # type: ignore[assignment]
        self._restore_spectra(about)
        expected: dict[str, int] = about["in_flight"]  # type: ignore[assignment]
        for name, value in tensors.items():
            if not name.startswith("payload/") and name != "about":
                self._ask("take", self._only(_stage_of(_tensor_of(name), self._stages), name, value))
        for text, num_members in expected.items():
            payload = bytes(tensors[f"payload/{text}"].numpy())
            self._in_flight[int(text)] = InFlight(payload=payload, units={}, num_members=num_members)
            plan = plan_payload(self._recipe, self._canonical, int(text), rank=int.from_bytes(payload[8:10], "big"))
            parts = [torch.frombuffer(bytearray(own), dtype=torch.uint8) for own in _cut(payload, plan, self._stages)]
            self._ask("take", [(f"payload/{text}", part) for part in parts])
        self._ask("restore", [(about,)] * len(self._stages))


class _PipelineLoop:
    """What the round's loop steps: all stages at once."""

    def __init__(self, processes: GroupProcesses, device: torch.device) -> None:
        self.device = device
        self._processes = processes

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do one step on all stages; they all say the same."""
        loss: float | None = self._processes.ask("step", [(samples_BT, rate)] * len(self._processes.pids))[0]
        return loss


def _cut(payload: bytes, plan: PayloadPlan, stages: Sequence[Sequence[str]]) -> list[bytes]:
    """Return each stage's part of a payload: the header, and the bodies of its tensors."""
    parts = [[plan.header] for _ in stages]
    at = HEADER_BYTES
    for slot in plan.slots:
        parts[_stage_of(slot.name, stages)].append(payload[at : at + slot.num_bytes])
        at += slot.num_bytes
    return [b"".join(chunks) for chunks in parts]


def _join(parts: Sequence[bytes], plan: PayloadPlan, stages: Sequence[Sequence[str]]) -> bytes:
    """Return the payload of all stages' parts: tensors by name, whoever has them."""
    at = [HEADER_BYTES] * len(parts)
    chunks = [plan.header]
    for slot in plan.slots:
        stage = _stage_of(slot.name, stages)
        chunks.append(parts[stage][at[stage] : at[stage] + slot.num_bytes])
        at[stage] += slot.num_bytes
    return b"".join(chunks)


def _tensor_of(key: str) -> str:
    """Return the parameter that a saved tensor belongs to.

    >>> _tensor_of("sent/7/layers.0.down.weight")
    'layers.0.down.weight'
    """
    return key.rpartition("/")[2]


def _stage_of(name: str, stages: Sequence[Sequence[str]]) -> int:
    return next(stage for stage, names in enumerate(stages) if name in names)
