"""Transactions that wait for a block: one queue of nonces per sender (DESIGN 4).

CometBFT's mempool keeps the order of arrival and gossips; this queue knows which of them can run.  A proposal
takes senders in the order in which their transactions arrived, and each sender's by nonce: the place of a
transaction that came too early is given to the sender's next one.  So shuffled arrival loses nothing, and nobody
wins a better place by grinding an address.  What can never run is proposed once, as a no-op, so that it leaves
every mempool.  Nothing here is agreed state: two validators may hold different queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from chain.core.errors import (
    InsufficientFunds,
    NonceAlreadyQueued,
    NonceTooHigh,
    NonceTooLow,
    QueueFull,
    SenderQueueFull,
)
from chain.core.executor import compute_cost
from chain.core.records import Transaction
from chain.core.types import Address, Amount, Height, Nonce

MAX_NONCE_GAP = 1_024
"""How far ahead of the account a nonce may be."""
MAX_SENDER_BYTES = 1 << 20
"""Bytes that one sender may have waiting: 8 of the largest transactions, or 1,024 of 1 KiB."""
MAX_TRANSACTIONS = 50_000
"""As CometBFT's mempool.size."""
EXPIRY_BLOCKS = 1_200
"""A transaction that couldn't run for so many blocks is given up: about 6 minutes of devnet blocks."""
FORGET_BLOCKS = 2 * EXPIRY_BLOCKS
"""What no proposal took out by then is forgotten here: CometBFT's mempool may have dropped it long ago."""
MAX_NOOPS = 100
"""Dead transactions in one proposal: they cost bytes, no execution."""

AccountReader = Callable[[Address], tuple[Nonce, Amount]]
"""Address -> (nonce, balance) of the committed state."""
EvmGasReader = Callable[[Transaction], int]
"""What a transaction may take from the EVM's meter of the block; 0 for transfers and native calls."""


@dataclass(frozen=True, slots=True)
class _Entry:
    transaction: Transaction
    cost: int
    height: Height


@dataclass(slots=True)
class _SenderQueue:
    entries: dict[int, _Entry] = field(default_factory=dict)
    num_bytes: int = 0
    cost: int = 0


class TransactionQueue:
    """The queues of all senders."""

    __slots__ = ("_arrivals", "_num_transactions", "_senders")

    def __init__(self) -> None:
        """Start empty."""
        self._senders: dict[Address, _SenderQueue] = {}
        self._arrivals: deque[_Entry] = deque()
        self._num_transactions = 0

    def __len__(self) -> int:
        """Return how many transactions wait."""
        return self._num_transactions

    def admit(self, transaction: Transaction, nonce: Nonce, balance: Amount, height: Height) -> None:
        """Keep a transaction of an account with ``nonce`` and ``balance``; raises InvalidTransaction.

        One that waits already is accepted again, since a mempool that was full may have dropped it.
        """
        # CHECKS
        if transaction.nonce < nonce:
            raise NonceTooLow(nonce, transaction.nonce)
        if transaction.nonce > nonce + MAX_NONCE_GAP:
            raise NonceTooHigh(nonce, transaction.nonce, MAX_NONCE_GAP)
        queue = self._senders.get(transaction.sender) or _SenderQueue()
        waiting = queue.entries.get(transaction.nonce)
        if waiting is not None:
            if waiting.transaction.hash != transaction.hash:
                raise NonceAlreadyQueued(transaction.nonce, waiting.transaction.hash)
            return
        num_bytes = queue.num_bytes + len(transaction.raw)
        if num_bytes > MAX_SENDER_BYTES:
            raise SenderQueueFull(MAX_SENDER_BYTES, num_bytes)
        if self._num_transactions >= MAX_TRANSACTIONS:
            raise QueueFull(MAX_TRANSACTIONS)
        cost = compute_cost(transaction)
        if queue.cost + cost > balance:
            raise InsufficientFunds(queue.cost + cost, balance)

        # EFFECTS
        entry = _Entry(transaction, cost, height)
        queue.entries[transaction.nonce] = entry
        self._arrivals.append(entry)
        queue.num_bytes = num_bytes
        queue.cost += cost
        self._senders[transaction.sender] = queue
        self._num_transactions += 1

    def compute_next_nonce(self, sender: Address, nonce: Nonce) -> Nonce:
        """Return the first nonce from ``nonce`` on that nothing waits under."""
        queue = self._senders.get(sender)
        while queue is not None and nonce in queue.entries:
            nonce = Nonce(nonce + 1)
        return nonce

    def remove(self, executed: Iterable[Transaction], refused: Iterable[Transaction], height: Height) -> None:
        """Forget what block ``height`` executed, with what its nonces made impossible, and what it refused.

        Also forgets what has waited for FORGET_BLOCKS.
        """
        for transaction in executed:
            queue = self._senders.get(transaction.sender)
            if queue is not None:
                self._drop(transaction.sender, [nonce for nonce in queue.entries if nonce <= transaction.nonce])
        for transaction in refused:
            entry = self._find_entry(transaction.sender, transaction.nonce)
            if entry is not None and entry.transaction.hash == transaction.hash:
                self._drop(transaction.sender, [transaction.nonce])
        while self._arrivals and height - self._arrivals[0].height > FORGET_BLOCKS:
            oldest = self._arrivals.popleft()
            if self._find_entry(oldest.transaction.sender, oldest.transaction.nonce) is oldest:
                self._drop(oldest.transaction.sender, [oldest.transaction.nonce])

    def plan_proposal(
        self,
        mempool: Sequence[Transaction],
        read_account: AccountReader,
        *,
        max_bytes: int,
        gas_limit: int,
        height: Height,
        evm_gas_limit: int = 0,
        read_evm_gas: EvmGasReader = lambda _: 0,
    ) -> list[bytes]:
        """Order a proposal at ``height`` out of ``mempool``, which is in order of arrival.

        Deterministic in its arguments and the queue.  Leaves out what can't run yet, and what doesn't fit.
        """
        accounts: dict[Address, _Budget] = {}
        dead: list[Transaction] = []
        chosen: list[bytes] = []
        for arrived in mempool:
            sender = arrived.sender
            budget = accounts.get(sender)
            if budget is None:
                nonce, balance = read_account(sender)
                budget = accounts[sender] = _Budget(nonce, nonce, balance)
            if arrived.nonce < budget.first_nonce or self._is_expired(arrived, budget, height):
                dead.append(arrived)
                continue
            following = arrived if arrived.nonce == budget.next_nonce else self._find(sender, budget.next_nonce)
            if following is None or budget.is_blocked:
                continue
            cost = compute_cost(following)
            size = compute_proto_bytes(following.raw)
            evm_gas = read_evm_gas(following)
            if cost > budget.balance or size > max_bytes or following.gas_limit > gas_limit or evm_gas > evm_gas_limit:
                budget.is_blocked = True
                continue
            budget.next_nonce = Nonce(budget.next_nonce + 1)
            budget.balance -= cost
            max_bytes -= size
            gas_limit -= following.gas_limit
            evm_gas_limit -= evm_gas
            chosen.append(following.raw)
        for transaction in dead[:MAX_NOOPS]:
            max_bytes -= compute_proto_bytes(transaction.raw)
            if max_bytes < 0:
                break
            chosen.append(transaction.raw)
        return chosen

    def _is_expired(self, arrived: Transaction, budget: _Budget, height: Height) -> bool:
        """Return whether a transaction has waited too long and still can't run."""
        entry = self._find_entry(arrived.sender, arrived.nonce)
        if entry is None or entry.transaction.hash != arrived.hash or height - entry.height <= EXPIRY_BLOCKS:
            return False
        is_gap = arrived.nonce > budget.next_nonce and self._find(arrived.sender, budget.next_nonce) is None
        return is_gap or entry.cost > budget.balance

    def _find(self, sender: Address, nonce: int) -> Transaction | None:
        entry = self._find_entry(sender, nonce)
        return None if entry is None else entry.transaction

    def _find_entry(self, sender: Address, nonce: int) -> _Entry | None:
        queue = self._senders.get(sender)
        return None if queue is None else queue.entries.get(nonce)

    def _drop(self, sender: Address, nonces: Iterable[int]) -> None:
        queue = self._senders[sender]
        for nonce in nonces:
            entry = queue.entries.pop(nonce)
            queue.num_bytes -= len(entry.transaction.raw)
            queue.cost -= entry.cost
            self._num_transactions -= 1
        if not queue.entries:
            del self._senders[sender]


@dataclass(slots=True)
class _Budget:
    """What one sender can still do in the proposal."""

    first_nonce: Nonce
    next_nonce: Nonce
    balance: int
    is_blocked: bool = False


def compute_proto_bytes(raw: bytes) -> int:
    """Return the size of a transaction in CometBFT's block: a tag, a varint length, the bytes."""
    size = len(raw)
    length_bytes = 1
    while size >= 0x80:
        size >>= 7
        length_bytes += 1
    return 1 + length_bytes + len(raw)
