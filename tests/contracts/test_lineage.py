"""Heights are shown, and of several histories ours is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from rpc_stub import ADDRESS, INTERNAL, Stub

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ChainUnreachable, RpcError

FUTURE = 2**48 - 1


def test_a_height_that_isn_t_shown_is_no_answer(stub: Callable[..., Stub]) -> None:
    liar = stub(height=100)
    liar.told = FUTURE
    with ChainClient([liar.url]) as client:
        with pytest.raises(ChainUnreachable, match=f"newest block is {FUTURE}, and doesn't show it.*next: "):
            client.height()
        liar.told = None
        assert client.height() == 100
        liar.told = FUTURE
        with pytest.raises(ChainUnreachable, match="doesn't show it"):
            client.height()
        liar.told = None
        assert client.height() == 100


@pytest.mark.parametrize(
    "odd",
    [{"number": "0x1"}, {"parentHash": "0x" + "00" * 32}, {"hash": "0x12"}, {"hash": None}, {"number": "abc"}],
)
def test_a_block_that_follows_from_nothing_shows_no_height(stub: Callable[..., Stub], odd: dict[str, Any]) -> None:
    liar = stub(height=100)
    whole = liar.block
    liar.block = lambda height: whole(height) | odd  # type: ignore[method-assign]
    with ChainClient([liar.url]) as client, pytest.raises(ChainUnreachable, match="newest block is 100, and doesn't"):
        client.height()


def test_a_height_is_shown_once(stub: Callable[..., Stub]) -> None:
    """What a quiet block costs stays a question for the height: blocks are asked for at the first and after a jump."""
    node = stub(height=100)
    with ChainClient([node.url]) as client:
        for height in range(100, 140):
            node.height = height
            assert client.height() == height
        assert node.num_requests == 40 + 1
        node.height = 200
        assert client.height() == 200
        assert node.num_requests == 40 + 1 + 2


@pytest.mark.parametrize("liars_place", [0, 1])
@pytest.mark.parametrize("is_forged", [False, True])
def test_a_liar_ahead_does_not_lock_the_honest_one_out(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch, liars_place: int, is_forged: bool
) -> None:
    """It says a height far ahead, shows made-up blocks for it or none, and answers what is asked by an error."""
    monkeypatch.setattr("contracts.bindings.client._COMPARE_SECONDS", 0.0)
    monkeypatch.setattr("contracts.bindings.lineage.ANCHOR_SECONDS", 0.0)
    honest, liar = stub(height=100), stub(height=100)
    liar.told, liar.forged = FUTURE, is_forged
    liar.errors["eth_getBalance"] = INTERNAL
    urls = [honest.url]
    urls.insert(liars_place, liar.url)
    with ChainClient(urls) as client:
        assert client.height() in ((100, FUTURE) if is_forged else (100,)), "made-up blocks are found out by errors"
        for height in range(100, 140):
            honest.height = height
            assert client.balance(ADDRESS) == 5
            assert client.height() == height


def test_what_a_liar_shows_no_more_is_held_against_nobody(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.bindings.client._COMPARE_SECONDS", 0.0)
    honest, liar = stub(height=100), stub(height=100)
    liar.told, liar.forged = FUTURE, True
    with ChainClient([honest.url, liar.url]) as client:
        assert client.height() == FUTURE
        liar.told, liar.forged, honest.height, liar.height = None, False, 105, 105
        assert client.height() == 105
        assert client.balance(ADDRESS) == 5
        assert honest.asked.count("eth_getBalance") == 1


def test_an_error_of_ours_does_not_make_another_history_ours(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is behind is asked when who is ahead has only errors, but for one history."""
    ours, other = stub(height=100, history=1), stub(height=90, history=2)
    ours.errors["eth_getBalance"] = INTERNAL
    with ChainClient([ours.url, other.url]) as client:
        assert client.height() == 100
        with pytest.raises(RpcError, match="internal"):
            client.balance(ADDRESS)
        assert client.height() == 100


def test_of_two_histories_the_first_is_followed_whatever_happens(stub: Callable[..., Stub]) -> None:
    """The other one has our chain id and more blocks; with our node away there is no answer rather than its answer."""
    ours, other = stub(height=100, history=1), stub(height=200, history=2)
    client = ChainClient([ours.url, other.url])
    assert client.height() == 100
    ours.status = 500
    with pytest.raises(ChainUnreachable, match=r"has another block 100, .*0002.* than .*0001"):
        client.balance("0x" + "00" * 20)
    ours.status = 200
    end = time.monotonic() + 10
    while True:
        assert time.monotonic() < end, "our node is not asked again"
        try:
            assert client.height() == 100
            break
        except ChainUnreachable:
            time.sleep(0.05)
    client.close()


def test_who_has_our_history_takes_over(stub: Callable[..., Stub]) -> None:
    first, second = stub(height=100, history=1), stub(height=101, history=1)
    client = ChainClient([first.url, second.url])
    assert client.height() == 100
    first.status = 500
    assert client.height() == 101
    assert client.balance("0x" + "00" * 20) == 5
    client.close()


def test_who_is_behind_what_we_have_seen_is_not_asked(stub: Callable[..., Stub]) -> None:
    ahead, behind = stub(height=100, history=1), stub(height=99, history=1)
    client = ChainClient([ahead.url, behind.url])
    assert client.height() == 100
    ahead.status = 500
    with pytest.raises(ChainUnreachable, match="is behind block 100"):
        client.balance("0x" + "00" * 20)
    behind.height = 100
    end = time.monotonic() + 10
    while True:
        assert time.monotonic() < end, "it has caught up and is not asked"
        try:
            assert client.balance("0x" + "00" * 20) == 5
            break
        except ChainUnreachable:
            time.sleep(0.05)
    client.close()
