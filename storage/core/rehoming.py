"""Whether a blob should move from the committee that it was put to, to the current one (DESIGN 5; SPEC.md 16).

Seats that leave serve out their leases, so a change of the committee alone moves nothing. A seat that is gone for good
takes its shard along: the blob moves while the others can still give it back. Invariant: a move keeps the id, so it
needs a committee of the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from da.core.types import Epoch


class Verdict(StrEnum):
    """What to do with one blob."""

    STAY = "stay"
    """Its committee is the current one, or all of its seats stand by their shards."""
    MOVE = "move"
    """Read it, send it to the current committee, certify it again."""
    PUT_ANEW = "put anew"
    """The current committee has another code: it would get another id."""


def judge(
    *,
    epoch: Epoch,
    current: Epoch,
    signers: int,
    are_registered: Sequence[bool],
    num_shards: int,
    num_seats: int,
) -> tuple[Verdict, tuple[int, ...]]:
    """Return what to do with a blob of ``epoch``, and its seats that are gone: retired, slashed, or never signed.

    ``are_registered``: its seats in order; ``signers``: their bitmap; ``num_seats``: size of the current committee.
    """
    gone = tuple(
        seat for seat, is_registered in enumerate(are_registered) if not is_registered or not signers >> seat & 1
    )
    if epoch == current or not gone:
        return Verdict.STAY, gone
    return (Verdict.MOVE if num_shards == num_seats else Verdict.PUT_ANEW), gone
