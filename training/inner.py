"""The inner loop: AdamW on one worker's samples.

It owes the agreed state nothing: any precision, any hardware.  Its learning rate is given for each step by
the schedule, so a restart cannot get it wrong (CASES 4, 5).  A step whose loss or gradient is not finite changes
nothing and is counted (CASES 12).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from training.core.recipe import Recipe
from training.models.gpt import Gpt, compute_loss

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class InnerLoop:
    """A model and its optimizer."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        """Build the model; its weights are undefined until `set_weights`."""
        inner = recipe.inner
        self.device = device
        self.model = Gpt(recipe.model).to(device)
        self.weights = dict(self.model.named_parameters())
        self._clip_norm = inner.clip_norm
        matrices = [weight for weight in self.weights.values() if weight.dim() > 1]
        vectors = [weight for weight in self.weights.values() if weight.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": inner.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=inner.learning_rate,
            betas=(inner.beta1, inner.beta2),
            fused=True,
        )

    def set_weights(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy values into the weights of the same names."""
        with torch.no_grad():
            for name, value in values.items():
                self.weights[name].copy_(value)

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do one step on samples of context + 1 bytes; return the loss, or None where it was skipped."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = compute_loss(self.model, samples_BT.to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), self._clip_norm)
        if not bool(torch.isfinite(norm) & torch.isfinite(loss)):
            return None
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return float(loss.detach())

    def moments(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state, keyed ``<moment>/<tensor>``, on the CPU; empty before the first step."""
        return {
            f"{moment}/{name}": self._optimizer.state[weight][moment].detach().cpu().clone()
            for name, weight in self.weights.items()
            if weight in self._optimizer.state
            for moment in _MOMENTS
        }

    def set_moments(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Restore what `moments` returned."""
        for name, weight in self.weights.items():
            if f"step/{name}" in moments:
                self._optimizer.state[weight] = {
                    moment: moments[f"{moment}/{name}"].to(self.device).clone() for moment in _MOMENTS
                }
