"""Vector codes: a byte for every twelve elements, one 8-bit scale a block (SPEC, *Codecs*; `words`).

Body: x u8, scale u8 for each block of 576 elements in row-major order, then one word index a group of 12; a last group
that is not full is read as far as it goes.  Element = word element * scale * 2^x grid units.
For updates whose energy lies in all directions, as Muon's do: there low rank leaves more than this at the same bytes.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from training.core.codecs.integers import check_exponent
from training.core.codecs.protocol import Compressed, Slot
from training.core.codecs.words import NUM_WORDS, WORD_ELEMENTS, WORDS

BLOCK_GROUPS = 48
"""Groups that share a scale: a scale then costs 2 % of what it scales."""

_WORDS_KE = torch.from_numpy(np.frombuffer(WORDS, dtype=np.int8).reshape(NUM_WORDS, WORD_ELEMENTS).copy())

_WORD_SIZE = 30.0
"""Root mean square of the words' elements for which a first scale is right."""

_NUM_PASSES = 3
"""Of choosing words for a scale and a scale for words; a fourth gains nothing."""

_CHUNK_BLOCKS = 256
"""Blocks worked on at once: 12 MB of distances."""


def count_groups(num_elements: int) -> int:
    """Return the number of word indices of a tensor."""
    return -(-num_elements // WORD_ELEMENTS)


def count_scales(num_elements: int) -> int:
    """Return the number of blocks."""
    return -(-count_groups(num_elements) // BLOCK_GROUPS)


def count_vector_bytes(num_elements: int) -> int:
    """Return the length of a body.

    >>> count_vector_bytes(576), count_vector_bytes(577)
    (50, 52)
    """
    return 1 + count_scales(num_elements) + count_groups(num_elements)


class Vector:
    """Words of twelve elements."""

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Choose words and scales in turn; word 0 is there, so no group is ever left worse than unsent."""
        del warm, seed
        count = units.numel()
        blocks, groups = count_scales(count), count_groups(count)
        padded = torch.zeros(blocks * BLOCK_GROUPS * WORD_ELEMENTS, dtype=torch.float32, device=units.device)
        padded[:count] = (units.reshape(-1).double() / (1 << slot.exponent)).float()
        values_BGE = padded.view(blocks, BLOCK_GROUPS, WORD_ELEMENTS)
        chosen = [_choose(chunk_BGE) for chunk_BGE in torch.split(values_BGE, _CHUNK_BLOCKS)]
        scales = b"".join(scales_B.cpu().numpy().astype(np.uint8).tobytes() for scales_B, _ in chosen)
        indices = b"".join(index_BG.cpu().numpy().astype(np.uint8).tobytes() for _, index_BG in chosen)
        body = bytes((slot.exponent,)) + scales + indices[:groups]
        return Compressed(body=body, units=self.decode(body, slot)[0], warm=None)

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check the exponent; every scale and every index means something."""
        check_exponent(body[0], slot)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Look up words and multiply by their block's scale: at most 2^15 before the exponent."""
        count = prod(slot.shape)
        blocks = count_scales(count)
        scales = np.frombuffer(body, dtype=np.uint8, count=blocks, offset=1).astype(np.int32)
        indices = np.frombuffer(body, dtype=np.uint8, offset=1 + blocks).astype(np.int64)
        words_GE = _WORDS_KE[torch.from_numpy(indices)].to(torch.int32)
        steps_G = torch.from_numpy(scales.repeat(BLOCK_GROUPS)[: indices.size])
        flat = (words_GE * steps_G[:, None]).reshape(-1)[:count].to(torch.int64)
        return (flat << body[0]).reshape(slot.shape), int(scales.max(initial=0)) << body[0]


def _choose(values_BGE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales, whole numbers in 0..255, and the words nearest under them."""
    words_KE = _WORDS_KE.to(values_BGE.device, torch.float32)
    dots_BGK = values_BGE @ words_KE.T
    halves_K = words_KE.square().sum(dim=1) / 2
    scales_B = values_BGE.square().mean(dim=(1, 2)).sqrt() / _WORD_SIZE
    for _ in range(_NUM_PASSES):
        index_BG = _nearest(dots_BGK, halves_K, scales_B)
        fits_B = dots_BGK.gather(2, index_BG[:, :, None]).sum(dim=(1, 2))
        squares_B = 2 * halves_K[index_BG].sum(dim=1)
        scales_B = torch.where(squares_B > 0, fits_B / squares_B.clamp_min(1.0), scales_B)
    scales_B = scales_B.round().clamp(0, 255)
    return scales_B, _nearest(dots_BGK, halves_K, scales_B)


def _nearest(dots_BGK: torch.Tensor, halves_K: torch.Tensor, scales_B: torch.Tensor) -> torch.Tensor:
    return (dots_BGK - scales_B[:, None, None] * halves_K).argmax(dim=2)
