"""Reads of accounts, runs and members through a light client, for people (SPEC.md, Proofs)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.core.abi.refusal import Refusal
from chain.core.accounts import get_account
from chain.core.accumulator import Accumulator
from chain.core.light import LightError, compute_header_hash
from chain.core.rounds.archive import ArchivedRound, decode_archived, is_archived_record
from chain.core.rounds.book import RunBook
from chain.core.rounds.records import Member, Run
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Height
from chain.light_client import JsonRpcSource, LightClient, Source, SourceFailed, VerifiedState

_UNUSED_SEED = bytes(32)
_MAX_ASKED = 50
"""Times that a node is asked while it computes its archive: 50,000 rounds."""


class GenesisDisagrees(LightError):
    """Nodes were asked for the genesis, and told different ones."""

    def __init__(self, first: str, other: str) -> None:
        """Keep both addresses."""
        super().__init__(
            f"{first} and {other} have different genesis files; next: get it from somebody you trust, give --genesis"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRun:
    """A run, and a worker's place in it, as the validators have signed them."""

    height: int
    """Block after which it holds."""
    header_hash: bytes
    """Of the block that carries the app hash."""
    run: Run
    """The record in the state."""
    member: Member | None
    """None where the worker never joined, or none was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedAccount:
    """An account as the validators have signed it."""

    height: int
    header_hash: bytes
    nonce: int
    balance: int
    """Wei."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRound:
    """A round as the validators have signed it, or the archive that they have signed."""

    height: int
    """Block after which it holds."""
    header_hash: bytes
    """Of the block that carries the app hash."""
    run: int
    archived: ArchivedRound
    """Its records."""
    is_archived: bool
    """Whether it has left the state."""


class WrongRecord(LightError):
    """A node gave a record that is not under the run's archive."""

    def __init__(self, url: str, run: int, t: int) -> None:
        """Keep the address."""
        super().__init__(
            f"{url} lies about round {t} of run {run}: its record is not under the archive; next: ask another node"
        )
        self.url = url


def load_genesis_file(path: Path) -> dict[str, Any]:
    """Read a genesis.json; raises LightError."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LightError(f"genesis {path} can't be read: {error}") from error
    return document


def fetch_genesis(sources: Sequence[Source]) -> dict[str, Any]:
    """Take the word of all sources, which must agree, for the genesis; raises LightError."""
    documents = [source.ask("genesis", {})["genesis"] for source in sources]
    for source, document in zip(sources, documents, strict=True):
        if document != documents[0]:
            raise GenesisDisagrees(sources[0].url, source.url)
    found: dict[str, Any] = documents[0]
    return found


def connect(
    urls: Sequence[str], *, genesis: Mapping[str, Any] | None = None, trust_height: int = 0, trust_hash: str = ""
) -> LightClient:
    """Return a light client over nodes' JSON-RPC; the first is asked, all must agree on an unknown genesis."""
    sources = [JsonRpcSource(url) for url in urls]
    return LightClient(
        sources[0],
        genesis=genesis if genesis is not None else fetch_genesis(sources),
        trust_height=trust_height,
        trust_hash=bytes.fromhex(trust_hash),
    )


def read_run(client: LightClient, run: int, worker: bytes | None = None) -> VerifiedRun:
    """Read a run's record, and a worker's; raises LightError, also for a run that isn't there."""
    state = VerifiedState(client)
    turn = Turn(state=Overlay(state), height=Height(0), seed=_UNUSED_SEED, genesis_hash=_UNUSED_SEED)
    try:
        book = RunBook(turn, run)
    except Refusal as refusal:
        raise LightError(f"there is no run {run} after block {state.height}, and that is proved") from refusal
    height, header_hash = state.height, compute_header_hash(client.trusted.header)
    member = book.get_member(Address(worker)) if worker is not None else None
    return VerifiedRun(height=height, header_hash=header_hash, run=book.run, member=member)


def read_round(client: LightClient, source: JsonRpcSource, run: int, t: int) -> VerifiedRound:
    """Read a settled round, also one that has left the state; raises LightError.

    One that is archived comes from ``source``, which may lie: its record is checked against the run's accumulator.
    """
    state = VerifiedState(client)
    turn = Turn(state=Overlay(state), height=Height(0), seed=_UNUSED_SEED, genesis_hash=_UNUSED_SEED)
    try:
        book = RunBook(turn, run)
        accumulator = book.get_accumulator()
        if t < accumulator.length:
            found = decode_archived(fetch_record(source, accumulator, run, t))
        else:
            found = _collect_round(book, t)
    except Refusal as refusal:
        raise LightError(f"run {run} has no round {t} after block {state.height}, and that is proved") from refusal
    return VerifiedRound(
        height=state.height,
        header_hash=compute_header_hash(client.trusted.header),
        run=run,
        archived=found,
        is_archived=t < accumulator.length,
    )


def _collect_round(book: RunBook, t: int) -> ArchivedRound:
    """Read the records of a round in the state, each with its proof."""
    round_ = book.round(t)
    workers = book.get_participants(t)
    return ArchivedRound(
        round=round_,
        participants=workers,
        updates=tuple((workers[position], book.get_update(t, position)) for position in round_.order),
        votes=tuple((workers[position], book.get_vote(t, position)) for position in round_.voters),
    )


def fetch_record(source: JsonRpcSource, accumulator: Accumulator, run: int, t: int) -> bytes:
    """Return the record of a round that has left the state, once it is under ``accumulator``; raises LightError."""
    for _ in range(_MAX_ASKED):
        try:
            answer = source.ask_node("archipelago_archivedRound", [hex(run), hex(t), hex(accumulator.length)])
            break
        except SourceFailed as failed:
            if "ask again" not in str(failed):
                raise
    else:
        raise SourceFailed(source.url, f"computes the archive of run {run} still: ask again in a while")
    try:
        record = bytes.fromhex(answer["record"][2:])
        siblings = [bytes.fromhex(sibling[2:]) for sibling in answer["siblings"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SourceFailed(source.url, f"no record in its answer: {error}") from error
    if not is_archived_record(accumulator, t, record, siblings):
        raise WrongRecord(source.url, run, t)
    return record


def read_account(client: LightClient, address: bytes) -> VerifiedAccount:
    """Read an account; raises LightError."""
    state = VerifiedState(client)
    nonce, balance = get_account(state, Address(address))
    header_hash = compute_header_hash(client.trusted.header)
    return VerifiedAccount(height=state.height, header_hash=header_hash, nonce=nonce, balance=balance)
