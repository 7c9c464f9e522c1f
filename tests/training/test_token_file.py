"""A file of tokens that is read while a run lasts: the samples of an array, and a word where the file changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from da.core.hashing import compute_digest
from training.core.canonical import create_genesis
from training.core.errors import CorpusFormatError, CorpusMissingError, TextChangedError, TrainingError
from training.core.recipe import DataRecipe, DataSource, Recipe
from training.data import token_file
from training.data.corpus import Corpus, load_corpus
from training.data.token_file import TokenFile, TokenRange
from training.evaluation import evaluate_state, gather_samples
from training.local import LocalWorker
from training.recipes.shipped import load_shipped

DATA = DataRecipe(source=DataSource.FILE, held_out_bps=1_000)
NUM_TOKENS = 20_000


def _write(path: Path, bits: int = 16) -> np.ndarray:
    tokens = (np.arange(NUM_TOKENS) * 7_919 % 251).astype(f"<u{bits // 8}")
    tokens.tofile(path)
    return tokens


@pytest.mark.parametrize("bits", [16, 32])
def test_tokens_are_read_by_samples_as_an_array_holds_them(
    tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.bin"
    tokens = _write(path, bits)
    monkeypatch.setattr(token_file, "_PIECE_TOKENS", 777)
    found = load_corpus(replace(DATA, token_bits=bits), path)
    assert isinstance(found.train, TokenRange)
    assert (found.train.size, found.held_out.size) == (NUM_TOKENS * 9 // 10, NUM_TOKENS // 10)
    border = found.train.size
    for part, own in ((found.train, tokens[:border]), (found.held_out, tokens[border:])):
        np.testing.assert_array_equal(part[:], own)
        np.testing.assert_array_equal(part[5:1_000_000], own[5:])
        assert part[7:3].size == 0
        starts = [0, 1, 555, own.size - 65]
        assert torch.equal(gather_samples(part, starts, 64), gather_samples(own, starts, 64))
    assert found.train_digest == compute_digest(tokens[:border].tobytes())
    assert found.held_out_digest == compute_digest(tokens[border:].tobytes())


@pytest.mark.parametrize("bits", [16, 32])
def test_invalid_file_of_tokens(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "tokens.bin"
    _write(path, bits)
    data = replace(DATA, token_bits=bits)
    with pytest.raises(CorpusFormatError, match=r"token 250, expected below model.vocabulary = 250; next: name "):
        load_corpus(data, path, vocabulary=250)
    for content in (b"", b"123"):
        path.write_bytes(content)
        with pytest.raises(CorpusFormatError, match=rf"{len(content)} bytes, expected a multiple"):
            load_corpus(data, path)
    path.unlink()
    with pytest.raises(CorpusMissingError, match="No such file"):
        load_corpus(data, path)


def _keep_time(path: Path, change: Callable[[], object]) -> None:
    """Change a file and put its time of change back."""
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _cut_short(path: Path) -> None:
    os.truncate(path, 0)


def _lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\0")


def _overwrite(path: Path) -> None:
    time.sleep(0.02)  # a file system's time has steps of some milliseconds
    with path.open("r+b") as file:
        file.write(np.full(NUM_TOKENS, 60_000, dtype="<u2").tobytes())


def _overwrite_with_other_text(path: Path) -> None:
    time.sleep(0.02)
    with path.open("r+b") as file:
        file.write(bytes(2 * NUM_TOKENS))


def _overwrite_behind_our_back(path: Path) -> None:
    _keep_time(path, lambda: _overwrite(path))


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (_cut_short, TextChangedError, "it has 0 bytes, it had 40000"),
        (_lengthen, TextChangedError, "it has 40002 bytes, it had 40000"),
        (_overwrite, TextChangedError, "somebody has written to it"),
        (_overwrite_with_other_text, TextChangedError, "somebody has written to it"),
        (_overwrite_behind_our_back, CorpusFormatError, "token 60000, expected below model.vocabulary = 256"),
    ],
)
def test_a_worker_ends_in_words_where_its_file_changes(
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    change: Callable[[Path], None],
    kind: type[TrainingError],
    said: str,
) -> None:
    """Between two rounds: neither a signal, nor a traceback of torch's, nor another text learnt unnoticed."""
    path = tmp_path / "tokens.bin"
    _write(path)
    recipe = make_recipe()
    corpus = load_corpus(DATA, path)
    genesis = create_genesis(recipe)
    worker = LocalWorker(recipe, genesis, 0, b"\1" * 20, corpus=corpus)
    assert worker.train(0, 2).steps == 2
    evaluate_state(recipe, genesis, corpus)
    change(path)
    for use in (lambda: worker.train(1, 2), lambda: evaluate_state(recipe, genesis, corpus)):
        with pytest.raises(kind, match=said) as caught:
            use()
        assert str(path) in str(caught.value)
        assert "; next: " in str(caught.value)


def test_a_file_that_takes_the_name_is_not_looked_at(tmp_path: Path) -> None:
    path, other = tmp_path / "tokens.bin", tmp_path / "other.bin"
    tokens = _write(path)
    corpus: Corpus = load_corpus(DATA, path)
    other.write_bytes(bytes(10))
    other.replace(path)
    np.testing.assert_array_equal(corpus.train[100:200], tokens[100:200])
    path.unlink()
    np.testing.assert_array_equal(corpus.train[100:200], tokens[100:200])


def test_the_file_is_closed_with_its_corpus(tmp_path: Path) -> None:
    _write(tmp_path / "tokens.bin")
    file = TokenFile(tmp_path / "tokens.bin", 16, 256)
    fd = file._fd
    os.fstat(fd)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_simulation_whose_file_is_cut_short_ends_with_exit_2(tmp_path: Path) -> None:
    """The whole command, as it was seen to end by SIGBUS (135)."""
    path, recipe = tmp_path / "tokens.bin", tmp_path / "recipe.toml"
    _write(path)
    recipe.write_text(load_shipped("tiny").replace("num_rounds = 12", "num_rounds = 100000"))
    command = [sys.executable, "-m", "training.cli", "simulate", str(recipe), "--data", str(path)]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert ran.stdout is not None
        assert ran.stdout.readline().startswith("round    0")
        os.truncate(path, 100)
        _, said = ran.communicate(timeout=120)
    finally:
        ran.kill()
        ran.wait()
    assert ran.returncode == 2, said
    assert "tokens.bin has changed since its digest was taken: it has 100 bytes, it had 40000" in " ".join(said.split())
    assert "Traceback" not in said
