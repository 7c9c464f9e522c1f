"""A store that lies: it has a seat, a key and an address, signs for whatever it is given, and then does as it pleases.

Over real sockets, in threads of the test's process. ``habit`` says how it answers; it may change at any time.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from da.core.blob import encode_header
from da.core.errors import Malformed
from da.core.types import BlobId
from da.protocol import BLOB_HEADER_FIELD, PutRequest, decode_put, encode_receipt
from storage.node.inventory import INVENTORY_PATH, PAGE_BLOBS
from storage.node.keys import ReceiptKey

STALL_SECONDS = 60.0
"""Longer than any deadline of a client, and an end all the same."""

DRIP_SECONDS = 0.02
"""Between two bytes."""

ENDLESS_BYTES = 1 << 30


class Habit(StrEnum):
    """How it answers a GET."""

    FORGET = "forget"
    """It signed, and knows of nothing."""
    OTHER_BYTES = "other bytes"
    """The right length."""
    ANOTHER_BLOB = "another blob"
    """What was right for something else that it was given: an old shard under a new name."""
    CUT = "cut"
    """Half of it, and the connection ends."""
    STALL = "stall"
    """The first byte, and nothing more."""
    DRIP = "drip"
    """One byte after the other."""
    ENDLESS = "endless"
    """More than was asked for, for ever."""
    JUNK = "junk"
    """No HTTP at all."""


class LyingStore:
    """Serves until ``close``."""

    def __init__(self, key: ReceiptKey, *, genesis_hash: bytes, habit: Habit, port: int = 0, seed: int = 0) -> None:
        """Listen; ``key`` signs every receipt."""
        self.key = key
        self.habit = habit
        self.signs_wrongly = False
        """Its receipts are over other terms than those that it was asked for."""
        self.lists_inventions = True
        """Its inventory never ends, and names blobs that nobody has."""
        self.asked: Counter[str] = Counter()
        """Requests by what they wanted."""
        self._genesis_hash = genesis_hash
        self._chance = random.Random(seed)
        self._given: dict[BlobId, tuple[PutRequest, bytes]] = {}
        self._closed = threading.Event()
        self._sockets: set[Any] = set()
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = STALL_SECONDS

            def setup(self) -> None:
                super().setup()
                liar._sockets.add(self.connection)

            def finish(self) -> None:
                liar._sockets.discard(self.connection)
                with suppress(OSError):
                    super().finish()

            def do_PUT(self) -> None:
                with suppress(OSError):
                    liar._take(self)

            def do_GET(self) -> None:
                with suppress(OSError):
                    liar._answer(self)

            def log_message(self, *_: Any) -> None:
                """Stay quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """Clients that go away are nothing to speak of."""

        self._server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut every connection and give the port back."""
        self._closed.set()
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()
        for connection in list(self._sockets):
            with suppress(OSError):
                connection.shutdown(2)

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked["put"] += 1
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        parts, url = handler.path.split("/"), urlsplit(handler.path)
        try:
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            put = decode_put(
                blob=parts[3], seat=parts[5].split("?")[0], query=query, header=handler.headers.get(BLOB_HEADER_FIELD)
            )
        except (Malformed, IndexError):  # a batch, say
            self._send(handler, 400, b"{}")
            return
        self._given[put.blob] = (put, body)
        genesis_hash = bytes(32) if self.signs_wrongly else self._genesis_hash
        self._send(handler, 200, encode_receipt(self.key.sign_receipt(put.terms(genesis_hash), put.seat)))

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        what = path.rpartition("/")[2] if not path.startswith("/v1/blobs/") or path.count("/") == 4 else "shard"
        self.asked["leaves" if "/leaves" in path else what] += 1
        if path == INVENTORY_PATH and self.lists_inventions:
            after = parse_qs(urlsplit(handler.path).query).get("after", [""])[0]
            start = 1 + int.from_bytes(bytes.fromhex(after), "big")
            self._send(handler, 200, b"".join((start + step).to_bytes(32, "big") for step in range(PAGE_BLOBS)))
            return
        self._send_as_usual(handler, self._make_right_answer(path))

    def _make_right_answer(self, path: str) -> bytes | None:
        """Return what an honest store would say, as far as it was given; something of that kind otherwise."""
        parts = path.split("/")
        try:
            put, body = self._given[BlobId(bytes.fromhex(parts[3]))]
        except (KeyError, IndexError, ValueError):
            return None
        if parts[-1] == "header":
            return encode_header(put.header)
        return body if len(parts) == 6 else body[:3_000]

    def _send_as_usual(self, handler: BaseHTTPRequestHandler, right: bytes | None) -> None:
        habit = self.habit
        if habit is Habit.FORGET:
            self._send(handler, 404, b'{"error": "UnknownBlob", "message": "never heard of it"}')
            return
        if habit is Habit.JUNK:
            handler.connection.sendall(self._chance.randbytes(2_000))
            handler.close_connection = True
            return
        right = right if right is not None else bytes(5_000)
        if habit is Habit.OTHER_BYTES:
            self._send(handler, 200, self._chance.randbytes(len(right)))
        elif habit is Habit.ANOTHER_BLOB:
            others = [body for _, body in list(self._given.values()) if body != right] or [bytes(len(right))]
            self._send(handler, 200, (self._chance.choice(others) + bytes(len(right)))[: len(right)])
        else:
            self._send_slowly(handler, habit, right)

    def _send_slowly(self, handler: BaseHTTPRequestHandler, habit: Habit, right: bytes) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Length", str(ENDLESS_BYTES if habit is Habit.ENDLESS else len(right)))
        handler.end_headers()
        if habit is Habit.CUT:
            handler.wfile.write(right[: len(right) // 2])
        elif habit is Habit.STALL:
            handler.wfile.write(right[:1])
            self._closed.wait(STALL_SECONDS)
        elif habit is Habit.DRIP:
            for at in range(len(right)):
                handler.wfile.write(right[at : at + 1])
                if self._closed.wait(DRIP_SECONDS):
                    return
        else:
            until, block = time.monotonic() + STALL_SECONDS, self._chance.randbytes(1 << 16)
            while not self._closed.is_set() and time.monotonic() < until:
                handler.wfile.write(block)

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
