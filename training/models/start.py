"""A run that begins from given weights: safetensors in, the agreed integers out (SPEC, *Tensors*)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from training.core.canonical import CanonicalState, create_genesis, replace_theta
from training.core.errors import WeightsError
from training.core.fixed_point import to_units
from training.core.layout import build_layout
from training.core.recipe import Recipe

PATH_STEP = "check the path after --weights: the folder of the model, with its config.json, or one file of it"
"""Where there are no weights to read."""

OUTPUT_WEIGHT = "lm_head.weight"
"""Absent from files of a model whose output shares the embedding's weight."""

TIED_STEP = (
    'the files seem to have it tied to the embedding: say "tie_word_embeddings": true in config.json, '
    "or name other safetensors with --weights"
)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, or of all such files of a folder, as float32. Never reads pickle.

    Raises `WeightsError`.
    """
    if not path.exists():
        raise WeightsError(
            f"--weights {path}", "not there", "a file of safetensors or a folder of them", next_step=PATH_STEP
        )
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    tensors: dict[str, torch.Tensor] = {}
    for each in paths:
        try:
            tensors |= load_file(each)
        except (OSError, SafetensorError) as error:
            raise WeightsError(str(each), error, "a file of safetensors", next_step=PATH_STEP) from error
    if not tensors:
        raise WeightsError(f"--weights {path}", "no *.safetensors in it", "one, or several", next_step=PATH_STEP)
    return {name: tensor.float() for name, tensor in tensors.items()}


def create_first_state(recipe: Recipe, weights: Path | None) -> CanonicalState:
    """Return version 0: drawn from the seed, or for a recipe with given tensors, rounded from the file to the grid.

    Raises `WeightsError` where only one of recipe and file speaks of given weights, or where they don't fit.
    """
    drawn = create_genesis(recipe)
    given = [tensor for tensor in build_layout(recipe).tensors if tensor.is_given]
    if weights is None:
        if given:
            raise WeightsError(
                "--weights",
                "not given",
                f"the safetensors that the recipe's {len(given)} given tensors are read from",
                next_step="add --weights FOLDER, the one that the recipe was made with",
            )
        return drawn
    if not given:
        raise WeightsError(
            f"--weights {weights}",
            "no tensor of the recipe is given",
            "a recipe made with the same --weights",
            next_step="leave --weights out, or make the recipe again: trainer recipe config.json --weights FOLDER",
        )
    values = read_weights(weights)
    theta = {
        tensor.name: to_units(pick_weight(values, tensor.name, tensor.shape), tensor.fraction_bits).to(torch.int32)
        for tensor in given
    }
    return replace_theta(drawn, theta)


def pick_weight(values: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return one parameter's tensor; files of a bare model leave the first part of the names out.

    Raises `WeightsError` where it is absent, of another shape, or not finite.
    """
    value = values.get(name, values.get(name.partition(".")[2]))
    if value is None and name == OUTPUT_WEIGHT:
        raise WeightsError(f"tensor {name}", "absent", f"a shape of {shape}", next_step=TIED_STEP)
    if value is None:
        raise WeightsError(f"tensor {name}", "absent", f"a shape of {shape}")
    if tuple(value.shape) != shape:
        raise WeightsError(f"tensor {name}", f"a shape of {tuple(value.shape)}", f"{shape}")
    if not bool(torch.isfinite(value).all()):
        num_bad = int((~torch.isfinite(value)).sum())
        raise WeightsError(f"tensor {name}", f"{num_bad} that are not finite", "finite numbers only")
    return value
