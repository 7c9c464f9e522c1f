"""Frames, however the reads fall, and the schema against an independent copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.abci import abci_pb2 as pb
from chain.abci.answers import encode_admission
from chain.abci.generate import generate
from chain.abci.server import HANDLED_NAMES
from chain.abci.wire import (
    MAX_FRAME_BYTES,
    FrameReader,
    InvalidFrame,
    encode_answer,
    encode_frame,
    encode_length,
    read_plain_check,
)
from chain.core.records import Transaction
from chain.core.types import Address, Amount, Hash, Nonce

VECTORS = Path(__file__).parents[1] / "vectors"
ORACLE_ONLY = {"ConsensusParams.synchrony", "ConsensusParams.feature"}
"""Fields of CometBFT v1 that the oracle's copy has; v0.38 never sends them."""


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_messages_come_out_wherever_the_stream_is_cut(messages: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(encode_frame(message) for message in messages)
    reader = FrameReader()
    got: list[bytes] = []
    position = 0
    turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        got += reader.feed(stream[position : position + size])
        position += size
        turn += 1
    assert got == messages
    assert reader.is_between_frames


def test_known_frames() -> None:
    flush = pb.Request(flush=pb.RequestFlush()).SerializeToString()
    assert encode_frame(flush).hex() == "021200"
    assert encode_frame(bytes(300))[:2].hex() == "ac02"


def test_invalid_length() -> None:
    with pytest.raises(InvalidFrame, match=f"at most {MAX_FRAME_BYTES}"):
        FrameReader().feed(b"\xff\xff\xff\xff\x0f")
    with pytest.raises(InvalidFrame, match="more than 5 bytes"):
        FrameReader().feed(b"\xff" * 6)


@given(st.binary(max_size=40_000), st.booleans())
def test_plain_checks_are_read_as_protobuf_reads_them(transaction: bytes, is_recheck: bool) -> None:
    kind = pb.RECHECK if is_recheck else pb.NEW
    message = pb.Request(check_tx=pb.RequestCheckTx(tx=transaction, type=kind)).SerializeToString()
    assert read_plain_check(message) == (b"" if is_recheck else transaction)
    for cut in (1, 2, 3, len(message)):
        assert read_plain_check(message[:-cut]) == b""
    assert read_plain_check(message + b"\x12\x00") == b"", "a second field"


@given(st.binary(max_size=60))
def test_whatever_is_read_as_a_plain_check_is_one(message: bytes) -> None:
    transaction = read_plain_check(b"\x42" + message)
    if transaction:
        assert pb.Request.FromString(b"\x42" + message) == pb.Request(check_tx=pb.RequestCheckTx(tx=transaction))


@given(st.binary(min_size=32, max_size=32), st.integers(21_000, 2**63 - 1))
def test_admission_is_what_protobuf_writes(digest: bytes, gas_limit: int) -> None:
    transaction = Transaction(
        hash=Hash(digest),
        raw=b"",
        type=2,
        chain_id=1,
        sender=Address(bytes(20)),
        nonce=Nonce(0),
        to=None,
        value=Amount(0),
        data=b"",
        gas_limit=gas_limit,
        max_fee=Amount(0),
        max_priority_fee=Amount(0),
        v=0,
        r=0,
        s=0,
    )
    expected = pb.ResponseCheckTx(data=digest, gas_wanted=gas_limit)
    assert encode_admission(transaction) == expected.SerializeToString()
    tag = encode_length(pb.Response.DESCRIPTOR.fields_by_name["check_tx"].number << 3 | 2)
    frame = encode_frame(pb.Response(check_tx=expected).SerializeToString())
    assert encode_answer(tag, encode_admission(transaction)) == frame


def _describe(message: Any) -> dict[str, list[Any]]:
    described: dict[str, list[Any]] = {}
    for field in message.fields:
        kind = field.message_type or field.enum_type
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        name = kind.full_name.rsplit(".", 1)[-1] if kind else ""
        described[field.name] = [field.number, field.type, bool(field.is_repeated), name, oneof]
    return described


def test_every_field_agrees_with_an_independent_schema() -> None:
    """The vector was written down from the descriptors of another project's ABCI package."""
    oracle = json.loads((VECTORS / "abci_fields.json").read_text())
    ours = pb.DESCRIPTOR.message_types_by_name
    for name, fields in oracle["messages"].items():
        if name not in ours:
            assert all(f"ConsensusParams.{field}" in ORACLE_ONLY for field in ("synchrony", "feature"))
            assert name in ("SynchronyParams", "FeatureParams")
            continue
        expected = {field: value for field, value in fields.items() if f"{name}.{field}" not in ORACLE_ONLY}
        assert _describe(ours[name]) == expected, name
    assert set(ours) <= set(oracle["messages"])
    enums = dict(pb.DESCRIPTOR.enum_types_by_name)
    for message in ours.values():
        enums |= {f"{message.name}.{kind.name}": kind for kind in message.enum_types}
    for name, values in oracle["enums"].items():
        assert {value.name: value.number for value in enums[name].values} == values, name
    assert set(enums) == set(oracle["enums"])


def test_server_answers_every_case() -> None:
    cases = [field.name for field in pb.Request.DESCRIPTOR.fields]
    assert [name for name in cases if name not in ("echo", "flush")] == list(HANDLED_NAMES)
    assert {field.name for field in pb.Response.DESCRIPTOR.fields} == {*cases, "exception"}


def test_stubs_are_those_of_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    generate(tmp_path)
    for name in ("abci_pb2.py", "abci_pb2.pyi"):
        committed = Path(pb.__file__).with_name(name).read_text().splitlines()
        generated = (tmp_path / "chain" / "abci" / name).read_text().splitlines()
        if name.endswith(".py"):
            generated = [line for line in generated if "AddSerializedFile" in line]
            committed = [line for line in committed if "AddSerializedFile" in line]
        assert generated == committed
