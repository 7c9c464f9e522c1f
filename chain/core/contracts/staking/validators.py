"""Validators: who votes in CometBFT with which power, and what a double sign costs (DESIGN 4.1, *Slashable*).

A validator is an operator (an account) with an ed25519 key and a bond.  At the end of a block in which something
changed the set is computed: not jailed, bond at least the minimum, the highest bonds first.  CometBFT is told the
differences and applies them two blocks later.  Invariants: the set is never empty; a key belongs to one operator;
evidence is punished once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chain.core.accounts import credit, get_balance, transfer
from chain.core.contracts.staking.bonds import add_bond, get_bond, get_unbonding, move_bond, process_slash
from chain.core.contracts.staking.keys import (
    EVIDENCE_PREFIX,
    POWER_PREFIX,
    STAKING,
    VALIDATOR_PREFIX,
    get_number,
    get_params,
    mark_changed,
    set_number,
    take_changed,
)
from chain.core.genesis import get_supply, set_supply
from chain.core.hashing import VALIDATOR_TAG, sha256
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.state import Base, Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Amount

MAX_POWER = 2**50
"""Power of one validator: 64 of them stay below CometBFT's largest total, 2^60."""

MAX_REGISTERED = 1_024
"""Validators with a bond, in the set or not: bounds the work when the set is computed again."""

_ADDRESS_INDEX = b"k/a"
_CLAIMED_PREFIX = b"k/c"
_ADDRESS_BYTES = 20
_INDEX_BYTES = 4


@dataclass(slots=True, kw_only=True)
class Validator:
    """A validator as it stands."""

    operator: Address
    """Whose bond it is, and who gets its fees."""
    key: bytes
    """ed25519 public key, 32 bytes."""
    jailed_until: int
    """Height from which ``unjail`` works; 0 while it is not jailed."""
    punished_height: int
    """Height up to which evidence has been punished."""
    slashed: int
    """Wei, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Misbehaviour that CometBFT has proved."""

    address: bytes
    """Consensus address, 20 bytes."""
    height: int
    """At which it misbehaved."""
    kind: int
    """1 double sign, 2 light client attack."""


_VALIDATOR = RecordCodec(Validator)


def compute_consensus_address(key: bytes) -> Address:
    """Return CometBFT's name of a key: the first 20 bytes of its sha256."""
    return Address(sha256(key)[:_ADDRESS_BYTES])


def make_registration_message(genesis_hash: bytes, operator: Address) -> bytes:
    """Return what a validator key signs to say whose it is."""
    return VALIDATOR_TAG + genesis_hash + operator


def get_validator(state: Base, operator: Address) -> Validator | None:
    """Return an operator's validator, None where it has none."""
    value = state.get(VALIDATOR_PREFIX + operator)
    return _VALIDATOR.decode(value) if value is not None else None


def save_validator(state: Overlay, validator: Validator) -> None:
    """Write a validator; the set is computed again."""
    state.set(VALIDATOR_PREFIX + validator.operator, _VALIDATOR.encode(validator))
    state.set(_ADDRESS_INDEX + compute_consensus_address(validator.key), validator.operator)
    mark_changed(state)


def get_validators(state: Overlay) -> list[Validator]:
    """Return all validators, jailed ones too, by operator."""
    pairs = state.iterate(VALIDATOR_PREFIX, VALIDATOR_PREFIX + b"\xff" * (_ADDRESS_BYTES + 1))
    return [_VALIDATOR.decode(value) for _, value in pairs]


def get_operator(state: Base, consensus_address: bytes) -> Address:
    """Return whom a proposer's fees belong to: the operator of its key, or its own address while nobody's."""
    return Address(state.get(_ADDRESS_INDEX + consensus_address) or consensus_address)


def get_power(state: Base, key: bytes) -> int:
    """Return the voting power that CometBFT was told of a key, 0 outside the set."""
    return get_number(state, POWER_PREFIX + key)


def is_unclaimed(validator: Validator) -> bool:
    """Whether a genesis validator's key has not said yet whose it is."""
    return validator.operator == compute_consensus_address(validator.key)


def process_genesis_validators(state: Overlay, validators: Sequence[tuple[bytes, int]]) -> None:
    """Give CometBFT's first validators (key, power) bonds that are worth their power."""
    unit = get_params(state).power_unit_wei
    for key, power in validators:
        operator = compute_consensus_address(key)
        bond = power * unit
        credit(state, STAKING, bond)
        set_supply(state, Amount(get_supply(state) + bond))
        add_bond(state, operator, bond)
        save_validator(state, Validator(operator=operator, key=key, jailed_until=0, punished_height=0, slashed=0))
        set_number(state, POWER_PREFIX + key, power)
    take_changed(state)


def process_claim(state: Overlay, validator: Validator, operator: Address) -> Validator:
    """Hand a genesis validator and its bond to the account its key names; its fees follow at the block's end."""
    old = validator.operator
    state.delete(VALIDATOR_PREFIX + old)
    move_bond(state, old, operator)
    state.set(_CLAIMED_PREFIX + old, operator)
    validator.operator = operator
    save_validator(state, validator)
    return validator


def process_claimed_fees(state: Overlay) -> None:
    """Pay what keys earned before they named an account, this block's fees too."""
    claimed = state.iterate(_CLAIMED_PREFIX, _CLAIMED_PREFIX + b"\xff" * (_ADDRESS_BYTES + 1))
    for key, operator in claimed:
        state.delete(key)
        address = Address(key[len(_CLAIMED_PREFIX) :])
        earned = get_balance(state, address)
        if earned:
            transfer(state, address, Address(operator), earned)


def process_departure(state: Overlay, operator: Address) -> None:
    """Forget a validator that has nothing left to lose."""
    validator = get_validator(state, operator)
    if validator is None or validator.jailed_until or get_bond(state, operator) or get_unbonding(state, operator)[0]:
        return
    state.delete(VALIDATOR_PREFIX + operator)
    state.delete(_ADDRESS_INDEX + compute_consensus_address(validator.key))
    mark_changed(state)


def is_last(state: Overlay, operator: Address) -> bool:
    """Whether nobody else could vote."""
    return all(operator == candidate.operator for candidate, _ in _rank_candidates(state))


def record_evidence(state: Overlay, evidence: Sequence[Evidence]) -> None:
    """Keep a block's evidence for the block's end."""
    for index, each in enumerate(evidence):
        key = EVIDENCE_PREFIX + index.to_bytes(_INDEX_BYTES, "big")
        state.set(key, pack((each.address, each.height, each.kind)))


def process_evidence(turn: Turn) -> None:
    """Slash and jail whoever the evidence of this block names."""
    state = turn.state
    params = get_params(state)
    for key, value in state.iterate(EVIDENCE_PREFIX, EVIDENCE_PREFIX + b"\xff" * (_INDEX_BYTES + 1)):
        state.delete(key)
        address, height, kind = unpack(value)
        validator = get_validator(state, get_operator(state, address))
        if validator is None or height <= validator.punished_height:
            continue
        amount = process_slash(state, validator.operator, params.double_sign_slash_ppm)
        validator.slashed += amount
        validator.jailed_until = turn.height + params.jail_blocks
        validator.punished_height = turn.height
        save_validator(state, validator)
        turn.emit(STAKING, "ValidatorSlashed", validator.operator, amount, height, kind)
        turn.emit(STAKING, "ValidatorJailed", validator.operator, validator.jailed_until)


def process_powers(turn: Turn) -> None:
    """Compute the set if something changed, and write down what CometBFT must be told."""
    state = turn.state
    if not take_changed(state):
        return
    chosen = {validator.key: power for validator, power in _rank_candidates(state)[: get_params(state).max_validators]}
    if not chosen:  # blocks must go on: the set stays as it is until somebody can vote
        return
    known = state.iterate(POWER_PREFIX, POWER_PREFIX + b"\xff" * 33)
    current = {key[len(POWER_PREFIX) :]: int(unpack(value)) for key, value in known}
    for key in sorted(current.keys() | chosen.keys()):
        power = chosen.get(key, 0)
        if power != current.get(key, 0):
            set_number(state, POWER_PREFIX + key, power)
            operator = get_operator(state, compute_consensus_address(key))
            turn.emit(STAKING, "ValidatorPowerChanged", operator, key, power)


def get_voting_bonds(state: Overlay) -> dict[Address, int]:
    """Return the bonds of the operators in the set, by operator."""
    return {
        validator.operator: get_bond(state, validator.operator)
        for validator in get_validators(state)
        if get_power(state, validator.key)
    }


def _rank_candidates(state: Overlay) -> list[tuple[Validator, int]]:
    """Return who could vote with which power, the highest bond first."""
    params = get_params(state)
    ranked = []
    for validator in get_validators(state):
        bond = get_bond(state, validator.operator)
        power = min(bond // params.power_unit_wei, MAX_POWER)
        if not validator.jailed_until and power and bond >= params.min_validator_bond_wei:
            ranked.append((-bond, validator.operator, validator, power))
    return [(validator, power) for _, _, validator, power in sorted(ranked, key=lambda item: item[:2])]
