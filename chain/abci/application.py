"""The application that CometBFT drives: thin handlers around the pure core (CHAIN.md, CometBFT).

Per height: the proposer gets PrepareProposal, everybody ProcessProposal, FinalizeBlock, Commit; replay and block
sync are FinalizeBlock and Commit only.  A transaction's fault is a result code.  An exception out of a handler is
a broken invariant and ends the process (``chain.abci.server``).  Between FinalizeBlock and Commit CometBFT locks
and flushes its mempool: nothing here is held across the two that CheckTx needs, and no handler ever waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgpack

from chain.abci import abci_pb2 as pb
from chain.abci.answers import (
    encode_admission,
    make_result,
    make_validator_updates,
    refuse_query,
    refuse_transaction,
)
from chain.abci.draining import Draining, do_nothing
from chain.abci.evm_work import EvmWork
from chain.abci.faults import Fault, FaultPoint, die_if_due
from chain.abci.gas_guesses import GasGuesses
from chain.abci.queries import answer_proofs
from chain.abci.recent_trees import RecentTrees
from chain.abci.server import Checker, Handler
from chain.abci.signatures_ahead import SignaturesAhead, find_certificate, read_epoch
from chain.abci.state_sync import StateSync
from chain.abci.verdicts import VerdictCache
from chain.abci.verifier_wire import Terms
from chain.abci.verifying import Verifier, VerifierUse
from chain.core import accounts
from chain.core.blocks import compute_body_bytes, seal_block
from chain.core.contracts.staking.keys import NEWEST_RULES, STAKING, get_rules
from chain.core.contracts.staking.validators import (
    Evidence,
    get_operator,
    process_genesis_validators,
    record_evidence,
)
from chain.core.contracts.storage.epochs import get_committee
from chain.core.contracts.storage.keys import get_epoch_state
from chain.core.errors import (
    BlockGasExhausted,
    EvmGasLimitTooHigh,
    InvalidTransaction,
    NonceTooHigh,
)
from chain.core.evm.execution import needs_evm
from chain.core.evm.gas import TRANSACTION_GAS, compute_required_gas
from chain.core.executor import (
    BlockEnvironment,
    BlockExecution,
    Contracts,
    check_arrival,
    compute_evm_gas,
    process_block,
)
from chain.core.genesis import PARAMETERS_KEY, ChainParameters, Genesis, get_parameters, parse_genesis
from chain.core.queue import TransactionQueue
from chain.core.records import Receipt, Transaction
from chain.core.smt import Tree
from chain.core.state import Overlay
from chain.core.types import Address, Amount, Hash, Height, Nonce
from chain.snapshots import SnapshotDirectory
from chain.store import Candidate, Store
from chain.stored_states import iterate_all

log = logging.getLogger(__name__)

ABCI_VERSION = "2.0.0"
"""Of CometBFT v0.38.x."""

APPLICATION_VERSION = 1
"""Protocol version of the rules; in every block header."""

ProcessGenesis = Callable[[Overlay, Genesis], None]
"""Writes the first state."""


class UnsupportedAbciVersion(Exception):
    """The core speaks another protocol."""

    def __init__(self, expected: str, got: str, core: str) -> None:
        """Keep both versions."""
        super().__init__(f"CometBFT {core} speaks ABCI {got}, this application {expected}; next: use CometBFT v0.38.x")
        self.expected = expected
        self.got = got


class UnsupportedRules(Exception):
    """Governance has activated rules that this software doesn't know."""

    def __init__(self, height: int, expected: int, got: int) -> None:
        """Keep both versions."""
        super().__init__(
            f"from block {height} on the chain follows rules {got}, this software knows them up to {expected};"
            " next: install the release that the proposal names and start again, nothing is lost"
        )
        self.expected = expected
        self.got = got


class OutOfOrder(Exception):
    """The core called what can't come now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finalized:
    """A block that was executed and waits for Commit."""

    candidate: Candidate
    tree: Tree
    refused: tuple[Transaction, ...]
    """Those that no later block could execute either."""
    evm_work: Mapping[Address, int]


class ChainApplication:
    """The state machine behind the four connections."""

    def __init__(
        self,
        store: Store,
        contracts: Contracts,
        process_genesis: ProcessGenesis,
        *,
        fault: Fault | None = None,
        snapshots: SnapshotDirectory | None = None,
        retain_blocks: int = 0,
        on_commit: Callable[[Height], None] | None = None,
        verifier_use: VerifierUse = VerifierUse.NEVER,
    ) -> None:
        """Continue from the newest durable block of ``store``; rebuilds the tree from its leaves."""
        self._store = store
        self._contracts = contracts
        self._process_genesis = process_genesis
        self._fault = fault
        self._snapshots = snapshots
        self._state_sync = StateSync(store, snapshots)
        self._retain_blocks = retain_blocks
        self._on_commit = on_commit
        self._queue = TransactionQueue()
        self._verdicts = VerdictCache()
        self._evm_work = EvmWork()
        self._gas_guesses = GasGuesses()
        self._signatures = SignaturesAhead()
        self._verifier = Verifier(verifier_use, self._verdicts.learn)
        self._drain: Callable[[], None] = do_nothing
        self._finalized: _Finalized | None = None
        if store.committed.is_empty:
            store.wipe()  # what a restore that was cut short has left
        self._parameters: ChainParameters | None = get_parameters(store.committed.state)
        self._tree = Tree().update(iterate_all(store.committed.state))
        committed = store.committed
        if not committed.is_empty and self._tree.root != committed.app_hash:
            raise OutOfOrder(
                f"state at height {committed.height} hashes to {self._tree.root.hex()},"
                f" expected {committed.app_hash.hex()}: the database is damaged; next: remove it to replay the chain"
            )
        self._trees = RecentTrees()
        if not committed.is_empty:
            self._trees.add(committed.height, self._tree, 0)
        self._verifier.set_terms(self._compute_terms())

    def get_handler(self, name: str) -> Handler:
        """Return the handler of an ABCI request."""
        return cast(Handler, getattr(self, f"process_{name}"))

    def get_checker(self) -> Checker:
        """Return what answers plain CheckTx requests: itself."""
        return self

    def attach(self, drain: Callable[[], None], resume: Callable[[], None]) -> None:
        """Take CometBFT's requests off its hands by ``drain`` now and then while a block is executed.

        ``resume`` goes on with a check that was pending.
        """
        self._verifier.attach(resume)

        def drain_all() -> None:
            drain()
            self._verifier.drain()

        self._drain = drain_all

    def close(self) -> None:
        """End the verifier, if there is one."""
        self._verifier.close()

    # ---- Query connection

    def process_info(self, request: pb.RequestInfo) -> pb.ResponseInfo:
        """Say where the application stands.

        Called when the core connects, before it replays, and at any time by RPC clients.  Must not change
        anything.  At height 0 the app hash is empty, so the core calls InitChain (again).
        """
        if request.abci_version and request.abci_version != ABCI_VERSION:
            raise UnsupportedAbciVersion(ABCI_VERSION, request.abci_version, request.version)
        committed = self._store.committed
        height = committed.height
        return pb.ResponseInfo(
            data="archipelago",
            version="1",
            app_version=APPLICATION_VERSION,
            last_block_height=height,
            last_block_app_hash=committed.app_hash if height else b"",
        )

    def process_query(self, request: pb.RequestQuery) -> pb.ResponseQuery:
        """Answer a read of the newest durable block.

        Called by RPC clients at any time.  Must not change anything, and must not raise for what a client sent.
        Paths: ``/pending_nonce`` (data: address; value: u64, the next nonce nothing waits under), ``/state``
        (data: key; with ``prove`` a proof as msgpack), ``/proofs`` (``abci.queries``), ``/queue`` (value: u64,
        transactions waiting).
        """
        committed = self._store.committed
        answer = pb.ResponseQuery(height=committed.height, key=request.data)
        if request.path == "/pending_nonce":
            if len(request.data) != 20:
                return refuse_query(f"address has {len(request.data)} bytes, expected 20")
            address = Address(request.data)
            nonce = self._queue.compute_next_nonce(address, self._read_account(address)[0])
            answer.value = nonce.to_bytes(8, "big")
        elif request.path == "/queue":
            answer.value = len(self._queue).to_bytes(8, "big")
        elif request.path == "/proofs":
            return answer_proofs(request, self._trees, committed.height)
        elif request.path == "/state":
            if not request.data or len(request.data) > 500:
                return refuse_query(f"state key has {len(request.data)} bytes, expected 1 to 500")
            answer.value = committed.state.get(request.data) or b""
            if request.prove:
                proof = self._tree.prove(request.data)
                data = msgpack.packb([list(proof.siblings), list(proof.other_leaf or ())])
                answer.proof_ops.ops.add(type="archipelago:smt", key=request.data, data=data)
        else:
            return refuse_query(f"unknown path {request.path!r}, known: /pending_nonce, /state, /proofs, /queue")
        return answer

    # ---- Mempool connection

    def process_check_tx(self, request: pb.RequestCheckTx) -> pb.ResponseCheckTx:
        """Admit a transaction to the mempool, or say why not.

        Called for each new transaction, pipelined, and with RECHECK for what is left after a block.  Reads only
        the durable state.  Must not execute, and must not depend on a block between FinalizeBlock and Commit.
        """
        admitted = self._admit(request.tx)
        if isinstance(admitted, InvalidTransaction):
            return refuse_transaction(admitted)
        return pb.ResponseCheckTx(gas_wanted=admitted.gas_limit, data=admitted.hash)

    def check(self, transaction: bytes) -> tuple[int, bytes]:
        """Do as ``process_check_tx``: return the code and the encoded answer."""
        admitted = self._admit(transaction)
        if isinstance(admitted, InvalidTransaction):
            return admitted.code, refuse_transaction(admitted).SerializeToString()
        return 0, encode_admission(admitted)

    def look_ahead(self, transactions: list[bytes]) -> None:
        """Have what waits for CheckTx verified beside this process."""
        self._verifier.ask([raw for raw in transactions if raw not in self._verdicts])

    def is_pending(self, transaction: bytes) -> bool:
        """Say whether a verdict is on its way."""
        return self._verifier.is_pending(transaction)

    def _admit(self, raw: bytes) -> Transaction | InvalidTransaction:
        parameters = self._parameters
        if parameters is None:  # a node that state-syncs answers clients already
            return InvalidTransaction("this node has no state yet: send to another, or wait")
        is_known = raw in self._verdicts
        verdict = self._verdicts.decode(raw, parameters.evm_chain_id)
        if isinstance(verdict, InvalidTransaction):
            return verdict
        try:
            committed = self._store.committed
            nonce, balance = check_arrival(committed.state, verdict, parameters, self._contracts)
            self._queue.admit(verdict, nonce, balance, committed.height)
        except InvalidTransaction as error:
            return error
        if verdict.to in self._contracts and not is_known:  # the verifier looks at certificates, too
            self._look_ahead(verdict, parameters)
        return verdict

    # ---- Consensus connection

    def process_init_chain(self, request: pb.RequestInitChain) -> pb.ResponseInitChain:
        """Write genesis and block 0.

        Called once, before block 1; again if the process died before block 1 was durable, so it starts from
        nothing each time.  The validators stay those of genesis.json; Staking gives them bonds.
        """
        genesis = parse_genesis(request.chain_id, request.app_state_bytes)
        overlay = Overlay()
        self._process_genesis(overlay, genesis)
        if STAKING in self._contracts:
            process_genesis_validators(overlay, [(each.pub_key.ed25519, each.power) for each in request.validators])
        changes = overlay.changes()
        tree = Tree().update(changes)
        parameters = genesis.parameters
        block = seal_block(
            height=Height(0),
            parent_hash=Hash(bytes(32)),
            time_seconds=request.time.seconds,
            app_hash=tree.root,
            proposer=Address(bytes(20)),
            gas_limit=parameters.gas_limit,
            base_fee=parameters.base_fee,
            cometbft_hash=bytes(32),
            receipts=(),
            block_logs=(),
            size_bytes=0,
        )
        self._store.wipe()
        self._store.commit(
            Candidate(
                height=Height(0),
                app_hash=tree.root,
                changes=changes,
                block=block,
                receipts=(),
                transactions=(),
                timer_logs=(),
            )
        )
        self._tree = tree
        self._trees.clear()
        self._trees.add(0, tree, 0)
        self._parameters = parameters
        self._queue = TransactionQueue()
        self._finalized = None
        self._verifier.set_terms(self._compute_terms())
        log.info("genesis of %s, genesis hash %s", parameters.chain_id, parameters.genesis_hash.hex())
        return pb.ResponseInitChain(app_hash=tree.root)

    def process_prepare_proposal(self, request: pb.RequestPrepareProposal) -> pb.ResponsePrepareProposal:
        """Order the block that this validator proposes.

        Called on the proposer only, after the block before was committed.  Need not be deterministic.  Must
        respect max_tx_bytes, and must not change the state.
        """
        parameters = self._get_parameters()
        decoded = [self._verdicts.decode(raw, parameters.evm_chain_id) for raw in request.txs]
        chosen = self._queue.plan_proposal(
            [transaction for transaction in decoded if not isinstance(transaction, InvalidTransaction)],
            self._read_account,
            max_bytes=request.max_tx_bytes,
            gas_limit=parameters.gas_limit,
            height=Height(request.height),
            evm_gas_limit=parameters.evm_gas_limit,
            read_evm_gas=self._read_evm_gas,
            read_gas=self._read_gas,
        )
        return pb.ResponsePrepareProposal(txs=chosen)

    def process_process_proposal(self, request: pb.RequestProcessProposal) -> pb.ResponseProcessProposal:
        """Accept every proposal: what can't run becomes a no-op, which is safer than a rejected block.

        Called on every validator, maybe for several rounds of a height.  Must be deterministic and must not
        change the state.  Signatures are checked here, while votes travel, so FinalizeBlock finds them done.
        """
        chain_id = self._get_parameters().evm_chain_id
        for raw in request.txs:
            self._verdicts.decode(raw, chain_id)
        return pb.ResponseProcessProposal(status=pb.ResponseProcessProposal.ACCEPT)

    def process_finalize_block(self, request: pb.RequestFinalizeBlock) -> pb.ResponseFinalizeBlock:
        """Execute a decided block on an overlay and keep the candidate.

        Called once a height, and again after a crash before Commit.  Must be deterministic, answer one result a
        transaction, and must not write anything durable: Commit does.
        """
        committed = self._store.committed
        if committed.is_empty or request.height != committed.height + 1:
            raise OutOfOrder(f"FinalizeBlock for height {request.height}, expected {committed.height + 1}")
        rules = get_rules(committed.state)
        if rules > NEWEST_RULES:
            raise UnsupportedRules(request.height, NEWEST_RULES, rules)
        parameters = self._get_parameters()
        environment = BlockEnvironment(
            height=Height(request.height),
            time_seconds=request.time.seconds,
            proposer=get_operator(committed.state, request.proposer_address),
            block_seed=committed.app_hash,
            parameters=parameters,
            rules=rules,
            read_block_hash=committed.block_hash,
        )
        decoded = [self._verdicts.decode(raw, parameters.evm_chain_id) for raw in request.txs]
        overlay = Overlay(committed.state)
        self._record_misbehavior(overlay, request)
        execution = process_block(overlay, environment, Draining(decoded, self._drain), self._contracts)
        die_if_due(self._fault, FaultPoint.IN_FINALIZE, request.height)
        self._finalized = self._seal(overlay, environment, execution, decoded, request)
        return pb.ResponseFinalizeBlock(
            tx_results=[
                make_result(result, transaction) for result, transaction in zip(execution.results, decoded, strict=True)
            ],
            app_hash=self._finalized.candidate.app_hash,
            validator_updates=make_validator_updates(self._finalized.candidate.changes),
        )

    def process_commit(self, request: pb.RequestCommit) -> pb.ResponseCommit:
        """Make the executed block durable: state, records, height and app hash in one transaction.

        Called after FinalizeBlock, with the mempool locked and flushed.  Must not return before the block is on
        disk.  The core prunes its blocks below the retain height; 0 keeps all.
        """
        finalized = self._finalized
        if finalized is None:
            raise OutOfOrder("Commit without FinalizeBlock")
        candidate = finalized.candidate
        die_if_due(self._fault, FaultPoint.BEFORE_COMMIT, candidate.height)
        retain_height = self._compute_retain_height(candidate.height)
        self._store.commit(candidate, keep_from=retain_height)
        die_if_due(self._fault, FaultPoint.AFTER_COMMIT, candidate.height)
        self._tree = finalized.tree
        self._trees.add(candidate.height, finalized.tree, len(candidate.changes))
        self._queue.remove(candidate.transactions, finalized.refused, candidate.height)
        self._verdicts.forget(candidate.transactions)
        self._evm_work.learn(finalized.evm_work)
        self._gas_guesses.learn(
            (transaction, receipt.gas_used)
            for transaction, receipt in zip(candidate.transactions, candidate.receipts, strict=True)
            if self._runs_code(transaction)
        )
        self._finalized = None
        if any(key == PARAMETERS_KEY for key, _ in candidate.changes):
            self._parameters = get_parameters(self._store.committed.state)
        self._verifier.set_terms(self._compute_terms())
        if self._on_commit is not None:
            self._on_commit(candidate.height)
        return pb.ResponseCommit(retain_height=retain_height)

    def process_extend_vote(self, request: pb.RequestExtendVote) -> pb.ResponseExtendVote:
        """Extend nothing; called only if a chain switches vote extensions on."""
        return pb.ResponseExtendVote()

    def process_verify_vote_extension(self, request: pb.RequestVerifyVoteExtension) -> pb.ResponseVerifyVoteExtension:
        """Accept an empty extension and reject any other."""
        status = pb.ResponseVerifyVoteExtension
        return pb.ResponseVerifyVoteExtension(status=status.REJECT if request.vote_extension else status.ACCEPT)

    # ---- Snapshot connection: parts of ``chain.abci.state_sync``

    def process_list_snapshots(self, request: pb.RequestListSnapshots) -> pb.ResponseListSnapshots:
        """Offer what lies on disk; called when a peer looks for snapshots.  Must not change anything."""
        return self._state_sync.list_snapshots()

    def process_load_snapshot_chunk(self, request: pb.RequestLoadSnapshotChunk) -> pb.ResponseLoadSnapshotChunk:
        """Read a chunk for a peer; empty when it is gone.  Must not change anything."""
        return self._state_sync.load_chunk(request)

    def process_offer_snapshot(self, request: pb.RequestOfferSnapshot) -> pb.ResponseOfferSnapshot:
        """Begin to restore, or refuse; called on a node that was told to state-sync and has no blocks.

        ``app_hash`` was verified by CometBFT's light client, nothing else was.  A second offer aborts a first one
        that is half applied.
        """
        answer = self._state_sync.offer(request)
        if answer.result == pb.ResponseOfferSnapshot.ACCEPT:
            self._forget()
        return answer

    def process_apply_snapshot_chunk(self, request: pb.RequestApplySnapshotChunk) -> pb.ResponseApplySnapshotChunk:
        """Take in one chunk after another; the last one makes the state count or rejects the snapshot."""
        answer, tree = self._state_sync.apply(request)
        if tree is not None:
            self._tree = tree
            self._trees.add(self._store.committed.height, tree, 0)
            self._parameters = get_parameters(self._store.committed.state)
            self._verifier.set_terms(self._compute_terms())
        return answer

    # ---- Parts of the above

    def _seal(
        self,
        overlay: Overlay,
        environment: BlockEnvironment,
        execution: BlockExecution,
        decoded: Sequence[Transaction | InvalidTransaction],
        request: pb.RequestFinalizeBlock,
    ) -> _Finalized:
        changes = overlay.changes()
        tree = self._tree.update(changes)
        parent = self._store.committed.block(environment.height - 1)
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
        return _Finalized(
            candidate=candidate,
            tree=tree,
            refused=_find_refused(execution.results, decoded),
            evm_work=execution.evm_work,
        )

    def _record_misbehavior(self, overlay: Overlay, request: pb.RequestFinalizeBlock) -> None:
        """Hand CometBFT's evidence to Staking, which punishes at the end of the block."""
        for evidence in request.misbehavior:
            kind = pb.MisbehaviorType.Name(evidence.type)
            log.warning("validator %s at height %d: %s", evidence.validator.address.hex(), evidence.height, kind)
        if STAKING in self._contracts:
            found = [
                Evidence(address=each.validator.address, height=each.height, kind=each.type)
                for each in request.misbehavior
            ]
            record_evidence(overlay, found)

    def _compute_retain_height(self, height: int) -> int:
        """Return the lowest block to keep: never above a snapshot that a peer may be restoring."""
        if not self._retain_blocks:
            return 0
        retain_height = max(0, height - self._retain_blocks + 1)
        kept = self._snapshots.heights() if self._snapshots is not None else []
        return min([retain_height, *kept])

    def _forget(self) -> None:
        """Hold nothing of a chain: its first block, or a snapshot, follows."""
        self._tree = Tree()
        self._trees.clear()
        self._parameters = None
        self._queue = TransactionQueue()
        self._finalized = None
        self._verifier.set_terms(None)

    def _compute_terms(self) -> Terms | None:
        """Return what transactions are verified by: the chain and the committees whose certificates it takes."""
        parameters = self._parameters
        if parameters is None:
            return None
        state = self._store.committed.state
        newest = get_epoch_state(state).epoch
        committees = {
            epoch: committee
            for epoch in range(max(newest - 1, 1), newest + 1)
            if (committee := get_committee(state, epoch)) is not None
        }
        return Terms(chain_id=parameters.evm_chain_id, genesis_hash=parameters.genesis_hash, committees=committees)

    def _get_parameters(self) -> ChainParameters:
        if self._parameters is None:
            raise OutOfOrder("a transaction before InitChain")
        return self._parameters

    def _read_evm_gas(self, transaction: Transaction) -> tuple[int, int]:
        """Return what a transaction may take of the EVM's meter, and what it probably will.

        More than there is where no block can hold it.
        """
        if transaction.gas_limit == TRANSACTION_GAS:
            return 0, 0  # most transfers: none is left to run anything
        state = self._store.committed.state
        try:
            reserved = compute_evm_gas(state, transaction, self._get_parameters(), self._contracts) or 0
        except EvmGasLimitTooHigh as error:
            return error.got, error.got
        return reserved, min(self._evm_work.guess(transaction.to, reserved), self._gas_guesses.guess(transaction))

    def _read_gas(self, transaction: Transaction) -> int:
        """Return what a transaction will probably use of the block's gas."""
        if self._runs_code(transaction):
            return self._gas_guesses.guess(transaction)
        return compute_required_gas(
            transaction.data, is_creation=False, is_native=False, access_list=transaction.access_list
        )

    def _runs_code(self, transaction: Transaction) -> bool:
        """Say whether more than value moves; what a transfer uses is known before."""
        if transaction.gas_limit == TRANSACTION_GAS:
            return False  # most transfers: there is nothing to guess, and no account to read
        is_native = transaction.to in self._contracts
        return is_native or needs_evm(self._store.committed.state, transaction.to, self._contracts)

    def _look_ahead(self, transaction: Transaction, parameters: ChainParameters) -> None:
        """Have a certificate checked while its transaction waits."""
        certificate = find_certificate(transaction.data, parameters.genesis_hash)
        if certificate is not None:
            committee = get_committee(self._store.committed.state, read_epoch(certificate))
            if committee is not None:
                self._signatures.submit(certificate, committee)

    def _read_account(self, address: Address) -> tuple[Nonce, Amount]:
        return accounts.get_account(self._store.committed.state, address)


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
