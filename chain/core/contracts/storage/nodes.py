"""Storage nodes: who keeps shards, under which receipt key, at which address (DESIGN 5, *Committee*).

A node is its operator's account.  It gets a seat from the next committee epoch on, and a retiring one keeps
serving the seats it has.  Invariant: a receipt key belongs to one operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from chain.core.abi.refusal import Refusal
from chain.core.contracts.storage.keys import (
    STORAGE,
    get_epoch_state,
    node_index_key,
    node_key,
    receipt_key_key,
    save_epoch_state,
)
from chain.core.record_codec import RecordCodec
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address
from da.core.receipt import is_key_proof_valid

MAX_URL_BYTES = 256
"""Enough for any host name (253) of the usual kind; longer ones only fill the state."""

MAX_NODES = 1_024
"""Registered nodes ever; ``nodes()`` lists them in one call."""

_SCHEMES = ("http://", "https://")


class NodeState(IntEnum):
    """As in the ABI's StorageNode."""

    NONE = 0
    REGISTERED = 1
    RETIRING = 2


@dataclass(slots=True, kw_only=True)
class Node:
    """A storage node."""

    operator: Address
    """Its account."""
    key: bytes
    """ed25519 public key of its receipts, 32 bytes."""
    url: str
    """Where it listens."""
    capacity_bytes: int
    """What it says it can keep."""
    state: NodeState
    """REGISTERED or RETIRING."""
    registered_height: int
    """First registration."""


_NODE = RecordCodec(Node)


def get_node(state: Overlay, operator: Address) -> Node | None:
    """Return a node, None where there is none."""
    value = state.get(node_key(operator))
    return _NODE.decode(value) if value is not None else None


def get_nodes(state: Overlay) -> list[Node]:
    """Return all nodes in order of registration."""
    operators = [state.get(node_index_key(index)) for index in range(get_epoch_state(state).num_nodes)]
    nodes = [get_node(state, Address(operator)) for operator in operators if operator is not None]
    return [node for node in nodes if node is not None]


def process_register(turn: Turn, operator: Address, url: str, key: bytes, key_proof: bytes, capacity: int) -> None:
    """Register the operator's node, or bring a retiring one back."""
    # CHECKS
    state = turn.state
    node = get_node(state, operator)
    clock = get_epoch_state(state)
    if node is not None and node.state == NodeState.REGISTERED:
        raise Refusal("NodeAlreadyRegistered", operator)
    if node is None and clock.num_nodes >= MAX_NODES:
        raise Refusal("TooMany", MAX_NODES, clock.num_nodes + 1)
    _check_url(url)
    key_owner = state.get(receipt_key_key(key))
    if key_owner is not None and key_owner != operator:
        raise Refusal("KeyAlreadyRegistered", key)
    if not is_key_proof_valid(key, key_proof, genesis_hash=turn.genesis_hash, operator_address=operator):
        raise Refusal("BadKeyProof", key)
    # EFFECTS
    if node is None:
        state.set(node_index_key(clock.num_nodes), operator)
        clock.num_nodes += 1
        registered_height = int(turn.height)
    else:
        registered_height = node.registered_height
    state.set(receipt_key_key(key), operator)
    _save_node(
        state,
        Node(
            operator=operator,
            key=key,
            url=url,
            capacity_bytes=capacity,
            state=NodeState.REGISTERED,
            registered_height=registered_height,
        ),
    )
    clock.has_changed = True
    save_epoch_state(state, clock)
    # EVENTS
    turn.emit(STORAGE, "NodeRegistered", operator, key, url)


def process_update(turn: Turn, operator: Address, url: str, capacity: int) -> None:
    """Change a node's address and capacity; seats show the new address at once."""
    node = _get_known(turn.state, operator)
    _check_url(url)
    node.url = url
    node.capacity_bytes = capacity
    _save_node(turn.state, node)
    turn.emit(STORAGE, "NodeUpdated", operator, url)


def process_retire(turn: Turn, operator: Address) -> None:
    """Take no new seat from the next epoch on."""
    node = _get_known(turn.state, operator)
    if node.state == NodeState.RETIRING:
        return
    node.state = NodeState.RETIRING
    _save_node(turn.state, node)
    clock = get_epoch_state(turn.state)
    clock.has_changed = True
    save_epoch_state(turn.state, clock)
    turn.emit(STORAGE, "NodeRetired", operator)


def process_demotion(turn: Turn, operator: Address) -> None:
    """Take a registered node out of the next committees; it may register again."""
    node = get_node(turn.state, operator)
    if node is not None and node.state == NodeState.REGISTERED:
        process_retire(turn, operator)


def _get_known(state: Overlay, operator: Address) -> Node:
    node = get_node(state, operator)
    if node is None:
        raise Refusal("UnknownNode", operator)
    return node


def _save_node(state: Overlay, node: Node) -> None:
    state.set(node_key(node.operator), _NODE.encode(node))


def _check_url(url: str) -> None:
    if len(url.encode()) > MAX_URL_BYTES:
        raise Refusal("BadUrl", f"{len(url.encode())} bytes, at most {MAX_URL_BYTES}")
    if not url.startswith(_SCHEMES) or url in _SCHEMES:
        raise Refusal("BadUrl", "expected http://host:port or https://host:port")
    if not url.isprintable() or " " in url:
        raise Refusal("BadUrl", "a space or a control character")
