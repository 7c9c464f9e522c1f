"""A committee as a JSON file, for use without a chain.

::

    {"epoch": 1, "genesisHash": "<64 hex digits>", "seats": [{"key": "<64 hex digits>", "url": "http://..."}, ...]}

Seats are in seat order. Unknown keys are refused, with the nearest known one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from da.core.errors import MalformedMessage
from da.core.hashing import HASH_BYTES
from da.core.receipt import KEY_BYTES
from da.core.scheme import MAX_SEATS
from da.core.types import Committee, Epoch, Seat, ShardIndex
from da.foreign_json import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitteeFile:
    """What the file says."""

    committee: Committee
    """Epoch and seats."""
    genesis_hash: bytes
    """32 bytes: what receipts are bound to."""


def decode_committee(text: bytes | str) -> CommitteeFile:
    """Decode the JSON of a committee file.

    Raises:
        MalformedMessage: says which key is missing, unknown or wrong.
    """
    try:
        value = parse_json(text.encode() if isinstance(text, str) else text)
    except ValueError as error:  # also for bytes that are no text
        raise MalformedMessage(f"committee file is no JSON: {error}") from error
    _check_keys(value, ("epoch", "genesisHash", "seats"), "committee")
    seats = value["seats"]
    if not isinstance(seats, list) or not 1 <= len(seats) <= MAX_SEATS:
        raise MalformedMessage(f"committee: seats must be a list of 1 to {MAX_SEATS}")
    if type(value["epoch"]) is not int or value["epoch"] < 0:
        raise MalformedMessage("committee: epoch must be a whole number")
    return CommitteeFile(
        committee=Committee(
            epoch=Epoch(value["epoch"]),
            seats=tuple(_decode_seat(seat, index) for index, seat in enumerate(seats)),
        ),
        genesis_hash=_decode_hex(value["genesisHash"], "committee: genesisHash", HASH_BYTES),
    )


def encode_committee(file: CommitteeFile) -> str:
    """Return the JSON that ``decode_committee`` reads."""
    seats = [{"key": seat.key.hex(), "url": seat.url} for seat in file.committee.seats]
    value = {"epoch": file.committee.epoch, "genesisHash": file.genesis_hash.hex(), "seats": seats}
    return json.dumps(value, indent=2) + "\n"


def _decode_seat(value: object, index: int) -> Seat:
    what = f"seat {index}"
    fields = _check_keys(value, ("key", "url"), what)
    if not isinstance(fields["url"], str):
        raise MalformedMessage(f"{what}: url must be text")
    return Seat(index=ShardIndex(index), key=_decode_hex(fields["key"], f"{what}: key", KEY_BYTES), url=fields["url"])


def _check_keys(value: object, known: tuple[str, ...], what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise MalformedMessage(f"{what} must be an object with the keys {', '.join(known)}")
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f", did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise MalformedMessage(f"{what}: unknown key {key!r}{hint}")
    for key in known:
        if key not in value:
            raise MalformedMessage(f"{what}: key {key!r} is missing")
    return value


def _decode_hex(value: object, what: str, num_bytes: int) -> bytes:
    if isinstance(value, str):
        try:
            raw = bytes.fromhex(value.removeprefix("0x"))
        except ValueError as error:
            raise MalformedMessage(f"{what} is not hex") from error
        if len(raw) == num_bytes:
            return raw
    raise MalformedMessage(f"{what} must be {2 * num_bytes} hex digits")
