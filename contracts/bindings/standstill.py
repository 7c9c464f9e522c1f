"""Does the chain still make blocks?  A node answers as ever when it can't: reads work, transactions are taken and wait.

CometBFT makes the next block when more than two thirds of the voting power vote for it; where that many don't run, the
chain stands still until they do.  Whoever waits for a block looks here after some seconds, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from contracts.bindings.errors import BindingError, RpcError
from contracts.bindings.failures import SEPARATOR

STILL_SECONDS = 5.0
"""Without a block the chain is said to stand still: a devnet makes some three a second, a wide network one in six."""
LOOK_SECONDS = 1.0
"""Between two looks while something is waited for."""
_PAUSE_SECONDS = 0.1
_COMMITTED = 2
"""CometBFT's flag of a vote for the block (types.BlockIDFlagCommit)."""

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Asks a method of CometBFT's RPC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """Who must vote for the next block, as CometBFT tells."""

    height: int
    """Of the newest block."""
    own_power: int
    """Of the validator of the node that was asked; 0 where it has none."""
    total_power: int
    """Of all who vote for the next block."""
    silent: tuple[tuple[str, int], ...]
    """(address, power) of those who didn't vote for the newest; where all did, of all others than the node's own."""


def read_core_height(ask: Ask) -> int:
    """Return the newest block of CometBFT, which the application replays up to; raises what ``ask`` does."""
    try:
        return int(ask("status", {})["sync_info"]["latest_block_height"])
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise RpcError(-32603, f"no status of CometBFT: {error}") from error


def read_votes(ask: Ask) -> Votes:
    """Ask a node for the newest block's votes and the next one's voters; raises what ``ask`` does, and ValueError."""
    try:
        status = ask("status", {})
        height = int(status["sync_info"]["latest_block_height"])
        own = str(status["validator_info"]["address"])
        listed = ask("validators", {"per_page": "100"})["validators"]
        powers = {str(each["address"]): int(each["voting_power"]) for each in listed}
        votes = ask("commit", {"height": str(height)})["signed_header"]["commit"]["signatures"]
        signed = {str(vote["validator_address"]) for vote in votes if vote["block_id_flag"] == _COMMITTED}
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no status of CometBFT: {error}") from error
    silent = [item for item in powers.items() if item[0] not in signed]
    silent = silent or [item for item in powers.items() if item[0] != own]
    return Votes(
        height=height,
        own_power=powers.get(own, 0),
        total_power=sum(powers.values()),
        silent=tuple(sorted(silent, key=lambda item: (-item[1], item[0]))),
    )


def is_enough(power: int, total: int) -> bool:
    """Say whether so much power makes blocks.

    >>> is_enough(10, 15), is_enough(11, 15)
    (False, True)
    """
    return 3 * power > 2 * total


def describe_votes(votes: Votes) -> str:
    """Say why the next block doesn't come, and what to do."""
    needs = f"the next needs votes of more than two thirds of the power {votes.total_power}"
    if is_enough(votes.own_power, votes.total_power):
        step = "read that node's log, and `chain-node doctor`"
        return f"{needs}, and this node's own validator has {votes.own_power}: it should go on{SEPARATOR}{step}"
    named = ", ".join(f"{address} (power {power})" for address, power in votes.silent[:4])
    named += f" and {len(votes.silent) - 4} more" if len(votes.silent) > 4 else ""
    step = "start the validators that are down (`chain-node start`), or ask their operators; `chain-node status` names"
    return f"{needs}; this node's validator has {votes.own_power}, silent: {named}{SEPARATOR}{step} each one's address"


def watch_for_block(
    read_height: Callable[[], int], ask: Ask, *, pause: Callable[[float], None] = time.sleep, get_time: Any = None
) -> str:
    """Return why the chain stands still, empty as soon as a block comes; takes STILL_SECONDS where none does.

    Raises what ``read_height`` does.
    """
    get_time = get_time or time.monotonic
    first, started = read_height(), get_time()
    while read_height() == first:
        still_seconds = get_time() - started
        if still_seconds >= STILL_SECONDS:
            return describe_standstill(first, still_seconds, ask)
        pause(_PAUSE_SECONDS)
    return ""


class BlockWatch:
    """Watches a chain while something is waited for; blocks that came since the last look begin the time again."""

    def __init__(
        self,
        read_height: Callable[[], int],
        ask: Ask,
        *,
        look_seconds: float = LOOK_SECONDS,
        get_time: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet."""
        self.has_grown = False
        """Whether a block has come since the first look."""
        self._look_seconds = look_seconds
        self._read_height = read_height
        self._ask = ask
        self._get_time = get_time
        self._height = -1
        self._why = ""
        self._changed_at = get_time()
        self._look_at = get_time() + look_seconds

    def look(self) -> str:
        """Return why the chain stands still and what to do, empty while blocks come; asks now and then.

        While nobody answers it is what it was: that is said by whoever waits.
        """
        now = self._get_time()
        if now < self._look_at:
            return self._why
        self._look_at = now + self._look_seconds
        with suppress(BindingError):
            height = self._read_height()
            still_seconds = now - self._changed_at
            if height != self._height:
                self.has_grown = self._height >= 0
                self._height, self._changed_at, self._why = height, now, ""
            elif still_seconds >= STILL_SECONDS and not self._why:
                self._why = describe_standstill(height, still_seconds, self._ask)
        return self._why


def describe_standstill(height: int, seconds: float, ask: Ask) -> str:
    """Say since when a chain stands still, why as far as its nodes tell, and what to do."""
    what = f"no block after {height} for {seconds:.0f} s: the chain stands still"
    try:
        return f"{what}; {describe_votes(read_votes(ask))}"
    except (BindingError, ValueError):
        step = "ask its operators: more than two thirds of the validators' power must be up"
        return f"{what}{SEPARATOR}{step}"
