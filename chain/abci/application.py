"""The application that CometBFT drives: one thin handler a request (CHAIN.md, CometBFT).

Per height: the proposer gets PrepareProposal, everybody ProcessProposal, FinalizeBlock, Commit; replay and block
sync are FinalizeBlock and Commit only.  What a handler does stands in ``admission``, ``proposals``, ``finalizing``,
``queries`` and ``state_sync``; all of them stand on one ``newest_block``, which only Commit, InitChain and a restored
snapshot move on.  A transaction's fault is a result code.  An exception out of a handler is a broken invariant and
ends the process (``chain.abci.server``).  Between FinalizeBlock and Commit CometBFT locks and flushes its mempool:
nothing here is held across the two that CheckTx needs, and no handler ever waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from chain.abci import abci_pb2 as pb
from chain.abci.admission import Admission
from chain.abci.draining import Draining, do_nothing
from chain.abci.errors import OutOfOrder, UnsupportedAbciVersion
from chain.abci.faults import Fault, FaultPoint, die_if_due
from chain.abci.finalizing import Finalized, ProcessGenesis, finalize_block, make_environment, make_first_block
from chain.abci.newest_block import NewestBlock
from chain.abci.proposals import Proposals
from chain.abci.queries import answer_query
from chain.abci.server import Checker, Handler
from chain.abci.state_sync import StateSync
from chain.abci.verdicts import VerdictCache
from chain.abci.verifying import Verifier, VerifierUse
from chain.core.executor import Contracts
from chain.core.queue import TransactionQueue
from chain.core.types import Height
from chain.snapshots import SnapshotDirectory
from chain.store import Store
from chain.version import get_version

log = logging.getLogger(__name__)

ABCI_VERSION = "2.0.0"
"""Of CometBFT v0.38.x."""

APPLICATION_VERSION = 1
"""Protocol version of the rules; in every block header."""


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
        """Continue from the newest durable block of ``store``; raises OutOfOrder where the database is damaged."""
        self._store = store
        self._contracts = contracts
        self._process_genesis = process_genesis
        self._fault = fault
        self._snapshots = snapshots
        self._retain_blocks = retain_blocks
        self._on_commit = on_commit
        self._drain: Callable[[], None] = do_nothing
        self._finalized: Finalized | None = None
        if store.committed.is_empty:
            store.wipe()  # what a restore that was cut short has left
        self._newest = NewestBlock(store)
        self._queue = TransactionQueue()
        self._verdicts = VerdictCache()
        self._verifier = Verifier(verifier_use, self._verdicts.learn)
        self._admission = Admission(self._newest, contracts, self._queue, self._verdicts, self._verifier)
        self._proposals = Proposals(self._newest, contracts, self._queue, self._verdicts)
        self._state_sync = StateSync(store, snapshots)
        self._admission.renew_terms()

    def get_handler(self, name: str) -> Handler:
        """Return the handler of an ABCI request."""
        return cast(Handler, getattr(self, f"process_{name}"))

    def get_checker(self) -> Checker:
        """Return what answers plain CheckTx requests."""
        return self._admission

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
            version=get_version(),
            app_version=APPLICATION_VERSION,
            last_block_height=height,
            last_block_app_hash=committed.app_hash if height else b"",
        )

    def process_query(self, request: pb.RequestQuery) -> pb.ResponseQuery:
        """Answer a read of the newest durable block.

        Called by RPC clients at any time.  Must not change anything, and must not raise for what a client sent.
        """
        return answer_query(request, self._newest, self._queue)

    # ---- Mempool connection

    def process_check_tx(self, request: pb.RequestCheckTx) -> pb.ResponseCheckTx:
        """Admit a transaction to the mempool, or say why not.

        Called for each new transaction, pipelined, and with RECHECK for what is left after a block.  Reads only
        the durable state.  Must not execute, and must not depend on a block between FinalizeBlock and Commit.
        """
        return self._admission.answer(request.tx)

    # ---- Consensus connection

    def process_init_chain(self, request: pb.RequestInitChain) -> pb.ResponseInitChain:
        """Write genesis and block 0.

        Called once, before block 1; again if the process died before block 1 was durable, so it starts from
        nothing each time.
        """
        genesis, candidate, tree = make_first_block(request, self._process_genesis, self._contracts)
        self._store.wipe()
        self._store.commit(candidate)
        self._begin()
        self._newest.begin(tree)
        self._admission.renew_terms()
        parameters = genesis.parameters
        log.info("genesis of %s, genesis hash %s", parameters.chain_id, parameters.genesis_hash.hex())
        return pb.ResponseInitChain(app_hash=tree.root)

    def process_prepare_proposal(self, request: pb.RequestPrepareProposal) -> pb.ResponsePrepareProposal:
        """Order the block that this validator proposes.

        Called on the proposer only, after the block before was committed.  Need not be deterministic.  Must
        respect max_tx_bytes, and must not change the state.
        """
        return self._proposals.prepare(request)

    def process_process_proposal(self, request: pb.RequestProcessProposal) -> pb.ResponseProcessProposal:
        """Accept every proposal.

        Called on every validator, maybe for several rounds of a height.  Must be deterministic and must not
        change the state.
        """
        return self._proposals.process(request)

    def process_finalize_block(self, request: pb.RequestFinalizeBlock) -> pb.ResponseFinalizeBlock:
        """Execute a decided block on an overlay and keep the candidate.

        Called once a height, and again after a crash before Commit.  Must be deterministic, answer one result a
        transaction, and must not write anything durable: Commit does.
        """
        environment = make_environment(self._newest, request)
        chain_id = environment.parameters.evm_chain_id
        decoded = Draining([self._verdicts.decode(raw, chain_id) for raw in request.txs], self._drain)
        self._finalized, answer = finalize_block(
            self._newest, self._contracts, environment, decoded, request, self._fault
        )
        return answer

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
        self._finalized = None
        self._newest.advance(finalized.tree, candidate.changes)
        self._queue.remove(candidate.transactions, finalized.refused, candidate.height)
        self._verdicts.forget(candidate.transactions)
        self._proposals.learn(candidate, finalized.evm_work)
        self._admission.renew_terms()
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

    # ---- Snapshot connection

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
            self._begin()
            self._newest.forget()
            self._admission.renew_terms()
        return answer

    def process_apply_snapshot_chunk(self, request: pb.RequestApplySnapshotChunk) -> pb.ResponseApplySnapshotChunk:
        """Take in one chunk after another; the last one makes the state count or rejects the snapshot."""
        answer, tree = self._state_sync.apply(request)
        if tree is not None:
            self._newest.begin(tree)
            self._admission.renew_terms()
        return answer

    # ---- Parts of the above

    def _begin(self) -> None:
        """Hold nothing of another chain: a first block, or a snapshot, follows."""
        self._queue.clear()
        self._finalized = None

    def _compute_retain_height(self, height: int) -> int:
        """Return the lowest block to keep: never above a snapshot that a peer may be restoring."""
        if not self._retain_blocks:
            return 0
        retain_height = max(0, height - self._retain_blocks + 1)
        kept = self._snapshots.heights() if self._snapshots is not None else []
        return min([retain_height, *kept])
