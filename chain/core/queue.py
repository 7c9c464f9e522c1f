"""Transactions that wait for a block: one queue of nonces per sender (DESIGN 4).

CometBFT's mempool gossips; this queue knows which transactions can run.  A proposal is made from all that waits
here, not only from the few MiB that CometBFT hands over, or whoever fills those with transactions that can't run
would keep everybody else out.  It takes senders in the order in which their transactions arrived, and each sender's
by nonce: the place of a transaction that came too early is given to the sender's next one.  So shuffled arrival
loses nothing, and nobody wins a better place by grinding an address.  Transactions that came too early have little
room of their own, so that one that can run is let in whatever waits.  What can never run is proposed once, as a
no-op, so that it leaves every mempool.  Nothing here is agreed state: two validators may hold different queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chain.core.errors import (
    GapQueueFull,
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
MAX_TRANSACTIONS = 45_000
"""Below CometBFT's mempool.size of 50,000, which also holds for a while what this queue has given up."""
MAX_TOTAL_BYTES = 256 << 20
"""Bytes that may wait in all: a quarter of CometBFT's mempool.max_txs_bytes."""
MAX_GAPPED_TRANSACTIONS = 8_192
"""Of all senders, waiting for an earlier nonce: eight senders' worth of the largest gap, a fifth of the queue."""
MAX_GAPPED_BYTES = 32 << 20
"""Bytes of those."""
EXPIRY_BLOCKS = 1_200
"""A transaction that couldn't run for so many blocks is given up: about 6 minutes of devnet blocks."""
FORGET_BLOCKS = 2 * EXPIRY_BLOCKS
"""What no proposal took out by then is forgotten here: CometBFT's mempool may have dropped it long ago."""
MIN_TRANSACTION_BYTES = 64
"""None is shorter: its signature alone is that long."""
TRANSFER_GAS = 21_000
"""None needs less."""
MAX_EXPECTED_SHARE = 8
"""No transaction is expected to use more than an eighth of a block, whatever it names and others like it used: else a
fresh contract, or one that used a whole block once, would keep others out of blocks that it leaves empty.  What really
uses more leaves those behind it without room (BlockGasExhausted): they wait for the next block, and it has paid."""
MAX_NOOPS = 100
"""Dead transactions in one proposal: they cost bytes, no execution."""

AccountReader = Callable[[Address], tuple[Nonce, Amount]]
"""Address -> (nonce, balance) of the committed state."""
EvmGasReader = Callable[[Transaction], tuple[int, int]]
"""(what a transaction may take from the EVM's meter of the block, what it will probably take); 0 where no user's code
runs."""


GasReader = Callable[[Transaction], int]
"""What a transaction will probably use of the block's gas; its limit must find room all the same."""


def read_gas_limit(transaction: Transaction) -> int:
    """Expect that a transaction uses all that it may."""
    return transaction.gas_limit


def read_no_evm_gas(transaction: Transaction) -> tuple[int, int]:
    """Take every transaction for one that runs no user's code."""
    return 0, 0


@dataclass(slots=True, eq=False)
class _Entry:
    transaction: Transaction
    cost: int
    height: Height
    is_gapped: bool


@dataclass(slots=True)
class _SenderQueue:
    next_nonce: int
    """First nonce from the account's on that nothing waits under; what waits above it is gapped."""
    entries: dict[int, _Entry] = field(default_factory=dict)
    num_bytes: int = 0
    cost: int = 0
    num_gapped: int = 0
    gapped_bytes: int = 0

    def advance(self) -> None:
        """Pass by what has become runnable."""
        while self.next_nonce in self.entries:
            entry = self.entries[self.next_nonce]
            if entry.is_gapped:
                entry.is_gapped = False
                self.num_gapped -= 1
                self.gapped_bytes -= len(entry.transaction.raw)
            self.next_nonce += 1

    def retreat(self, nonce: int) -> None:
        """Go back to ``nonce``, which waits no more; what follows it is gapped."""
        for following in range(nonce + 1, self.next_nonce):
            entry = self.entries.get(following)
            if entry is not None and not entry.is_gapped:
                entry.is_gapped = True
                self.num_gapped += 1
                self.gapped_bytes += len(entry.transaction.raw)
        self.next_nonce = nonce


class TransactionQueue:
    """The queues of all senders."""

    __slots__ = ("_arrivals", "_gapped_bytes", "_num_bytes", "_num_gapped", "_senders")

    def __init__(self) -> None:
        """Start empty."""
        self._senders: dict[Address, _SenderQueue] = {}
        self._arrivals: dict[bytes, _Entry] = {}
        """All that waits, by hash, in order of arrival."""
        self._num_bytes = 0
        self._num_gapped = 0
        self._gapped_bytes = 0

    def __len__(self) -> int:
        """Return how many transactions wait."""
        return len(self._arrivals)

    def clear(self) -> None:
        """Forget all that waits: another chain begins."""
        self._senders.clear()
        self._arrivals.clear()
        self._num_bytes = self._num_gapped = self._gapped_bytes = 0

    def admit(self, transaction: Transaction, nonce: Nonce, balance: Amount, height: Height) -> None:
        """Keep a transaction of an account with ``nonce`` and ``balance``; raises InvalidTransaction.

        One that waits already is accepted again, since a mempool that was full may have dropped it.
        """
        # CHECKS
        if transaction.nonce < nonce:
            raise NonceTooLow(nonce, transaction.nonce)
        if transaction.nonce > nonce + MAX_NONCE_GAP:
            raise NonceTooHigh(nonce, transaction.nonce, MAX_NONCE_GAP)
        queue = self._senders.get(transaction.sender) or _SenderQueue(nonce)
        waiting = queue.entries.get(transaction.nonce)
        if waiting is not None:
            if waiting.transaction.hash != transaction.hash:
                raise NonceAlreadyQueued(transaction.nonce, waiting.transaction.hash)
            return
        size = len(transaction.raw)
        if queue.num_bytes + size > MAX_SENDER_BYTES:
            raise SenderQueueFull(MAX_SENDER_BYTES, queue.num_bytes + size)
        if len(self._arrivals) >= MAX_TRANSACTIONS or self._num_bytes + size > MAX_TOTAL_BYTES:
            raise QueueFull(MAX_TRANSACTIONS)
        is_gapped = transaction.nonce > max(queue.next_nonce, nonce)
        if is_gapped and (self._num_gapped >= MAX_GAPPED_TRANSACTIONS or self._gapped_bytes + size > MAX_GAPPED_BYTES):
            raise GapQueueFull(max(queue.next_nonce, nonce), transaction.nonce)
        cost = compute_cost(transaction)
        if queue.cost + cost > balance:
            raise InsufficientFunds(queue.cost + cost, balance)

        # EFFECTS
        entry = _Entry(transaction, cost, height, is_gapped)
        queue.entries[transaction.nonce] = entry
        queue.num_bytes += size
        self._num_bytes += size
        queue.cost += cost
        self._num_gapped -= queue.num_gapped
        self._gapped_bytes -= queue.gapped_bytes
        if is_gapped:
            queue.num_gapped += 1
            queue.gapped_bytes += size
        queue.next_nonce = max(queue.next_nonce, nonce)
        queue.advance()
        self._num_gapped += queue.num_gapped
        self._gapped_bytes += queue.gapped_bytes
        self._senders[transaction.sender] = queue
        self._arrivals[transaction.hash] = entry

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
        newest: dict[Address, int] = {}
        for transaction in executed:
            newest[transaction.sender] = max(newest.get(transaction.sender, -1), transaction.nonce)
        for sender, used in newest.items():
            queue = self._senders.get(sender)
            if queue is not None:
                self._drop(sender, [nonce for nonce in queue.entries if nonce <= used], used + 1)
        for transaction in refused:
            entry = self._arrivals.get(transaction.hash)
            if entry is not None:
                self._drop(transaction.sender, [transaction.nonce], 0)
        while self._arrivals:
            oldest = next(iter(self._arrivals.values()))
            if height - oldest.height <= FORGET_BLOCKS:
                break
            self._drop(oldest.transaction.sender, [oldest.transaction.nonce], 0)

    def plan_proposal(
        self,
        mempool: Sequence[Transaction],
        read_account: AccountReader,
        *,
        max_bytes: int,
        gas_limit: int,
        height: Height,
        evm_gas_limit: int = 0,
        read_evm_gas: EvmGasReader = read_no_evm_gas,
        read_gas: GasReader = read_gas_limit,
    ) -> list[bytes]:
        """Order a proposal at ``height`` out of all that waits, in order of arrival.

        ``mempool`` is the part of its own that CometBFT hands over; what isn't here, as after a restart, comes last.
        Deterministic in its arguments and the queue.  Leaves out what can't run yet, and what doesn't fit.
        """
        accounts: dict[Address, _Budget] = {}
        dead: list[Transaction] = []
        chosen: list[bytes] = []
        most_gas = max(gas_limit // MAX_EXPECTED_SHARE, TRANSFER_GAS)
        most_work = evm_gas_limit // MAX_EXPECTED_SHARE
        for arrived in self._iterate(mempool):
            sender = arrived.sender
            budget = accounts.get(sender)
            if budget is None:
                if max_bytes < MIN_TRANSACTION_BYTES or gas_limit < TRANSFER_GAS:
                    continue  # full: read no more accounts
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
            evm_gas, evm_work = read_evm_gas(following)
            if cost > budget.balance or size > max_bytes or following.gas_limit > gas_limit or evm_gas > evm_gas_limit:
                budget.is_blocked = True
                continue
            budget.next_nonce = Nonce(budget.next_nonce + 1)
            budget.balance -= cost
            max_bytes -= size
            gas_limit -= min(read_gas(following), most_gas)
            evm_gas_limit -= min(evm_work, most_work)
            chosen.append(following.raw)
        for transaction in dead[:MAX_NOOPS]:
            max_bytes -= compute_proto_bytes(transaction.raw)
            if max_bytes < 0:
                break
            chosen.append(transaction.raw)
        return chosen

    def _iterate(self, mempool: Sequence[Transaction]) -> Iterator[Transaction]:
        """Yield what waits here in order of arrival, then what only ``mempool`` has."""
        for entry in self._arrivals.values():
            yield entry.transaction
        for transaction in mempool:
            if transaction.hash not in self._arrivals:
                yield transaction

    def _is_expired(self, arrived: Transaction, budget: _Budget, height: Height) -> bool:
        """Return whether a transaction has waited too long and still can't run."""
        entry = self._arrivals.get(arrived.hash)
        if entry is None or height - entry.height <= EXPIRY_BLOCKS:
            return False
        is_gap = arrived.nonce > budget.next_nonce and self._find(arrived.sender, budget.next_nonce) is None
        return is_gap or entry.cost > budget.balance

    def _find(self, sender: Address, nonce: int) -> Transaction | None:
        queue = self._senders.get(sender)
        entry = None if queue is None else queue.entries.get(nonce)
        return None if entry is None else entry.transaction

    def _drop(self, sender: Address, nonces: Sequence[int], first_nonce: int) -> None:
        """Forget some of a sender's, whose account is known to be at ``first_nonce`` or above."""
        queue = self._senders[sender]
        self._count(queue, -1)
        for nonce in nonces:
            entry = queue.entries.pop(nonce)
            del self._arrivals[entry.transaction.hash]
            size = len(entry.transaction.raw)
            queue.num_bytes -= size
            queue.cost -= entry.cost
            if entry.is_gapped:
                queue.num_gapped -= 1
                queue.gapped_bytes -= size
            elif first_nonce <= nonce < queue.next_nonce:
                queue.retreat(nonce)
        queue.next_nonce = max(queue.next_nonce, first_nonce)
        queue.advance()
        self._count(queue, 1)
        if not queue.entries:
            del self._senders[sender]

    def _count(self, queue: _SenderQueue, sign: int) -> None:
        """Add a sender's sums to the totals, or with -1 take them out before they change."""
        self._num_bytes += sign * queue.num_bytes
        self._num_gapped += sign * queue.num_gapped
        self._gapped_bytes += sign * queue.gapped_bytes


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
