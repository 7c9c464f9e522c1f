"""From the bytes of a request to the bytes of its answer: single calls, batches, limits, error objects.

Methods that only read run in worker threads, consecutive ones of a batch on one snapshot; calls that may run users'
code, and searches over many blocks, have threads of their own, so that they keep nobody else waiting; those that need
CometBFT run on the event loop.  A snapshot is closed before the answer is written, so that a slow client never holds
one.  Each answer is text as soon as it is known, and all of a body together are bounded, as are the bodies that are
being answered; one peer never has all places, all room or all threads (``chain.rpc.peers``).  Invariant: no input
makes this raise; it always answers JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from chain.core.executor import Contracts
from chain.rpc.absent_methods import explain_absence
from chain.rpc.archive_leaves import ArchiveLeaves
from chain.rpc.archives import ARCHIVE_METHODS
from chain.rpc.chain_methods import CHAIN_METHODS
from chain.rpc.faults import (
    AnswerTooLarge,
    BatchTooLarge,
    Busy,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    NotReady,
    ParseFault,
    RpcFault,
    TooManyValues,
)
from chain.rpc.filters import FilterRegistry
from chain.rpc.heads import HeadCache
from chain.rpc.metrics import Metrics
from chain.rpc.peers import UNKNOWN_PEER, Peer, Places, Room, Turns
from chain.rpc.session import Method, Session
from chain.rpc.state_methods import STATE_METHODS
from chain.rpc.traces import TRACE_METHODS
from chain.rpc.upstream import Upstream
from chain.rpc.upstream_methods import PROOF_METHODS, UPSTREAM_METHODS, get_pending_count
from chain.rpc.values import Params, find_nearest
from chain.store import Reader, Snapshot, StoreError
from da.foreign_json import parse_json

log = logging.getLogger(__name__)

MAX_BATCH_CALLS = 200
"""Calls in one body."""
MAX_WAITING_REQUESTS = 512
"""Bodies being answered at once."""
MAX_BODY_VALUES = 100_000
"""Lists, objects and members in one body: a batch of the longest log queries has 20,000."""
VALUE_BYTES = 100
"""That one of them takes once it is parsed, about."""
MAX_HELD_BYTES = 256 << 20
"""Of all bodies that are being answered, as they lie in memory; and of all their answers that are not whole yet."""
MAX_ANSWER_BYTES = 25 << 20
"""Of one body, as go-ethereum: what waits for a slow reader takes memory.  A single call may have it alone."""
BATCH_SECONDS = 10.0
"""After this long a batch's remaining calls are refused."""
NUM_THREADS = 5
"""That read and call system contracts, four of them for one peer; they share the interpreter, so more would wait."""
NUM_EVM_THREADS = 3
"""That run users' code, each call for a bounded time; two of them for one peer."""
NUM_SEARCH_THREADS = 3
"""That look through many blocks, each call for a bounded time; two of them for one peer."""
MAX_PROOFS = 5
"""Bodies that ask CometBFT for proofs or its own records at once, four of them of one peer: each asks the application
many times."""
MAX_WAITING = 32
"""Bodies with calls of one of these kinds at once: what waits longer than its client does is of no use."""
EVM_METHODS = (
    *("eth_call", "eth_estimateGas", "eth_createAccessList"),
    *("archipelago_archivedRound", "debug_traceTransaction"),
)
"""May run users' code, or hash for a while."""
SEARCH_METHODS = ("eth_getLogs", "eth_newFilter", "eth_getFilterLogs", "eth_getFilterChanges", "eth_feeHistory")
"""Read up to thousands of blocks, or hash thousands of topics."""
_INTERNAL_ERROR = -32603

READ_METHODS: Mapping[str, Method] = {**CHAIN_METHODS, **STATE_METHODS, **ARCHIVE_METHODS, **TRACE_METHODS}
"""By name: run in a worker thread on a snapshot."""


class _Lane(Enum):
    """Where a call is answered."""

    UPSTREAM = auto()
    PROOF = auto()
    READ = auto()
    EVM = auto()
    SEARCH = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One entry of a body: a valid call, or the fault that stands in for it."""

    method: str
    params: Params
    call_id: Any
    is_notification: bool
    fault: RpcFault | None = None


@dataclass(slots=True, kw_only=True)
class _Budget:
    """What is left to the calls of one body."""

    deadline: float
    """Of the monotonic clock."""
    gathered: Room
    """For the answers of all bodies that are not whole yet."""
    peer: Peer
    """Who asks."""
    num_bytes: int = 0
    """Of the answers so far."""

    def check(self) -> None:
        """Refuse the next call where time or room is used up."""
        if time.monotonic() > self.deadline:
            raise NotReady(
                f"the calls before took, or waited for, more than {BATCH_SECONDS:.0f} s;"
                " next: split the batch, or ask again in a moment"
            )
        if self.num_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(MAX_ANSWER_BYTES, self.num_bytes)
        if self.num_bytes and not self.gathered.has_room(self.peer, 0):
            raise AnswerTooLarge(MAX_HELD_BYTES, self.gathered.count)

    def take(self, encoded: bytes) -> None:
        """Count an answer."""
        self.num_bytes += len(encoded)
        self.gathered.add(self.peer, len(encoded))


class ChainDatabase:
    """Opens the chain's LMDB when it is there; the node may start before its first block."""

    def __init__(self, directory: Path) -> None:
        """Look at ``directory`` (``<home>/app``) at each first use."""
        self._directory = directory
        self._reader: Reader | None = None
        self._opening = threading.Lock()

    def reader(self) -> Reader:
        """Return the open reader, or raise NotReady; any thread may ask, and LMDB opens once in a process."""
        with self._opening:
            if self._reader is None:
                try:
                    self._reader = Reader(self._directory)
                except StoreError as e:
                    raise NotReady(str(e)) from e
            return self._reader

    def close(self) -> None:
        """Close it; no snapshot may be open."""
        if self._reader is not None:
            self._reader.close()


class Dispatcher:
    """Answers bodies."""

    def __init__(self, *, database: ChainDatabase, contracts: Contracts, upstream: Upstream, metrics: Metrics) -> None:
        """Wire the parts; call ``close`` at the end."""
        self._database = database
        self._contracts = contracts
        self._system_addresses = frozenset(f"0x{address.hex()}" for address in contracts)
        self._upstream = upstream
        self._metrics = metrics
        self._filters = FilterRegistry(time.monotonic)
        self._heads = HeadCache()
        self._archives = ArchiveLeaves()
        self._threads = {
            _Lane.READ: ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="rpc"),
            _Lane.EVM: ThreadPoolExecutor(NUM_EVM_THREADS, thread_name_prefix="evm"),
            _Lane.SEARCH: ThreadPoolExecutor(NUM_SEARCH_THREADS, thread_name_prefix="search"),
        }
        self._turns = {
            _Lane.READ: Turns(NUM_THREADS - 1),
            _Lane.EVM: Turns(NUM_EVM_THREADS - 1),
            _Lane.SEARCH: Turns(NUM_SEARCH_THREADS - 1),
            _Lane.PROOF: Turns(MAX_PROOFS - 1),
        }
        self._proofs = asyncio.Semaphore(MAX_PROOFS)
        self._places = {lane: Places(MAX_WAITING) for lane in (_Lane.PROOF, _Lane.EVM, _Lane.SEARCH)}
        self._bodies = Places(MAX_WAITING_REQUESTS)
        self._held = Room(MAX_HELD_BYTES)
        self._gathered = Room(MAX_HELD_BYTES)

    async def answer(self, body: bytes, peer: Peer) -> bytes:
        """Answer one body of a peer; empty when it held notifications only."""
        num_values = body.count(b",") + body.count(b"[") + body.count(b"{")
        if num_values > MAX_BODY_VALUES:
            return _encode(_error(None, TooManyValues(MAX_BODY_VALUES, num_values)))
        num_bytes = len(body) + VALUE_BYTES * num_values
        try:
            self._bodies.check(peer)
            if not self._held.has_room(peer, num_bytes):
                raise Busy(self._bodies.count)
        except Busy as e:
            return _encode(_error(None, e))
        self._held.add(peer, num_bytes)
        try:
            with self._bodies.taken(peer):
                return await self._answer_body(body, peer)
        finally:
            self._held.remove(peer, num_bytes)

    async def read(self, reading: Callable[[Session], Any]) -> Any:
        """Run a function on a snapshot in a worker thread, for this node itself."""
        return await self._run(_Lane.READ, UNKNOWN_PEER, reading)

    async def read_for(self, peer: Peer, reading: Callable[[Session], Any]) -> Any:
        """Run a function on a snapshot in a worker thread, when it is the peer's turn."""
        async with self._turns[_Lane.READ].of(peer):
            return await self._run(_Lane.READ, peer, reading)

    def close(self) -> None:
        """Wait for running calls, then close the database."""
        for threads in self._threads.values():
            threads.shutdown(wait=True, cancel_futures=True)
        self._database.close()

    async def _answer_body(self, body: bytes, peer: Peer) -> bytes:
        try:
            parsed = parse_json(body)
        except ValueError as e:
            return _encode(_error(None, ParseFault(f"parse error: {e}")))
        if not isinstance(parsed, list):
            answers = await self._answer_calls([_parse_call(parsed)], peer)
            return answers[0] if answers else b""
        if not parsed:
            return _encode(_error(None, InvalidRequest("empty batch")))
        if len(parsed) > MAX_BATCH_CALLS:
            return _encode(_error(None, BatchTooLarge(MAX_BATCH_CALLS, len(parsed))))
        answers = await self._answer_calls([_parse_call(item) for item in parsed], peer)
        return b"[" + b",".join(answers) + b"]" if answers else b""

    async def _answer_calls(self, calls: Sequence[_Call], peer: Peer) -> list[bytes]:
        budget = _Budget(deadline=time.monotonic() + BATCH_SECONDS, gathered=self._gathered, peer=peer)
        answers: list[bytes] = []
        try:
            for lane, group in itertools.groupby(calls, self._choose_lane):
                if lane is _Lane.READ:
                    answers += await self._answer_reads(lane, list(group), budget)
                elif lane is _Lane.UPSTREAM:
                    answers += await self._answer_upstream(list(group), budget)
                else:
                    answers += await self._answer_in_lane(lane, list(group), budget)
        finally:
            self._gathered.remove(peer, budget.num_bytes)
        return answers

    def _choose_lane(self, call: _Call) -> _Lane:
        if call.fault is not None:
            return _Lane.READ
        if call.method in PROOF_METHODS:
            return _Lane.PROOF
        if _needs_upstream(call):
            return _Lane.UPSTREAM
        if call.method in SEARCH_METHODS:
            return _Lane.SEARCH
        if call.method in EVM_METHODS and not self._is_native(call.params):
            return _Lane.EVM
        return _Lane.READ

    def _is_native(self, params: Params) -> bool:
        """Say whether a call goes straight to a system contract."""
        transaction = params.raw(0, "transaction", None)
        to = transaction.get("to") if isinstance(transaction, dict) else None
        return isinstance(to, str) and to.lower() in self._system_addresses

    async def _answer_in_lane(self, lane: _Lane, calls: Sequence[_Call], budget: _Budget) -> list[bytes]:
        places = self._places[lane]
        try:
            places.check(budget.peer)
        except Busy as e:
            return [_encode(_error(call.call_id, e)) for call in calls if not call.is_notification]
        with places.taken(budget.peer):
            if lane is not _Lane.PROOF:
                return await self._answer_reads(lane, calls, budget)
            async with self._turns[lane].of(budget.peer), self._proofs:
                return await self._answer_upstream(calls, budget)

    async def _answer_upstream(self, calls: Sequence[_Call], budget: _Budget) -> list[bytes]:
        answers = []
        for call in calls:
            started = time.perf_counter()
            method = UPSTREAM_METHODS.get(call.method, get_pending_count)
            try:
                budget.check()
                answer = _result(call.call_id, await method(self._upstream, self.read, call.params))
            except RpcFault as e:
                answer = _error(call.call_id, e)
            self._metrics.observe(call.method, time.perf_counter() - started, is_error="error" in answer)
            if not call.is_notification:
                answers.append(_encode(answer))
                budget.take(answers[-1])
        return answers

    async def _answer_reads(self, lane: _Lane, calls: Sequence[_Call], budget: _Budget) -> list[bytes]:
        def answer(session: Session) -> list[bytes]:
            return [self._answer_read(session, call, budget) for call in calls]

        try:
            async with self._turns[lane].of(budget.peer):
                answers: list[bytes] = await self._run(lane, budget.peer, answer)
        except RpcFault as e:
            answers = [_encode(_error(call.call_id, call.fault or e)) for call in calls]
        return [answer for call, answer in zip(calls, answers, strict=True) if not call.is_notification]

    async def _run(self, lane: _Lane, peer: Peer, reading: Callable[[Session], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads[lane], self._read, peer, reading)

    def _read(self, peer: Peer, reading: Callable[[Session], Any]) -> Any:
        try:
            with self._database.reader().snapshot() as snapshot:
                _require_genesis(snapshot)
                head = self._heads.get(snapshot)
                return reading(
                    Session(
                        snapshot=snapshot,
                        contracts=self._contracts,
                        head=head,
                        filters=self._filters,
                        archives=self._archives,
                        peer=peer,
                    )
                )
        except StoreError as e:
            raise NotReady(str(e)) from e

    def _answer_read(self, session: Session, call: _Call, budget: _Budget) -> bytes:
        started = time.perf_counter()
        method = READ_METHODS.get(call.method)
        try:
            if call.fault is not None:
                raise call.fault
            if method is None:
                raise _find_fault(call.method)
            budget.check()
            answer = _result(call.call_id, method(session, call.params))
        except RpcFault as e:
            answer = _error(call.call_id, e)
        except Exception:
            log.exception("%s failed", call.method)
            answer = {"jsonrpc": "2.0", "id": call.call_id}
            answer["error"] = {"code": _INTERNAL_ERROR, "message": "internal error, see the node's rpc log"}
        name = call.method if method is not None else "unknown"
        self._metrics.observe(name, time.perf_counter() - started, is_error="error" in answer)
        encoded = _encode(answer)
        budget.take(encoded)
        return encoded


def _find_fault(method: str) -> MethodNotFound:
    """Say what to do about a method that isn't here: one that other nodes have, or a slip."""
    if reason := explain_absence(method):
        return MethodNotFound(method, reason)
    nearest = find_nearest(method, [*READ_METHODS, *UPSTREAM_METHODS])
    return MethodNotFound(method, f"did you mean {nearest}?" if nearest else "")


def _needs_upstream(call: _Call) -> bool:
    if call.method == "eth_getTransactionCount":
        return len(call.params) == 2 and call.params.raw(1, "block", "") == "pending"
    return call.method in UPSTREAM_METHODS


def _parse_call(value: Any) -> _Call:
    if not isinstance(value, dict) or not isinstance(value.get("method"), str):
        fault = InvalidRequest("expected an object with jsonrpc, id, method and params")
        call_id = value.get("id") if isinstance(value, dict) else None
        return _Call(method="invalid", params=Params(()), call_id=call_id, is_notification=False, fault=fault)
    if isinstance(value.get("id"), dict | list):
        fault = InvalidRequest("id is an object or a list, expected a string or a number")
        return _Call(method="invalid", params=Params(()), call_id=None, is_notification=False, fault=fault)
    params = value.get("params")
    is_list = params is None or isinstance(params, list)
    return _Call(
        method=value["method"],
        params=Params(params or () if is_list else ()),
        call_id=value.get("id"),
        is_notification="id" not in value,
        fault=None if is_list else InvalidParams("params must be a list: named parameters are not supported"),
    )


def _require_genesis(snapshot: Snapshot) -> None:
    if snapshot.is_empty:
        raise NotReady("the chain has no genesis yet: wait for its first block")


def _result(call_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


def _error(call_id: Any, fault: RpcFault) -> dict[str, Any]:
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = fault.data
    return {"jsonrpc": "2.0", "id": call_id, "error": error}


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
