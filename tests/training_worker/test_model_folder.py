"""The folder of a pulled model: it comes back with its root, and no damage passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training.core.canonical import create_genesis
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.recipes.shipped import load_shipped
from training.worker.errors import Fatal
from training.worker.folder import (
    ABOUT_FILE,
    MODEL_FILE,
    STATE_FILE,
    About,
    BadModelFolder,
    NoModelFolder,
    load_model_folder,
    save_model_folder,
)


@pytest.fixture(scope="module")
def tiny() -> tuple[str, Any]:
    text = load_shipped("tiny")
    return text, create_genesis(parse_recipe(text))


def save_tiny(folder: Path, tiny: tuple[str, Any], *, replace_existing: bool = False) -> About:
    text, state = tiny
    about = About(
        chain_id=1,
        genesis_hash="00",
        run=1,
        version=0,
        root=state.root().hex(),
        recipe_digest=compute_recipe_digest(text).hex(),
    )
    save_model_folder(folder, state=state, recipe_text=text, about=about, replace_existing=replace_existing)
    return about


def test_a_model_folder_comes_back_with_its_root(tmp_path: Path, tiny: tuple[str, Any]) -> None:
    about = save_tiny(tmp_path / "model", tiny)
    model = load_model_folder(tmp_path / "model")
    assert model.about == about
    assert model.state.root() == tiny[1].root()
    with pytest.raises(Fatal, match="exists already"):
        save_tiny(tmp_path / "model", tiny)
    save_tiny(tmp_path / "model", tiny, replace_existing=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "no temporary folder is left"


def test_no_folder_but_a_pulled_model_is_replaced(tmp_path: Path, tiny: tuple[str, Any]) -> None:
    home, file, empty = tmp_path / "home", tmp_path / "file", tmp_path / "empty"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    file.write_text("a file")
    empty.mkdir()
    for place in (home, file):
        with pytest.raises(Fatal, match="holds no model that was pulled"):
            save_tiny(place, tiny, replace_existing=True)
    assert (home / "thesis.txt").read_text() == "years of work"
    save_tiny(empty, tiny, replace_existing=True)
    save_tiny(empty, tiny, replace_existing=True)
    assert sorted(tmp_path.iterdir()) == [empty, file, home], "nothing beside them"


@pytest.mark.parametrize("file", [STATE_FILE, MODEL_FILE, ABOUT_FILE])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_model_folder_is_refused_by_name(
    tmp_path: Path, tiny: tuple[str, Any], file: str, damage: str
) -> None:
    save_tiny(tmp_path / "model", tiny)
    path = tmp_path / "model" / file
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "gone":
        path.unlink()
    elif file == ABOUT_FILE:
        path.write_text(json.dumps({**json.loads(data), "root": "00" * 32}))
    else:
        data[-1] ^= 1
        path.write_bytes(data)
    is_model_folder = (tmp_path / "model" / ABOUT_FILE).exists()
    with pytest.raises(BadModelFolder if is_model_folder else NoModelFolder):
        load_model_folder(tmp_path / "model")


def test_a_pull_that_is_cut_leaves_nothing_under_the_final_name(
    tmp_path: Path, tiny: tuple[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(
        "training.worker.folder.save_durable", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        save_tiny(tmp_path / "model", tiny)
    assert list(tmp_path.iterdir()) == []
