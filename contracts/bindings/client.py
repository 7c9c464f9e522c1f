"""``ChainClient``: a thread-safe reader of the chain over JSON-RPC, with failover between URLs.

Typed views stand under ``training``, ``storage`` and ``staking``.  Every call has a deadline; every byte is
counted at the socket; a custom error becomes a ``ContractError`` with its values.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    read_logs,
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
from contracts.bindings.lineage import Call, Lineage, show_block
from contracts.bindings.readers import StakingReader, StorageReader, TrainingReader
from contracts.bindings.transport import Endpoint, Foreign, Refused, Transport

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
_JUMP_BLOCKS = 16
"""A height that is further ahead than this of what the URL told before, at first of 0, is believed with its block."""
_SENDS = frozenset({"eth_sendRawTransaction"})
"""Methods that change something: no other URL is asked for a second opinion."""
_SHOWN_CHARACTERS = 40
"""Of the ids of an answer that is none."""


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
        return self._ask([("eth_blockNumber", ())], self._read_height)

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

    def gas_price(self) -> int:
        """Return what a unit of gas costs at present, wei."""
        return self.interpret([("eth_gasPrice", ())], lambda results: read_quantity(results[0]))

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
        decoded = self.interpret(
            [("eth_getLogs", (wanted,))], lambda results: [decode_log(log) for log in read_logs(results[0])]
        )
        return tuple(event for event in decoded if event is not None)

    def has_events(self, contract: str, topic: bytes, *, from_height: int, to_height: int) -> bool:
        """Say whether a contract told of anything with this first indexed value in a span of blocks, ends included."""
        wanted = {
            "address": ADDRESSES[contract],
            "fromBlock": hex(from_height),
            "toBlock": hex(to_height),
            "topics": [None, "0x" + topic.rjust(32, b"\0").hex()],
        }
        return self.interpret([("eth_getLogs", (wanted,))], lambda results: len(read_logs(results[0])) > 0)

    def request(self, method: str, *params: Any) -> Any:
        """Call any JSON-RPC method and return its result, or raise ContractError or RpcError."""
        return self.interpret([(method, params)], lambda results: results[0])

    def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Call several methods in one request; the node answers them in order; the first error is raised."""
        return self.interpret(calls, lambda results: results)

    def interpret(self, calls: Sequence[Call], read: Callable[[list[Any]], T]) -> T:
        """Call several methods in one request and return what ``read`` makes of their results.

        Raises what the first error says, and BadAnswer, with the URL, where ``read`` finds another shape; of several
        URLs the others are asked before either is raised.
        """
        return self._ask(calls, lambda _, results: read(results))

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

    def _ask(self, calls: Sequence[Call], read: Callable[[Endpoint, list[Any]], T]) -> T:
        """Ask one URL after the other until one's answer can be believed; an error is believed if no other has more."""
        bodies = self._write(calls)
        is_sent = any(method in _SENDS for method, _ in calls)
        failed: list[tuple[Endpoint, RpcError]] = []
        reasons: list[tuple[str, str]] = []
        num_foreign = 0
        for endpoint in self._transport.in_order():
            if failed and not self._transport.is_available(endpoint):
                continue
            try:
                answers = self._ask_believed(endpoint, bodies, [each.url for each, _ in failed])
                value = _read(endpoint, answers, partial(read, endpoint))
            except Refused as refusal:
                self._transport.set_aside(endpoint)
                reasons.append((endpoint.url, str(refusal)))
                num_foreign += isinstance(refusal, Foreign)
            except RpcError as error:
                if is_sent:
                    raise  # what another node says of the same bytes may contradict it
                failed.append((endpoint, error))
            else:
                self._transport.accept(endpoint)
                for each, _ in failed:
                    self._transport.doubt(each)
                return value
        if failed:
            raise failed[0][1]
        raise (NotJsonRpc if num_foreign == len(reasons) else ChainUnreachable)(reasons)

    def _ask_believed(
        self, endpoint: Endpoint, bodies: Sequence[Mapping[str, Any]], failed: Sequence[str]
    ) -> list[Mapping[str, Any]]:
        """Return a URL's answers, in order; raises Refused where they are none, or the URL serves another chain."""
        answers = _match(bodies, self._transport.post(endpoint, bodies if len(bodies) > 1 else bodies[0]))
        foreign = _find_foreign(bodies, answers)
        if foreign is not None:
            raise Foreign(foreign)
        reason = _find_unavailable(answers) or self._find_other_history(endpoint, failed)
        if reason is not None:
            raise Refused(reason)
        self._check_chain(endpoint)
        return answers

    def _ask_only(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[Mapping[str, Any]] | None:
        """Return what one URL answers, in order, whatever it says; None where it gives no answer."""
        bodies = self._write(calls)
        try:
            return _match(bodies, self._transport.post(endpoint, bodies if len(bodies) > 1 else bodies[0]))
        except Refused:
            self._transport.set_aside(endpoint)
            return None

    def _write(self, calls: Sequence[Call]) -> list[Mapping[str, Any]]:
        return [
            {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": list(params)}
            for method, params in calls
        ]

    def _find_other_history(self, endpoint: Endpoint, failed: Sequence[str]) -> str | None:
        """Say in what a URL contradicts the others; with a single URL there is nobody to contradict."""
        if len(self._transport.endpoints) == 1:
            return None

        def ask(url: str, calls: Sequence[Call]) -> list[Mapping[str, Any]] | None:
            asked = next(each for each in self._transport.endpoints if each.url == url)
            if url != endpoint.url and not self._transport.is_available(asked):
                return None
            return self._ask_only(asked, calls)

        try:
            return self._lineage.find_fault(endpoint.url, ask, failed=failed)
        except (BadAnswer, *UNREADABLE) as error:
            return f"answers eth_getBlockByNumber with what is no block: {type(error).__name__} {error}"[:200]

    def _check_chain(self, endpoint: Endpoint) -> None:
        if endpoint.url in self._checked or len(self._transport.endpoints) == 1:
            return
        got = self._read_number(endpoint, "eth_chainId")
        if got is None:
            raise Refused("gives no chain id")
        with self._lock:
            if self._chain_id is None:
                self._chain_id = got
            expected = self._chain_id
        if got != expected:
            raise WrongChain(endpoint.url, expected, got)
        self._checked.add(endpoint.url)

    def _compare_heights(self) -> None:
        """Ask the first of those URLs first that are as far as the one which is furthest, and shows that it is."""
        endpoints = self._transport.endpoints
        with self._lock:
            if len(endpoints) == 1 or time.monotonic() < self._compared_at + _COMPARE_SECONDS:
                return
            self._compared_at = time.monotonic()
        available = [endpoint for endpoint in endpoints if self._transport.is_available(endpoint)]
        trusted = [endpoint for endpoint in available if not self._transport.is_doubted(endpoint)]
        told = [(endpoint, self._read_number(endpoint, "eth_blockNumber")) for endpoint in trusted or available]
        heights = [(endpoint, height) for endpoint, height in told if height is not None]
        while heights:
            furthest, highest = max(heights, key=lambda item: item[1])
            good = [endpoint for endpoint, height in heights if height >= highest - _LAG_BLOCKS]
            if len(good) == len(heights) or self._is_shown(furthest, highest):
                self._transport.prefer(good[0])
                return
            self._transport.set_aside(furthest)
            heights.remove((furthest, highest))

    def _read_height(self, endpoint: Endpoint, results: list[Any]) -> int:
        height = read_quantity(results[0])
        if height > endpoint.height + _JUMP_BLOCKS and not self._is_shown(endpoint, height):
            raise Refused(f"says that its newest block is {height}, and doesn't show it")
        endpoint.height = height
        return height

    def _is_shown(self, endpoint: Endpoint, height: int) -> bool:
        return show_block(endpoint.url, height, lambda _, calls: self._ask_only(endpoint, calls)) is not None

    def _read_number(self, endpoint: Endpoint, method: str) -> int | None:
        """Return a number that one URL tells, None where it tells none."""
        answers = self._ask_only(endpoint, [(method, ())])
        try:
            return None if answers is None else read_quantity(answers[0].get("result"))
        except BadAnswer:
            return None


def _match(bodies: Sequence[Mapping[str, Any]], answer: Any) -> list[Mapping[str, Any]]:
    """Return the answers in the order of the requests; raises Foreign where they are not the answers to these.

    One error without an id, of a body that could not be read or a batch that was refused, answers all of them.
    """
    answers = answer if isinstance(answer, list) else [answer]
    if len(answers) == 1 and answers[0].get("error") and answers[0].get("id") is None:
        return answers * len(bodies)
    wanted = [body["id"] for body in bodies]
    got = [each.get("id") for each in answers]
    if isinstance(answer, list) != (len(bodies) > 1):
        raise Foreign(f"{'a list' if isinstance(answer, list) else 'one object'} where {len(bodies)} was asked for")
    if any(type(each) is not int for each in got) or sorted(got) != wanted:
        shown = [str(ids if len(bodies) > 1 else ids[0])[:_SHOWN_CHARACTERS] for ids in (got, wanted)]
        raise Foreign(f"id {shown[0]}, asked was {shown[1]}")
    return sorted(answers, key=lambda each: wanted.index(each["id"]))


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
