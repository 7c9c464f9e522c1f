"""``StorageClient``: any bytes, priced, certified on the chain, verified on read (DESIGN 6, SPEC.md 7).

    put: disperse to the current committee -> certificate -> certify with the fee; a repeated put pays nothing twice
    get: the chain's record of the blob -> the committee of its epoch -> shards, each checked by hash

Thread-safe.  Failures are da's (who failed and why), contracts.bindings' (what the chain said) or storage's own.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ContractError
from contracts.bindings.sender import Sender
from contracts.bindings.types import Blob, BlobState, OwnerAccount, StorageNodeState
from da.blocking import BlobClient
from da.core.certificate import encode_certificate
from da.core.errors import NotEnoughReceipts, SeatFault
from da.core.merkle import BULK_LEAF_BYTES
from da.core.types import BlobId, Certificate, Committee, Epoch, Height, Tier
from da.range_reader import RangeReader, can_read_ranges
from da.retrieval import Retrieved, RetrieveReport
from da.slabs import FileSource, MemorySource, Source
from storage.committees import make_committee
from storage.core.errors import (
    BlobReleased,
    CommitteeSizeChanged,
    InvalidBlobText,
    LeaseTooShortForTier,
    NoCommittee,
    NotFunded,
    NotYourLease,
    UnknownBlob,
)
from storage.core.rehoming import Verdict, judge
from storage.core.tiers import get_served_policy, is_stronger

CERTIFY_BLOCKS = 100
"""Blocks added to a lease for upload and certification, so that it lasts the blocks asked for from then on (30 s)."""

DEFAULT_LEASE_BLOCKS = 100_000
"""Of a put that doesn't say how long, where its tier sells leases so short."""

COMMITTEE_TRIES = 3
"""How often a put that a change of the committee has overtaken is sent to the new one."""

LEAST_GAS = 21_000
"""Of any transaction (yellow paper, appendix G): who can't pay that beside the fee can't certify."""

LISTED_AT_ONCE = 256
"""Of blobsOf (Storage ABI)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What came of a put."""

    blob: BlobId
    size_bytes: int
    tier: Tier
    """The one that is paid for, at least what was asked."""
    expiry: Height
    """Kept at least until this height."""
    fee: int
    """Wei that the lease cost; 0 where an earlier put had paid for it."""
    max_fee: int
    """Wei that were shown beforehand; the difference came back."""
    certificate: Certificate
    faults: tuple[SeatFault, ...]
    """Seats that did not sign, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What came of a renewal."""

    blob: BlobId
    expiry: Height
    fee: int
    """Wei."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehomed:
    """What came of moving a blob to the current committee."""

    blob: BlobId
    epoch: Epoch
    """The committee that keeps it now."""
    gone: tuple[int, ...]
    """Seats of its former committee that do not keep it any more."""
    is_moved: bool
    fee: int
    """Wei; 0 where its lease was paid."""


class StorageClient:
    """Puts and gets blobs over a chain and its storage committee."""

    def __init__(self, chain: ChainClient, blobs: BlobClient) -> None:
        """Use both; the caller closes them."""
        self._chain = chain
        self._blobs = blobs

    def get_epoch(self) -> Epoch:
        """Return the chain's current storage epoch, 0 before the first."""
        return Epoch(self._chain.storage.epoch())

    def committee(self, epoch: Epoch | None = None) -> Committee:
        """Return a committee, the current one by default; URLs are asked anew each time, as nodes may move.

        Raises: NoCommittee when it has no seats.
        """
        number = self.get_epoch() if epoch is None else epoch
        committee = make_committee(number, self._chain.storage.committee(number) if number else ())
        if not committee.seats:
            raise NoCommittee(epoch=number)
        return committee

    def quote(self, *, tier: Tier, size_bytes: int, blocks: int) -> int:
        """Return the exact fee in wei of a lease of ``blocks`` from now, as the chain will charge it."""
        return self._chain.storage.quote(int(tier), size_bytes, blocks)

    def choose_blocks(self, tier: Tier, wanted: int | None) -> int:
        """Return the blocks of a lease: those wanted, else the default or what the tier sells at least.

        Raises: TierUnavailable, LeaseTooShortForTier.
        """
        get_served_policy(tier)
        minimum = next((info.min_blocks for info in self._chain.storage.tiers() if info.id == int(tier)), 0)
        if wanted is not None and wanted < minimum:
            raise LeaseTooShortForTier(tier=tier.name.lower(), minimum=minimum, got=wanted)
        return max(DEFAULT_LEASE_BLOCKS, minimum) if wanted is None else wanted

    def disperse(
        self, data: bytes | bytearray | memoryview, *, tier: Tier, expiry: Height, leaf_bytes: int = BULK_LEAF_BYTES
    ) -> Certificate:
        """Upload to the current committee and return the certificate; nothing is paid or recorded yet.

        For callers whose own transaction carries the certificate (Training.commit and checkpoint).
        """
        get_served_policy(tier)
        return self._blobs.disperse(
            data,
            committee=self.committee(),
            genesis_hash=self._chain.genesis_hash(),
            tier=tier,
            expiry=expiry,
            leaf_bytes=leaf_bytes,
        )

    def put(
        self,
        data: bytes | bytearray | memoryview | Source,
        *,
        tier: Tier,
        blocks: int | None = None,
        sender: Sender,
        leaf_bytes: int = BULK_LEAF_BYTES,
    ) -> Stored:
        """Upload, certify and lease for ``blocks`` or more (``choose_blocks``); a ``Source`` may exceed the memory.

        A committee that changes meanwhile is followed. A put that was cut is simply repeated: nodes keep the shards
        that they have, and a lease that already lasts long enough is not paid again.

        Raises: NoCommittee, TierUnavailable, LeaseTooShortForTier; NotFunded before anything is sent; da's
        NotEnoughReceipts (nothing is certified then), ContractError.
        """
        blocks = self.choose_blocks(tier, blocks)
        source = MemorySource(data) if isinstance(data, (bytes, bytearray, memoryview)) else data
        size_bytes = source.size_bytes
        asked_at = self._chain.height()
        expiry = Height(asked_at + blocks + CERTIFY_BLOCKS)
        max_fee = self.quote(tier=tier, size_bytes=size_bytes, blocks=expiry - asked_at)
        try:
            self.check_funds(max_fee, sender=sender, what=f"a {tier.name.lower()} lease of {size_bytes} bytes")
        except NotFunded:  # what is paid already costs nothing
            if not self.get_account(sender.address).num_blobs:  # said at once, however large the file
                raise
            named = self._blobs.identify(source, committee=self.committee(), tier=tier, leaf_bytes=leaf_bytes)
            if not self._is_leased(named, sender, until=asked_at + blocks, tier=tier):
                raise
        for tries_left in reversed(range(COMMITTEE_TRIES)):
            committee = self.committee()
            try:
                dispersal = self._blobs.disperse_stream(
                    source,
                    committee=committee,
                    genesis_hash=self._chain.genesis_hash(),
                    tier=tier,
                    expiry=expiry,
                    leaf_bytes=leaf_bytes,
                )
                blob = dispersal.certificate.terms.blob
                fee = 0
                kept_until, kept_tier = self._get_lease(blob, sender)
                if not _is_enough(kept_until, kept_tier, until=asked_at + blocks, tier=tier):
                    until = max(expiry, kept_until)  # a dearer tier is paid for to the end of the lease
                    max_fee = self.quote(tier=tier, size_bytes=size_bytes, blocks=until - asked_at)
                    certificate = encode_certificate(dispersal.certificate)
                    outcome = sender.send("Storage", "certify", certificate, value=max_fee)
                    fee = int(outcome.event("BlobCertified").fields["fee"])
                    kept_until, kept_tier = until, tier
            except (NotEnoughReceipts, ContractError) as error:
                # The committee may have changed meanwhile, more than once: then the new one gets what it lacks.
                is_refused = isinstance(error, NotEnoughReceipts) or error.name == "WrongEpoch"
                if not is_refused or not tries_left or self.get_epoch() == committee.epoch:
                    raise
            else:
                break
        return Stored(
            blob=blob,
            size_bytes=size_bytes,
            tier=kept_tier,
            expiry=Height(kept_until),
            fee=fee,
            max_fee=max_fee,
            certificate=dispersal.certificate,
            faults=dispersal.faults,
        )

    def rehome(self, blob: BlobId, *, sender: Sender, directory: Path) -> Rehomed:
        """Move a blob off a committee with seats that are gone, onto the current one, under the same id.

        Blocks that ``sender`` has paid cost nothing again. ``directory`` needs room for the blob. Nothing is done where
        all its seats still stand by their shards.

        Raises: UnknownBlob, BlobReleased, CommitteeSizeChanged, NotFunded before anything is read; what ``get_to_file``
        and ``put`` raise.
        """
        info, current = self._stat_live(blob), self.committee()
        seats = self._chain.storage.committee(info.epoch)
        header = self._blobs.open_ranges(blob, committee=make_committee(Epoch(info.epoch), seats)).header
        verdict, gone = judge(
            epoch=Epoch(info.epoch),
            current=current.epoch,
            signers=info.signers,
            are_registered=[seat.state is StorageNodeState.REGISTERED for seat in seats],
            num_shards=header.num_shards,
            num_seats=len(current.seats),
        )
        if verdict is Verdict.STAY:
            return Rehomed(blob=blob, epoch=Epoch(info.epoch), gone=gone, is_moved=False, fee=0)
        if verdict is Verdict.PUT_ANEW:
            raise CommitteeSizeChanged(blob=blob, expected=header.num_shards, got=len(current.seats))
        expiry = Height(max(info.expiry_height, self._chain.height() + CERTIFY_BLOCKS))
        needed = self._quote_rest(info, expiry, sender)
        self.check_funds(needed, sender=sender, what=f"moving blob {blob.hex()}")
        with tempfile.TemporaryDirectory(prefix=".rehome-", dir=directory) as place:
            path = Path(place) / "blob"
            self.get_to_file(blob, path)
            with FileSource(path) as source:
                certificate = self._blobs.disperse_stream(
                    source,
                    committee=current,
                    genesis_hash=self._chain.genesis_hash(),
                    tier=Tier(info.tier),
                    expiry=expiry,
                    leaf_bytes=header.leaf_bytes,
                ).certificate
        assert certificate.terms.blob == blob, "the same bytes under the same code have the same id"
        max_fee = self._quote_rest(info, expiry, sender)
        outcome = sender.send("Storage", "certify", encode_certificate(certificate), value=max_fee)
        fee = int(outcome.event("BlobCertified").fields["fee"])
        return Rehomed(blob=blob, epoch=current.epoch, gone=gone, is_moved=True, fee=fee)

    def check_funds(self, fee: int, *, sender: Sender, what: str) -> None:
        """Check that an account has ``fee`` wei and the gas of a transaction, before work is done for nothing.

        Raises: NotFunded.
        """
        price = self._chain.gas_price()
        held, needed = self._chain.balance(sender.address), fee + LEAST_GAS * price
        if held < needed:
            where = self._chain.describe_chain()
            raise NotFunded(address=sender.address, balance=held, needed=needed, where=where, what=what)

    def _get_lease(self, blob: BlobId, sender: Sender) -> tuple[int, Tier]:
        """Return until which height the sender pays for a blob, 0 where not at all, and the blob's tier."""
        return self._chain.storage.lease_expiry(blob, sender.address), Tier(self._chain.storage.blob(blob).tier)

    def _is_leased(self, blob: BlobId, sender: Sender, *, until: int, tier: Tier) -> bool:
        return _is_enough(*self._get_lease(blob, sender), until=until, tier=tier)

    def _quote_rest(self, info: Blob, expiry: Height, sender: Sender) -> int:
        """Return the fee in wei up to ``expiry``, less what the sender has paid."""
        paid_until = max(self._chain.height(), self._chain.storage.lease_expiry(info.blob, sender.address))
        blocks = max(0, expiry - paid_until)
        return self.quote(tier=Tier(info.tier), size_bytes=info.size_bytes, blocks=blocks) if blocks else 0

    def renew(self, blob: BlobId, *, blocks: int, sender: Sender) -> Renewed:
        """Lengthen the sender's own lease by ``blocks``.

        Raises: UnknownBlob, NotYourLease, NotFunded; ContractError LeaseTooLong.
        """
        info = self.stat(blob)
        until = self._chain.storage.lease_expiry(blob, sender.address)
        if not until:
            raise NotYourLease(blob=blob, owner=sender.address)
        expiry = until + blocks
        max_fee = self.quote(tier=Tier(info.tier), size_bytes=info.size_bytes, blocks=blocks)
        self.check_funds(max_fee, sender=sender, what=f"{blocks} blocks more of blob {blob.hex()}")
        outcome = sender.send("Storage", "renew", blob, expiry, value=max_fee)
        fee = int(outcome.event("LeaseRenewed").fields["fee"])
        return Renewed(blob=blob, expiry=Height(expiry), fee=fee)

    def release(self, blob: BlobId, *, sender: Sender) -> int:
        """End the sender's own lease now and return the wei that came back.

        Raises: UnknownBlob, NotYourLease; ContractError BlobIsPinned.
        """
        try:
            outcome = sender.send("Storage", "release", blob)
        except ContractError as error:
            if error.name == "NoLease":
                raise NotYourLease(blob=blob, owner=sender.address) from error
            if error.name == "UnknownBlob":
                raise UnknownBlob(blob=blob) from error
            raise
        return int(outcome.event("LeaseReleased").fields["refund"])

    def challenge(self, blob: BlobId, *, seat: int, leaf: int, sender: Sender) -> int:
        """Accuse a seat on the chain, with a bond; return the height until which it must answer.

        Raises: NotFunded; ContractError NotSigned, ChallengeIsOpen, LeaseTooShort.
        """
        bond = self._chain.storage.node_terms().challenge_bond
        self.check_funds(bond, sender=sender, what="the bond of a challenge")
        outcome = sender.send("Storage", "challenge", blob, seat, leaf, value=bond)
        return int(outcome.event("ChallengeOpened").fields["due_height"])

    def list_blobs(self, owner: str) -> tuple[Blob, ...]:
        """Return all blobs that an owner certified itself, oldest first; released ones too."""
        found: list[Blob] = []
        while page := self._chain.storage.blobs_of(owner, len(found), LISTED_AT_ONCE):
            found += [self._chain.storage.blob(blob) for blob in page]
        return tuple(found)

    def get_account(self, owner: str) -> OwnerAccount:
        """Return what an owner has paid and got back."""
        return self._chain.storage.owner_account(owner)

    def stat(self, blob: BlobId) -> Blob:
        """Return the chain's record of a blob.

        Raises: UnknownBlob.
        """
        info = self._chain.storage.blob(blob)
        if info.state is BlobState.UNKNOWN:
            raise UnknownBlob(blob=blob)
        return info

    def get(self, blob: BlobId, *, max_bytes: int | None = None) -> Retrieved:
        """Return a blob's bytes, verified, and which seats failed.

        Raises: UnknownBlob, BlobReleased, da's RetrieveFailed and BlobTooLarge.
        """
        info = self._stat_live(blob)
        limit = info.size_bytes if max_bytes is None else max_bytes
        return self._blobs.retrieve(blob, committee=self.committee(Epoch(info.epoch)), max_bytes=limit)

    def open(self, blob: BlobId) -> BlobReader:
        """Open a blob for reading by ranges: only the leaves that hold them are fetched, and verified.

        Raises: UnknownBlob, BlobReleased, da's HeaderUnavailable.
        """
        committee = self.committee(Epoch(self._stat_live(blob).epoch))
        return BlobReader(self._blobs, self._blobs.open_ranges(blob, committee=committee), committee)

    def get_to_file(
        self, blob: BlobId, path: Path, *, on_progress: Callable[[int], None] = lambda _: None
    ) -> RetrieveReport:
        """Read a blob of any size into a file, in constant memory; the name appears when all of it is verified.

        A read that was cut goes on where it stopped.

        Raises: as ``get``.
        """
        info = self._stat_live(blob)
        return self._blobs.retrieve_to_file(
            blob,
            path,
            committee=self.committee(Epoch(info.epoch)),
            max_bytes=info.size_bytes,
            on_progress=on_progress,
        )

    def _stat_live(self, blob: BlobId) -> Blob:
        info = self.stat(blob)
        if info.state is BlobState.RELEASED:
            raise BlobReleased(blob=blob, release_height=info.release_height)
        return info


class BlobReader:
    """One open blob; thread-safe.  Its committee is that of the moment when it was opened."""

    def __init__(self, blobs: BlobClient, reader: RangeReader, committee: Committee) -> None:
        """Read with ``reader``, which ``blobs`` opened at ``committee``."""
        self._blobs = blobs
        self._reader = reader
        self._committee = committee
        self._lock = threading.Lock()
        self._whole: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the blob."""
        return self._reader.header.size_bytes

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), as far as the blob goes.

        A blob whose encoding nobody could check before signing is read and verified as a whole, once, and kept.

        Raises: da's NotEnoughShards, InconsistentBlob.
        """
        if can_read_ranges(self._reader.header):
            return self._blobs.read_range(self._reader, start, stop)
        with self._lock:
            if self._whole is None:
                blob = self._reader.blob
                got = self._blobs.retrieve(blob, committee=self._committee, max_bytes=self.size_bytes)
                self._whole = bytes(got.data)
        return self._whole[max(0, start) : max(0, stop)]


def _is_enough(kept_until: int, kept_tier: Tier, *, until: int, tier: Tier) -> bool:
    """Tell whether what is paid already lasts as long, in as strong a tier."""
    return kept_until >= until and not is_stronger(tier, kept_tier)


def parse_blob_id(text: str) -> BlobId:
    """Return a blob id as people type it, with or without 0x.

    Raises: InvalidBlobText.
    """
    digits = text.strip().removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError as error:
        raise InvalidBlobText(got=text) from error
    if len(raw) != 32:
        raise InvalidBlobText(got=text)
    return BlobId(raw)
