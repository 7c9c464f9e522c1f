"""CheckTx: who is let into the mempool and the application's own queue, and who is told why not.

Reads only the durable state, executes nothing and never waits, so it is the same while a block is between
FinalizeBlock and Commit.  What is found out here (the sender, a certificate's verdict) is remembered for the block.
"""

from __future__ import annotations

from chain.abci import abci_pb2 as pb
from chain.abci.answers import encode_admission, refuse_transaction
from chain.abci.newest_block import NewestBlock
from chain.abci.signatures_ahead import SignaturesAhead, find_certificate, read_epoch
from chain.abci.verdicts import VerdictCache
from chain.abci.verifier_wire import Terms
from chain.abci.verifying import Verifier
from chain.core.contracts.storage.epochs import get_committee
from chain.core.contracts.storage.keys import get_epoch_state
from chain.core.errors import InvalidTransaction
from chain.core.executor import Contracts, check_arrival
from chain.core.genesis import ChainParameters
from chain.core.queue import TransactionQueue
from chain.core.records import Transaction


class Admission:
    """Answers CheckTx; a ``chain.abci.server.Checker``."""

    def __init__(
        self,
        newest: NewestBlock,
        contracts: Contracts,
        queue: TransactionQueue,
        verdicts: VerdictCache,
        verifier: Verifier,
    ) -> None:
        """Let transactions into ``queue``; their verdicts are shared with the proposals' part."""
        self._newest = newest
        self._contracts = contracts
        self._queue = queue
        self._verdicts = verdicts
        self._verifier = verifier
        self._signatures = SignaturesAhead()

    def answer(self, transaction: bytes) -> pb.ResponseCheckTx:
        """Let a transaction in, or say why not."""
        admitted = self._admit(transaction)
        if isinstance(admitted, InvalidTransaction):
            return refuse_transaction(admitted)
        return pb.ResponseCheckTx(gas_wanted=admitted.gas_limit, data=admitted.hash)

    def check(self, transaction: bytes) -> tuple[int, bytes]:
        """Do as ``answer``: return the code and the encoded answer."""
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

    def renew_terms(self) -> None:
        """Tell the verifier what the newest block says that transactions are verified by."""
        self._verifier.set_terms(self._compute_terms())

    def _admit(self, raw: bytes) -> Transaction | InvalidTransaction:
        parameters = self._newest.parameters
        if parameters is None:  # a node that state-syncs answers clients already
            return InvalidTransaction("this node has no state yet: send to another, or wait")
        is_known = raw in self._verdicts
        verdict = self._verdicts.decode(raw, parameters.evm_chain_id)
        if isinstance(verdict, InvalidTransaction):
            return verdict
        try:
            committed = self._newest.committed
            nonce, balance = check_arrival(committed.state, verdict, parameters, self._contracts)
            self._queue.admit(verdict, nonce, balance, committed.height)
        except InvalidTransaction as error:
            return error
        if verdict.to in self._contracts and not is_known:  # the verifier looks at certificates, too
            self._check_certificate(verdict, parameters)
        return verdict

    def _check_certificate(self, transaction: Transaction, parameters: ChainParameters) -> None:
        """Have a certificate checked while its transaction waits."""
        certificate = find_certificate(transaction.data, parameters.genesis_hash)
        if certificate is not None:
            committee = get_committee(self._newest.state, read_epoch(certificate))
            if committee is not None:
                self._signatures.submit(certificate, committee)

    def _compute_terms(self) -> Terms | None:
        """Return the chain and the committees whose certificates it takes; None where there is no chain yet."""
        parameters = self._newest.parameters
        if parameters is None:
            return None
        state = self._newest.state
        newest = get_epoch_state(state).epoch
        committees = {
            epoch: committee
            for epoch in range(max(newest - 1, 1), newest + 1)
            if (committee := get_committee(state, epoch)) is not None
        }
        return Terms(chain_id=parameters.evm_chain_id, genesis_hash=parameters.genesis_hash, committees=committees)
