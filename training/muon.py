"""Muon: momentum whose matrices are made nearly orthogonal before they are applied (Jordan et al., 2024; MuLoCo).

Legend: M, N a weight, K matrices in it.  Used for the matrices inside the blocks; embedding and norms stay with AdamW.
"""

from __future__ import annotations

from math import sqrt

import torch

NUM_ITERATIONS = 5
"""Newton-Schulz steps; singular values end within about 0.7 to 1.2."""

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic, chosen by its authors for the steepest start at 0."""

_RATE_SCALE = 0.2
"""Makes an update as large as one of AdamW, so that one learning rate serves both (arXiv 2502.16982)."""

_FUSED = {"qkv.weight": 3, "gate_up.weight": 2}
"""Weights that are several matrices on top of one another: each is made orthogonal by itself."""


def is_muon_weight(name: str, weight: torch.Tensor) -> bool:
    """Say whether Muon takes a weight."""
    return weight.dim() == 2 and name.startswith("layers.")


def update_weight(
    name: str,
    weight_MN: torch.Tensor,
    gradient_MN: torch.Tensor,
    momentum_MN: torch.Tensor,
    *,
    momentum: float,
    rate: float,
    decay: float,
) -> None:
    """Do one step in place: momentum, Nesterov, orthogonalise, decoupled decay."""
    direction_MN = compute_direction(name, compute_ahead(gradient_MN, momentum_MN, momentum))
    apply_direction(weight_MN, direction_MN, rate, decay)


def compute_ahead(gradient_MN: torch.Tensor, momentum_MN: torch.Tensor, momentum: float) -> torch.Tensor:
    """Advance the running sum in place and return the gradient with Nesterov's look ahead; any rows of a matrix."""
    momentum_MN.mul_(momentum).add_(gradient_MN)
    return gradient_MN.add(momentum_MN, alpha=momentum)


def compute_direction(name: str, ahead_MN: torch.Tensor) -> torch.Tensor:
    """Return a whole matrix made nearly orthogonal, each of its pieces by itself."""
    num_pieces = next((count for suffix, count in _FUSED.items() if name.endswith(suffix)), 1)
    pieces_KMN = ahead_MN.reshape(num_pieces, -1, ahead_MN.shape[1])
    directions_KMN = orthogonalise(pieces_KMN).mul(sqrt(max(pieces_KMN.shape[1:])))
    return directions_KMN.reshape(ahead_MN.shape)


def apply_direction(weight_MN: torch.Tensor, direction_MN: torch.Tensor, rate: float, decay: float) -> None:
    """Step weights in place, with decoupled decay; any rows of a matrix."""
    weight_MN.mul_(1.0 - rate * decay).add_(direction_MN, alpha=-rate * _RATE_SCALE)


def orthogonalise(matrices_KMN: torch.Tensor) -> torch.Tensor:
    """Return for each of K matrices the nearest one with singular values near 1; zero stays zero."""
    a, b, c = _COEFFICIENTS
    is_tall = matrices_KMN.shape[1] > matrices_KMN.shape[2]
    x = matrices_KMN.mT if is_tall else matrices_KMN
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    result: torch.Tensor = x.mT if is_tall else x
    return result
