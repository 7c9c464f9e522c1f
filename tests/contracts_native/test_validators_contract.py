"""Validators and governance: registration, powers, double signs, the last one, and parameters that latch."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from driver import GENESIS_HASH, Chain, Reverted, make_address
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core.accounts import credit
from chain.core.contracts.params import WEI, ContractParams
from chain.core.contracts.staking.bonds import process_slash
from chain.core.contracts.staking.keys import POWER_PREFIX, STAKING, get_rules
from chain.core.contracts.staking.validators import (
    Evidence,
    compute_consensus_address,
    make_registration_message,
    process_genesis_validators,
    record_evidence,
)
from chain.core.genesis import ChainParameters, get_parameters, get_supply, save_parameters
from chain.core.record_codec import unpack
from chain.core.types import Amount, Hash

PARAMS = ContractParams(unbond_blocks=20, jail_blocks=30, max_validators=4, rules=1)


def make_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"\0"))


def public(name: str) -> bytes:
    return make_key(name).public_key().public_bytes_raw()


def prove(name: str, operator: str, genesis_hash: bytes = GENESIS_HASH) -> bytes:
    return make_key(name).sign(make_registration_message(genesis_hash, make_address(operator)))


def register(chain: Chain, name: str, bond: int) -> None:
    chain.call("Staking", "registerValidator", public(name), prove(name, name), sender=name, value=bond)


def powers(chain: Chain) -> dict[bytes, int]:
    found = chain.state.iterate(POWER_PREFIX, POWER_PREFIX + b"\xff" * 33)
    return {key[len(POWER_PREFIX) :]: unpack(value) for key, value in found}


def misbehave(chain: Chain, name: str, height: int) -> None:
    record_evidence(chain.state, [Evidence(address=compute_consensus_address(public(name)), height=height, kind=1)])
    chain.advance()


@pytest.fixture
def staked() -> Chain:
    """Three validators: ann 30, bob 20, cem 10 tokens."""
    made = Chain(num_nodes=0, params=PARAMS)
    save_parameters(
        made.state,
        ChainParameters(
            chain_id="t", evm_chain_id=1, genesis_hash=Hash(GENESIS_HASH), gas_limit=10**7, base_fee=Amount(1)
        ),
    )
    for name, bond in (("ann", 30), ("bob", 20), ("cem", 10)):
        register(made, name, bond * WEI)
    made.advance()
    return made


def test_power_follows_the_bond_in_whole_units(staked: Chain) -> None:
    assert powers(staked) == {public("ann"): 30, public("bob"): 20, public("cem"): 10}
    staked.call("Staking", "bond", sender="cem", value=2 * WEI - 1)
    staked.advance()
    assert powers(staked)[public("cem")] == 11
    staked.call("Staking", "unbond", 5 * WEI, sender="ann")
    assert powers(staked)[public("ann")] == 30, "at the end of the block"
    staked.advance()
    assert powers(staked)[public("ann")] == 25
    info = staked.struct("Staking", "validator", make_address("ann"))
    assert (info["power"], info["bond"], info["jailedUntil"]) == (25, 25 * WEI, 0)
    assert len(staked.structs("Staking", "validators")) == 3


def test_the_highest_bonds_have_the_seats(staked: Chain) -> None:
    for name, bond in (("dan", 5), ("eve", 7)):
        register(staked, name, bond * WEI)
    staked.advance()
    assert set(powers(staked)) == {public(name) for name in ("ann", "bob", "cem", "eve")}
    staked.call("Staking", "bond", sender="dan", value=3 * WEI)
    staked.advance()
    assert set(powers(staked)) == {public(name) for name in ("ann", "bob", "cem", "dan")}


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("twice", "AlreadyValidator"),
        ("key of another", "KeyInUse"),
        ("proof for another operator", "BadKeyProof"),
        ("proof for another chain", "BadKeyProof"),
        ("proof cut short", "BadKeyProof"),
        ("too little", "ValidatorBondTooSmall"),
    ],
)
def test_invalid_registrations(staked: Chain, case: str, error: str) -> None:
    key, proof, sender, value = public("new"), prove("new", "new"), "new", WEI
    if case == "twice":
        sender, proof = "ann", prove("new", "ann")
    elif case == "key of another":
        key, proof = public("ann"), prove("ann", "new")
    elif case == "proof for another operator":
        proof = prove("new", "bob")
    elif case == "proof for another chain":
        proof = prove("new", "new", bytes(32))
    elif case == "proof cut short":
        proof = proof[:-1]
    else:
        value = WEI - 1
    with pytest.raises(Reverted) as refused:
        staked.call("Staking", "registerValidator", key, proof, sender=sender, value=value)
    assert refused.value.name == error


def test_a_genesis_validator_is_claimed_with_its_bond_and_fees() -> None:
    chain = Chain(num_nodes=0, params=PARAMS)
    process_genesis_validators(chain.state, [(public("gen"), 10), (public("other"), 7)])
    address = compute_consensus_address(public("gen"))
    credit(chain.state, address, 555)  # fees of blocks it proposed
    assert chain.view("Staking", "operatorOf", address) == address
    chain.advance()
    assert powers(chain) == {public("gen"): 10, public("other"): 7}
    owner = chain.fund("owner")
    before = chain.balance("owner")
    chain.call("Staking", "registerValidator", public("gen"), prove("gen", "owner"), sender="owner")
    chain.advance()
    assert chain.view("Staking", "operatorOf", address) == owner
    assert chain.view("Staking", "bondOf", owner) == 10 * WEI
    assert chain.balance("owner") == before + 555
    assert chain.balance(address) == 0
    assert powers(chain) == {public("gen"): 10, public("other"): 7}
    with pytest.raises(Reverted, match="KeyInUse"):
        chain.call("Staking", "registerValidator", public("gen"), prove("gen", "thief"), sender="thief", value=WEI)


def test_a_double_sign_costs_bond_and_seat_once(staked: Chain) -> None:
    staked.call("Staking", "unbond", 4 * WEI, sender="bob")
    staked.advance()
    total, supply = staked.view("Staking", "totalBonded"), staked.balance(STAKING)
    misbehave(staked, "bob", staked.height - 1)
    bob = staked.struct("Staking", "validator", make_address("bob"))
    assert bob["slashed"] == 20 * WEI // 20, "a twentieth, of what is being freed too"
    assert staked.view("Staking", "bondOf", make_address("bob")) == 16 * WEI * 95 // 100
    assert staked.view("Staking", "unbondingOf", make_address("bob"))[0] == 4 * WEI * 95 // 100
    assert staked.view("Staking", "totalBonded") == total - 16 * WEI // 20
    assert staked.balance(STAKING) == supply - bob["slashed"]
    assert public("bob") not in powers(staked)
    jailed_until = bob["jailedUntil"]
    assert jailed_until == staked.height - 1 + 30

    misbehave(staked, "bob", staked.height - 2)
    assert staked.struct("Staking", "validator", make_address("bob"))["slashed"] == bob["slashed"], "punished once"
    with pytest.raises(Reverted) as early:
        staked.call("Staking", "unjail", sender="bob")
    assert (early.value.name, early.value.values) == ("StillJailed", (jailed_until, staked.height))
    with pytest.raises(Reverted, match="NotJailed"):
        staked.call("Staking", "unjail", sender="ann")
    with pytest.raises(Reverted, match="NotValidator"):
        staked.call("Staking", "unjail", sender="zoe")
    staked.advance(jailed_until - staked.height)
    staked.call("Staking", "unjail", sender="bob")
    staked.advance()
    assert powers(staked)[public("bob")] == 15
    misbehave(staked, "bob", staked.height - 1)
    assert staked.struct("Staking", "validator", make_address("bob"))["slashed"] > bob["slashed"], "again, again"


def test_evidence_against_a_stranger_changes_nothing(staked: Chain) -> None:
    before = [change for change in staked.state.changes() if change[1] is not None]
    misbehave(staked, "zoe", 1)
    assert [change for change in staked.state.changes() if change[1] is not None] == before


def test_the_last_validator_can_not_leave(staked: Chain) -> None:
    for name, bond in (("bob", 20), ("cem", 10)):
        staked.call("Staking", "unbond", bond * WEI, sender=name)
    with pytest.raises(Reverted) as refused:
        staked.call("Staking", "unbond", 30 * WEI, sender="ann")
    assert (refused.value.name, refused.value.values) == ("LastValidator", (WEI, 0))
    staked.advance()
    assert powers(staked) == {public("ann"): 30}
    misbehave(staked, "ann", staked.height - 1)
    assert powers(staked) == {public("ann"): 30}, "jailed, yet blocks go on until somebody else can make them"
    staked.call("Staking", "bond", sender="bob", value=3 * WEI)
    staked.advance()
    assert powers(staked) == {public("bob"): 3}


def test_who_left_is_forgotten_after_the_lock(staked: Chain) -> None:
    staked.call("Staking", "unbond", 10 * WEI, sender="cem")
    staked.advance()
    assert staked.struct("Staking", "validator", make_address("cem"))["key"] == public("cem"), "it can be slashed"
    staked.advance(20)
    staked.call("Staking", "withdraw", sender="cem")
    staked.advance()
    assert staked.struct("Staking", "validator", make_address("cem"))["key"] == bytes(32)
    register(staked, "cem", WEI)
    staked.advance()
    assert powers(staked)[public("cem")] == 1


def test_known_answers() -> None:
    message = make_registration_message(b"\xaa" * 32, make_address("ann"))
    assert message == b"archipelago/validator/1\0" + b"\xaa" * 32 + make_address("ann")
    assert compute_consensus_address(bytes(32)).hex() == "66687aadf862bd776c8fc18b8e9f8e2008971485"


# -- governance


def propose(chain: Chain, name: str, value: int, notice: int = 5, sender: str = "cem") -> int:
    return int(chain.call("Staking", "propose", name, value, chain.height + notice, sender=sender))


def test_a_parameter_latches_at_its_height(staked: Chain) -> None:
    proposal = propose(staked, "gasLimit", 20_000_000)
    height = staked.height + 5
    staked.call("Staking", "approve", proposal, sender="bob")
    assert staked.struct("Staking", "proposal", proposal)["state"] == 1, "30 of 60 are not more than two thirds"
    staked.call("Staking", "approve", proposal, sender="ann")
    assert staked.struct("Staking", "proposal", proposal)["state"] == 2
    while staked.height < height:
        parameters = get_parameters(staked.state)
        assert parameters is not None
        assert parameters.gas_limit == 10**7, staked.height
        staked.advance()
    parameters = get_parameters(staked.state)
    assert parameters is not None
    assert parameters.gas_limit == 20_000_000
    assert staked.struct("Staking", "proposal", proposal)["state"] == 3
    assert staked.events("ParameterChanged") == [{"proposal": proposal, "name": "gasLimit", "value": 20_000_000}]


def test_every_parameter_takes_effect(staked: Chain) -> None:
    for name, value in (
        ("baseFeeWei", 7),
        ("unbondBlocks", 9),
        ("powerUnitWei", 2 * WEI),
        ("minValidatorBondWei", 3),
        ("maxValidators", 2),
        ("doubleSignSlashPpm", 1),
        ("jailBlocks", 8),
        ("rules", 2),
    ):
        proposal = propose(staked, name, value, 2, sender="ann")
        staked.call("Staking", "approve", proposal, sender="bob")
        staked.advance(2)
        if name != "baseFeeWei":
            assert staked.struct("Staking", "stakingParams")[name] == value, name
    parameters = get_parameters(staked.state)
    assert parameters is not None
    assert parameters.base_fee == 7
    assert get_rules(staked.state) == 2
    assert powers(staked) == {public("ann"): 15, public("bob"): 10}, "new unit, and two seats"


def test_two_thirds_exactly_is_not_enough(staked: Chain) -> None:
    proposal = propose(staked, "jailBlocks", 5, sender="ann")
    staked.call("Staking", "approve", proposal, sender="cem")
    assert staked.struct("Staking", "proposal", proposal)["state"] == 1, "40 of 60"
    staked.advance(6)
    assert staked.struct("Staking", "proposal", proposal)["state"] == 4
    assert staked.struct("Staking", "stakingParams")["jailBlocks"] == 30
    with pytest.raises(Reverted, match="ProposalClosed"):
        staked.call("Staking", "approve", proposal, sender="bob")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("nonsense", 1, 10), "UnknownParameter"),
        (("jailBlocks", 0, 10), "BadParameter"),
        (("maxValidators", 65, 10), "BadParameter"),
        (("doubleSignSlashPpm", 1_000_001, 10), "BadParameter"),
        (("rules", 1, 10), "BadParameter"),
        (("jailBlocks", 5, 1), "BadActivationHeight"),
        (("jailBlocks", 5, 10**9), "BadActivationHeight"),
        (("jailBlocks", 2**256 - 1, 10), "BadParameter"),
    ],
)
def test_invalid_proposals(staked: Chain, args: tuple[str, int, int], error: str) -> None:
    with pytest.raises(Reverted) as refused:
        propose(staked, *args)
    assert refused.value.name == error


def test_only_validators_govern_and_their_number_of_wishes_is_bounded(staked: Chain) -> None:
    with pytest.raises(Reverted, match="NotValidator"):
        propose(staked, "jailBlocks", 5, sender="zoe")
    proposal = propose(staked, "jailBlocks", 5)
    with pytest.raises(Reverted, match="NotValidator"):
        staked.call("Staking", "approve", proposal, sender="zoe")
    with pytest.raises(Reverted, match="AlreadyInFavour"):
        staked.call("Staking", "approve", proposal, sender="cem")
    with pytest.raises(Reverted, match="UnknownProposal"):
        staked.call("Staking", "approve", 99, sender="ann")
    for value in range(6, 21):
        propose(staked, "jailBlocks", value)
    with pytest.raises(Reverted, match="TooManyProposals"):
        propose(staked, "jailBlocks", 50)


# -- properties

STEP = st.tuples(
    st.sampled_from(["register", "bond", "unbond", "withdraw", "misbehave", "unjail", "advance"]),
    st.sampled_from(["ann", "bob", "cem", "dan", "eve"]),
    st.integers(0, 40 * WEI),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_money_and_the_set_stay_whole(steps: list[tuple[str, str, int]]) -> None:
    chain = Chain(num_nodes=0, params=PARAMS)
    process_genesis_validators(chain.state, [(public("gen"), 3)])
    chain.minted += 3 * WEI
    burned = 0
    for action, name, amount in steps:
        before: dict[str, Any] = {}
        try:
            if action == "register":
                register(chain, name, amount)
            elif action == "bond":
                chain.call("Staking", "bond", sender=name, value=amount)
            elif action == "unbond":
                chain.call("Staking", "unbond", amount, sender=name)
            elif action in ("withdraw", "unjail"):
                chain.call("Staking", action, sender=name)
            elif action == "misbehave":
                held = chain.balance(STAKING)
                misbehave(chain, name, chain.height)
                burned += held - chain.balance(STAKING)
            else:
                chain.advance(amount % 7 + 1)
        except Reverted as error:
            before[error.name] = error.values
        assert powers(chain), "the set is never empty"
        assert all(power > 0 for power in powers(chain).values())
        assert len(powers(chain)) <= PARAMS.max_validators
    total = sum(chain.view("Staking", "bondOf", make_address(name)) for name in ("ann", "bob", "cem", "dan", "eve"))
    total += chain.view("Staking", "bondOf", compute_consensus_address(public("gen")))
    assert total == chain.view("Staking", "totalBonded")
    freed = sum(
        chain.view("Staking", "unbondingOf", make_address(name))[0] for name in ("ann", "bob", "cem", "dan", "eve")
    )
    assert chain.balance(STAKING) == total + freed
    assert chain.total_money() == chain.minted - burned


@given(st.integers(0, 2**100), st.integers(0, 1_000_000))
def test_a_slash_is_exact(bond: int, ppm: int) -> None:
    chain = Chain(num_nodes=0, params=PARAMS)
    if bond:
        chain.fund("rich", bond)
        chain.call("Staking", "bond", sender="rich", value=bond)
    assert process_slash(chain.state, make_address("rich"), ppm) == bond * ppm // 1_000_000
    assert chain.view("Staking", "bondOf", make_address("rich")) == bond - bond * ppm // 1_000_000
    assert get_supply(chain.state) == 0
