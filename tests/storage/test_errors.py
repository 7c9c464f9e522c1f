"""Whatever a person meets at a command says what to do next; the amounts and heights of leaving are right."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from contracts.bindings.amounts import parse_tokens
from contracts.bindings.failures import SEPARATOR, describe_failure
from da.core import errors as da_errors
from storage.core.errors import StorageError, StoreRefusal, UnknownBlob
from storage.core.leaving import NEVER, explain_bond, format_blocks, format_height
from storage.sizes import parse_size

FOR_PROGRAMS = {
    "SingularMatrix",
    "Malformed",
    "MalformedHeader",
    "MalformedCertificate",
    "MalformedReceipt",
    "MalformedProof",
    "MalformedMessage",
    "BadProof",
    "BadEncoding",
    "FoldsMissing",
    "SeatFailed",
    "DisperseFailed",
    "RetrieveFailed",
}
"""Roots, and what a client turns into a seat's fault or a node into a refusal before anybody reads it."""


def walk(root: type[Exception]) -> Iterator[type[Exception]]:
    for child in root.__subclasses__():
        yield child
        yield from walk(child)


def test_every_failure_names_the_next_step() -> None:
    classes = [
        found
        for found in (*walk(StorageError), *walk(da_errors.DataAvailabilityError))
        if found.__module__ in ("storage.core.errors", "da.core.errors")
        and not issubclass(found, (StoreRefusal, da_errors.InvalidCertificate))
        and found.__name__ not in FOR_PROGRAMS
    ]
    assert len(classes) > 20
    silent = [
        found.__name__
        for found in classes
        if not getattr(found, "next_step", "")
        and SEPARATOR.strip() not in inspect.getsource(found).replace('"\n', "")
        and "next: " not in inspect.getsource(found)
    ]
    assert silent == []


@pytest.mark.parametrize("call", [lambda: parse_size("ten"), lambda: parse_tokens("much")])
def test_invalid_words_are_shown_with_an_example(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match="next: write it as"):
        call()


def test_a_failure_is_two_lines() -> None:
    text = describe_failure(UnknownBlob(blob=b"\1" * 32))
    assert text.splitlines()[1] == "next:  check the id and the --chain URL"


@pytest.mark.parametrize(("free_height", "epoch"), [(NEVER, 5), (12_100, 9)])
def test_a_node_that_keeps_nothing_need_not_run_for_its_bond(free_height: int, epoch: int) -> None:
    """Only a shard that it signed for and does not show costs it anything."""
    terms = {"bond": 10, "free_height": free_height, "last_epoch": 4, "epoch": epoch, "height": 100}
    empty = explain_bond(**terms, num_challenges=0, num_shards=0).next_step
    assert "may stop" in empty
    assert "--take-bond" in empty
    assert "keep the node running" in explain_bond(**terms, num_challenges=0, num_shards=1).next_step
    assert "keep the node running" in explain_bond(**terms, num_challenges=1, num_shards=0).next_step


@pytest.mark.parametrize(
    ("facts", "when", "step"),
    [
        ((10, NEVER, 1, 4, 4, 100), "after 1 open challenges", "keep the node running"),
        ((10, NEVER, 0, 4, 5, 100), "once storage epoch 6 begins; now is epoch 5", "look again"),
        ((10, NEVER, 0, 4, 9, 100), "while the node is registered", "storage-node retire"),
        ((10, 12_100, 0, 4, 9, 100), "height 12100, in 12000 blocks, about 1.0 h", "keep the node running until then"),
        ((10, 90, 0, 4, 9, 100), "now, since height 90", "storage-node retire --take-bond"),
        ((0, NEVER, 0, 0, 9, 100), "nothing is held", "stop the node"),
    ],
)
def test_when_a_bond_is_free(facts: tuple[int, ...], when: str, step: str) -> None:
    bond, free_height, num_challenges, last_epoch, epoch, height = facts
    found = explain_bond(
        bond=bond,
        free_height=free_height,
        num_challenges=num_challenges,
        last_epoch=last_epoch,
        epoch=epoch,
        height=height,
    )
    assert when in found.when
    assert step in found.next_step


def test_blocks_in_words() -> None:
    assert [format_blocks(blocks) for blocks in (0, 199, 200, 8_760_000)] == ["0 s", "59 s", "1.0 min", "30.4 days"]


def test_a_height_is_told_with_its_time() -> None:
    assert format_height(8_760_100, now=100) == "height 8,760,100, in 8,760,000 blocks, about 30.4 days"
    assert format_height(100, now=200) == "height 100, about 30 s ago"
    assert format_height(100, now=200, block_milliseconds=210) == "height 100, about 21 s ago"
    assert format_height(100, now=100) == "height 100, in 0 blocks, about 0 s"
