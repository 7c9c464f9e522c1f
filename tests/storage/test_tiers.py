"""Tiers are data that was checked: what loses bytes can't be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chain.core.contracts.params import DEVNET_TIERS
from da.core.types import Tier
from storage.core.errors import InvalidTierPolicy, TierUnavailable
from storage.core.tiers import (
    HOT,
    POLICIES,
    TEMPORARY_MAX_BLOCKS,
    UNREPAIRED_MAX_BLOCKS,
    Code,
    Durability,
    Medium,
    Repair,
    TierPolicy,
    get_served_policy,
    is_stronger,
    parse_tier,
)

GOOD: dict[str, Any] = {
    "tier": Tier.HOT,
    "medium": Medium.FILE,
    "durability": Durability.SYNCED,
    "code": Code.COMMITTEE,
    "repair": Repair.NONE,
    "max_lifetime_blocks": 1_000,
    "is_served": True,
}


def test_a_sound_policy_is_accepted() -> None:
    assert TierPolicy(**GOOD).max_lifetime_blocks == 1_000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": Code.LOCAL}, "code local on medium file"),
        ({"durability": Durability.WRITTEN}, "durability written"),
        ({"max_lifetime_blocks": UNREPAIRED_MAX_BLOCKS + 1}, "repair none"),
        (
            {
                "tier": Tier.TEMPORARY,
                "durability": Durability.WRITTEN,
                "max_lifetime_blocks": TEMPORARY_MAX_BLOCKS + 1,
            },
            "durability written",
        ),
        ({"max_lifetime_blocks": 0}, "max_lifetime_blocks 0"),
    ],
)
def test_invalid_combinations_that_lose_data(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTierPolicy, match=words):
        TierPolicy(**{**GOOD, **changes})


def test_every_tier_of_the_chain_has_a_policy() -> None:
    assert set(POLICIES) == set(Tier)
    assert all(policy.tier is tier for tier, policy in POLICIES.items())


def test_every_tier_is_kept_as_long_as_the_chain_sells_it() -> None:
    assert parse_tier("cold") is Tier.COLD
    assert get_served_policy(Tier.HOT) is HOT
    for sold in DEVNET_TIERS:
        assert get_served_policy(Tier(sold.id)).max_lifetime_blocks >= sold.max_blocks


def test_a_tier_that_is_only_declared_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Tier.COLD, replace(POLICIES[Tier.COLD], is_served=False))
    with pytest.raises(TierUnavailable, match="tier cold is not kept"):
        get_served_policy(Tier.COLD)


def test_an_unknown_tier_names_those_there_are() -> None:
    with pytest.raises(TierUnavailable, match="lukewarm"):
        parse_tier("lukewarm")


def test_hot_is_stronger_than_temporary() -> None:
    assert is_stronger(Tier.HOT, Tier.TEMPORARY)
    assert not is_stronger(Tier.TEMPORARY, Tier.HOT)
    assert not is_stronger(Tier.HOT, Tier.HOT)
    assert is_stronger(Tier.HOT, Tier.COLD)
    assert is_stronger(Tier.COLD, Tier.TEMPORARY)
