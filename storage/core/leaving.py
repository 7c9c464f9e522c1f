"""When a node that leaves gets its bond back, in words (chain/core/contracts/SPEC.md, *Money of storage*).

A bond is held while certificates for the node's last committee may still come, while one that came runs, and while a
challenge is open. The first ends two epochs after the node's last one; the second is a height that the chain knows.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_MILLISECONDS = 300
"""Of a block, as prices have it; a chain's own pace may be another."""

NEVER = 2**64 - 1
"""freeHeight of a bond that is not about to be free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BondOutlook:
    """What a leaving operator wants to know."""

    when: str
    """When the bond is free."""
    next_step: str
    """What to do until then, or now."""


def explain_bond(
    *,
    bond: int,
    free_height: int,
    num_challenges: int,
    last_epoch: int,
    epoch: int,
    height: int,
    num_shards: int | None = None,
) -> BondOutlook:
    """Return when ``bond`` wei are free and what to do; heights and epochs as the chain says them, at ``height``.

    ``num_shards`` is what the node keeps, where that is known: without a shard to show, nothing costs it its bond.
    """
    if bond == 0:
        return BondOutlook(when="nothing is held", next_step="stop the node when it keeps no shard any more")
    if num_challenges:
        return BondOutlook(
            when=f"after {num_challenges} open challenges", next_step="keep the node running: it answers by itself"
        )
    if free_height == NEVER and epoch < last_epoch + 2:
        return BondOutlook(
            when=f"from a height that is known once storage epoch {last_epoch + 2} begins; "
            f"now is epoch {epoch}, the next come by themselves",
            next_step=_explain_stay("and look again in a minute", num_shards),
        )
    if free_height == NEVER:
        return BondOutlook(when="not while the node is registered", next_step="storage-node retire")
    if free_height > height:
        blocks = free_height - height
        return BondOutlook(
            when=f"height {free_height}, in {blocks} blocks, about {format_blocks(blocks)}",
            next_step=_explain_stay("until then", num_shards),
        )
    return BondOutlook(when=f"now, since height {free_height}", next_step="storage-node retire --take-bond")


def _explain_stay(how_long: str, num_shards: int | None) -> str:
    """Say whether a node that has left must still run."""
    if num_shards == 0:
        return "it keeps no shard, so the node may stop; once the bond is free: storage-node retire --take-bond"
    return f"keep the node running {how_long}: a shard that it is asked for and does not show costs a part of the bond"


def format_height(height: int, *, now: int, block_milliseconds: int = BLOCK_MILLISECONDS) -> str:
    """Return a height with the time to it, as far as the chain keeps its pace.

    >>> format_height(12_100, now=100), format_height(100, now=12_100)
    ('height 12,100, in 12,000 blocks, about 1.0 h', 'height 100, about 1.0 h ago')
    """
    if height >= now:
        return f"height {height:,}, in {height - now:,} blocks, about {format_blocks(height - now, block_milliseconds)}"
    return f"height {height:,}, about {format_blocks(now - height, block_milliseconds)} ago"


def format_blocks(blocks: int, block_milliseconds: int = BLOCK_MILLISECONDS) -> str:
    """Return how long so many blocks take, in the largest fitting unit.

    >>> format_blocks(100), format_blocks(12_000), format_blocks(8_760_000)
    ('30 s', '1.0 h', '30.4 days')
    """
    seconds = blocks * block_milliseconds // 1000
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            tenths = seconds * 10 // length
            return f"{tenths // 10}.{tenths % 10} {unit}"
    return f"{seconds} s"
