"""Text: a split that needs no list, and errors that say what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.core.errors import CorpusMissingError, CorpusTooSmallError, TextDigestError
from training.core.recipe import ANY_TEXT, DataRecipe, DataSource
from training.data.corpus import BLOCK_BYTES, check_size, check_text, is_agreed_text, load_corpus, split_blocks


def test_standard_library_is_split_the_same_way_each_time() -> None:
    data = DataRecipe()
    corpus, again = load_corpus(data), load_corpus(data)
    assert corpus.train.size > 1_000_000
    assert 0.002 < corpus.held_out.size / corpus.train.size < 0.2
    assert (corpus.train_digest, corpus.held_out_digest) == (again.train_digest, again.held_out_digest)


def test_a_file_is_split_by_blocks(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(np.random.default_rng(0).bytes(60 * BLOCK_BYTES + 5))
    corpus = load_corpus(DataRecipe(held_out_bps=2_000), file)
    assert corpus.train.size + corpus.held_out.size == 60 * BLOCK_BYTES + 5
    assert 0 < corpus.held_out.size < corpus.train.size
    train_blocks = {bytes(corpus.train[at : at + 64]) for at in range(0, corpus.train.size, BLOCK_BYTES)}
    held_out_blocks = {bytes(corpus.held_out[at : at + 64]) for at in range(0, corpus.held_out.size, BLOCK_BYTES)}
    assert not train_blocks & held_out_blocks


def test_two_blocks_still_hold_one_out() -> None:
    corpus = split_blocks(bytes(2 * BLOCK_BYTES), 1)
    assert corpus.held_out.size == BLOCK_BYTES


def test_invalid_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusMissingError, match="--data FILE"):
        load_corpus(DataRecipe(), tmp_path / "nothing.txt")


def test_invalid_folder_without_a_data_set(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(CorpusMissingError, match=r"neither a .*; next: name a text file"):
        load_corpus(DataRecipe(), tmp_path)


def test_invalid_recipe_wants_a_file() -> None:
    with pytest.raises(CorpusMissingError, match="--data FILE"):
        load_corpus(DataRecipe(source=DataSource.FILE))


@pytest.mark.parametrize("size", [0, 10, BLOCK_BYTES])
def test_invalid_text_too_small(tmp_path: Path, size: int) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(size))
    with pytest.raises((CorpusTooSmallError, CorpusMissingError)):
        check_size(load_corpus(DataRecipe(), file), 16)


def test_text_of_a_run_is_the_one_its_recipe_names(tmp_path: Path) -> None:
    file, other = tmp_path / "text.txt", tmp_path / "other.txt"
    file.write_bytes(np.random.default_rng(1).bytes(8 * BLOCK_BYTES))
    other.write_bytes(file.read_bytes()[:-1] + b"!")
    plain = DataRecipe(source=DataSource.FILE)
    named = replace(plain, digest=load_corpus(plain, file).digest.hex())
    check_text(named, load_corpus(named, file), file)
    assert is_agreed_text(named, load_corpus(named, file))
    with pytest.raises(TextDigestError) as refusal:
        check_text(named, load_corpus(named, other), other)
    assert refusal.value.expected == named.digest
    assert refusal.value.got == load_corpus(plain, other).digest.hex()
    assert refusal.value.got in str(refusal.value)
    assert "next: give the run's text with --data" in str(refusal.value)
    resplit = replace(named, held_out_bps=4_000)
    with pytest.raises(TextDigestError):
        check_text(resplit, load_corpus(resplit, file), file)


@pytest.mark.parametrize("source", [DataSource.FILE, DataSource.PYTHON_STDLIB])
def test_invalid_file_that_the_recipe_does_not_name(tmp_path: Path, source: DataSource) -> None:
    """Nobody trains on a text of their own unnoticed: neither in a run of another source, nor where any file fits."""
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(4 * BLOCK_BYTES))
    data = DataRecipe(source=source)
    corpus = load_corpus(data, file)
    with pytest.raises(TextDigestError, match=corpus.digest.hex()):
        check_text(data, corpus, file)
    check_text(replace(data, digest=ANY_TEXT), corpus, file)
    assert is_agreed_text(replace(data, digest=ANY_TEXT), corpus) is None


def test_standard_library_may_be_pinned() -> None:
    data = DataRecipe()
    corpus = load_corpus(data)
    check_text(data, corpus, None)
    check_text(replace(data, digest=corpus.digest.hex()), corpus, None)
    with pytest.raises(TextDigestError):
        check_text(replace(data, digest="0" * 64), corpus, None)
