"""Everything that storage says no with, one class per reason (storage/SPEC.md 6).

    StorageError
    |- InvalidTierPolicy         a tier's data would lose bytes, or contradicts itself
    |- InvalidRetention          a policy that keeps nothing, or a catalogue that is none
    |- InvalidAccusationPolicy   a node that would challenge at once, or without limit
    |- MalformedRecord           bytes on disk that are not one of our records
    |- StoreRefusal              a node's answer to one request; it changed nothing
    |  |- MalformedRequest  LengthRequired  TierUnavailable
    |  |- WrongEpoch  NotMySeat  ChainNotKnown
    |  |- UnknownShard  BlobExpired  RangeNotSatisfiable
    |  |- ShardTooLarge  RootMismatch
    |  |- StoreBusy  UploadInterrupted  ShelfUnavailable
    |  `- QuotaExceeded  DiskFull  DiskFailed  IndexFull
    |- RebuildFailed             fewer than k other seats have a good shard
    |- MalformedArchive          not an archive of ours, or its base is another one
    |- ChainUnreachable          no --chain URL answers
    |- WrongChain                this home belongs to another chain
    |- NotFunded                 an account has less than what comes next costs; names the chain
    |- WrongReceiptKey           the operator is registered with another receipt key
    |- HomeInUse                 another process holds this home
    |- AddressTaken              something else listens there
    |- UnknownBlob               the chain has no certificate for this id
    |- NoCommittee               no storage node has a seat
    |- BlobReleased              its last lease has ended
    |- CommitteeSizeChanged      a blob can't move to a committee of another size under its id
    `- InvalidBlobText           not 64 hexadecimal digits

Invariant: the message holds the value, what was expected and, where there is one, the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from contracts.bindings.amounts import format_tokens
from da.core.errors import SeatFault
from da.core.types import Epoch, Height


class StorageError(Exception):
    """Root of every expected failure of the storage package."""

    next_step: ClassVar[str] = ""
    """What a person can do about it; empty where the message says it, or where only programs see it."""


class InvalidTierPolicy(StorageError):
    """A tier's fields contradict each other or are known to lose data."""

    next_step = "take the tiers as they are declared"


class InvalidRetention(StorageError):
    """A retention policy contradicts itself, or its catalogue can't be read."""

    next_step = "correct --hot, --cold-every, --cold and --grace, or move the catalogue away to begin anew"


class InvalidAccusationPolicy(StorageError):
    """When a node challenges others makes no sense."""

    def __init__(self, *, strikes: int, min_blocks: int, every_blocks: int) -> None:
        self.strikes, self.min_blocks, self.every_blocks = strikes, min_blocks, every_blocks
        super().__init__(
            f"{strikes} failed audits over {min_blocks} blocks, one challenge in {every_blocks} blocks: expected at "
            "least 1, 0 and 1; next: raise --challenge-after or --challenge-every, or give --no-challenge"
        )


class MalformedRecord(StorageError):
    """A record on disk has another layout, or its checksum differs."""

    next_step = "run storage-node doctor on this home"


class StoreRefusal(StorageError):
    """A node refuses one request; nothing of it stays behind."""

    retry_after_seconds: ClassVar[int | None] = None
    """What the answer says in Retry-After; None: repeating the same request is pointless."""


class MalformedRequest(StoreRefusal):
    """The request can't be read as one of this API."""


class LengthRequired(StoreRefusal):
    """A PUT must say how long its body is."""

    def __init__(self) -> None:
        super().__init__("Content-Length missing: a shard's length must be known before its body is read")


class TierUnavailable(StoreRefusal):
    """No store of this version keeps the tier; it may be declared."""

    next_step = "give --tier temporary, hot or cold"

    def __init__(self, *, tier: str, served: tuple[str, ...]) -> None:
        self.tier = tier
        self.served = served
        super().__init__(f"tier {tier} is not kept by stores of this version, expected one of {', '.join(served)}")


class WrongEpoch(StoreRefusal):
    """The named epoch is neither the chain's current one nor the one before."""

    def __init__(self, *, got: Epoch, accepted: tuple[Epoch, ...]) -> None:
        self.got = got
        self.accepted = accepted
        names = ", ".join(str(epoch) for epoch in accepted) or "none yet"
        super().__init__(f"epoch {got}, accepted {names}; read Storage.epoch() and ask its committee")


class ChainNotKnown(StoreRefusal):
    """This node has not reached its chain since it started, so it can't know who has a seat."""

    retry_after_seconds = 5

    def __init__(self) -> None:
        super().__init__("this node has not reached its chain yet; reads work, writes wait for the committee")


class NotMySeat(StoreRefusal):
    """The seat belongs to another node's key."""

    def __init__(self, *, epoch: Epoch, seat: int, seats: tuple[int, ...]) -> None:
        self.epoch = epoch
        self.seat = seat
        self.seats = seats
        held = ", ".join(str(index) for index in seats) or "none"
        super().__init__(f"seat {seat} of epoch {epoch} is not this node's, which holds: {held}")


class UnknownShard(StoreRefusal):
    """Nothing is kept under this name."""

    def __init__(self, *, blob: bytes, shard: int | None) -> None:
        self.blob = blob
        self.shard = shard
        what = "no shard" if shard is None else f"no shard {shard}"
        super().__init__(f"{what} of blob {blob.hex()} is kept here")


class BlobExpired(StoreRefusal):
    """The asked expiry is in the past."""

    def __init__(self, *, expiry: Height, height: Height) -> None:
        self.expiry = expiry
        self.height = height
        super().__init__(f"expiry {expiry} is not after height {height}: ask for a later expiry")


class RangeNotSatisfiable(StoreRefusal):
    """The Range header asks for bytes that the shard does not have."""

    def __init__(self, *, asked: str, shard_bytes: int) -> None:
        self.asked = asked
        self.shard_bytes = shard_bytes
        super().__init__(f"range {asked!r} lies outside of the shard's {shard_bytes} bytes")


class ShardTooLarge(StoreRefusal):
    """The body is longer than the header's layout says, or than this node takes."""

    def __init__(self, *, got: int, maximum: int) -> None:
        self.got = got
        self.maximum = maximum
        super().__init__(f"shard of {got} bytes, expected at most {maximum}")


class RootMismatch(StoreRefusal):
    """The body hashes to another root than the header's for this seat."""

    def __init__(self, *, shard: int, expected: bytes, got: bytes) -> None:
        self.shard = shard
        self.expected = expected
        self.got = got
        super().__init__(f"shard {shard} hashes to {got.hex()}, its header says {expected.hex()}")


class BadlyEncoded(StoreRefusal):
    """The shard is under its root, but off the code; or its header has no folds to tell."""


class StoreBusy(StoreRefusal):
    """Room or a slot is taken by uploads that are under way; later it may fit."""

    retry_after_seconds = 1

    def __init__(self, *, what: str, got: int, maximum: int) -> None:
        self.what = what
        self.got = got
        self.maximum = maximum
        super().__init__(f"busy: {what} would be {got}, at most {maximum}; try again in a second")


class UploadInterrupted(StoreRefusal):
    """The body ended early, or nothing came for too long."""

    retry_after_seconds = 1

    def __init__(self, *, got: int, expected: int) -> None:
        self.got = got
        self.expected = expected
        super().__init__(f"the body ended after {got} of {expected} bytes; send it again")


class UploadTooSlow(StoreRefusal):
    """The body comes so slowly that it keeps others out."""

    retry_after_seconds = 1

    def __init__(self, *, got: int, expected: int, minimum: int) -> None:
        self.got = got
        self.expected = expected
        self.minimum = minimum
        super().__init__(
            f"the body came slower than {minimum} bytes a second, {got} of {expected} bytes are here; send it again"
        )


class ShelfUnavailable(StoreRefusal):
    """The bucket of cold shards does not answer, or answers with an error."""

    next_step = "check --cold-bucket, --cold-endpoint and the AWS_* variables"

    retry_after_seconds = 5

    def __init__(self, *, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"cold storage: {what}: {reason}; try again, the operator checks the bucket")


class QuotaExceeded(StoreRefusal):
    """The node's capacity is used up by what it has promised to keep."""

    retry_after_seconds = 60

    def __init__(self, *, asked: int, used: int, capacity: int) -> None:
        self.asked = asked
        self.used = used
        self.capacity = capacity
        super().__init__(f"{asked} bytes do not fit: {used} of {capacity} are used; wait for leases to end")


class DiskFull(StoreRefusal):
    """The filesystem is full, though the quota is not."""

    retry_after_seconds = 60

    def __init__(self, *, asked: int, free: int, floor: int) -> None:
        self.asked = asked
        self.free = free
        self.floor = floor
        super().__init__(
            f"{asked} bytes do not fit: the filesystem has {free} free, of which {floor} stay free; "
            "the operator must free space"
        )


class DiskFailed(StoreRefusal):
    """The medium, or a database on it, fails; what can be read is served on."""

    next_step = "look at the system's log for the disk of the node's home, then run storage-node doctor on it"

    retry_after_seconds = 30

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the store's disk fails: {reason}; take another store, the operator must look at it")


class IndexFull(StoreRefusal):
    """The index's map is full; reads and deletes still work, a restart grows it."""

    next_step = "restart the node: the map grows at start"

    retry_after_seconds = 60

    def __init__(self, *, map_bytes: int) -> None:
        self.map_bytes = map_bytes
        super().__init__(f"the index's map of {map_bytes} bytes is full; it grows when the node restarts")


class RebuildFailed(StorageError):
    """Too few good shards are left to rebuild one; the seats that failed are named."""

    next_step = "start its storage nodes again: repair goes on by itself"

    def __init__(self, *, blob: bytes, shard: int, expected: int, got: int, faults: Sequence[SeatFault]) -> None:
        self.blob = blob
        self.shard = shard
        self.faults = tuple(faults)
        named = "; ".join(f"seat {fault.seat}: {fault.reason}" for fault in faults)
        super().__init__(
            f"shard {shard} of blob {blob.hex()}: {got} seats are left, {expected} needed"
            + (f" ({named})" if named else "")
        )


class MalformedArchive(StorageError):
    """Bytes that are not an archive, are cut, or do not give what their digest says."""

    next_step = "check that the id is an archive's, as storage archive printed it, and use storage get for others"


class ChainUnreachable(StorageError):
    """No chain URL answered in time."""

    next_step = "see that chain-node runs there, or give another --chain"


class WrongChain(StorageError):
    """The home directory has shards of another chain."""

    def __init__(self, *, home: str, expected: bytes, got: bytes) -> None:
        self.expected = expected
        self.got = got
        super().__init__(
            f"{home} belongs to chain {expected.hex()}, the URL serves chain {got.hex()}; "
            "next: give another --home, or the other chain's --chain"
        )


class NotFunded(StorageError):
    """An account has less than what comes next will cost; the deadline for funds has passed, where there is one."""

    def __init__(self, *, address: str, balance: int, needed: int, where: str, what: str = "registration") -> None:
        """``where`` names the chain: the account may have money on another one."""
        self.address = address
        self.balance = balance
        self.needed = needed
        missing = needed - balance
        super().__init__(
            f"account {address} has {format_tokens(balance)} {where}, {what} needs "
            f"{format_tokens(needed)}, {missing} wei more; next: send it {format_tokens(missing)} or more there, "
            f"on a devnet: localnet fund {address}"
        )


class WrongReceiptKey(StorageError):
    """The chain knows the operator with a key that this home does not have."""

    def __init__(self, *, address: str, expected: bytes, got: bytes) -> None:
        self.expected = expected
        self.got = got
        super().__init__(
            f"account {address} is registered with receipt key {expected.hex()}, this home has {got.hex()}; "
            "next: use the home that registered it, or another --key-file"
        )


class HomeInUse(StorageError):
    """Another process holds the lock of this home."""

    def __init__(self, *, home: str) -> None:
        self.home = home
        super().__init__(f"{home} is in use by another storage-node; next: stop it, or give another --home")


class AddressTaken(StorageError):
    """The listening address can't be had."""

    def __init__(self, *, host: str, port: int, reason: str) -> None:
        self.host = host
        self.port = port
        super().__init__(f"can't listen on {host}:{port}: {reason}; next: choose another address with --listen")


class UnknownBlob(StorageError):
    """The chain has never certified this blob, or has forgotten it after its release."""

    def __init__(self, *, blob: bytes) -> None:
        self.blob = blob
        super().__init__(f"the chain knows no certified blob {blob.hex()}; next: check the id and the --chain URL")


class NotYourLease(StorageError):
    """The account pays for no lease of the blob: it has ended, or somebody else's key put it."""

    def __init__(self, *, blob: bytes, owner: str) -> None:
        self.blob = blob
        self.owner = owner
        super().__init__(
            f"{owner} pays for no lease of blob {blob.hex()}: it has ended, or another key put it; "
            "next: give the --key-file that put it; `storage stat` names its owner"
        )


class NoCommittee(StorageError):
    """The epoch has no seats."""

    def __init__(self, *, epoch: Epoch) -> None:
        self.epoch = epoch
        super().__init__(
            f"epoch {epoch} has no storage node; next: start one with storage-node start and wait for the next epoch"
        )


class BlobReleased(StorageError):
    """Every lease of the blob has ended, so stores have deleted it, or may any moment."""

    def __init__(self, *, blob: bytes, release_height: int) -> None:
        self.blob = blob
        self.release_height = release_height
        super().__init__(
            f"blob {blob.hex()} was released at height {release_height}: its leases have ended; next: put it again"
        )


class CommitteeSizeChanged(StorageError):
    """The current committee has another number of seats, so another code, so the blob would have another id."""

    def __init__(self, *, blob: bytes, expected: int, got: int) -> None:
        self.blob = blob
        self.expected = expected
        self.got = got
        super().__init__(
            f"blob {blob.hex()} is coded for {expected} seats, the current committee has {got}; "
            f"next: storage get {blob.hex()} -o FILE, then storage put FILE, which gives it a new id"
        )


class LeaseTooShortForTier(StorageError):
    """The chain sells longer leases of this tier only; nothing was uploaded."""

    def __init__(self, *, tier: str, minimum: int, got: int) -> None:
        self.minimum = minimum
        self.got = got
        super().__init__(f"a {tier} lease of {got} blocks, expected at least {minimum}; next: give --blocks {minimum}")


class InvalidBlobText(StorageError):
    """A blob id as people type it is 64 hexadecimal digits, with or without 0x."""

    def __init__(self, *, got: str) -> None:
        self.got = got
        super().__init__(
            f"{got!r} is not a blob id: expected 64 hexadecimal digits, with or without 0x; "
            "next: copy it from storage put or storage ls"
        )
