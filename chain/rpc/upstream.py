"""CometBFT's JSON-RPC, as far as the node needs it: hand over a transaction, ask the queue, ask how it stands.

Never broadcast_tx_commit: it times out although the transaction lands (tendermint #4928).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgpack

from chain.core.hashing import keccak256
from chain.core.smt import Proof
from chain.rpc.faults import InvalidParams, ProofsGone, TransactionRefused, UpstreamDown

TIMEOUT_SECONDS = 10.0
"""Most that one question to CometBFT may take."""
MAX_RAW_BYTES = 512 * 1024
"""More is refused before it is sent: CometBFT's own body limit is 1,000,000 bytes of base64."""
KEEP_ALIVE_SECONDS = 4.0
"""One idle for longer is not used again: CometBFT closes it after 10 s, and a question on its way would be lost."""
MAX_ATTEMPTS = 2
"""A connection that closes before any answer is followed by a new one once: every question may be put twice."""
CONSENSUS_METHODS: dict[str, frozenset[str]] = {
    "status": frozenset(),
    "genesis": frozenset(),
    "commit": frozenset({"height"}),
    "validators": frozenset({"height", "per_page"}),
    "abci_query": frozenset({"path", "data", "prove"}),
}
"""What archipelago_consensus hands on: name -> parameters.  All of it reads."""
_IN_CACHE = "already exists in cache"
"""CometBFT's words for a transaction it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState:
    """How CometBFT stands."""

    height: int
    is_catching_up: bool
    num_peers: int


def open_session() -> aiohttp.ClientSession:
    """Return a session for an Upstream; the caller closes it."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=KEEP_ALIVE_SECONDS))


class Upstream:
    """A client of one CometBFT node."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        """Ask ``url`` (http://host:port) through ``session``."""
        self._url = url.replace("tcp://", "http://", 1)
        self._session = session

    async def send_transaction(self, raw: bytes) -> bytes:
        """Hand over a raw transaction and return its hash, or raise TransactionRefused with CheckTx's reason."""
        if not 0 < len(raw) <= MAX_RAW_BYTES:
            raise InvalidParams(f"transaction has {len(raw)} bytes, expected 1 .. {MAX_RAW_BYTES}")
        answer, num_attempts = await self._ask_counted("broadcast_tx_sync", {"tx": base64.b64encode(raw).decode()})
        error = answer.get("error")
        if error is not None:
            reason = str(error.get("data") or error.get("message"))
            if _IN_CACHE in reason and num_attempts > 1:
                return keccak256(raw)  # the first attempt handed it over, and its answer was lost
            raise TransactionRefused("already known" if _IN_CACHE in reason else reason)
        result = answer["result"]
        if result["code"]:
            data = {"abciCode": result["code"], "codespace": result.get("codespace", "")}
            raise TransactionRefused(result.get("log") or f"CheckTx answered code {result['code']}", data)
        return keccak256(raw)

    async def get_pending_nonce(self, address: bytes) -> int:
        """Return the next free nonce of an address, counting the queue."""
        answer = await self._ask("abci_query", {"path": "/pending_nonce", "data": address.hex()})
        if answer.get("error") is not None:
            raise UpstreamDown(self._url, str(answer["error"].get("data") or answer["error"].get("message")))
        response = answer["result"]["response"]
        if response.get("code"):
            raise UpstreamDown(self._url, f"pending nonce: {response.get('log', '')}")
        return int.from_bytes(base64.b64decode(response.get("value") or ""), "big")

    async def get_proofs(self, keys: Sequence[bytes], height: int) -> list[Proof]:
        """Return the proofs of state keys against the app hash after a block; raises ProofsGone."""
        params = {"path": "/proofs", "data": msgpack.packb(list(keys)).hex(), "height": str(height)}
        answer = await self._ask("abci_query", params)
        if answer.get("error") is not None:
            raise UpstreamDown(self._url, f"proofs: {str(answer)[:200]}")
        response = answer["result"]["response"]
        if response.get("code"):
            raise ProofsGone(str(response.get("log")))
        if int(response.get("height") or 0) != height:
            raise ProofsGone(f"the proofs of block {height} are not kept; next: ask for latest")
        return [
            Proof(siblings=tuple(siblings), other_leaf=(other[0], other[1]) if other else None)
            for siblings, other in msgpack.unpackb(base64.b64decode(response["value"]))
        ]

    async def ask_consensus(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of one of the methods that a light client needs; it checks everything itself."""
        if method not in CONSENSUS_METHODS:
            raise InvalidParams(f"method {method[:40]!r} is none of {', '.join(sorted(CONSENSUS_METHODS))}")
        unknown = set(params) - CONSENSUS_METHODS[method]
        if unknown or not all(isinstance(value, str | bool) for value in params.values()):
            raise InvalidParams(f"{method} takes {', '.join(sorted(CONSENSUS_METHODS[method])) or 'nothing'}, as text")
        answer = await self._ask(method, params)
        if answer.get("error") is not None:
            raise UpstreamDown(self._url, str(answer["error"].get("data") or answer["error"].get("message"))[:200])
        result: dict[str, Any] = answer["result"]
        return result

    async def get_sync_state(self) -> SyncState:
        """Return height, whether it catches up, and the number of peers."""
        status = await self._ask("status", {})
        peers = await self._ask("net_info", {})
        sync = status["result"]["sync_info"]
        return SyncState(
            height=int(sync["latest_block_height"]),
            is_catching_up=bool(sync["catching_up"]),
            num_peers=int(peers["result"]["n_peers"]),
        )

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        answer, _ = await self._ask_counted(method, params)
        return answer

    async def _ask_counted(self, method: str, params: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the answer and the number of attempts that it took."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answered, num_attempts = await self._post(body)
                return json.loads(answered), num_attempts
        except (aiohttp.ClientError, TimeoutError, ValueError) as e:
            raise UpstreamDown(self._url, str(e) or type(e).__name__) from e

    async def _post(self, body: dict[str, Any]) -> tuple[bytes, int]:
        for attempt in range(1, MAX_ATTEMPTS):
            try:
                return await self._post_once(body), attempt
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                continue
        return await self._post_once(body), MAX_ATTEMPTS

    async def _post_once(self, body: dict[str, Any]) -> bytes:
        async with self._session.post(self._url, json=body) as response:
            return await response.read()
