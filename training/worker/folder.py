"""A model folder: what ``trainer checkpoint pull`` leaves and ``evaluate`` and ``generate`` read (case 77).

    model.safetensors     float32 tensors of theta, for any other software; our GPT under the names of a Llama
    agreed-state.bin      the integers themselves, from which the root follows
    recipe.toml           the run's recipe, byte for byte
    checkpoint.json       chain, run, version, root and digests
    config.json           so `AutoModelForCausalLM.from_pretrained(folder)` opens it
    tokenizer.json        the run's tokenizer, where its recipe names one and it was given, with what lay beside it

Written beside its final name and renamed, so a folder of that name is whole.  On reading, the integers must
have the root in ``checkpoint.json`` and the float32 tensors must be the integers' own.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from da.input_file import read_input
from training.core.canonical import CanonicalState, decode_parts, dequantise
from training.core.errors import StatePartError
from training.core.recipe import ModelKind, Recipe
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.data.tokenizer import Tokenizer, load_tokenizer
from training.models.llama_names import describe_as_llama, rename_for_llama
from training.worker.durable import save_durable, sync_folder
from training.worker.errors import Fatal
from training.worker.homes import TOKENIZER_FILE

MODEL_FILE = "model.safetensors"
STATE_FILE = "agreed-state.bin"
RECIPE_FILE = "recipe.toml"
ABOUT_FILE = "checkpoint.json"
CONFIG_FILE = "config.json"
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""What transformers saves beside a tokenizer.json."""

MAX_SETTINGS_BYTES = 1 << 20
"""Of each of them."""


class BadModelFolder(Fatal):
    """A folder that is no whole model folder."""

    def __init__(self, folder: Path, reason: str) -> None:
        """Keep the folder and the reason."""
        super().__init__(f"{folder}: {reason}", next_step="pull it again with `trainer checkpoint pull`")


class NoModelFolder(Fatal):
    """A path where no model was pulled to."""

    def __init__(self, folder: Path, reason: str) -> None:
        """Keep the folder and what is missing."""
        super().__init__(
            f"{folder} is no model folder: {reason}",
            next_step="check the path, or pull a model: trainer checkpoint pull --run N --out FOLDER",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where a model comes from."""

    chain_id: int
    """EVM chain id."""
    genesis_hash: str
    """Hex."""
    run: int
    """The run."""
    version: int
    """Settled rounds behind the state."""
    root: str
    """Hex: the agreed root, as the chain has it."""
    recipe_digest: str
    """Hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A verified model folder."""

    recipe: Recipe
    state: CanonicalState
    about: About


def save_model_folder(
    folder: Path,
    *,
    state: CanonicalState,
    recipe_text: str,
    about: About,
    replace_existing: bool,
    tokenizer_file: Path | None = None,
) -> None:
    """Write a whole folder, or nothing under its name; a tokenizer's file is taken as it is, checked by the caller."""
    if folder.exists() and not replace_existing:
        raise Fatal(f"{folder} exists already", next_step="name another folder, or add --force to replace it")
    _refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    before = folder.with_name(f".{folder.name}.{os.getpid()}.before")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        recipe = parse_recipe(recipe_text)
        tensors = _name_tensors(recipe, dequantise(state))
        metadata = {"format": "pt", "root": about.root, "version": str(about.version)}
        save_file(tensors, temporary / MODEL_FILE, metadata=metadata)
        save_durable(temporary / CONFIG_FILE, _write_config(recipe))
        if tokenizer_file is not None:
            save_durable(temporary / TOKENIZER_FILE, tokenizer_file.read_bytes())
            _copy_beside(tokenizer_file.parent, temporary)
        save_durable(temporary / STATE_FILE, state.encode_part(0, 1))
        save_durable(temporary / RECIPE_FILE, recipe_text.encode())
        save_durable(temporary / ABOUT_FILE, json.dumps(asdict(about), indent=2).encode())
        # The library makes it for its owner alone; it is as public as what lies beside it.
        (temporary / MODEL_FILE).chmod(stat.S_IMODE((temporary / ABOUT_FILE).stat().st_mode))
        _sync_file(temporary / MODEL_FILE)
        sync_folder(temporary)
        if folder.exists():
            _refuse_foreign(folder)
            folder.rename(before)
        temporary.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
        sync_folder(folder.parent)
    except BaseException:
        if before.exists() and not folder.exists():
            before.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _refuse_foreign(folder: Path) -> None:
    """Refuse to replace anything but a model folder of ours, or an empty one. Raises `Fatal`."""
    if not folder.exists() or (folder / ABOUT_FILE).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise Fatal(f"{folder} holds no model that was pulled: it is not replaced", next_step="name another folder")


def load_model_folder(folder: Path) -> ModelFolder:
    """Read and verify a folder. Raises ``BadModelFolder`` naming what does not fit, or ``NoModelFolder``."""
    if not (folder / ABOUT_FILE).is_file():
        raise NoModelFolder(folder, f"no {ABOUT_FILE} in it" if folder.is_dir() else "there is no such folder")
    try:
        about = About(**json.loads((folder / ABOUT_FILE).read_bytes()))
        recipe_text = (folder / RECIPE_FILE).read_bytes().decode()
        part = (folder / STATE_FILE).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise BadModelFolder(folder, f"not a whole one ({error})") from error
    digest = compute_recipe_digest(recipe_text).hex()
    if digest != about.recipe_digest:
        raise BadModelFolder(folder, f"{RECIPE_FILE} has digest {digest}, expected {about.recipe_digest}")
    recipe = parse_recipe(recipe_text)
    try:
        state = decode_parts(recipe, [part])
    except StatePartError as error:
        raise BadModelFolder(folder, f"{STATE_FILE}: {error}") from error
    if state.root().hex() != about.root:
        raise BadModelFolder(folder, f"{STATE_FILE} has root {state.root().hex()}, expected {about.root}")
    try:
        floats = load_file(folder / MODEL_FILE)
    except (OSError, SafetensorError) as error:
        raise BadModelFolder(folder, f"{MODEL_FILE}: {error}") from error
    own = dequantise(state)
    if not any(_are_equal(floats, expected) for expected in (_name_tensors(recipe, own), own)):  # own: older folders
        raise BadModelFolder(folder, f"{MODEL_FILE} is not what {STATE_FILE} says")
    return ModelFolder(recipe=recipe, state=state, about=about)


def load_folder_tokenizer(folder: Path, recipe: Recipe, given: Path | None) -> Tokenizer:
    """Return the tokenizer of a folder's recipe: from the file given, else from the folder's own; bytes without one.

    Raises `TokenizerError` where the recipe names another one, or none was found.
    """
    own = folder / TOKENIZER_FILE
    path = given if given is not None else own if own.exists() else None
    return load_tokenizer(path, recipe.data.tokenizer_digest, recipe.model.vocabulary)


def describe_missing_tokenizer(folder: Path, digest: str) -> str:
    """Say that a model's words can't be read from its folder alone, and how to add what reads them."""
    return (
        f"note: the chain has the digest of the run's tokenizer.json ({digest}), not the file, so it is not in {folder}"
        f"\nnext:  copy the file to {folder / TOKENIZER_FILE} (from the run's owner or a member), "
        "or pull again with --tokenizer FILE --force"
    )


def _name_tensors(recipe: Recipe, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under the names by which transformers knows the recipe's model."""
    named = rename_for_llama(own) if recipe.model.kind is ModelKind.GPT else own
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _are_equal(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    return got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)


def _write_config(recipe: Recipe) -> bytes:
    """Return what transformers needs beside the tensors; it reads them as the config's dtype, and they are float32."""
    if recipe.model.kind is ModelKind.GPT:
        config = describe_as_llama(recipe.model)
    else:
        config = json.loads(recipe.model.config)
        config.pop("torch_dtype", None)  # the older name
    return json.dumps({**config, "dtype": "float32"}, sort_keys=True).encode()


def _copy_beside(source: Path, folder: Path) -> None:
    """Copy how a tokenizer is to be used: what marks begin and end, a chat's template. Of no run's agreed data."""
    for name in TOKENIZER_SETTINGS:
        with suppress(FileNotFoundError):
            save_durable(folder / name, read_input(source / name, limit_bytes=MAX_SETTINGS_BYTES))


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
