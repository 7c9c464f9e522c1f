"""Which bytes a member trains on in a round; anyone can recompute it (SPEC, *Samples*; CASES 16).

The text is cut into windows of ``context`` bytes, at a phase that the round draws.  The windows are walked in a
drawn order (an affine permutation), and member i of the n participants takes every n-th of them.  So within a
round no two members, and no two samples of one member, share a window as long as the text has enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from training.core.errors import CorpusTooSmallError
from training.core.randomness import derive_bytes, derive_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """One member's windows in one round."""

    phase: int
    """First byte of window 0."""
    num_windows: int
    """Windows in the text."""
    multiplier: int
    """Of the permutation; coprime to ``num_windows``."""
    offset: int
    """Of the permutation."""
    member_index: int
    """i: this member among the participants, sorted."""
    num_members: int
    """n."""
    context: int
    """Bytes a window."""

    def start(self, sample_index: int) -> int:
        """Return the first byte of sample ``sample_index`` of this member's round."""
        position = sample_index * self.num_members + self.member_index
        window = (self.multiplier * position + self.offset) % self.num_windows
        return self.phase + window * self.context

    def starts(self, first_index: int, count: int) -> Iterator[int]:
        """Return the first bytes of ``count`` samples from ``first_index`` on."""
        return (self.start(first_index + index) for index in range(count))


def compute_data_seed(seed: int, round_index: int) -> bytes:
    """Return the round's data seed where no chain draws one."""
    return derive_bytes(seed, "data seed", round_index.to_bytes(8, "big"))


def plan_samples(
    *,
    seed: int,
    round_index: int,
    data_seed: bytes,
    member: bytes,
    participants: Sequence[bytes],
    num_bytes: int,
    context: int,
) -> SamplePlan:
    """Return a member's samples of a round in a text of ``num_bytes``.

    A member that isn't among the participants, or is told none, walks from a place of its own.  Raises
    `CorpusTooSmallError` for a text of fewer than context + 1, which has no sample.
    """
    if num_bytes < context + 1:
        raise CorpusTooSmallError("training", num_bytes, context + 1)
    names = [round_index.to_bytes(8, "big"), data_seed]
    members = sorted(set(participants))
    if member not in members:
        members = [member]
        names.append(member)
    phase = derive_integer(seed, "phase", *names[:2]) % min(context, num_bytes - context)
    num_windows = (num_bytes - 1 - phase) // context
    multiplier = derive_integer(seed, "multiplier", *names) % num_windows
    while gcd(multiplier, num_windows) != 1:
        multiplier += 1
    return SamplePlan(
        phase=phase,
        num_windows=num_windows,
        multiplier=multiplier,
        offset=derive_integer(seed, "offset", *names) % num_windows,
        member_index=members.index(member),
        num_members=len(members),
        context=context,
    )
