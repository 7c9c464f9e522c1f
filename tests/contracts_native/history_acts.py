"""What a worker does in a block: catch up, join, show its root, commit, vote, or crash on the way."""

from __future__ import annotations

from history_actors import Actor, compute_digest
from history_world import TREASURY, World

from chain.core.accounts import transfer
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.rounds.book import TRAINING, RunBook
from chain.core.rounds.committing import process_commit
from chain.core.rounds.membership import is_present, process_join, process_leave, process_ready
from chain.core.rounds.records import NO_ROOT, MemberState, Round, RoundState, UpdateFate
from chain.core.rounds.voting import process_attest, process_report_missing
from chain.core.types import Root
from da.core.types import Tier


def play_actor(world: World, actor: Actor) -> None:
    """Let one actor do what it would do in this block."""
    rng, odds = world.rng, world.odds
    if world.height < actor.down_until or actor.has_left:
        return
    if rng.random() < odds.crash:
        actor.down_until = world.height + rng.choice((3, 15, 60, 300))
        if rng.random() < odds.erase:
            actor.version, actor.root, actor.held = -1, b"", {}
        return
    if rng.random() > actor.pace:
        return
    book = world.book()
    member = book.get_member(actor.address)
    if actor.is_forked or rng.random() < odds.leave:
        if member is not None and (is_present(member) or member.state == MemberState.DROPPED):
            world.attempt(process_leave, actor.address)
            actor.has_left = True
        return
    if member is None or not is_present(member):
        join(world, actor)
    elif member.state == MemberState.JOINED or (book.run.gate_since and member.ready_height < book.run.gate_since):
        show_root(world, actor)
    else:
        work(world, book, actor)


def catch_up(world: World, actor: Actor, target: int) -> bool:
    """Bring an actor's state to a version by replaying settled rounds; restore a checkpoint if needed."""
    book = world.book()
    if actor.version > target:
        return False
    run = book.run
    if actor.version < 0 or not replay(world, book, actor, target):
        is_newer = actor.version < run.certified_version <= target
        if is_newer and can_restore(world, book, actor):
            actor.version, actor.root = run.certified_version, run.certified_root
            actor.held[actor.version] = actor.root
        elif actor.version < 0:
            return False
        return replay(world, book, actor, target)
    return True


def can_restore(world: World, book: RunBook, actor: Actor) -> bool:
    checkpoint = book.get_checkpoint(book.run.certified_version)
    return checkpoint is not None and all(world.can_fetch(blob, actor) for blob in checkpoint.blobs)


def replay(world: World, book: RunBook, actor: Actor, target: int) -> bool:
    while actor.version < target:
        t = actor.version
        if t < book.run.num_archived:
            return False  # only a checkpoint helps
        round_ = book.get_round(t)
        if round_ is None or round_.state not in (RoundState.FINAL, RoundState.VOID):
            return False
        root = actor.root
        if round_.state == RoundState.FINAL:
            updates = [book.get_update(t, position) for position in round_.order]
            counted = [update for update in updates if update.fate == UpdateFate.ACCEPTED]
            if not all(world.can_fetch(update.blob, actor) for update in counted):
                return False
            root = compute_digest(actor.root, sorted(update.digest for update in counted))
        if root != round_.root:
            actor.is_forked = True
            return False
        actor.version, actor.root = t + 1, root
        actor.held[actor.version] = root
    return book.get_root(target) == actor.root


def join(world: World, actor: Actor) -> None:
    def act(book: RunBook) -> None:
        book.set_allowed(actor.address, True)
        process_join(book, actor.address, book.run.recipe_digest, actor.address, "sim", world.params.member_bond)

    transfer(world.state, TREASURY, TRAINING, world.params.member_bond)
    if not world.attempt(act):
        transfer(world.state, TRAINING, TREASURY, world.params.member_bond)


def show_root(world: World, actor: Actor) -> None:
    run = world.book().run
    head = run.num_settled
    if catch_up(world, actor, head):
        world.attempt(process_ready, actor.address, actor.root)
    elif not can_restore(world, world.book(), actor):
        return
    elif run.empty_since and world.height >= run.empty_since + world.params.recover_blocks:
        # nobody can show the head: the last resort
        actor.version, actor.root = run.certified_version, run.certified_root
        actor.held = {actor.version: actor.root}
        world.attempt(process_ready, actor.address, actor.root)


def work(world: World, book: RunBook, actor: Actor) -> None:
    for version in book.run.open_checkpoints:
        if version in actor.held and world.height >= world.outage_until and version > 0:
            checkpoint = book.get_checkpoint(version)
            assert checkpoint is not None
            for part, blob in enumerate(checkpoint.blobs):
                if blob == NO_ROOT and actor.held[version] == checkpoint.root:
                    world.store_part(actor.address, version, part, checkpoint.root)
    for round_ in book.get_unsettled():
        position = book.get_position(round_.round, actor.address)
        if position is None or round_.gone >> position & 1:
            continue
        if round_.state == RoundState.OPEN and not round_.committed >> position & 1:
            if world.rng.random() < 0.5:
                commit(world, actor, round_)
        elif round_.state in (RoundState.ATTEST, RoundState.DISPUTE) and position not in round_.voters:
            vote(world, actor, round_)


def commit(world: World, actor: Actor, round_: Round) -> None:
    if world.height < world.outage_until or not catch_up(world, actor, round_.base_version):
        return
    t = round_.round
    twin = world.rng.random() < 0.1  # two workers send equal bytes: both count
    digest = compute_digest("payload", t, round_.data_seed, "twin" if twin else actor.name)
    blob = compute_digest("blob", digest)
    expiry = world.height + world.params.lease_blocks
    stored = StoredBlob(blob=blob, size_bytes=700, tier=Tier.TEMPORARY, epoch=0, expiry_height=expiry)
    if not world.attempt(process_commit, actor.address, t, round_.base_root, digest, stored, 100, 5):
        return
    if twin:
        return
    if world.rng.random() < world.odds.withhold:
        world.withheld[blob] = actor.name
    if actor.is_liar and world.rng.random() < 0.3:
        world.malformed.add(digest)


def vote(world: World, actor: Actor, round_: Round) -> None:
    book, t = world.book(), round_.round
    if t != book.run.num_settled:
        return
    if actor.is_liar and world.rng.random() < 0.7:
        lie = compute_digest("lie", t, world.rng.choice(("together", actor.name)))
        world.attempt(process_attest, actor.address, t, round_.retries, Root(lie), 0, 0, 0)
        return
    if not catch_up(world, actor, t):
        return
    missing = refused = 0
    counted = []
    for index, position in enumerate(round_.order):
        if not round_.candidates >> index & 1:
            continue
        update = book.get_update(t, position)
        if not world.can_fetch(update.blob, actor):
            missing |= 1 << index
        elif update.digest in world.malformed:
            refused |= 1 << index
        else:
            counted.append(update.digest)
    if missing:
        if round_.state == RoundState.ATTEST:
            world.attempt(process_report_missing, actor.address, t, round_.retries, missing)
        return
    root = Root(compute_digest(actor.root, sorted(counted)))
    proposal = world.rng.choice((0, 8, 64))
    steps = world.rng.choice((0, 10, 40))
    world.attempt(process_attest, actor.address, t, round_.retries, root, refused, proposal, steps)
