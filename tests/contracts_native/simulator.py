"""Random histories of one run, played on the round machine itself (DESIGN 4.1).

Actors join, leave, crash, lose their disks, lie, withhold payloads; stores fail and lose blobs.  After every
block ``World.check`` asks for what must always hold; ``play_history`` ends with silence (timers alone must
settle everything) and a lone newcomer that has only chain and storage (it must reach FINAL).
``python tests/contracts_native/simulator.py COUNT [FIRST_SEED]`` plays more histories than the tests do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chain.core.abi.refusal import Refusal
from chain.core.accounts import ACCOUNT_PREFIX, credit, get_balance, transfer
from chain.core.contracts.params import ContractParams
from chain.core.contracts.registry import initialise_contracts
from chain.core.contracts.storage.blobs import compute_release_height, get_blob
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.rounds.book import DUE_PREFIX, TRAINING, RunBook
from chain.core.rounds.checkpoints import process_part
from chain.core.rounds.committing import process_commit
from chain.core.rounds.membership import (
    is_eligible,
    is_present,
    process_join,
    process_leave,
    process_ready,
    process_withdraw_bond,
)
from chain.core.rounds.records import (
    NO_ROOT,
    CheckpointState,
    MemberState,
    Round,
    RoundState,
    RunParams,
    RunState,
    UpdateFate,
)
from chain.core.rounds.running import process_create, process_resume
from chain.core.rounds.timers import process_rounds_block_end
from chain.core.rounds.voting import process_attest, process_report_missing
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Height, Root
from da.core.hashing import Tag, compute_hash
from da.core.types import Tier

GENESIS_HASH = bytes.fromhex("aa" * 32)
RUN = 1
OWNER = Address(b"O" * 20)
TREASURY = Address(b"T" * 20)
FUNDS = 10**24

EXPECTED_REFUSALS = {
    # What an honest actor may meet because something changed within the block it acted in.
    "WrongRoundState",
    "StaleBase",
    "PreviousUnsettled",
    "PartAlreadyStored",
    "NotYourPart",
    "CheckpointSuperseded",
    "RejoinTooEarly",
    "UnknownRoot",
    "RunFull",
    "BondLocked",
    "NotEligible",
    "EscrowTooSmall",
    "AlreadyVoted",
}


def compute_digest(*parts: object) -> bytes:
    """Return a fixed 32-byte value of some words."""
    return compute_hash(Tag.RANDOM, repr(parts).encode())


@dataclass
class Actor:
    """A worker with a disk and a character."""

    name: str
    is_liar: bool = False
    pace: float = 0.6
    """Chance to act in a block."""
    down_until: int = 0
    version: int = -1
    """Version of the state on its disk, -1 for none."""
    root: bytes = b""
    """Root of that state."""
    held: dict[int, bytes] = field(default_factory=dict)
    """Roots of the versions it has seen by itself, for checkpoint parts."""
    is_forked: bool = False
    """Has seen a root on the chain that its own arithmetic denies."""
    has_left: bool = False

    @property
    def address(self) -> Address:
        return Address(compute_digest("actor", self.name)[:20])


@dataclass(frozen=True)
class Lie:
    """A root that honest arithmetic denies and that became FINAL."""

    round: int
    num_live: int
    """|E|."""
    num_silent: int
    """Of them, those who neither voted nor reported."""
    num_liars: int
    """Of them, liars."""

    @property
    def is_within_the_rules(self) -> bool:
        """Fewer than four voters, or more than a third of E silent, or more than a third lying."""
        return self.num_live < 4 or 3 * self.num_silent > self.num_live or 3 * self.num_liars > self.num_live


@dataclass
class Odds:
    """How rough a history is: chances a block, or an act."""

    liars: float
    crash: float
    leave: float
    join: float
    erase: float
    withhold: float
    outage: float
    loss: float

    @classmethod
    def draw(cls, rng: random.Random) -> Odds:
        """Draw a history's character; many are calm in most respects."""

        def chance(rates: tuple[float, ...]) -> float:
            return rng.choice((0.0, *rates))

        return cls(
            liars=chance((0.2, 0.5)),
            crash=chance((0.005, 0.03)),
            leave=chance((0.002, 0.01)),
            join=chance((0.01, 0.04)),
            erase=chance((0.2, 0.6)),
            withhold=chance((0.05, 0.3)),
            outage=chance((0.002, 0.01)),
            loss=chance((0.02, 0.1)),
        )


class World:
    """One run, its actors and its stores."""

    def __init__(self, seed: int, *, fragments: int, overlap: int, params: dict[str, int] | None = None) -> None:
        self.rng = random.Random(seed)
        self.odds = Odds.draw(self.rng)
        self.state = Overlay()
        self.height = 1
        self._book: RunBook | None = None
        self.events: list[tuple[str, tuple[object, ...]]] = []
        self.actors: list[Actor] = []
        self.lost: set[bytes] = set()
        self.withheld: dict[bytes, str] = {}
        self.malformed: set[bytes] = set()
        self.outage_until = 0
        self.lies_final: list[Lie] = []
        self.num_final = 0
        self.num_void = 0
        self.num_reverts = 0
        self.refusals: dict[str, int] = {}
        self.seen_settled = 0
        self.params = RunParams(
            **{
                "num_fragments": fragments,
                "overlap": overlap,
                "local_steps": 20,
                "num_rounds": 10_000,
                "min_members": 1,
                "max_members": 8,
                "round_blocks": 10,
                "grace_blocks": 2,
                "reveal_blocks": 2,
                "attest_blocks": 4,
                "dispute_blocks": 5,
                "recover_blocks": 25,
                "lock_blocks": 6,
                "checkpoint_interval": 2 * fragments,
                "num_checkpoint_parts": 2,
                "lease_blocks": 400,
                "is_allow_listed": True,
                "is_sealed": False,
                "reward_per_update": self.rng.choice((0, 10**9)),
                "member_bond": self.rng.choice((0, 10**6)),
                **(params or {}),
            }
        )
        initialise_contracts(self.state, ContractParams())
        credit(self.state, OWNER, FUNDS)
        credit(self.state, TREASURY, FUNDS)
        self.total = self.total_money()
        self.genesis = compute_digest("genesis")
        self.turn = self.new_turn()
        transfer(self.state, OWNER, TRAINING, 10**18)
        book = process_create(self.turn, OWNER, self.params, b"recipe", Root(self.genesis), 10**18)
        book.touch()
        for part in range(self.params.num_checkpoint_parts):
            self.store_part(OWNER, 0, part, self.genesis)
        self.end_block()

    # -- time

    def new_turn(self) -> Turn:
        seed = compute_digest("seed", self.height)
        return Turn(state=self.state, height=Height(self.height), seed=seed, genesis_hash=GENESIS_HASH)

    def end_block(self) -> None:
        """Run the timers and start the next block."""
        process_rounds_block_end(self.turn)
        self._book = None
        for _, name, values in self.turn.events:
            self.events.append((name, values))
            self.observe(name, values)
        self.height += 1
        self.turn = self.new_turn()
        self._book = None

    def observe(self, name: str, values: tuple[object, ...]) -> None:
        if name == "RoundFinalised":
            self.num_final += 1
            t, root = values[1], values[2]
            assert isinstance(t, int)
            honest = self.compute_honest_root(self.book(), t)
            if root != honest:
                self.lies_final.append(self.describe_lie(t))
        elif name == "RoundVoided":
            self.num_void += 1
        elif name == "RunReverted":
            self.num_reverts += 1

    def describe_lie(self, t: int) -> Lie:
        book = self.book()
        round_ = book.round(t)
        live = [a for i, a in enumerate(book.get_participants(t)) if not round_.gone >> i & 1]
        liars = {actor.address for actor in self.actors if actor.is_liar}
        return Lie(
            round=t, num_live=len(live), num_silent=len(live) - len(round_.voters), num_liars=len(liars & set(live))
        )

    def book(self) -> RunBook:
        """Return the run's records, for reading only; the same ones until somebody writes."""
        if self._book is None:
            self._book = RunBook(self.turn, RUN)
        return self._book

    @property
    def bound(self) -> int:
        """T_round + grace + 3 attest deadlines + T_dispute."""
        p = self.params
        return p.round_blocks + p.grace_blocks + 3 * p.attest_blocks + p.dispute_blocks

    # -- what is true

    def compute_honest_root(self, book: RunBook, t: int) -> bytes:
        """Return the root that honest arithmetic gives for a FINAL round, from the chain's own root before it."""
        round_ = book.round(t)
        counted = [
            book.get_update(t, position).digest
            for position in round_.order
            if book.get_update(t, position).fate == UpdateFate.ACCEPTED
        ]
        bad = [digest for digest in counted if digest in self.malformed]
        before = book.get_root(t)
        return compute_digest(before, sorted(counted)) if not bad else b"a malformed payload was counted"

    def can_fetch(self, blob: bytes, actor: Actor) -> bool:
        if self.withheld.get(blob, actor.name) != actor.name:
            return False
        return blob not in self.lost and self.height >= self.outage_until

    # -- acts

    def attempt(self, act: object, *args: object) -> bool:
        """Let an actor act; a refusal changes nothing and must be one that can happen to anybody."""
        mark = self.state.begin()
        book = RunBook(self.turn, RUN)
        try:
            act(book, *args)  # type: ignore[operator]
        except Refusal as refusal:
            self.state.rollback(mark)
            if refusal.name not in EXPECTED_REFUSALS:
                raise
            self.refusals[refusal.name] = self.refusals.get(refusal.name, 0) + 1
            return False
        book.touch()
        self._book = None
        return True

    def store_part(self, sender: Address, version: int, part: int, root: bytes) -> bool:
        blob = compute_digest("part", version, part, root)
        stored = StoredBlob(
            blob=blob, size_bytes=5_000, tier=Tier.HOT, epoch=0, expiry_height=self.height + self.params.lease_blocks
        )
        return self.attempt(process_part, sender, version, part, stored)

    def catch_up(self, actor: Actor, target: int) -> bool:
        """Bring an actor's state to a version by replaying settled rounds; restore a checkpoint if needed."""
        book = self.book()
        if actor.version > target:
            return False
        run = book.run
        if actor.version < 0 or not self.replay(book, actor, target):
            is_newer = actor.version < run.certified_version <= target
            if is_newer and self.can_restore(book, actor):
                actor.version, actor.root = run.certified_version, run.certified_root
                actor.held[actor.version] = actor.root
            elif actor.version < 0:
                return False
            return self.replay(book, actor, target)
        return True

    def can_restore(self, book: RunBook, actor: Actor) -> bool:
        checkpoint = book.get_checkpoint(book.run.certified_version)
        return checkpoint is not None and all(self.can_fetch(blob, actor) for blob in checkpoint.blobs)

    def replay(self, book: RunBook, actor: Actor, target: int) -> bool:
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
                if not all(self.can_fetch(update.blob, actor) for update in counted):
                    return False
                root = compute_digest(actor.root, sorted(update.digest for update in counted))
            if root != round_.root:
                actor.is_forked = True
                return False
            actor.version, actor.root = t + 1, root
            actor.held[actor.version] = root
        return book.get_root(target) == actor.root

    def play_actor(self, actor: Actor) -> None:
        """Let one actor do what it would do in this block."""
        rng, odds = self.rng, self.odds
        if self.height < actor.down_until or actor.has_left:
            return
        if rng.random() < odds.crash:
            actor.down_until = self.height + rng.choice((3, 15, 60, 300))
            if rng.random() < odds.erase:
                actor.version, actor.root, actor.held = -1, b"", {}
            return
        if rng.random() > actor.pace:
            return
        book = self.book()
        member = book.get_member(actor.address)
        if actor.is_forked or rng.random() < odds.leave:
            if member is not None and (is_present(member) or member.state == MemberState.DROPPED):
                self.attempt(process_leave, actor.address)
                actor.has_left = True
            return
        if member is None or not is_present(member):
            self.join(actor)
        elif member.state == MemberState.JOINED or (book.run.gate_since and member.ready_height < book.run.gate_since):
            self.show_root(actor)
        else:
            self.work(book, actor)

    def join(self, actor: Actor) -> None:
        def act(book: RunBook) -> None:
            book.set_allowed(actor.address, True)
            process_join(book, actor.address, book.run.recipe_digest, actor.address, "sim", self.params.member_bond)

        transfer(self.state, TREASURY, TRAINING, self.params.member_bond)
        if not self.attempt(act):
            transfer(self.state, TRAINING, TREASURY, self.params.member_bond)

    def show_root(self, actor: Actor) -> None:
        run = self.book().run
        head = run.num_settled
        if self.catch_up(actor, head):
            self.attempt(process_ready, actor.address, actor.root)
        elif not self.can_restore(self.book(), actor):
            return
        elif run.empty_since and self.height >= run.empty_since + self.params.recover_blocks:
            # nobody can show the head: the last resort
            actor.version, actor.root = run.certified_version, run.certified_root
            actor.held = {actor.version: actor.root}
            self.attempt(process_ready, actor.address, actor.root)

    def work(self, book: RunBook, actor: Actor) -> None:
        for version in book.run.open_checkpoints:
            if version in actor.held and self.height >= self.outage_until and version > 0:
                checkpoint = book.get_checkpoint(version)
                assert checkpoint is not None
                for part, blob in enumerate(checkpoint.blobs):
                    if blob == NO_ROOT and actor.held[version] == checkpoint.root:
                        self.store_part(actor.address, version, part, checkpoint.root)
        for round_ in book.get_unsettled():
            position = book.get_position(round_.round, actor.address)
            if position is None or round_.gone >> position & 1:
                continue
            if round_.state == RoundState.OPEN and not round_.committed >> position & 1:
                if self.rng.random() < 0.5:
                    self.commit(actor, round_)
            elif round_.state in (RoundState.ATTEST, RoundState.DISPUTE) and position not in round_.voters:
                self.vote(actor, round_)

    def commit(self, actor: Actor, round_: Round) -> None:
        if self.height < self.outage_until or not self.catch_up(actor, round_.base_version):
            return
        t = round_.round
        twin = self.rng.random() < 0.1  # two workers send equal bytes: both count
        digest = compute_digest("payload", t, round_.data_seed, "twin" if twin else actor.name)
        blob = compute_digest("blob", digest)
        expiry = self.height + self.params.lease_blocks
        stored = StoredBlob(blob=blob, size_bytes=700, tier=Tier.TEMPORARY, epoch=0, expiry_height=expiry)
        if not self.attempt(process_commit, actor.address, t, round_.base_root, digest, stored, 100, 5):
            return
        if twin:
            return
        if self.rng.random() < self.odds.withhold:
            self.withheld[blob] = actor.name
        if actor.is_liar and self.rng.random() < 0.3:
            self.malformed.add(digest)

    def vote(self, actor: Actor, round_: Round) -> None:
        book, t = self.book(), round_.round
        if t != book.run.num_settled:
            return
        if actor.is_liar and self.rng.random() < 0.7:
            lie = compute_digest("lie", t, self.rng.choice(("together", actor.name)))
            self.attempt(process_attest, actor.address, t, round_.retries, Root(lie), 0, 0, 0)
            return
        if not self.catch_up(actor, t):
            return
        missing = refused = 0
        counted = []
        for index, position in enumerate(round_.order):
            if not round_.candidates >> index & 1:
                continue
            update = book.get_update(t, position)
            if not self.can_fetch(update.blob, actor):
                missing |= 1 << index
            elif update.digest in self.malformed:
                refused |= 1 << index
            else:
                counted.append(update.digest)
        if missing:
            if round_.state == RoundState.ATTEST:
                self.attempt(process_report_missing, actor.address, t, round_.retries, missing)
            return
        root = Root(compute_digest(actor.root, sorted(counted)))
        proposal = self.rng.choice((0, 8, 64))
        steps = self.rng.choice((0, 10, 40))
        self.attempt(process_attest, actor.address, t, round_.retries, root, refused, proposal, steps)

    def play_block(self) -> None:
        """Fate, then every actor in random order, then the timers and the checks."""
        rng, odds = self.rng, self.odds
        if rng.random() < odds.outage:
            self.outage_until = self.height + rng.choice((5, 20, 60))
        if rng.random() < odds.join and len(self.actors) < 12:
            self.add_actor()
        for actor in rng.sample(self.actors, len(self.actors)):
            self.play_actor(actor)
        if self.book().run.state == RunState.PAUSED and rng.random() < 0.1:
            self.attempt(process_resume, OWNER)
        self.end_block()
        if rng.random() < odds.loss:
            self.lose_payload()
        self.check()

    def add_actor(self) -> Actor:
        rng = self.rng
        is_liar = rng.random() < self.odds.liars and 3 * sum(a.is_liar for a in self.actors) + 3 <= len(self.actors)
        actor = Actor(name=f"actor{len(self.actors)}", is_liar=is_liar, pace=rng.choice((0.9, 0.6, 0.2)))
        self.actors.append(actor)
        return actor

    def lose_payload(self) -> None:
        book = self.book()
        t = self.rng.randrange(max(1, book.run.num_opened))
        if t < book.run.num_archived:
            return
        round_ = book.get_round(t)
        if round_ is not None and round_.order:
            self.lost.add(book.get_update(t, self.rng.choice(round_.order)).blob)

    # -- what must always hold

    def total_money(self) -> int:
        stop = ACCOUNT_PREFIX[:-1] + bytes([ACCOUNT_PREFIX[-1] + 1])
        return sum(
            get_balance(self.state, Address(key[len(ACCOUNT_PREFIX) :]))
            for key, _ in self.state.iterate(ACCOUNT_PREFIX, stop)
        )

    def check(self) -> None:
        """Check every invariant that a block may break."""
        book = self.book()
        run = book.run
        height = self.height - 1
        assert 0 <= run.reserved <= run.escrow
        assert run.num_settled <= run.num_opened <= run.num_settled + self.params.overlap + 1
        due = [key for key, _ in self.state.iterate(DUE_PREFIX, DUE_PREFIX[:-1] + b"e")]
        expected = [DUE_PREFIX + run.due_height.to_bytes(8, "big") + RUN.to_bytes(8, "big")] if run.due_height else []
        assert due == expected
        assert run.due_height == 0 or run.due_height > height
        assert (run.empty_since > 0) == (run.num_eligible == 0)
        for round_ in book.get_unsettled():
            previous = book.get_round(round_.round - 1)
            if previous is None or previous.settled_height:
                start = max(round_.opened_height, previous.settled_height if previous is not None else 0)
                assert height <= start + self.bound, f"round {round_.round} is {height - start} blocks old"
        if run.num_settled != self.seen_settled:
            self.seen_settled = run.num_settled
            self.check_settled(book)

    def check_settled(self, book: RunBook) -> None:
        """Check the dearer invariants, whenever a round has settled."""
        run = book.run
        members = book.get_members()
        assert book.roster == [a for a in book.roster if is_eligible(book.get_member(a))]
        assert {m.worker for m in members if is_eligible(m)} == set(book.roster)
        assert run.num_eligible == len(book.roster) == len(set(book.roster))
        assert run.num_joined == sum(is_present(m) for m in members)
        assert run.num_eligible <= self.params.max_members
        assert self.total_money() == self.total, "money appeared or vanished"
        assert get_balance(self.state, TRAINING) == run.escrow + sum(m.bond for m in members)
        assert run.paid_rewards == sum(m.earned for m in members)
        assert run.paid_rewards == self.params.reward_per_update * sum(m.accepted for m in members)
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
            blob = get_blob(self.state, u.blob)
            assert blob is not None
            assert t < run.num_released or compute_release_height(blob) == 2**64 - 1

    def check_pins(self) -> None:
        """Check that exactly what must be kept is pinned."""
        book = self.book()
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
        for key, _ in self.state.iterate(b"s/b", b"s/c"):
            blob_record = get_blob(self.state, key[3:])
            assert blob_record is not None
            if blob_record.num_pins:
                kept[key[3:]] = blob_record.num_pins
        assert kept == pins


def play_history(seed: int, *, fragments: int, overlap: int, blocks: int = 100) -> World:
    """Play one random history, then silence, then a lone newcomer."""
    world = World(seed, fragments=fragments, overlap=overlap)
    for _ in range(world.rng.randint(1, 5)):
        world.add_actor()
    for _ in range(blocks):
        world.play_block()
    # silence: timers alone settle everything and stop opening rounds
    world.actors = []
    limit = 6 * (overlap + 1) * world.bound
    for _ in range(limit):
        world.end_block()
        world.check()
        book = world.book()
        if not book.get_unsettled() and (book.run.num_eligible == 0 or book.run.state == RunState.PAUSED):
            break
    else:
        raise AssertionError(f"not at rest after {limit} empty blocks")
    world.outage_until = 0
    play_newcomer(world)
    world.check_pins()
    return world


def play_newcomer(world: World) -> None:
    """Let one honest newcomer, with chain and storage alone, bring the run to FINAL again."""
    world.odds = Odds(liars=0, crash=0, leave=0, join=0, erase=0, withhold=0, outage=0, loss=0)
    newcomer = Actor(name="newcomer", pace=1.0)
    world.actors = [newcomer]
    before = world.num_final
    limit = world.params.recover_blocks + 8 * world.bound
    for _ in range(limit):
        world.play_block()
        if newcomer.is_forked:  # a lie became FINAL: wait for the last resort, from the checkpoint before it
            newcomer.is_forked = newcomer.has_left = False
            newcomer.version = -1
        if world.num_final > before and world.book().run.state == RunState.RUNNING:
            break
    else:
        raise AssertionError(f"the lone newcomer did not reach FINAL in {limit} blocks: {world.book().run}")
    assert newcomer.version >= 0
    for _ in range(world.params.lock_blocks + world.bound):  # and its bond comes back
        world.end_block()
    world.attempt(process_leave, newcomer.address)
    for _ in range(2 * world.bound + world.params.lock_blocks):
        world.end_block()
        world.check()
    if world.params.member_bond:
        assert world.attempt(process_withdraw_bond, newcomer.address)
    assert world.total_money() == world.total


def main() -> None:
    """Play as many histories as asked and print what happened."""
    import sys
    import time

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = time.perf_counter()
    final = void = lies = reverts = 0
    for seed in range(first, first + count):
        try:
            world = play_history(seed, fragments=(1, 4)[seed & 1], overlap=(seed >> 1) & 1)
        except BaseException:
            print(f"seed {seed}")
            raise
        final, void = final + world.num_final, void + world.num_void
        lies, reverts = lies + bool(world.lies_final), reverts + world.num_reverts
        for lie in world.lies_final:
            print(f"seed {seed}: {lie}")
    seconds = time.perf_counter() - start
    print(f"{count} histories in {seconds:.1f} s: {final} final, {void} void, {lies} with a lie, {reverts} reverts")


if __name__ == "__main__":
    main()
