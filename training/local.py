"""The engine of one worker, without chain or network (DESIGN 7; SPEC, *The worker's invariant*).

Invariant, in grid units and for each tensor:

    weights = start + progress,   start = theta - residual - (own updates in flight)

"theta minus everything of mine that isn't in theta yet".  Sending moves progress into flight and residual; a
settled round moves theta, and with it the weights; a refused update moves back into the residual.  Of what an exchange
leaves, a share may be forgotten (``codec.forget_bps``): residual and weights give it up together.  The worker
never rewinds, and the inner optimizer is never told.  Two other starts are there to be compared with: ``rewind``
(start = theta, as in DiLoCoX) and ``eager`` (of what is under way only this worker's share); see SPEC, *Overlap*.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.core.adaptation import Spectrum, measure_spectrum, propose
from training.core.canonical import CanonicalState, check_root
from training.core.codecs.registry import codec_of
from training.core.errors import NonFiniteUpdateError, UnknownUpdateError, VersionMismatchError, WorkerStateForeignError
from training.core.fixed_point import from_units, to_units
from training.core.payload import PayloadPlan, plan_payload
from training.core.proposal import Link, Proposal
from training.core.randomness import derive_bytes
from training.core.recipe import Recipe, StartKind
from training.core.recipe_text import compute_fingerprint
from training.core.sampling import compute_data_seed, plan_samples
from training.core.schedule import compute_global_step, is_flush_round, learning_rate
from training.core.settle import Settlement
from training.data.corpus import Corpus, check_size
from training.evaluation import evaluate_state, gather_samples
from training.inner import InnerLoop, Precision
from training.worker_file import AnyTensor, compute_body_digest, encode_tensors, read_worker_file, write_worker_file

MICRO = 1_000_000
"""Losses on the chain are in micronats."""

_FULL_BPS = 10_000
"""All of something, in hundredths of a percent."""


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
    """Steps among them whose loss or gradient was not finite and that changed nothing."""
    global_step: int
    """The run's step that comes next (CASES 5, 6)."""
    rate_nano: int
    """Inner learning rate of the last step, in units of 10^-9; 0 without steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """An own update that has been sent and neither counted nor returned."""

    payload: bytes
    """Its bytes."""
    units: Mapping[str, torch.Tensor]
    """q of each tensor, int64 grid units."""
    num_members: int
    """D as it was expected when it was sent: an eager start keeps q / D."""


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
        agreed_root: bytes | None = None,
        inner: InnerLoop | None = None,
        precision: Precision = Precision.FP32,
    ) -> None:
        """Start fresh at ``version`` of the agreed state: nothing in flight, no error feedback.

        With ``agreed_root`` (the chain's), another state is refused before any inner step.  Raises
        `RootMismatchError` or `CorpusTooSmallError`.
        """
        if agreed_root is not None:
            check_root(canonical, agreed_root, f"the state at version {version}")
        check_size(corpus, recipe.model.context)
        self._recipe = recipe
        self._canonical = canonical
        self._version = version
        self._member = member
        self._corpus = corpus
        self._inner = InnerLoop(recipe, torch.device(device), precision=precision) if inner is None else inner
        nothing = torch.zeros((), dtype=torch.int64)  # no memory for what isn't owed yet, or comes from a file
        self._residual = {name: nothing.expand(theta.shape) for name, theta in canonical.theta.items()}
        self._in_flight: dict[int, InFlight] = {}
        self._warm: dict[str, torch.Tensor] = {}
        self._data_round, self._data_steps = -1, 0
        self._num_members = 1
        self._spectra: dict[str, Spectrum] = {}
        self._offset: dict[str, torch.Tensor] = {}
        for name, _ in self._bits():
            self._place_weight(name, self._start(name))

    @property
    def version(self) -> int:
        """Return the number of settled rounds applied here."""
        return self._version

    @property
    def canonical(self) -> CanonicalState:
        """Return the agreed state applied here."""
        return self._canonical

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Return the rounds whose own update is neither counted nor returned, ascending."""
        return tuple(sorted(self._in_flight))

    def get_payload(self, round_index: int) -> bytes | None:
        """Return the payload that is in flight in a round, None where none is."""
        update = self._in_flight.get(round_index)
        return None if update is None else update.payload

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
        """Do the inner steps of a round, up to ``num_steps`` in all, on this member's samples.

        ``data_seed`` is the chain's (default: from the recipe's seed and the round); ``participants`` are the
        members of V, among whom the samples are shared out; ``should_stop`` is asked before each step;
        ``on_step`` hears (global step, rate).  Called again for the same round it goes on where it stopped.
        """
        recipe = self._recipe
        self._num_members = max(1, len(set(participants)))
        if round_index != self._data_round:
            self._data_round, self._data_steps = round_index, 0
        plan = plan_samples(
            seed=recipe.seed,
            round_index=round_index,
            data_seed=compute_data_seed(recipe.seed, round_index) if data_seed is None else data_seed,
            member=self._member,
            participants=participants,
            num_bytes=int(self._corpus.train.size),
            context=recipe.model.context,
        )
        batch, losses, skipped, steps, rate = recipe.inner.batch_size, 0.0, 0, 0, 0.0
        while self._data_steps < num_steps and not (should_stop is not None and should_stop()):
            global_step = compute_global_step(recipe.rounds, round_index, self._data_steps, num_steps)
            rate = learning_rate(recipe.inner, recipe.rounds, global_step)
            starts = list(plan.starts(self._data_steps * batch, batch))
            loss = self._inner.step(gather_samples(self._corpus.train, starts, recipe.model.context), rate)
            self._data_steps += 1
            steps += 1
            if loss is None:
                skipped += 1
            else:
                losses += loss
            if on_step is not None:
                on_step(global_step, rate)
        counted = steps - skipped
        return TrainReport(
            steps=steps,
            tokens=steps * batch * recipe.model.context,
            loss_micro=round(losses / counted * MICRO) if counted else 0,
            skipped=skipped,
            global_step=compute_global_step(recipe.rounds, round_index, self._data_steps, num_steps),
            rate_nano=round(rate * 1_000_000_000),
        )

    def send(self, round_index: int, *, rank: int) -> bytes:
        """Compress this round's fragment, keep it as in flight, return the payload.

        Save before letting the payload out.  Called again for the same round it returns the same bytes.
        Raises `NonFiniteUpdateError`; then nothing has changed.
        """
        if round_index in self._in_flight:
            return self._in_flight[round_index].payload
        plan = self._plan(round_index, rank)
        weights = {slot.name: self._weights_in_units(slot.name) for slot in plan.slots}
        chunks, sent, warm, spectra = [plan.header], {}, {}, {}
        for slot in plan.slots:
            name = slot.name
            owed = self._start(name) - weights[name] + self._residual[name]
            seed = derive_bytes(self._recipe.seed, "warm start", self._member, name.encode())
            compressed = codec_of(slot).compress(owed, slot, self._warm.get(name), seed)
            chunks.append(compressed.body)
            sent[name] = compressed.units
            left = owed - compressed.units
            self._residual[name] = self._forget(left, round_index)
            if compressed.warm is not None:
                warm[name] = compressed.warm
                if self._recipe.codec.keep_energy_bps:
                    bits = self._canonical.fraction_bits[name]
                    spectra[name] = measure_spectrum(owed, compressed.warm, bits)
        self._warm |= warm
        self._spectra = self._spectra | spectra
        payload = b"".join(chunks)
        self._in_flight[round_index] = InFlight(payload=payload, units=sent, num_members=self._num_members)
        if self._recipe.rounds.start is not StartKind.CONTINUE or self._recipe.codec.forget_bps:
            for name, units in weights.items():
                self._move_weight(name, units, self._start(name) - units)
        return payload

    def propose(self, link: Link | None, *, rank: int) -> Proposal:
        """Return what this worker would have rank and H be, from what it last sent and what it measured.

        May be called from another thread than the rest.
        """
        return propose(self._recipe, tuple(self._spectra.values()), rank, link)

    def apply(self, settlement: Settlement, round_index: int, own_accepted: bool | None) -> None:
        """Move to version ``round_index + 1``; the weights follow, progress stays.

        ``own_accepted``: counted, not counted, or None where this worker sent nothing.  Raises
        `VersionMismatchError`, and `UnknownUpdateError` where an own update was counted that is not in flight
        here.
        """
        if round_index != self._version:
            raise VersionMismatchError(self._version, round_index)
        if own_accepted and round_index not in self._in_flight:
            raise UnknownUpdateError(round_index, self.in_flight)
        if not own_accepted:
            self.return_unaccepted(round_index)
        before = self._canonical
        own: Mapping[str, torch.Tensor] = self._in_flight[round_index].units if own_accepted else {}
        moved = {name for name, theta in settlement.state.theta.items() if theta is not before.theta[name]} | set(own)
        places = self._places(sorted(moved))
        self._canonical = settlement.state
        self._version = round_index + 1
        if own_accepted:
            del self._in_flight[round_index]
        self._follow(places)

    def return_unaccepted(self, round_index: int) -> None:
        """Take an update that will not count back into error feedback; the weights stay. Idempotent."""
        if round_index not in self._in_flight:
            return
        places = self._places_if_start_moves(self._in_flight[round_index].units)
        update = self._in_flight.pop(round_index)
        for name, units in update.units.items():
            self._residual[name] = self._residual[name] + units
        self._follow(places)

    def save(self, path: Path) -> None:
        """Make the whole worker state durable; a file of that name stays beside it as ``<name>.previous``."""
        write_worker_file(path, self._to_tensors())

    @classmethod
    def load(
        cls,
        path: Path,
        recipe: Recipe,
        member: bytes,
        device: str | torch.device = "cpu",
        *,
        corpus: Corpus,
        inner: InnerLoop | None = None,
        precision: Precision = Precision.FP32,
    ) -> LocalWorker:
        """Restore what ``save`` wrote, bit for bit; the previous one where the newest is damaged (with a warning).

        Raises `WorkerStateMissingError`, `WorkerStateDamagedError` or `WorkerStateForeignError`.
        """
        canonical, version, tensors, about = cls.read_saved(path, recipe, member)
        worker = cls(recipe, canonical, version, member, device, corpus=corpus, inner=inner, precision=precision)
        worker._restore(tensors, about)
        return worker

    @staticmethod
    def read_saved(
        path: Path, recipe: Recipe, member: bytes
    ) -> tuple[CanonicalState, int, dict[str, torch.Tensor], dict[str, Any]]:
        """Return the agreed state, its version, all tensors and the other numbers of a saved worker.

        Raises `WorkerStateMissingError`, `WorkerStateDamagedError` or `WorkerStateForeignError`.
        """
        tensors = read_worker_file(path)
        about: dict[str, Any] = json.loads(bytes(tensors["about"].numpy()))
        for field, expected in (("recipe", compute_fingerprint(recipe).hex()), ("member", member.hex())):
            if about[field] != expected:
                raise WorkerStateForeignError(str(path), field, expected, about[field])
        return _read_canonical(tensors, about), about["version"], tensors, about

    def digest(self) -> bytes:
        """Return the hash of the whole worker state, 32 bytes."""
        return compute_body_digest(encode_tensors(self._to_tensors()))

    def evaluate(self, state: CanonicalState) -> float:
        """Return the held-out loss of an agreed state, nats a byte."""
        return evaluate_state(self._recipe, state, self._corpus, self._inner.device)

    def _forget(self, left: torch.Tensor, round_index: int) -> torch.Tensor:
        """Return what is kept of what one exchange leaves, int64; all of it in a flush round, the last chance."""
        forget_bps = self._recipe.codec.forget_bps
        if not forget_bps or is_flush_round(self._recipe.rounds, round_index):
            return left
        return left - torch.div(left * forget_bps, _FULL_BPS, rounding_mode="trunc")

    def _plan(self, round_index: int, rank: int) -> PayloadPlan:
        """Return what this worker's payload of a round looks like."""
        return plan_payload(self._recipe, self._canonical, round_index, rank=rank)

    def _bits(self) -> list[tuple[str, int]]:
        return sorted(self._canonical.fraction_bits.items())

    def _start(self, name: str) -> torch.Tensor:
        """Return theta - residual - in flight of one tensor, int64, or what the recipe's other starts are."""
        kind = self._recipe.rounds.start
        theta = self._canonical.theta[name].to(torch.int64)
        if kind is StartKind.REWIND:
            return theta
        start = theta - self._residual[name]
        for update in self._in_flight.values():
            if name in update.units:
                share = 1 if kind is StartKind.CONTINUE else update.num_members
                start = start - update.units[name].div(share, rounding_mode="floor")
        return start

    def _places(self, names: Iterable[str]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return (weights, start) of tensors before something changes their start."""
        return {name: (self._weights_in_units(name), self._start(name)) for name in names}

    def _places_if_start_moves(self, names: Iterable[str]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return them where moving an update between flight and residual moves the start: not by default."""
        return {} if self._recipe.rounds.start is StartKind.CONTINUE else self._places(names)

    def _follow(self, places: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Move the weights as their start has moved: progress stays."""
        for name, (units, start) in places.items():
            self._move_weight(name, units, self._start(name) - start)

    def _move_weight(self, name: str, units: torch.Tensor, move: torch.Tensor) -> None:
        """Move a tensor's weights from ``units``; where nothing moves, not a bit of them changes."""
        before, offset, stays = self._inner.weights[name].detach().cpu(), self._offset[name], move == 0
        values, offsets = self._round(name, units + move)
        self._inner.set_weights({name: torch.where(stays, before, values)})
        self._offset[name] = torch.where(stays, offset, offsets)

    def _place_weight(self, name: str, units: torch.Tensor) -> None:
        """Set a tensor's weights to the floats next to ``units``, and keep what a float cannot say."""
        values, self._offset[name] = self._round(name, units)
        self._inner.set_weights({name: values})

    def _round(self, name: str, units: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the floats next to ``units``, and what they cannot say, int32 grid units."""
        bits = self._canonical.fraction_bits[name]
        values = from_units(units, bits)
        return values, (units - to_units(values, bits)).to(torch.int32)

    def _weights_in_units(self, name: str) -> torch.Tensor:
        """Return where one tensor's local weights stand on the grid. Raises `NonFiniteUpdateError`.

        The weights as floats, plus what the last placing rounded away: so a worker that has done no step
        stands exactly where it was placed, although float32 is coarser than the grid for large weights.
        """
        weight = self._inner.weights[name].detach()
        num_bad = int((~torch.isfinite(weight)).sum())
        if num_bad:
            raise NonFiniteUpdateError(name, num_bad, weight.numel())
        return to_units(weight, self._canonical.fraction_bits[name]) + self._offset[name]

    def _to_tensors(self) -> Mapping[str, AnyTensor]:
        """Return everything this worker is, as named tensors."""
        moments = {f"moments/{name}": value for name, value in self._inner.moments().items()}
        weights = {f"weights/{name}": weight.detach().cpu() for name, weight in self._inner.weights.items()}
        return {**self._about_tensors(), **moments, **weights, **self._outer_tensors()}

    def _outer_tensors(self) -> dict[str, torch.Tensor]:
        """Return what the outer loop keeps."""
        canonical = self._canonical
        tensors = {f"warm/{name}": value for name, value in self._warm.items()}
        for name in self._inner.weights:
            tensors[f"theta/{name}"] = canonical.theta[name]
            tensors[f"momentum/{name}"] = canonical.momentum[name]
            tensors[f"residual/{name}"] = self._residual[name]
            tensors[f"offset/{name}"] = self._offset[name]
        for round_index, update in self._in_flight.items():
            tensors |= {f"sent/{round_index}/{name}": units for name, units in update.units.items()}
        return tensors

    def _about_tensors(self) -> dict[str, torch.Tensor]:
        """Return the numbers that are no tensors, and the payloads in flight."""
        canonical = self._canonical
        about = {
            "recipe": compute_fingerprint(self._recipe).hex(),
            "member": self._member.hex(),
            "version": self._version,
            "data": [self._data_round, self._data_steps],
            "local_steps": canonical.local_steps,
            "step": canonical.step,
            "tensors": {name: [bits, canonical.exponents[name], canonical.ranks[name]] for name, bits in self._bits()},
            "in_flight": {str(index): self._in_flight[index].num_members for index in self.in_flight},
            "num_members": self._num_members,
            "spectra": {name: [each.energies, each.total] for name, each in self._spectra.items()},
        }
        tensors = {"about": _bytes_tensor(json.dumps(about, sort_keys=True).encode())}
        for round_index, update in self._in_flight.items():
            tensors[f"payload/{round_index}"] = _bytes_tensor(update.payload)
        return tensors

    def _restore(self, tensors: Mapping[str, torch.Tensor], about: Mapping[str, object]) -> None:
        """Take over everything but the agreed state, which the constructor has."""
        self._inner.set_weights(_under("weights/", tensors))
        self._inner.set_moments(_under("moments/", tensors))
        self._residual = _under("residual/", tensors)
        self._offset = _under("offset/", tensors)
        self._warm = _under("warm/", tensors)
        self._data_round, self._data_steps = about["data"]  # type: ignore[misc]
        self._num_members = about["num_members"]  # type: ignore[assignment]
        self._restore_spectra(about)
        expected: dict[str, int] = about["in_flight"]  # type: ignore[assignment]
        self._in_flight = {
            int(round_text): InFlight(
                payload=bytes(payload.numpy()),
                units=_under(f"sent/{round_text}/", tensors),
                num_members=expected[round_text],
            )
            for round_text, payload in _under("payload/", tensors).items()
        }

    def _restore_spectra(self, about: Mapping[str, object]) -> None:
        """Take over what the last votes on rank rested on, of the tensors that are here."""
        saved: Mapping[str, tuple[list[float], float]] = about.get("spectra", {})  # type: ignore[assignment]
        self._spectra = {
            name: Spectrum(energies=tuple(energies), total=total)
            for name, (energies, total) in saved.items()
            if name in self._canonical.fraction_bits
        }


def _read_canonical(tensors: Mapping[str, torch.Tensor], about: Mapping[str, object]) -> CanonicalState:
    """Return the agreed state inside a worker state."""
    numbers: dict[str, list[int]] = about["tensors"]  # type: ignore[assignment]
    return CanonicalState(
        theta=_under("theta/", tensors),
        momentum=_under("momentum/", tensors),
        fraction_bits={name: each[0] for name, each in numbers.items()},
        exponents={name: each[1] for name, each in numbers.items()},
        ranks={name: each[2] for name, each in numbers.items()},
        local_steps=int(about["local_steps"]),  # type: ignore[call-overload]
        step=int(about["step"]),  # type: ignore[call-overload]
    )


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
