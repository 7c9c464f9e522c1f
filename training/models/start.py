"""A run that begins from given weights: safetensors in, the agreed integers out (SPEC, *Tensors*)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from training.core.canonical import CanonicalState, create_genesis, replace_theta
from training.core.errors import RecipeValueError, StatePartError
from training.core.fixed_point import to_units
from training.core.layout import build_layout
from training.core.recipe import Recipe


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, or of all such files of a folder, as float32. Never reads pickle.

    Raises `StatePartError`.
    """
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    tensors: dict[str, torch.Tensor] = {}
    for each in paths:
        try:
            tensors |= load_file(each)
        except (OSError, SafetensorError) as error:
            raise StatePartError("weights", f"{each} ({error})", "safetensors") from error
    if not tensors:
        raise StatePartError("weights", f"nothing in {path}", "safetensors")
    return {name: tensor.float() for name, tensor in tensors.items()}


def create_first_state(recipe: Recipe, weights: Path | None) -> CanonicalState:
    """Return version 0: drawn from the seed, or for a recipe with given tensors, rounded from the file to the grid.

    Raises `RecipeValueError` where only one of recipe and file speaks of given weights, `StatePartError` where they
    don't fit.
    """
    drawn = create_genesis(recipe)
    given = [tensor for tensor in build_layout(recipe).tensors if tensor.is_given]
    if bool(given) != (weights is not None):
        raise RecipeValueError(
            "model.tensors", f"{len(given)} given tensors", "--weights where there are any, else none"
        )
    if weights is None:
        return drawn
    values = read_weights(weights)
    theta = {}
    for tensor in given:
        value = values.get(tensor.name)
        if value is None or tuple(value.shape) != tensor.shape or not bool(torch.isfinite(value).all()):
            got = "absent" if value is None else tuple(value.shape)
            raise StatePartError(f"tensor {tensor.name}", got, f"{tensor.shape}, all finite")
        theta[tensor.name] = to_units(value, tensor.fraction_bits).to(torch.int32)
    return replace_theta(drawn, theta)
