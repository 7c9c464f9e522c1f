"""Money of a run: the escrow buys leases and pays rewards (DESIGN 4.1, *Pay*).

The contract's account holds it; ``run.escrow`` says how much is this run's, ``run.reserved`` how much of that
pending updates will get.  Invariant: reserved <= escrow, and the contract's balance is the sum of all escrows
and bonds.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.abi.storage import STORAGE_ADDRESS
from chain.core.accounts import transfer
from chain.core.contracts.storage.blobs import compute_lease_fee, process_lease, process_pin
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.contracts.storage.pricing import check_lease, get_tier
from chain.core.rounds.book import TRAINING, RunBook
from chain.core.rounds.records import RoundState, Run, RunState
from chain.core.types import Address

RECLAIM_ROUNDS = 20
"""Round times that a run must have been idle before its escrow can be reclaimed, after T_recover."""

_STORAGE = Address(STORAGE_ADDRESS)


def is_escrow_empty(book: RunBook) -> bool:
    """Whether the next round could not be paid.

    It needs a reward and the largest lease so far for everybody eligible, and as much for each update that open
    rounds still wait for; at least 1 wei.
    """
    run = book.run
    num_expected = run.num_eligible + sum(
        round_.num_participants - len(round_.order)
        for round_ in book.get_unsettled()
        if round_.state == RoundState.OPEN
    )
    needed = num_expected * (run.pending.reward_per_update + run.largest_fee)
    return run.escrow - run.reserved < max(1, needed)


def check_stored(book: RunBook, stored: StoredBlob, tier: int) -> int:
    """Refuse a blob that the run doesn't buy, else return the fee of its lease."""
    run, state, height = book.run, book.turn.state, book.turn.height
    if stored.tier != tier:
        raise Refusal("WrongTier", tier, stored.tier)
    if stored.size_bytes == 0:
        raise Refusal("EmptyPayload", stored.blob)
    blocks = run.params.lease_blocks
    if stored.expiry_height < height + blocks // 2:
        raise Refusal("LeaseTooShort", height + blocks // 2, stored.expiry_height)
    if stored.expiry_height > height + blocks:
        raise Refusal("LeaseTooLong", height + blocks, stored.expiry_height)
    check_lease(get_tier(state, tier), height, stored.expiry_height)
    return compute_lease_fee(state, stored, run.owner, height)


def check_funds(run: Run, needed: int) -> None:
    """Refuse what the free part of the escrow does not cover."""
    free = run.escrow - run.reserved
    if free < needed:
        raise Refusal("EscrowTooSmall", needed, free)


def process_purchase(book: RunBook, stored: StoredBlob, fee: int) -> None:
    """Pay a lease in the owner's name and pin the blob."""
    run = book.run
    transfer(book.turn.state, TRAINING, _STORAGE, fee)
    run.escrow -= fee
    run.paid_storage += fee
    process_lease(book.turn, stored, run.owner, fee)
    process_pin(book.turn, stored.blob)


def process_reward(book: RunBook, payout: Address, amount: int) -> None:
    """Pay what was reserved for an accepted update."""
    transfer(book.turn.state, TRAINING, payout, amount)
    book.run.escrow -= amount
    book.run.paid_rewards += amount


def note_idle(book: RunBook) -> None:
    """Keep since when nothing is going on."""
    run = book.run
    if run.num_settled < run.num_opened or run.state == RunState.RUNNING:
        run.idle_since = 0
    elif run.idle_since == 0:
        run.idle_since = book.turn.height


def compute_reclaim_height(run: Run) -> int:
    """Return from when the owner of an idle run may take its escrow back."""
    return run.idle_since + RECLAIM_ROUNDS * run.params.round_blocks + run.params.recover_blocks


def process_reclaim(book: RunBook, sender: Address) -> None:
    """Give the escrow of an abandoned run back to its owner; ``fund`` wakes the run again."""
    # CHECKS
    run, height = book.run, book.turn.height
    if sender != run.owner:
        raise Refusal("NotOwner", run.owner, sender)
    if run.idle_since == 0:
        raise Refusal("WrongRunState", RunState.PAUSED, run.state)
    if height < compute_reclaim_height(run):
        raise Refusal("ReclaimTooEarly", compute_reclaim_height(run), height)
    if run.escrow == 0:
        raise Refusal("EscrowTooSmall", 1, 0)
    # EFFECTS
    assert run.reserved == 0, "every update is settled"
    process_return(book)


def process_return(book: RunBook) -> None:
    """Give the rest back to the owner when the final checkpoint is certified."""
    run = book.run
    amount = run.escrow
    if amount == 0:
        return
    transfer(book.turn.state, TRAINING, run.owner, amount)
    run.escrow = 0
    book.emit("EscrowReturned", run.owner, amount)
