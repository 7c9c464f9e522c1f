"""Why a run waits for money, and how much of it would help (chain/core/rounds/escrow.py has the chain's own rule).

Pure: a function of what the chain says of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.bindings.amounts import WEI_PER_TOKEN, format_exact_tokens
from contracts.bindings.types import RunInfo, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortEscrow:
    """What is left of an escrow that pays for no further round."""

    run: int
    """The run."""
    has_wei: int
    """Left."""
    round_wei: int
    """Rewards of the next round; the leases of its payloads, at the run's largest so far, come on top."""
    rest_wei: int
    """To add for all rounds that are left, with storage as expensive as it was so far. Never less than 1."""
    num_left: int
    """Those rounds."""
    is_promised: bool
    """Part of it is promised to rounds that are open."""

    def __str__(self) -> str:
        """Say both amounts to the last digit: rounded they may look alike."""
        rewards = f"{format_exact_tokens(self.round_wei)} and its storage" if self.round_wei else "its storage"
        promised = " (a part is promised to open rounds)" if self.is_promised else ""
        return f"its escrow has {format_exact_tokens(self.has_wei)}{promised}, the next round needs {rewards}"

    @property
    def next_step(self) -> str:
        """Return the command that lets the run go on."""
        unit = WEI_PER_TOKEN // (100 if self.rest_wei >= WEI_PER_TOKEN else 10**6)
        amount = format_exact_tokens(-(-self.rest_wei // unit) * unit).split()[0]
        return f"trainer run fund {amount} --run {self.run} --key-file KEY (enough for the {self.num_left} rounds left)"


def find_short_escrow(run: RunInfo) -> ShortEscrow | None:
    """Return what lacks where a run waits for money, None where it does not.

    A run with enough members waits for nothing else.
    """
    if run.state is not RunState.WAITING or run.num_eligible < run.params.min_members:
        return None
    num_left = max(1, run.num_rounds_total - run.num_opened)
    num_unpaid = num_left + run.num_opened - run.num_settled
    round_wei = run.num_eligible * run.params.reward_per_update
    # Twice what storage has cost a round: prices move, and the chain keeps the largest lease so far for each update.
    storage_wei = 2 * num_unpaid * -(-run.paid_storage // max(1, run.num_settled))
    # What all leases have cost together is no less than the largest of them, which the chain keeps for each update.
    needed_wei = num_unpaid * round_wei + max(storage_wei, run.num_eligible * run.paid_storage)
    return ShortEscrow(
        run=run.run,
        has_wei=run.escrow,
        round_wei=round_wei,
        rest_wei=max(1, needed_wei - run.escrow),
        num_left=num_left,
        is_promised=run.num_opened > run.num_settled,
    )
