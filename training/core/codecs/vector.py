"""Vector codes: four bits choose the next six elements, one 8-bit scale a block (SPEC, *Codecs*; `words`).

Legend: B blocks, G groups of a block, E elements of a group, S states, C choices a state has, L = S / C.

Body: x u8, scale u8 for each block of 576 elements in row-major order, then a nibble a group of 6, low nibble first; a
last group that is not full is read as far as it goes.  A group's word is named by the last nine bits of its block's
nibbles, its own four the lowest, so a nibble has a say in three groups, and the sender walks the cheapest path through
all of them (a trellis).  Element = word element * scale * 2^x grid units.  A block's scale is 0 exactly where all its
nibbles are; of nibbles that read alike in a last group that is not full, the least is the one.
For updates whose energy lies in all directions, as Muon's do: there low rank leaves more than this at the same bytes.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import torch

from training.core.codecs.integers import (
    INT4_REST,
    check_exponent,
    check_scales,
    choose_exponent,
    pack_int4,
    read_nibbles,
)
from training.core.codecs.protocol import Compressed, Slot
from training.core.codecs.words import NUM_WORDS, WORD_ELEMENTS, WORDS
from training.core.errors import PayloadRefusedError

BLOCK_GROUPS = 96
"""Groups that share a scale: a scale then costs 2 % of what it scales."""

_BLOCK_BYTES = BLOCK_GROUPS // 2
"""Bytes of a block's nibbles."""

_CHOICES = 16
"""Words that may follow a word: one nibble."""

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
        scales = scales_B.cpu().numpy().astype(np.uint8)
        states_BG[torch.from_numpy(scales == 0)] = 0
        nibbles = states_BG.reshape(-1)[:groups].numpy() % _CHOICES
        if count % WORD_ELEMENTS:
            nibbles[-1] = _find_least_last(nibbles, count)
        packed = pack_int4(nibbles - INT4_REST)
        scales[~_find_said(packed)] = 0
        body = bytes((choose_exponent(scales, slot),)) + scales.tobytes() + packed
        return Compressed(body=body, units=self.decode(body, slot)[0], warm=None)

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check exponent, padding, that scales are 0 exactly where nibbles are, and the last nibble."""
        count = prod(slot.shape)
        blocks, groups = count_scales(count), count_groups(count)
        scales = np.frombuffer(body, dtype=np.uint8, count=blocks, offset=1)
        check_exponent(body[0], scales, slot)
        packed = body[1 + blocks :]
        if groups % 2 and packed[-1] >> 4:
            raise PayloadRefusedError(f"padding of {slot.name}", packed[-1] >> 4, 0)
        check_scales(scales, _find_said(packed), slot)
        if count % WORD_ELEMENTS:
            last_block = read_nibbles(packed[(blocks - 1) * _BLOCK_BYTES :])[: groups - (blocks - 1) * BLOCK_GROUPS]
            least = _find_least_last(last_block.astype(np.int64), count)
            if last_block[-1] != least:
                raise PayloadRefusedError(f"last nibble of {slot.name}", int(last_block[-1]), least)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Look up words and multiply by their block's scale: at most 2^15 before the exponent."""
        count = prod(slot.shape)
        blocks, groups = count_scales(count), count_groups(count)
        scales = np.frombuffer(body, dtype=np.uint8, count=blocks, offset=1).astype(np.int32)
        states = _read_states(read_nibbles(body[1 + blocks :])[:groups].astype(np.int64), blocks)
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


def _find_said(packed: bytes) -> npt.NDArray[np.bool_]:
    """Return for each block whether a nibble in it is not 0: then, and only then, an element isn't."""
    padded = np.frombuffer(packed + bytes(-len(packed) % _BLOCK_BYTES), dtype=np.uint8)
    is_said: npt.NDArray[np.bool_] = (padded != 0).reshape(-1, _BLOCK_BYTES).any(axis=1)
    return is_said


def _find_least_last(nibbles: npt.NDArray[np.int64], count: int) -> int:
    """Return the least nibble that reads as the last one does, of whose word only ``count`` mod 6 elements are read.

    ``nibbles`` begin with a block, and end with the tensor.
    """
    start = (nibbles.size - 1) // BLOCK_GROUPS * BLOCK_GROUPS
    state = int(_read_states(nibbles[start:], 1)[-1])
    head = state - state % _CHOICES
    readings_CE = _WORDS_SE[head : head + _CHOICES, : count % WORD_ELEMENTS].numpy()
    return int((readings_CE == readings_CE[state - head]).all(axis=1).argmax())


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
