"""Text: a split that needs no list, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.core.errors import CorpusMissingError, CorpusTooSmallError
from training.core.recipe import DataRecipe, DataSource
from training.data.corpus import BLOCK_BYTES, check_size, load_corpus, split_blocks


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


def test_invalid_recipe_wants_a_file() -> None:
    with pytest.raises(CorpusMissingError, match="--data FILE"):
        load_corpus(DataRecipe(source=DataSource.FILE))


@pytest.mark.parametrize("size", [0, 10, BLOCK_BYTES])
def test_invalid_text_too_small(tmp_path: Path, size: int) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(size))
    with pytest.raises((CorpusTooSmallError, CorpusMissingError)):
        check_size(load_corpus(DataRecipe(), file), 16)
