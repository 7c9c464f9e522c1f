"""What a fresh node needs to know of a running chain: genesis, peers, and a header to trust."""

from __future__ import annotations

import json
import re
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from chain.cometbft import StateSyncSource
from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.whole_answer import read_within

TIMEOUT_SECONDS = 10.0
"""For one whole answer."""
MAX_ANSWER_BYTES = 256 << 20
"""The longest is a genesis file."""
COMETBFT_PORT = 26657
"""CometBFT's customary RPC port."""
JSON_RPC_PORT = 8545
"""Where our JSON-RPC listens if it can: people know this one, and give it."""


_PEER = re.compile(r"[0-9a-f]{40}@[][0-9A-Za-z.:_-]{1,255}:[0-9]{1,5}")
"""id@host:port as CometBFT has them; it goes into a configuration file."""
_HASH = re.compile("[0-9A-Fa-f]{64}")
"""Of a block, as CometBFT says it."""


class JoinFailed(Exception):
    """The running nodes can't be asked, or disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPlan:
    """What ``chain-node join`` writes down."""

    genesis: dict[str, Any]
    """genesis.json."""
    peers: tuple[str, ...]
    """id@host:port."""
    source: StateSyncSource
    """For state sync."""


def plan_join(servers: Sequence[str], *, peers: Sequence[str], trust_height: int, trust_hash: str) -> JoinPlan:
    """Ask CometBFT's RPC of running nodes; raises JoinFailed when they disagree, or two are one node."""
    statuses = [fetch(server, "status") for server in servers]
    _check_distinct(servers, [str(status["node_info"]["id"]) for status in statuses])
    documents = [fetch(server, "genesis")["genesis"] for server in servers]
    for server, document in zip(servers, documents, strict=True):
        if document != documents[0]:
            raise JoinFailed(f"{server} and {servers[0]} have different genesis files; next: name servers of one chain")
    height = trust_height or min(int(status["sync_info"]["latest_block_height"]) for status in statuses)
    hashes = [
        fetch(server, f"commit?height={height}")["signed_header"]["commit"]["block_id"]["hash"] for server in servers
    ]
    expected = trust_hash.upper() or hashes[0]
    for server, got in zip(servers, hashes, strict=True):
        if not isinstance(got, str) or _HASH.fullmatch(got) is None:
            raise JoinFailed(f"{server} says hash {_show(got)}, expected 64 hex digits; next: name another --server")
        if got != expected:
            raise JoinFailed(
                f"{server} has block {got} at height {height}, expected {expected}: one of them lies;"
                " next: ask somebody you know, give --trust-hash"
            )
    found = [_make_peer(server, status) for server, status in zip(servers, statuses, strict=True)]
    rpc_servers = tuple(servers) if len(servers) > 1 else (servers[0], servers[0])
    return JoinPlan(
        genesis=documents[0],
        peers=tuple(peers) or tuple(found),
        source=StateSyncSource(rpc_servers=rpc_servers, trust_height=height, trust_hash=expected),
    )


def fetch(server: str, path: str) -> dict[str, Any]:
    """Return the result of one of CometBFT's RPC methods; raises JoinFailed."""
    try:
        document = json.loads(read_within(f"{server}/{path}", TIMEOUT_SECONDS, max_bytes=MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise JoinFailed(
            f"{server} is no CometBFT RPC, {path} gives HTTP {error.code}; next: give --server the port of CometBFT's"
            f" RPC, {COMETBFT_PORT} if nobody chose another (`chain-node status` there says it), not JSON-RPC's"
            f" {JSON_RPC_PORT}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise JoinFailed(f"{server}/{path} doesn't answer: {_show(error)}; next: name another --server") from error
    if not isinstance(document, dict) or not isinstance(document.get("result"), dict):
        said = document.get("error", document) if isinstance(document, dict) else document
        raise JoinFailed(f"{server}/{path} answers {_show(said)}; next: name another --server")
    result: dict[str, Any] = document["result"]
    return result


def _check_distinct(servers: Sequence[str], node_ids: Sequence[str]) -> None:
    """Refuse one node under two names: it would be taken for two witnesses."""
    first: dict[str, str] = {}
    for server, node_id in zip(servers, node_ids, strict=True):
        if node_id in first:
            raise JoinFailed(
                f"{first[node_id]} and {server} are one node, {_show(node_id)}: one witness, not two; next: give the "
                "address of another node as the second --server, or only one and a --trust-hash that you know"
            )
        first[node_id] = server


def _make_peer(server: str, status: dict[str, Any]) -> str:
    listen = status["node_info"]["listen_addr"].removeprefix("tcp://")
    host, _, port = listen.rpartition(":")
    if host in ("", "0.0.0.0", "::", "[::]"):
        host = urlsplit(server).hostname or "127.0.0.1"
    peer = f"{status['node_info']['id']}@{host}:{port}"
    if _PEER.fullmatch(peer) is None:
        raise JoinFailed(f"{server} says it is {_show(peer)}, expected ID@HOST:PORT; next: name another --server")
    return peer


def _show(value: object) -> str:
    return show_foreign(str(value), 200)
