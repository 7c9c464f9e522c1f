"""The functions of the Staking contract, from decoded arguments to bonds, validators and governance."""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.accounts import transfer
from chain.core.contracts.dispatch import Call, Handler
from chain.core.contracts.gas import LISTED_RECORD_GAS, SIGNATURE_GAS
from chain.core.contracts.staking import bonds, governance, validators
from chain.core.contracts.staking.keys import STAKING, get_params, get_rules, mark_changed
from chain.core.contracts.staking.validators import Validator
from chain.core.turn import Turn
from chain.core.types import Address
from da.core.receipt import is_signature_valid

_NO_KEY = bytes(32)


def process_staking_block_end(turn: Turn) -> None:
    """Punish, latch, then compute the validator set."""
    validators.process_claimed_fees(turn.state)
    validators.process_evidence(turn)
    governance.process_activations(turn)
    validators.process_powers(turn)


def _process_bond(call: Call) -> None:
    if call.value == 0:
        raise Refusal("ZeroAmount")
    _add_bond(call)


def _process_unbond(call: Call, amount: int) -> None:
    # CHECKS
    state = call.turn.state
    bond = bonds.get_bond(state, call.sender)
    if amount == 0:
        raise Refusal("ZeroAmount")
    if amount > bond:
        raise Refusal("InsufficientBond", amount, bond)
    params = get_params(state)
    validator = validators.get_validator(state, call.sender)
    if validator is not None and validators.get_power(state, validator.key):
        least = max(params.min_validator_bond_wei, params.power_unit_wei)
        if bond - amount < least and validators.is_last(state, call.sender):
            raise Refusal("LastValidator", least, bond - amount)
    # EFFECTS
    unlock_height = call.turn.height + params.unbond_blocks
    bonds.start_unbonding(state, call.sender, amount, unlock_height)
    mark_changed(state)
    # EVENTS
    call.turn.emit(STAKING, "Unbonded", call.sender, amount, unlock_height)


def _process_withdraw(call: Call) -> None:
    # CHECKS
    state = call.turn.state
    amount, unlock_height = bonds.get_unbonding(state, call.sender)
    if amount == 0:
        raise Refusal("ZeroAmount")
    if call.turn.height < unlock_height:
        raise Refusal("NothingUnlocked", unlock_height, call.turn.height)
    # EFFECTS
    bonds.end_unbonding(state, call.sender)
    transfer(state, STAKING, call.sender, amount)
    validators.process_departure(state, call.sender)
    # EVENTS
    call.turn.emit(STAKING, "Withdrawn", call.sender, amount)


def _process_register(call: Call, key: bytes, proof: bytes) -> None:
    # CHECKS
    state, sender = call.turn.state, call.sender
    own = validators.get_validator(state, sender)
    if own is not None:
        raise Refusal("AlreadyValidator", sender, own.key)
    address = validators.compute_consensus_address(key)
    holder = validators.get_validator(state, validators.get_operator(state, address))
    if holder is not None and not validators.is_unclaimed(holder):
        raise Refusal("KeyInUse", key, holder.operator)
    call.meter.charge(SIGNATURE_GAS)
    message = validators.make_registration_message(call.turn.genesis_hash, sender)
    if not is_signature_valid(key, proof, message):
        raise Refusal("BadKeyProof", key)
    if holder is None and len(validators.get_validators(state)) >= validators.MAX_REGISTERED:
        raise Refusal("TooManyValidators", validators.MAX_REGISTERED)
    bond = bonds.get_bond(state, sender) + call.value
    bond += bonds.get_bond(state, holder.operator) if holder is not None else 0
    least = get_params(state).min_validator_bond_wei
    if bond < least:
        raise Refusal("ValidatorBondTooSmall", least, bond)
    # EFFECTS
    if holder is not None:
        validators.process_claim(state, holder, sender)
    else:
        fresh = Validator(operator=sender, key=key, jailed_until=0, punished_height=0, slashed=0)
        validators.save_validator(state, fresh)
    # EVENTS
    call.turn.emit(STAKING, "ValidatorRegistered", sender, key)
    if call.value:
        _add_bond(call)


def _process_unjail(call: Call) -> None:
    # CHECKS
    state = call.turn.state
    validator = validators.get_validator(state, call.sender)
    if validator is None:
        raise Refusal("NotValidator", call.sender)
    if not validator.jailed_until:
        raise Refusal("NotJailed", call.sender)
    if call.turn.height < validator.jailed_until:
        raise Refusal("StillJailed", validator.jailed_until, call.turn.height)
    # EFFECTS
    validator.jailed_until = 0
    validators.save_validator(state, validator)
    # EVENTS
    call.turn.emit(STAKING, "ValidatorUnjailed", call.sender)


def _process_propose(call: Call, name: str, value: int, activation_height: int) -> tuple[object, ...]:
    return (governance.process_proposal(call.turn, call.sender, name, value, activation_height),)


def _process_approve(call: Call, proposal: int) -> None:
    governance.process_vote(call.turn, call.sender, proposal)


def _view_bond_of(call: Call, owner: bytes) -> tuple[object, ...]:
    return (bonds.get_bond(call.turn.state, Address(owner)),)


def _view_unbonding_of(call: Call, owner: bytes) -> tuple[object, ...]:
    return bonds.get_unbonding(call.turn.state, Address(owner))


def _view_total_bonded(call: Call) -> tuple[object, ...]:
    return (bonds.get_total(call.turn.state),)


def _view_unbond_blocks(call: Call) -> tuple[object, ...]:
    return (get_params(call.turn.state).unbond_blocks,)


def _view_validator(call: Call, operator: bytes) -> tuple[object, ...]:
    validator = validators.get_validator(call.turn.state, Address(operator))
    if validator is None:
        return ((operator, _NO_KEY, bytes(20), 0, 0, 0, 0),)
    return (_validator_values(call, validator),)


def _view_validators(call: Call) -> tuple[object, ...]:
    found = validators.get_validators(call.turn.state)
    call.meter.charge(LISTED_RECORD_GAS * len(found))
    return ([_validator_values(call, validator) for validator in found],)


def _view_operator_of(call: Call, consensus_address: bytes) -> tuple[object, ...]:
    return (validators.get_operator(call.turn.state, consensus_address),)


def _view_staking_params(call: Call) -> tuple[object, ...]:
    params = get_params(call.turn.state)
    return (
        (
            params.unbond_blocks,
            params.power_unit_wei,
            params.min_validator_bond_wei,
            params.max_validators,
            params.double_sign_slash_ppm,
            params.jail_blocks,
            get_rules(call.turn.state),
        ),
    )


def _view_num_proposals(call: Call) -> tuple[object, ...]:
    return (governance.get_num_proposals(call.turn.state),)


def _view_proposal(call: Call, proposal: int) -> tuple[object, ...]:
    record = governance.get_proposal(call.turn.state, proposal)
    if record is None:
        raise Refusal("UnknownProposal", proposal)
    return (
        (
            record.proposal,
            int(record.state),
            record.name,
            record.value,
            record.activation_height,
            record.proposer,
            list(record.voters),
        ),
    )


STAKING_HANDLERS: dict[str, Handler] = {
    "bond": _process_bond,
    "unbond": _process_unbond,
    "withdraw": _process_withdraw,
    "registerValidator": _process_register,
    "unjail": _process_unjail,
    "propose": _process_propose,
    "approve": _process_approve,
    "bondOf": _view_bond_of,
    "unbondingOf": _view_unbonding_of,
    "totalBonded": _view_total_bonded,
    "unbondBlocks": _view_unbond_blocks,
    "validator": _view_validator,
    "validators": _view_validators,
    "operatorOf": _view_operator_of,
    "stakingParams": _view_staking_params,
    "numProposals": _view_num_proposals,
    "proposal": _view_proposal,
}
"""By function name."""


def _add_bond(call: Call) -> None:
    bonds.add_bond(call.turn.state, call.sender, call.value)
    mark_changed(call.turn.state)
    call.turn.emit(STAKING, "Bonded", call.sender, call.value)


def _validator_values(call: Call, validator: Validator) -> tuple[object, ...]:
    state = call.turn.state
    return (
        validator.operator,
        validator.key,
        validators.compute_consensus_address(validator.key),
        bonds.get_bond(state, validator.operator),
        validators.get_power(state, validator.key),
        validator.jailed_until,
        validator.slashed,
    )
