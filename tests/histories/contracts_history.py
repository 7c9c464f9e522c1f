"""A scripted history of the system contracts: every chapter changes what the state holds in another way.

Nothing is drawn, and nothing looks at a clock.  After each chapter its mark is the root over the whole state and a
digest of all logs so far.
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from driver import GENESIS_HASH, Chain, make_address, make_hash

from chain.core.contracts.params import WEI, ContractParams
from chain.core.contracts.staking.validators import (
    Evidence,
    compute_consensus_address,
    make_registration_message,
    record_evidence,
)
from chain.core.genesis import ChainParameters, save_parameters
from chain.core.hashing import sha256
from chain.core.record_codec import pack
from chain.core.smt import Tree
from chain.core.types import Amount, Hash
from da.codec import encode_blob
from da.core.blob import encode_header
from da.core.merkle import compute_leaf_hashes, compute_proof, encode_proof
from da.core.types import Tier

LEAF_BYTES = 1024
ROUND_PARAMS = {"numFragments": 1, "overlap": 0, "checkpointInterval": 4, "numCheckpointParts": 1, "memberBond": 10**9}
NUM_ROUNDS = 24
"""More than stay in the state."""


def play_contracts(rules: int) -> Iterator[tuple[str, str]]:
    """Yield each chapter's name and mark, under ``rules`` from block 1 on."""
    params = ContractParams(rules=rules, node_bond=0, challenge_blocks=10, jail_blocks=30, unbond_blocks=20)
    chain = Chain(params=params)
    parameters = ChainParameters(
        chain_id="history", evm_chain_id=1, genesis_hash=Hash(GENESIS_HASH), gas_limit=10**7, base_fee=Amount(1)
    )
    save_parameters(chain.state, parameters)
    yield "committee", _mark(chain)
    _lease(chain)
    yield "leases", _mark(chain)
    _challenge(chain)
    yield "challenges", _mark(chain)
    _leave(chain)
    yield "a node leaves", _mark(chain)
    run = _train(chain)
    yield "rounds", _mark(chain)
    _go_silent(chain, run)
    yield "silent members", _mark(chain)
    _validate(chain)
    yield "validators", _mark(chain)
    _punish(chain)
    yield "a double sign", _mark(chain)
    _govern(chain)
    yield "governance", _mark(chain)
    assert chain.total_money() == chain.minted - WEI, "what the double sign has cost"


def _mark(chain: Chain) -> str:
    root = Tree().update(list(chain.state.iterate(b"", b"\xff" * 8))).root
    logs = sha256(pack([[log.address, list(log.topics), log.data] for log in chain.logs]))
    return f"{root.hex()} {logs.hex()[:16]}"


def _lease(chain: Chain) -> None:
    for name, tier, blocks in (("alice", Tier.HOT, 900), ("bob", Tier.TEMPORARY, 300), ("cem", Tier.HOT, 500)):
        certificate = chain.certificate(make_hash(name), tier=tier, expiry=chain.height + blocks)
        chain.call("Storage", "certify", certificate, sender=name, value=WEI)
    chain.advance(120)
    chain.call("Storage", "renew", make_hash("alice"), chain.height + 2_000, sender="alice", value=WEI)
    chain.call("Storage", "release", make_hash("cem"), sender="cem")
    chain.advance(320)


def _challenge(chain: Chain) -> None:
    for node in chain.nodes:
        chain.call("Storage", "addNodeBond", sender=node.operator, value=10 * WEI)
    encoded = encode_blob(bytes(range(250)) * 40, num_data=2, num_shards=4, leaf_bytes=LEAF_BYTES)
    size = encoded.header.size_bytes
    certificate = chain.certificate(encoded.blob, tier=Tier.HOT, size=size, expiry=chain.height + 4_000)
    chain.call("Storage", "certify", certificate, sender="alice", value=WEI)
    for seat in range(3):
        chain.call("Storage", "challenge", encoded.blob, seat, 1, sender="eve", value=WEI // 10)
    other = make_hash("alice")
    chain.call("Storage", "challenge", other, 0, 5, sender="eve", value=WEI // 10)  # the same node's second
    chain.advance(4)
    shard = b"".join(encoded.shards[0])
    hashes = compute_leaf_hashes(shard, leaf_bytes=LEAF_BYTES)
    proof = encode_proof(compute_proof(hashes, 1, size_bytes=len(shard), leaf_bytes=LEAF_BYTES))
    answer = (encode_header(encoded.header), shard[LEAF_BYTES : 2 * LEAF_BYTES], proof)
    chain.call("Storage", "answerChallenge", encoded.blob, 0, *answer, sender="anybody")
    chain.advance(20)
    assert len(chain.events("NodeSlashed")) == 3


def _leave(chain: Chain) -> None:
    chain.call("Storage", "retireNode", sender=chain.nodes[0].operator)
    chain.add_node("fifth")
    chain.add_node("sixth")
    chain.advance_to_epoch()
    chain.advance(200)


def _train(chain: Chain) -> int:
    run = chain.create_run(**ROUND_PARAMS, isAllowListed=True, rewardPerUpdate=10**9)
    members = [make_address(name) for name in ("ann", "bob", "dan")]
    chain.call("Training", "allow", run, members, True, sender="owner")
    chain.join(run, "ann", "bob", "dan", value=10**9)
    chain.advance()
    for t in range(NUM_ROUNDS):
        names = ("ann", "bob", "dan") if t % 3 else ("ann", "bob")  # dan sits some out
        for name in names:
            chain.commit(run, t, name)
        while chain.struct("Training", "round", run, t)["state"] == 1:
            chain.advance()
        chain.attest(run, t, "ann", "bob", "dan", refused=int(t == 5))
        chain.advance()
        version = t + 1
        if version % ROUND_PARAMS["checkpointInterval"] == 0:
            uploader = chain.view("Training", "checkpointPartOf", run, version)[0]
            chain.store_part(run, version, 0, sender=uploader)
            chain.advance()
    assert chain.struct("Training", "run", run)["numSettled"] == NUM_ROUNDS
    return run


def _go_silent(chain: Chain, run: int) -> None:
    """Timers alone: nobody votes, members drop out, one leaves."""
    chain.commit(run, NUM_ROUNDS, "ann")
    chain.advance(700)
    assert chain.events("RoundVoided") or chain.events("MemberDropped")
    chain.call("Training", "leave", run, sender="dan")
    chain.advance(30)


def _make_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"\0"))


def _public(name: str) -> bytes:
    return _make_key(name).public_key().public_bytes_raw()


def _validate(chain: Chain) -> None:
    for name, bond in (("vera", 30), ("wim", 20), ("xan", 10)):
        proof = _make_key(name).sign(make_registration_message(GENESIS_HASH, make_address(name)))
        chain.call("Staking", "registerValidator", _public(name), proof, sender=name, value=bond * WEI)
    chain.advance()
    chain.call("Staking", "bond", sender="xan", value=3 * WEI + 1)
    chain.call("Staking", "unbond", 5 * WEI, sender="vera")
    chain.advance(25)


def _punish(chain: Chain) -> None:
    address = compute_consensus_address(_public("wim"))
    record_evidence(chain.state, [Evidence(address=address, height=chain.height - 2, kind=1)])
    chain.advance(40)
    chain.call("Staking", "unjail", sender="wim")
    chain.advance(2)


def _govern(chain: Chain) -> None:
    for name, value in (("gasLimit", 20_000_000), ("jailBlocks", 50)):
        proposal = chain.call("Staking", "propose", name, value, chain.height + 5, sender="xan")
        chain.call("Staking", "approve", proposal, sender="vera")  # two thirds and one wei, with xan
    chain.advance(8)
    assert len(chain.events("ParameterChanged")) == 2
