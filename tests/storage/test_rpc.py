"""The node's questions over JSON-RPC: what is no answer is ChainUnreachable, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from eth_abi.exceptions import DecodingError

from contracts.bindings.errors import ChainUnreachable as BindingsUnreachable
from contracts.bindings.errors import RpcError
from contracts.bindings.types import StorageNode, StorageNodeState
from da.core.types import BlobId
from storage.core.errors import ChainUnreachable
from storage.node.rpc import RpcChain


def make_node(number: int) -> StorageNode:
    return StorageNode(
        operator="0x",
        key=bytes([number]) * 32,
        url=f"http://node-{number}:9001/",
        capacity_bytes=1,
        state=StorageNodeState.REGISTERED,
        registered_height=1,
    )


class Reader:
    """The storage views."""

    def __init__(self) -> None:
        self.now = 3
        self.fetched: list[int] = []
        self.answer: Any = (7, 0)

    def epoch(self) -> int:
        return self.now

    def committee(self, epoch: int) -> tuple[StorageNode, ...]:
        self.fetched.append(epoch)
        return (make_node(epoch), make_node(epoch + 100))

    def release_heights(self, blobs: tuple[bytes, ...]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_committees_are_the_current_and_the_one_before_and_fetched_once() -> None:
    reader = Reader()
    chain = RpcChain(SimpleNamespace(storage=reader))  # type: ignore[arg-type]
    current, before = chain.get_committees()
    assert (current.epoch, before.epoch) == (3, 2)
    assert [(seat.index, seat.key[0], seat.url) for seat in current.seats] == [
        (0, 3, "http://node-3:9001"),
        (1, 103, "http://node-103:9001"),
    ]
    assert chain.get_committees() == (current, before)
    assert reader.fetched == [3, 2]
    reader.now = 4
    assert [committee.epoch for committee in chain.get_committees()] == [4, 3]
    assert reader.fetched == [3, 2, 4]


@pytest.mark.parametrize(("epoch", "expected"), [(0, []), (1, [1])])
def test_the_first_epochs(epoch: int, expected: list[int]) -> None:
    reader = Reader()
    reader.now = epoch
    chain = RpcChain(SimpleNamespace(storage=reader))  # type: ignore[arg-type]
    assert [committee.epoch for committee in chain.get_committees()] == expected


@pytest.mark.parametrize(
    "answer",
    [
        (7,),
        (7, 0, 0),
        BindingsUnreachable([("http://x", "refused")]),
        RpcError(-32000, "header not found"),
        DecodingError("too short"),
        TypeError("int() of None"),
        ValueError("not hex"),
    ],
)
def test_invalid_answers(answer: Any) -> None:
    reader = Reader()
    reader.answer = answer
    chain = RpcChain(SimpleNamespace(storage=reader))  # type: ignore[arg-type]
    with pytest.raises(ChainUnreachable):
        chain.get_release_heights([BlobId(bytes(32)), BlobId(b"\1" * 32)])
