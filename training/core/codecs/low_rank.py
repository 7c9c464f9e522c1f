"""Low rank with small codes and one 8-bit scale a component (SPEC, *Codecs*; DiLoCoX; TRAINING).

Legend: M, N the matrix, R components.  Body: x u8, scale u8 for each component, codes of P (M x R) and then of
Q (N x R), row-major, so that one element needs one row of each.
Element (m, n) = 2^x * sum over r of scale[r] * P[m, r] * Q[n, r], exactly.

The codes are chosen in float32: power iteration from the last Q, orthonormalise, quantise P, then solve Q, P and
Q again, each against the quantised other (one pass of alternating least squares), choose every column again against all
others (`refining`), and fit the scales together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from training.core.codecs.code_family import CodeFamily
from training.core.codecs.integers import check_exponent, choose_exponent
from training.core.codecs.protocol import Compressed, Slot
from training.core.codecs.refining import refine

_RIDGE = 1e-6
"""Added to the normal equations relative to their largest diagonal, so that dependent columns stay finite."""

_CHUNK_ELEMENTS = 1 << 17
"""Elements multiplied out at once, so that float64 becomes int64 in the cache."""

_NUM_SWEEPS = 2
"""Of choosing every column again against all others: an eighth less is left; a third sweep gains 1 % (SPEC)."""


def count_low_rank_bytes(family: CodeFamily, shape: tuple[int, ...], rank: int) -> int:
    """Return the length of a low-rank body of a matrix."""
    return 1 + rank + family.count_bytes(shape[0] * rank) + family.count_bytes(shape[1] * rank)


class LowRank:
    """P Q^T in codes of one family."""

    def __init__(self, family: CodeFamily, nearest: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take the codes of a family; ``nearest`` rounds reals to them."""
        self._family = family
        self._nearest = nearest

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Return the codes found from ``warm`` (or a seeded start where there is none of this shape)."""
        peak = max(abs(int(edge)) for edge in units.aminmax()) if units.numel() else 0
        if peak == 0:
            return self._finish(np.zeros((slot.shape[0], slot.rank)), np.zeros((slot.shape[1], slot.rank)), slot, warm)
        delta_MN = units.float().mul_(1 / peak)
        p_MR, q_NR, warm_NR = self._find_components(delta_MN, _start(warm, slot, seed).to(delta_MN.device))
        p_MR, q_NR, scales_R = refine(delta_MN, p_MR, q_NR, _fit_scales, self._nearest, _NUM_SWEEPS)
        scales_R = scales_R * (peak / (1 << slot.exponent))
        q_NR = torch.where(scales_R < 0, -q_NR, q_NR)
        scales_R = scales_R.abs().round().clamp(0, 255)
        live_R = (scales_R > 0) & (p_MR != 0).any(dim=0) & (q_NR != 0).any(dim=0)
        return self._finish(
            (p_MR * live_R).cpu().numpy(),
            (q_NR * live_R).cpu().numpy(),
            slot,
            warm_NR.cpu(),
            (scales_R * live_R).cpu().numpy().astype(np.uint8),
        )

    def _find_components(
        self, delta_MN: torch.Tensor, start_NR: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return first codes of P and Q, and Q before it was quantised."""
        quantise = self._family.quantise
        p_MR, _ = torch.linalg.qr(delta_MN @ start_NR)
        warm_NR = delta_MN.T @ p_MR
        p_MR = quantise(p_MR)
        q_NR = quantise(_solve(delta_MN.T, p_MR))
        p_MR = quantise(_solve(delta_MN, q_NR))
        q_NR = quantise(_solve(delta_MN.T, p_MR))
        return p_MR, q_NR, warm_NR

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check exponent and codes; a component has a scale and both its columns, or none of them."""
        scales = np.frombuffer(body, dtype=np.uint8, count=slot.rank, offset=1)
        check_exponent(body[0], scales, slot)
        split = 1 + slot.rank + self._family.count_bytes(slot.shape[0] * slot.rank)
        self._family.check(body[1 + slot.rank : split], slot.shape[0], scales, slot)
        self._family.check(body[split:], slot.shape[1], scales, slot)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Multiply out in float64: every product and partial sum is an integer below 2^26 times 2^x, so it is exact."""
        num_rows, num_columns = slot.shape
        split = 1 + slot.rank + self._family.count_bytes(num_rows * slot.rank)
        scales = np.frombuffer(body, dtype=np.uint8, count=slot.rank, offset=1).astype(np.int64)
        p_MR = self._family.unpack(body[1 + slot.rank : split], num_rows * slot.rank).reshape(num_rows, slot.rank)
        q_NR = self._family.unpack(body[split:], num_columns * slot.rank).reshape(num_columns, slot.rank)
        left_MR = torch.from_numpy((p_MR * (scales << body[0])).astype(np.float64))
        right_RN = torch.from_numpy(q_NR.astype(np.float64)).T
        units_MN = torch.empty(slot.shape, dtype=torch.int64)
        num_rows_at_once = max(1, _CHUNK_ELEMENTS // num_columns)
        for start in range(0, num_rows, num_rows_at_once):
            units_MN[start : start + num_rows_at_once] = left_MR[start : start + num_rows_at_once] @ right_RN
        return units_MN, int(scales.max(initial=0)) << body[0]

    def _finish(
        self,
        p_MR: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
        q_NR: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
        slot: Slot,
        warm: torch.Tensor | None,
        scales: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None = None,
    ) -> Compressed:
        """Write the body, and read it back: what is kept as sent is what a reader decodes."""
        scales = np.zeros(slot.rank, dtype=np.uint8) if scales is None else scales
        body = b"".join(
            (
                bytes((choose_exponent(scales, slot),)),
                scales.tobytes(),
                self._family.pack(p_MR.astype(np.int64)),
                self._family.pack(q_NR.astype(np.int64)),
            )
        )
        return Compressed(body=body, units=self.decode(body, slot)[0], warm=warm)


def _start(warm: torch.Tensor | None, slot: Slot, seed: bytes) -> torch.Tensor:
    """Return the first Q: the last one, cut or filled up with seeded noise to this round's rank."""
    num_columns = slot.shape[1]
    words = np.random.Generator(np.random.Philox(int.from_bytes(seed[:16], "big"))).standard_normal(
        (num_columns, slot.rank), dtype=np.float32
    )
    start = torch.from_numpy(words)
    if warm is not None and warm.shape[0] == num_columns:
        kept = min(slot.rank, warm.shape[1])
        norms = warm[:, :kept].norm(dim=0)
        start[:, :kept] = torch.where(norms > 0, warm[:, :kept] / norms.clamp_min(1e-30), start[:, :kept])
    return start


def _solve(delta_KL: torch.Tensor, other_LR: torch.Tensor) -> torch.Tensor:
    """Return the K x R factor that fits ``delta`` best given the other one."""
    gram_RR = other_LR.T @ other_LR
    factor_KR: torch.Tensor = torch.linalg.solve(_with_ridge(gram_RR), other_LR.T @ delta_KL.T).T
    return factor_KR


def _fit_scales(product_MR: torch.Tensor, p_MR: torch.Tensor, q_NR: torch.Tensor) -> torch.Tensor:
    """Return the real scales that fit all components together; the product is that of delta and Q."""
    gram_RR = (p_MR.T @ p_MR) * (q_NR.T @ q_NR)
    right_R = (product_MR * p_MR).sum(dim=0)
    scales_R: torch.Tensor = torch.linalg.solve(_with_ridge(gram_RR), right_R)
    return scales_R


def _with_ridge(gram_RR: torch.Tensor) -> torch.Tensor:
    diagonal_R = gram_RR.diagonal()
    ridge = _RIDGE * diagonal_R.max().clamp_min(1.0)
    return gram_RR + torch.diag(torch.where(diagonal_R > 0, ridge, ridge + 1.0))
