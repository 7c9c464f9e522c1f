"""What a registration does to the set: power, who is needed, and what is refused before anything is sent."""

from __future__ import annotations

import pytest

from chain.commands.registering import describe
from chain.registering import NotRegistered, compute_powers, compute_registration
from contracts.bindings.types import StakingParams, Validator

TOKEN = 10**18
PARAMS = StakingParams(
    unbond_blocks=200,
    power_unit_wei=TOKEN,
    min_validator_bond_wei=TOKEN,
    max_validators=2,
    double_sign_slash_ppm=50_000,
    jail_blocks=100,
    rules=3,
)


def make_validator(name: int, tokens: int, *, jailed_until: int = 0) -> Validator:
    return Validator(
        operator="0x" + f"{name:040x}",
        key=bytes([name]) * 32,
        consensus_address="0x" + f"{name:040x}",
        bond=tokens * TOKEN,
        power=tokens,
        jailed_until=jailed_until,
        slashed=0,
    )


FIRST = make_validator(1, 10)
KEY = b"\x09" * 32


@pytest.mark.parametrize(("tokens", "is_needed"), [(4, False), (5, True), (10, True)])
def test_who_is_needed(tokens: int, is_needed: bool) -> None:
    plan = compute_registration(PARAMS, [FIRST], key=KEY, held=0, value=tokens * TOKEN)
    assert (plan.power, plan.total_power, plan.is_needed) == (tokens, 10 + tokens, is_needed)
    assert describe(plan).startswith("warning: ") == is_needed


def test_what_is_held_counts_and_a_full_set_takes_the_highest() -> None:
    plan = compute_registration(PARAMS, [FIRST], key=KEY, held=TOKEN, value=TOKEN // 2)
    assert (plan.bond, plan.power) == (TOKEN + TOKEN // 2, 1), "whole units only"
    plan = compute_registration(PARAMS, [FIRST, make_validator(2, 5)], key=KEY, held=0, value=3 * TOKEN)
    assert (plan.power, plan.total_power, plan.is_needed) == (0, 15, False)
    assert "the set is full of higher bonds" in describe(plan)


def test_jailed_ones_do_not_vote() -> None:
    plan = compute_registration(PARAMS, [FIRST, make_validator(2, 90, jailed_until=7)], key=KEY, held=0, value=TOKEN)
    assert (plan.power, plan.total_power) == (1, 11)


def test_a_genesis_validator_is_claimed_with_its_own_bond() -> None:
    plan = compute_registration(PARAMS, [FIRST], key=FIRST.key, held=FIRST.bond, value=0)
    assert (plan.power, plan.total_power) == (10, 10)


def test_invalid_bond_names_the_least() -> None:
    with pytest.raises(NotRegistered, match=rf"would be 5 wei, expected at least {TOKEN}; next: give more with --bond"):
        compute_registration(PARAMS, [FIRST], key=KEY, held=0, value=5)


def test_powers_are_bounded() -> None:
    assert compute_powers(PARAMS, {KEY: 2**60 * TOKEN}) == {KEY: 2**50}
