"""Low rank with 4-bit codes and one 8-bit scale a component (SPEC, *Codecs*; DiLoCoX; TRAINING).

Legend: M, N the matrix, R components.  Body: x u8, scale u8 for each component, codes of P (M x R) and then of
Q (N x R) as nibbles, row-major, so that one element needs one row of each.
Element (m, n) = 2^x * sum over r of scale[r] * P[m, r] * Q[n, r], exactly.

The codes are chosen in float32: power iteration from the last Q, orthonormalise, quantise P, then solve Q, P and
Q again, each against the quantised other (one pass of alternating least squares), and fit the scales together.
"""

from __future__ import annotations

import numpy as np
import torch

from training.core.codecs.integers import (
    INT4_LIMIT,
    check_exponent,
    check_int4,
    count_int4_bytes,
    pack_int4,
    unpack_int4,
)
from training.core.codecs.protocol import Compressed, Slot

_CLIPS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Steps tried for a column, as shares of largest/7; finer searches gain under 2 % of the residual (TRAINING)."""

_RIDGE = 1e-6
"""Added to the normal equations relative to their largest diagonal, so that dependent columns stay finite."""


def count_low_rank_bytes(shape: tuple[int, ...], rank: int) -> int:
    """Return the length of a low-rank body of a matrix."""
    return 1 + rank + count_int4_bytes(shape[0] * rank) + count_int4_bytes(shape[1] * rank)


class LowRankInt4:
    """P Q^T in 4-bit codes."""

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Return the codes found from ``warm`` (or a seeded start where there is none of this shape)."""
        peak = int(units.abs().max()) if units.numel() else 0
        if peak == 0:
            return self._finish(np.zeros((slot.shape[0], slot.rank)), np.zeros((slot.shape[1], slot.rank)), slot, warm)
        delta_MN = (units.double() / peak).float()
        start_NR = _start(warm, slot, seed).to(delta_MN.device)
        p_MR, _ = torch.linalg.qr(delta_MN @ start_NR)
        warm_NR = delta_MN.T @ p_MR
        p_MR = _quantise_columns(p_MR)
        q_NR = _quantise_columns(_solve(delta_MN.T, p_MR))
        p_MR = _quantise_columns(_solve(delta_MN, q_NR))
        q_NR = _quantise_columns(_solve(delta_MN.T, p_MR))
        scales_R = _fit_scales(delta_MN, p_MR, q_NR) * (peak / (1 << slot.exponent))
        q_NR = torch.where(scales_R < 0, -q_NR, q_NR)
        scales_R = scales_R.abs().round().clamp(0, 255)
        live_R = scales_R > 0
        return self._finish(
            (p_MR * live_R).cpu().numpy(),
            (q_NR * live_R).cpu().numpy(),
            slot,
            warm_NR.cpu(),
            scales_R.cpu().numpy().astype(np.uint8),
        )

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check exponent and codes."""
        check_exponent(body[0], slot)
        split = 1 + slot.rank + count_int4_bytes(slot.shape[0] * slot.rank)
        check_int4(body[1 + slot.rank : split], slot.shape[0] * slot.rank, slot)
        check_int4(body[split:], slot.shape[1] * slot.rank, slot)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Multiply out in float64: every product and partial sum is an integer below 2^26, so it is exact."""
        num_rows, num_columns = slot.shape
        split = 1 + slot.rank + count_int4_bytes(num_rows * slot.rank)
        scales = np.frombuffer(body, dtype=np.uint8, count=slot.rank, offset=1).astype(np.int64)
        p_MR = unpack_int4(body[1 + slot.rank : split], num_rows * slot.rank).reshape(num_rows, slot.rank)
        q_NR = unpack_int4(body[split:], num_columns * slot.rank).reshape(num_columns, slot.rank)
        product_MN = torch.from_numpy((p_MR * scales).astype(np.float64)) @ torch.from_numpy(q_NR.astype(np.float64)).T
        return product_MN.to(torch.int64) << body[0], int(scales.max(initial=0)) << body[0]

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
                bytes((slot.exponent,)),
                scales.tobytes(),
                pack_int4(p_MR.astype(np.int64)),
                pack_int4(q_NR.astype(np.int64)),
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


def _quantise_columns(columns_KR: torch.Tensor) -> torch.Tensor:
    """Return integer codes, as floats, with the best of a few steps for each column; zero columns stay zero."""
    peaks_R = columns_KR.abs().amax(dim=0).clamp_min(1e-30)
    best_codes = torch.zeros_like(columns_KR)
    best_gain_R = torch.zeros_like(peaks_R)
    for clip in _CLIPS:
        codes = (columns_KR * (INT4_LIMIT / (clip * peaks_R))).round().clamp(-INT4_LIMIT, INT4_LIMIT)
        gain_R = (codes * columns_KR / peaks_R).sum(dim=0) ** 2 / (codes * codes).sum(dim=0).clamp_min(1.0)
        better_R = gain_R > best_gain_R
        best_codes = torch.where(better_R, codes, best_codes)
        best_gain_R = torch.where(better_R, gain_R, best_gain_R)
    return best_codes


def _solve(delta_KL: torch.Tensor, other_LR: torch.Tensor) -> torch.Tensor:
    """Return the K x R factor that fits ``delta`` best given the other one."""
    gram_RR = other_LR.T @ other_LR
    factor_KR: torch.Tensor = torch.linalg.solve(_with_ridge(gram_RR), other_LR.T @ delta_KL.T).T
    return factor_KR


def _fit_scales(delta_MN: torch.Tensor, p_MR: torch.Tensor, q_NR: torch.Tensor) -> torch.Tensor:
    """Return the real scales that fit all components together."""
    gram_RR = (p_MR.T @ p_MR) * (q_NR.T @ q_NR)
    right_R = ((delta_MN @ q_NR) * p_MR).sum(dim=0)
    scales_R: torch.Tensor = torch.linalg.solve(_with_ridge(gram_RR), right_R)
    return scales_R


def _with_ridge(gram_RR: torch.Tensor) -> torch.Tensor:
    diagonal_R = gram_RR.diagonal()
    ridge = _RIDGE * diagonal_R.max().clamp_min(1.0)
    return gram_RR + torch.diag(torch.where(diagonal_R > 0, ridge, ridge + 1.0))
