"""The light client against a real chain, and against liars of every kind."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain.core import light
from chain.core.accounts import ACCOUNT_PREFIX, get_account
from chain.core.errors import InvalidProof
from chain.core.hashing import sha256
from chain.core.light import (
    BlockId,
    Commit,
    CommitVote,
    Header,
    LightBlock,
    LightError,
    LightValidator,
    Moment,
    NotEnoughPower,
    WrongHash,
    compute_header_hash,
    compute_merkle_root,
    compute_set_hash,
    encode_vote,
    sort_validators,
)
from chain.core.smt import Tree
from chain.light_client import LightClient, SourceFailed, TrustExpired, VerifiedState, read_moment

CHAIN_ID = "light-test"
NOW = 1_800_000_000


class FakeChain:
    """Makes signed headers of any validator sets, and answers like CometBFT's RPC."""

    url = "fake"

    def __init__(self, sets: Mapping[int, Mapping[int, int]], num_blocks: int) -> None:
        """``sets``: first height -> {key seed: power}."""
        self.sets = sets
        self.num_blocks = num_blocks
        self.tree = Tree().update([(b"a/key", b"value"), (b"a/empty", b"")])
        self.pairs = {b"a/key": b"value", b"a/empty": b""}
        self.absent: set[int] = set()
        self.forge: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda method, answer: answer
        self.asked: list[int] = []

    def key(self, seed: int) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)

    def validators(self, height: int) -> list[tuple[LightValidator, Ed25519PrivateKey]]:
        chosen = self.sets[max(first for first in self.sets if first <= height)]
        by_key = {self.key(seed).public_key().public_bytes_raw(): (seed, power) for seed, power in chosen.items()}
        found = sort_validators([LightValidator(key=key, power=power) for key, (_, power) in by_key.items()])
        return [(each, self.key(by_key[each.key][0])) for each in found]

    def set_hash(self, height: int) -> bytes:
        return compute_set_hash([each for each, _ in self.validators(height)])

    def block(self, height: int) -> LightBlock:
        header = Header(
            block_version=11,
            app_version=1,
            chain_id=CHAIN_ID,
            height=height,
            time=Moment(seconds=NOW + height, nanos=5),
            last_block_id=BlockId(hash=sha256(b"%d" % (height - 1)), num_parts=1, parts_hash=bytes(32)),
            last_commit_hash=sha256(b"c"),
            data_hash=sha256(b""),
            validators_hash=self.set_hash(height),
            next_validators_hash=self.set_hash(height + 1),
            consensus_hash=sha256(b"p"),
            app_hash=self.tree.root,
            last_results_hash=b"",
            evidence_hash=sha256(b""),
            proposer_address=bytes(20),
        )
        block_id = BlockId(hash=compute_header_hash(header), num_parts=1, parts_hash=sha256(b"parts"))
        unsigned = Commit(height=height, round=0, block_id=block_id, votes=())
        votes = []
        validators = self.validators(height)
        for validator, key in validators:
            vote = CommitVote(
                flag=light.FLAG_COMMIT,
                address=sha256(validator.key)[:20],
                time=Moment(seconds=NOW + height, nanos=7),
                signature=b"",
            )
            if key.private_bytes_raw()[0] in self.absent:
                votes.append(CommitVote(flag=1, address=b"", time=vote.time, signature=b""))
                continue
            signature = key.sign(encode_vote(unsigned, vote, CHAIN_ID))
            votes.append(CommitVote(flag=vote.flag, address=vote.address, time=vote.time, signature=signature))
        commit = Commit(height=height, round=0, block_id=block_id, votes=tuple(votes))
        return LightBlock(header=header, commit=commit, validators=tuple(each for each, _ in validators))

    def genesis(self) -> dict[str, Any]:
        listed = [{"pub_key": _show_key(each.key), "power": str(each.power)} for each, _ in self.validators(1)]
        return {"chain_id": CHAIN_ID, "initial_height": "1", "validators": listed}

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return self.forge(method, copy.deepcopy(self._answer(method, params)))

    def _answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "status":
            return {"sync_info": {"latest_block_height": str(self.num_blocks)}}
        if method == "abci_query":
            key = bytes.fromhex(params["data"])
            proof = self.tree.prove(key)
            import msgpack

            data = msgpack.packb([list(proof.siblings), list(proof.other_leaf or ())])
            return {
                "response": {
                    "height": str(self.num_blocks - 1),
                    "value": base64.b64encode(self.pairs.get(key, b"")).decode(),
                    "proofOps": {"ops": [{"data": base64.b64encode(data).decode()}]},
                }
            }
        height = int(params["height"])
        block = self.block(height)
        if method == "validators":
            listed = [{"pub_key": _show_key(each.key), "voting_power": str(each.power)} for each in block.validators]
            return {"validators": listed}
        self.asked.append(height)
        return {"signed_header": {"header": _show_header(block.header), "commit": _show_commit(block.commit)}}

    def client(self, **options: Any) -> LightClient:
        return LightClient(self, genesis=self.genesis(), read_clock=lambda: NOW + 100, **options)


def _show_key(key: bytes) -> dict[str, str]:
    return {"type": "tendermint/PubKeyEd25519", "value": base64.b64encode(key).decode()}


def _show_moment(moment: Moment) -> str:
    import datetime

    whole = datetime.datetime.fromtimestamp(moment.seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{moment.nanos:09d}Z"


def _show_id(block_id: BlockId) -> dict[str, Any]:
    parts = {"total": block_id.num_parts, "hash": block_id.parts_hash.hex()}
    return {"hash": block_id.hash.hex(), "parts": parts}


def _show_header(header: Header) -> dict[str, Any]:
    names = [name for name in Header.__dataclass_fields__ if name.endswith(("_hash", "_address"))]
    return {
        "version": {"block": str(header.block_version), "app": str(header.app_version)},
        "chain_id": header.chain_id,
        "height": str(header.height),
        "time": _show_moment(header.time),
        "last_block_id": _show_id(header.last_block_id),
        **{name: getattr(header, name).hex().upper() for name in names},
    }


def _show_commit(commit: Commit) -> dict[str, Any]:
    return {
        "height": str(commit.height),
        "round": commit.round,
        "block_id": _show_id(commit.block_id),
        "signatures": [
            {
                "block_id_flag": vote.flag,
                "validator_address": vote.address.hex(),
                "timestamp": _show_moment(vote.time),
                "signature": base64.b64encode(vote.signature).decode(),
            }
            for vote in commit.votes
        ],
    }


FOUR = {1: 10, 2: 10, 3: 10, 4: 10}


def test_a_value_an_empty_one_and_an_absent_one_are_read() -> None:
    client = FakeChain({1: FOUR}, 50).client()
    assert client.read(b"a/key") == (b"value", 49)
    assert client.read(b"a/empty") == (b"", 49)
    assert client.read(b"a/none") == (None, 49)
    state = VerifiedState(client)
    assert state.get(b"a/key") == b"value"
    with pytest.raises(LightError, match="can't list keys"):
        state.iterate(b"a", b"b")


def test_an_unchanged_set_takes_one_step() -> None:
    chain = FakeChain({1: FOUR}, 10_000)
    client = chain.client()
    client.verify_height(10_000)
    assert chain.asked == [1, 10_000]


def test_a_changing_set_is_followed_by_halving() -> None:
    sets = {first: dict.fromkeys(range(index, index + 4), 10) for index, first in enumerate(range(1, 1000, 100), 1)}
    chain = FakeChain(sets, 1000)
    client = chain.client()
    assert client.verify_height(1000).header.height == 1000
    assert 3 < len(chain.asked) < 60
    assert client.verify_height(1000).header.height == 1000, "already there"


def test_a_set_replaced_at_once_needs_the_block_between() -> None:
    chain = FakeChain({1: FOUR, 60: {5: 1, 6: 1}}, 100)
    chain.client().verify_height(100)
    assert 59 in chain.asked
    assert 60 in chain.asked


def test_a_trusted_hash_instead_of_genesis() -> None:
    chain = FakeChain({1: FOUR, 60: {5: 1, 6: 1}}, 100)
    trust = compute_header_hash(chain.block(80).header)
    client = chain.client(trust_height=80, trust_hash=trust)
    client.verify_height(100)
    assert chain.asked == [80, 100]
    with pytest.raises(LightError, match="older than the trusted block"):
        client.verify_height(50)
    with pytest.raises(WrongHash, match="header of block 80"):
        chain.client(trust_height=80, trust_hash=bytes(32))


def test_an_old_trusted_block_is_not_trusted() -> None:
    chain = FakeChain({1: FOUR}, 10)
    client = LightClient(chain, genesis=chain.genesis(), read_clock=lambda: NOW + 8 * 24 * 3600)
    with pytest.raises(TrustExpired, match="is 191 h old, at most 168 h"):
        client.verify_height(10)


def test_exactly_two_thirds_are_not_enough() -> None:
    chain = FakeChain({1: {1: 10, 2: 10, 3: 10}}, 10)
    chain.absent = {3}
    with pytest.raises(NotEnoughPower, match="signed by 20 of 30"):
        chain.client()
    chain = FakeChain({1: FOUR}, 10)
    chain.absent = {4}
    chain.client().verify_height(10)


def test_genesis_of_another_chain() -> None:
    chain = FakeChain({1: FOUR}, 10)
    with pytest.raises(WrongHash, match="validator set of genesis"):
        LightClient(chain, genesis={**chain.genesis(), "validators": []})
    with pytest.raises(light.WrongHeader, match="chain id of the header is light-test, expected other"):
        LightClient(chain, genesis={**chain.genesis(), "chain_id": "other"})


LIES: dict[str, tuple[str, Callable[[dict[str, Any]], object], type[Exception]]] = {
    "value": (
        "abci_query",
        lambda answer: answer["response"].update(value=base64.b64encode(b"lie").decode()),
        InvalidProof,
    ),
    "absence": ("abci_query", lambda answer: answer["response"].update(value=""), InvalidProof),
    "no proof": ("abci_query", lambda answer: answer["response"].pop("proofOps"), SourceFailed),
    "app hash": (
        "commit",
        lambda answer: answer["signed_header"]["header"].update(app_hash="00" * 32),
        WrongHash,
    ),
    "time": (
        "commit",
        lambda answer: answer["signed_header"]["header"].update(time="2020-01-01T00:00:00Z"),
        WrongHash,
    ),
    "other height": (
        "commit",
        lambda answer: answer["signed_header"]["header"].update(height="7"),
        light.WrongHeader,
    ),
    "signature": (
        "commit",
        lambda answer: answer["signed_header"]["commit"]["signatures"][0].update(
            signature=base64.b64encode(bytes(64)).decode()
        ),
        light.InvalidCommitSignature,
    ),
    "vote twice": (
        "commit",
        lambda answer: answer["signed_header"]["commit"].update(
            signatures=answer["signed_header"]["commit"]["signatures"][:1] * 4
        ),
        NotEnoughPower,
    ),
    "votes missing": (
        "commit",
        lambda answer: answer["signed_header"]["commit"].update(signatures=[]),
        NotEnoughPower,
    ),
    "garbage": ("commit", lambda answer: answer["signed_header"].pop("header"), SourceFailed),
    "power": (
        "validators",
        lambda answer: answer["validators"][0].update(voting_power="1000"),
        WrongHash,
    ),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_liar_is_found_out(kind: str) -> None:
    method, lie, expected = LIES[kind]
    chain = FakeChain({1: FOUR}, 50)
    client = chain.client()

    def forge(asked: str, answer: dict[str, Any]) -> dict[str, Any]:
        if asked == method:
            lie(answer)
        return answer

    chain.forge = forge
    with pytest.raises(expected):
        client.read(b"a/key")
    chain.forge = lambda method, answer: answer
    assert client.read(b"a/key") == (b"value", 49), "nothing wrong was believed"


def test_a_forged_chain_of_strangers_is_refused() -> None:
    """Validators that nobody trusts sign whatever they like: their set is reached from no trusted one."""
    honest = FakeChain({1: FOUR}, 50)
    client = honest.client()
    strangers = FakeChain({1: {11: 10, 12: 10, 13: 10}}, 50)
    client._source = strangers
    with pytest.raises(LightError):
        client.read(b"a/key")


def test_moments() -> None:
    assert read_moment("2026-11-30T08:30:01.000000007Z") == Moment(seconds=1_796_027_401, nanos=7)
    assert read_moment("2026-11-30T08:30:01.5Z").nanos == 500_000_000
    assert read_moment("1970-01-01T00:00:00Z") == Moment(seconds=0, nanos=0)


def test_merkle_roots_of_rfc_6962() -> None:
    """Certificate Transparency's own vectors."""
    leaves = [b"", b"\x00", b"\x10", b"\x20\x21", b"\x30\x31", b"\x40\x41\x42\x43"]
    assert compute_merkle_root([]).hex() == sha256(b"").hex()
    assert compute_merkle_root(leaves[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert compute_merkle_root(leaves[:2]).hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    assert compute_merkle_root(leaves[:3]).hex() == "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"
    assert compute_merkle_root(leaves[:6]).hex() == "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"


def test_a_block_of_the_real_cometbft(golden_block: dict[str, Any]) -> None:
    """Recorded from CometBFT v0.38.25: hashes and signatures that nobody here computed."""

    class Recorded:
        url = "recorded"

        def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = golden_block[f"{method} {params.get('height', '')}".strip()]
            return answer

    seconds = read_moment(golden_block["commit 1"]["signed_header"]["header"]["time"]).seconds
    client = LightClient(Recorded(), genesis=golden_block["genesis"], read_clock=lambda: seconds)
    value, height = client.read(bytes.fromhex(golden_block["key"]))
    assert value is not None
    assert value.hex() == golden_block["value"]
    assert client.trusted.header.height == height + 1
    address = bytes.fromhex(golden_block["key"])[len(ACCOUNT_PREFIX) :]
    assert get_account(VerifiedState(client), address)[1] > 0  # type: ignore[arg-type]


@pytest.fixture
def golden_block() -> dict[str, Any]:
    from pathlib import Path

    path = Path(__file__).parents[1] / "vectors" / "light_block.json"
    document: dict[str, Any] = json.loads(path.read_text())
    return document
