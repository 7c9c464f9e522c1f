"""Text from a model folder: bytes, and tokens of a transformers model, where transformers itself is the oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_folders import save_model

from da.core.hashing import compute_digest
from training.core.canonical import create_genesis
from training.core.errors import TokenizerError
from training.core.recipe_text import parse_recipe
from training.data.tokenizer import compute_tokenizer_digest
from training.recipes.shapes import create_recipe_for
from training.recipes.shipped import load_shipped
from training.worker.folder import (
    describe_missing_tokenizer,
    load_folder_tokenizer,
    load_model_folder,
)
from training.worker.generate import generate_text
from training.worker.homes import find_tokenizer

WORDS = 300
"""More than a byte has: a tokenizer that is taken for bytes would show."""


def test_bytes_are_reproducible_by_seed() -> None:
    recipe = parse_recipe(load_shipped("tiny"))
    state = create_genesis(recipe)
    first, again, other = (
        generate_text(recipe, state, "def ", num_tokens=24, temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first.startswith("def ")


def test_tokens_of_a_transformers_model_are_those_that_transformers_takes(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    transformers = pytest.importorskip("transformers", reason="extra hf: transformers")
    from training.models.hugging_face import describe_causal_lm

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    config = {
        "model_type": "llama",
        "vocab_size": WORDS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    recipe = create_recipe_for(describe_causal_lm(json.dumps(config), 16), "words")
    recipe = replace(recipe, data=replace(recipe.data, tokenizer_digest=compute_tokenizer_digest(path)))
    folder = tmp_path / "model"
    save_model(folder, recipe, path)
    model = load_model_folder(folder)
    tokenizer = load_folder_tokenizer(folder, model.recipe, None)
    text = generate_text(
        model.recipe, model.state, "w7 w299", num_tokens=12, temperature=0, seed=0, tokenizer=tokenizer
    )
    opened = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = opened.generate(torch.tensor([[7, 299]]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0]
    assert text == " ".join(f"w{int(token)}" for token in expected)
    assert len(set(text.split())) > 2

    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError):
        load_folder_tokenizer(folder, model.recipe, None)
    assert load_folder_tokenizer(folder, model.recipe, path).size == WORDS


def test_a_worker_s_own_tokenizer_is_found_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert find_tokenizer(1, compute_digest(b"mine").hex()) is None
    for folder, text in (("chain-0a0b/run-1/0xaa", b"other"), ("chain-0c0d/run-1/0xbb", b"mine")):
        (tmp_path / ".archipelago" / folder).mkdir(parents=True)
        (tmp_path / ".archipelago" / folder / "tokenizer.json").write_bytes(text)
    found = find_tokenizer(1, compute_digest(b"mine").hex())
    assert found == tmp_path / ".archipelago/chain-0c0d/run-1/0xbb/tokenizer.json"
    assert find_tokenizer(1, compute_digest(b"third").hex()) is None
    assert find_tokenizer(2, compute_digest(b"mine").hex()) is None


def test_who_pulls_without_a_tokenizer_is_told_how_to_add_it(tmp_path: Path) -> None:
    said = describe_missing_tokenizer(tmp_path / "model", "ab" * 32)
    assert "ab" * 32 in said
    assert f"next:  copy the file to {tmp_path / 'model' / 'tokenizer.json'}" in said
    assert "--tokenizer FILE --force" in said
