"""The inner loop: AdamW, Muon or plain SGD on one worker's samples.

It owes the agreed state nothing: any precision, any hardware.  Its learning rate is given for each step by
the schedule, so a restart cannot get it wrong (CASES 4, 5).  A step whose loss or gradient is not finite changes
nothing and is counted (CASES 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import nn

from training import muon
from training.core.recipe import OptimizerKind, Recipe
from training.models.gpt import compute_loss
from training.models.registry import create_module

EPSILON = 1e-8
"""Added to the root of the second moment, as in AdamW (arXiv 1711.05101)."""

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Precision(StrEnum):
    """In what the products of a worker's own model are computed; weights, moments and sums are float32 in both."""

    FP32 = "fp32"
    """As torch does by default: no TF32."""
    BF16 = "bf16"
    """Under autocast: several times as fast on GPUs that have it."""


class InnerLoop:
    """A model and its optimizer."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        module: nn.Module | None = None,
        precision: Precision = Precision.FP32,
    ) -> None:
        """Build the model, or take another module of its parameters; weights are undefined until `set_weights`."""
        inner = recipe.inner
        self.device = device
        self.clip_norm = inner.clip_norm
        self.model = (create_module(recipe.model) if module is None else module).to(device)
        self.weights = dict(self.model.named_parameters())
        self._inner = inner
        self._precision = precision
        self._moments: dict[str, dict[str, torch.Tensor]] = {}

    def set_weights(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy values into the weights of the same names."""
        with torch.no_grad():
            for name, value in values.items():
                self.weights[name].copy_(value)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do one step on samples of context + 1 bytes; return the loss, or None where it was skipped."""
        for weight in self.weights.values():
            weight.grad = None
        with self.autocast():
            loss = compute_loss(self.model, samples_BT.to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), self.clip_norm)
        if not bool(torch.isfinite(norm) & torch.isfinite(loss)):
            return None
        self.update(rate)
        return float(loss.detach())

    def autocast(self) -> torch.autocast:
        """Return the context that a forward pass runs in."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._precision is Precision.BF16)

    def moments(self) -> dict[str, torch.Tensor]:
        """Return a copy of the optimizer's state, on the CPU, keyed ``<moment>/<tensor>``; empty before a step."""
        return {key: moment.detach().cpu().clone() for key, moment in self.own_moments().items()}

    def own_moments(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state itself, where it is, under the same keys."""
        return {
            f"{moment}/{name}": self._moments[name][moment]
            for name in self.weights
            if name in self._moments
            for moment in self._moments[name]
        }

    def set_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Restore what `moments` returned."""
        for name in self.weights:
            if f"exp_avg/{name}" in moments:
                self._moments[name] = {
                    moment: moments[f"{moment}/{name}"].to(self.device).clone()
                    for moment in _MOMENTS
                    if f"{moment}/{name}" in moments
                }

    def update(self, rate: float) -> None:
        """Do one update of all weights from their gradients; only matrices decay."""
        if self._inner.optimizer is OptimizerKind.SGD:
            with torch.no_grad():
                for weight in self.weights.values():
                    if weight.grad is not None:
                        weight.add_(weight.grad, alpha=-rate)
            return
        if not self._moments:
            self._moments = {name: self._create_moments(name, weight) for name, weight in self.weights.items()}
        by_muon = [name for name, weight in self.weights.items() if self._is_by_muon(name, weight)]
        with torch.no_grad():
            for name in by_muon:
                weight, moments = self.weights[name], self._moments[name]
                if weight.grad is not None:
                    muon.update_weight(
                        name,
                        weight,
                        weight.grad,
                        moments["exp_avg"],
                        momentum=self._inner.momentum,
                        rate=rate,
                        decay=self._inner.weight_decay,
                    )
        self._update_adamw(rate, [name for name in self.weights if name not in by_muon])

    def _update_adamw(self, rate: float, chosen: list[str]) -> None:
        with torch.no_grad():
            for decay, names in (
                (self._inner.weight_decay, [name for name in chosen if self.weights[name].dim() > 1]),
                (0.0, [name for name in chosen if self.weights[name].dim() <= 1]),
            ):
                names = [name for name in names if self.weights[name].grad is not None]
                if not names:
                    continue
                weights: list[torch.Tensor] = [self.weights[name] for name in names]
                gradients = [weight.grad for weight in weights if weight.grad is not None]
                steps = [self._moments[name]["step"] for name in names]
                torch._foreach_add_(steps, 1)
                torch._fused_adamw_(
                    weights,
                    gradients,
                    [self._moments[name]["exp_avg"] for name in names],
                    [self._moments[name]["exp_avg_sq"] for name in names],
                    [],
                    steps,
                    lr=rate,
                    beta1=self._inner.beta1,
                    beta2=self._inner.beta2,
                    weight_decay=decay,
                    eps=EPSILON,
                    amsgrad=False,
                    maximize=False,
                )

    def _is_by_muon(self, name: str, weight: torch.Tensor) -> bool:
        return self._inner.optimizer is OptimizerKind.MUON and muon.is_muon_weight(name, weight)

    def _create_moments(self, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        zeros = torch.zeros_like(weight, memory_format=torch.preserve_format)
        if self._is_by_muon(name, weight):
            return {"exp_avg": zeros}
        return {
            "exp_avg": zeros,
            "exp_avg_sq": zeros.clone(),
            "step": torch.zeros((), dtype=torch.float32, device=self.device),
        }
