"""A run's page counts what became of its rounds (case 4): out of real events of the real contract."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from web3 import Web3

from contracts.bindings.encoding import Event, decode_log, topic_of
from contracts.bindings.errors import RpcError
from training.commands.describing import describe_run
from training.commands.void_rounds import MAX_SEARCHES, SEARCH_BLOCKS, VoidRounds, fetch_void_rounds


class Searching:
    """The memory chain's logs as a node gives them, and the spans that were asked for."""

    def __init__(self, net: Any) -> None:
        self.chain = net.chain

    def events(self, contract: str, names: Any, *, from_height: int, to_height: int, topics: Any) -> list[Event]:
        wanted = {topic_of(contract, name) for name in names}
        with self.chain.lock:
            placed = list(zip(self.chain.inner.logs, self.chain.log_heights, strict=False))
        found = []
        for log, height in placed:
            is_wanted = log.topics[0] in wanted and log.topics[1] == topics[0] and from_height <= height <= to_height
            if is_wanted and log.address == self.chain.inner.contracts[contract].address:
                event = decode_log(
                    {
                        "address": Web3.to_hex(log.address),
                        "topics": [Web3.to_hex(topic) for topic in log.topics],
                        "data": Web3.to_hex(log.data),
                        "blockNumber": hex(height),
                        "transactionHash": "0x" + "00" * 32,
                        "logIndex": "0x0",
                    }
                )
                assert event is not None
                found.append(event)
        return found


def test_the_rounds_of_an_absence_are_counted_and_explained(net: Any) -> None:
    """The only worker was away: two rounds were lost, and no page said so."""
    net.create_run(minMembers=1, numRounds=40, roundBlocks=30, numFragments=1, overlap=0, checkpointInterval=100)
    ann = net.worker("ann")
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 3)
    ann.halt()
    settled = net.info().num_settled
    net.wait_for(lambda: net.info().num_settled >= settled + 2, what="rounds without it are over")
    client: Any = Searching(net)
    info = net.info()
    void = fetch_void_rounds(client, info, int(net.chain.inner.height))
    assert void is not None
    states = [net.chain.read("Training", "round", (net.run, index)).state.name for index in range(info.num_settled)]
    assert (void.num_final, void.num_void) == (states.count("FINAL"), states.count("VOID"))
    assert void.num_void >= 2
    rows = dict(describe_run(info, None, void))
    assert f"{info.num_settled} settled ({void.num_final} FINAL, {void.num_void} VOID), " in rows["rounds"]
    assert "trainer run pause" in rows["VOID rounds"]
    assert "VOID rounds" not in dict(describe_run(info, None, VoidRounds(num_void=0, num_final=5, first_height=1)))


def make_event(name: str, **fields: int) -> Any:
    return SimpleNamespace(name=name, fields=fields)


def test_rounds_that_a_run_went_back_behind_are_counted_anew() -> None:
    info: Any = SimpleNamespace(run=1, created_height=1, num_settled=6)
    told = [
        make_event("RoundVoided", round=3, reason=1),
        make_event("RoundVoided", round=5, reason=1),
        make_event("RunReverted", from_version=7, to_version=4),
        make_event("RoundVoided", round=4, reason=1),
    ]
    client: Any = SimpleNamespace(events=lambda *_, **__: told)
    assert fetch_void_rounds(client, info, 50) == VoidRounds(num_void=2, num_final=4, first_height=1)


@pytest.mark.parametrize("num_answered", range(MAX_SEARCHES + 1))
def test_what_was_not_searched_is_not_counted(num_answered: int) -> None:
    """A chain of months, or a node that keeps the newest blocks only."""
    spans: list[tuple[int, int]] = []

    def events(*_: Any, from_height: int, to_height: int, **__: Any) -> list[Any]:
        if len(spans) == num_answered:
            raise RpcError(-32000, "pruned")
        spans.append((from_height, to_height))
        return [make_event("RoundVoided", round=len(spans), reason=1)]

    client: Any = SimpleNamespace(events=events)
    void = fetch_void_rounds(client, SimpleNamespace(run=1, created_height=5, num_settled=9), 100_000)  # type: ignore[arg-type]
    assert all(to - start + 1 == SEARCH_BLOCKS for start, to in spans)
    if num_answered == 0:
        assert void is None
    else:
        first = 100_000 - num_answered * SEARCH_BLOCKS + 1
        assert void == VoidRounds(num_void=num_answered, num_final=None, first_height=first)
        assert void.describe() == f"{num_answered} VOID since block {first}"
