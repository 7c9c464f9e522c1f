"""InitChain and FinalizeBlock: from what CometBFT decided to a candidate that Commit can write.

A function of the newest block and the request; nothing durable is written here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chain.abci import abci_pb2 as pb
from chain.abci.answers import make_result, make_validator_updates
from chain.abci.draining import Draining
from chain.abci.errors import OutOfOrder, UnsupportedRules
from chain.abci.faults import Fault, FaultPoint, die_if_due
from chain.abci.newest_block import NewestBlock
from chain.core.blocks import compute_body_bytes, seal_block
from chain.core.contracts.staking.keys import NEWEST_RULES, STAKING, get_rules
from chain.core.contracts.staking.validators import (
    Evidence,
    get_operator,
    process_genesis_validators,
    record_evidence,
)
from chain.core.errors import BlockGasExhausted, InvalidTransaction, NonceTooHigh
from chain.core.executor import BlockEnvironment, BlockExecution, Contracts, process_block
from chain.core.genesis import Genesis, parse_genesis
from chain.core.records import Receipt, Transaction
from chain.core.smt import Tree
from chain.core.state import Overlay
from chain.core.types import Address, Hash, Height
from chain.store import Candidate

log = logging.getLogger(__name__)

ProcessGenesis = Callable[[Overlay, Genesis], None]
"""Writes the first state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalized:
    """A block that was executed and waits for Commit."""

    candidate: Candidate
    tree: Tree
    refused: tuple[Transaction, ...]
    """Those that no later block could execute either."""
    evm_work: Mapping[Address, int]
    """The most that one call took of the EVM's meter, by contract."""


def make_first_block(
    request: pb.RequestInitChain, process_genesis: ProcessGenesis, contracts: Contracts
) -> tuple[Genesis, Candidate, Tree]:
    """Return block 0 of a genesis; the validators stay those of genesis.json, Staking gives them bonds."""
    genesis = parse_genesis(request.chain_id, request.app_state_bytes)
    overlay = Overlay()
    process_genesis(overlay, genesis)
    if STAKING in contracts:
        process_genesis_validators(overlay, [(each.pub_key.ed25519, each.power) for each in request.validators])
    changes = overlay.changes()
    tree = Tree().update(changes)
    block = seal_block(
        height=Height(0),
        parent_hash=Hash(bytes(32)),
        time_seconds=request.time.seconds,
        app_hash=tree.root,
        proposer=Address(bytes(20)),
        gas_limit=genesis.parameters.gas_limit,
        base_fee=genesis.parameters.base_fee,
        cometbft_hash=bytes(32),
        receipts=(),
        block_logs=(),
        size_bytes=0,
    )
    candidate = Candidate(
        height=Height(0),
        app_hash=tree.root,
        changes=changes,
        block=block,
        receipts=(),
        transactions=(),
        timer_logs=(),
    )
    return genesis, candidate, tree


def make_environment(newest: NewestBlock, request: pb.RequestFinalizeBlock) -> BlockEnvironment:
    """Return what the block sees of itself; raises OutOfOrder for a wrong height, UnsupportedRules for new ones."""
    committed = newest.committed
    if committed.is_empty or request.height != committed.height + 1:
        raise OutOfOrder(f"FinalizeBlock for height {request.height}, expected {committed.height + 1}")
    rules = get_rules(committed.state)
    if rules > NEWEST_RULES:
        raise UnsupportedRules(request.height, NEWEST_RULES, rules)
    return BlockEnvironment(
        height=Height(request.height),
        time_seconds=request.time.seconds,
        proposer=get_operator(committed.state, request.proposer_address),
        block_seed=committed.app_hash,
        parameters=newest.get_parameters(),
        rules=rules,
        read_block_hash=committed.block_hash,
    )


def finalize_block(
    newest: NewestBlock,
    contracts: Contracts,
    environment: BlockEnvironment,
    decoded: Draining,
    request: pb.RequestFinalizeBlock,
    fault: Fault | None,
) -> tuple[Finalized, pb.ResponseFinalizeBlock]:
    """Execute the decoded transactions on an overlay; return what Commit needs and what CometBFT is told."""
    overlay = Overlay(newest.state)
    _record_misbehavior(overlay, request, contracts)
    execution = process_block(overlay, environment, decoded, contracts)
    die_if_due(fault, FaultPoint.IN_FINALIZE, request.height)
    finalized = _seal(newest, overlay, environment, execution, decoded, request)
    answer = pb.ResponseFinalizeBlock(
        tx_results=[
            make_result(result, transaction) for result, transaction in zip(execution.results, decoded, strict=True)
        ],
        app_hash=finalized.candidate.app_hash,
        validator_updates=make_validator_updates(finalized.candidate.changes),
    )
    return finalized, answer


def _record_misbehavior(overlay: Overlay, request: pb.RequestFinalizeBlock, contracts: Contracts) -> None:
    """Hand CometBFT's evidence to Staking, which punishes at the end of the block."""
    for evidence in request.misbehavior:
        kind = pb.MisbehaviorType.Name(evidence.type)
        log.warning("validator %s at height %d: %s", evidence.validator.address.hex(), evidence.height, kind)
    if STAKING in contracts:
        found = [
            Evidence(address=each.validator.address, height=each.height, kind=each.type) for each in request.misbehavior
        ]
        record_evidence(overlay, found)


def _seal(
    newest: NewestBlock,
    overlay: Overlay,
    environment: BlockEnvironment,
    execution: BlockExecution,
    decoded: Sequence[Transaction | InvalidTransaction],
    request: pb.RequestFinalizeBlock,
) -> Finalized:
    changes = overlay.changes()
    tree = newest.tree.update(changes)
    parent = newest.committed.block(environment.height - 1)
    assert parent is not None, "blocks are written with their height"
    pairs = list(zip(execution.results, decoded, strict=True))
    executed = [done for result, done in pairs if isinstance(result, Receipt) and isinstance(done, Transaction)]
    receipt_logs = [entry for receipt in execution.receipts for entry in receipt.logs]
    block = seal_block(
        height=environment.height,
        parent_hash=parent.hash,
        time_seconds=environment.time_seconds,
        app_hash=tree.root,
        proposer=environment.proposer,
        gas_limit=environment.parameters.gas_limit,
        base_fee=environment.parameters.base_fee,
        cometbft_hash=request.hash,
        receipts=execution.receipts,
        block_logs=[*receipt_logs, *execution.timer_logs],
        size_bytes=compute_body_bytes(transaction.raw for transaction in executed),
    )
    candidate = Candidate(
        height=environment.height,
        app_hash=tree.root,
        changes=changes,
        block=block,
        receipts=execution.receipts,
        transactions=executed,
        timer_logs=execution.timer_logs,
    )
    return Finalized(
        candidate=candidate,
        tree=tree,
        refused=_find_refused(execution.results, decoded),
        evm_work=execution.evm_work,
    )


def _find_refused(
    results: Sequence[Receipt | InvalidTransaction], decoded: Sequence[Transaction | InvalidTransaction]
) -> tuple[Transaction, ...]:
    """Return what was refused for good: what only found no room, and what follows it, runs in a later block."""
    refused: list[Transaction] = []
    delayed: set[Address] = set()
    for result, transaction in zip(results, decoded, strict=True):
        if isinstance(result, Receipt) or not isinstance(transaction, Transaction):
            continue
        if isinstance(result, BlockGasExhausted):
            delayed.add(transaction.sender)
        elif not (isinstance(result, NonceTooHigh) and transaction.sender in delayed):
            refused.append(transaction)
    return tuple(refused)
