"""A light client: reads of the chain's state that need trust in no node, only in a validator set (SPEC.md, Proofs).

It starts from a set that somebody vouches for - that of genesis.json, or a block's hash - and follows headers by
their commit signatures, halving the distance where the set has changed too much.  A state value is believed when
its proof leads to the app hash of such a header.  One node's word is enough: a liar is found out, not believed.
"""

from __future__ import annotations

import base64
import calendar
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgpack

from chain.core.errors import ChainError
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
    compute_set_hash,
    sort_validators,
    verify_block,
    verify_commit,
    verify_next,
)
from chain.core.smt import Proof, verify
from contracts.bindings.client import NO_METHOD_CODE
from contracts.bindings.failures import SEPARATOR
from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.whole_answer import read_within

TIMEOUT_SECONDS = 10.0
"""For one whole answer."""
MAX_ANSWER_BYTES = 256 << 20
"""The longest is a genesis file."""
NEXT_HEADER_SECONDS = 30.0
"""How long the header after a value's block is waited for: it carries the app hash."""
TRUST_SECONDS = 7 * 24 * 3600
"""Age of a header from which on its validators may have taken their bonds back, and nothing stops them from lying."""
POLL_SECONDS = 0.1
"""Between two looks for the next header."""


class SourceFailed(LightError):
    """A node can't be asked."""

    def __init__(self, url: str, reason: str, next_step: str = "ask another node") -> None:
        """Keep the address."""
        super().__init__(f"{url}: {show_foreign(reason)}; next: {next_step}")
        self.url = url


class TrustExpired(LightError):
    """What is trusted is too old to start from."""

    def __init__(self, height: int, age_seconds: int, limit_seconds: int) -> None:
        """Keep the age."""
        super().__init__(
            f"the trusted block {height} is {age_seconds // 3600} h old, at most {limit_seconds // 3600} h are trusted;"
            " next: give the height and hash of a recent block that you know from somebody you trust"
        )
        self.height = height


class Source(Protocol):
    """Somewhere to ask CometBFT's RPC methods."""

    @property
    def url(self) -> str:
        """Address, for messages."""

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a method's result; raises SourceFailed."""


class CometBftSource:
    """CometBFT's own RPC."""

    def __init__(self, url: str) -> None:
        """Ask ``url``, http://host:port."""
        self.url = url

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a method's result; raises SourceFailed."""
        return _post(self.url, method, dict(params))


class JsonRpcSource:
    """The same through a node's Ethereum JSON-RPC, for who knows only that."""

    def __init__(self, url: str) -> None:
        """Ask ``url``, http://host:port."""
        self.url = url

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a method's result; raises SourceFailed."""
        return _post(self.url, "archipelago_consensus", [method, dict(params)])

    def ask_node(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        """Return a method of the node's own, which proves nothing by itself; raises SourceFailed."""
        return _post(self.url, method, list(params))


class LightClient:
    """Follows one chain."""

    def __init__(
        self,
        source: Source,
        *,
        genesis: Mapping[str, Any],
        trust_height: int = 0,
        trust_hash: bytes = b"",
        trust_seconds: int = TRUST_SECONDS,
        read_clock: Callable[[], float] = time.time,
    ) -> None:
        """Trust the validators of ``genesis`` (a parsed genesis.json), or the block of a height and hash."""
        self._source = source
        self._chain_id = str(genesis["chain_id"])
        self._trust_seconds = trust_seconds
        self._read_clock = read_clock
        if trust_height:
            block = self._fetch(trust_height)
            got = compute_header_hash(block.header)
            if got != trust_hash:
                raise WrongHash(f"header of block {trust_height}", trust_hash, got)
            self._trusted = block
        else:
            block = self._fetch(int(genesis.get("initial_height", "1")))
            expected = compute_set_hash(_read_genesis_validators(genesis))
            if block.header.validators_hash != expected:
                raise WrongHash("validator set of genesis", expected, block.header.validators_hash)
            self._trusted = block

    @property
    def chain_id(self) -> str:
        """CometBFT's chain id."""
        return self._chain_id

    @property
    def trusted(self) -> LightBlock:
        """The newest block that was verified."""
        return self._trusted

    def verify_height(self, height: int) -> LightBlock:
        """Return the verified block of a height at or after the trusted one; raises LightError."""
        trusted = self._trusted
        age = int(self._read_clock()) - trusted.header.time.seconds
        if age > self._trust_seconds:
            raise TrustExpired(trusted.header.height, age, self._trust_seconds)
        if height < trusted.header.height:
            raise LightError(f"block {height} is older than the trusted block {trusted.header.height}")
        pending = [height]
        while pending:
            target = pending[-1]
            if target == trusted.header.height:
                pending.pop()
                continue
            block = self._fetch(target)
            if target == trusted.header.height + 1:
                verify_next(trusted, block)
            else:
                try:
                    verify_commit("the trusted set", block.commit, trusted.validators, self._chain_id)
                except NotEnoughPower:
                    pending.append((trusted.header.height + target) // 2)
                    continue
            trusted = block
            pending.pop()
        self._trusted = trusted
        return trusted

    def read(self, key: bytes) -> tuple[bytes | None, int]:
        """Return (value or None, height of the block after which it holds), verified; raises LightError."""
        params = {"path": "/state", "data": key.hex(), "prove": True}
        response = self._source.ask("abci_query", params).get("response", {})
        try:
            height = int(response["height"])
            value = base64.b64decode(response.get("value") or "")
            siblings, other = msgpack.unpackb(base64.b64decode(response["proofOps"]["ops"][0]["data"]))
            proof = Proof(siblings=tuple(siblings), other_leaf=(other[0], other[1]) if other else None)
        except (KeyError, TypeError, IndexError, ValueError, msgpack.exceptions.UnpackException) as error:
            raise SourceFailed(self._source.url, f"no proof in its answer: {error}") from error
        app_hash = self._wait_for(height + 1).header.app_hash
        if value:
            verify(app_hash, key, value, proof)
            return value, height
        try:
            verify(app_hash, key, None, proof)
        except ChainError:
            verify(app_hash, key, b"", proof)
            return b"", height
        return None, height

    def _wait_for(self, height: int) -> LightBlock:
        deadline = time.monotonic() + NEXT_HEADER_SECONDS
        while True:
            newest = int(self._source.ask("status", {})["sync_info"]["latest_block_height"])
            if newest >= height:
                return self.verify_height(height)
            if time.monotonic() > deadline:
                raise SourceFailed(
                    self._source.url, f"block {height} didn't come within {NEXT_HEADER_SECONDS:.0f} s: the chain halted"
                )
            time.sleep(POLL_SECONDS)

    def _fetch(self, height: int) -> LightBlock:
        signed = self._source.ask("commit", {"height": str(height)})
        listed = self._source.ask("validators", {"height": str(height), "per_page": "100"})
        try:
            block = LightBlock(
                header=_read_header(signed["signed_header"]["header"]),
                commit=_read_commit(signed["signed_header"]["commit"]),
                validators=tuple(
                    LightValidator(key=_read_key(each["pub_key"]), power=int(each["voting_power"]))
                    for each in listed["validators"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SourceFailed(self._source.url, f"block {height} can't be read: {error}") from error
        verify_block(block, chain_id=self._chain_id, height=height)
        return block


class VerifiedState:
    """A state of which every value was verified; each read is of the block that is then the newest."""

    def __init__(self, client: LightClient) -> None:
        """Read through ``client``."""
        self._client = client
        self.height = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none; raises LightError."""
        value, self.height = self._client.read(key)
        return value

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Refuse: a proof shows one key."""
        raise LightError("a light client can't list keys, only read them one by one")


def _read_genesis_validators(genesis: Mapping[str, Any]) -> tuple[LightValidator, ...]:
    found: Sequence[Mapping[str, Any]] = genesis.get("validators") or []
    return sort_validators([LightValidator(key=_read_key(each["pub_key"]), power=int(each["power"])) for each in found])


def _read_header(fields: Mapping[str, Any]) -> Header:
    return Header(
        block_version=int(fields["version"]["block"]),
        app_version=int(fields["version"].get("app") or 0),
        chain_id=str(fields["chain_id"]),
        height=int(fields["height"]),
        time=read_moment(fields["time"]),
        last_block_id=_read_block_id(fields["last_block_id"]),
        last_commit_hash=bytes.fromhex(fields["last_commit_hash"]),
        data_hash=bytes.fromhex(fields["data_hash"]),
        validators_hash=bytes.fromhex(fields["validators_hash"]),
        next_validators_hash=bytes.fromhex(fields["next_validators_hash"]),
        consensus_hash=bytes.fromhex(fields["consensus_hash"]),
        app_hash=bytes.fromhex(fields["app_hash"]),
        last_results_hash=bytes.fromhex(fields["last_results_hash"]),
        evidence_hash=bytes.fromhex(fields["evidence_hash"]),
        proposer_address=bytes.fromhex(fields["proposer_address"]),
    )


def _read_commit(fields: Mapping[str, Any]) -> Commit:
    return Commit(
        height=int(fields["height"]),
        round=int(fields["round"]),
        block_id=_read_block_id(fields["block_id"]),
        votes=tuple(
            CommitVote(
                flag=int(vote["block_id_flag"]),
                address=bytes.fromhex(vote["validator_address"]),
                time=read_moment(vote["timestamp"]),
                signature=base64.b64decode(vote["signature"] or ""),
            )
            for vote in fields["signatures"]
        ),
    )


def _read_block_id(fields: Mapping[str, Any]) -> BlockId:
    parts = fields.get("parts") or fields.get("part_set_header") or {}
    return BlockId(
        hash=bytes.fromhex(fields.get("hash") or ""),
        num_parts=int(parts.get("total") or 0),
        parts_hash=bytes.fromhex(parts.get("hash") or ""),
    )


def _read_key(fields: Mapping[str, Any]) -> bytes:
    if fields["type"] != "tendermint/PubKeyEd25519":
        raise ValueError(f"key of type {fields['type']}, expected tendermint/PubKeyEd25519")
    return base64.b64decode(fields["value"])


def read_moment(text: str) -> Moment:
    """Read RFC 3339 in UTC with up to nine decimals: ``2024-01-02T03:04:05.06Z`` has 60,000,000 nanos."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return Moment(seconds=seconds, nanos=int(rest.ljust(9, "0")) if rest else 0)


def _post(url: str, method: str, params: Any) -> dict[str, Any]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        document = json.loads(read_within(request, TIMEOUT_SECONDS, max_bytes=MAX_ANSWER_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceFailed(url, f"doesn't answer: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("result"), dict):
        raise _describe_refusal(url, method, document)
    result: dict[str, Any] = document["result"]
    return result


def _describe_refusal(url: str, method: str, document: Any) -> SourceFailed:
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return SourceFailed(url, f"answers {str(document)[:200]}")
    said = f"{error.get('message')} {error.get('data') or ''}".partition(SEPARATOR)[0].strip()[:200]
    if error.get("code") == NO_METHOD_CODE:
        step = "give the URL of a chain node's JSON-RPC (8545), not of CometBFT's RPC (26657)"
        return SourceFailed(url, f"has no {method}", step)
    if "lowest height is" in said:  # CometBFT's words for a block that it has pruned, or never had
        step = "ask a node that keeps all blocks, or begin from one that it has: --trust-height and --trust-hash"
        return SourceFailed(url, f"doesn't keep a block that is needed: {said}", step)
    return SourceFailed(url, f"answers: {said}")
