"""The state that a block parameter names: of the newest block, or of one of those before (``chain.store``, undo)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from chain.core.contracts.staking.keys import get_rules
from chain.core.environment import BlockEnvironment
from chain.core.genesis import get_parameters
from chain.core.state import Base
from chain.rpc.faults import BlockPruned, InvalidParams, StateGone
from chain.rpc.session import Session
from chain.rpc.values import Params, parse_data, parse_height
from chain.store import Snapshot
from chain.stored_states import PastState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """The chain after a block."""

    height: int
    state: Base
    """What is agreed."""
    deep_state: Base
    """With the records that have left it: for the system contracts' views."""
    environment: BlockEnvironment
    """Of that block, without hashes of others: only code in the EVM asks for them (``evm_environment``)."""
    snapshot: Snapshot
    is_newest: bool

    def evm_environment(self) -> BlockEnvironment:
        """Return the environment of a call that may run users' code; it sees no block that is newer than the state."""

        def read_block_hash(height: int) -> bytes | None:
            return self.snapshot.find_block_hash(height) if height <= self.height else None

        return replace(self.environment, read_block_hash=read_block_hash)


def open_view(session: Session, params: Params, index: int) -> StateView:
    """Return the state that a parameter names, the newest where it is missing; raises StateGone."""
    snapshot = session.snapshot
    height = find_height(snapshot, params.raw(index, "block", "latest"))
    if height == snapshot.height:
        return StateView(
            height=height,
            state=snapshot.state,
            deep_state=snapshot.state_and_archive,
            environment=session.head.environment,
            snapshot=snapshot,
            is_newest=True,
        )
    return open_past(session, height)


def open_past(session: Session, height: int) -> StateView:
    """Return the state after a block before the newest; raises StateGone or BlockPruned."""
    snapshot, head = session.snapshot, session.head
    if head.past is not None and head.past[0] == height:
        changed: dict[bytes, bytes | None] | None = head.past[1]
    else:
        changed = snapshot.changed_since(height) if height < snapshot.height else None
    if changed is None:
        raise StateGone(height, snapshot.height)
    head.past = (height, changed)
    block = snapshot.block(height)
    if block is None:
        raise BlockPruned(height, snapshot.first_height)
    state, deep_state = PastState(snapshot.state, changed), PastState(snapshot.state_and_archive, changed)
    parameters = get_parameters(state)
    assert parameters is not None, "written at genesis"
    return StateView(
        height=height,
        state=state,
        deep_state=deep_state,
        environment=BlockEnvironment(
            height=block.height,
            time_seconds=block.time_seconds,
            proposer=block.proposer,
            block_seed=block.app_hash,
            parameters=parameters,
            rules=get_rules(state),
        ),
        snapshot=snapshot,
        is_newest=False,
    )


def find_height(snapshot: Snapshot, value: Any) -> int:
    """Return the height that a block parameter names: tag, number, or an object with either key (EIP-1898)."""
    if not isinstance(value, dict):
        return parse_height(value, snapshot.height)
    if "blockHash" not in value:
        return parse_height(value.get("blockNumber"), snapshot.height)
    block_hash = parse_data(value["blockHash"], "blockHash", 32)
    height = snapshot.height_of_block_hash(block_hash)
    if height is None:
        raise InvalidParams(f"unknown block 0x{block_hash.hex()}")
    return height
