"""What the chain drew for a round, however old it is: the data seed and the participants.

A node that has executed a run's blocks shows all its rounds.  One that began from a snapshot refuses those that had
left the state by then (``RoundArchived``); their record comes from any of the nodes given.  Invariant: a record is
believed only where it is under the run's archive, as the node that answers the views has it (chain/SPEC.md, *Proofs*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chain.core.accumulator import Accumulator
from chain.core.errors import ChainError
from chain.core.rounds.archive import decode_archived
from chain.light_client import JsonRpcSource
from chain.verified_reads import fetch_record
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ContractError
from contracts.bindings.failures import SEPARATOR
from training.commands.asking import fetch_run
from training.worker.errors import Fatal


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRound:
    """Whose samples of which places a round's are."""

    data_seed: bytes
    """32 bytes, drawn when the round opened."""
    participants: tuple[bytes, ...]
    """V(t), 20 bytes each."""
    num_archived: int | None
    """Rounds under the archive that the record was checked against; None where the views showed the round."""


def fetch_drawn_round(client: ChainClient, chains: Sequence[str], run: int, t: int) -> DrawnRound:
    """Read a round of a run; raises Fatal where there is none, or no node given has it any more."""
    num_opened = fetch_run(client, run).num_opened
    if t >= num_opened:
        have = f"rounds 0 to {num_opened - 1} have" if num_opened else "none has yet"
        step = f"name an earlier --round, or wait: trainer watch --run {run}"
        raise Fatal(f"round {t} of run {run} has not opened, {have}", next_step=step)
    try:
        data_seed = client.training.round(run, t).data_seed
        participants = tuple(bytes.fromhex(each[2:]) for each in client.training.participants(run, t))
    except ContractError as error:
        if error.name != "RoundArchived":
            raise
        return _fetch_archived(client, chains, run, t)
    return DrawnRound(data_seed=data_seed, participants=participants, num_archived=None)


def _fetch_archived(client: ChainClient, chains: Sequence[str], run: int, t: int) -> DrawnRound:
    num_archived, _, peaks = client.training.archive(run)
    accumulator = Accumulator(length=num_archived, peaks=tuple(peaks))
    reasons = []
    for url in chains:
        try:
            archived = decode_archived(fetch_record(JsonRpcSource(url), accumulator, run, t))
        except ChainError as error:
            reasons.append(str(error).partition(SEPARATOR)[0])
            continue
        participants = tuple(bytes(worker) for worker in archived.participants)
        return DrawnRound(data_seed=archived.round.data_seed, participants=participants, num_archived=num_archived)
    raise Fatal(
        f"round {t} of run {run} has left the state, which keeps those from {num_archived} on, and no node given has "
        f"its record ({'; '.join(reasons)})",
        next_step="add --chain URL of a node that has executed all blocks of the run, not begun from a snapshot",
    )
