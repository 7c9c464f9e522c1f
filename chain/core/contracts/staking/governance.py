"""Governance: a parameter changes at a height when more than two thirds of the voting bonds want it (DESIGN 4).

A proposal names a parameter, a value and an activation height.  It passes in the block in which its votes cross the
threshold, bonds counted as they stand then, and latches at its height: the block of that height is the first under
the new value.  One that has not passed by then has failed.  ``rules`` is the version of the state machine's own
rules: software that doesn't know it stops at the activation height instead of computing something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from chain.core.abi.refusal import Refusal
from chain.core.contracts.staking.keys import (
    STAKING,
    get_number,
    get_params,
    get_rules,
    save_params,
    set_number,
    set_rules,
)
from chain.core.contracts.staking.validators import get_voting_bonds
from chain.core.genesis import get_parameters, save_parameters
from chain.core.record_codec import RecordCodec
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Amount

MAX_OPEN_PROPOSALS = 16
"""Bounds the work at a block's end."""
MAX_NOTICE_BLOCKS = 100_000_000
"""About a year at 0.3 s a block: nothing waits for ever."""
MIN_NOTICE_BLOCKS = 2
"""The vote needs a block."""

_PROPOSAL_PREFIX = b"k/g"
_OPEN_PREFIX = b"k/o"
_COUNT_KEY = b"k/n"
_ID_BYTES = 8
_WEI_LIMIT = 2**128 - 1
_PPM = 1_000_000

LIMITS: dict[str, tuple[int, int]] = {
    "gasLimit": (1_000_000, 2**50),
    "baseFeeWei": (0, _WEI_LIMIT),
    "unbondBlocks": (1, 2**32 - 1),
    "powerUnitWei": (1, _WEI_LIMIT),
    "minValidatorBondWei": (1, _WEI_LIMIT),
    "maxValidators": (1, 64),
    "doubleSignSlashPpm": (0, _PPM),
    "jailBlocks": (1, 2**32 - 1),
    "rules": (1, 2**16 - 1),
}
"""What may be changed: (least, most)."""

_STAKING_FIELDS = {
    "unbondBlocks": "unbond_blocks",
    "powerUnitWei": "power_unit_wei",
    "minValidatorBondWei": "min_validator_bond_wei",
    "maxValidators": "max_validators",
    "doubleSignSlashPpm": "double_sign_slash_ppm",
    "jailBlocks": "jail_blocks",
}


class ProposalState(IntEnum):
    """As in the ABI's Proposal."""

    NONE = 0
    OPEN = 1
    PASSED = 2
    ACTIVE = 3
    FAILED = 4


@dataclass(slots=True, kw_only=True)
class Proposal:
    """A wish to change a parameter."""

    proposal: int
    """Id, from 1."""
    name: str
    """Of the parameter."""
    value: int
    """New value."""
    activation_height: int
    """First block under it."""
    state: ProposalState
    """Of the proposal."""
    proposer: Address
    """Operator."""
    voters: tuple[bytes, ...]
    """Operators in favour, in order of their vote."""


_PROPOSAL = RecordCodec(Proposal)


def get_proposal(state: Overlay, proposal: int) -> Proposal | None:
    """Return a proposal, None where there is none."""
    value = state.get(_make_key(_PROPOSAL_PREFIX, proposal)) if proposal < 2**64 else None
    return _PROPOSAL.decode(value) if value is not None else None


def get_num_proposals(state: Overlay) -> int:
    """Return how many were ever made."""
    return get_number(state, _COUNT_KEY)


def process_proposal(turn: Turn, sender: Address, name: str, value: int, activation_height: int) -> int:
    """Record a proposal with its proposer's vote; return its id."""
    # CHECKS
    state = turn.state
    _check_voter(state, sender)
    limits = LIMITS.get(name)
    if limits is None:
        raise Refusal("UnknownParameter", name[:64])
    least, most = limits
    if name == "rules":
        least = get_rules(state) + 1
    if not least <= value <= most:
        raise Refusal("BadParameter", name, least, most, value)
    earliest = turn.height + MIN_NOTICE_BLOCKS
    if not earliest <= activation_height <= turn.height + MAX_NOTICE_BLOCKS:
        raise Refusal("BadActivationHeight", earliest, activation_height)
    if len(_get_open(state)) >= MAX_OPEN_PROPOSALS:
        raise Refusal("TooManyProposals", MAX_OPEN_PROPOSALS)
    # EFFECTS
    proposal = get_num_proposals(state) + 1
    set_number(state, _COUNT_KEY, proposal)
    state.set(_make_key(_OPEN_PREFIX, proposal), b"")
    record = Proposal(
        proposal=proposal,
        name=name,
        value=value,
        activation_height=activation_height,
        state=ProposalState.OPEN,
        proposer=sender,
        voters=(sender,),
    )
    # EVENTS
    turn.emit(STAKING, "ParameterProposed", proposal, sender, name, value, activation_height)
    _count(turn, record)
    return proposal


def process_vote(turn: Turn, sender: Address, proposal: int) -> None:
    """Add a vote in favour."""
    # CHECKS
    _check_voter(turn.state, sender)
    record = get_proposal(turn.state, proposal)
    if record is None:
        raise Refusal("UnknownProposal", proposal)
    if record.state != ProposalState.OPEN:
        raise Refusal("ProposalClosed", proposal, record.state)
    if sender in record.voters:
        raise Refusal("AlreadyInFavour", proposal, sender)
    # EFFECTS
    record.voters = (*record.voters, sender)
    _count(turn, record)


def process_activations(turn: Turn) -> None:
    """Latch what becomes due with the next block."""
    for proposal in _get_open(turn.state):
        record = get_proposal(turn.state, proposal)
        assert record is not None, "an open proposal exists"
        if record.activation_height > turn.height + 1:
            continue
        if record.state == ProposalState.PASSED:
            _apply(turn.state, record.name, record.value)
            record.state = ProposalState.ACTIVE
            turn.emit(STAKING, "ParameterChanged", record.proposal, record.name, record.value)
        else:
            record.state = ProposalState.FAILED
            turn.emit(STAKING, "ProposalFailed", record.proposal)
        turn.state.delete(_make_key(_OPEN_PREFIX, proposal))
        _save(turn.state, record)


def _count(turn: Turn, record: Proposal) -> None:
    bonds = get_voting_bonds(turn.state)
    in_favour = sum(bonds.get(Address(voter), 0) for voter in record.voters)
    if 3 * in_favour > 2 * sum(bonds.values()):
        record.state = ProposalState.PASSED
        turn.emit(STAKING, "ProposalPassed", record.proposal, record.activation_height)
    _save(turn.state, record)


def _apply(state: Overlay, name: str, value: int) -> None:
    if name == "rules":
        set_rules(state, value)
    elif name in _STAKING_FIELDS:
        save_params(state, replace(get_params(state), **{_STAKING_FIELDS[name]: value}))
    else:
        parameters = get_parameters(state)
        assert parameters is not None, "genesis wrote them"
        if name == "gasLimit":
            save_parameters(state, replace(parameters, gas_limit=value))
        else:
            save_parameters(state, replace(parameters, base_fee=Amount(value)))


def _check_voter(state: Overlay, sender: Address) -> None:
    if sender not in get_voting_bonds(state):
        raise Refusal("NotValidator", sender)


def _get_open(state: Overlay) -> list[int]:
    pairs = state.iterate(_OPEN_PREFIX, _OPEN_PREFIX + b"\xff" * (_ID_BYTES + 1))
    return [int.from_bytes(key[len(_OPEN_PREFIX) :], "big") for key, _ in pairs]


def _save(state: Overlay, record: Proposal) -> None:
    state.set(_make_key(_PROPOSAL_PREFIX, record.proposal), _PROPOSAL.encode(record))


def _make_key(prefix: bytes, proposal: int) -> bytes:
    return prefix + proposal.to_bytes(_ID_BYTES, "big")
