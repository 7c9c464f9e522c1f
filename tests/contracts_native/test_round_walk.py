"""One run walked through by name, and the table of DESIGN 4.1 row by row, on the real contract."""

from __future__ import annotations

from typing import Any

import pytest
from driver import Chain, Reverted, make_address, make_hash

OPEN, REVEAL, ATTEST, DISPUTE, FINAL, VOID = 1, 2, 3, 4, 5, 6
CREATED, RUNNING, WAITING, PAUSED, FINISHED = 1, 2, 3, 4, 5
JOINED, READY, ACTIVE, DROPPED, LEFT = 1, 2, 3, 4, 5


def round_of(chain: Chain, run: int, t: int) -> dict[str, Any]:
    return chain.struct("Training", "round", run, t)


def run_of(chain: Chain, run: int) -> dict[str, Any]:
    return chain.struct("Training", "run", run)


def member_of(chain: Chain, run: int, name: str) -> dict[str, Any]:
    return chain.struct("Training", "member", run, make_address(name))


def play_round(chain: Chain, run: int, t: int, *names: str) -> None:
    for name in names:
        chain.commit(run, t, name)
    chain.advance()
    chain.attest(run, t, *names)
    chain.advance()
    assert round_of(chain, run, t)["state"] == FINAL


def store_checkpoint(chain: Chain, run: int, version: int) -> None:
    uploaders = chain.view("Training", "checkpointPartOf", run, version)
    for part, uploader in enumerate(uploaders):
        chain.store_part(run, version, part, sender=uploader)


def test_three_members_one_late_one_crashing_a_fourth_joining(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0, checkpointInterval=2)
    assert run_of(chain, run)["state"] == WAITING
    chain.join(run, "ann", "bob", "cem")
    chain.advance()
    assert run_of(chain, run)["state"] == RUNNING
    for t in range(5):
        play_round(chain, run, t, "ann", "bob", "cem")
        if (t + 1) % 2 == 0:
            store_checkpoint(chain, run, t + 1)
    assert run_of(chain, run)["certifiedVersion"] == 4

    # round 5: cem is late; the round closes grace blocks after two thirds of L, and he may still send in grace
    chain.commit(run, 5, "ann")
    chain.commit(run, 5, "bob")
    chain.advance()
    assert round_of(chain, run, 5)["state"] == OPEN
    grace_end = round_of(chain, run, 5)["dueHeight"]
    assert grace_end == chain.height - 1 + 10
    while chain.height < grace_end:
        chain.advance()
    assert round_of(chain, run, 5)["state"] == OPEN
    chain.advance()
    assert round_of(chain, run, 5)["state"] == ATTEST
    with pytest.raises(Reverted) as late:
        chain.commit(run, 5, "cem")
    assert (late.value.name, late.value.values) == ("WrongRoundState", (OPEN, ATTEST))
    chain.attest(run, 5, "ann", "bob", "cem")  # late, but it votes: not missed
    chain.advance()
    assert round_of(chain, run, 5)["numAccepted"] == 2
    assert member_of(chain, run, "cem")["missed"] == 0
    store_checkpoint(chain, run, 6)

    # round 6: bob crashes after his commit; two of three voters are not enough until the deadline
    for name in ("ann", "bob", "cem"):
        chain.commit(run, 6, name)
    chain.advance()
    chain.attest(run, 6, "ann", "cem")
    deadline = round_of(chain, run, 6)["attestHeight"] + 30
    while chain.height <= deadline:
        assert round_of(chain, run, 6)["state"] == ATTEST
        chain.advance()
    assert round_of(chain, run, 6)["state"] == FINAL
    assert round_of(chain, run, 6)["numAccepted"] == 3

    # dee joins while round 7 is open: in V from round 8 on
    chain.join(run, "dee")
    chain.advance()
    assert make_address("dee") not in chain.view("Training", "participants", run, 7)
    with pytest.raises(Reverted) as early:
        chain.commit(run, 7, "dee")
    assert early.value.name == "NotEligible"
    for t in (7, 8, 9):
        others = ("ann", "cem") if t == 7 else ("ann", "cem", "dee")
        for name in others:
            chain.commit(run, t, name)
        for _ in range(200):
            if round_of(chain, run, t)["state"] == ATTEST:
                break
            chain.advance()
        chain.attest(run, t, *others)
        for _ in range(200):
            if round_of(chain, run, t)["state"] == FINAL:
                break
            chain.advance()
        assert round_of(chain, run, t)["numAccepted"] == len(others)
        if (t + 1) % 2 == 0:
            store_checkpoint(chain, run, t + 1)
    # bob missed three in a row: out, and back by himself after a round's time
    bob = member_of(chain, run, "bob")
    assert (bob["state"], bob["missed"], bob["drops"]) == (DROPPED, 3, 1)
    info = run_of(chain, run)
    with pytest.raises(Reverted) as soon:
        chain.call("Training", "join", run, info["recipeDigest"], make_address("bob"), "test", sender="bob")
    assert soon.value.name == "RejoinTooEarly"
    chain.advance(bob["rejoinHeight"] - chain.height)
    chain.join(run, "bob")
    assert member_of(chain, run, "bob")["state"] == READY
    assert chain.total_money() == chain.minted


def test_equal_bytes_of_two_workers_both_count(chain: Chain) -> None:
    run = chain.create_run(isAllowListed=True, rewardPerUpdate=7, numFragments=1, overlap=0)
    chain.call("Training", "allow", run, [make_address("ann"), make_address("bob")], True, sender="owner")
    chain.join(run, "ann", "bob")
    chain.advance()
    chain.commit(run, 0, "ann", payload="same")
    paid = run_of(chain, run)["paidStorage"]
    chain.commit(run, 0, "bob", payload="same")
    assert run_of(chain, run)["paidStorage"] == paid, "the same lease is bought once"
    chain.advance()
    chain.attest(run, 0, "ann", "bob")
    chain.advance()
    updates = chain.structs("Training", "updates", run, 0)
    assert updates[0]["digest"] == updates[1]["digest"]
    assert [u["fate"] for u in updates] == [2, 2]
    assert [u["paid"] for u in updates] == [7, 7]
    assert chain.balance("ann") == chain.balance("bob") == 7
    assert run_of(chain, run)["paidRewards"] == 14


def test_round_opens_with_frozen_base_and_overlap(chain: Chain) -> None:
    run = chain.create_run()
    chain.join(run, "ann")
    chain.advance()
    assert run_of(chain, run)["numOpened"] == 2  # d = 1: rounds 0 and 1 both build on genesis
    play_round(chain, run, 0, "ann")
    assert run_of(chain, run)["numOpened"] == 3
    assert round_of(chain, run, 2)["baseVersion"] == 1
    assert round_of(chain, run, 2)["baseRoot"] == round_of(chain, run, 0)["root"]
    with pytest.raises(Reverted) as stale:
        chain.call("Training", "commit", run, 2, make_hash("x"), make_hash("d"), b"", 0, 0, sender="ann")
    assert stale.value.name == "StaleBase"
    assert stale.value.values == (round_of(chain, run, 0)["root"], make_hash("x"))


def test_commit_is_refused_by_name(chain: Chain) -> None:
    run = chain.create_run()
    chain.join(run, "ann")
    chain.advance()
    chain.commit(run, 0, "ann")
    base = round_of(chain, run, 1)["baseRoot"]

    def refused(t: int, certificate: bytes, sender: str = "ann") -> str:
        with pytest.raises(Reverted) as raised:
            chain.call("Training", "commit", run, t, base, make_hash("d"), certificate, 0, 0, sender=sender)
        return raised.value.name

    good = chain.certificate(make_hash("p"))
    assert refused(0, good) == "AlreadyCommitted"
    assert refused(1, good, "eve") == "NotEligible"
    assert refused(9, good) == "UnknownRound"
    assert refused(1, b"junk") == "BadCertificate"
    assert refused(1, chain.certificate(make_hash("p"), tier=1)) == "WrongTier"
    assert refused(1, chain.certificate(make_hash("p"), size=0)) == "EmptyPayload"
    assert refused(1, chain.certificate(make_hash("p"), expiry=chain.height + 999)) == "LeaseTooShort"
    assert refused(1, chain.certificate(make_hash("p"), expiry=chain.height + 2001)) == "LeaseTooLong"
    assert refused(1, chain.certificate(make_hash("p"), seats=[0, 1])) == "NotEnoughSignatures"
    assert refused(1, chain.certificate(make_hash("p"), genesis_hash=make_hash("other"))) == "BadCertificate"


def test_no_commit_is_void_and_repeats_the_root(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    opened = round_of(chain, run, 0)["openedHeight"]
    chain.advance(opened + 120 - chain.height)
    assert round_of(chain, run, 0)["state"] == OPEN
    chain.advance()
    assert round_of(chain, run, 0)["state"] == VOID
    assert chain.view("Training", "root", run, 1) == run_of(chain, run)["genesisRoot"]
    assert chain.events("RoundVoided")[-1]["reason"] == 1


def test_the_round_clock_starts_when_the_one_before_has_closed(chain: Chain) -> None:
    run = chain.create_run()
    chain.join(run, "ann", "bob")
    chain.advance()
    assert round_of(chain, run, 1)["openedHeight"] == round_of(chain, run, 0)["openedHeight"]
    assert round_of(chain, run, 1)["dueHeight"] == 0, "waits for round 0 to close"
    chain.commit(run, 1, "ann")
    chain.advance(50)
    chain.commit(run, 0, "ann")
    chain.commit(run, 0, "bob")
    chain.advance()
    closed = round_of(chain, run, 0)["closedHeight"]
    assert closed == chain.height - 1
    assert round_of(chain, run, 1)["dueHeight"] == closed + 120
    chain.advance(119)
    assert round_of(chain, run, 1)["state"] == OPEN
    chain.advance()
    assert round_of(chain, run, 1)["state"] == ATTEST


def test_missing_payload_leaves_after_the_deadline(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann", "bob", "cem")
    chain.advance()
    for name in ("ann", "bob", "cem"):
        chain.commit(run, 0, name)
    chain.advance()
    for name in ("ann", "bob"):
        chain.call("Training", "reportMissing", run, 0, 0, 0b100, sender=name)
    assert round_of(chain, run, 0)["numVotes"] == 2
    chain.advance(31)
    info = round_of(chain, run, 0)
    assert (info["state"], info["retries"], info["numVotes"]) == (ATTEST, 1, 0)
    root = make_hash("without cem")
    chain.attest(run, 0, "ann", root=root, refused=0b100)  # what has left A is no part of the vote
    chain.attest(run, 0, "bob", "cem", root=root, refused=0)
    chain.advance()
    assert round_of(chain, run, 0)["state"] == FINAL
    last = chain.struct("Training", "update", run, 0, make_address("cem"))
    assert (last["fate"], last["reason"]) == (3, 2)


def test_a_third_of_liars_cannot_win_by_withholding(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    honest, liars = ("ann", "bob", "cem", "dee"), ("eve", "fay")
    chain.join(run, *honest, *liars)
    chain.advance()
    for name in (*honest, *liars):
        chain.commit(run, 0, name)
    chain.advance()
    chain.attest(run, 0, *liars, root=make_hash("lie"))  # a third of E, the only root
    for name in honest:
        chain.call("Training", "reportMissing", run, 0, 0, 0b100000, sender=name)  # fay's payload
    chain.advance(31)
    info = round_of(chain, run, 0)
    assert (info["state"], info["retries"]) == (ATTEST, 1)
    update = chain.struct("Training", "update", run, 0, make_address("fay"))
    assert (update["fate"], update["reason"]) == (3, 2)  # said before the round has settled
    chain.attest(run, 0, *liars, root=make_hash("lie"))
    chain.attest(run, 0, *honest, root=make_hash("truth"), refused=0b100000)
    chain.advance(31)
    assert round_of(chain, run, 0)["state"] == DISPUTE
    chain.advance(60)
    assert round_of(chain, run, 0)["root"] == make_hash("truth")


def test_two_roots_end_in_dispute_and_a_majority_jails(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    names = ("ann", "bob", "cem", "dee", "eve")
    chain.join(run, *names)
    chain.advance()
    for name in names:
        chain.commit(run, 0, name)
    chain.advance()
    chain.attest(run, 0, "ann", "bob", "cem")
    chain.attest(run, 0, "dee", "eve", root=make_hash("lie"))
    chain.advance(31)
    assert round_of(chain, run, 0)["state"] == DISPUTE
    chain.advance(60)
    info = round_of(chain, run, 0)
    assert (info["state"], info["numAccepted"]) == (FINAL, 5)
    assert [member_of(chain, run, name)["state"] for name in names] == [ACTIVE, ACTIVE, ACTIVE, DROPPED, DROPPED]


def test_third_dispute_in_a_row_pauses_the_run(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann", "bob")
    chain.advance()
    for t in range(3):
        for name in ("ann", "bob"):
            chain.commit(run, t, name)
        chain.advance()
        chain.attest(run, t, "ann")
        chain.attest(run, t, "bob", root=make_hash("lie"))
        chain.advance(31 + 60)
        assert round_of(chain, run, t)["state"] == VOID
    assert run_of(chain, run)["state"] == PAUSED
    chain.call("Training", "resume", run, sender="owner")
    chain.advance()
    assert run_of(chain, run)["state"] == RUNNING
    assert round_of(chain, run, 3)["state"] == OPEN


def test_alone_one_finalises_and_two_of_three_wait_for_grace(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    play_round(chain, run, 0, "ann")
    chain.join(run, "bob", "cem")
    chain.advance()
    play_round(chain, run, 1, "ann")
    for name in ("ann", "bob", "cem"):
        chain.commit(run, 2, name)
    chain.advance()
    # only ann voted last round: once she and one more agree, grace decides
    chain.attest(run, 2, "bob")
    chain.advance(11)
    assert round_of(chain, run, 2)["state"] == ATTEST
    chain.attest(run, 2, "ann")
    chain.advance(10)
    assert round_of(chain, run, 2)["state"] == ATTEST
    chain.advance()
    assert round_of(chain, run, 2)["state"] == FINAL


def test_a_vote_waits_for_the_round_before(chain: Chain) -> None:
    run = chain.create_run()
    chain.join(run, "ann", "bob")
    chain.advance()
    for t in (0, 1):
        for name in ("ann", "bob"):
            chain.commit(run, t, name)
    chain.advance()
    with pytest.raises(Reverted) as early:
        chain.attest(run, 1, "ann", root=make_hash("r"))
    assert (early.value.name, early.value.values) == ("PreviousUnsettled", (0,))
    chain.attest(run, 0, "ann", "bob")
    chain.advance()
    chain.attest(run, 1, "ann", "bob")
    with pytest.raises(Reverted) as twice:
        chain.attest(run, 1, "ann", root=make_hash("r"))
    assert twice.value.name == "AlreadyVoted"
    with pytest.raises(Reverted) as mask:
        chain.call("Training", "reportMissing", run, 1, 0, 0b100, sender="bob")
    assert mask.value.name == "AlreadyVoted"


def test_leaving_frees_the_bond_after_the_rounds_and_the_lock(chain: Chain) -> None:
    run = chain.create_run(memberBond=100, numFragments=1, overlap=0)
    with pytest.raises(Reverted) as small:
        chain.join(run, "ann", value=99)
    assert (small.value.name, small.value.values) == ("BondTooSmall", (100, 99))
    chain.join(run, "ann", "bob", value=100)
    chain.advance()
    chain.commit(run, 0, "ann")
    chain.call("Training", "leave", run, sender="ann")
    assert member_of(chain, run, "ann")["bondUnlockHeight"] == 2**64 - 1
    with pytest.raises(Reverted) as locked:
        chain.call("Training", "withdrawBond", run, sender="ann")
    assert locked.value.name == "BondLocked"
    chain.commit(run, 0, "bob")
    chain.advance()
    chain.attest(run, 0, "bob")  # E is bob alone: ann is gone, her update still counts
    chain.advance()
    assert round_of(chain, run, 0)["numAccepted"] == 2
    unlock = member_of(chain, run, "ann")["bondUnlockHeight"]
    assert unlock == round_of(chain, run, 0)["settledHeight"] + 20
    chain.advance(unlock - chain.height)
    before = chain.balance("ann")
    chain.call("Training", "withdrawBond", run, sender="ann")
    assert chain.balance("ann") == before + 100
    with pytest.raises(Reverted) as nothing:
        chain.call("Training", "withdrawBond", run, sender="ann")
    assert nothing.value.name == "NothingToWithdraw"


def test_checkpoint_gate_holds_the_next_round_and_drops_the_silent(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0, checkpointInterval=1)
    chain.join(run, "ann", "bob")
    chain.advance()
    for t in range(3):
        play_round(chain, run, t, "ann", "bob")
    assert run_of(chain, run)["numOpened"] == 3  # certified 0, interval 1: round 3 would be three intervals on
    chain.advance(60)
    chain.call("Training", "ready", run, run_of(chain, run)["headRoot"], sender="ann")
    chain.advance(61)
    assert [member_of(chain, run, name)["state"] for name in ("ann", "bob")] == [ACTIVE, DROPPED]
    chain.store_part(run, 2, 0, sender="ann")
    chain.store_part(run, 2, 1, sender="ann")
    chain.advance()
    assert run_of(chain, run)["certifiedVersion"] == 2
    assert round_of(chain, run, 3)["state"] == OPEN


def test_checkpoint_parts_are_asked_of_members_and_open_to_all_after_grace(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0, checkpointInterval=1)
    chain.join(run, "ann", "bob")
    chain.advance()
    play_round(chain, run, 0, "ann", "bob")
    uploaders = chain.view("Training", "checkpointPartOf", run, 1)
    assert sorted(uploaders) == sorted([make_address("ann"), make_address("bob")])
    with pytest.raises(Reverted) as foreign:
        chain.store_part(run, 1, 0, sender=uploaders[1])
    assert (foreign.value.name, foreign.value.values) == ("NotYourPart", (uploaders[0], uploaders[1]))
    with pytest.raises(Reverted) as stranger:
        chain.store_part(run, 1, 0, sender="eve")
    assert stranger.value.name == "NotMember"
    payload = chain.structs("Training", "updates", run, 0)[0]["blob"]
    genesis_part = chain.struct("Training", "checkpointAt", run, 0)["blobs"][0]
    assert chain.view("Storage", "releaseHeights", [payload, genesis_part, bytes(32)]) == (2**64 - 1, 2**64 - 1, 0)
    chain.store_part(run, 1, 0, sender=uploaders[0])
    chain.advance(10)
    chain.store_part(run, 1, 1, sender=uploaders[0])
    chain.advance()
    assert chain.struct("Training", "checkpointAt", run, 1)["state"] == 2
    assert chain.struct("Training", "checkpointAt", run, 0)["state"] == 3
    heights = chain.view("Storage", "releaseHeights", [payload, genesis_part])
    assert all(chain.height < height < 2**64 - 1 for height in heights), "free at the end of their leases"
    with pytest.raises(Reverted) as stored:
        chain.store_part(run, 1, 1, sender=uploaders[0])
    assert stored.value.name == "PartAlreadyStored"
    with pytest.raises(Reverted) as unknown:
        chain.store_part(run, 2, 0, sender=uploaders[0])
    assert unknown.value.name == "UnknownVersion"


def test_a_run_finishes_and_the_rest_of_the_escrow_returns(chain: Chain) -> None:
    run = chain.create_run(numRounds=2, numFragments=1, overlap=0, escrow=10**18)
    chain.join(run, "ann")
    chain.advance()
    for t in range(3):
        play_round(chain, run, t, "ann")
    info = run_of(chain, run)
    assert (info["state"], info["numSettled"], info["numRoundsTotal"]) == (FINISHED, 3, 3)
    before = chain.balance("owner")
    store_checkpoint(chain, run, 3)
    info = run_of(chain, run)
    assert (info["certifiedVersion"], info["escrow"]) == (3, 0)
    returned = chain.events("EscrowReturned")[-1]["amount"]
    assert chain.balance("owner") - before == returned == 10**18 - info["paidStorage"]
    assert info["paidStorage"] > 0


def test_nobody_left_and_nothing_to_replay_reverts_to_the_checkpoint(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0, recoverBlocks=50)
    chain.join(run, "ann")
    chain.advance()
    for t in range(3):
        play_round(chain, run, t, "ann")
    genesis = run_of(chain, run)["genesisRoot"]
    chain.call("Training", "leave", run, sender="ann")
    chain.advance()
    chain.advance(150)  # the open round ends by timer
    assert run_of(chain, run)["state"] == WAITING
    digest = run_of(chain, run)["recipeDigest"]
    chain.call("Training", "join", run, digest, make_address("bob"), "test", sender="bob")
    chain.call("Training", "ready", run, genesis, sender="bob")
    chain.advance()
    reverted = chain.events("RunReverted")[-1]
    assert (reverted["fromVersion"], reverted["toVersion"]) == (4, 0)
    info = run_of(chain, run)
    assert (info["headVersion"], info["headRoot"], info["numOpened"]) == (0, genesis, 1)
    with pytest.raises(Reverted):
        chain.view("Training", "root", run, 1)
    play_round(chain, run, 0, "bob")
    assert chain.view("Training", "root", run, 1) == round_of(chain, run, 0)["root"]


def test_while_nobody_is_eligible_only_the_head_counts(chain: Chain) -> None:
    run = chain.create_run(numFragments=4, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    for t in range(3):
        play_round(chain, run, t, "ann")
    older = chain.view("Training", "root", run, 2)
    digest = run_of(chain, run)["recipeDigest"]
    for name in ("bob", "cem"):
        chain.call("Training", "join", run, digest, make_address(name), "test", sender=name)
    chain.call("Training", "ready", run, older, sender="bob")  # one of the last 2F: ann leads on
    for name in ("ann", "bob"):
        chain.call("Training", "leave", run, sender=name)
    with pytest.raises(Reverted) as refused:
        chain.call("Training", "ready", run, older, sender="cem")
    assert refused.value.name == "UnknownRoot"
    chain.call("Training", "ready", run, run_of(chain, run)["headRoot"], sender="cem")


def test_waiting_for_members_and_for_escrow(chain: Chain) -> None:
    run = chain.create_run(minMembers=2, escrow=10**14, numFragments=1, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    assert run_of(chain, run)["state"] == WAITING
    chain.join(run, "bob")
    chain.advance()
    assert run_of(chain, run)["state"] == RUNNING
    poor = chain.create_run(escrow=4_675_800, owner="pauper")  # exactly the two genesis parts
    chain.join(poor, "ann")
    chain.advance()
    assert run_of(chain, poor)["state"] == WAITING
    chain.call("Training", "fund", poor, sender="ann", value=10**15)
    chain.advance()
    assert run_of(chain, poor)["state"] == RUNNING


def test_the_last_money_pays_what_was_promised(chain: Chain) -> None:
    """With two rounds open, WAITING comes before a commit would find the escrow empty."""
    run = chain.create_run(isAllowListed=True, rewardPerUpdate=10**12, escrow=10**13)
    names = ("ann", "bob")
    chain.call("Training", "allow", run, [make_address(name) for name in names], True, sender="owner")
    chain.join(run, *names)
    chain.advance()
    t = 0
    while t < run_of(chain, run)["numOpened"]:
        play_round(chain, run, t, *names)
        t += 1
    info = run_of(chain, run)
    assert info["state"] == WAITING
    assert info["paidRewards"] == 2 * t * 10**12
    assert t == 4  # 4 * 2 rewards of 10^12 out of 10^13, and no fifth round
    assert chain.total_money() == chain.minted
    chain.call("Training", "fund", run, sender="eve", value=10**15)
    chain.advance()
    assert run_of(chain, run)["state"] == RUNNING


def test_params_latch_at_the_next_opening(chain: Chain) -> None:
    from driver import run_params

    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    changed = run_params(numFragments=1, overlap=0, roundBlocks=7, localSteps=50)
    chain.call("Training", "setParams", run, changed, sender="owner")
    assert run_of(chain, run)["localSteps"] == 20
    play_round(chain, run, 0, "ann")
    info = round_of(chain, run, 1)
    assert info["localSteps"] == 50
    assert info["dueHeight"] == info["openedHeight"] + 7
    with pytest.raises(Reverted) as fixed:
        chain.call("Training", "setParams", run, run_params(numFragments=2, overlap=0), sender="owner")
    assert (fixed.value.name, fixed.value.values) == ("BadParams", ("numFragments", 1, 1, 2))


def test_rank_and_local_steps_follow_the_median_by_a_tenth(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0, localSteps=100)
    names = ("ann", "bob", "cem")
    chain.join(run, *names)
    chain.advance()
    for t, proposals in enumerate([(8, 16, 64), (16, 16, 16)]):
        for name in names:
            chain.commit(run, t, name)
        chain.advance()
        root = chain.honest_root(run, t)
        for name, rank in zip(names, proposals, strict=True):
            chain.call("Training", "attest", run, t, 0, root, 0, rank, 200, sender=name)
        chain.advance()
    info = run_of(chain, run)
    assert info["rank"] == 16
    assert info["localSteps"] == 121  # 100 -> 110 -> 121


def test_pause_opens_no_round_and_timers_run(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    chain.call("Training", "pause", run, sender="owner")
    chain.advance(130)
    assert round_of(chain, run, 0)["state"] == VOID
    assert run_of(chain, run)["numOpened"] == 1
    chain.call("Training", "resume", run, sender="owner")
    chain.advance()
    assert round_of(chain, run, 1)["state"] == OPEN


def test_evaluations_first_one_stays_and_members_only(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann", "bob")
    chain.advance()
    play_round(chain, run, 0, "ann", "bob")
    chain.call("Training", "recordEvaluation", run, 1, 2_700_000, sender="bob")
    chain.call("Training", "recordEvaluation", run, 0, 5_500_000, sender="ann")
    with pytest.raises(Reverted) as second:
        chain.call("Training", "recordEvaluation", run, 1, 1, sender="ann")
    assert (second.value.name, second.value.values) == ("AlreadyEvaluated", (1, 2_700_000))
    with pytest.raises(Reverted) as stranger:
        chain.call("Training", "recordEvaluation", run, 1, 1, sender="eve")
    assert stranger.value.name == "NotMember"
    for absurd in (0, 100_000_001, 2**64 - 1):
        with pytest.raises(Reverted) as caught:
            chain.call("Training", "recordEvaluation", run, 1, absurd, sender="ann")
        assert caught.value.name == "BadParams"
    with pytest.raises(Reverted) as future:
        chain.call("Training", "recordEvaluation", run, 2, 1, sender="ann")
    assert future.value.name == "UnknownVersion"
    found = chain.structs("Training", "evaluations", run, 0, 10)
    assert [(e["version"], e["lossMicro"]) for e in found] == [(0, 5_500_000), (1, 2_700_000)]
    assert len(chain.structs("Training", "evaluations", run, 1, 10)) == 1
    assert len(chain.structs("Training", "evaluations", run, 0, 1)) == 1
