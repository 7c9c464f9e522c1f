"""Vector codes: four bits choose the next six elements, one 8-bit scale a block (SPEC, *Codecs*; `words`).

Legend: B blocks, G groups of a block, E elements of a group, S states, C choices a state has, L = S / C.

Body: x u8, scale u8 for each block of 576 elements in row-major order, then a nibble a group of 6, low nibble first; a
last group that is not full is read as far as it goes.  A group's word is named by the last nine bits of its block's
nibbles, its own four the lowest, so a nibble has a say in three groups, and the sender walks the cheapest path through
all of them (a trellis).  Element = word element * scale * 2^x grid units.
For updates whose energy lies in all directions, as Muon's do: there low rank leaves more than this at the same bytes.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import torch

from training.core.codecs.integers import check_exponent, pack_int4, unpack_int4
from training.core.codecs.protocol import Compressed, Slot
from training.core.codecs.words import NUM_WORDS, WORD_ELEMENTS, WORDS
from training.core.errors import PayloadRefusedError

BLOCK_GROUPS = 96
"""Groups that share a scale: a scale then costs 2 % of what it scales."""

_CHOICES = 16
"""Words that may follow a word: one nibble."""

_NIBBLE_ZERO = 8
"""What `pack_int4` adds to a code: here a nibble is a number of its own."""

_HEADS = NUM_WORDS // _CHOICES
"""States that differ in what the next word still knows of them."""

_WORDS_SE = torch.from_numpy(np.frombuffer(WORDS, dtype=np.int8).reshape(NUM_WORDS, WORD_ELEMENTS).copy())

_WORD_UNIT = 40.0
"""Of the words' elements, for a block whose root mean square is 1; fitting a scale to the path gains 0.1 %."""

_CHUNK_BLOCKS = 256
"""Blocks worked on at once: half a megabyte of costs."""

_FAR = 1e30
"""Cost of a state that a block cannot begin with."""


def count_groups(num_elements: int) -> int:
    """Return the number of nibbles of a tensor."""
    return -(-num_elements // WORD_ELEMENTS)


def count_scales(num_elements: int) -> int:
    """Return the number of blocks."""
    return -(-count_groups(num_elements) // BLOCK_GROUPS)


def count_vector_bytes(num_elements: int) -> int:
    """Return the length of a body.

    >>> count_vector_bytes(576), count_vector_bytes(577)
    (50, 52)
    """
    return 1 + count_scales(num_elements) + (count_groups(num_elements) + 1) // 2


class Vector:
    """Words of six elements, each one of the sixteen that may follow the one before."""

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Find each block's cheapest path; word 0 is zero and follows itself, so no block is left worse than unsent."""
        del warm, seed
        count = units.numel()
        blocks, groups = count_scales(count), count_groups(count)
        padded = torch.zeros(blocks * BLOCK_GROUPS * WORD_ELEMENTS, dtype=torch.float32, device=units.device)
        padded[:count] = (units.reshape(-1).double() / (1 << slot.exponent)).float()
        values_BGE = padded.view(blocks, BLOCK_GROUPS, WORD_ELEMENTS)
        scales_B = _fit_scales(values_BGE, count)
        states_BG = torch.empty((blocks, BLOCK_GROUPS), dtype=torch.int64)
        for start in range(0, blocks, _CHUNK_BLOCKS):
            here = slice(start, start + _CHUNK_BLOCKS)
            states_BG[here] = _find_paths(values_BGE[here], scales_B[here])
        scales = scales_B.cpu().numpy().astype(np.uint8).tobytes()
        nibbles = states_BG.reshape(-1)[:groups].numpy() % _CHOICES
        body = bytes((slot.exponent,)) + scales + pack_int4(nibbles - _NIBBLE_ZERO)
        return Compressed(body=body, units=self.decode(body, slot)[0], warm=None)

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check exponent and padding; every scale and every nibble means something."""
        check_exponent(body[0], slot)
        if count_groups(prod(slot.shape)) % 2 and body[-1] >> 4:
            raise PayloadRefusedError(f"padding of {slot.name}", body[-1] >> 4, 0)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Look up words and multiply by their block's scale: at most 2^15 before the exponent."""
        count = prod(slot.shape)
        blocks, groups = count_scales(count), count_groups(count)
        scales = np.frombuffer(body, dtype=np.uint8, count=blocks, offset=1).astype(np.int32)
        states = _read_states(unpack_int4(body[1 + blocks :], groups) + _NIBBLE_ZERO, blocks)
        words_GE = _WORDS_SE[torch.from_numpy(states)].to(torch.int32)
        steps_G = torch.from_numpy(scales.repeat(BLOCK_GROUPS)[:groups])
        flat = (words_GE * steps_G[:, None]).reshape(-1)[:count].to(torch.int64)
        return (flat << body[0]).reshape(slot.shape), int(scales.max(initial=0)) << body[0]


def _read_states(nibbles: npt.NDArray[np.int64], blocks: int) -> npt.NDArray[np.int64]:
    """Return the word of each group: the last nine bits of its block's nibbles so far, zeros before its first."""
    padded = np.zeros(blocks * BLOCK_GROUPS, dtype=np.int64)
    padded[: nibbles.size] = nibbles
    stream = np.pad(padded.reshape(blocks, BLOCK_GROUPS), ((0, 0), (2, 0)))
    states = (stream[:, :-2] << 8 | stream[:, 1:-1] << 4 | stream[:, 2:]) % NUM_WORDS
    return states.reshape(-1)[: nibbles.size]


def _fit_scales(values_BGE: torch.Tensor, count: int) -> torch.Tensor:
    """Return each block's scale, a whole number in 0..255, from the root mean square of its elements that exist."""
    blocks, block_elements = values_BGE.shape[0], BLOCK_GROUPS * WORD_ELEMENTS
    counts_B = (count - torch.arange(blocks, device=values_BGE.device) * block_elements).clamp(1, block_elements)
    return ((values_BGE.square().sum(dim=(1, 2)) / counts_B).sqrt() / _WORD_UNIT).round().clamp(0, 255)


def _find_paths(values_BGE: torch.Tensor, scales_B: torch.Tensor) -> torch.Tensor:
    """Return the words (B, G) of the path that leaves least under given scales (Viterbi's algorithm)."""
    words_SE = _WORDS_SE.to(values_BGE.device, torch.float32)
    blocks, groups, _ = values_BGE.shape
    scaled_BGE = values_BGE / torch.where(scales_B > 0, scales_B, 1.0)[:, None, None]
    halves_S = words_SE.square().sum(dim=1) / 2
    costs_BS = torch.full((blocks, NUM_WORDS), _FAR, device=values_BGE.device)
    costs_BS[:, 0] = 0.0
    origins = []
    for group in range(groups):
        best_BL, origin_BL = costs_BS.view(blocks, _CHOICES, _HEADS).min(dim=1)
        origins.append(origin_BL.to(torch.uint8))
        own_BS = torch.addmm(halves_S, scaled_BGE[:, group], words_SE.T, alpha=-1)
        costs_BS = (best_BL[:, :, None] + own_BS.view(blocks, _HEADS, _CHOICES)).view(blocks, NUM_WORDS)
    state_B = costs_BS.argmin(dim=1)
    states = [state_B]
    for origin_BL in reversed(origins[1:]):
        head_B = state_B // _CHOICES
        origin_B = origin_BL.gather(1, head_B[:, None])[:, 0].long()
        state_B = origin_B * _HEADS + head_B
        states.append(state_B)
    return torch.stack(states[::-1], dim=1)
