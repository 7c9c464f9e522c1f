"""Who gets into a block, and in which order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core import errors, queue
from chain.core.queue import TransactionQueue, compute_proto_bytes
from chain.core.records import Transaction
from chain.core.types import Address, Amount, Hash, Height, Nonce

RICH = Amount(10**24)


def _make(sender: int, nonce: int, size: int = 100, salt: int = 0, gas: int = 21_000, value: int = 0) -> Transaction:
    raw = bytes((sender, salt)) + nonce.to_bytes(8, "big") + bytes(size)
    return Transaction(
        hash=Hash(raw[:10] + bytes(22)),
        raw=raw,
        type=2,
        chain_id=1,
        sender=Address(bytes((sender,)) * 20),
        nonce=Nonce(nonce),
        to=Address(bytes(20)),
        value=Amount(value),
        data=b"",
        gas_limit=gas,
        max_fee=Amount(1),
        max_priority_fee=Amount(1),
        v=0,
        r=1,
        s=1,
    )


def _admit(waiting: TransactionQueue, transactions: list[Transaction], height: int = 1) -> None:
    for transaction in transactions:
        waiting.admit(transaction, Nonce(0), RICH, Height(height))


def _plan(waiting: TransactionQueue, mempool: list[Transaction], **options: Any) -> list[Transaction]:
    read: Callable[[Address], tuple[Nonce, Amount]] = options.pop("read", lambda address: (Nonce(0), RICH))
    limits = {"max_bytes": 1 << 22, "gas_limit": 10**9, "height": Height(2)} | options
    by_raw = {transaction.raw: transaction for transaction in mempool}
    return [by_raw[raw] for raw in waiting.plan_proposal(mempool, read, **limits)]


def test_shuffled_arrival_of_one_sender_comes_out_by_nonce() -> None:
    waiting = TransactionQueue()
    arrived = [_make(1, nonce) for nonce in range(500)]
    random.Random(7).shuffle(arrived)
    _admit(waiting, arrived)
    assert waiting.compute_next_nonce(arrived[0].sender, Nonce(0)) == 500
    assert [transaction.nonce for transaction in _plan(waiting, arrived)] == list(range(500))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), unique=True, max_size=30))
def test_order_keeps_arrival_between_senders_and_nonce_within_one(arrivals: list[tuple[int, int]]) -> None:
    waiting = TransactionQueue()
    mempool = [_make(sender, nonce) for sender, nonce in arrivals]
    _admit(waiting, mempool)
    planned = _plan(waiting, mempool)
    runnable: dict[Address, int] = {}
    for transaction in mempool:
        runnable[transaction.sender] = waiting.compute_next_nonce(transaction.sender, Nonce(0))
    assert len(planned) == sum(runnable.values()), "everything that can run is in"
    for sender, count in runnable.items():
        assert [entry.nonce for entry in planned if entry.sender == sender] == list(range(count))
    places = [transaction.sender for transaction in mempool]
    taken = [entry.sender for entry in planned]
    position = 0
    for sender in taken:
        position = places.index(sender, position) + 1


def test_proposal_is_made_from_the_queue_whatever_the_window_holds() -> None:
    """The core hands over a part of its mempool; gapped transactions in all of it keep nobody out."""
    waiting = TransactionQueue()
    gapped = [_make(sender, nonce) for sender in (1, 2) for nonce in range(1, 9)]
    _admit(waiting, gapped)
    ordinary = _make(3, 0)
    _admit(waiting, [ordinary])
    read = lambda address: (Nonce(0), RICH)  # noqa: E731
    limits: Any = {"max_bytes": 10_000, "gas_limit": 10**9, "height": Height(2)}
    assert waiting.plan_proposal(gapped, read, **limits) == [ordinary.raw]
    assert waiting.plan_proposal([], read, **limits) == [ordinary.raw]


def test_restarted_queue_takes_the_window() -> None:
    mempool = [_make(1, 0), _make(2, 0), _make(1, 1)]
    assert _plan(TransactionQueue(), mempool) == mempool
    waiting = TransactionQueue()
    newer = _make(3, 0)
    _admit(waiting, [newer])
    assert _plan(waiting, [*mempool, newer]) == [newer, *mempool], "what waits here first, each once"


def test_invalid_gapped_while_what_can_run_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_GAPPED_TRANSACTIONS", 4)
    waiting = TransactionQueue()
    gapped = [_make(1, nonce) for nonce in range(1, 5)]
    _admit(waiting, gapped)
    with pytest.raises(errors.GapQueueFull, match="nonce 7 waits for nonce 0"):
        _admit(waiting, [_make(2, 7)])
    _admit(waiting, [_make(2, 0), _make(2, 1)])
    _admit(waiting, [_make(1, 0)])  # opens the gap: its followers can run now
    _admit(waiting, [_make(3, nonce) for nonce in range(1, 5)])
    with pytest.raises(errors.GapQueueFull):
        _admit(waiting, [_make(3, 9)])


def test_invalid_bytes_of_gapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_GAPPED_BYTES", 5_000)
    waiting = TransactionQueue()
    _admit(waiting, [_make(1, 1, size=4_000)])
    with pytest.raises(errors.GapQueueFull):
        _admit(waiting, [_make(2, 1, size=4_000)])
    _admit(waiting, [_make(2, 0, size=4_000)])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sums_of_gapped_are_what_waits(data: st.DataObject) -> None:
    """Whatever is admitted, executed and refused: the counters say what a recount says."""
    waiting = TransactionQueue()
    nonces = {1: 0, 2: 0}
    for height in range(1, data.draw(st.integers(2, 14))):
        sender = data.draw(st.sampled_from((1, 2)))
        match data.draw(st.sampled_from(("admit", "admit", "execute", "refuse"))):
            case "admit":
                nonce = nonces[sender] + data.draw(st.integers(0, 5))
                waiting.admit(_make(sender, nonce), Nonce(nonces[sender]), RICH, Height(height))
            case "execute":
                used = nonces[sender] + data.draw(st.integers(0, 2))
                nonces[sender] = used + 1
                waiting.remove([_make(sender, used)], [], Height(height))
            case _:
                waiting.remove([], [_make(sender, nonces[sender] + data.draw(st.integers(0, 5)))], Height(height))
        gapped = 0
        for each, nonce in nonces.items():
            queue_of = waiting._senders.get(_make(each, 0).sender)
            first = waiting.compute_next_nonce(_make(each, 0).sender, Nonce(nonce))
            gapped += sum(1 for waits in (queue_of.entries if queue_of else ()) if waits > first)
        assert waiting._num_gapped == gapped
        assert (waiting._num_bytes == 0) == (len(waiting) == 0)


def test_bytes_gas_and_funds_bound_the_proposal() -> None:
    waiting = TransactionQueue()
    mempool = [_make(sender, nonce) for nonce in range(5) for sender in (1, 2)]
    _admit(waiting, mempool)
    size = compute_proto_bytes(mempool[0].raw)
    assert len(_plan(waiting, mempool, max_bytes=3 * size + size - 1)) == 3
    assert len(_plan(waiting, mempool, gas_limit=21_000 * 4 + 20_999)) == 4
    poor = _plan(waiting, mempool, read=lambda address: (Nonce(0), Amount(21_000 * (2 if address[0] == 1 else 9))))
    assert [entry.sender[0] for entry in poor].count(1) == 2
    assert [entry.sender[0] for entry in poor].count(2) == 5


def test_size_that_does_not_fit_never_opens_a_nonce_gap() -> None:
    waiting = TransactionQueue()
    mempool = [_make(1, 0, size=10), _make(1, 1, size=5_000), _make(1, 2, size=10), _make(2, 0, size=10)]
    _admit(waiting, mempool)
    planned = _plan(waiting, mempool, max_bytes=200)
    assert [(entry.sender[0], entry.nonce) for entry in planned] == [(1, 0), (2, 0)]


def test_invalid_nonces_name_both_values() -> None:
    waiting = TransactionQueue()
    with pytest.raises(errors.NonceTooLow, match="nonce 4, expected 5"):
        waiting.admit(_make(1, 4), Nonce(5), RICH, Height(1))
    waiting.admit(_make(1, 5 + queue.MAX_NONCE_GAP), Nonce(5), RICH, Height(1))
    with pytest.raises(errors.NonceTooHigh, match="nonce 1030, expected 5, at most 1024 ahead"):
        waiting.admit(_make(1, 6 + queue.MAX_NONCE_GAP), Nonce(5), RICH, Height(1))
    assert len(waiting) == 1


def test_same_transaction_again_is_fine_another_of_its_nonce_is_not() -> None:
    waiting = TransactionQueue()
    _admit(waiting, [_make(1, 0), _make(1, 0)])
    assert len(waiting) == 1
    with pytest.raises(errors.NonceAlreadyQueued, match="nonce 0 is taken by 0x"):
        _admit(waiting, [_make(1, 0, salt=1)])


def test_invalid_bytes_of_one_sender() -> None:
    waiting = TransactionQueue()
    size = queue.MAX_SENDER_BYTES // 8
    _admit(waiting, [_make(1, nonce, size=size - 10) for nonce in range(8)])
    with pytest.raises(errors.SenderQueueFull, match=f"at most {queue.MAX_SENDER_BYTES}"):
        _admit(waiting, [_make(1, 8, size=1)])
    _admit(waiting, [_make(2, 0, size=1)])


def test_invalid_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_TRANSACTIONS", 3)
    waiting = TransactionQueue()
    _admit(waiting, [_make(sender, 0) for sender in (1, 2, 3)])
    with pytest.raises(errors.QueueFull):
        _admit(waiting, [_make(4, 0)])


def test_funds_are_counted_over_all_that_waits() -> None:
    waiting = TransactionQueue()
    waiting.admit(_make(1, 0), Nonce(0), Amount(30_000), Height(1))
    with pytest.raises(errors.InsufficientFunds, match="balance 30000 wei, needed 42000 wei"):
        waiting.admit(_make(1, 1), Nonce(0), Amount(30_000), Height(1))


def test_block_clears_the_queue() -> None:
    waiting = TransactionQueue()
    mempool = [_make(1, nonce) for nonce in range(4)] + [_make(2, 7)]
    _admit(waiting, mempool)
    waiting.remove([mempool[1]], [mempool[4]], Height(2))
    assert len(waiting) == 2
    assert waiting.compute_next_nonce(mempool[0].sender, Nonce(2)) == 4
    waiting.remove([], [_make(1, 2, salt=9)], Height(3))
    assert len(waiting) == 2, "another transaction of that nonce was refused, ours still waits"


def test_dead_transactions_leave_through_a_block() -> None:
    """Used nonces and gaps that nobody fills are proposed as no-ops, a bounded number at a time."""
    waiting = TransactionQueue()
    gap = _make(2, 3)
    _admit(waiting, [gap])
    used = [_make(1, nonce, salt=salt) for salt in range(3) for nonce in range(60)]
    read: Any = lambda address: (Nonce(60 if address[0] == 1 else 0), RICH)  # noqa: E731
    planned = _plan(waiting, [*used, gap], read=read)
    assert planned == used[: queue.MAX_NOOPS]
    late = _plan(waiting, [gap], read=read, height=Height(2 + queue.EXPIRY_BLOCKS))
    assert late == [gap]
    assert _plan(waiting, [gap], read=read, height=Height(1 + queue.EXPIRY_BLOCKS)) == []


def test_what_the_mempool_dropped_is_forgotten_in_the_end() -> None:
    waiting = TransactionQueue()
    _admit(waiting, [_make(1, 5), _make(2, 5)], height=1)
    _admit(waiting, [_make(3, 5)], height=9)
    waiting.remove([], [_make(2, 5)], Height(2))
    _admit(waiting, [_make(2, 5)], height=9)
    waiting.remove([], [], Height(1 + queue.FORGET_BLOCKS))
    assert len(waiting) == 3
    waiting.remove([], [], Height(2 + queue.FORGET_BLOCKS))
    assert len(waiting) == 2
    assert waiting.compute_next_nonce(_make(2, 5).sender, Nonce(5)) == 6
    waiting.remove([], [], Height(10 + queue.FORGET_BLOCKS))
    assert len(waiting) == 0


def test_proto_size() -> None:
    for size, expected in ((0, 2), (127, 129), (128, 131), (16_383, 16_386), (16_384, 16_388)):
        assert compute_proto_bytes(bytes(size)) == expected
