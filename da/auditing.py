"""Asking seats to prove what they keep: leaves, folds of whole shards, light clients' sampling (da/core/audits.py)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from da.core.audits import compute_miss, decode_leaf_answer, make_audit_seed
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import (
    BadProof,
    FaultKind,
    MalformedMessage,
    MalformedProof,
    SeatFailed,
    SeatFault,
    TooManyErrors,
)
from da.core.merkle import compute_num_leaves, verify_proof
from da.core.types import BlobId, Committee, Seat
from da.protocol import decode_refusal, shard_path
from da.seat_faults import fail, guard
from da.words import correct_word

LEAF_SUFFIX = "/leaves/{leaf}"
"""GET below a shard's path: the leaf with its Merkle path."""

FOLD_SUFFIX = "/fold"
"""GET below a shard's path, with ?nonce= 64 hex digits: the fold of the shard."""

MAX_ANSWER_BYTES = (1 << 20) + 4096
"""A leaf of 1 MiB with its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the folds of a blob's seats say together."""

    liars: tuple[int, ...]
    """Seats whose fold is off the code that the others span."""
    is_certain: bool
    """False: too many are wrong or missing, the code can't tell who."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a light client saw."""

    num_good: int
    """Leaves that verified."""
    faults: tuple[SeatFault, ...]
    """Samples that failed."""
    miss: tuple[int, int]
    """How probably a blob that can't be read looks like this, where all are good: a fraction."""

    @property
    def detection(self) -> float:
        """How probably so many samples find a blob that can't be read, 0 .. 1."""
        return 1 - self.miss[0] / self.miss[1]


async def fetch_leaf(
    session: aiohttp.ClientSession,
    seat: Seat,
    blob: BlobId,
    header: BlobHeader,
    leaf: int,
    *,
    deadline_seconds: float,
) -> bytes:
    """Get one leaf of the seat's shard, checked against its root.

    Raises:
        SeatFailed: no leaf, or not this one.
    """
    path = shard_path(blob, seat.index) + LEAF_SUFFIX.format(leaf=leaf)
    answer = await fetch_answer(session, seat, path, deadline_seconds)
    try:
        data, proof = decode_leaf_answer(answer)
        if proof.leaf_index != leaf or proof.leaf_bytes != header.leaf_bytes:
            raise BadProof(f"leaf {proof.leaf_index} of {proof.leaf_bytes} bytes, asked for leaf {leaf}")
        if proof.size_bytes != compute_shard_bytes(header.size_bytes, header.num_data):
            raise BadProof(f"a shard of {proof.size_bytes} bytes")
        verify_proof(header.shard_roots[seat.index], data, proof)
    except (MalformedMessage, MalformedProof, BadProof) as error:
        raise fail(seat, FaultKind.BAD_SHARD, f"leaf {leaf}: {error}") from error
    return data


async def fetch_fold(
    session: aiohttp.ClientSession,
    seat: Seat,
    blob: BlobId,
    header: BlobHeader,
    nonce: bytes,
    *,
    deadline_seconds: float,
) -> bytes:
    """Get the fold of the seat's shard under an audit's coefficients; it is judged with the others'.

    Raises:
        SeatFailed: no fold.
    """
    answer = await fetch_answer(
        session, seat, f"{shard_path(blob, seat.index)}{FOLD_SUFFIX}?nonce={nonce.hex()}", deadline_seconds
    )
    expected = make_audit_seed(blob, nonce, header.num_shards).num_folds
    if len(answer) != expected:
        raise fail(seat, FaultKind.BAD_SHARD, f"a fold of {len(answer)} bytes, expected {expected}")
    return answer


def judge_folds(header: BlobHeader, folds: Mapping[int, bytes]) -> Verdict:
    """Name the seats whose fold is wrong; with e seats missing up to (n - k - e) / 2 can be named."""
    missing = tuple(seat for seat in range(header.num_shards) if seat not in folds)
    if len(folds) <= header.num_data:
        return Verdict(liars=(), is_certain=False)
    liars: set[int] = set()
    for column in range(min(len(fold) for fold in folds.values())):
        word = bytes(folds[seat][column] if seat in folds else 0 for seat in range(header.num_shards))
        try:
            liars.update(correct_word(word, num_data=header.num_data, missing=missing).errors)
        except TooManyErrors:
            return Verdict(liars=(), is_certain=False)
    if len(missing) + 2 * len(liars) > header.num_shards - header.num_data:
        return Verdict(liars=(), is_certain=False)
    return Verdict(liars=tuple(sorted(liars)), is_certain=True)


async def sample_blob(
    session: aiohttp.ClientSession,
    blob: BlobId,
    header: BlobHeader,
    committee: Committee,
    *,
    num_samples: int,
    chance: random.Random,
    deadline_seconds: float,
) -> Sampling:
    """Ask random seats for a random leaf each, as a light client does that never fetches a shard."""
    seats: Sequence[Seat] = chance.sample(committee.seats[: header.num_shards], min(num_samples, header.num_shards))
    num_leaves = compute_num_leaves(compute_shard_bytes(header.size_bytes, header.num_data), header.leaf_bytes)
    faults = []
    for seat in seats:
        leaf = chance.randrange(num_leaves)
        try:
            await fetch_leaf(session, seat, blob, header, leaf, deadline_seconds=deadline_seconds)
        except SeatFailed as failure:
            faults.append(failure.fault)
    return Sampling(
        num_good=len(seats) - len(faults),
        faults=tuple(sorted(faults, key=lambda fault: fault.seat)),
        miss=compute_miss(header.num_shards, header.num_data, len(seats)),
    )


async def fetch_answer(
    session: aiohttp.ClientSession,
    seat: Seat,
    path: str,
    deadline_seconds: float,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> bytes:
    """Get a path of a seat, whole; raises ``SeatFailed``, also for more than ``max_bytes``."""
    async with (
        guard(seat, deadline_seconds),
        session.get(seat.url.rstrip("/") + path, allow_redirects=False) as response,
    ):
        answer = bytearray()
        async for chunk in response.content.iter_any():
            answer += chunk
            if len(answer) > max_bytes:
                raise fail(seat, FaultKind.REFUSED, f"{response.status} with more than {max_bytes} bytes")
        if response.status != 200:
            raise fail(seat, FaultKind.REFUSED, decode_refusal(response.status, bytes(answer)))
        return bytes(answer)
