"""The module of a recipe; its parameters are exactly those of the layout, whatever library builds it."""

from __future__ import annotations

import torch
from torch import nn

from training.core.recipe import ModelKind, ModelRecipe
from training.models.gpt import Gpt


def create_module(model: ModelRecipe) -> nn.Module:
    """Return a module from tokens (B, T) to logits (B, T, vocabulary); its weights are undefined.

    Raises `MissingExtraError` or `ModelMismatchError` for a hugging_face recipe.
    """
    if model.kind is ModelKind.GPT:
        return Gpt(model)
    from training.models.hugging_face import create_causal_lm

    return create_causal_lm(model)


def check_module(model: ModelRecipe) -> None:
    """Raise what `create_module` raises; nothing is kept in memory, so it is asked before anything is bonded."""
    with torch.device("meta"):
        create_module(model)
