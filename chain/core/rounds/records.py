"""The records of a training run (DESIGN 4.1).

A record is a working copy: loaded, changed, and written back as a whole by ``RunBook.save``.  Sets of a
round's participants are integers used as bitmaps: bit i is participant i of V; sets of its updates likewise,
bit i is update i in commit order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from chain.core.types import Address, Root

NO_ROOT = Root(bytes(32))
"""Stands where there is no root."""


class RunState(IntEnum):
    """As in the ABI's RunInfo."""

    NONE = 0
    CREATED = 1
    RUNNING = 2
    WAITING = 3
    PAUSED = 4
    FINISHED = 5


class RoundState(IntEnum):
    """As in the ABI's RoundInfo."""

    NONE = 0
    OPEN = 1
    REVEAL = 2
    ATTEST = 3
    DISPUTE = 4
    FINAL = 5
    VOID = 6


class MemberState(IntEnum):
    """As in the ABI's Member."""

    NONE = 0
    JOINED = 1
    READY = 2
    ACTIVE = 3
    DROPPED = 4
    LEFT = 5


class UpdateFate(IntEnum):
    """As in the ABI's Update."""

    NONE = 0
    PENDING = 1
    ACCEPTED = 2
    REFUSED = 3


class RefusalReason(IntEnum):
    """Why an update was refused, as in the ABI's Update."""

    NONE = 0
    VOID_ROUND = 1
    MISSING_PAYLOAD = 2
    INVALID_PAYLOAD = 3
    NOT_REVEALED = 4
    NOT_DRAWN = 5


class VoidReason(IntEnum):
    """Why a round was voided: the ``reason`` of RoundVoided."""

    NO_COMMIT = 1
    NOT_REVEALED = 2
    NO_PAYLOAD = 3
    NO_QUORUM = 4
    NOBODY_LIVE = 5
    DISPUTED = 6


class CheckpointState(IntEnum):
    """As in the ABI's Checkpoint."""

    NONE = 0
    OPEN = 1
    CERTIFIED = 2
    SUPERSEDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParams:
    """What the owner chooses; the fields are those of the ABI's RunParams, in its order."""

    num_fragments: int
    """F."""
    overlap: int
    """d: 0 synchronous, 1 one round late."""
    local_steps: int
    """H: inner steps between two exchanges of the same tensor."""
    num_rounds: int
    """Rounds before the F flush rounds."""
    min_members: int
    """Fewest eligible members with which a round opens."""
    max_members: int
    """Most eligible members; who has joined without showing a root takes no place."""
    round_blocks: int
    """T_round."""
    grace_blocks: int
    """Grace."""
    reveal_blocks: int
    """T_reveal."""
    attest_blocks: int
    """Attest deadline."""
    dispute_blocks: int
    """T_dispute."""
    recover_blocks: int
    """T_recover."""
    lock_blocks: int
    """Bond lock after leaving."""
    checkpoint_interval: int
    """Rounds between checkpoints."""
    num_checkpoint_parts: int
    """Parts of a checkpoint."""
    lease_blocks: int
    """Lease that the escrow buys for each payload and part."""
    is_allow_listed: bool
    """Whether only listed workers may join."""
    is_sealed: bool
    """Whether payloads are encrypted until the round closes."""
    reward_per_update: int
    """Wei for each accepted update."""
    member_bond: int
    """Least bond of a member, wei."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A run as it stands."""

    run: int
    """Id, from 1."""
    owner: Address
    """Who created it."""
    state: RunState
    """Of the run."""
    recipe_digest: bytes
    """keccak256 of the recipe."""
    genesis_root: Root
    """Root of version 0."""
    head_root: Root
    """Root of version ``num_settled``."""
    num_opened: int
    """Rounds opened; the next to open is this one."""
    num_settled: int
    """Rounds settled; also the head version."""
    num_members: int
    """Members ever, also the next join index."""
    num_joined: int
    """Members that are neither DROPPED nor LEFT."""
    num_eligible: int
    """READY or ACTIVE members."""
    disputes_in_row: int
    """Rounds voided by dispute since the last FINAL one or resume."""
    certified_version: int
    """Newest certified checkpoint."""
    certified_root: Root
    """Its root; NO_ROOT until genesis is certified."""
    open_checkpoints: tuple[int, ...]
    """Versions with an OPEN checkpoint, ascending."""
    num_released: int
    """Rounds whose payloads are no longer pinned."""
    num_archived: int
    """Rounds that have left the state under the accumulator."""
    escrow: int
    """Wei in the contract's account that belong to this run."""
    reserved: int
    """Part of the escrow promised to pending updates."""
    largest_fee: int
    """Largest lease fee of one payload so far, wei."""
    paid_rewards: int
    """Wei."""
    paid_storage: int
    """Wei."""
    created_height: int
    """When it was created."""
    empty_since: int
    """Height since which nobody is eligible, 0 while somebody is."""
    gate_since: int
    """Height since which the checkpoint gate holds the next round back, 0 while it does not."""
    idle_since: int
    """Height since which no round is open or undecided and none may open, 0 while one is or may."""
    rank: int
    """Agreed rank, 0 until one was proposed (the recipe's then)."""
    local_steps: int
    """Agreed H."""
    due_height: int
    """Height in the due index, 0 for none."""
    params: RunParams
    """In force since the last opening."""
    pending: RunParams
    """Parameters from the next opening on; equal to ``params`` unless the owner changed them."""


@dataclass(slots=True, kw_only=True)
class Round:
    """A round."""

    round: int
    """t."""
    state: RoundState
    """Of the round."""
    local_steps: int
    """H, frozen."""
    rank: int
    """Frozen; 0: the recipe's."""
    base_version: int
    """Version every update builds on."""
    base_root: Root
    """Its root."""
    root: Root
    """R_t once settled."""
    opened_height: int
    """-> OPEN."""
    closed_height: int
    """OPEN -> REVEAL or VOID."""
    attest_height: int
    """-> ATTEST, also at each retry."""
    dispute_height: int
    """-> DISPUTE."""
    settled_height: int
    """-> FINAL or VOID."""
    due_height: int
    """Next timer, 0 for none."""
    grace_from: int
    """Height at which two thirds of L were in, 0 before."""
    num_participants: int
    """|V|."""
    gone: int
    """Participants who left or were slashed."""
    committed: int
    """Participants who committed."""
    acted: int
    """Participants who committed or voted, in any attempt."""
    order: bytes
    """Participant of each update, one byte each, in commit order."""
    revealed: int
    """Updates whose key was shown (sealed runs)."""
    candidates: int
    """A: updates still to be counted, from the closing on."""
    missing: int
    """Updates that left A because their payload could not be had."""
    voters: bytes
    """Participant of each vote of this attempt, in order."""
    tallies: tuple[tuple[bytes, int, int], ...]
    """(root, refused updates, participants) of this attempt, in order of first vote."""
    retries: int
    """Attempts that ended without a result."""
    num_accepted: int
    """Updates counted."""
    storage_epoch: int
    """Committee at the opening."""
    data_seed: bytes
    """32 bytes."""
    params: RunParams
    """Frozen at the opening."""


@dataclass(slots=True, kw_only=True)
class Update:
    """One worker's update of one round."""

    digest: bytes
    """blake3 of the payload; sealed: commitment to its key."""
    blob: bytes
    """Blob id."""
    size_bytes: int
    """Payload."""
    tokens: int
    """Self-reported."""
    loss_micro: int
    """Self-reported, micronats a token."""
    fate: UpdateFate
    """What became of it."""
    reason: RefusalReason
    """Why it was refused."""
    height: int
    """Of the commit."""
    paid: int
    """Wei."""


@dataclass(slots=True, kw_only=True)
class Vote:
    """A member's attestation, or its report of missing payloads."""

    root: Root
    """NO_ROOT for a report."""
    refused: int
    """Updates it refused, within A."""
    missing: int
    """Updates whose payload it could not have."""
    height: int
    """When it was cast."""
    rank: int
    """Proposal, 0 for none."""
    local_steps: int
    """Proposal, 0 for none."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A worker in a run."""

    worker: Address
    """Its key."""
    payout: Address
    """Where rewards go."""
    state: MemberState
    """Of the member."""
    bond: int
    """Wei held by the contract."""
    joined_height: int
    """Of the last join."""
    ready_height: int
    """Of the last ``ready``."""
    rejoin_height: int
    """A dropped member may join again from here on."""
    bond_unlock_height: int
    """0 before leaving; the largest u64 while rounds of its are unsettled."""
    missed: int
    """Rounds in a row without commit or vote."""
    drops: int
    """Times dropped."""
    accepted: int
    """Updates."""
    refused: int
    """Updates."""
    tokens: int
    """Of accepted updates; saturates at the largest u64."""
    earned: int
    """Wei."""
    last_round: int
    """Newest round it committed to (0 also before the first)."""
    client: str
    """What it says it runs."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint of one version, in parts."""

    version: int
    """Of the state."""
    root: Root
    """R_version."""
    state: CheckpointState
    """Of the checkpoint."""
    height: int
    """When it was opened, then when it was certified."""
    uploaders: tuple[bytes, ...]
    """Part i is asked of uploaders[i mod len]; empty: of the owner."""
    blobs: tuple[bytes, ...]
    """Blob of each part, 32 zero bytes where missing."""


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """A held-out loss."""

    root: Root
    """Of the version it was measured at; it counts only while that is the agreed root."""
    loss_micro: int
    """Micronats a token."""
    by: Address
    """Who recorded it."""
    height: int
    """When."""


@dataclass(slots=True, kw_only=True)
class LastRound:
    """What the next round needs to know of the ones before."""

    accepted: tuple[bytes, ...]
    """Members whose update was accepted in the newest FINAL round: L."""
    voters: tuple[bytes, ...]
    """Members who voted in the newest settled round's last attempt."""
