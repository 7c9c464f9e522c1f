"""What genesis fixes for the system contracts, with the devnet's values.

Prices: 1 token = 10^18 wei = 1 dollar, and a block is 0.3 s, so an hour has 12,000 blocks and a month of
730 hours 8,760,000.  A price is picowei (10^-12 wei) a byte and block, rounded to the nearest integer,
which is exact to 10^-11.
"""

from __future__ import annotations

from dataclasses import dataclass

WEI = 10**18
"""Wei of one token, one dollar in the devnet's tables."""
PICOWEI = 10**12
"""Picowei of one wei."""
TERABYTE = 10**12
"""Bytes of a TB, as storage is advertised."""
BLOCKS_PER_HOUR = 12_000
"""3,600 s at 0.3 s a block."""
BLOCKS_PER_MONTH = 730 * BLOCKS_PER_HOUR
"""A twelfth of 8,760 hours."""


def compute_price(dollars: int, byte_blocks: int) -> int:
    """Return picowei a byte-block, to the nearest integer, for ``dollars`` per so many byte-blocks.

    ``compute_price(10, TERABYTE * BLOCKS_PER_MONTH)`` is 1141552511416.
    """
    return (2 * dollars * WEI * PICOWEI + byte_blocks) // (2 * byte_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierParams:
    """A storage tier's price and limits."""

    id: int
    """0 temporary, 1 hot, 2 cold; as da.core.types.Tier."""
    name: str
    """For people."""
    picowei_per_byte_block: int
    """Price, positive."""
    min_bytes: int
    """Smaller blobs pay for this many bytes."""
    min_blocks: int
    """Shortest lease."""
    max_blocks: int
    """Longest lease from now."""


DEVNET_TIERS = (
    TierParams(
        id=0,
        name="temporary",
        picowei_per_byte_block=compute_price(10, 730 * TERABYTE * BLOCKS_PER_HOUR),
        min_bytes=1024,
        min_blocks=1,  # the devnet's rounds are short; a public chain sets an hour, 12,000
        max_blocks=24 * 30 * BLOCKS_PER_HOUR,
    ),
    TierParams(
        id=1,
        name="hot",
        picowei_per_byte_block=compute_price(10, TERABYTE * BLOCKS_PER_MONTH),
        min_bytes=1024,
        min_blocks=1,
        max_blocks=24 * BLOCKS_PER_MONTH,
    ),
    TierParams(
        id=2,
        name="cold",
        picowei_per_byte_block=compute_price(1, TERABYTE * BLOCKS_PER_MONTH),
        min_bytes=1024,
        min_blocks=720 * BLOCKS_PER_HOUR,  # 30 days
        max_blocks=120 * BLOCKS_PER_MONTH,
    ),
)
"""$10 per TB-month hot, $0.0137 (10/730) per TB-hour temporary, $1 per TB-month cold (DA.md, *Tiers and price*)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractParams:
    """Chosen once, in genesis."""

    storage_epoch_blocks: int = 10
    """Committees change at heights that are multiples of this, when the set of nodes has changed."""
    unbond_blocks: int = 200
    """Lock of a bond that is being freed, blocks (one minute on a devnet)."""
    tiers: tuple[TierParams, ...] = DEVNET_TIERS
    """By ascending id."""
    node_bond: int = 0
    """Smallest bond of a storage node, wei; a devnet lets anybody in, a public chain does not."""
    challenge_bond: int = WEI // 100
    """What a challenger risks, wei: it pays the node for its answer, which costs some 2 million gas."""
    challenge_blocks: int = 100
    """Time to answer a challenge, blocks (30 s), and one more for each that is open against the node: a cold node reads
    the whole shard back first."""
    slash_percent: int = 20
    """Part of a node's bond that a lost shard costs."""
    payout_blocks: int = 100
    """Distance of heights at which an epoch's seats are paid (30 s)."""

    power_unit_wei: int = WEI
    """Bond for each unit of a validator's voting power."""
    min_validator_bond_wei: int = WEI
    """Least bond of a validator."""
    max_validators: int = 64
    """Those with the highest bonds vote."""
    double_sign_slash_ppm: int = 50_000
    """Millionths of the bond that a double sign costs: a twentieth, as in the Cosmos hub."""
    jail_blocks: int = 1_000
    """Shortest time out of the set after a double sign (five minutes)."""
    rules: int = 3
    """Version of the state machine's rules from block 1 on (chain/SPEC.md, Upgrades)."""

    def __post_init__(self) -> None:
        """Refuse what would divide by zero or sell storage for nothing."""
        if min(self.power_unit_wei, self.min_validator_bond_wei, self.max_validators, self.jail_blocks, self.rules) < 1:
            raise ValueError(
                "power_unit_wei, min_validator_bond_wei, max_validators, jail_blocks and rules must be at least 1"
            )
        if self.max_validators > 64 or not 0 <= self.double_sign_slash_ppm <= 1_000_000:
            raise ValueError(
                f"max_validators is {self.max_validators}, at most 64; double_sign_slash_ppm is"
                f" {self.double_sign_slash_ppm}, expected 0 to 1,000,000"
            )
        if self.storage_epoch_blocks < 1:
            raise ValueError(f"storage_epoch_blocks is {self.storage_epoch_blocks}, expected at least 1")
        if self.unbond_blocks < 0:
            raise ValueError(f"unbond_blocks is {self.unbond_blocks}, expected at least 0")
        if self.node_bond < 0 or self.challenge_bond < 1:
            raise ValueError(f"node_bond {self.node_bond} below 0, or challenge_bond {self.challenge_bond} below 1")
        if self.challenge_blocks < 1 or self.payout_blocks < 1 or not 0 <= self.slash_percent <= 100:
            raise ValueError(
                f"challenge_blocks {self.challenge_blocks} and payout_blocks {self.payout_blocks} need at least 1, "
                f"slash_percent {self.slash_percent} lies in 0..100"
            )
        for tier in self.tiers:
            if tier.picowei_per_byte_block < 1 or not 1 <= tier.min_blocks <= tier.max_blocks:
                raise ValueError(f"tier {tier.name}: a positive price and 1 <= min_blocks <= max_blocks are needed")
