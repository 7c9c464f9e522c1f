"""PrepareProposal and ProcessProposal: which transactions the next block is offered, and what is taken of an offer.

The proposer fills a block by what its transactions will probably use, which it learns from the blocks before
(``gas_guesses``, ``evm_work``): no part of what is agreed.  Every proposal is accepted, because FinalizeBlock refuses
what can't run: a no-op is safer than a rejected block.
"""

from __future__ import annotations

from collections.abc import Mapping

from chain.abci import abci_pb2 as pb
from chain.abci.evm_work import EvmWork
from chain.abci.gas_guesses import GasGuesses
from chain.abci.newest_block import NewestBlock
from chain.abci.verdicts import VerdictCache
from chain.core.errors import EvmGasLimitTooHigh, InvalidTransaction
from chain.core.evm.execution import needs_evm
from chain.core.evm.gas import TRANSACTION_GAS, compute_required_gas
from chain.core.executor import Contracts, compute_evm_gas
from chain.core.queue import TransactionQueue
from chain.core.records import Transaction
from chain.core.types import Address, Height
from chain.store import Candidate


class Proposals:
    """Makes this validator's proposals, and looks at the others'."""

    def __init__(
        self, newest: NewestBlock, contracts: Contracts, queue: TransactionQueue, verdicts: VerdictCache
    ) -> None:
        """Propose what waits in ``queue``."""
        self._newest = newest
        self._contracts = contracts
        self._queue = queue
        self._verdicts = verdicts
        self._evm_work = EvmWork()
        self._gas_guesses = GasGuesses()

    def prepare(self, request: pb.RequestPrepareProposal) -> pb.ResponsePrepareProposal:
        """Choose and order transactions: the queue's first, then what only CometBFT has."""
        parameters = self._newest.get_parameters()
        decoded = [self._verdicts.decode(raw, parameters.evm_chain_id) for raw in request.txs]
        chosen = self._queue.plan_proposal(
            [transaction for transaction in decoded if not isinstance(transaction, InvalidTransaction)],
            self._newest.get_account,
            max_bytes=request.max_tx_bytes,
            gas_limit=parameters.gas_limit,
            height=Height(request.height),
            evm_gas_limit=parameters.evm_gas_limit,
            read_evm_gas=self._guess_evm_gas,
            read_gas=self._guess_gas,
        )
        return pb.ResponsePrepareProposal(txs=chosen)

    def process(self, request: pb.RequestProcessProposal) -> pb.ResponseProcessProposal:
        """Accept a proposal; its signatures are checked now, while votes travel."""
        chain_id = self._newest.get_parameters().evm_chain_id
        for raw in request.txs:
            self._verdicts.decode(raw, chain_id)
        return pb.ResponseProcessProposal(status=pb.ResponseProcessProposal.ACCEPT)

    def learn(self, candidate: Candidate, evm_work: Mapping[Address, int]) -> None:
        """Take in what the transactions of a committed block used."""
        self._evm_work.learn(evm_work)
        self._gas_guesses.learn(
            (transaction, receipt.gas_used)
            for transaction, receipt in zip(candidate.transactions, candidate.receipts, strict=True)
            if self._runs_code(transaction)
        )

    def _guess_evm_gas(self, transaction: Transaction) -> tuple[int, int]:
        """Return what a transaction may take of the EVM's meter, and what it probably will.

        More than there is where no block can hold it.
        """
        if transaction.gas_limit == TRANSACTION_GAS:
            return 0, 0  # most transfers: none is left to run anything
        parameters = self._newest.get_parameters()
        try:
            reserved = compute_evm_gas(self._newest.state, transaction, parameters, self._contracts) or 0
        except EvmGasLimitTooHigh as error:
            return error.got, error.got
        return reserved, min(self._evm_work.guess(transaction.to, reserved), self._gas_guesses.guess(transaction))

    def _guess_gas(self, transaction: Transaction) -> int:
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
        return is_native or needs_evm(self._newest.state, transaction.to, self._contracts)
