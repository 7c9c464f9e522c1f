"""The world of a random history: one run on the round machine, its stores, what is true, and what became final.

``World.attempt`` is the one way to act: a refusal changes nothing, and must be one that can happen to anybody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from history_actors import Actor, Odds, compute_digest

from chain.core.abi.refusal import Refusal
from chain.core.accounts import ACCOUNT_PREFIX, credit, get_balance, transfer
from chain.core.contracts.params import ContractParams
from chain.core.contracts.registry import initialise_contracts
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.rounds.book import TRAINING, RunBook
from chain.core.rounds.checkpoints import process_part
from chain.core.rounds.records import RunParams, UpdateFate
from chain.core.rounds.running import process_create
from chain.core.rounds.timers import process_rounds_block_end
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Height, Root
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

    def total_money(self) -> int:
        stop = ACCOUNT_PREFIX[:-1] + bytes([ACCOUNT_PREFIX[-1] + 1])
        return sum(
            get_balance(self.state, Address(key[len(ACCOUNT_PREFIX) :]))
            for key, _ in self.state.iterate(ACCOUNT_PREFIX, stop)
        )
