"""Tiers as validated data: medium, code, lifetime, repair (DESIGN 6, SPEC.md 1).

The promise of a tier follows from these fields; a combination that is known to lose data is refused
when it is made, so no node can run with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from da.core.types import Tier
from storage.core.errors import InvalidTierPolicy, TierUnavailable


class Medium(StrEnum):
    """Where bytes lie."""

    FILE = "file"
    """A file of the node's own filesystem."""
    SHELF = "shelf"
    """Append segments, or an S3-compatible bucket: as the node is configured."""


class Durability(StrEnum):
    """What must be over before a receipt is signed."""

    WRITTEN = "written"
    """Handed to the kernel: survives a killed process, not a power cut."""
    SYNCED = "synced"
    """On the medium (fdatasync): survives a power cut."""


class Code(StrEnum):
    """How a blob is spread over nodes."""

    COMMITTEE = "committee"
    """da's code of the storage committee: k = n - 2f of n, one shard a seat."""
    WIDE = "wide"
    """k = 2n/3 of n where the committee has 24 seats or more, else the committee's own."""
    LOCAL = "local"
    """No spreading: this node alone has the bytes."""


class Repair(StrEnum):
    """Whether lost shards are rebuilt."""

    NONE = "none"
    FROM_ANY_K = "from-any-k"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPolicy:
    """One tier, complete."""

    tier: Tier
    """The chain's number of it."""
    medium: Medium
    durability: Durability
    code: Code
    repair: Repair
    max_lifetime_blocks: int
    """Longest lease that is promised, in blocks, at least 1."""
    is_served: bool
    """False: declared, and refused by name until it exists."""

    def __post_init__(self) -> None:
        """Refuse what loses data.

        Raises: InvalidTierPolicy naming both fields.
        """
        name = self.tier.name.lower()
        if self.max_lifetime_blocks < 1:
            raise InvalidTierPolicy(f"{name}: max_lifetime_blocks {self.max_lifetime_blocks}, expected at least 1")
        if self.code is Code.LOCAL and self.medium is Medium.FILE:
            raise InvalidTierPolicy(
                f"{name}: code {self.code} on medium {self.medium} loses the blob with one disk; use code committee"
            )
        if self.durability is Durability.WRITTEN and self.tier is not Tier.TEMPORARY:
            raise InvalidTierPolicy(
                f"{name}: durability {self.durability} loses a kept blob when power fails; use synced"
            )
        if self.durability is Durability.WRITTEN and self.max_lifetime_blocks > TEMPORARY_MAX_BLOCKS:
            raise InvalidTierPolicy(
                f"{name}: durability {self.durability} for {self.max_lifetime_blocks} blocks, "
                f"at most {TEMPORARY_MAX_BLOCKS}: nothing kept longer may wait for the next power cut"
            )
        if self.repair is Repair.NONE and self.max_lifetime_blocks > UNREPAIRED_MAX_BLOCKS:
            raise InvalidTierPolicy(
                f"{name}: repair {self.repair} for {self.max_lifetime_blocks} blocks, at most "
                f"{UNREPAIRED_MAX_BLOCKS}: lost shards add up; use repair from-any-k"
            )


TEMPORARY_MAX_BLOCKS = 10_000_000
"""Blocks; about a month of blocks of 0.3 s: a pinned payload that waits for a late checkpoint."""

UNREPAIRED_MAX_BLOCKS = 100_000_000
"""Blocks; about a year of blocks of 0.3 s. DA.md: at 1 % loss a window, 8 of 12 unrepaired is gone in some years."""

TEMPORARY = TierPolicy(
    tier=Tier.TEMPORARY,
    medium=Medium.FILE,
    durability=Durability.WRITTEN,
    code=Code.COMMITTEE,
    repair=Repair.NONE,
    max_lifetime_blocks=TEMPORARY_MAX_BLOCKS,
    is_served=True,
)
HOT = TierPolicy(
    tier=Tier.HOT,
    medium=Medium.FILE,
    durability=Durability.SYNCED,
    code=Code.COMMITTEE,
    repair=Repair.FROM_ANY_K,
    max_lifetime_blocks=300_000_000,
    is_served=True,
)
COLD = TierPolicy(
    tier=Tier.COLD,
    medium=Medium.SHELF,
    durability=Durability.SYNCED,
    code=Code.WIDE,
    repair=Repair.FROM_ANY_K,
    max_lifetime_blocks=1_100_000_000,
    is_served=True,
)
POLICIES: dict[Tier, TierPolicy] = {policy.tier: policy for policy in (TEMPORARY, HOT, COLD)}
"""What this version's nodes keep: at least as long as the chain's longest lease of each tier."""

SERVED_NAMES: tuple[str, ...] = tuple(policy.tier.name.lower() for policy in POLICIES.values() if policy.is_served)


def get_served_policy(tier: Tier) -> TierPolicy:
    """Return the policy of a tier that nodes keep.

    Raises: TierUnavailable for a tier that is only declared.
    """
    policy = POLICIES[tier]
    if not policy.is_served:
        raise TierUnavailable(tier=tier.name.lower(), served=SERVED_NAMES)
    return policy


def parse_tier(name: str) -> Tier:
    """Return the tier of its lower-case name, as people type it.

    Raises: TierUnavailable with the names there are.
    """
    for tier in Tier:
        if tier.name.lower() == name.lower():
            return tier
    raise TierUnavailable(tier=name, served=SERVED_NAMES)


def is_stronger(left: Tier, right: Tier) -> bool:
    """True when ``left`` promises more than ``right`` about a node's own copy: hot is synced and near, cold synced."""
    order = (Tier.TEMPORARY, Tier.COLD, Tier.HOT)
    return order.index(left) > order.index(right)
