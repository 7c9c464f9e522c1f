"""Every reason for which JSON-RPC answers with an error (JSON-RPC 2.0, section 5.1; EIP-1474).

RpcFault
|-- ParseFault          -32700  the body is no JSON
|-- InvalidRequest      -32600  the JSON is no request
|-- BatchTooLarge       -32600
|-- TooManyValues       -32600
|-- AnswerTooLarge      -32003  earlier answers of the batch fill what one body may bring
|-- MethodNotFound      -32601
|-- InvalidParams       -32602
|-- RangeTooWide        -32005  a log query over too many blocks, or with too many results
|-- HistoryTooLong      -32005
|-- Busy                -32010
|-- FilterNotFound      -32000
|-- StateGone           -32000  state of a block that is too old, or to come
|-- ProofsGone          -32000  proofs of a block that is too old
|-- BlockPruned         -32000  a block below the oldest that this node has
|-- RecordsGone         -32000  an archived round that this node never executed
|-- NotReady            -32010  no genesis yet
|-- CallRefused         -32000  a call that could never be a transaction
|-- CallFailed          -32000  out of gas
|-- TransactionRefused  -32000  CheckTx said no
|-- TraceRefused        -32000  a transaction that can't be shown step by step
|-- UpstreamDown        -32010  CometBFT does not answer
`-- Reverted            3       with the ABI-encoded custom error as data
"""

from __future__ import annotations

from typing import ClassVar

from chain.core.executor import CallResult

UNAVAILABLE_CODE = -32010
"""Of our own: this node can't answer now, nothing is wrong with the request; what was sent may have arrived."""


_MAX_SHOWN_CHARACTERS = 80
"""Of a name that a client made up."""


class RpcFault(Exception):
    """An error object in the making."""

    code: ClassVar[int] = -32000

    def __init__(self, message: str, data: object = None) -> None:
        """Keep message and data."""
        super().__init__(message)
        self.message = message
        self.data = data


class ParseFault(RpcFault):
    """The body is no JSON."""

    code = -32700


class InvalidRequest(RpcFault):
    """The JSON is no JSON-RPC 2.0 request."""

    code = -32600


class BatchTooLarge(RpcFault):
    """Too many calls in one body."""

    code = -32600

    def __init__(self, limit: int, got: int) -> None:
        """Keep both counts."""
        super().__init__(f"batch of {got} calls, at most {limit} are answered; next: split it")
        self.limit = limit
        self.got = got


class TooManyValues(RpcFault):
    """A body of more lists, objects and members than any request has."""

    code = -32600

    def __init__(self, limit: int, got: int) -> None:
        """Keep both counts."""
        super().__init__(f"the body has {got} values, at most {limit} are read; next: split it")
        self.limit = limit
        self.got = got


class HistoryTooLong(RpcFault):
    """A fee history that would take too long."""

    code = -32005

    def __init__(self, seconds: float, num_done: int, num_wanted: int) -> None:
        """Keep the limit and both counts."""
        super().__init__(
            f"the tips of {num_done} blocks of {num_wanted} took {seconds:.0f} s; next: ask for fewer blocks"
        )
        self.seconds = seconds


class AnswerTooLarge(RpcFault):
    """The answers of a batch are too long together."""

    code = -32003

    def __init__(self, limit: int, got: int) -> None:
        """Keep both sizes."""
        super().__init__(f"the batch's answers have {got} bytes so far, at most {limit} are sent; next: split it")
        self.limit = limit
        self.got = got


class MethodNotFound(RpcFault):
    """No such method."""

    code = -32601

    def __init__(self, method: str, hint: str) -> None:
        """Keep the name; the hint says what there is in its place."""
        shown = method if len(method) <= _MAX_SHOWN_CHARACTERS else f"{method[:_MAX_SHOWN_CHARACTERS]}..."
        super().__init__(f"the method {shown} does not exist/is not available" + (f"; {hint}" if hint else ""))
        self.method = method


class InvalidParams(RpcFault):
    """Parameters of a wrong number, type or range."""

    code = -32602


class RangeTooWide(RpcFault):
    """A log query that would read too much."""

    code = -32005

    def __init__(self, what: str, limit: int, got: int) -> None:
        """Keep both values."""
        super().__init__(f"log query over {got} {what}, at most {limit}; next: ask for a part of the range at a time")
        self.limit = limit
        self.got = got


class Busy(RpcFault):
    """Too many requests at once."""

    code = UNAVAILABLE_CODE

    def __init__(self, limit: int, whose: str = "requests") -> None:
        """Keep the limit, of all requests or of those that ``whose`` names."""
        super().__init__(f"{limit} {whose} are being answered already; next: send again in a moment")
        self.limit = limit


class FilterNotFound(RpcFault):
    """An unknown filter id, or one that was not polled for too long."""

    def __init__(self, filter_id: str) -> None:
        """Keep the id."""
        super().__init__(
            f"filter not found: {filter_id}; it was removed or not polled for too long; next: make a new one"
        )
        self.filter_id = filter_id


class ProofsGone(RpcFault):
    """Proofs of a block whose tree the application has no more; it says which blocks' it has."""


class BlockPruned(RpcFault):
    """A block that this node has no more, or never had because it restored a snapshot."""

    def __init__(self, height: int, first: int) -> None:
        """Keep both heights."""
        super().__init__(
            f"block {height} is not kept here, the oldest is {first}; next: ask a node that keeps all blocks"
        )
        self.height = height
        self.first = first


class RecordsGone(RpcFault):
    """Records that left the state before this node came."""

    def __init__(self, run: int, t: int) -> None:
        """Keep both."""
        super().__init__(
            f"round {t} of run {run} left the state before this node came;"
            " next: ask a node that has executed all blocks"
        )
        self.run = run
        self.round = t


class StateGone(RpcFault):
    """State of a block that is too old, or to come."""

    def __init__(self, height: int, newest: int) -> None:
        """Keep both heights."""
        super().__init__(
            f"state of block {height} is not kept any more, the newest block is {newest}; next: ask for latest"
            if height < newest
            else f"block {height} is not there yet, the newest is {newest}; next: wait for it"
        )
        self.height = height
        self.newest = newest


class NotReady(RpcFault):
    """The chain has no genesis yet."""

    code = UNAVAILABLE_CODE


class CallRefused(RpcFault):
    """A call that would be refused as a transaction."""


class CallFailed(RpcFault):
    """A call that failed without a revert."""


class CallTooLong(RpcFault):
    """A call that the EVM could not finish in time."""

    code = -32000

    def __init__(self, seconds: float) -> None:
        """Keep the limit."""
        super().__init__(
            f"execution timeout: the call ran for more than {seconds:.0f} s; next: give it less gas or less to do"
        )
        self.seconds = seconds


class TransactionRefused(RpcFault):
    """CheckTx did not take the transaction."""


class TraceRefused(RpcFault):
    """A transaction that can't be shown step by step."""


class UpstreamDown(RpcFault):
    """CometBFT gave no answer."""

    code = UNAVAILABLE_CODE

    def __init__(self, url: str, reason: str) -> None:
        """Keep both."""
        super().__init__(f"CometBFT does not answer at {url}: {reason}; next: see <home>/logs/node.log")
        self.url = url
        self.reason = reason


class Reverted(RpcFault):
    """A contract reverted."""

    code = 3

    def __init__(self, result: CallResult) -> None:
        """Take message and data from the result."""
        super().__init__(result.error, "0x" + result.output.hex())
