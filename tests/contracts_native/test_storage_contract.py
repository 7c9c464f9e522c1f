"""The Storage contract: nodes, committees, certificates, leases, prices."""

from __future__ import annotations

from typing import Any

import pytest
from driver import GENESIS_HASH, Chain, Reverted, make_address, make_hash
from hypothesis import given
from hypothesis import strategies as st

from chain.core.contracts.params import (
    BLOCKS_PER_HOUR,
    BLOCKS_PER_MONTH,
    DEVNET_TIERS,
    TERABYTE,
    WEI,
    ContractParams,
)
from chain.core.contracts.storage.pricing import compute_fee
from da.core.receipt import key_proof_message
from da.core.types import Tier


def refused(
    chain: Chain, function: str, *args: Any, sender: str = "alice", value: int = 0
) -> tuple[str, tuple[Any, ...]]:
    with pytest.raises(Reverted) as raised:
        chain.call("Storage", function, *args, sender=sender, value=value)
    return raised.value.name, raised.value.values


# -- prices (case 57)


def test_advertised_prices_are_exact_within_a_millionth(chain: Chain) -> None:
    for tier, size, blocks, dollars_times_730 in (
        (Tier.HOT, TERABYTE, BLOCKS_PER_MONTH, 10 * 730),
        (Tier.TEMPORARY, TERABYTE, BLOCKS_PER_HOUR, 10),  # $0.0137 = 10/730
        (Tier.COLD, TERABYTE, BLOCKS_PER_MONTH, 1 * 730),
    ):
        fee = chain.view("Storage", "quote", int(tier), size, blocks)
        advertised = dollars_times_730 * WEI
        assert abs(730 * fee - advertised) * 10**6 < advertised


def test_fee_shown_is_the_fee_charged_and_the_rest_comes_back(chain: Chain) -> None:
    blob, blocks = make_hash("blob"), 5_000
    fee = chain.view("Storage", "quote", int(Tier.HOT), 10**6, blocks)
    chain.fund("alice")
    before = chain.balance("alice")
    certificate = chain.certificate(blob, tier=Tier.HOT, size=10**6, expiry=chain.height + blocks)
    assert refused(chain, "certify", certificate, value=fee - 1) == ("FeeTooSmall", (fee, fee - 1))
    assert chain.call("Storage", "certify", certificate, sender="alice", value=fee + 999) == blob
    assert before - chain.balance("alice") == fee
    info = chain.struct("Storage", "blob", blob)
    assert (info["paid"], info["expiryHeight"], info["state"]) == (fee, chain.height + blocks, 1)
    assert chain.total_money() == chain.minted


@given(
    tier=st.sampled_from(DEVNET_TIERS),
    size=st.integers(1, 10**13),
    more=st.integers(0, 10**12),
    blocks=st.integers(1, 10**9),
)
def test_fees_grow_with_size_and_time_and_are_never_zero(tier: Any, size: int, more: int, blocks: int) -> None:
    fee = compute_fee(tier, size, blocks)
    assert 1 <= fee <= compute_fee(tier, size + more, blocks) <= compute_fee(tier, size + more, blocks + 1)


def test_prices_follow_the_published_arithmetic() -> None:
    # a 1,000-step run keeps 10^12 bytes ... all hot for 30 days against one hour temporary: 1:720
    temporary, hot, cold = DEVNET_TIERS
    assert temporary.picowei_per_byte_block == hot.picowei_per_byte_block == 1_141_552_511_416
    assert cold.picowei_per_byte_block == 114_155_251_142


def test_params_that_sell_for_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="storage_epoch_blocks is 0"):
        ContractParams(storage_epoch_blocks=0)
    with pytest.raises(ValueError, match="unbond_blocks is -1"):
        ContractParams(unbond_blocks=-1)


# -- nodes and committees


def test_committees_change_at_epochs_and_only_when_the_set_has_changed() -> None:
    chain = Chain(num_nodes=0)
    assert chain.view("Storage", "epoch") == 0
    chain.advance(25)
    assert chain.view("Storage", "epoch") == 0
    chain.add_node("first")
    assert chain.view("Storage", "committee", 1) == ()
    chain.advance_to_epoch()
    started = chain.height - 1
    assert started % 10 == 0
    assert [seat["url"] for seat in chain.structs("Storage", "committee", 1)] == ["http://127.0.0.1:9000"]
    chain.advance(40)
    assert chain.view("Storage", "epoch") == 1
    chain.call("Storage", "updateNode", "http://127.0.0.1:7", 5, sender=chain.nodes[0].operator)
    assert chain.structs("Storage", "committee", 1)[0]["url"] == "http://127.0.0.1:7"
    chain.advance(40)
    assert chain.view("Storage", "epoch") == 1, "an address is no part of the set"
    chain.add_node("second")
    chain.call("Storage", "retireNode", sender=chain.nodes[0].operator)
    chain.advance_to_epoch()
    assert [seat["operator"] for seat in chain.structs("Storage", "committee", 2)] == [chain.nodes[1].operator]
    assert [seat["operator"] for seat in chain.structs("Storage", "committee", 1)] == [chain.nodes[0].operator]
    chain.call("Storage", "retireNode", sender=chain.nodes[1].operator)
    chain.advance(40)
    assert chain.view("Storage", "epoch") == 2, "the last committee stays until somebody else registers"


def test_a_committee_has_at_most_64_seats() -> None:
    chain = Chain(num_nodes=70)
    assert len(chain.view("Storage", "committee", 1)) == 64
    assert len(chain.view("Storage", "nodes")) == 70


def test_registration_is_refused_by_name(chain: Chain) -> None:
    node = chain.nodes[0]
    bob = make_address("bob")
    proof = node.key.sign(key_proof_message(GENESIS_HASH, bob))
    url = "http://h:1"
    assert refused(chain, "registerNode", url, node.public, proof, 1, sender="bob")[0] == "KeyAlreadyRegistered"
    assert refused(chain, "registerNode", url, make_hash("k"), proof, 1, sender="bob")[0] == "BadKeyProof"
    assert refused(chain, "registerNode", url, make_hash("k"), b"", 1, sender="bob")[0] == "BadKeyProof"
    for bad in ("", "http://", "ftp://h", "http://a b", "http://a\n", "http://" + "x" * 300):
        assert refused(chain, "registerNode", bad, make_hash("k"), proof, 1, sender="bob")[0] == "BadUrl"
    own = node.key.sign(key_proof_message(GENESIS_HASH, node.operator))
    with pytest.raises(Reverted, match="NodeAlreadyRegistered"):
        chain.call("Storage", "registerNode", url, node.public, own, 1, sender=node.operator)
    assert refused(chain, "updateNode", url, 1, sender="bob") == ("UnknownNode", (bob,))
    assert refused(chain, "retireNode", sender="bob") == ("UnknownNode", (bob,))
    # another chain's proof does not fit
    foreign = node.key.sign(key_proof_message(make_hash("other"), bob))
    assert refused(chain, "registerNode", url, node.public, foreign, 1, sender="bob")[0] == "KeyAlreadyRegistered"


def test_a_retired_node_comes_back(chain: Chain) -> None:
    node = chain.nodes[3]
    chain.call("Storage", "retireNode", sender=node.operator)
    chain.advance_to_epoch()
    assert len(chain.view("Storage", "committee", 2)) == 3
    own = node.key.sign(key_proof_message(GENESIS_HASH, node.operator))
    chain.call("Storage", "registerNode", "http://new:1", node.public, own, 1, sender=node.operator)
    chain.advance_to_epoch()
    assert len(chain.view("Storage", "committee", 3)) == 4
    assert len(chain.view("Storage", "nodes")) == 4


# -- certificates and leases


def test_certificates_that_do_not_certify_are_refused(chain: Chain) -> None:
    blob = make_hash("blob")

    def name(certificate: bytes) -> str:
        return refused(chain, "certify", certificate, value=10**18)[0]

    good = chain.certificate(blob)
    forged = bytearray(good)
    forged[-1] ^= 1
    assert name(bytes(forged)) == "BadCertificate"
    assert name(good[:-1]) == "BadCertificate"
    assert name(good + b"\0") == "BadCertificate"
    assert name(b"") == "BadCertificate"
    assert refused(chain, "certify", chain.certificate(blob, seats=[0, 1]), value=10**18) == (
        "NotEnoughSignatures",
        (3, 2),
    )
    assert name(chain.certificate(blob, genesis_hash=make_hash("other"))) == "BadCertificate"
    assert name(chain.certificate(blob, expiry=chain.height)) == "CertificateExpired"
    assert name(chain.certificate(blob, expiry=2**63)) == "LeaseTooLong"
    assert name(chain.certificate(blob, tier=Tier.COLD)) == "LeaseTooShort"
    swapped = bytearray(good)  # seat 0 signs twice: its signature under seat 1 too
    swapped[98 + 64 : 98 + 128] = swapped[98 : 98 + 64]
    assert name(bytes(swapped)) == "BadCertificate"
    old = chain.certificate(blob)
    for index in range(2):
        chain.add_node(f"more{index}")
        chain.advance_to_epoch()
        if index == 0:
            chain.call("Storage", "certify", old, sender="alice", value=10**18)  # the previous epoch is accepted
    assert refused(chain, "certify", old, value=10**18) == ("WrongEpoch", (3, 1))


def test_leases_belong_to_blob_and_owner(chain: Chain) -> None:
    blob = make_hash("blob")
    short = chain.certificate(blob, expiry=chain.height + 100)
    long = chain.certificate(blob, expiry=chain.height + 300)
    chain.call("Storage", "certify", short, sender="alice", value=10**18)
    chain.call("Storage", "certify", long, sender="bob", value=10**18)
    start = chain.height
    assert chain.view("Storage", "leaseExpiry", blob, make_address("alice")) == start + 100
    info = chain.struct("Storage", "blob", blob)
    assert (info["owner"], info["releaseHeight"]) == (make_address("bob"), start + 300)
    assert refused(chain, "renew", blob, start + 100, sender="alice", value=10**18)[0] == "LeaseTooShort"
    assert refused(chain, "renew", blob, start + 500, sender="eve", value=10**18)[0] == "NoLease"
    assert refused(chain, "renew", make_hash("?"), start + 500, value=10**18)[0] == "UnknownBlob"
    assert refused(chain, "renew", blob, 2**64 - 1, value=10**18)[0] == "LeaseTooLong"
    fee = chain.view("Storage", "quote", 0, 1000, 400)
    before = chain.balance("alice")
    chain.call("Storage", "renew", blob, start + 500, sender="alice", value=10**18)
    assert before - chain.balance("alice") == fee
    assert chain.struct("Storage", "blob", blob)["releaseHeight"] == start + 500
    chain.advance(500)
    assert chain.struct("Storage", "blob", blob)["state"] == 2
    assert refused(chain, "renew", blob, start + 900, sender="alice", value=10**18)[0] == "NoLease"
    assert refused(chain, "releaseHeights", [blob] * 257)[0] == "TooMany"
    assert chain.struct("Storage", "blob", make_hash("?"))["state"] == 0


def test_unknown_tier_is_refused(chain: Chain) -> None:
    assert refused(chain, "quote", 9, 1, 1) == ("UnknownTier", (9,))
