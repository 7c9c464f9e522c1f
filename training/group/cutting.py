"""Which stage has which tensors, and each stage's module (SPEC, *Groups*).

Layers stay whole and in order.  The embedding and the first layers are stage 0's; the last stage has the final
norm and the logits, whose weight is the embedding's: it borrows a copy, and gives its gradient back.
Invariant: each tensor belongs to exactly one stage.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from training.core.errors import StageCountError
from training.core.layout import build_layout
from training.core.recipe import ModelKind, ModelRecipe, Recipe
from training.models.gpt import Block, compute_rotary_tables

TIED = "embed.weight"
"""The tensor that both ends use."""


def plan_stages(recipe: Recipe, num_stages: int) -> tuple[tuple[str, ...], ...]:
    """Return the tensors of each stage, sorted by name.

    Raises `StageCountError` for another model than our GPT, or for more stages than layers.
    """
    model = recipe.model
    if model.kind is not ModelKind.GPT:
        raise StageCountError(num_stages, "1, since only model.kind = 'gpt' is cut into stages")
    if not 1 <= num_stages <= model.num_layers:
        raise StageCountError(num_stages, f"1 to model.num_layers = {model.num_layers}")
    bounds = cut_layers(model.num_layers, num_stages)
    stages: list[list[str]] = [[] for _ in range(num_stages)]
    for tensor in build_layout(recipe).tensors:
        if tensor.name == TIED:
            stages[0].append(tensor.name)
        elif tensor.name.startswith("layers."):
            layer = int(tensor.name.split(".")[1])
            stages[next(index for index in range(num_stages) if layer < bounds[index + 1])].append(tensor.name)
        else:
            stages[-1].append(tensor.name)
    return tuple(tuple(sorted(names)) for names in stages)


def cut_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the first layer of each stage, and the number of layers behind them.

    >>> cut_layers(7, 3)
    (0, 2, 4, 7)
    """
    return tuple(num_layers * stage // num_stages for stage in range(num_stages + 1))


class GptStage(nn.Module):
    """Some layers of `training.models.gpt.Gpt`, under the names they have there."""

    def __init__(self, model: ModelRecipe, stage: int, num_stages: int) -> None:
        super().__init__()
        bounds = cut_layers(model.num_layers, num_stages)
        self.is_first, self.is_last = stage == 0, stage == num_stages - 1
        if self.is_first:
            self.embed = nn.Embedding(model.vocabulary, model.width)
        self.layers = nn.ModuleDict({str(layer): Block(model) for layer in range(bounds[stage], bounds[stage + 1])})
        if self.is_last:
            self.final_norm = nn.RMSNorm(model.width, eps=1e-5)
            self.head = nn.Parameter(torch.zeros(model.vocabulary, model.width))
        cosine_TD, sine_TD = compute_rotary_tables(model.context, model.width // model.num_heads)
        self.register_buffer("cosine_TD", cosine_TD, persistent=False)
        self.register_buffer("sine_TD", sine_TD, persistent=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Return the stream for the next stage, or the logits; the first stage takes tokens."""
        length = stream.shape[1]
        cosine_TD, sine_TD = self.get_buffer("cosine_TD")[:length], self.get_buffer("sine_TD")[:length]
        if self.is_first:
            stream = self.embed(stream)
        for layer in self.layers.values():
            stream = layer(stream, cosine_TD, sine_TD)
        if self.is_last:
            stream = functional.linear(self.final_norm(stream), self.head)
        return stream

    def own_weights(self) -> dict[str, nn.Parameter]:
        """Return the parameters that belong to this stage; the borrowed head is none of them."""
        return {name: weight for name, weight in self.named_parameters() if name != "head"}


def compute_logit_loss(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of one micro-batch, nats a token."""
    return functional.cross_entropy(logits_BTV.reshape(-1, logits_BTV.shape[-1]), targets_BT.reshape(-1))
