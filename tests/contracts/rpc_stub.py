"""A chain node's RPC as tests make it: an honest one, or what a liar sends."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stub:
    """A node that answers what it is told to."""

    def __init__(self, *, height: int = 100, chain_id: int = 7, history: int = 1) -> None:
        self.height, self.chain_id, self.history = height, chain_id, history
        self.told: int | None = None
        """In place of the height, what it says that its newest block is."""
        self.forged = False
        """Whether it shows blocks that nobody made up to what it says."""
        self.errors: dict[str, dict[str, Any]] = {}
        """Methods that it answers with an error -> the error."""
        self.asked: list[str] = []
        self.status = 200
        self.text: bytes | None = None
        self.num_requests = 0
        self.num_bytes = 0
        self.pieces_bytes, self.pause_seconds = 1 << 30, 0.0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stub.num_requests += 1
                text = stub.text if stub.text is not None else json.dumps(stub.answer(json.loads(body))).encode()
                self.send_response(stub.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                for start in range(0, len(text), stub.pieces_bytes):
                    self.wfile.write(text[start : start + stub.pieces_bytes])
                    time.sleep(stub.pause_seconds)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, body: Any) -> Any:
        if isinstance(body, list):
            return [self.answer(each) for each in body]
        self.asked.append(body["method"])
        told = self.height if self.told is None else self.told
        results = {"eth_blockNumber": hex(told), "eth_chainId": hex(self.chain_id), "eth_getBalance": "0x5"}
        if body["method"] in self.errors:
            return {"jsonrpc": "2.0", "id": body["id"], "error": self.errors[body["method"]]}
        if body["method"] == "eth_getBlockByNumber":
            is_newest = body["params"][0] == "latest"
            height = told if is_newest else int(body["params"][0], 16)
            is_there = is_newest or height <= (told if self.forged else self.height)
            return {"jsonrpc": "2.0", "id": body["id"], "result": self.block(height) if is_there else None}
        if body["method"] in results:
            return {"jsonrpc": "2.0", "id": body["id"], "result": results[body["method"]]}
        return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "no such method"}}

    def block(self, height: int) -> dict[str, str]:
        prefix = f"0x{self.history:032x}"
        return {"number": hex(height), "hash": f"{prefix}{height:032x}", "parentHash": f"{prefix}{height - 1:032x}"}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


INTERNAL = {"code": -32000, "message": "internal"}


ADDRESS = "0x" + "00" * 20
