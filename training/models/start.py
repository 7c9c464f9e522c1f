"""A run that begins from given weights: safetensors in, the agreed integers out (SPEC, *Tensors*)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from da.core.errors import NotAFile
from da.input_file import open_input, read_input
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

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Those that are the weights themselves; others need a scale or lose a part."""

DTYPE_STEP = "name safetensors that are not quantised, such as the ones that these were made from"
"""Where a tensor has another dtype."""

INDEX_FILE = "model.safetensors.index.json"
"""Says which files of a folder are the model."""

MAX_INDEX_BYTES = 1 << 27
"""Far more than any index has."""


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, or of a folder's, as float32. Never reads pickle.

    Of a folder those that its index names, all where it has none.  Those of other dtypes than `DTYPES` stay as they
    are: files hold masks too, which no parameter is read from.  Raises `WeightsError`.
    """
    if not path.exists():
        raise WeightsError(
            f"--weights {path}", "not there", "a file of safetensors or a folder of them", next_step=PATH_STEP
        )
    tensors: dict[str, torch.Tensor] = {}
    origins: dict[str, Path] = {}
    for each in _list_files(path) if path.is_dir() else [path]:
        for name, tensor in _read_file(each).items():
            if name in origins:
                got = f"in {origins[name].name} and in {each.name}"
                step = "name a folder that holds the model's files alone, or one file, with --weights"
                raise WeightsError(f"tensor {name}", got, "one file that has it", next_step=step)
            tensors[name] = tensor
            origins[name] = each
    if not tensors:
        raise WeightsError(f"--weights {path}", "no *.safetensors in it", "one, or several", next_step=PATH_STEP)
    return tensors


def _list_files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if not os.path.lexists(index):
        return sorted(folder.glob("*.safetensors"))
    expected = "an index, whose weight_map names *.safetensors beside it"
    try:
        found = json.loads(read_input(index, limit_bytes=MAX_INDEX_BYTES))
        names = sorted(set(found["weight_map"].values()))
    except NotAFile as error:
        raise WeightsError(str(index), error.found, expected, next_step=PATH_STEP) from error
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise WeightsError(str(index), f"not read ({error})", expected, next_step=PATH_STEP) from error
    wrong = [name for name in names if not str(name).endswith(".safetensors") or Path(name).name != name]
    if wrong or not names:
        raise WeightsError(str(index), f"names {wrong[:1]}", expected, next_step=PATH_STEP)
    return [folder / name for name in names]


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    try:
        os.close(open_input(path))
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                tensor = file.get_tensor(name)
                tensors[name] = tensor.float() if tensor.dtype in DTYPES else tensor
    except NotAFile as error:
        raise WeightsError(str(path), error.found, "a file of safetensors", next_step=PATH_STEP) from error
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WeightsError(str(path), reason, "a file of safetensors", next_step=PATH_STEP) from error
    return tensors


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

    Raises `WeightsError` where it is absent, of another shape, quantised, or not finite.
    """
    value = values.get(name, values.get(name.partition(".")[2]))
    if value is None and name == OUTPUT_WEIGHT:
        raise WeightsError(f"tensor {name}", "absent", f"a shape of {shape}", next_step=TIED_STEP)
    if value is None:
        raise WeightsError(f"tensor {name}", "absent", f"a shape of {shape}")
    if value.dtype not in DTYPES:
        expected = "float32, float16, bfloat16 or float64"
        raise WeightsError(f"tensor {name}", f"dtype {value.dtype}", expected, next_step=DTYPE_STEP)
    if tuple(value.shape) != shape:
        raise WeightsError(f"tensor {name}", f"a shape of {tuple(value.shape)}", f"{shape}")
    if not bool(torch.isfinite(value).all()):
        num_bad = int((~torch.isfinite(value)).sum())
        raise WeightsError(f"tensor {name}", f"{num_bad} that are not finite", "finite numbers only")
    return value
