"""Rounds under the accumulator: what leaves, what stays, what proves it, and that the state stays bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from driver import Chain, Reverted, make_address, make_hash
from hypothesis import given
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from chain.core.accumulator import EMPTY_ACCUMULATOR, Accumulator, append, compute_root, is_member, prove
from chain.core.contracts.params import ContractParams
from chain.core.contracts.staking.keys import set_rules
from chain.core.hashing import sha256
from chain.core.rounds.archive import KEPT_ROUNDS, compute_leaf
from chain.core.state import Overlay

FINAL = 5
LONG = {"numFragments": 1, "overlap": 0, "checkpointInterval": 4, "numCheckpointParts": 1, "numRounds": 100_000}


class Disk:
    """What is committed: a map, as LMDB holds it, and the records that left it."""

    def __init__(self) -> None:
        self.pairs: SortedDict[bytes, bytes] = SortedDict()
        self.left: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self.pairs.get(key)
        return value

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(key, self.pairs[key]) for key in self.pairs.irange(start, stop, inclusive=(True, False))])

    def commit(self, chain: Chain) -> None:
        for key, value in chain.state.changes():
            if value is not None:
                self.pairs[key] = value
            elif key in self.pairs:
                self.left[key] = self.pairs.pop(key)
        chain.state = Overlay(self)


def play(chain: Chain, run: int, t: int, *names: str) -> None:
    for name in names:
        chain.commit(run, t, name)
    chain.advance()
    chain.attest(run, t, *names)
    chain.advance()
    assert chain.struct("Training", "round", run, t)["state"] == FINAL
    version = t + 1
    if version % 4 == 0:
        uploader = chain.view("Training", "checkpointPartOf", run, version)[0]
        chain.store_part(run, version, 0, sender=uploader)


def make_run(*names: str, rules: int = 2) -> tuple[Chain, int]:
    chain = Chain(num_nodes=1, params=ContractParams(rules=rules))
    run = chain.create_run(**LONG)
    chain.join(run, *names)
    chain.advance()
    return chain, run


def num_archived(chain: Chain, run: int) -> int:
    return int(chain.view("Training", "archive", run)[0])


def test_old_rounds_leave_and_new_ones_stay() -> None:
    chain, run = make_run("ann", "bob")
    for t in range(30):
        play(chain, run, t, "ann", "bob")
    chain.advance(3)
    archived = num_archived(chain, run)
    assert archived == 30 - KEPT_ROUNDS
    for t in range(archived):
        for view in ("round", "updates", "votes", "participants"):
            with pytest.raises(Reverted) as gone:
                chain.view("Training", view, run, t)
            assert (gone.value.name, gone.value.values) == ("RoundArchived", (run, t, archived))
        with pytest.raises(Reverted, match="RoundArchived"):
            chain.view("Training", "update", run, t, make_address("ann"))
        if t:
            with pytest.raises(Reverted, match="RoundArchived"):
                chain.view("Training", "root", run, t)
        with pytest.raises(Reverted, match="RoundArchived"):
            chain.call("Training", "attest", run, t, 0, make_hash("r"), 0, 0, 0, sender="ann")
    assert chain.view("Training", "root", run, 0) == make_hash("genesis")
    for t in range(archived, 30):
        assert chain.struct("Training", "round", run, t)["state"] == FINAL
        assert len(chain.structs("Training", "updates", run, t)) == 2
    assert chain.struct("Training", "member", run, make_address("ann"))["accepted"] == 30


def test_rounds_that_newcomers_need_stay() -> None:
    """Without a newer certified checkpoint nothing leaves, however old: joiners replay from it."""
    chain = Chain(num_nodes=1)
    run = chain.create_run(**{**LONG, "checkpointInterval": 20})
    chain.join(run, "ann")
    chain.advance()
    for t in range(40):
        chain.commit(run, t, "ann")
        chain.advance()
        chain.attest(run, t, "ann")
        chain.advance()
    assert num_archived(chain, run) == 0
    chain.store_part(run, 20, 0, sender="ann")
    chain.advance(20)
    assert num_archived(chain, run) == 20


def test_the_accumulator_proves_a_round_s_records() -> None:
    chain, run = make_run("ann", "bob")
    disk = Disk()
    for t in range(28):
        play(chain, run, t, "ann", "bob")
        disk.commit(chain)
    chain.advance(3)
    disk.commit(chain)
    length, root, peaks = chain.view("Training", "archive", run)
    assert length == 28 - KEPT_ROUNDS
    kept = Accumulator(length=length, peaks=tuple(peaks))
    assert compute_root(kept) == root

    def record(prefix: bytes, t: int, tail: bytes = b"") -> bytes:
        return disk.left[prefix + run.to_bytes(8, "big") + t.to_bytes(8, "big") + tail]

    leaves = []
    for t in range(length):
        updates = [record(b"t/u", t, bytes([position])) for position in (0, 1)]
        votes = [(position, record(b"t/v", t, bytes([position]))) for position in (0, 1)]
        leaves.append(compute_leaf(t, record(b"t/o", t), record(b"t/V", t), updates, votes))
    for t, leaf in enumerate(leaves):
        siblings = prove(leaves, t)
        assert is_member(kept, t, leaf, siblings)
        assert not is_member(kept, t + 1, leaf, siblings)
        assert not is_member(kept, t, sha256(leaf), siblings)


def test_archiving_begins_with_its_rules_and_catches_up() -> None:
    chain, run = make_run("ann", rules=1)
    for t in range(40):
        play(chain, run, t, "ann")
    assert num_archived(chain, run) == 0
    assert len(chain.structs("Training", "updates", run, 0)) == 1
    set_rules(chain.state, 2)
    play(chain, run, 40, "ann")
    chain.advance(20)
    assert num_archived(chain, run) == 41 - KEPT_ROUNDS


def test_a_vote_for_an_earlier_attempt_is_refused() -> None:
    chain, run = make_run("ann", "bob", "cem")
    for name in ("ann", "bob", "cem"):
        chain.commit(run, 0, name)
    chain.advance()
    for name in ("ann", "bob"):
        chain.call("Training", "reportMissing", run, 0, 0, 0b100, sender=name)
    chain.advance(31)
    assert chain.struct("Training", "round", run, 0)["retries"] == 1
    for function, arguments in (("attest", (make_hash("of the old A"), 0, 0, 0)), ("reportMissing", (0b100,))):
        for attempt in (0, 2, 2**32 - 1):
            with pytest.raises(Reverted) as stale:
                chain.call("Training", function, run, 0, attempt, *arguments, sender="cem")
            assert (stale.value.name, stale.value.values) == ("StaleAttempt", (1, attempt))
    chain.attest(run, 0, "ann", "bob", "cem", root=make_hash("without cem's"))
    chain.advance()
    assert chain.struct("Training", "round", run, 0)["state"] == FINAL


def test_the_escrow_of_an_abandoned_run_is_reclaimed() -> None:
    chain, run = make_run("ann")
    play(chain, run, 0, "ann")
    with pytest.raises(Reverted, match="WrongRunState"):
        chain.call("Training", "reclaim", run, sender="owner")
    chain.call("Training", "pause", run, sender="owner")
    chain.advance(121)  # the open round ends by its timer
    info = chain.struct("Training", "run", run)
    assert (info["state"], info["numSettled"], info["numOpened"]) == (4, 2, 2)
    with pytest.raises(Reverted) as early:
        chain.call("Training", "reclaim", run, sender="owner")
    assert early.value.name == "ReclaimTooEarly"
    chain.advance(early.value.values[0] - chain.height)
    with pytest.raises(Reverted, match="NotOwner"):
        chain.call("Training", "reclaim", run, sender="ann")
    before = chain.balance("owner")
    chain.call("Training", "reclaim", run, sender="owner")
    assert chain.balance("owner") == before + info["escrow"]
    assert chain.struct("Training", "run", run)["escrow"] == 0
    with pytest.raises(Reverted, match="EscrowTooSmall"):
        chain.call("Training", "reclaim", run, sender="owner")
    assert chain.total_money() == chain.minted

    chain.call("Training", "fund", run, sender="owner", value=10**18)
    chain.call("Training", "resume", run, sender="owner")
    chain.advance()
    assert chain.struct("Training", "run", run)["state"] == 2
    play(chain, run, 2, "ann")


def test_a_run_without_members_is_reclaimed() -> None:
    chain = Chain(num_nodes=1)
    run = chain.create_run(**LONG)
    chain.advance(20 * 120 + 200 + 1)
    before = chain.balance("owner")
    chain.call("Training", "reclaim", run, sender="owner")
    assert chain.balance("owner") > before


@pytest.mark.parametrize("num_rounds", [2_400, pytest.param(10_000, marks=pytest.mark.soak)])
def test_thousands_of_rounds_leave_the_state_bounded(num_rounds: int) -> None:
    """Case 29: what a run keeps is reached after 1,700 rounds, and never grows from there."""
    chain = Chain(num_nodes=1)
    run = chain.create_run(**LONG)
    chain.join(run, "ann")
    chain.advance()
    disk = Disk()
    sizes: dict[int, Counter[bytes]] = {}
    for t in range(num_rounds):
        play_alone(chain, run, t)
        if t % 16 == 15:
            disk.commit(chain)
            disk.left.clear()
        if t + 1 in (1_800, num_rounds):
            disk.commit(chain)
            sizes[t + 1] = Counter(key[:3] for key in disk.pairs)
    grown = {prefix: sizes[num_rounds][prefix] - sizes[1_800][prefix] for prefix in sizes[num_rounds]}
    assert all(abs(number) <= 8 for number in grown.values()), grown
    assert sum(number for prefix, number in sizes[num_rounds].items() if prefix[:2] == b"t/") < 1_500


def play_alone(chain: Chain, run: int, t: int) -> None:
    chain.commit(run, t, "ann")
    chain.advance()
    chain.call("Training", "attest", run, t, 0, make_hash(t), 0, 0, 0, sender="ann")
    chain.advance()
    if (t + 1) % 8 == 0:
        chain.call("Training", "recordEvaluation", run, t + 1, 5, sender="ann")
    if (t + 1) % 4 == 0:
        chain.store_part(run, t + 1, 0, sender="ann")


# -- the accumulator

LEAVES = st.integers(1, 70).map(lambda count: [sha256(bytes([index])) for index in range(count)])


def build(leaves: list[bytes]) -> Accumulator:
    accumulator = EMPTY_ACCUMULATOR
    for leaf in leaves:
        accumulator = append(accumulator, leaf)
    return accumulator


@given(LEAVES, st.data())
def test_every_leaf_is_a_member_and_nothing_else(leaves: list[bytes], data: Any) -> None:
    accumulator = build(leaves)
    assert len(accumulator.peaks) == len(leaves).bit_count()
    index = data.draw(st.integers(0, len(leaves) - 1))
    siblings = prove(leaves, index)
    assert is_member(accumulator, index, leaves[index], siblings)
    other = data.draw(st.integers(-2, len(leaves) + 2))
    if other != index:
        assert not is_member(accumulator, other, leaves[index], siblings)
    assert not is_member(accumulator, index, bytes(32), siblings)
    assert not is_member(accumulator, index, leaves[index], [*siblings, bytes(32)])
    if siblings:
        assert not is_member(accumulator, index, leaves[index], siblings[:-1])
        assert not is_member(accumulator, index, leaves[index], [bytes(32), *siblings[1:]])


@given(LEAVES, LEAVES)
def test_different_lists_have_different_roots(first: list[bytes], second: list[bytes]) -> None:
    assert (compute_root(build(first)) == compute_root(build(second))) == (first == second)


def test_known_answers() -> None:
    leaf = compute_leaf(3, b"round", b"participants", [b"u0", b"u1"], [(1, b"vote")])
    assert leaf.hex() == "907074cad4489fde440221368f343cfd78dcb8d9d046d69dace7b288326ba80d"
    assert compute_root(EMPTY_ACCUMULATOR).hex() == EMPTY_ROOT
    assert compute_root(build([sha256(bytes([index])) for index in range(11)])).hex() == ELEVEN_ROOT


EMPTY_ROOT = "3730d583c47bae998c92f990d03e48e987ee0517587745af2134d65d86056027"
ELEVEN_ROOT = "b92457e1c186da780fe53e4e5ca8f832044cb25ec36d5b49225ac46746e3771b"
