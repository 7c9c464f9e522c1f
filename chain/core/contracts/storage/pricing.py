"""What a lease costs (DESIGN 6): integers only, rounded up, never nothing.

fee = ceil(max(size, min_bytes) * blocks * picowei / 10^12), at least 1 wei.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.contracts.params import PICOWEI, TierParams
from chain.core.contracts.storage.keys import get_tiers
from chain.core.state import Overlay
from chain.core.types import Amount


def compute_fee(tier: TierParams, size_bytes: int, blocks: int) -> Amount:
    """Return the wei of a lease, at least 1.

    One TB, one month, hot: ``compute_fee(hot, 10**12, 8_760_000)`` is 10 tokens within 10^-12.
    """
    picowei = max(size_bytes, tier.min_bytes) * blocks * tier.picowei_per_byte_block
    return Amount(max(1, -(-picowei // PICOWEI)))


def get_tier(state: Overlay, tier_id: int) -> TierParams:
    """Return a tier, or refuse with UnknownTier."""
    for tier in get_tiers(state):
        if tier.id == tier_id:
            return tier
    raise Refusal("UnknownTier", tier_id)


def check_lease(tier: TierParams, height: int, expiry_height: int) -> None:
    """Refuse an expiry outside what the tier offers at this height."""
    if expiry_height < height + tier.min_blocks:
        raise Refusal("LeaseTooShort", height + tier.min_blocks, expiry_height)
    if expiry_height > height + tier.max_blocks:
        raise Refusal("LeaseTooLong", height + tier.max_blocks, expiry_height)
