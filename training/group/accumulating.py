"""The inner loop of one process over micro-batches (`--micro-batches`): less memory for activations.

Gradients add up in the order in which a pipeline adds them, so stages equal it bit for bit and a worker may change
between them.  The tied weight of our GPT gathers two gradients, of embedding and of logits, that are added once at
the end: float sums depend on their order, and the two ends of a pipeline know nothing of each other until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from training.core.recipe import ModelKind, Recipe
from training.group.cutting import TIED, GptStage
from training.inner import InnerLoop, Precision
from training.models.gpt import compute_loss


def create_inner_loop(
    recipe: Recipe, device: torch.device, precision: Precision, num_micro_batches: int = 0
) -> InnerLoop:
    """Return the inner loop of a worker of one process; without micro-batches the whole batch is one pass."""
    if num_micro_batches == 0:
        return InnerLoop(recipe, device, precision=precision)
    return AccumulatingLoop(recipe, device, num_micro_batches, precision)


def cut_batch(samples_BT: torch.Tensor, num_micro_batches: int) -> tuple[torch.Tensor, ...]:
    """Return micro-batches of equal size; their number divides the batch (`check_micro_batches`)."""
    return samples_BT.chunk(num_micro_batches)


class AccumulatingLoop(InnerLoop):
    """The inner loop over micro-batches, without stages: our GPT as one stage, any other model as it is."""

    def __init__(
        self, recipe: Recipe, device: torch.device, num_micro_batches: int, precision: Precision = Precision.FP32
    ) -> None:
        """Build the whole model; `check_shape` has said that the micro-batches divide the batch."""
        self._stage = GptStage(recipe.model, 0, 1) if recipe.model.kind is ModelKind.GPT else None
        super().__init__(recipe, device, self._stage, precision)
        self._num_micro_batches = num_micro_batches
        if self._stage is not None:
            self.weights = self._stage.own_weights()

    def step(self, samples_BT: torch.Tensor, rate: float) -> float | None:
        """Do one step; return the loss, or None where it was skipped."""
        self.model.zero_grad(set_to_none=True)
        if self._stage is not None:
            with torch.no_grad():
                self._stage.head.copy_(self.weights[TIED])
        losses = []
        for part_BT in cut_batch(samples_BT.to(self.device), self._num_micro_batches):
            with self.autocast():
                loss = compute_loss(self.model, part_BT)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        if self._stage is not None:
            self.weights[TIED].grad += self._stage.head.grad  # type: ignore[operator]
        # A library's model may have parameters that a pass does not use.
        names = sorted(name for name, weight in self.weights.items() if weight.grad is not None)
        gradients = take_mean(self, names, self._num_micro_batches)
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
        return finish_step(self, gradients, norms, torch.stack(losses).mean(), rate)


def take_mean(loop: InnerLoop, names: Sequence[str], num_micro_batches: int) -> list[torch.Tensor]:
    """Return the gradients of tensors by name, made the mean over micro-batches."""
    gradients = []
    for name in names:
        gradient = loop.weights[name].grad
        assert gradient is not None, name
        gradients.append(gradient.div_(num_micro_batches))
    return gradients


def finish_step(
    loop: InnerLoop, gradients: Sequence[torch.Tensor], norms: torch.Tensor, loss: torch.Tensor, rate: float
) -> float | None:
    """Clip and update by the norms of all tensors in the order of the layout; skip where anything is not finite.

    Every stage is given the same norms and loss, so all of them skip, or none (CASES 12).
    """
    norm = torch.linalg.vector_norm(norms)
    if not bool(torch.isfinite(norm) & torch.isfinite(loss)):
        return None
    factor = torch.clamp(loop.clip_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    loop.update(rate)
    return float(loss)
