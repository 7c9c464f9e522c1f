"""What must hold after every block of a random history, and after every round that has settled."""

from __future__ import annotations

from history_world import RUN, World

from chain.core.accounts import get_balance
from chain.core.contracts.storage.blobs import compute_release_height, get_blob
from chain.core.rounds.book import DUE_PREFIX, TRAINING, RunBook
from chain.core.rounds.membership import is_eligible, is_present
from chain.core.rounds.records import NO_ROOT, CheckpointState, RoundState, UpdateFate


def check(world: World) -> None:
    """Check every invariant that a block may break."""
    book = world.book()
    run = book.run
    height = world.height - 1
    assert 0 <= run.reserved <= run.escrow
    assert run.num_settled <= run.num_opened <= run.num_settled + world.params.overlap + 1
    due = [key for key, _ in world.state.iterate(DUE_PREFIX, DUE_PREFIX[:-1] + b"e")]
    expected = [DUE_PREFIX + run.due_height.to_bytes(8, "big") + RUN.to_bytes(8, "big")] if run.due_height else []
    assert due == expected
    assert run.due_height == 0 or run.due_height > height
    assert (run.empty_since > 0) == (run.num_eligible == 0)
    for round_ in book.get_unsettled():
        previous = book.get_round(round_.round - 1)
        if previous is None or previous.settled_height:
            start = max(round_.opened_height, previous.settled_height if previous is not None else 0)
            assert height <= start + world.bound, f"round {round_.round} is {height - start} blocks old"
    if run.num_settled != world.seen_settled:
        world.seen_settled = run.num_settled
        check_settled(world, book)


def check_settled(world: World, book: RunBook) -> None:
    """Check the dearer invariants, whenever a round has settled."""
    run = book.run
    members = book.get_members()
    assert book.roster == [a for a in book.roster if is_eligible(book.get_member(a))]
    assert {m.worker for m in members if is_eligible(m)} == set(book.roster)
    assert run.num_eligible == len(book.roster) == len(set(book.roster))
    assert run.num_joined == sum(is_present(m) for m in members)
    assert run.num_eligible <= world.params.max_members
    assert world.total_money() == world.total, "money appeared or vanished"
    assert get_balance(world.state, TRAINING) == run.escrow + sum(m.bond for m in members)
    assert run.paid_rewards == sum(m.earned for m in members)
    assert run.paid_rewards == world.params.reward_per_update * sum(m.accepted for m in members)
    t = run.num_settled - 1
    round_ = book.get_round(t)
    if round_ is None:
        return
    updates = [book.get_update(t, position) for position in round_.order]
    assert len(set(round_.order)) == len(round_.order), "counted twice"
    assert round_.num_accepted == sum(u.fate == UpdateFate.ACCEPTED for u in updates)
    assert all(u.fate in (UpdateFate.ACCEPTED, UpdateFate.REFUSED) for u in updates), "an update without a fate"
    assert all((u.reason == 0) == (u.fate == UpdateFate.ACCEPTED) for u in updates)
    assert book.get_root(t + 1) == round_.root == run.head_root
    if round_.state == RoundState.VOID:
        assert round_.root == book.get_root(t)
    for u in updates:
        blob = get_blob(world.state, u.blob)
        assert blob is not None
        assert t < run.num_released or compute_release_height(blob) == 2**64 - 1


def check_pins(world: World) -> None:
    """Check that exactly what must be kept is pinned."""
    book = world.book()
    run = book.run
    pins: dict[bytes, int] = {}
    for t in range(run.num_released, run.num_opened):
        round_ = book.round(t)
        for position in round_.order:
            blob = book.get_update(t, position).blob
            pins[blob] = pins.get(blob, 0) + 1
    for version in {*run.open_checkpoints, run.certified_version}:
        checkpoint = book.get_checkpoint(version)
        assert checkpoint is not None
        assert checkpoint.state in (CheckpointState.OPEN, CheckpointState.CERTIFIED)
        for blob in checkpoint.blobs:
            if blob != NO_ROOT:
                pins[blob] = pins.get(blob, 0) + 1
    for t in range(run.num_opened, run.num_opened + 100):
        stale = book.get_stale_round(t)
        for position in stale.order if stale is not None else b"":
            blob = book.get_update(t, position).blob
            pins[blob] = pins.get(blob, 0) + 1
    kept = {}
    for key, _ in world.state.iterate(b"s/b", b"s/c"):
        blob_record = get_blob(world.state, key[3:])
        assert blob_record is not None
        if blob_record.num_pins:
            kept[key[3:]] = blob_record.num_pins
    assert kept == pins
