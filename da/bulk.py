"""Frames of the bulk port: shards over plain TCP, beside HTTP (da/SPEC.md, *Bulk port*).

Same requests, checks, words and receipts as over HTTP, with less in between. Big-endian. Invariant: every ``decode_``
is total, and both sides know from the first bytes how many follow.

    request   0  4    magic, "AGB1"
              4  u32  length of the JSON, at most 16 KiB
              8       JSON: call "put": blob, seat, epoch, tier, expiry, header; call "get": blob, seat, start, stop
    answer    0  u16  status, as over HTTP; 100: send the body now
              2  u32  length of the JSON, at most 16 KiB
              6  u64  bytes that follow the JSON
             14       JSON: a receipt, a refusal or {}
                      bytes of the shard, for a "get"

A put's body follows the answer 100, as long as the header says; the node answers again when it is durable. A node that
has the shard answers 200 with the receipt at once. Calls follow one another on a connection.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from da.core.errors import MalformedMessage
from da.core.types import BlobId, ShardIndex
from da.foreign_json import parse_json
from da.protocol import BLOB_HEADER_FIELD, PutRequest, decode_blob_id, decode_put, decode_seat, encode_put

MAGIC = b"AGB1"
"""First bytes of every request; names the version."""

REQUEST_PREFIX_BYTES = 8
"""Magic and length."""

ANSWER_PREFIX_BYTES = 14
"""Status and both lengths."""

MAX_JSON_BYTES = 16384
"""Of a request or an answer; the longest has a blob header of 3,600 bytes in hex."""

MAX_BODY_BYTES = 2**63 - 1
"""Far beyond the longest shard."""

CONTINUE = 100
"""Status: the node wants the body."""

BULK_PORT_KEY = "bulkPort"
"""Where a node's status says on which port, of the same host, it listens; absent or null: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest:
    """Wants a range of a shard."""

    blob: BlobId
    seat: ShardIndex
    start: int
    """First byte."""
    stop: int | None
    """First byte after it; None: to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How an answer starts."""

    status: int
    json_bytes: int
    """Length of the JSON that follows."""
    body_bytes: int
    """Bytes that follow the JSON."""


def encode_put_frame(request: PutRequest) -> bytes:
    """Return the frame that asks to keep a shard."""
    _, fields = encode_put(request)
    return _encode_request(
        {
            "call": "put",
            "blob": request.blob.hex(),
            "seat": str(request.seat),
            "epoch": str(request.epoch),
            "tier": str(int(request.tier)),
            "expiry": str(request.expiry),
            "header": fields[BLOB_HEADER_FIELD],
        }
    )


def encode_get_frame(request: GetRequest) -> bytes:
    """Return the frame that asks for a range."""
    value = {"call": "get", "blob": request.blob.hex(), "seat": str(request.seat), "start": str(request.start)}
    return _encode_request(value if request.stop is None else value | {"stop": str(request.stop)})


def decode_request_prefix(prefix: bytes) -> int:
    """Return how many bytes of JSON follow; raises ``MalformedMessage``."""
    if len(prefix) != REQUEST_PREFIX_BYTES or prefix[:4] != MAGIC:
        raise MalformedMessage(f"frame starts with {prefix[:4].hex()}, expected {MAGIC.hex()}")
    num_bytes = int.from_bytes(prefix[4:8], "big")
    if num_bytes > MAX_JSON_BYTES:
        raise MalformedMessage(f"request of {num_bytes} bytes, at most {MAX_JSON_BYTES}")
    return num_bytes


def decode_request(body: bytes) -> PutRequest | GetRequest:
    """Decode the JSON of a request.

    Raises:
        MalformedMessage, MalformedHeader: as ``decode_put``.
    """
    fields = decode_json(body)
    texts = {key: value for key, value in fields.items() if isinstance(value, str)}
    call = texts.get("call")
    if call == "put":
        return decode_put(
            blob=texts.get("blob", ""), seat=texts.get("seat", ""), query=texts, header=texts.get("header")
        )
    if call != "get":
        raise MalformedMessage(f"call {str(call)[:40]!r}, expected put or get")
    start, stop = _decode_offset(texts.get("start", "0")), texts.get("stop")
    return GetRequest(
        blob=decode_blob_id(texts.get("blob", "")),
        seat=decode_seat(texts.get("seat", "")),
        start=start,
        stop=None if stop is None else _decode_offset(stop),
    )


def encode_answer(status: int, body: bytes = b"{}", *, body_bytes: int = 0) -> bytes:
    """Return the frame that answers with ``status`` and JSON; ``body_bytes`` of a shard will follow."""
    return status.to_bytes(2, "big") + len(body).to_bytes(4, "big") + body_bytes.to_bytes(8, "big") + body


def decode_answer_prefix(prefix: bytes) -> Answer:
    """Decode how an answer starts; raises ``MalformedMessage``."""
    if len(prefix) != ANSWER_PREFIX_BYTES:
        raise MalformedMessage(f"answer of {len(prefix)} bytes, expected at least {ANSWER_PREFIX_BYTES}")
    answer = Answer(
        status=int.from_bytes(prefix[:2], "big"),
        json_bytes=int.from_bytes(prefix[2:6], "big"),
        body_bytes=int.from_bytes(prefix[6:14], "big"),
    )
    if answer.json_bytes > MAX_JSON_BYTES or answer.body_bytes > MAX_BODY_BYTES:
        raise MalformedMessage(f"answer with {answer.json_bytes} bytes of JSON and {answer.body_bytes} of a shard")
    return answer


def decode_json(body: bytes) -> dict[str, object]:
    """Decode a JSON object; raises ``MalformedMessage``."""
    try:
        value = parse_json(body)
    except ValueError as error:
        raise MalformedMessage("frame holds no JSON") from error
    if not isinstance(value, dict):
        raise MalformedMessage("frame holds no JSON object")
    return value


def _encode_request(value: dict[str, str]) -> bytes:
    body = json.dumps(value).encode()
    return MAGIC + len(body).to_bytes(4, "big") + body


def _decode_offset(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise MalformedMessage(f"offset {text[:40]!r} is no number")
    return int(text)
