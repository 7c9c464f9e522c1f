"""Choose the codes of a low-rank update again, one component at a time (SPEC, *Codecs*).

Legend: M, N the matrix, R components, K rows of one side.  Solving a whole factor and then rounding it ignores that
what one component rounds away another can mend.  Here each column is rounded against what all the others leave, so no
step makes the fit worse: cyclic coordinate descent on integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def refine(
    delta_MN: torch.Tensor,
    p_MR: torch.Tensor,
    q_NR: torch.Tensor,
    fit_scales: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    nearest: Callable[[torch.Tensor], torch.Tensor],
    num_sweeps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return better codes of both sides, and the scales that fit them together.

    ``nearest`` rounds reals to codes; ``fit_scales`` takes delta Q, P and Q.  The products with delta take the time, so
    each is made once.
    """
    product_MR = delta_MN @ q_NR
    for _ in range(num_sweeps):
        scales_R = fit_scales(product_MR, p_MR, q_NR)
        p_MR = _choose_side(product_MR * scales_R, p_MR, q_NR * scales_R, nearest)
        scales_R = fit_scales(product_MR, p_MR, q_NR)
        q_NR = _choose_side((delta_MN.T @ p_MR) * scales_R, q_NR, p_MR * scales_R, nearest)
        product_MR = delta_MN @ q_NR
    return p_MR, q_NR, fit_scales(product_MR, p_MR, q_NR)


def _choose_side(
    product_KR: torch.Tensor,
    codes_KR: torch.Tensor,
    other_LR: torch.Tensor,
    nearest: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return codes of one side for which ``codes @ other.T`` is nearer to delta; a component of scale 0 stays.

    ``product_KR`` is delta times the other side.
    """
    codes_RK = codes_KR.T.contiguous()
    wanted_RK = product_KR.T.contiguous()
    gram_RR = other_LR.T @ other_LR
    sizes_R = gram_RR.diagonal().clamp_min(1e-30)
    for component in range(codes_RK.shape[0]):
        left_K = wanted_RK[component] - gram_RR[component] @ codes_RK
        codes_RK[component] = nearest(codes_RK[component] + left_K / sizes_R[component])
    return codes_RK.T.contiguous()
