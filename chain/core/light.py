"""What a light client checks of CometBFT: header hash, validator set hash, commit signatures (v0.38).

A header is believed when validators with more than two thirds of the power of a set that is believed already have
signed it, and more than two thirds of its own set, whose hash it names.  The formats are CometBFT's: protobuf
fields in ascending order without zeros, Merkle trees of RFC 6962.  Invariant: nothing here trusts what it is given;
every check raises a subclass of ``LightError`` with both values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chain.core.errors import ChainError
from chain.core.hashing import sha256
from da.core.receipt import is_signature_valid

FLAG_COMMIT = 2
"""BlockIDFlag of a vote for the block; 1 is absent, 3 is nil."""
PRECOMMIT = 2
"""SignedMsgType of the votes in a commit."""

_VARINT, _FIXED64, _BYTES = 0, 1, 2


class LightError(ChainError):
    """A header or a commit doesn't prove what it should."""


class WrongHash(LightError):
    """Something hashes to another value than the one that names it."""

    def __init__(self, what: str, expected: bytes, got: bytes) -> None:
        """Keep both hashes."""
        super().__init__(f"{what} hashes to {got.hex()}, expected {expected.hex()}: this node lies; next: ask another")
        self.expected = expected
        self.got = got


class WrongHeader(LightError):
    """A header is of another chain or height than was asked for."""

    def __init__(self, what: str, expected: object, got: object) -> None:
        """Keep both values."""
        super().__init__(
            f"{what} of the header is {got}, expected {expected}; next: ask a node of the chain that you mean"
        )
        self.expected = expected
        self.got = got


class NotEnoughPower(LightError):
    """Too few of a validator set have signed."""

    def __init__(self, whose: str, height: int, total: int, got: int) -> None:
        """Keep both powers."""
        super().__init__(
            f"block {height} is signed by {got} of {total} of {whose}'s power, more than {2 * total // 3} are"
            " needed; next: ask another node, this one may lie"
        )
        self.total = total
        self.got = got


class InvalidCommitSignature(LightError):
    """A validator's signature in a commit is wrong."""

    def __init__(self, height: int, address: bytes) -> None:
        """Keep the validator."""
        super().__init__(
            f"signature of validator {address.hex()} on block {height} is wrong: this node lies; next: ask another"
        )
        self.address = address


@dataclass(frozen=True, slots=True, kw_only=True)
class LightValidator:
    """A validator as headers commit to it."""

    key: bytes
    """ed25519, 32 bytes."""
    power: int
    """Positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A protobuf Timestamp."""

    seconds: int
    """Since 1970."""
    nanos: int
    """0 to 999,999,999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockId:
    """Names a block; both empty before the first."""

    hash: bytes
    """Of the header."""
    num_parts: int
    """Of the block as it was gossiped."""
    parts_hash: bytes
    """Root of those parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """CometBFT's block header."""

    block_version: int
    app_version: int
    chain_id: str
    height: int
    time: Moment
    last_block_id: BlockId
    last_commit_hash: bytes
    data_hash: bytes
    validators_hash: bytes
    """Of the set that signs this block."""
    next_validators_hash: bytes
    """Of the set that signs the next."""
    consensus_hash: bytes
    app_hash: bytes
    """Of the state after the block before."""
    last_results_hash: bytes
    evidence_hash: bytes
    proposer_address: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVote:
    """One validator's part of a commit."""

    flag: int
    address: bytes
    time: Moment
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The votes that decided a block, in the order of the validator set."""

    height: int
    round: int
    block_id: BlockId
    votes: tuple[CommitVote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LightBlock:
    """A header with what proves it."""

    header: Header
    commit: Commit
    validators: tuple[LightValidator, ...]
    """The set that signs it, in CometBFT's order."""


def verify_block(block: LightBlock, *, chain_id: str, height: int) -> None:
    """Check a light block against itself: hashes, chain, height, more than two thirds of its own set."""
    header, commit = block.header, block.commit
    if header.chain_id != chain_id:
        raise WrongHeader("chain id", chain_id, header.chain_id)
    if (header.height, commit.height) != (height, height):
        raise WrongHeader("height", height, f"{header.height}, its commit's {commit.height}")
    set_hash = compute_set_hash(block.validators)
    if set_hash != header.validators_hash:
        raise WrongHash(f"validator set of block {height}", header.validators_hash, set_hash)
    header_hash = compute_header_hash(header)
    if header_hash != commit.block_id.hash:
        raise WrongHash(f"header of block {height}", commit.block_id.hash, header_hash)
    verify_commit("its own set", commit, block.validators, chain_id)


def verify_next(trusted: LightBlock, block: LightBlock) -> None:
    """Check the block right after a believed one: the believed one names its set."""
    expected = trusted.header.next_validators_hash
    if block.header.validators_hash != expected:
        raise WrongHash(f"validator set of block {block.header.height}", expected, block.header.validators_hash)


def verify_commit(whose: str, commit: Commit, validators: Sequence[LightValidator], chain_id: str) -> None:
    """Check that more than two thirds of a set's power have signed; signers outside the set don't count."""
    by_address = {sha256(validator.key)[:20]: validator for validator in validators}
    total = sum(validator.power for validator in validators)
    got = 0
    for vote in commit.votes:
        validator = by_address.pop(vote.address, None) if vote.flag == FLAG_COMMIT else None
        if validator is None:
            continue
        if not is_signature_valid(validator.key, vote.signature, encode_vote(commit, vote, chain_id)):
            raise InvalidCommitSignature(commit.height, vote.address)
        got += validator.power
    if 3 * got <= 2 * total:
        raise NotEnoughPower(whose, commit.height, total, got)


def compute_header_hash(header: Header) -> bytes:
    """Return the Merkle root over the header's fields."""
    version = _integer(1, header.block_version) + _integer(2, header.app_version)
    return compute_merkle_root(
        [
            version,
            _bytes(1, header.chain_id.encode()),
            _integer(1, header.height),
            _encode_moment(header.time),
            _encode_block_id(header.last_block_id),
            _bytes(1, header.last_commit_hash),
            _bytes(1, header.data_hash),
            _bytes(1, header.validators_hash),
            _bytes(1, header.next_validators_hash),
            _bytes(1, header.consensus_hash),
            _bytes(1, header.app_hash),
            _bytes(1, header.last_results_hash),
            _bytes(1, header.evidence_hash),
            _bytes(1, header.proposer_address),
        ]
    )


def compute_set_hash(validators: Sequence[LightValidator]) -> bytes:
    """Return the Merkle root over (key, power), in the set's order."""
    leaves = [_message(1, _bytes(1, validator.key)) + _integer(2, validator.power) for validator in validators]
    return compute_merkle_root(leaves)


def sort_validators(validators: Sequence[LightValidator]) -> tuple[LightValidator, ...]:
    """Return a set in CometBFT's order: by power, the highest first, then by address."""
    return tuple(sorted(validators, key=lambda each: (-each.power, sha256(each.key)[:20])))


def encode_vote(commit: Commit, vote: CommitVote, chain_id: str) -> bytes:
    """Return what a validator has signed: a canonical precommit with its length before it."""
    block_id = commit.block_id
    parts = _message(2, _integer(1, block_id.num_parts) + _bytes(2, block_id.parts_hash))
    body = (
        _integer(1, PRECOMMIT)
        + _fixed(2, commit.height)
        + _fixed(3, commit.round)
        + _message(4, _bytes(1, block_id.hash) + parts)
        + _message(5, _encode_moment(vote.time))
        + _bytes(6, chain_id.encode())
    )
    return _varint(len(body)) + body


def compute_merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root of RFC 6962's tree: the left half is the largest power of two below the number of leaves."""
    if not leaves:
        return sha256(b"")
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0])
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + compute_merkle_root(leaves[:split]) + compute_merkle_root(leaves[split:]))


def _encode_moment(moment: Moment) -> bytes:
    return _integer(1, moment.seconds) + _integer(2, moment.nanos)


def _encode_block_id(block_id: BlockId) -> bytes:
    parts = _integer(1, block_id.num_parts) + _bytes(2, block_id.parts_hash)
    return _bytes(1, block_id.hash) + _message(2, parts)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1) if value else b""


def _fixed(number: int, value: int) -> bytes:
    return _varint(number << 3 | _FIXED64) + value.to_bytes(8, "little") if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return _message(number, value) if value else b""


def _message(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
