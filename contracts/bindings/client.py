"""``ChainClient``: a thread-safe reader of the chain over JSON-RPC, with failover between URLs.

Typed views stand under ``training``, ``storage`` and ``staking``.  Every call has a deadline; every byte is
counted at the socket; a custom error becomes a ``ContractError`` with its values.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.encoding import (
    UNREADABLE,
    Event,
    decode_error,
    decode_log,
    decode_output,
    encode_call,
    read_bytes,
    read_quantity,
    show,
    topic_of,
)
from contracts.bindings.errors import (
    BadAnswer,
    BindingError,
    ChainUnreachable,
    ContractError,
    NotJsonRpc,
    RpcError,
    WrongChain,
)
from contracts.bindings.lineage import Lineage
from contracts.bindings.readers import StakingReader, StorageReader, TrainingReader
from contracts.bindings.transport import Endpoint, Transport

T = TypeVar("T")

REVERT_CODE = 3
"""JSON-RPC error code of a revert with data (geth)."""
UNAVAILABLE_CODE = -32010
"""JSON-RPC error code of a node that can't answer now (chain/rpc/faults.py): another one is asked."""
NO_METHOD_CODE = -32601
"""JSON-RPC error code of a method that isn't there."""
_EVERY_NODE_HAS = frozenset({"eth_blockNumber", "eth_call", "eth_chainId", "eth_getBalance", "eth_getTransactionCount"})
"""Methods without which what answers is no chain node: CometBFT's own RPC speaks JSON-RPC as well."""
_COMPARE_SECONDS = 2.0
"""How often the heights of several URLs are compared."""
_LAG_BLOCKS = 3
"""A URL that is further behind than this is passed over."""


class ChainClient:
    """Reads the chain through the first URL that answers and does not lag."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float = 5.0) -> None:
        """Name one or several URLs of the same chain; nothing is connected yet."""
        self._transport = Transport(urls, timeout_seconds=timeout_seconds)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._chain_id: int | None = None
        self._genesis_hash: bytes | None = None
        self._checked: set[str] = set()
        self._lineage = Lineage()
        self._compared_at = time.monotonic()
        self.training = TrainingReader(self.read)
        self.storage = StorageReader(self.read)
        self.staking = StakingReader(self.read)

    @property
    def bytes_sent(self) -> int:
        """Bytes written to sockets so far."""
        return self._transport.count.sent

    @property
    def bytes_received(self) -> int:
        """Bytes read from sockets so far."""
        return self._transport.count.received

    def height(self) -> int:
        """Return the newest complete block; with several URLs, of the one that is furthest."""
        self._compare_heights()
        answers, endpoint = self._ask([("eth_blockNumber", ())])
        height = _read(endpoint, answers, lambda results: read_quantity(results[0]))
        endpoint.height = max(endpoint.height, height)
        return height

    def chain_id(self) -> int:
        """Return the EVM chain id."""
        if self._chain_id is None:
            self._chain_id = self.interpret([("eth_chainId", ())], lambda results: read_quantity(results[0]))
        return self._chain_id

    def describe_chain(self) -> str:
        """Name the chain where money is missing: it may be another one than that which was paid on."""
        urls = ", ".join(endpoint.url for endpoint in self._transport.endpoints)
        return f"on chain id {self.chain_id()} at {urls}"

    def genesis_hash(self) -> bytes:
        """Return the 32 bytes that receipts and key proofs are bound to."""
        if self._genesis_hash is None:
            self._genesis_hash = self.storage.genesis_hash()
        return self._genesis_hash

    def balance(self, address: str) -> int:
        """Return a balance in wei."""
        asked = [("eth_getBalance", (address, "latest"))]
        return self.interpret(asked, lambda results: read_quantity(results[0]))

    def nonce(self, address: str, *, is_pending: bool = False) -> int:
        """Return the count of executed transactions; pending: the next free nonce, counting the queue."""
        block = "pending" if is_pending else "latest"
        asked = [("eth_getTransactionCount", (address, block))]
        return self.interpret(asked, lambda results: read_quantity(results[0]))

    def read(self, contract: str, function: str, arguments: tuple[Any, ...]) -> Any:
        """Call a view by its ABI name and decode what it returns."""
        call = {"to": ADDRESSES[contract], "data": "0x" + encode_call(contract, function, arguments).hex()}
        return self.interpret(
            [("eth_call", (call, "latest"))], lambda results: decode_output(contract, function, read_bytes(results[0]))
        )

    def events(
        self, contract: str, names: Sequence[str], *, from_height: int, to_height: int, topics: Sequence[bytes] = ()
    ) -> tuple[Event, ...]:
        """Return the named events of a span of blocks, both ends included; ``topics``: the indexed values wanted."""
        wanted = {
            "address": ADDRESSES[contract],
            "fromBlock": hex(from_height),
            "toBlock": hex(to_height),
            "topics": [
                ["0x" + topic_of(contract, name).hex() for name in names],
                *("0x" + topic.rjust(32, b"\0").hex() for topic in topics),
            ],
        }
        decoded = self.interpret([("eth_getLogs", (wanted,))], lambda results: [decode_log(log) for log in results[0]])
        return tuple(event for event in decoded if event is not None)

    def has_events(self, contract: str, topic: bytes, *, from_height: int, to_height: int) -> bool:
        """Say whether a contract told of anything with this first indexed value in a span of blocks, ends included."""
        wanted = {
            "address": ADDRESSES[contract],
            "fromBlock": hex(from_height),
            "toBlock": hex(to_height),
            "topics": [None, "0x" + topic.rjust(32, b"\0").hex()],
        }
        return self.interpret([("eth_getLogs", (wanted,))], lambda results: len(results[0]) > 0)

    def request(self, method: str, *params: Any) -> Any:
        """Call any JSON-RPC method and return its result, or raise ContractError or RpcError."""
        return self.interpret([(method, params)], lambda results: results[0])

    def batch(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Call several methods in one request; the node answers them in order; the first error is raised."""
        return self.interpret(calls, lambda results: results)

    def interpret(self, calls: Sequence[tuple[str, tuple[Any, ...]]], read: Callable[[list[Any]], T]) -> T:
        """Call several methods in one request and return what ``read`` makes of their results.

        Raises what the first error says, and BadAnswer, with the URL, where ``read`` finds another shape.
        """
        answers, endpoint = self._ask(calls)
        return _read(endpoint, answers, read)

    def ask_consensus(self, method: str, params: Mapping[str, Any]) -> Any:
        """Call one of CometBFT's status, genesis, commit, validators and abci_query."""
        return self.request("archipelago_consensus", method, dict(params))

    def is_reachable(self) -> bool:
        """Say whether any URL answers now."""
        try:
            self.request("eth_chainId")
        except BindingError:
            return False
        return True

    def close(self) -> None:
        """Close idle connections; the client may still be used."""
        self._transport.close()

    def __enter__(self) -> ChainClient:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close idle connections."""
        self.close()

    def _ask(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> tuple[list[Mapping[str, Any]], Endpoint]:
        bodies = [
            {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": list(params)}
            for method, params in calls
        ]
        reasons: list[tuple[str, str]] = []
        num_foreign = 0
        for _ in self._transport.endpoints:
            answer, endpoint = self._transport.post(bodies if len(bodies) > 1 else bodies[0])
            answers: list[Mapping[str, Any]] = answer if isinstance(answer, list) else [answer]
            foreign = _find_foreign(bodies, answers)
            num_foreign += foreign is not None
            reason = foreign or _find_unavailable(answers) or self._find_other_history(endpoint)
            if reason is None:
                break
            self._transport.set_aside(endpoint)
            reasons.append((endpoint.url, reason))
        else:
            raise (NotJsonRpc if num_foreign == len(reasons) else ChainUnreachable)(reasons)
        self._check_chain(endpoint)
        if len(answers) != len(bodies):  # a refused batch is answered by one error
            _result(answers[0])
            raise RpcError(-32603, f"batch of {len(bodies)} got {len(answers)} answers")
        wanted = [body["id"] for body in bodies]
        for answered in answers:
            if answered.get("id") not in wanted:
                _result(answered)  # an error without an id, of a body that could not be read
                raise RpcError(-32603, f"{endpoint.url} answered id {str(answered.get('id'))[:40]}, asked was {wanted}")
        return sorted(answers, key=lambda item: wanted.index(item["id"])), endpoint

    def _find_other_history(self, endpoint: Endpoint) -> str | None:
        """Say in what a URL contradicts the others; with a single URL there is nobody to contradict."""
        if len(self._transport.endpoints) == 1:
            return None
        try:
            return self._lineage.find_fault(
                endpoint.url,
                lambda method, params: self._transport.post_to(
                    endpoint, {"jsonrpc": "2.0", "id": 0, "method": method, "params": list(params)}
                ),
            )
        except UNREADABLE as error:
            return f"answers eth_getBlockByNumber with what is no block: {type(error).__name__} {error}"[:200]

    def _check_chain(self, endpoint: Endpoint) -> None:
        if endpoint.url in self._checked or len(self._transport.endpoints) == 1:
            return
        answer = self._transport.post_to(endpoint, {"jsonrpc": "2.0", "id": 0, "method": "eth_chainId", "params": []})
        if answer is None:
            return
        got = _read(endpoint, [answer], lambda results: read_quantity(results[0]))
        with self._lock:
            if self._chain_id is None:
                self._chain_id = got
            expected = self._chain_id
        if got != expected:
            raise WrongChain(endpoint.url, expected, got)
        self._checked.add(endpoint.url)

    def _compare_heights(self) -> None:
        endpoints = self._transport.endpoints
        with self._lock:
            if len(endpoints) == 1 or time.monotonic() < self._compared_at + _COMPARE_SECONDS:
                return
            self._compared_at = time.monotonic()
        body = {"jsonrpc": "2.0", "id": 0, "method": "eth_blockNumber", "params": []}
        heights = {}
        for index, endpoint in enumerate(endpoints):
            if not self._transport.is_available(endpoint):
                continue
            answer = self._transport.post_to(endpoint, body)
            if answer is not None and "result" in answer:
                heights[index] = endpoint.height = _read(endpoint, [answer], lambda results: read_quantity(results[0]))
        if heights:
            highest = max(heights.values())
            good = [index for index, height in heights.items() if height >= highest - _LAG_BLOCKS]
            self._transport.prefer(endpoints[good[0]])


def _find_foreign(bodies: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why what answered is no chain node, None where it is one."""
    asked = {body["id"]: body["method"] for body in bodies}
    for answer in answers:
        error, identity = answer.get("error"), answer.get("id")
        method = asked.get(identity, "") if isinstance(identity, int) else ""
        if error and error["code"] == NO_METHOD_CODE and method in _EVERY_NODE_HAS:
            return f"that it has no {method}: CometBFT's own RPC, perhaps"
    return None


def _find_unavailable(answers: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why the node can't answer now, None where it does."""
    errors = (answer.get("error") for answer in answers)
    return next((error["message"] for error in errors if error and error["code"] == UNAVAILABLE_CODE), None)


def _read(endpoint: Endpoint, answers: Sequence[Mapping[str, Any]], read: Callable[[list[Any]], T]) -> T:
    """Return what ``read`` makes of the results; raises what an error says, and BadAnswer with the URL."""
    try:
        results = [_result(answer) for answer in answers]
        return read(results)
    except BadAnswer as error:
        raise BadAnswer(error.message, endpoint.url) from error
    except UNREADABLE as error:
        what = f"the node sent {show(results)}, which is not what was asked for: {type(error).__name__} {error}"
        raise BadAnswer(what[:400], endpoint.url) from error


def _result(answer: Mapping[str, Any]) -> Any:
    """Return the result, or raise what the error says."""
    error = answer.get("error")
    if error is None:
        return answer.get("result")
    data = error.get("data")
    if error["code"] == REVERT_CODE and isinstance(data, str):
        known: ContractError | None = decode_error(read_bytes(data))
        if known is not None:
            raise known
    raise RpcError(error["code"], error["message"], data)
