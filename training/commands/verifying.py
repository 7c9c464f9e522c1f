"""``trainer status --verify``: what a node says of a run, against what the validators have signed.

The run's record, and the worker's, are read through a light client (chain/SPEC.md, *Proofs*), and the node's own
answer must agree with them.  Invariant: what is printed as verified was proved against a header that more than two
thirds of the validators have signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chain.core.errors import ChainError
from chain.verified_reads import VerifiedRun, connect, load_genesis_file, read_run
from contracts.bindings.types import Member, RunInfo
from training.worker.errors import Fatal

NEXT_STEP = "ask another node with --chain, and give the genesis.json of somebody you trust with --genesis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was proved."""

    height: int
    """Block after which it holds."""
    header_hash: str
    """Of the block that carries the proof's app hash."""
    chain_id: str
    """CometBFT's."""
    num_validators: int
    """In the set that signed."""
    head_version: int
    """Settled rounds."""
    head_root: str
    """Root of the agreed state after them."""
    certified_version: int
    """Newest certified checkpoint."""
    accepted: int | None
    """The worker's accepted updates; None where no worker was asked for."""
    is_genesis_trusted: bool
    """False: the genesis is the nodes' word."""


def verify_status(chains: Sequence[str], info: RunInfo, member: Member | None, *, genesis: Path | None) -> Verification:
    """Prove a run's and a member's record, and compare; raises Fatal."""
    try:
        client = connect(chains, genesis=load_genesis_file(genesis) if genesis is not None else None)
        worker = bytes.fromhex(member.worker.removeprefix("0x")) if member is not None else None
        proved = read_run(client, info.run, worker)
    except ChainError as error:
        raise Fatal(f"not verified: {error}", next_step=NEXT_STEP) from error
    _compare(info, member, proved)
    return Verification(
        height=proved.height,
        header_hash=proved.header_hash.hex(),
        chain_id=client.chain_id,
        num_validators=len(client.trusted.validators),
        head_version=proved.run.num_settled,
        head_root=proved.run.head_root.hex(),
        certified_version=proved.run.certified_version,
        accepted=proved.member.accepted if proved.member is not None else None,
        is_genesis_trusted=genesis is not None,
    )


def describe_verification(found: Verification) -> list[tuple[str, str]]:
    """Return what is printed of it."""
    pairs = [
        ("proved at block", f"{found.height}, signed by more than two thirds of {found.num_validators} validators"),
        ("header", found.header_hash),
        ("settled rounds", str(found.head_version)),
        ("head root", found.head_root),
        ("certified", f"version {found.certified_version}"),
    ]
    if found.accepted is not None:
        pairs.append(("accepted updates", str(found.accepted)))
    if not found.is_genesis_trusted:
        pairs.append(("trust", "the genesis is these nodes' word: give --genesis to depend on none of them"))
    return pairs


def _compare(info: RunInfo, member: Member | None, proved: VerifiedRun) -> None:
    """Refuse a node that says other than was proved; rounds may have settled between the two reads."""
    run = proved.run
    if (info.genesis_root, info.recipe_digest) != (run.genesis_root, run.recipe_digest):
        raise Fatal(f"the node lies about run {info.run}'s recipe or genesis", next_step=NEXT_STEP)
    if info.num_settled > run.num_settled:
        raise Fatal(
            f"the node says {info.num_settled} rounds have settled, {run.num_settled} are proved", next_step=NEXT_STEP
        )
    if info.num_settled == run.num_settled and info.head_root != run.head_root:
        raise Fatal(f"the node says root {info.head_root.hex()}, {run.head_root.hex()} is proved", next_step=NEXT_STEP)
    if member is not None and (proved.member is None or member.accepted > proved.member.accepted):
        raise Fatal(f"the node says more of {member.worker}'s updates than is proved", next_step=NEXT_STEP)
