"""The text a worker learns (interface; the body follows)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.core.recipe import DataRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text, split."""

    train: npt.NDArray[np.uint8]
    """Bytes to learn."""
    held_out: npt.NDArray[np.uint8]
    """Bytes never trained on."""
    train_digest: bytes
    """blake3 of ``train``, 32 bytes; reported by a worker, no part of agreement."""
    held_out_digest: bytes
    """blake3 of ``held_out``, 32 bytes; shown beside every loss."""


def load_corpus(data: DataRecipe, file: Path | None = None) -> Corpus:
    """Read the recipe's text, or ``file`` in its place. Raises `CorpusMissingError`, `CorpusTooSmallError`."""
    raise NotImplementedError
