"""What a worker would change about rank and H: proposals, never decisions (SPEC, *Adaptation*; TRAINING).

Rank follows the spectrum of what workers send: the least number of components that keeps the recipe's share of the
energy; where even all of them don't, a few more are probed.  H follows the link: the exchange of a round must fit
beside its compute.  The chain takes the median of the proposals and moves a tenth at most, so floats are harmless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.core.proposal import Link, Proposal
from training.core.recipe import MAX_RANK, Recipe

PROBE_COMPONENTS = 8
"""How many components beyond the present rank are asked for while it keeps too little (TRAINING)."""

EXCHANGE_SHARE = 0.8
"""Share of a round's compute that its exchange may take: links vary, and what is late costs a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """What a sent tensor's components hold."""

    energies: tuple[float, ...]
    """Squared singular values, falling, of the update projected on its components."""
    total: float
    """Squared norm of the whole update, in the same unit."""


def measure_spectrum(owed_MN: torch.Tensor, factor_NR: torch.Tensor, fraction_bits: int) -> Spectrum:
    """Return the spectrum of an update (int64 grid units) from delta^T P, as low rank leaves it for its warm start.

    P is orthonormal, so the eigenvalues of the R x R Gram matrix are the squared singular values of the projection.
    """
    peak = float(owed_MN.abs().max())
    gram_RR = factor_NR.double().T @ factor_NR.double()
    unit = (peak * 2.0**-fraction_bits) ** 2
    energies = torch.linalg.eigvalsh(gram_RR).flip(0).clamp_min(0.0) * unit
    total = float((owed_MN.double() / max(peak, 1.0)).square().sum()) * unit
    return Spectrum(energies=tuple(energies.tolist()), total=total)


def propose_rank(spectra: Sequence[Spectrum], rank: int, keep_energy_bps: int) -> int:
    """Return the least rank whose components keep the share over all tensors together; 0 without any energy.

    >>> falling = Spectrum(energies=(8.0, 4.0, 2.0, 1.0), total=16.0)
    >>> [propose_rank([falling], 4, bps) for bps in (5_000, 7_500, 9_000, 9_900)]
    [1, 2, 4, 12]
    """
    total = sum(spectrum.total for spectrum in spectra)
    if total <= 0.0 or not math.isfinite(total):
        return 0
    kept = 0.0
    for components in range(1, rank + 1):
        kept += sum(spectrum.energies[components - 1] for spectrum in spectra if components <= len(spectrum.energies))
        if kept * 10_000 >= keep_energy_bps * total:
            return components
    return min(rank + PROBE_COMPONENTS, MAX_RANK)


def propose_local_steps(recipe: Recipe, link: Link) -> int:
    """Return the least H, from the recipe's up to its maximum, with which an exchange hides behind compute."""
    rounds = recipe.rounds
    if link.step_seconds <= 0.0 or not math.isfinite(link.exchange_seconds / link.step_seconds):
        return 0
    needed = math.ceil(rounds.num_fragments * link.exchange_seconds / (EXCHANGE_SHARE * link.step_seconds))
    return min(max(rounds.local_steps, needed), rounds.max_local_steps)


def propose(recipe: Recipe, spectra: Sequence[Spectrum], rank: int, link: Link | None) -> Proposal:
    """Return both, each only where the recipe lets it move."""
    keep = recipe.codec.keep_energy_bps
    is_link_known = recipe.rounds.max_local_steps > 0 and link is not None
    return Proposal(
        rank=propose_rank(spectra, rank or recipe.codec.rank, keep) if keep else 0,
        local_steps=propose_local_steps(recipe, link) if is_link_known and link is not None else 0,
    )
