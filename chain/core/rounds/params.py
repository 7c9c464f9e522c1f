"""What an owner may choose (DESIGN 4.1), and what may change later.

Every bound keeps some loop, key or 64-bit deadline bounded; BadParams names field, bounds and value.
"""

from __future__ import annotations

from dataclasses import replace

from chain.core.abi.refusal import Refusal
from chain.core.contracts.params import TierParams
from chain.core.rounds.records import RunParams

MAX_FRAGMENTS = 256
"""``ready`` looks at the last 2F roots."""
MAX_PARTICIPANTS = 256
"""A vote names refused updates in one 256-bit word."""
MAX_LOCAL_STEPS = 1_000_000
"""H; more inner steps than anybody has used between two exchanges."""
MAX_ROUNDS = 2**40
"""Keeps t * H far below 2^64."""
MAX_BLOCKS = 2**31
"""A deadline of 20 years at 0.3 s; heights stay far below 2^64."""
MAX_CHECKPOINT_INTERVAL = 4_096
"""Payloads of two intervals are pinned."""
MAX_CHECKPOINT_PARTS = 256
"""Blobs named in one record."""
MAX_RANK = 65_536
"""Proposals beyond it are refused; wider than any tensor we know."""

_FIXED = ("num_fragments", "overlap", "checkpoint_interval", "num_checkpoint_parts", "is_sealed")
"""What the recipe, the gate and open records stand on."""

_ABI_NAMES = {
    "is_sealed": "isSealed",
    "num_fragments": "numFragments",
    "checkpoint_interval": "checkpointInterval",
    "num_checkpoint_parts": "numCheckpointParts",
}


def check_params(params: RunParams, tiers: tuple[TierParams, ...]) -> None:
    """Refuse parameters out of bounds with BadParams, and a paid run that is open to all."""
    longest_lease = min(tier.max_blocks for tier in tiers if tier.id <= 1)  # payloads are temporary, parts hot
    bounds = (
        ("numFragments", params.num_fragments, 1, MAX_FRAGMENTS),
        ("overlap", params.overlap, 0, 1),
        ("localSteps", params.local_steps, 1, MAX_LOCAL_STEPS),
        ("numRounds", params.num_rounds, 1, MAX_ROUNDS),
        ("maxMembers", params.max_members, 1, MAX_PARTICIPANTS),
        ("minMembers", params.min_members, 1, params.max_members),
        ("roundBlocks", params.round_blocks, 1, MAX_BLOCKS),
        ("graceBlocks", params.grace_blocks, 0, MAX_BLOCKS),
        ("revealBlocks", params.reveal_blocks, 1, MAX_BLOCKS),
        ("attestBlocks", params.attest_blocks, 1, MAX_BLOCKS),
        ("disputeBlocks", params.dispute_blocks, 1, MAX_BLOCKS),
        ("recoverBlocks", params.recover_blocks, 1, MAX_BLOCKS),
        ("lockBlocks", params.lock_blocks, 0, MAX_BLOCKS),
        ("checkpointInterval", params.checkpoint_interval, 1, MAX_CHECKPOINT_INTERVAL),
        ("numCheckpointParts", params.num_checkpoint_parts, 1, MAX_CHECKPOINT_PARTS),
        ("leaseBlocks", params.lease_blocks, 2, longest_lease),
    )
    for name, got, minimum, maximum in bounds:
        if not minimum <= got <= maximum:
            raise Refusal("BadParams", name, minimum, maximum, got)
    if params.reward_per_update and not params.is_allow_listed:
        raise Refusal("PaidRunNeedsAllowList")


def check_change(old: RunParams, new: RunParams, num_opened: int) -> None:
    """Refuse a change of what is fixed, and an end that has already gone by."""
    for name in _FIXED:
        before, after = int(getattr(old, name)), int(getattr(new, name))
        if before != after:
            raise Refusal("BadParams", _ABI_NAMES.get(name, name), before, before, after)
    if num_opened > old.num_rounds:  # the flush rounds have begun
        if new.num_rounds != old.num_rounds:
            raise Refusal("BadParams", "numRounds", old.num_rounds, old.num_rounds, new.num_rounds)
    elif new.num_rounds < num_opened:
        raise Refusal("BadParams", "numRounds", num_opened, MAX_ROUNDS, new.num_rounds)


def latch(old: RunParams, pending: RunParams, t: int) -> RunParams:
    """Return the parameters in force from round t on; rounds may have opened since the change was asked for."""
    if t > old.num_rounds:
        return replace(pending, num_rounds=old.num_rounds)
    return replace(pending, num_rounds=max(pending.num_rounds, t))


def compute_num_rounds_total(params: RunParams) -> int:
    """Return all rounds, with the F flush rounds."""
    return params.num_rounds + params.num_fragments


def compute_steps(t: int, local_steps: int, params: RunParams) -> int:
    """Return the inner steps of round t: floor((t+1)H/F) - floor(tH/F), none in a flush round."""
    if t >= params.num_rounds:
        return 0
    fragments = params.num_fragments
    return (t + 1) * local_steps // fragments - t * local_steps // fragments
