"""What can go wrong with blobs, one class per reason.

::

    DataAvailabilityError
    +-- InvalidScheme              k, n, s or a committee size outside the code's limits
    +-- SingularMatrix             a choice of shards that does not determine the data (never with our matrix)
    +-- KernelError                the erasure code's arithmetic is missing or wrong on this machine
    +-- BlobTooLarge               more bytes than the format or the reader allows
    +-- SourceChanged              the file that is read has become another one meanwhile
    +-- NotAFile                   a folder, a pipe or a device where bytes of a known length are read or written
    +-- Malformed                  bytes that are no canonical encoding
    |   +-- MalformedHeader
    |   +-- MalformedCertificate
    |   +-- MalformedReceipt
    |   +-- MalformedProof
    |   +-- MalformedMessage       a request or an answer of the node's HTTP API
    |   `-- MalformedSecret        a key file
    +-- BadProof                   a leaf that is not under the root
    +-- BadEncoding                a shard that is off the code, by its fold; a node signs nothing
    +-- FoldsMissing               a header without folds whose shards are too long for that
    +-- InvalidCertificate
    |   +-- WrongGenesis  WrongEpoch  CertificateExpired
    |   +-- NotEnoughSignatures  DuplicateSeat  UnknownSeat
    |   `-- ForgedSignature  BadBatchPath
    +-- SeatFailed                 one seat was of no use; carries its SeatFault
    +-- DisperseFailed
    |   `-- NotEnoughReceipts      names every seat that did not sign, and why
    `-- RetrieveFailed
        +-- HeaderUnavailable      names every seat asked
        +-- NotEnoughShards        names every seat that failed
        +-- WrongShardLength       a shard that can't belong to a blob of this size
        +-- TooManyErrors          without proofs: further from the code than parity reaches
        +-- WrongDigest            ... and what came out is not what was meant
        +-- SealBroken             bytes that the key does not open
        `-- InconsistentBlob       the encoder was wrong: the same verdict for every reader
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DataAvailabilityError(Exception):
    """Root of everything this package raises on purpose."""

    next_step: str = ""
    """What a person can do about it; empty where the message says it, or where only programs see it."""


class InvalidScheme(DataAvailabilityError):
    """A code or a committee outside the limits of the format."""

    next_step = "give another --num-data, or a committee of 1 to 64 seats"


class SingularMatrix(DataAvailabilityError):
    """The chosen shards do not determine the data."""


class KernelError(DataAvailabilityError):
    """The arithmetic of the erasure code cannot be trusted on this machine."""

    next_step = "reinstall pyeclib, or take it away: the system's libisal or numpy does its work"


class BlobTooLarge(DataAvailabilityError):
    """A blob exceeds a limit in bytes."""

    next_step = "split the file"

    def __init__(self, *, limit_bytes: int, got_bytes: int) -> None:
        super().__init__(f"blob of {got_bytes} bytes, at most {limit_bytes} allowed")
        self.limit_bytes = limit_bytes
        self.got_bytes = got_bytes


class SourceChanged(DataAvailabilityError):
    """A file changed while it was being read; nothing is certified."""

    def __init__(self, *, path: str, expected: int, got: int) -> None:
        what = "was written to" if got == expected else f"ends at byte {got}, expected {expected}"
        super().__init__(f"{path} {what} while it was read; next: leave it alone while it is sent, or send a copy")
        self.path = path
        self.expected = expected
        self.got = got


class NotAFile(DataAvailabilityError):
    """A name that stands for no file: a rename would replace a device, and a pipe doesn't say how long it is."""

    def __init__(self, *, path: str, found: str, next_step: str) -> None:
        super().__init__(f"{path} {found}, expected a file; next: {next_step}")
        self.path = path
        self.found = found


class Malformed(DataAvailabilityError):
    """Bytes that are no canonical encoding of what they claim to be."""

    what = "encoding"
    """What they claim to be, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no valid {self.what}: {reason}")
        self.reason = reason


class MalformedHeader(Malformed):
    """No canonical blob header."""

    what = "blob header"


class MalformedCertificate(Malformed):
    """No canonical certificate."""

    what = "certificate"


class MalformedReceipt(Malformed):
    """No canonical receipt."""

    what = "receipt"


class MalformedProof(Malformed):
    """No canonical Merkle proof."""

    what = "Merkle proof"


class MalformedMessage(Malformed):
    """A request or an answer of the node's HTTP API that says nothing."""

    what = "message"


class MalformedSecret(Malformed):
    """No key of the owner's; the message holds nothing of it."""

    what = "key file"

    next_step = "give the file that storage keygen made"


class BadProof(DataAvailabilityError):
    """A leaf is not where its proof says."""


class BadEncoding(DataAvailabilityError):
    """A shard hashes to its root, but is not what the code makes of the data."""

    def __init__(self, *, shard: int, expected: bytes, got: bytes) -> None:
        super().__init__(
            f"shard {shard} is off the code: it folds to {got.hex()}, the header's folds demand {expected.hex()}; "
            "encode the blob again"
        )
        self.shard = shard
        self.expected = expected
        self.got = got


class FoldsMissing(DataAvailabilityError):
    """A node can't check the encoding of shards of this length, because the header has no folds."""

    def __init__(self, *, shard_bytes: int, maximum: int) -> None:
        super().__init__(f"shards of {shard_bytes} bytes without folds, at most {maximum}; use a header of version 3")
        self.shard_bytes = shard_bytes
        self.maximum = maximum


class InvalidCertificate(DataAvailabilityError):
    """A well-formed certificate that certifies nothing here."""


class WrongGenesis(InvalidCertificate):
    """Signed for another chain."""

    def __init__(self, *, expected: bytes, got: bytes) -> None:
        super().__init__(f"certificate for the chain with genesis {got.hex()}, this is {expected.hex()}")
        self.expected = expected
        self.got = got


class WrongEpoch(InvalidCertificate):
    """Signed under another committee."""

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"certificate of committee epoch {got}, expected {expected}; disperse again")
        self.expected = expected
        self.got = got


class CertificateExpired(InvalidCertificate):
    """The promise ends at or before the present height."""

    def __init__(self, *, expiry: int, height: int) -> None:
        super().__init__(f"certificate expires at height {expiry}, the chain is at {height}; disperse again")
        self.expiry = expiry
        self.height = height


class NotEnoughSignatures(InvalidCertificate):
    """Fewer seats signed than the committee's scheme asks for."""

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"{got} signatures, expected at least {expected}")
        self.expected = expected
        self.got = got


class DuplicateSeat(InvalidCertificate):
    """One seat is counted twice."""

    def __init__(self, seat: int) -> None:
        super().__init__(f"seat {seat} signs twice; a seat counts once")
        self.seat = seat


class UnknownSeat(InvalidCertificate):
    """A seat that the committee does not have."""

    def __init__(self, *, seat: int, num_seats: int) -> None:
        super().__init__(f"seat {seat} in a committee of {num_seats} seats")
        self.seat = seat
        self.num_seats = num_seats


class ForgedSignature(InvalidCertificate):
    """A signature that the seat's key did not make over these terms."""

    def __init__(self, *, seat: int, key: bytes) -> None:
        super().__init__(f"signature of seat {seat} does not verify under key {key.hex()}")
        self.seat = seat
        self.key = key


class BadBatchPath(InvalidCertificate):
    """The path of a blob to its batch has a wrong length."""

    def __init__(self, *, index: int, num_blobs: int, expected: int, got: int) -> None:
        super().__init__(f"blob {index} of a batch of {num_blobs} has a path of {got} hashes, expected {expected}")
        self.index = index
        self.num_blobs = num_blobs
        self.expected = expected
        self.got = got


class FaultKind(StrEnum):
    """What a seat did wrong."""

    UNREACHABLE = "unreachable"
    """No connection, or it broke off."""
    TIMEOUT = "timeout"
    """Nothing within the deadline."""
    REFUSED = "refused"
    """An HTTP error, with the node's own words."""
    BAD_RECEIPT = "bad-receipt"
    """It signed something else, or not with its key."""
    BAD_HEADER = "bad-header"
    """The header it gave does not hash to the blob id."""
    BAD_SHARD = "bad-shard"
    """The bytes it gave do not hash to the shard's root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatFault:
    """Why one seat was of no use."""

    seat: int
    """Seat index."""
    url: str
    """Where it was asked."""
    kind: FaultKind
    """What it did."""
    reason: str
    """For people, with both values where there are two."""

    def __str__(self) -> str:
        return f"seat {self.seat} ({self.url}): {self.kind}: {self.reason}"


class SeatFailed(DataAvailabilityError):
    """One call to one seat failed; the others decide whether that matters."""

    def __init__(self, fault: SeatFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class DisperseFailed(DataAvailabilityError):
    """Nothing was certified."""


class NotEnoughReceipts(DisperseFailed):
    """Too few seats signed; ``faults`` names each of the others and its reason."""

    next_step = "repeat the command when these seats answer: what is stored is not sent again"

    def __init__(self, *, expected: int, got: int, faults: tuple[SeatFault, ...]) -> None:
        super().__init__(
            f"{got} receipts, expected at least {expected}; nothing is certified, staged shards expire by "
            f"themselves. {_list_faults(faults)}"
        )
        if faults and all(fault.kind is FaultKind.REFUSED for fault in faults):
            self.next_step = "mend what the seats say, then repeat the command: what is stored is not sent again"
        self.expected = expected
        self.got = got
        self.faults = faults


class RetrieveFailed(DataAvailabilityError):
    """A blob could not be read."""


class HeaderUnavailable(RetrieveFailed):
    """No seat gave a header that hashes to the blob id."""

    next_step = "see that its storage nodes run, or ask storage stat whether its leases have ended"

    def __init__(self, *, blob: bytes, faults: tuple[SeatFault, ...]) -> None:
        super().__init__(f"no seat has the header of blob {blob.hex()}. {_list_faults(faults)}")
        self.blob = blob
        self.faults = faults


class NotEnoughShards(RetrieveFailed):
    """Fewer than k good shards were found."""

    next_step = "start its storage nodes again and repeat the command: what has come is kept where it is a file"

    def __init__(self, *, blob: bytes, expected: int, got: int, faults: tuple[SeatFault, ...]) -> None:
        super().__init__(f"blob {blob.hex()}: {got} good shards, expected {expected}. {_list_faults(faults)}")
        self.blob = blob
        self.expected = expected
        self.got = got
        self.faults = faults


class SealBroken(RetrieveFailed):
    """Sealed bytes do not open."""

    next_step = "give the key file that it was sealed with, and --decrypt only for sealed blobs"

    def __init__(self, reason: str) -> None:
        super().__init__(f"sealed blob: {reason}")
        self.reason = reason


class WrongShardLength(RetrieveFailed):
    """A shard is longer or shorter than the shards of a blob of this size."""

    def __init__(self, *, shard: int, expected: int, got: int) -> None:
        super().__init__(f"shard {shard} has {got} bytes, expected {expected}; next: check size, k and the file")
        self.shard = shard
        self.expected = expected
        self.got = got


class WrongDigest(RetrieveFailed):
    """Bytes that were put together without proofs are not the ones that were meant."""

    next_step = "find another shard, or leave out one that is known to be bad"

    def __init__(self, *, expected: str, got: str) -> None:
        super().__init__(f"the bytes hash to {got}, expected {expected}: too many shards are wrong")
        self.expected = expected
        self.got = got


class TooManyErrors(RetrieveFailed):
    """A word with unknown errors that no code word is near enough to."""

    def __init__(self, *, missing: int, num_parity: int) -> None:
        super().__init__(
            f"with {missing} of the shards missing, {num_parity} parity shards correct "
            f"{max(0, num_parity - missing) >> 1} wrong ones in each place, and here more are wrong; next: find "
            "another shard, or leave out one that is known to be bad"
        )
        self.missing = missing
        self.num_parity = num_parity


@dataclass(frozen=True, slots=True, kw_only=True)
class Inconsistency:
    """What a reader saw of a bad encoding; anybody who takes the same k shards sees it again."""

    seats: tuple[int, ...]
    """The k shards that were decoded, each verified against its root."""
    shard: int
    """The first shard whose root re-encoding does not give; or the first one padded with other bytes than zeros."""
    expected_root: bytes
    """Its root in the header, 32 bytes."""
    computed_root: bytes
    """The root of what re-encoding makes of the k shards; equals ``expected_root`` when only the padding is wrong."""


class InconsistentBlob(RetrieveFailed):
    """The shards are under their roots, but are no code word: the encoder lied.

    Every reader gets this verdict, whichever k shards it took; the message holds nothing that depends on them. What
    does is in ``evidence``.
    """

    next_step = "ask whoever put it to put it again: no reader can get more out of it"

    def __init__(self, *, blob: bytes, evidence: Inconsistency | None = None) -> None:
        super().__init__(f"blob {blob.hex()} is inconsistent: re-encoding does not give its shard roots")
        self.blob = blob
        self.evidence = evidence
        self.proof: object | None = None
        """A ``da.core.inconsistency.LeafEvidence`` that convinces others, where the reader could make one."""


def _list_faults(faults: tuple[SeatFault, ...]) -> str:
    return "; ".join(str(fault) for fault in faults) if faults else "No seat reported a fault"
