"""The Staking contract: bond, unbond, withdraw."""

from __future__ import annotations

import pytest
from driver import Chain, Reverted, make_address


def test_bond_unbond_and_withdraw_keep_the_money(chain: Chain) -> None:
    ann = make_address("ann")
    chain.call("Staking", "bond", sender="ann", value=100)
    chain.call("Staking", "bond", sender="bob", value=50)
    assert chain.view("Staking", "totalBonded") == 150
    with pytest.raises(Reverted) as too_much:
        chain.call("Staking", "unbond", 101, sender="ann")
    assert (too_much.value.name, too_much.value.values) == ("InsufficientBond", (101, 100))
    chain.call("Staking", "unbond", 40, sender="ann")
    assert chain.view("Staking", "bondOf", ann) == 60
    unlock = chain.height + chain.view("Staking", "unbondBlocks")
    assert chain.view("Staking", "unbondingOf", ann) == (40, unlock)
    with pytest.raises(Reverted) as early:
        chain.call("Staking", "withdraw", sender="ann")
    assert (early.value.name, early.value.values) == ("NothingUnlocked", (unlock, chain.height))
    chain.advance(unlock - chain.height)
    before = chain.balance("ann")
    chain.call("Staking", "withdraw", sender="ann")
    assert chain.balance("ann") == before + 40
    assert chain.view("Staking", "totalBonded") == 110
    assert chain.total_money() == chain.minted
    with pytest.raises(Reverted, match="ZeroAmount"):
        chain.call("Staking", "withdraw", sender="ann")


def test_zero_amounts_are_refused(chain: Chain) -> None:
    for function, args in (("bond", ()), ("unbond", (0,))):
        with pytest.raises(Reverted, match="ZeroAmount"):
            chain.call("Staking", function, *args, sender="ann")


def test_a_second_unbonding_starts_the_lock_again(chain: Chain) -> None:
    chain.call("Staking", "bond", sender="ann", value=100)
    chain.call("Staking", "unbond", 10, sender="ann")
    chain.advance(50)
    chain.call("Staking", "unbond", 90, sender="ann")
    amount, unlock = chain.view("Staking", "unbondingOf", make_address("ann"))
    assert (amount, unlock) == (100, chain.height + 200)
    assert chain.view("Staking", "bondOf", make_address("ann")) == 0
