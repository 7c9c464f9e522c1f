"""The HTTP API of a storage node, as both sides read it (da/SPEC.md, *Node API*).

Paths, parameters, header names, status codes and the JSON of answers; no sockets. Invariant: every ``decode_`` is
total: strange input raises ``Malformed`` and nothing else.

    PUT  /v1/blobs/{blob}/shards/{seat}?epoch=&tier=&expiry=   body: the shard; header: the blob header in hex
    GET  /v1/blobs/{blob}/shards/{seat}                        Range is understood; HEAD too
    GET  /v1/blobs/{blob}/header                               the encoded blob header
    PUT  /v1/batches/{seat}?epoch=&tier=&expiry=               body: many small blobs' shards (da/batch.py)
    GET  /v1/status                                            JSON
    GET  /metrics                                              Prometheus
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from da.core.blob import BlobHeader, compute_blob_id, decode_header, encode_header
from da.core.errors import MalformedMessage, MalformedReceipt
from da.core.hashing import HASH_BYTES
from da.core.receipt import KEY_BYTES, SIGNATURE_BYTES, Receipt
from da.core.scheme import MAX_SEATS
from da.core.types import BlobId, Epoch, Height, ReceiptTerms, ShardIndex, Tier
from da.foreign_json import parse_json

SHARD_ROUTE = "/v1/blobs/{blob}/shards/{seat}"
"""PUT, GET and HEAD of one shard; the blob as 64 hex digits, the seat in decimal."""

HEADER_ROUTE = "/v1/blobs/{blob}/header"
"""GET of the blob header's canonical bytes."""

BATCH_ROUTE = "/v1/batches/{seat}"
"""PUT of the shards of many small blobs for one seat, signed at once."""

STATUS_PATH = "/v1/status"
"""GET of the node's state for people, JSON."""

METRICS_PATH = "/metrics"
"""GET of the node's counters, Prometheus text."""

BLOB_HEADER_FIELD = "X-Archipelago-Blob-Header"
"""Request header of a PUT: the blob header's canonical bytes in hex, at most 7,200 digits."""

BODY_TYPE = "application/octet-stream"
"""Content type of shards and blob headers."""

CHUNK_BYTES = 256 * 1024
"""Bytes handed to the socket at once; smaller costs calls, larger costs latency (DA.md, aiohttp)."""

MAX_U64 = 2**64 - 1
"""Epochs and heights are unsigned 64-bit integers."""


class Refusal(StrEnum):
    """Why a node says no: the ``error`` of its JSON answer."""

    MALFORMED = "Malformed"
    """The request makes no sense; ``message`` says which part."""
    NOT_MY_SEAT = "NotMySeat"
    """Another seat, or an epoch that is neither the current nor the previous one."""
    UNKNOWN_BLOB = "UnknownBlob"
    """No such shard or header here."""
    EXPIRED = "Expired"
    """The shard was here and its time is over, or the expiry asked for is past."""
    TOO_LARGE = "TooLarge"
    """More bytes than the header says, or than this node takes."""
    ROOT_MISMATCH = "RootMismatch"
    """The body does not hash to the root of its seat."""
    BAD_ENCODING = "BadEncoding"
    """The body is not what the code makes of the blob, by the folds in the header; or these are missing."""
    BUSY = "Busy"
    """Too much at once; ``Retry-After`` says when."""
    FULL = "Full"
    """No space left for it; ``message`` has the numbers."""


STATUS_OF_REFUSAL: Mapping[Refusal, int] = {
    Refusal.MALFORMED: 400,
    Refusal.NOT_MY_SEAT: 403,
    Refusal.UNKNOWN_BLOB: 404,
    Refusal.EXPIRED: 410,
    Refusal.TOO_LARGE: 413,
    Refusal.ROOT_MISMATCH: 422,
    Refusal.BAD_ENCODING: 422,
    Refusal.BUSY: 429,
    Refusal.FULL: 507,
}
"""HTTP status of each refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRequest:
    """What a client asks a node to keep, without the bytes."""

    blob: BlobId
    """The blob; hashes to ``header``."""
    seat: ShardIndex
    """Which shard, below ``header.num_shards``."""
    epoch: Epoch
    """Committee the seat belongs to."""
    tier: Tier
    """Promise asked for."""
    expiry: Height
    """Keep it at least until this height."""
    header: BlobHeader
    """Code, size and roots."""

    def terms(self, genesis_hash: bytes) -> ReceiptTerms:
        """Return what the node signs when the bytes are durable."""
        return ReceiptTerms(
            genesis_hash=genesis_hash,
            epoch=self.epoch,
            blob=self.blob,
            size_bytes=self.header.size_bytes,
            tier=self.tier,
            expiry=self.expiry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """The terms that all blobs of a batch share."""

    seat: ShardIndex
    """Whose shards they are."""
    epoch: Epoch
    tier: Tier
    expiry: Height

    def terms(self, genesis_hash: bytes, blob: BlobId, size_bytes: int) -> ReceiptTerms:
        """Return the terms of one blob of the batch."""
        return ReceiptTerms(
            genesis_hash=genesis_hash,
            epoch=self.epoch,
            blob=blob,
            size_bytes=size_bytes,
            tier=self.tier,
            expiry=self.expiry,
        )


def shard_path(blob: BlobId, seat: int) -> str:
    """Return the path of one shard."""
    return SHARD_ROUTE.format(blob=blob.hex(), seat=seat)


def header_path(blob: BlobId) -> str:
    """Return the path of the blob's header."""
    return HEADER_ROUTE.format(blob=blob.hex())


def encode_put(request: PutRequest) -> tuple[str, dict[str, str]]:
    """Return the path with its query, and the request headers."""
    query = f"epoch={request.epoch}&tier={int(request.tier)}&expiry={request.expiry}"
    fields = {BLOB_HEADER_FIELD: encode_header(request.header).hex(), "Content-Type": BODY_TYPE}
    return f"{shard_path(request.blob, request.seat)}?{query}", fields


def decode_put(*, blob: str, seat: str, query: Mapping[str, str], header: str | None) -> PutRequest:
    """Decode what ``encode_put`` sends, from the path's parts, the query and the blob header's field.

    Raises:
        MalformedMessage: a part is missing or no number, the header is not hex, or does not hash to the blob.
        MalformedHeader: the header is not canonical.
    """
    blob_id = decode_blob_id(blob)
    if header is None:
        raise MalformedMessage(f"no {BLOB_HEADER_FIELD} header")
    encoded = _decode_hex(header, BLOB_HEADER_FIELD)
    blob_header = decode_header(encoded)
    if compute_blob_id(blob_header) != blob_id:
        raise MalformedMessage(f"header names blob {compute_blob_id(blob_header).hex()}, the path {blob_id.hex()}")
    seat_index = decode_seat(seat)
    if seat_index >= blob_header.num_shards:
        raise MalformedMessage(f"seat {seat_index} of a blob with {blob_header.num_shards} shards")
    tier = _decode_number(query.get("tier"), "tier", max(Tier))
    return PutRequest(
        blob=blob_id,
        seat=seat_index,
        epoch=Epoch(_decode_number(query.get("epoch"), "epoch", MAX_U64)),
        tier=Tier(tier),
        expiry=Height(_decode_number(query.get("expiry"), "expiry", MAX_U64)),
        header=blob_header,
    )


def encode_batch_path(request: BatchRequest) -> str:
    """Return the path of a batch, with its query."""
    query = f"epoch={request.epoch}&tier={int(request.tier)}&expiry={request.expiry}"
    return f"{BATCH_ROUTE.format(seat=request.seat)}?{query}"


def decode_batch_path(*, seat: str, query: Mapping[str, str]) -> BatchRequest:
    """Decode what ``encode_batch_path`` gives; raises ``MalformedMessage``."""
    return BatchRequest(
        seat=decode_seat(seat),
        epoch=Epoch(_decode_number(query.get("epoch"), "epoch", MAX_U64)),
        tier=Tier(_decode_number(query.get("tier"), "tier", max(Tier))),
        expiry=Height(_decode_number(query.get("expiry"), "expiry", MAX_U64)),
    )


def decode_blob_id(text: str) -> BlobId:
    """Decode a blob id's 64 hex digits; raises ``MalformedMessage``."""
    raw = _decode_hex(text, "blob id")
    if len(raw) != HASH_BYTES:
        raise MalformedMessage(f"blob id of {len(raw)} bytes, expected {HASH_BYTES}")
    return BlobId(raw)


def decode_seat(text: str) -> ShardIndex:
    """Decode a seat index; raises ``MalformedMessage``."""
    return ShardIndex(_decode_number(text, "seat", MAX_SEATS - 1))


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the JSON body of a successful PUT."""
    body = {"seat": receipt.seat, "key": receipt.key.hex(), "signature": receipt.signature.hex()}
    return json.dumps(body).encode()


def decode_receipt(body: bytes) -> Receipt:
    """Decode the JSON body of a successful PUT.

    Raises:
        MalformedReceipt: anything that ``encode_receipt`` would not give.
    """
    try:
        value = parse_json(body)
    except ValueError as error:
        raise MalformedReceipt("no JSON") from error
    if not isinstance(value, dict):
        raise MalformedReceipt("no JSON object")
    seat, key, signature = value.get("seat"), value.get("key"), value.get("signature")
    if type(seat) is not int or not 0 <= seat < MAX_SEATS:
        raise MalformedReceipt(f"seat {seat!r}"[:100])
    if not isinstance(key, str) or not isinstance(signature, str):
        raise MalformedReceipt("key and signature must be hex strings")
    try:
        receipt = Receipt(seat=ShardIndex(seat), key=bytes.fromhex(key), signature=bytes.fromhex(signature))
    except ValueError as error:
        raise MalformedReceipt("key or signature is not hex") from error
    if len(receipt.key) != KEY_BYTES or len(receipt.signature) != SIGNATURE_BYTES:
        raise MalformedReceipt(
            f"key of {len(receipt.key)} and signature of {len(receipt.signature)} bytes, "
            f"expected {KEY_BYTES} and {SIGNATURE_BYTES}"
        )
    return receipt


def encode_refusal(refusal: Refusal, message: str) -> bytes:
    """Return the JSON body of a refusal."""
    return json.dumps({"error": refusal.value, "message": message}).encode()


def decode_refusal(status: int, body: bytes) -> str:
    """Return a refusal in words for people; total on any body."""
    try:
        value = parse_json(body)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("error"), str) and isinstance(value.get("message"), str):
        return f"{status} {value['error']}: {value['message']}"[:500]
    return f"{status} without a readable reason"


def _decode_hex(text: str, what: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise MalformedMessage(f"{what} is not hex") from error
    if raw.hex() != text.lower():
        raise MalformedMessage(f"{what} is not plain hex")
    return raw


def _decode_number(text: str | None, what: str, maximum: int) -> int:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 20:
        raise MalformedMessage(f"{what} is {'missing' if text is None else 'no number'}")
    value = int(text)
    if value > maximum:
        raise MalformedMessage(f"{what} {value}, at most {maximum}")
    return value
