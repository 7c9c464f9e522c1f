"""What a loss is counted in: a run's tokens, which are the bytes of its text where the recipe has no tokenizer.

Losses of two tokenizers can't be compared; bits a byte of the same text can (SPEC, *Text*).
"""

from __future__ import annotations

from enum import StrEnum
from math import log

from training.core.recipe import DataSource, Recipe

NUM_BYTES = 256
"""Different bytes: a file of tokens with more of them has no bytes."""


class LossUnit(StrEnum):
    """Of every loss of a run: training loss, held-out loss, what the chain records in millionths."""

    BYTE = "nats a byte"
    TOKEN = "nats a token"


def get_loss_unit(recipe: Recipe) -> LossUnit:
    """Return the unit as far as the recipe alone says it; a file with more than 256 tokens may hold any."""
    may_be_token_file = recipe.data.source is DataSource.FILE and recipe.model.vocabulary > NUM_BYTES
    return LossUnit.TOKEN if recipe.data.tokenizer_digest or may_be_token_file else LossUnit.BYTE


def compute_bits_a_byte(loss: float, num_tokens: int, num_bytes: int) -> float:
    """Return bits a byte of text from nats a token, where so many tokens stand for so many bytes.

    >>> compute_bits_a_byte(log(2), 1000, 1000), compute_bits_a_byte(2 * log(2), 1000, 4000)
    (1.0, 0.5)
    """
    return loss / log(2) * num_tokens / num_bytes
