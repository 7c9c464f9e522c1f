"""Asks other seats to prove what they signed for, counts who can't, and has them challenged (SPEC.md 11).

Every few blocks one blob of the own index, drawn at random: a random leaf of each seat, and the folds of all shards
under fresh coefficients, which name the liars among them. Seats that failed are asked for the same leaf again; whoever
goes on failing is the accuser's.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass, field

from da.auditing import fetch_fold, fetch_leaf, judge_folds
from da.core.audits import NONCE_BYTES
from da.core.blob import BlobHeader, compute_shard_bytes, decode_header
from da.core.errors import MalformedHeader, SeatFailed
from da.core.merkle import compute_num_leaves
from da.core.types import BlobId, Committee, Height, Seat
from da.counting import Traffic
from da.links import SeatLinks
from storage.core.accusation import Suspicion, is_own_fault
from storage.core.errors import ShelfUnavailable, StorageError, UnknownShard
from storage.core.repair import BlobFacts
from storage.node.accuser import Accuser
from storage.node.proofs import fold_shard
from storage.node.workplace import Workplace

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 20.0
"""For one answer."""

LOOK_SECONDS = 0.5
"""How often the height is looked at."""

SEARCHED_LEAVES = 16
"""Leaves that a liar is asked for until one is wrong: that one can be challenged."""

MAX_SUSPECTS = 16
"""Suspects that are asked again in one round."""


@dataclass(slots=True, kw_only=True)
class AuditCounts:
    """What was seen since the start."""

    leaves_good: int = 0
    leaves_failed: int = 0
    folds_judged: int = 0
    """Blobs whose folds could be judged."""
    liars_named: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Failed proofs by URL of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """One blob under audit."""

    blob: BlobId
    header: BlobHeader
    facts: BlobFacts
    committee: Committee

    @property
    def num_leaves(self) -> int:
        return compute_num_leaves(
            compute_shard_bytes(self.header.size_bytes, self.header.num_data), self.header.leaf_bytes
        )


class Auditor:
    """Audits for ever, in one event loop."""

    def __init__(
        self, work: Workplace, *, every_blocks: int, chance: random.Random, accuser: Accuser | None = None
    ) -> None:
        """Audit one blob every ``every_blocks``; ``chance`` is what nobody else should be able to foresee."""
        self._work = work
        self._every_blocks = every_blocks
        self._chance = chance
        self._links = SeatLinks(Traffic(), has_bulk=False)
        self.accuser = accuser
        self.counts = AuditCounts()

    async def run(self) -> None:
        """Audit until cancelled."""
        due = 0
        try:
            while True:
                view = self._work.watch.view
                if view is not None and view.height >= due:
                    due = view.height + self._every_blocks
                    try:
                        await self._audit_round(view.height)
                    except (StorageError, OSError) as error:  # the chain, the own disk or bucket: the node goes on
                        self._work.engine.health.note(error)
                        log.info("no audit at height %d: %s", view.height, error)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if self.accuser is not None:
                self.accuser.close()
            await self._links.close()

    async def _audit_round(self, height: Height) -> None:
        subject = await self._draw(height)
        if subject is None:
            return
        failed = await self._audit_leaves(subject)
        liars = await self._audit_folds(subject)
        if self.accuser is None:
            return
        num_asked = sum(seat.key != self._work.key for seat in subject.committee.seats[: subject.header.num_shards])
        if is_own_fault(len(failed), num_asked):
            return
        await self._ask_suspects_again(height)
        for liar in liars:
            leaf = await self._find_bad_leaf(subject, liar)
            if leaf is not None:
                failed.setdefault(liar.index, leaf)
        known = {(item.blob, item.shard) for item in self.accuser.suspicions}
        for seat, leaf in failed.items():
            if (subject.blob, seat) not in known:  # those were just asked for their own leaf
                self.accuser.note_failure(subject.blob, subject.committee.seats[seat].index, leaf, height)
        await self.accuser.act(height)

    async def _draw(self, height: Height) -> _Subject | None:
        """Return a random blob that is kept here and for long enough; None: none was hit."""
        work, start = self._work, self._chance.randbytes(34)
        held = await work.on_disk(lambda: work.engine.index.get_page(start, limit=1))
        held = held or await work.on_disk(lambda: work.engine.index.get_page(b"", limit=1))
        return await self._open(held[0].blob, height) if held else None

    async def _open(self, blob: BlobId, height: Height) -> _Subject | None:
        facts = await self._work.ask_facts(blob)
        if not facts.is_live or facts.release <= height + self._every_blocks:
            return None
        committee = await self._work.ask_committee(facts.epoch)
        try:
            header = decode_header(await self._work.on_disk(self._work.engine.get_header, blob))
        except (MalformedHeader, UnknownShard) as error:
            log.info("blob %s is not audited: %s", blob.hex(), error)
            return None
        if len(committee.seats) < header.num_shards:
            return None
        return _Subject(blob=blob, header=header, facts=facts, committee=committee)

    async def _audit_leaves(self, subject: _Subject) -> dict[int, int]:
        """Ask each other seat that signed for one random leaf; return seat -> leaf of those that failed."""
        seats = [
            seat
            for seat in subject.committee.seats[: subject.header.num_shards]
            if seat.key != self._work.key and subject.facts.signers >> seat.index & 1
        ]
        leaves = [self._chance.randrange(subject.num_leaves) for _ in seats]
        # All at once: one that stalls costs its deadline, and not that of each.
        answers = await asyncio.gather(*(self._ask_leaf(subject, *asked) for asked in zip(seats, leaves, strict=True)))
        return {seat.index: leaf for seat, leaf, is_good in zip(seats, leaves, answers, strict=True) if not is_good}

    async def _ask_leaf(self, subject: _Subject, seat: Seat, leaf: int) -> bool:
        """Tell whether a seat proves a leaf."""
        try:
            await fetch_leaf(
                self._links.get_session(),
                seat,
                subject.blob,
                subject.header,
                leaf,
                deadline_seconds=DEADLINE_SECONDS,
            )
        except SeatFailed as failure:
            self.counts.leaves_failed += 1
            self._blame(seat, subject.blob, failure.fault.reason)
            return False
        self.counts.leaves_good += 1
        return True

    async def _audit_folds(self, subject: _Subject) -> list[Seat]:
        """Ask all seats for the fold of their shard under fresh coefficients, and name the liars."""
        blob, header = subject.blob, subject.header
        nonce = self._chance.randbytes(NONCE_BYTES)
        seats = subject.committee.seats[: header.num_shards]
        answers = await asyncio.gather(*(self._get_fold(subject, seat, nonce) for seat in seats))
        folds = {int(seat.index): fold for seat, fold in zip(seats, answers, strict=True) if fold is not None}
        verdict = judge_folds(header, folds)
        if not verdict.is_certain:
            return []
        self.counts.folds_judged += 1
        self.counts.liars_named += len(verdict.liars)
        liars = [subject.committee.seats[liar] for liar in verdict.liars]
        for seat in liars:
            self._blame(seat, blob, "its fold is off the code that the others span")
        return [seat for seat in liars if seat.key != self._work.key]

    async def _get_fold(self, subject: _Subject, seat: Seat, nonce: bytes) -> bytes | None:
        """Return the fold of a seat's shard, of the own one too; None where there is none."""
        blob = subject.blob
        try:
            if seat.key == self._work.key:
                return await self._work.on_disk(fold_shard, self._work.engine, blob, seat.index, nonce)
            return await fetch_fold(
                self._links.get_session(), seat, blob, subject.header, nonce, deadline_seconds=DEADLINE_SECONDS
            )
        except UnknownShard:
            return None
        except (ShelfUnavailable, OSError) as error:
            log.warning("own shard %d of blob %s can't be read: %s", seat.index, blob.hex(), error)
        except SeatFailed as failure:
            log.info("no fold: %s", failure)
        return None

    async def _find_bad_leaf(self, subject: _Subject, seat: Seat) -> int | None:
        """Return a leaf that a liar can't prove; None: the bad ones are too few to be hit."""
        for _ in range(min(SEARCHED_LEAVES, subject.num_leaves)):
            leaf = self._chance.randrange(subject.num_leaves)
            if not await self._ask_leaf(subject, seat, leaf):
                return leaf
        return None

    async def _ask_suspects_again(self, height: Height) -> None:
        """Ask suspects for the leaf that they failed to show; who shows it is none any more."""
        assert self.accuser is not None, "without an accuser nobody is suspected"
        suspects = self.accuser.suspicions[:MAX_SUSPECTS]
        verdicts = await asyncio.gather(*(self._is_cleared(item, height) for item in suspects))
        for item, is_cleared in zip(suspects, verdicts, strict=True):
            if is_cleared:
                self.accuser.clear(item.blob, item.shard)
            else:
                self.accuser.note_failure(item.blob, item.shard, item.leaf, height)

    async def _is_cleared(self, item: Suspicion, height: Height) -> bool:
        """Tell whether a suspect shows the leaf that it failed to show, or need not any more."""
        subject = await self._open(item.blob, height)
        if subject is None or not subject.facts.signers >> item.shard & 1:
            return True
        return await self._ask_leaf(subject, subject.committee.seats[item.shard], item.leaf)

    def _blame(self, seat: Seat, blob: BlobId, reason: str) -> None:
        self.counts.faults[seat.url] += 1
        log.warning("audit of blob %s: seat %d (%s): %s", blob.hex(), seat.index, seat.url, reason)
