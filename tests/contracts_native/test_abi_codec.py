"""The ABI codec against eth_utils and web3's own codec, and the records' canonical bytes."""

from __future__ import annotations

import pytest
from driver import make_address, make_hash, run_params
from eth_abi.abi import encode
from eth_utils.abi import event_abi_to_log_topic, function_signature_to_4byte_selector
from hypothesis import given
from hypothesis import strategies as st

from chain.core.abi.codec import (
    AbiDecodingError,
    ContractCodec,
    canonical_type,
    decode_values,
    selector,
    signature,
    topic,
)
from chain.core.abi.declare import Event, Field, Struct, struct
from chain.core.abi.decoder import make_reader
from chain.core.abi.encoder import AbiEncodingError, make_tuple_encoder
from chain.core.abi.staking import STAKING
from chain.core.abi.storage import STORAGE
from chain.core.abi.training import TRAINING
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.rounds.records import Evaluation, Member, MemberState
from chain.core.types import Address, Root


@pytest.mark.parametrize("contract", [TRAINING, STORAGE, STAKING], ids=lambda c: c.name)
def test_selectors_agree_with_eth_utils_and_do_not_collide(contract: object) -> None:
    functions = contract.functions  # type: ignore[attr-defined]
    for function in functions:
        expected = function_signature_to_4byte_selector(signature(function.name, function.inputs))
        assert selector(function) == expected
    assert len({selector(function) for function in functions}) == len(functions)
    errors = contract.errors  # type: ignore[attr-defined]
    assert len({selector(error) for error in errors}) == len(errors)


def _values(kind: str) -> st.SearchStrategy[object]:
    if kind.startswith("uint"):
        return st.integers(0, 2 ** int(kind[4:]) - 1)
    if kind == "bool":
        return st.booleans()
    if kind == "string":
        return st.text(max_size=40)
    if kind == "bytes":
        return st.binary(max_size=70)
    size = 20 if kind == "address" else int(kind.removeprefix("bytes"))
    return st.binary(min_size=size, max_size=size)


def _field_values(field: Field) -> st.SearchStrategy[object]:
    kind = field.kind
    one = st.tuples(*map(_field_values, kind.fields)) if isinstance(kind, Struct) else _values(kind)
    return st.lists(one, max_size=3) if field.is_array else one


TUPLES = [
    fields
    for contract in (TRAINING, STORAGE, STAKING)
    for fields in [
        *(function.inputs for function in contract.functions),
        *(function.outputs for function in contract.functions),
        *(event.fields for event in contract.events),
        *(error.fields for error in contract.errors),
    ]
    if fields
]


@given(st.data())
def test_words_are_those_of_eth_abi(data: st.DataObject) -> None:
    """Every tuple of types that the contracts know."""
    fields = data.draw(st.sampled_from(TUPLES))
    values = data.draw(st.tuples(*map(_field_values, fields)))
    expected = encode([canonical_type(field) for field in fields], list(values))
    assert make_tuple_encoder(fields).encode(values) == expected


READABLE = [
    function.inputs
    for contract in (TRAINING, STORAGE, STAKING)
    for function in contract.functions
    if function.inputs and all(not field.is_array and not isinstance(field.kind, Struct) for field in function.inputs)
]


@given(st.data())
def test_words_are_read_as_eth_abi_reads_them(data: st.DataObject) -> None:
    """Whole, and with a byte changed, dropped, added or a word of another value: the same values, or left to it."""
    fields = data.draw(st.sampled_from(READABLE))
    values = data.draw(st.tuples(*map(_field_values, fields)))
    encoded = make_tuple_encoder(fields).encode(values)
    read = make_reader(fields)
    assert read(encoded) == values == decode_values(fields, encoded)
    at = data.draw(st.integers(0, len(encoded) - 1))
    word = at // 32 * 32
    byte = bytes([data.draw(st.integers(0, 255))])
    number = data.draw(st.sampled_from([0, 1, 2, 31, 32, 33, 64, len(encoded), 2**255, 2**256 - 1]))
    for changed in (
        encoded[:at] + byte + encoded[at + 1 :],
        encoded[:at] + encoded[at + 1 :],
        encoded[:at],
        encoded + byte,
        encoded[:word] + number.to_bytes(32, "big") + encoded[word + 32 :],
    ):
        got = read(changed)
        if got is not None:
            assert got == decode_values(fields, changed)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("bool", 2),
        ("bool", 2**255 + 1),
        ("uint8", 2**8),
        ("uint64", 2**255),
        ("address", 2**160),
        ("address", 2**255),
        ("bytes", 0),
        ("bytes", 31),
        ("string", 2**256 - 32),
    ],
)
def test_words_with_high_bits_are_left_to_eth_abi_which_refuses_them(kind: str, number: int) -> None:
    fields = [Field("value", kind)]
    word = number.to_bytes(32, "big")
    assert make_reader(fields)(word) is None
    with pytest.raises(AbiDecodingError):
        decode_values(fields, word)


def test_arrays_of_dynamic_structs() -> None:
    inner = struct("Inner", "", "string name", "uint8[] numbers")
    fields = (Field("all", inner, is_array=True), Field("last", "uint64"))
    values = ([("a", [1, 2]), ("b" * 33, [])], 7)
    assert make_tuple_encoder(fields).encode(values) == encode(["(string,uint8[])[]", "uint64"], list(values))


@pytest.mark.parametrize(
    ("kind", "value"), [("uint8", 256), ("uint64", -1), ("bytes4", b"12345"), ("address", bytes(19))]
)
def test_invalid_values_are_not_written(kind: str, value: object) -> None:
    with pytest.raises(AbiEncodingError, match=f"is no {kind}"):
        make_tuple_encoder((Field("x", kind),)).encode((value,))


def test_known_signatures() -> None:
    by_name = {function.name: function for function in TRAINING.functions}
    assert signature("round", by_name["round"].inputs) == "round(uint64,uint64)"
    assert signature("commit", by_name["commit"].inputs) == (
        "commit(uint64,uint64,bytes32,bytes32,bytes,uint64,uint64)"
    )
    events = {event.name: event for event in TRAINING.events}
    voided: Event = events["RoundVoided"]
    abi = {
        "type": "event",
        "name": "RoundVoided",
        "inputs": [{"type": "uint64"}, {"type": "uint64"}, {"type": "uint8"}],
    }
    assert topic(voided) == event_abi_to_log_topic(abi)  # type: ignore[arg-type]


def test_structs_arrays_and_addresses_round_trip() -> None:
    codec = ContractCodec(TRAINING)
    create = codec.by_name["createRun"]
    data = create.encode_inputs((run_params(), b"recipe", make_hash("g")))
    assert create.decode_inputs(data[4:]) == (run_params(), b"recipe", make_hash("g"))
    allow = codec.by_name["allow"]
    workers = (make_address("a"), make_address("b"))
    assert allow.decode_inputs(allow.encode_inputs((1, workers, True))[4:]) == (1, workers, True)
    members = codec.by_name["members"]
    row = (workers[0], workers[1], 3, 2**255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "client")
    assert members.decode_outputs(members.encode_outputs(([row, row],))) == ((row, row),)
    log = codec.encode_log("MemberJoined", (1, workers[0], 7))
    assert len(log.topics) == 3
    assert codec.decode_log(log) == ("MemberJoined", {"run": 1, "worker": workers[0], "bond": 7})
    data = codec.encode_error("StaleBase", (bytes(32), b"\1" * 32))
    assert codec.decode_error(data) == ("StaleBase", (bytes(32), b"\1" * 32))
    assert codec.decode_error(b"\0\0\0\0") is None


@given(st.binary(max_size=400))
def test_decoding_is_total(data: bytes) -> None:
    codec = ContractCodec(TRAINING)
    for name in ("createRun", "allow", "join", "commit"):
        try:
            codec.by_name[name].decode_inputs(data)
        except AbiDecodingError:
            continue


def test_hostile_lengths_and_offsets_are_refused_at_once() -> None:
    codec = ContractCodec(TRAINING)
    huge = encode(["uint64", "uint256", "bool", "uint256"], [1, 96, True, 2**256 - 1])
    with pytest.raises(AbiDecodingError):
        codec.by_name["allow"].decode_inputs(huge)
    backwards = encode(["uint64", "uint256", "bool"], [1, 2**255, True])
    with pytest.raises(AbiDecodingError):
        codec.by_name["allow"].decode_inputs(backwards)
    text = (
        encode(["uint64", "bytes32", "address", "uint256", "uint256"], [1, bytes(32), bytes(20), 128, 2]) + b"\xff" * 32
    )
    with pytest.raises(AbiDecodingError):
        codec.by_name["join"].decode_inputs(text)


@given(st.integers(0, 2**256 - 1), st.binary(max_size=40), st.text(max_size=10))
def test_records_round_trip_and_are_canonical(number: int, data: bytes, text: str) -> None:
    value = (number, data, text, (number, True))
    assert unpack(pack(value)) == value
    assert pack(unpack(pack(value))) == pack(value)
    codec = RecordCodec(Evaluation)
    record = Evaluation(root=Root(data), loss_micro=number, by=Address(data), height=1)
    assert codec.decode(codec.encode(record)) == record


def test_enums_come_back_as_enums() -> None:
    codec = RecordCodec(Member)
    names = Member.__dataclass_fields__
    member = Member(
        **{**dict.fromkeys(names, 0), "worker": b"w", "payout": b"p", "state": MemberState.READY, "client": ""}
    )  # type: ignore[arg-type]
    assert codec.decode(codec.encode(member)).state is MemberState.READY
