"""Every error of the training core says what to do next."""

from __future__ import annotations

import inspect

import pytest

from training.core import errors
from training.core.errors import TokenizerError, TokenizerMissingError, TrainingError

INTERNAL = {"PayloadRefusedError", "GroupEndedError"}
"""A worker says these in its own words: what it refused, and how its group ended."""

LEAVES = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, TrainingError) and not each.__subclasses__()
]


@pytest.mark.parametrize("error", [each for each in LEAVES if each.__name__ not in INTERNAL], ids=lambda e: e.__name__)
def test_an_error_names_the_next_step(error: type[TrainingError]) -> None:
    """Command lines print what stands behind it in a line of its own."""
    assert "; next: " in inspect.getsource(error).replace('"\n            "', "").replace('; "\n            f"', "; ")


def test_a_tokenizer_that_was_forgotten_is_asked_for_by_its_digest() -> None:
    digest = "ab" * 32
    assert "; next: add --tokenizer FILE, the run's tokenizer.json of that digest" in str(TokenizerError(digest, ""))
    assert digest in str(TokenizerError(digest, ""))
    assert "next: leave --tokenizer out" in str(TokenizerError("", digest))
    both = str(TokenizerError(digest, "cd" * 32))
    assert f"has digest {'cd' * 32}, the recipe's is {digest}; next: give --tokenizer FILE" in both
    assert "--tokenizer FILE" in str(TokenizerMissingError("nowhere.json"))
