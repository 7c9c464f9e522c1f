"""What the page at ``/`` is made of and asks for: its files, and JSON under ``/api``, each answer from one snapshot.

| path | answer |
|---|---|
| `/`, `/page/FILE` | the page; nothing in it comes from outside |
| `/api/overview?run=N` | everything that changes with a block |
| `/api/blocks/H`, `/api/transactions/0xHASH` | one block, one transaction, decoded |
| `/api/interface`, `/api/read/CONTRACT/FUNCTION?argument=...` | the system contracts' views |

The page is for people; programs have Ethereum JSON-RPC.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from aiohttp import web

from chain.rpc.activity import describe_block, find_transaction
from chain.rpc.dispatch import Dispatcher
from chain.rpc.faults import CallFailed, InvalidParams, RpcFault
from chain.rpc.overview import OverviewCache
from chain.rpc.peers import get_peer
from chain.rpc.reads import describe_interface, read_from_text
from chain.rpc.session import Session
from chain.rpc.values import parse_data

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page takes nothing from outside, and no script that isn't a file of ours."""
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type",
    "Access-Control-Max-Age": "86400",
}
"""Wallets in a browser come from any origin; the node holds no keys and knows no session."""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_MAX_HEIGHT_DIGITS = 18


class Explorer:
    """The handlers of the page."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        """Read the page's files."""
        self._dispatcher = dispatcher
        self._overviews = OverviewCache()
        self._interface = describe_interface()
        self._files = {
            each.name: (each.read_text(encoding="utf-8"), _TYPES[_get_suffix(each.name)])
            for each in files("chain.rpc.page").iterdir()
            if _get_suffix(each.name) in _TYPES
        }

    def routes(self) -> list[web.RouteDef]:
        """Return what is served here, but ``/`` itself."""
        return [
            web.get("/page/{name}", self.show_file),
            web.get("/api/overview", self.show_overview),
            web.get("/api/blocks/{height}", self.show_block),
            web.get("/api/transactions/{hash}", self.show_transaction),
            web.get("/api/interface", self.show_interface),
            web.get("/api/read/{contract}/{function}", self.show_read),
        ]

    def show_page(self) -> web.Response:
        """The page."""
        return self._respond("index.html")

    async def show_file(self, request: web.Request) -> web.Response:
        """One of the page's files."""
        name = request.match_info["name"]
        return self._respond(name) if name in self._files else to_json({"error": f"no file {name!r}"}, status=404)

    async def show_overview(self, request: web.Request) -> web.Response:
        """What changes with a block; ``?run=N`` chooses the run."""
        text = request.query.get("run", "")
        if text and not _is_number(text):
            return to_json({"error": f"run is {text[:40]!r}, expected a number"}, status=400)
        chosen = int(text) if text else None
        return await self._answer(request, lambda session: self._overviews.get(session, chosen))

    async def show_block(self, request: web.Request) -> web.Response:
        """One block."""
        text = request.match_info["height"]
        if not _is_number(text):
            return to_json({"error": f"height is {text[:40]!r}, expected a number"}, status=400)
        return await self._answer(
            request, lambda session: describe_block(session.snapshot, int(text)), f"no block {text}"
        )

    async def show_transaction(self, request: web.Request) -> web.Response:
        """One transaction."""
        text = request.match_info["hash"]

        def find(session: Session) -> Any:
            return find_transaction(session.snapshot, parse_data(text, "hash", num_bytes=32))

        return await self._answer(request, find, f"no transaction {text[:70]} was executed")

    async def show_interface(self, request: web.Request) -> web.Response:
        """The views that can be read."""
        return to_json(self._interface)

    async def show_read(self, request: web.Request) -> web.Response:
        """One view's answer."""
        contract, function = request.match_info["contract"], request.match_info["function"]
        arguments = dict(request.query)

        def read(session: Session) -> Any:
            answer = read_from_text(session, contract, function, arguments)
            return {"height": session.snapshot.height, "answer": answer}

        return await self._answer(request, read)

    async def _answer(self, request: web.Request, reading: Callable[[Session], Any], missing: str = "") -> web.Response:
        try:
            found = await self._dispatcher.read_for(get_peer(request.transport), reading)
        except (InvalidParams, CallFailed) as e:
            return to_json({"error": e.message}, status=400)
        except RpcFault as e:
            return to_json({"error": e.message}, status=503)
        if found is None:
            return to_json({"error": missing}, status=404)
        response = to_json(found)
        response.enable_compression()  # a run of 64 members is half a megabyte a block, a tenth of it compressed
        return response

    def _respond(self, name: str) -> web.Response:
        text, kind = self._files[name]
        headers = {
            "Content-Security-Policy": PAGE_POLICY,
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        return web.Response(text=text, content_type=kind, headers=headers)


def to_json(value: object, *, status: int = 200) -> web.Response:
    """Answer JSON that any page may read."""
    text = json.dumps(value, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json", headers=CORS)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_HEIGHT_DIGITS


def _get_suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""
