"""What losses are counted in: nats a byte, or a token, and then bits a byte of the same text beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import save_model
from typer.testing import CliRunner

from training.cli import app
from training.core.loss_unit import LossUnit, get_loss_unit
from training.core.recipe import DataSource, Recipe
from training.core.recipe_text import parse_recipe
from training.data.corpus import load_corpus
from training.data.tokenizer import compute_tokenizer_digest
from training.recipes.shipped import load_shipped

TEXT = "".join(f"{number} is followed by {number + 1}: naïve, wie so oft.\n" for number in range(3_000))
VOCABULARY = 512


def make_tokenizer(path: Path) -> Any:
    """Train a byte-level BPE, which loses nothing: what it decodes is the text."""
    tokenizers = pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.save(str(path))
    return made


def evaluate(folder: Path, data: Path) -> tuple[str, dict[str, Any]]:
    """Return what `trainer evaluate` says to people and to programs."""
    said = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(data)])
    document = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(data), "--json"])
    assert (said.exit_code, document.exit_code) == (0, 0), said.output + document.output
    return said.output, json.loads(document.output)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def _tiny(**data: Any) -> Recipe:
    base = parse_recipe(load_shipped("tiny"))
    return replace(base, data=replace(base.data, held_out_bps=2_000, **data))


def test_with_a_tokenizer_it_is_nats_a_token_and_bits_a_byte_stand_beside_it(text: Path, tmp_path: Path) -> None:
    """The bytes are those of the held-out tokens, decoded by the library itself."""
    path = tmp_path / "tokenizer.json"
    library = make_tokenizer(path)
    base = _tiny(tokenizer_digest=compute_tokenizer_digest(path))
    recipe = replace(base, model=replace(base.model, vocabulary=VOCABULARY))
    assert get_loss_unit(recipe) is LossUnit.TOKEN
    save_model(tmp_path / "model", recipe, path)
    said, document = evaluate(tmp_path / "model", text)
    corpus = load_corpus(recipe.data, text, tokenizer_file=path, vocabulary=VOCABULARY)
    num_bytes = len(library.decode(corpus.held_out.tolist()).encode())
    assert document["held_out_bytes"] == num_bytes > 1.5 * document["held_out_tokens"]
    assert document["held_out_tokens"] == corpus.held_out.size
    assert document["unit"] == "nats a token"
    assert document["bits_a_byte"] == pytest.approx(document["loss"] * corpus.held_out.size / num_bytes / log(2))
    assert f"{document['loss']:.6f} nats a token, {document['bits_a_byte']:.4f} bits a byte" in said
    assert "nats a byte" not in said
    command = ["simulate", str(tmp_path / "model" / "recipe.toml"), "--data", str(text), "--rounds", "1"]
    assert CliRunner().invoke(app, command).exit_code != 0, "without the tokenizer the text is another"
    ran = CliRunner().invoke(app, [*command, "--tokenizer", str(path)])
    assert ran.exit_code == 0, ran.output
    assert "nats a token" in ran.output
    assert "bits a byte" in ran.output


def test_of_bytes_it_is_nats_a_byte(text: Path, tmp_path: Path) -> None:
    recipe = _tiny()
    assert get_loss_unit(recipe) is LossUnit.BYTE
    save_model(tmp_path / "model", recipe)
    said, document = evaluate(tmp_path / "model", text)
    assert document["unit"] == "nats a byte"
    assert document["held_out_bytes"] == document["held_out_tokens"]
    assert document["bits_a_byte"] == pytest.approx(document["loss"] / log(2))
    assert f"{document['loss']:.6f} nats a byte" in said


def test_a_file_of_tokens_says_nothing_of_bytes(tmp_path: Path) -> None:
    base = _tiny(source=DataSource.FILE)
    recipe = replace(base, model=replace(base.model, vocabulary=900))
    assert get_loss_unit(recipe) is LossUnit.TOKEN
    path = tmp_path / "tokens.bin"
    (np.arange(5_000) * 7 % 900).astype("<u2").tofile(path)
    save_model(tmp_path / "model", recipe)
    said, document = evaluate(tmp_path / "model", path)
    assert (document["unit"], document["bits_a_byte"], document["held_out_bytes"]) == ("nats a token", None, None)
    assert "nats a token (" in said
    assert "bits a byte" not in said
