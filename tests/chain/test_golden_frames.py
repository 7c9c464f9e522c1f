"""What the real CometBFT v0.38.25 sent once, read again: the wire format must not drift."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from chain.abci import abci_pb2 as pb
from chain.abci.application import ABCI_VERSION, ChainApplication
from chain.abci.server import AbciProtocol
from chain.abci.wire import FrameReader, encode_frame
from chain.core.genesis import process_genesis
from chain.store import Store

VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "cometbft_frames.json").read_text())
FRAMES = VECTOR["frames"]


class _Transport(asyncio.WriteTransport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)


def _has_unknown_fields(message: Any) -> bool:
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in value if field.is_repeated else [value]:
            if _has_unknown_fields(inner):
                return True
    return False


def test_every_field_is_known_and_encodes_back() -> None:
    for name, message in FRAMES:
        request = pb.Request.FromString(bytes.fromhex(message))
        assert request.WhichOneof("value") == name
        assert not _has_unknown_fields(request), name
        assert request.SerializeToString(deterministic=True).hex() == message, name
    kinds = {name for name, _ in FRAMES}
    assert kinds >= {"info", "init_chain", "check_tx", "query", "flush", "prepare_proposal", "process_proposal"}
    assert kinds >= {"finalize_block", "commit"}
    info = next(pb.Request.FromString(bytes.fromhex(message)).info for name, message in FRAMES if name == "info")
    assert (info.abci_version, info.version) == (ABCI_VERSION, "0.38.25")


def test_unknown_fields_are_noticed() -> None:
    assert _has_unknown_fields(pb.Request.FromString(bytes.fromhex("ba06021200")))


def test_recorded_chain_gives_the_recorded_hash(tmp_path: Path) -> None:
    store = Store(tmp_path / "app")
    protocol = AbciProtocol(ChainApplication(store, {}, process_genesis), _fail)
    transport = _Transport()
    protocol.connection_made(transport)
    for _, message in FRAMES:
        protocol.data_received(encode_frame(bytes.fromhex(message)))
    answers = [pb.Response.FromString(message) for message in FrameReader().feed(transport.written)]
    assert [answer.WhichOneof("value") for answer in answers] == [name for name, _ in FRAMES]
    assert [answer.check_tx.code for answer in answers if answer.HasField("check_tx")] == [0]
    results = [answer.finalize_block for answer in answers if answer.HasField("finalize_block")]
    assert sum(len(result.tx_results) for result in results) == 1
    assert results[-1].app_hash.hex() == store.committed.app_hash.hex() == VECTOR["app_hash"]
    store.close()


def _fail(error: BaseException) -> None:
    raise AssertionError(str(error)) from error
