"""Bonds, challenges, slashing; fees on their way to the seats; leases released early."""

from __future__ import annotations

from typing import Any

import pytest
from driver import Chain, Reverted, make_address, make_hash
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core.abi.storage import STORAGE_ADDRESS
from chain.core.contracts.params import WEI, ContractParams
from chain.core.state import Overlay
from da.codec import encode_blob
from da.core.blob import compute_shard_bytes, encode_header
from da.core.merkle import compute_leaf_hashes, compute_proof, encode_proof
from da.core.types import Tier

LEASE = 1_000


def refused(chain: Chain, function: str, *args: Any, sender: str | bytes = "alice", value: int = 0) -> str:
    with pytest.raises(Reverted) as raised:
        chain.call("Storage", function, *args, sender=sender, value=value)
    return raised.value.name


class Stored:
    """A real blob of four shards, certified by alice."""

    def __init__(self, chain: Chain, *, size: int = 40_000, blocks: int = LEASE, tier: Tier = Tier.HOT) -> None:
        encoded = encode_blob(bytes(range(251)) * (size // 251), num_data=2, num_shards=4, leaf_bytes=1024)
        self.blob = encoded.blob
        self.header = encoded.header
        self.shards = [b"".join(pieces) for pieces in encoded.shards]
        certificate = chain.certificate(
            self.blob, tier=tier, size=encoded.header.size_bytes, expiry=chain.height + blocks
        )
        chain.call("Storage", "certify", certificate, sender="alice", value=10**18)

    def answer(self, seat: int, leaf: int) -> tuple[bytes, bytes, bytes]:
        shard = self.shards[seat]
        hashes = compute_leaf_hashes(shard, leaf_bytes=1024)
        index = leaf % len(hashes)
        proof = compute_proof(hashes, index, size_bytes=len(shard), leaf_bytes=1024)
        return encode_header(self.header), shard[index * 1024 : (index + 1) * 1024], encode_proof(proof)


def bonded(chain: Chain, amount: int = 10 * WEI) -> Chain:
    for node in chain.nodes:
        chain.call("Storage", "addNodeBond", sender=node.operator, value=amount)
    return chain


def test_an_answer_takes_the_challengers_bond() -> None:
    chain = bonded(Chain())
    stored = Stored(chain)
    node = chain.nodes[2].operator
    bond = chain.struct("Storage", "nodeTerms")["challengeBond"]
    assert refused(chain, "challenge", stored.blob, 2, 7, value=bond - 1) == "FeeTooSmall"
    chain.call("Storage", "challenge", stored.blob, 2, 1_007, sender="eve", value=bond + 5)
    assert refused(chain, "challenge", stored.blob, 2, 8, value=bond) == "ChallengeIsOpen"
    (challenge,) = chain.structs("Storage", "challengesOf", node)
    assert (challenge["blob"], challenge["seat"], challenge["leaf"], challenge["bond"]) == (stored.blob, 2, 1_007, bond)
    good = stored.answer(2, 1_007)
    for bad in (
        stored.answer(2, 1_008),
        stored.answer(1, 1_007),
        (good[0], good[1][:-1] + b"?", good[2]),
        (good[0], b"", good[2]),
        (b"", good[1], good[2]),
        (good[0], good[1], good[2][:-1]),
    ):
        assert refused(chain, "answerChallenge", stored.blob, 2, *bad) == "BadAnswer"
    before = chain.balance(node)
    chain.call("Storage", "answerChallenge", stored.blob, 2, *good, sender="anybody")
    assert chain.balance(node) - before == bond
    assert refused(chain, "answerChallenge", stored.blob, 2, *good) == "NoChallenge"
    chain.advance(200)
    assert chain.events("NodeSlashed") == []
    assert chain.struct("Storage", "nodeAccount", node)["bond"] == 10 * WEI
    assert chain.total_money() == chain.minted


def test_silence_costs_a_part_of_the_bond_the_seat_and_its_income() -> None:
    chain = bonded(Chain())
    stored = Stored(chain)
    node = chain.nodes[1].operator
    eve = chain.fund("eve")
    before = chain.balance(eve)
    chain.call("Storage", "challenge", stored.blob, 1, 0, sender="eve", value=10**17)
    due = chain.struct("Storage", "challengeAt", stored.blob, 1)["dueHeight"]
    chain.advance(due - chain.height)
    assert chain.events("NodeSlashed") == []
    chain.advance(2)
    (slashed,) = chain.events("NodeSlashed")
    assert (slashed["operator"], slashed["amount"]) == (node, 2 * WEI)
    account = chain.struct("Storage", "nodeAccount", node)
    assert (account["bond"], account["numFaults"], account["numChallenges"]) == (8 * WEI, 1, 0)
    assert chain.balance(eve) - before == WEI, "the challenger's bond and half of the slash"
    assert refused(chain, "challenge", stored.blob, 1, 0, value=10**17) == "NotSigned", "a shard is lost once"
    assert chain.struct("Storage", "node", node)["state"] == 2
    earned = account["earned"]
    chain.advance(500)
    assert chain.struct("Storage", "nodeAccount", node)["earned"] == earned
    assert chain.struct("Storage", "nodeAccount", chain.nodes[0].operator)["earned"] >= WEI // 3
    assert len(chain.view("Storage", "committee", chain.view("Storage", "epoch"))) == 3
    assert chain.total_money() == chain.minted


def test_a_flood_of_challenges_is_no_way_to_an_honest_bond() -> None:
    """Forty at once, and more while they are answered; the node manages one a block, the most urgent first."""
    chain = bonded(Chain(params=ContractParams(challenge_blocks=10)))
    node, other = chain.nodes[0].operator, chain.nodes[1].operator
    stored = {each.blob: each for each in (Stored(chain, size=1_500 + 251 * number) for number in range(60))}
    waiting = list(stored)
    for _ in range(40):
        chain.call("Storage", "challenge", waiting.pop(), 0, 3, sender="eve", value=10**17)
    answered = 0
    while challenges := chain.structs("Storage", "challengesOf", node):
        assert challenges == sorted(challenges, key=lambda challenge: challenge["dueHeight"])
        blob = challenges[0]["blob"]
        chain.call("Storage", "answerChallenge", blob, 0, *stored[blob].answer(0, 3), sender=node)
        answered += 1
        if waiting and answered % 2:
            chain.call("Storage", "challenge", waiting.pop(), 0, 3, sender="eve", value=10**17)
        chain.advance(1)
    assert answered == 60
    chain.advance(60)
    assert chain.events("NodeSlashed") == []
    assert chain.struct("Storage", "nodeAccount", node)["bond"] == 10 * WEI
    # it holds up nobody's challenge of another node
    chain.call("Storage", "challenge", next(iter(stored)), 1, 0, sender="eve", value=10**17)
    (challenge,) = chain.structs("Storage", "challengesOf", other)
    assert challenge["dueHeight"] == chain.height + 10
    assert chain.total_money() == chain.minted


def test_an_answer_counts_to_the_last_height_and_once() -> None:
    chain = bonded(Chain())
    stored = Stored(chain)
    node = chain.nodes[2].operator
    chain.call("Storage", "challenge", stored.blob, 2, 0, sender="eve", value=10**17)
    due = chain.struct("Storage", "challengeAt", stored.blob, 2)["dueHeight"]
    chain.advance(due - chain.height)
    before = chain.balance(node)
    chain.call("Storage", "answerChallenge", stored.blob, 2, *stored.answer(2, 0), sender="anybody")
    assert refused(chain, "answerChallenge", stored.blob, 2, *stored.answer(2, 0)) == "NoChallenge"
    assert chain.balance(node) - before == chain.struct("Storage", "nodeTerms")["challengeBond"]
    chain.advance(150)
    assert chain.events("NodeSlashed") == []
    # and again from anew: the next challenge is another one, and an answer of before is none after its time
    chain.call("Storage", "challenge", stored.blob, 2, 1, sender="eve", value=10**17)
    assert refused(chain, "answerChallenge", stored.blob, 2, *stored.answer(2, 0)) == "BadAnswer"
    due = chain.struct("Storage", "challengeAt", stored.blob, 2)["dueHeight"]
    chain.advance(due + 2 - chain.height)
    assert refused(chain, "answerChallenge", stored.blob, 2, *stored.answer(2, 1)) == "NoChallenge"
    assert len(chain.events("NodeSlashed")) == 1
    assert chain.total_money() == chain.minted


def test_who_did_not_sign_or_may_delete_is_not_slashed() -> None:
    chain = bonded(Chain())
    blob = make_hash("blob")
    certificate = chain.certificate(blob, tier=Tier.HOT, expiry=chain.height + LEASE, seats=[0, 1, 3])
    chain.call("Storage", "certify", certificate, sender="alice", value=10**18)
    assert refused(chain, "challenge", blob, 2, 0, value=10**17) == "NotSigned"
    assert refused(chain, "challenge", blob, 64, 0, value=10**17) == "NotSigned"
    assert refused(chain, "challenge", make_hash("other"), 0, 0, value=10**17) == "UnknownBlob"
    chain.call("Storage", "challenge", blob, 0, 0, sender="eve", value=10**17)
    chain.call("Storage", "release", blob, sender="alice")
    assert refused(chain, "challenge", blob, 1, 0, value=10**17) == "LeaseTooShort"
    chain.advance(150)
    assert chain.events("NodeSlashed") == []
    assert len(chain.events("ChallengeLapsed")) == 1
    assert chain.total_money() == chain.minted


def test_a_retiring_node_stands_by_what_it_signed_and_no_longer() -> None:
    chain = bonded(Chain())
    stored = Stored(chain, blocks=300)
    node = chain.nodes[0].operator
    assert refused(chain, "withdrawNodeBond", sender=node) == "BondLocked"
    chain.call("Storage", "renew", stored.blob, chain.height + 5_000, sender="alice", value=10**18)
    chain.call("Storage", "challenge", stored.blob, 1, 0, sender="eve", value=10**17)  # a registered one: bound
    chain.call("Storage", "retireNode", sender=node)
    chain.call("Storage", "challenge", stored.blob, 0, 0, sender="eve", value=10**17)
    for name in ("fifth", "sixth"):
        chain.add_node(name)
        chain.advance_to_epoch()
    assert refused(chain, "withdrawNodeBond", sender=node) == "BondLocked", "a challenge is open"
    chain.call("Storage", "answerChallenge", stored.blob, 0, *stored.answer(0, 0), sender=node)
    chain.call("Storage", "answerChallenge", stored.blob, 1, *stored.answer(1, 0), sender=node)
    free = chain.struct("Storage", "nodeAccount", node)["freeHeight"]
    assert free == chain.struct("Storage", "blob", stored.blob)["signedHeight"]
    chain.advance(free - chain.height)
    assert refused(chain, "challenge", stored.blob, 0, 0, value=10**17) == "LeaseTooShort"
    before = chain.balance(node)
    chain.call("Storage", "withdrawNodeBond", sender=node)
    assert chain.balance(node) - before == 10 * WEI
    assert refused(chain, "withdrawNodeBond", sender=node) == "BondTooSmall"
    assert chain.total_money() == chain.minted


def test_who_leaves_is_free_though_nobody_else_comes_or_goes() -> None:
    chain = bonded(Chain())
    Stored(chain, blocks=300)
    node = chain.nodes[3].operator
    chain.call("Storage", "retireNode", sender=node)
    chain.advance_to_epoch()
    assert chain.struct("Storage", "nodeAccount", node)["freeHeight"] == 2**64 - 1, "the previous epoch still certifies"
    chain.advance_to_epoch()
    epoch, free = chain.view("Storage", "epoch"), chain.struct("Storage", "nodeAccount", node)["freeHeight"]
    assert chain.height < free <= chain.height + 300
    chain.advance(free - chain.height)
    chain.call("Storage", "withdrawNodeBond", sender=node)
    assert chain.view("Storage", "epoch") == epoch, "then the set is steady again"


def test_a_blob_that_moves_takes_its_income_to_the_new_seats() -> None:
    """Re-homing: the owner certifies it anew, at no price; who left stands by its word and is paid no more."""
    chain = bonded(Chain())
    stored = Stored(chain, blocks=1_000)
    expiry, size = chain.struct("Storage", "blob", stored.blob)["expiryHeight"], stored.header.size_bytes
    gone = chain.nodes[0].operator
    chain.call("Storage", "renew", stored.blob, expiry + 500, sender="alice", value=10**18)
    chain.call("Storage", "challenge", stored.blob, 0, 0, sender="eve", value=10**17)
    chain.call("Storage", "retireNode", sender=gone)
    fifth = chain.add_node("fifth")
    chain.advance_to_epoch()
    assert chain.structs("Storage", "committee", 2)[0]["operator"] != gone
    new = chain.certificate(stored.blob, tier=Tier.HOT, size=size, expiry=expiry + 500)
    paid = chain.struct("Storage", "ownerAccount", make_address("alice"))["paid"]
    chain.call("Storage", "certify", new, sender="alice")
    assert chain.struct("Storage", "ownerAccount", make_address("alice"))["paid"] == paid, "its blocks were paid before"
    info = chain.struct("Storage", "blob", stored.blob)
    assert (info["epoch"], info["signers"], info["releaseHeight"]) == (2, 0b1111, expiry + 500)
    rates = [chain.struct("Storage", "income", epoch)["rate"] for epoch in (1, 2)]
    assert rates[0] == 0
    assert rates[1] > 0
    # the challenge of before runs out: the liar loses its bond, the new seat 0 neither seat nor income
    chain.advance(150)
    (slashed,) = chain.events("NodeSlashed")
    assert slashed["operator"] == gone
    assert chain.struct("Storage", "blob", stored.blob)["signers"] == 0b1111
    chain.advance(expiry + 800 - chain.height)
    earned = {node.operator: chain.struct("Storage", "nodeAccount", node.operator)["earned"] for node in chain.nodes}
    assert earned[fifth.operator] > 0
    assert earned[gone] < earned[fifth.operator]
    assert chain.struct("Storage", "income", 2)["rate"] == 0
    assert chain.total_money() == chain.minted


def test_registration_asks_for_the_bond_that_genesis_names() -> None:
    chain = Chain(num_nodes=0, params=ContractParams(node_bond=WEI))
    with pytest.raises(Reverted, match="BondTooSmall"):
        chain.add_node("poor")


def test_a_fee_reaches_the_seats_wei_for_wei() -> None:
    chain = Chain()
    stored = Stored(chain, blocks=LEASE)
    paid = chain.struct("Storage", "blob", stored.blob)["paid"]
    epoch = chain.view("Storage", "epoch")
    chain.advance(LEASE + 201)
    earned = [chain.struct("Storage", "nodeAccount", node.operator)["earned"] for node in chain.nodes]
    assert len(set(earned)) == 1
    income = chain.struct("Storage", "income", epoch)
    assert (income["rate"], sum(earned) + income["accrued"]) == (0, paid)
    assert income["accrued"] < 4, "less than one wei a seat is left"
    assert chain.balance(STORAGE_ADDRESS) == income["accrued"]
    assert chain.struct("Storage", "ownerAccount", make_address("alice"))["paid"] == paid


def test_a_released_lease_gives_back_what_it_did_not_use() -> None:
    chain = Chain()
    stored = Stored(chain, blocks=LEASE)
    start = chain.height
    paid = chain.struct("Storage", "blob", stored.blob)["paid"]
    chain.call("Storage", "renew", stored.blob, start + 2 * LEASE, sender="alice", value=10**18)
    chain.advance(250)
    before = chain.balance("alice")
    assert refused(chain, "release", stored.blob, sender="bob") == "NoLease"
    chain.call("Storage", "release", stored.blob, sender="alice")
    refund = chain.balance("alice") - before
    used = 250 * (paid // LEASE)
    total = chain.struct("Storage", "ownerAccount", make_address("alice"))["paid"]
    assert total - refund - used < 2 * LEASE, "only what does not divide stays"
    assert refused(chain, "release", stored.blob, sender="alice") == "NoLease"
    info = chain.struct("Storage", "blob", stored.blob)
    assert (info["state"], info["releaseHeight"], info["paid"]) == (2, chain.height, total - refund)
    chain.advance(3 * LEASE)
    epoch = chain.view("Storage", "epoch")
    assert chain.struct("Storage", "income", epoch)["rate"] == 0
    assert chain.total_money() == chain.minted
    assert list(chain.view("Storage", "blobsOf", make_address("alice"), 0, 10)) == [stored.blob]


def test_a_cold_lease_costs_at_least_thirty_days() -> None:
    chain = Chain()
    minimum = 720 * 12_000
    stored = Stored(chain, blocks=2 * minimum, tier=Tier.COLD)
    paid = chain.struct("Storage", "blob", stored.blob)["paid"]
    before = chain.balance("alice")
    chain.call("Storage", "release", stored.blob, sender="alice")
    refund = chain.balance("alice") - before
    assert abs(2 * refund - paid) * 10**3 < paid, "half of sixty days comes back at once, thirty stay"


def test_a_dearer_tier_is_paid_for_all_blocks_that_are_left() -> None:
    """A cold lease is no way to hot storage at a tenth of its price, with the same expiry or a shorter one."""
    chain = Chain()
    month = 720 * 12_000
    stored = Stored(chain, blocks=2 * month, tier=Tier.COLD)
    cold = chain.struct("Storage", "blob", stored.blob)["paid"]
    expiry, size = chain.struct("Storage", "blob", stored.blob)["expiryHeight"], stored.header.size_bytes
    hot = chain.view("Storage", "quote", 1, size, expiry - chain.height)
    short = chain.certificate(stored.blob, tier=Tier.HOT, size=size, expiry=chain.height + 100)
    assert refused(chain, "certify", short, value=hot // 2) == "FeeTooSmall"
    before = chain.balance("alice")
    chain.call("Storage", "certify", short, sender="alice", value=10**18)
    paid = before - chain.balance("alice")
    assert abs(paid + cold - hot) * 10**3 < hot, "the price of hot, less what cold had left"
    info = chain.struct("Storage", "blob", stored.blob)
    assert (info["tier"], info["expiryHeight"], info["paid"]) == (Tier.HOT, expiry, cold + paid)
    before = chain.balance("alice")
    chain.call("Storage", "release", stored.blob, sender="alice")
    assert chain.balance("alice") - before > paid, "what is not used comes back"
    assert chain.total_money() == chain.minted


def test_anothers_lease_keeps_the_blob() -> None:
    chain = Chain()
    blob = make_hash("blob")
    for name, blocks in (("alice", 900), ("bob", 400)):
        chain.call(
            "Storage", "certify", chain.certificate(blob, expiry=chain.height + blocks), sender=name, value=10**18
        )
    chain.call("Storage", "release", blob, sender="alice")
    info = chain.struct("Storage", "blob", blob)
    assert (info["owner"], info["state"], info["releaseHeight"]) == (make_address("bob"), 1, chain.height + 400)
    assert chain.view("Storage", "signedHeights", [blob, make_hash("?")]) == (chain.height + 900, 0)


def test_a_pinned_blob_stays_paid() -> None:
    chain = Chain()
    run = chain.create_run()
    (part, *_) = chain.struct("Training", "checkpointAt", run, 0)["blobs"]
    assert refused(chain, "release", part, sender="owner") == "BlobIsPinned"


actions = st.lists(
    st.tuples(
        st.sampled_from(["certify", "renew", "release", "wait", "committee"]),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(1, 400),
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(actions)
def test_no_wei_is_lost_in_any_history_of_leases(history: list[tuple[str, int, int, int]]) -> None:
    chain = Chain(num_nodes=2)
    for action, number, person, blocks in history:
        blob, name = make_hash(number), ("alice", "bob")[person]
        try:
            if action == "certify":
                tier = Tier.HOT if blocks % 2 else Tier.TEMPORARY
                certificate = chain.certificate(
                    blob, expiry=chain.height + blocks, size=1_000 * (number + 1), tier=tier
                )
                chain.call("Storage", "certify", certificate, sender=name, value=10**18)
            elif action == "renew":
                chain.call("Storage", "renew", blob, chain.height + blocks, sender=name, value=10**18)
            elif action == "release":
                chain.call("Storage", "release", blob, sender=name)
            elif action == "committee":
                chain.add_node(f"n{len(chain.nodes)}")
            else:
                chain.advance(blocks)
        except Reverted:
            pass  # too early, too late, unknown: nothing has changed
    chain.advance(900)
    accounts = [chain.struct("Storage", "ownerAccount", make_address(name)) for name in ("alice", "bob")]
    earned = sum(chain.struct("Storage", "nodeAccount", node.operator)["earned"] for node in chain.nodes)
    incomes = [chain.struct("Storage", "income", epoch) for epoch in range(1, chain.view("Storage", "epoch") + 1)]
    assert all(income["rate"] == 0 for income in incomes)
    accrued = sum(income["accrued"] for income in incomes)
    assert sum(a["paid"] - a["refunded"] for a in accounts) == earned + accrued
    assert chain.balance(STORAGE_ADDRESS) == accrued
    assert _count(chain.state, b"s/f") == 0, "no change of income is left"


def _count(state: Overlay, prefix: bytes) -> int:
    return len(list(state.iterate(prefix, prefix[:-1] + bytes([prefix[-1] + 1]))))


def test_the_shard_of_the_answer_has_the_layout_of_the_header() -> None:
    chain = Chain()
    stored = Stored(chain)
    assert len(stored.shards[0]) == compute_shard_bytes(stored.header.size_bytes, 2)
