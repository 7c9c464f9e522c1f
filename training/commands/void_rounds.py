"""How many of a run's rounds became VOID: told by the chain's events, since its state counts none of them."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ChainUnreachable, RpcError
from contracts.bindings.types import RunInfo

SEARCH_BLOCKS = 10_000
"""Blocks of one search, as many as a node reads at once (chain/rpc/logs.py): about 0.3 s of its time."""

MAX_SEARCHES = 3
"""A status that takes longer than a second is none; older rounds stay uncounted, and that is said."""

NUMBERS = {"RoundVoided": "round", "RunReverted": "to_version"}
"""Events, and which of their fields says the round that is void, or the first that is undone."""

ABSENCE_STEP = (
    "nothing of them is in the model: too few updates or votes came in time; before an absence: trainer run pause "
    "(then resume); for workers that come and go: run create --round-seconds"
)
"""What keeps rounds from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidRounds:
    """Rounds that count for nothing, among those that have settled."""

    num_void: int
    """In the blocks that were searched."""
    num_final: int | None
    """The others that have settled; None where not all blocks of the run were searched."""
    first_height: int
    """First block that was searched."""

    def describe(self) -> str:
        """Say it in a few words, to go behind the number of rounds that have settled."""
        if self.num_final is None:
            return f"{self.num_void} VOID since block {self.first_height}"
        return f"{self.num_final} FINAL, {self.num_void} VOID"


def fetch_void_rounds(client: ChainClient, info: RunInfo, height: int) -> VoidRounds | None:
    """Count them, newest blocks first; None where the node tells nothing of the newest ones."""
    topic = info.run.to_bytes(32, "big")
    told: list[tuple[str, int]] = []
    first_height = height + 1
    for _ in range(MAX_SEARCHES):
        if first_height <= info.created_height:
            break
        start = max(info.created_height, first_height - SEARCH_BLOCKS)
        try:
            events = client.events(
                "Training",
                list(NUMBERS),
                from_height=start,
                to_height=first_height - 1,
                topics=[topic],
            )
        except (RpcError, ChainUnreachable):  # it keeps no older blocks, or is busy
            break
        told[:0] = [(event.name, event.fields[NUMBERS[event.name]]) for event in events]
        first_height = start
    if first_height > height:
        return None
    is_whole = first_height <= info.created_height
    num_void = len(_follow(told))
    return VoidRounds(
        num_void=num_void, num_final=info.num_settled - num_void if is_whole else None, first_height=first_height
    )


def _follow(told: list[tuple[str, int]]) -> set[int]:
    """Return the rounds that are VOID now: a run that went back settles its later rounds anew."""
    void: set[int] = set()
    for name, number in told:
        if name == "RunReverted":
            void = {each for each in void if each < number}
        else:
            void.add(number)
    return void
