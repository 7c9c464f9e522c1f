"""Files that a person names by mistake: said in a line, never read without end, waited for or left as a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from contracts.bindings.amounts import WEI_PER_TOKEN, format_tokens
from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import load_key
from training.commands.simulation import load_any_recipe
from training.core.errors import CorpusMissingError, RecipeSyntaxError, RecipeValueError, TokenizerMissingError
from training.core.recipe_text import parse_recipe
from training.data.formats import read_text
from training.data.tokenizer import compute_tokenizer_digest
from training.recipes.reading import find_recipe_text, read_recipe_text
from training.recipes.shipped import load_shipped
from training.worker.errors import Fatal
from training.worker.process import hold_home


@pytest.fixture(params=["/dev/zero", "pipe", "folder"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    return tmp_path / request.param


def test_what_is_no_file_is_not_read(no_file: Path) -> None:
    with pytest.raises(Fatal, match=r"^recipe .* (is a |has )"):
        read_recipe_text(no_file)
    with pytest.raises(KeyFileError, match=r"no file|directory"):
        load_key(no_file)
    with pytest.raises(CorpusMissingError):
        read_text(no_file)
    with pytest.raises(TokenizerMissingError):
        compute_tokenizer_digest(no_file)


def test_a_text_of_any_kind_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """Read in a process of its own: one that hangs is ended, and fails this test alone."""
    said, paths = [], []
    for ending in ("txt", "jsonl", "ndjson", "parquet", "bin"):
        pipe, device, missing = (tmp_path / f"{name}.{ending}" for name in ("pipe", "device", "missing"))
        os.mkfifo(pipe)
        device.symlink_to("/dev/zero")
        paths += [pipe, device, missing]
        said += ["(is a device, a pipe or a socket)"] * 2 + ["(No such file or directory)"]
    script = """
import sys
from pathlib import Path
from training.core.errors import CorpusMissingError
from training.core.recipe import DataRecipe
from training.data.corpus import load_corpus
for path in sys.argv[1:]:
    try:
        load_corpus(DataRecipe(), Path(path))
    except CorpusMissingError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    expected = [f"no text at {path} {why}; next:" for path, why in zip(paths, said, strict=True)]
    assert [line.partition(": name ")[0] + ":" for line in ran.stdout.splitlines()] == expected


def test_a_recipe_without_a_name_is_said_to_be_that() -> None:
    for find in (find_recipe_text, load_any_recipe):
        with pytest.raises(Fatal, match="the recipe's name is empty"):
            find("")


def test_a_recipe_is_short_and_is_text(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"#" * 65_537)
    with pytest.raises(Fatal, match="65537 bytes, at most 65536"):
        read_recipe_text(tmp_path / "long")
    (tmp_path / "other").write_bytes(b"name = \xff")
    with pytest.raises(RecipeSyntaxError, match="not UTF-8 from byte 7"):
        read_recipe_text(tmp_path / "other")


def test_a_recipe_that_is_nested_deeply_is_refused() -> None:
    with pytest.raises(RecipeSyntaxError, match="nested too deeply"):
        parse_recipe("x = " + "[" * 50_000)


def test_a_tokenizer_that_nobody_can_have_is_refused() -> None:
    text = load_shipped("tiny").replace("[data]\n", '[data]\ntokenizer_digest = "../../x"\n')
    with pytest.raises(RecipeValueError, match=r"data.tokenizer_digest"):
        parse_recipe(text)


def test_an_amount_of_any_size_is_written() -> None:
    text = format_tokens(10**80 * WEI_PER_TOKEN)
    assert Decimal(text.partition(" ")[0].replace(",", "")) == 10**80


def test_a_home_that_can_be_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Fatal, match="can't be a folder"), hold_home(home):
            raise AssertionError("held")
