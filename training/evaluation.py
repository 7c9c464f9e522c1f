"""Held-out loss of an agreed state: the number that is recorded on the chain."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from training.core.canonical import CanonicalState, dequantise
from training.core.recipe import Recipe
from training.data.corpus import Corpus, Tokens
from training.models.gpt import compute_loss
from training.models.registry import create_module

_BATCH = 32
"""Samples at once, at most; the mean is weighted by samples."""

_BATCH_LOGITS = 1 << 28
"""Logits at once: 1 GiB of them, and as much again for their loss."""


def build_model(recipe: Recipe, state: CanonicalState, device: str | torch.device = "cpu") -> nn.Module:
    """Return the recipe's model with the agreed weights, ready to read from."""
    values = dequantise(state)
    model = create_module(recipe.model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(values[name])
    return model.to(device).eval()


def evaluate_state(recipe: Recipe, state: CanonicalState, corpus: Corpus, device: str | torch.device = "cpu") -> float:
    """Return the loss (`Corpus.loss_unit`) over the recipe's held-out samples, spread evenly over the held-out text."""
    model = build_model(recipe, state, device)
    context = recipe.model.context
    last = corpus.held_out.size - context - 1
    count = max(1, min(recipe.data.eval_windows, last // context))
    starts = [last * index // count for index in range(count)]
    total = 0.0
    batch = max(1, min(_BATCH, _BATCH_LOGITS // (context * recipe.model.vocabulary)))
    with torch.no_grad():
        for at in range(0, count, batch):
            samples_BT = gather_samples(corpus.held_out, starts[at : at + batch], context).to(device)
            total += float(compute_loss(model, samples_BT)) * samples_BT.shape[0]
    return total / count


def gather_samples(text: Tokens, starts: list[int], context: int) -> torch.Tensor:
    """Return samples of context + 1 tokens, int64, one a row."""
    rows = [text[start : start + context + 1] for start in starts]
    return torch.from_numpy(np.stack(rows).astype(np.int64))
