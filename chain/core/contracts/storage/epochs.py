"""Committees: snapshots of seats, one a storage epoch (DESIGN 5, *Committee*).

A new epoch starts at a multiple of ``storage_epoch_blocks`` and only when the set of nodes has changed, so
certificates of a steady network never go out of date.  The current and the previous epoch are accepted; one more epoch
follows where a seat has gone, so that nobody waits for ever for certificates of its last epoch to end.
Invariant: a committee has 1 to 64 seats and never changes, but for the addresses of its nodes.
"""

from __future__ import annotations

from functools import lru_cache

from chain.core.contracts.storage.bonds import note_seats
from chain.core.contracts.storage.keys import (
    STORAGE,
    committee_key,
    get_epoch_blocks,
    get_epoch_state,
    save_epoch_state,
)
from chain.core.contracts.storage.nodes import Node, NodeState, get_node, get_nodes
from chain.core.record_codec import pack, unpack
from chain.core.state import Base, Overlay
from chain.core.turn import Turn
from chain.core.types import Address
from da.core.scheme import MAX_SEATS
from da.core.types import Committee, Epoch, Seat, ShardIndex

_REMEMBERED_COMMITTEES = 4
"""Decoded: certificates name the current one and the one before."""


def process_epoch_block_end(turn: Turn) -> None:
    """Start an epoch when it is time and the set has changed; at most 64 seats, the longest registered first."""
    if turn.height % get_epoch_blocks(turn.state) != 0:
        return
    clock = get_epoch_state(turn.state)
    if not clock.has_changed:
        return
    seated = [node for node in get_nodes(turn.state) if node.state == NodeState.REGISTERED][:MAX_SEATS]
    clock.has_changed = False
    if not seated:  # the last committee stays: it serves until its leases end
        save_epoch_state(turn.state, clock)
        return
    operators = {node.operator for node in seated}
    clock.has_changed = any(node.operator not in operators for node in get_seats(turn.state, clock.epoch))
    clock.epoch += 1
    save_epoch_state(turn.state, clock)
    turn.state.set(committee_key(clock.epoch), pack([(node.operator, node.key) for node in seated]))
    note_seats(turn.state, clock.epoch, [node.operator for node in seated])
    turn.emit(STORAGE, "EpochStarted", clock.epoch, len(seated))


def get_seats(state: Overlay, epoch: int) -> list[Node]:
    """Return the nodes of an epoch's seats, in order, with the key of the snapshot; empty where unknown."""
    value = state.get(committee_key(epoch)) if epoch < 2**64 else None
    if value is None:
        return []
    seats = []
    for operator, key in unpack(value):
        node = get_node(state, Address(operator))
        assert node is not None, "nodes are never removed"
        node.key = key
        seats.append(node)
    return seats


def get_operator(state: Overlay, epoch: int, seat: int) -> Address | None:
    """Return who has a seat, None where the epoch has no such seat."""
    value = state.get(committee_key(epoch))
    assert value is not None, "a certified blob names a committee"
    seats = unpack(value)
    return Address(seats[seat][0]) if seat < len(seats) else None


def get_committee(state: Base, epoch: int) -> Committee | None:
    """Return an epoch's committee for checking certificates (without addresses), None where unknown."""
    value = state.get(committee_key(epoch))
    return None if value is None else _decode_committee(epoch, value)


@lru_cache(maxsize=_REMEMBERED_COMMITTEES)
def _decode_committee(epoch: int, value: bytes) -> Committee:
    return Committee(
        epoch=Epoch(epoch),
        seats=tuple(Seat(index=ShardIndex(index), key=key, url="") for index, (_, key) in enumerate(unpack(value))),
    )
