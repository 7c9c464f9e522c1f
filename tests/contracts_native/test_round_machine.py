"""Parts of the round machine by themselves: timers, reveals, medians, steps, seeds of hash order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver import GENESIS_HASH, Chain, Reverted, make_address, make_hash, run_params
from hypothesis import given
from hypothesis import strategies as st

from chain.core.rounds.bitmaps import compute_full, iterate_bits
from chain.core.rounds.book import DUE_PREFIX
from chain.core.rounds.params import compute_steps
from chain.core.rounds.records import RunParams
from chain.core.rounds.running import process_create
from chain.core.rounds.seeds import compute_key_commitment
from chain.core.rounds.settling import compute_median_step
from chain.core.rounds.timers import MAX_RUNS_A_BLOCK
from chain.core.turn import Turn
from chain.core.types import Height, Root


def make_params(**changes: object) -> RunParams:
    return RunParams(**dict(zip(RunParams.__dataclass_fields__, run_params(**changes), strict=True)))


def create_sealed_run(chain: Chain) -> int:
    """The contract refuses sealed runs for now; the machine knows them."""
    owner = chain.fund("owner")
    turn = Turn(state=chain.state, height=Height(chain.height), seed=chain.seed, genesis_hash=GENESIS_HASH)
    params = make_params(isSealed=True, numFragments=1, overlap=0)
    book = process_create(turn, owner, params, b"", Root(make_hash("g")), 0)
    book.touch()
    run = book.run.run
    chain.call("Training", "fund", run, sender="owner", value=10**18)
    for part in range(2):
        chain.store_part(run, 0, part, sender="owner")
    chain.advance()
    return run


def sealed_commit(chain: Chain, run: int, t: int, name: str) -> bytes:
    key = make_hash(("key", name, t))
    digest = compute_key_commitment(GENESIS_HASH, run, t, make_address(name), key)
    base = chain.struct("Training", "round", run, t)["baseRoot"]
    certificate = chain.certificate(make_hash(("sealed", name, t)))
    chain.call("Training", "commit", run, t, base, digest, certificate, 0, 0, sender=name)
    return key


def test_sealed_rounds_wait_for_keys_and_time_out(chain: Chain) -> None:
    run = create_sealed_run(chain)
    chain.join(run, "ann", "bob")
    chain.advance()
    keys = {name: sealed_commit(chain, run, 0, name) for name in ("ann", "bob")}
    chain.advance()
    assert chain.struct("Training", "round", run, 0)["state"] == 2
    with pytest.raises(Reverted) as wrong:
        chain.call("Training", "reveal", run, 0, keys["bob"], sender="ann")
    assert wrong.value.name == "WrongKey"
    chain.call("Training", "reveal", run, 0, keys["ann"], sender="ann")
    with pytest.raises(Reverted, match="AlreadyRevealed"):
        chain.call("Training", "reveal", run, 0, keys["ann"], sender="ann")
    chain.advance(9)
    assert chain.struct("Training", "round", run, 0)["state"] == 2
    chain.advance()
    assert chain.struct("Training", "round", run, 0)["state"] == 3
    chain.attest(run, 0, "ann", "bob", root=make_hash("r"))
    chain.advance()
    bob = chain.struct("Training", "update", run, 0, make_address("bob"))
    assert (bob["fate"], bob["reason"]) == (3, 4)
    assert chain.struct("Training", "round", run, 0)["numAccepted"] == 1
    # nobody reveals: void
    for name in ("ann", "bob"):
        sealed_commit(chain, run, 1, name)
    chain.advance(12)
    assert chain.struct("Training", "round", run, 1)["state"] == 6
    assert chain.events("RoundVoided")[-1]["reason"] == 2


def test_many_runs_due_at_once_are_moved_in_turn() -> None:
    chain = Chain(num_nodes=0)
    num_runs = MAX_RUNS_A_BLOCK + 6
    for _ in range(num_runs):
        chain.call("Training", "createRun", run_params(), b"", make_hash("g"), sender="owner")

    def num_due() -> int:
        return len(list(chain.state.iterate(DUE_PREFIX, DUE_PREFIX[:-1] + b"e")))

    assert num_due() == num_runs
    chain.advance()
    assert num_due() == num_runs - MAX_RUNS_A_BLOCK
    chain.advance()
    assert num_due() == 0


@given(st.integers(0, 300))
def test_bitmaps_list_their_members(bitmap: int) -> None:
    assert sum(1 << index for index in iterate_bits(bitmap)) == bitmap
    assert list(iterate_bits(compute_full(5))) == [0, 1, 2, 3, 4]


@given(steps=st.integers(1, 10_000), fragments=st.integers(1, 32), rounds=st.integers(1, 200))
def test_each_tensor_gets_h_steps_a_cycle_and_flush_rounds_none(steps: int, fragments: int, rounds: int) -> None:
    params = make_params(numFragments=fragments, numRounds=rounds)
    for start in range(0, rounds - fragments + 1):
        assert sum(compute_steps(t, steps, params) for t in range(start, start + fragments)) == steps
    assert all(compute_steps(rounds + t, steps, params) == 0 for t in range(fragments))


@given(current=st.integers(1, 10_000), proposals=st.lists(st.integers(1, 2**31), min_size=1, max_size=20))
def test_median_moves_at_most_a_tenth(current: int, proposals: list[int]) -> None:
    moved = compute_median_step(current, proposals)
    assert abs(moved - current) <= max(1, current // 10)
    assert moved >= 1
    assert compute_median_step(0, proposals) in proposals
    assert compute_median_step(current, []) == current
    if len(set(proposals)) == 1 and abs(proposals[0] - current) <= max(1, current // 10):
        assert moved == proposals[0]


_DIGEST = """
import sys
sys.path.insert(0, sys.argv[1])
from simulator import play_history
from da.core.hashing import compute_digest
world = play_history(5, fragments=4, overlap=1, blocks=60)
print(compute_digest(repr(world.state.changes()).encode()).hex(), len(world.events))
"""


def test_hash_order_decides_nothing() -> None:
    """Case 44: the same history in two processes with different PYTHONHASHSEED."""
    here = str(Path(__file__).parent)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert int(outputs.pop().split()[1]) > 20
