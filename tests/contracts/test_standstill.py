"""Whose votes a standing chain lacks, as nodes tell, and a watch that says so once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from contracts.bindings.errors import ChainUnreachable, RpcError
from contracts.bindings.standstill import (
    STILL_SECONDS,
    BlockWatch,
    describe_votes,
    read_core_height,
    read_votes,
    watch_for_block,
)


def make_ask(powers: Mapping[str, int], signed: str, own: str = "A") -> Any:
    """Answer as CometBFT does for validators of one letter each."""
    answers: dict[str, Any] = {
        "status": {"sync_info": {"latest_block_height": "7768"}, "validator_info": {"address": own}},
        "validators": {"validators": [{"address": name, "voting_power": str(power)} for name, power in powers.items()]},
        "commit": {
            "signed_header": {
                "commit": {
                    "signatures": [
                        {
                            "validator_address": name if name in signed else "",
                            "block_id_flag": 2 if name in signed else 1,
                        }
                        for name in powers
                    ]
                }
            }
        },
    }
    return lambda method, params: answers[method]


def test_the_silent_are_named() -> None:
    votes = read_votes(make_ask({"A": 10, "B": 5}, signed="A"))
    assert (votes.height, votes.own_power, votes.total_power, votes.silent) == (7768, 10, 15, (("B", 5),))
    said = describe_votes(votes)
    assert "more than two thirds of the power 15; this node's validator has 10, silent: B (power 5); next: " in said


def test_who_signed_the_newest_may_be_down_since() -> None:
    votes = read_votes(make_ask({"A": 10, "B": 5, "C": 5}, signed="ABC"))
    assert votes.silent == (("B", 5), ("C", 5)), "all others than the node's own"


def test_a_node_whose_own_power_suffices_is_sent_to_its_log() -> None:
    said = describe_votes(read_votes(make_ask({"A": 11, "B": 5}, signed="A")))
    assert "this node's own validator has 11: it should go on; next: read that node's log" in said


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        None,
        "x",
        {"sync_info": {"latest_block_height": float("inf")}},
        {"sync_info": {"latest_block_height": []}},
    ],
)
def test_invalid_status(answer: Any) -> None:
    """Infinity is what 1e999 in JSON reads as."""
    with pytest.raises(ValueError, match="no status of CometBFT"):
        read_votes(lambda method, params: answer)
    with pytest.raises(RpcError, match="no status of CometBFT"):
        read_core_height(lambda method, params: answer)


class Clock:
    """Seconds and a height that the test moves."""

    def __init__(self) -> None:
        self.now, self.height, self.is_up = 100.0, 7768, True

    def read_height(self) -> int:
        if not self.is_up:
            raise ChainUnreachable([("http://a:1", "down")])
        return self.height

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_a_watch_says_it_after_some_seconds_and_until_a_block_comes() -> None:
    clock = Clock()
    watch = BlockWatch(clock.read_height, make_ask({"A": 10, "B": 5}, "A"), get_time=lambda: clock.now)
    for _ in range(20):
        clock.pause(0.5)
        clock.height += 1
        assert watch.look() == ""
    assert watch.has_grown
    stopped_at = clock.now
    while not watch.look():
        clock.pause(0.5)
        assert clock.now < stopped_at + 2 * STILL_SECONDS
    assert clock.now >= stopped_at + STILL_SECONDS
    clock.pause(0.1)
    assert "the chain stands still" in watch.look(), "also between two questions"
    clock.is_up = False
    clock.pause(5)
    assert "the chain stands still" in watch.look(), "a node that is down makes no blocks"
    clock.is_up, clock.height = True, clock.height + 1
    clock.pause(5)
    assert watch.look() == ""


def test_one_look_takes_a_block_or_some_seconds() -> None:
    clock = Clock()
    ask = make_ask({"A": 10, "B": 5}, "A")
    said = watch_for_block(clock.read_height, ask, pause=clock.pause, get_time=lambda: clock.now)
    assert said.startswith("no block after 7768 for 5 s: the chain stands still; the next needs votes")
    started = clock.now

    def grow(seconds: float) -> None:
        clock.pause(seconds)
        clock.height += 1

    assert watch_for_block(clock.read_height, ask, pause=grow, get_time=lambda: clock.now) == ""
    assert clock.now - started < 1
