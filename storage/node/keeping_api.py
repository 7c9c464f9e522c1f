"""Routes by which others check what a node keeps: leaves, folds, the inventory (SPEC.md 11)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor

from aiohttp import web

from da.auditing import FOLD_SUFFIX, LEAF_SUFFIX
from da.core.audits import NONCE_BYTES, encode_leaf_answer
from da.core.errors import Malformed
from da.core.leaf_ranges import MAX_RANGE_BYTES, encode_range_answer
from da.core.types import BlobId, Epoch, ShardIndex
from da.protocol import BODY_TYPE, SHARD_ROUTE, decode_blob_id, decode_seat
from da.range_reader import LEAVES_SUFFIX
from storage.core.errors import MalformedRequest
from storage.node.engine import StoreEngine
from storage.node.inventory import INVENTORY_PATH, PAGE_BLOBS, encode_inventory
from storage.node.proofs import fold_shard, prove_leaf
from storage.node.shard_trees import ShardTrees
from storage.node.threads import run_in

MAX_NUMBER = 2**63 - 1
"""Largest number in a path or query."""


class KeepingApi:
    """The handlers; refusals are answered by the server's middleware."""

    def __init__(self, engine: StoreEngine, executor: Executor) -> None:
        """Answer from ``engine``; blocking work runs in ``executor``."""
        self._engine = engine
        self._executor = executor
        self._trees = ShardTrees(engine)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get(SHARD_ROUTE + LEAF_SUFFIX, self.get_leaf)
        app.router.add_get(SHARD_ROUTE + LEAVES_SUFFIX, self.get_leaves)
        app.router.add_get(SHARD_ROUTE + FOLD_SUFFIX, self.get_fold)
        app.router.add_get(INVENTORY_PATH, self.get_inventory)

    async def get_leaf(self, request: web.Request) -> web.StreamResponse:
        """Send one leaf with its path."""
        blob, shard = _decode_path(request.match_info)
        leaf = _decode_number(request.match_info["leaf"], "leaf")
        found = await run_in(self._executor, prove_leaf, self._engine, blob, shard, leaf)
        return web.Response(body=encode_leaf_answer(found.leaf, found.proof), content_type=BODY_TYPE)

    async def get_leaves(self, request: web.Request) -> web.StreamResponse:
        """Send neighbouring leaves with one path for all of them."""
        blob, shard = _decode_path(request.match_info)
        first = _decode_number(request.query.get("first", ""), "first")
        count = _decode_number(request.query.get("count", ""), "count")
        siblings, leaves = await run_in(
            self._executor,
            lambda: self._trees.read_range(blob, shard, first, count, max_bytes=MAX_RANGE_BYTES),
        )
        return web.Response(body=encode_range_answer(siblings, leaves), content_type=BODY_TYPE)

    async def get_fold(self, request: web.Request) -> web.StreamResponse:
        """Send the fold of a shard under the coefficients of a nonce."""
        blob, shard = _decode_path(request.match_info)
        nonce = _decode_hex(request.query.get("nonce", ""), "nonce", NONCE_BYTES)
        fold = await run_in(self._executor, fold_shard, self._engine, blob, shard, nonce)
        return web.Response(body=fold, content_type=BODY_TYPE)

    async def get_inventory(self, request: web.Request) -> web.StreamResponse:
        """Send the blobs that are kept for an epoch."""
        epoch = Epoch(_decode_number(request.query.get("epoch", ""), "epoch"))
        text = request.query.get("after", "")
        after = _decode_hex(text, "after", 32) if text else b""
        blobs = await run_in(
            self._executor, lambda: self._engine.index.get_blobs_of_epoch(epoch, after=after, limit=PAGE_BLOBS)
        )
        return web.Response(body=encode_inventory(blobs), content_type=BODY_TYPE)


def _decode_path(match: Mapping[str, str]) -> tuple[BlobId, ShardIndex]:
    try:
        return decode_blob_id(match["blob"]), decode_seat(match["seat"])
    except Malformed as error:
        raise MalformedRequest(str(error)) from error


def _decode_number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > MAX_NUMBER:
        raise MalformedRequest(f"{what} {text[:30]!r}, expected a number")
    return int(text)


def _decode_hex(text: str, what: str, num_bytes: int) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError as error:
        raise MalformedRequest(f"{what} is not hex") from error
    if len(value) != num_bytes:
        raise MalformedRequest(f"{what} of {len(value)} bytes, expected {num_bytes}")
    return value
