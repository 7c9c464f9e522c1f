"""A model of transformers through a whole run, by the commands that people type: from its folder to such a folder.

Its weights are bfloat16, as most are: what is pulled is the agreed float32, and transformers must read it as that.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_worker_devnet import open_devnet, run_trainer

from contracts.bindings.types import RunState
from training.core.recipe_text import parse_recipe
from training.core.schedule import compute_num_rounds_total
from training.data.corpus import load_corpus
from training.recipes.writing import write_recipe

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LIFE_SECONDS = 120.0
"""Of a worker: its imports, a dozen steps, six rounds."""

CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}
TEXT = "".join(f"{number} is followed by {number + 1}, and that by {number + 2}.\n" for number in range(6_000))


@pytest.fixture
def _own_signals() -> Iterator[None]:
    """Give the test process its handlers back: the command takes them for itself."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def save_given_model(folder: Path) -> None:
    """Write what a person has: config, safetensors, tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers", reason="extra hf: tokenizers")
    transformers = pytest.importorskip("transformers", reason="extra hf: transformers")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**CONFIG)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT], trainer)
    made.save(str(folder / "tokenizer.json"))


def measure_loss(model: Any, held_out: Any, context: int, num_windows: int) -> float:
    """Return transformers' own loss over the windows that the recipe's evaluation takes."""
    last = held_out.size - context - 1
    starts = [last * index // num_windows for index in range(num_windows)]
    windows = torch.from_numpy(np.stack([held_out[start : start + context + 1] for start in starts]).astype(np.int64))
    with torch.no_grad():
        return float(model(input_ids=windows, labels=windows).loss)


@pytest.mark.usefixtures("_own_signals")
def test_a_run_from_given_weights_ends_in_a_folder_with_the_chains_loss(tmp_path: Path) -> None:
    given, text, pulled = tmp_path / "given", tmp_path / "text.txt", tmp_path / "pulled"
    save_given_model(given)
    text.write_text(TEXT)
    files = ("--data", text, "--tokenizer", given / "tokenizer.json")
    made = parse_recipe(run_trainer("recipe", given / "config.json", "--weights", given, *files, "--context", "32"))
    recipe = replace(
        made,
        data=replace(made.data, eval_windows=16),
        inner=replace(made.inner, batch_size=4, warmup_steps=2),
        rounds=replace(made.rounds, num_fragments=2, local_steps=8, num_rounds=4),
    )
    total = compute_num_rounds_total(recipe.rounds)
    with open_devnet(tmp_path, ("ann", "bob")) as net:
        net.create_run(write_recipe(recipe), "--weights", given, *files, "--min-members", "2")
        ann, bob = net.workers.values()
        ann.options = tuple(map(str, files))
        ann.start()
        where = ("--chain", net.url, "--key-file", bob.key_file, "--home", bob.home)
        run_trainer("join", "--run", "1", *where, *files, "--evaluate-every", "8")
        assert ann.process.wait(LIFE_SECONDS) == 0, ann.log
        assert net.info().state is RunState.FINISHED
        assert net.member("ann").accepted == net.member("bob").accepted == total
        recorded = {each.version: each.loss_micro / 1e6 for each in net.client.training.evaluations(1, 0, 256)}
        assert (bob.home / "tokenizer.json").read_bytes() == (given / "tokenizer.json").read_bytes()
        tokenizer = ("--tokenizer", given / "tokenizer.json")
        run_trainer("checkpoint", "pull", "--run", "1", "--chain", net.url, "--out", pulled, *tokenizer)
    said = json.loads(run_trainer("evaluate", pulled, "--data", text, "--json"))
    assert said["loss"] == pytest.approx(recorded[total], abs=1e-5)
    assert said["unit"] == "nats a token"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    opened = AutoModelForCausalLM.from_pretrained(pulled).eval()
    assert opened.dtype == torch.float32
    corpus = load_corpus(recipe.data, text, tokenizer_file=pulled / "tokenizer.json", vocabulary=300)
    loss = measure_loss(opened, corpus.held_out, recipe.model.context, recipe.data.eval_windows)
    assert loss == pytest.approx(recorded[total], abs=1e-5)
    start = measure_loss(AutoModelForCausalLM.from_pretrained(given).eval(), corpus.held_out, recipe.model.context, 16)
    assert loss < start - 0.1, "it has learned"
    tokens = AutoTokenizer.from_pretrained(pulled)("17 is followed by 18").input_ids
    assert tokens == AutoTokenizer.from_pretrained(given)("17 is followed by 18").input_ids
