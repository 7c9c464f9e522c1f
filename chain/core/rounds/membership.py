"""Members: join, ready, leave, bond, and being dropped (DESIGN 4.1).

Invariants: the roster is exactly the READY and ACTIVE members; a bond leaves the contract only through
``process_withdraw_bond``; who left or was dropped keeps its record.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.accounts import transfer
from chain.core.rounds.book import TRAINING, RunBook
from chain.core.rounds.records import Member, MemberState, RunState
from chain.core.rounds.reverting import process_revert, should_revert
from chain.core.types import Address

MAX_MISSED = 3
"""Rounds missed in a row after which a member is dropped."""
MAX_CLIENT_BYTES = 64
"""A name and a version."""
MAX_DOUBLINGS = 16
"""The rejoin delay stops doubling there (65,536 rounds)."""
UNKNOWN_HEIGHT = 2**64 - 1
"""Unlock height while a round of the member is unsettled."""

_ELIGIBLE = (MemberState.READY, MemberState.ACTIVE)
_PRESENT = (MemberState.JOINED, *_ELIGIBLE)
_NO_ADDRESS = Address(bytes(20))


def is_eligible(member: Member | None) -> bool:
    """Whether a member is READY or ACTIVE."""
    return member is not None and member.state in _ELIGIBLE


def is_present(member: Member | None) -> bool:
    """Whether a member is JOINED, READY or ACTIVE."""
    return member is not None and member.state in _PRESENT


def process_join(book: RunBook, worker: Address, recipe_digest: bytes, payout: Address, client: str, bond: int) -> None:
    """Join, or join again after leaving or being dropped; the bond has been paid to the contract."""
    # CHECKS
    run, params, height = book.run, book.run.params, book.turn.height
    if run.state == RunState.FINISHED:
        raise Refusal("WrongRunState", RunState.RUNNING, run.state)
    if recipe_digest != run.recipe_digest:
        raise Refusal("RecipeMismatch", run.recipe_digest, recipe_digest)
    if params.is_allow_listed and not book.is_allowed(worker):
        raise Refusal("NotAllowed", run.run, worker)
    member = book.get_member(worker)
    if is_present(member):
        raise Refusal("AlreadyMember", run.run, worker)
    if member is not None and height < member.rejoin_height:
        raise Refusal("RejoinTooEarly", member.rejoin_height, height)
    _check_room(book)
    held = member.bond if member is not None else 0
    if held + bond < params.member_bond:
        raise Refusal("BondTooSmall", params.member_bond, held + bond)
    if len(client.encode()) > MAX_CLIENT_BYTES:
        raise Refusal("BadParams", "client", 0, MAX_CLIENT_BYTES, len(client.encode()))
    # EFFECTS
    if payout == _NO_ADDRESS:
        payout = worker
    if member is None:
        book.add_member(_new_member(worker, payout, bond, height, client))
    else:
        member.payout, member.client = payout, client
        member.state, member.joined_height, member.missed = MemberState.JOINED, height, 0
        member.bond += bond
        member.bond_unlock_height = 0
    run.num_joined += 1
    # EVENTS
    book.emit("MemberJoined", worker, bond)


def process_ready(book: RunBook, worker: Address, root: bytes) -> None:
    """Show a recent root and become eligible; the last resort shows the newest certified checkpoint's."""
    # CHECKS
    run = book.run
    member = book.member(worker)
    if not is_present(member):
        raise Refusal("NotMember", run.run, worker)
    if run.state == RunState.CREATED:
        raise Refusal("WrongRunState", RunState.RUNNING, run.state)
    must_revert = should_revert(book, root)
    if not must_revert and not _is_acceptable_root(book, root):
        raise Refusal("UnknownRoot", run.head_root, root)
    if member.state == MemberState.JOINED:
        _check_room(book)
    # EFFECTS
    if must_revert:
        process_revert(book)
    member.ready_height = book.turn.height
    if member.state == MemberState.JOINED:
        member.state = MemberState.READY
        _add_to_roster(book, worker)
    # EVENTS
    book.emit("MemberReady", worker, root)


def process_leave(book: RunBook, worker: Address) -> None:
    """Leave at once; the bond is held until the member's rounds have settled, and lockBlocks more."""
    # CHECKS
    run = book.run
    member = book.member(worker)
    if not is_present(member) and member.state != MemberState.DROPPED:
        raise Refusal("NotMember", run.run, worker)
    # EFFECTS
    if is_present(member):
        run.num_joined -= 1
    _remove_from_roster(book, worker)
    member.state = MemberState.LEFT
    member.bond_unlock_height = book.turn.height + run.params.lock_blocks
    for round_ in book.get_unsettled():
        position = book.get_position(round_.round, worker)
        if position is not None:
            round_.gone |= 1 << position
            member.bond_unlock_height = UNKNOWN_HEIGHT
    # EVENTS
    book.emit("MemberLeft", worker, member.bond_unlock_height)


def process_withdraw_bond(book: RunBook, worker: Address) -> None:
    """Pay the bond of a member that left back to its worker key."""
    # CHECKS
    member = book.member(worker)
    if member.bond == 0:
        raise Refusal("NothingToWithdraw", worker)
    until = member.bond_unlock_height if member.state == MemberState.LEFT else UNKNOWN_HEIGHT
    if book.turn.height < until:
        raise Refusal("BondLocked", until, book.turn.height)
    # EFFECTS
    transfer(book.turn.state, TRAINING, worker, member.bond)
    member.bond = 0


def process_drop(book: RunBook, member: Member) -> None:
    """Drop an eligible member: out of the next rounds, may join again, later each time."""
    if not is_eligible(member):
        return
    book.run.num_joined -= 1
    _remove_from_roster(book, member.worker)
    member.state = MemberState.DROPPED
    delay = book.run.params.round_blocks << min(member.drops, MAX_DOUBLINGS)
    member.drops += 1
    member.rejoin_height = book.turn.height + delay
    book.emit("MemberDropped", member.worker, member.missed, member.rejoin_height)


def _check_room(book: RunBook) -> None:
    """Only eligible members take places, so that nobody keeps one by joining without ever showing a root."""
    if book.run.num_eligible >= book.run.params.max_members:
        raise Refusal("RunFull", book.run.params.max_members)


def _add_to_roster(book: RunBook, worker: Address) -> None:
    book.roster.append(worker)
    book.run.num_eligible += 1
    book.run.empty_since = 0


def _remove_from_roster(book: RunBook, worker: Address) -> None:
    if worker not in book.roster:
        return
    book.roster.remove(worker)
    book.run.num_eligible -= 1
    if book.run.num_eligible == 0:
        book.run.empty_since = book.turn.height


def _is_acceptable_root(book: RunBook, root: bytes) -> bool:
    """One of the last 2F roots; the head's while nobody is eligible, for then nobody else can lead on from it."""
    head = book.run.num_settled
    if book.run.num_eligible == 0:
        return root == book.run.head_root
    oldest = max(0, head - 2 * book.run.params.num_fragments + 1)
    return any(book.get_root(version) == root for version in range(head, oldest - 1, -1))


def _new_member(worker: Address, payout: Address, bond: int, height: int, client: str) -> Member:
    return Member(
        worker=worker,
        payout=payout,
        state=MemberState.JOINED,
        bond=bond,
        joined_height=height,
        ready_height=0,
        rejoin_height=0,
        bond_unlock_height=0,
        missed=0,
        drops=0,
        accepted=0,
        refused=0,
        tokens=0,
        earned=0,
        last_round=0,
        client=client,
    )
