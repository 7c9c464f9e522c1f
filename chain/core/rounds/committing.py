"""Commit and reveal: a worker's update of an OPEN round (DESIGN 4.1).

Everything is keyed by the sender; checks go from cheap to dear, the certificate's signatures last.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.rounds.book import RunBook
from chain.core.rounds.escrow import check_funds, check_stored, process_purchase
from chain.core.rounds.records import RefusalReason, Round, RoundState, Update, UpdateFate
from chain.core.rounds.seeds import compute_key_commitment
from chain.core.types import Address
from da.core.types import Tier


def get_live_position(book: RunBook, round_: Round, worker: Address) -> int:
    """Return the worker's index in V, or refuse with NotEligible where it isn't in V or has left since."""
    position = book.get_position(round_.round, worker)
    if position is None or round_.gone >> position & 1:
        raise Refusal("NotEligible", round_.round, worker)
    return position


def check_commit(book: RunBook, sender: Address, t: int, base_root: bytes) -> tuple[Round, int]:
    """Do the checks that need no certificate; return the round and the sender's index in V."""
    round_ = book.round(t)
    if round_.state != RoundState.OPEN:
        raise Refusal("WrongRoundState", RoundState.OPEN, round_.state)
    position = get_live_position(book, round_, sender)
    if round_.committed >> position & 1:
        raise Refusal("AlreadyCommitted", t, book.get_update(t, position).digest)
    if base_root != round_.base_root:
        raise Refusal("StaleBase", round_.base_root, base_root)
    return round_, position


def process_commit(
    book: RunBook, sender: Address, t: int, base_root: bytes, digest: bytes, stored: StoredBlob, tokens: int, loss: int
) -> None:
    """Record an update whose certificate has been verified; the escrow pays its lease and reserves its reward."""
    # CHECKS
    round_, position = check_commit(book, sender, t, base_root)
    fee = check_stored(book, stored, Tier.TEMPORARY)
    reward = round_.params.reward_per_update
    check_funds(book.run, fee + reward)
    # EFFECTS
    run = book.run
    process_purchase(book, stored, fee)
    run.largest_fee = max(run.largest_fee, fee)
    run.reserved += reward
    round_.committed |= 1 << position
    round_.acted |= 1 << position
    round_.order += bytes([position])
    book.save_update(
        t,
        position,
        Update(
            digest=digest,
            blob=stored.blob,
            size_bytes=stored.size_bytes,
            tokens=tokens,
            loss_micro=loss,
            fate=UpdateFate.PENDING,
            reason=RefusalReason.NONE,
            height=book.turn.height,
            paid=0,
        ),
    )
    book.member(sender).last_round = t
    # EVENTS
    book.emit("UpdateCommitted", t, sender, digest, stored.blob)


def process_reveal(book: RunBook, sender: Address, t: int, key: bytes) -> None:
    """Show the key of the sender's sealed payload."""
    # CHECKS
    round_ = book.round(t)
    if round_.state != RoundState.REVEAL:
        raise Refusal("WrongRoundState", RoundState.REVEAL, round_.state)
    position = get_live_position(book, round_, sender)
    if position not in round_.order:
        raise Refusal("NotEligible", t, sender)
    index = round_.order.index(position)
    if round_.revealed >> index & 1:
        raise Refusal("AlreadyRevealed", t)
    expected = book.get_update(t, position).digest
    got = compute_key_commitment(book.turn.genesis_hash, book.run.run, t, sender, key)
    if got != expected:
        raise Refusal("WrongKey", expected, got)
    # EFFECTS
    round_.revealed |= 1 << index
