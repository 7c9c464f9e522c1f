"""JSON-RPC over HTTP to one of several URLs, with every byte counted at the socket.

Connections are kept alive and shared between threads.  A URL that fails is set aside for a while (doubling up
to a bound) and the next one is asked; which answer is one, ``client`` decides.  For https the counted bytes are
those inside TLS.

Invariant: an exchange is over by its deadline, whoever answers and however slowly: a look-up of the name that hangs
and bytes that drip count too.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MAX_ANSWER_BYTES = 64 << 20
"""Longest answer that is read; the largest honest one is a page of logs."""
_FIRST_BACKOFF_SECONDS = 0.5
_LAST_BACKOFF_SECONDS = 15.0
"""A URL that failed is asked again after 0.5 s, 1 s, ... 15 s, or at once when no other answers."""
_DOUBT_SECONDS = 60.0
"""For so long a URL whose error another one's answer belied comes after the others."""
_PASSING_STATUSES = (http.client.REQUEST_TIMEOUT, http.client.REQUEST_ENTITY_TOO_LARGE, http.client.TOO_MANY_REQUESTS)
"""Below 500, of a chain node that may answer the next request."""
LEAST_BYTES_PER_SECOND = 64 << 10
"""What an answer that takes longer than the time-out must bring: less is a drip, or a link for nobody."""
LONGEST_SECONDS = 60.0
"""For one exchange, whatever comes: at this speed a page of logs is whole, and no stranger holds a command longer."""
_MAX_IDLE_CONNECTIONS = 8
"""Kept alive per URL."""


class ByteCount:
    """Bytes that went over sockets, shared by threads."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0

    def add(self, sent: int, received: int) -> None:
        """Count some more."""
        with self._lock:
            self.sent += sent
            self.received += received


class _Patience:
    """How long one exchange may still take; bytes that come in time make it longer."""

    def __init__(self, seconds: float) -> None:
        """Begin now: so many seconds, and more for what comes."""
        self._started = time.monotonic()
        self._end = self._started + seconds
        self._last = self._started + max(seconds, LONGEST_SECONDS)

    def get_left(self) -> float:
        """Return the seconds that are left, more than none; raises TimeoutError."""
        now = time.monotonic()
        left = min(self._end, self._last) - now
        if left <= 0:
            raise TimeoutError(f"no whole answer within {now - self._started:.1f} s")
        return left

    def note(self, num_bytes: int) -> None:
        """Wait longer for what follows these."""
        self._end += num_bytes / LEAST_BYTES_PER_SECOND


class _CountingSocket(socket.socket):
    """A TCP socket that reports what passes through it, and begins no wait when its exchange has taken too long.

    The socket's own time-out bounds the last wait; to set it before each would be a system call each time.
    """

    count: ByteCount
    patience: _Patience

    def send(self, data: Any, flags: int = 0, /) -> int:
        self.patience.get_left()
        num_bytes = super().send(data, flags)
        self.count.add(num_bytes, 0)
        return num_bytes

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        self.patience.get_left()
        super().sendall(data, flags)
        self.count.add(len(memoryview(data).cast("B")), 0)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        self.patience.get_left()
        num_bytes = super().recv_into(buffer, nbytes, flags)
        self.count.add(0, num_bytes)
        self.patience.note(num_bytes)
        return num_bytes


class _CountingTlsSocket(ssl.SSLSocket):
    """The same inside TLS."""

    count: ByteCount
    patience: _Patience

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.patience.get_left()
        super().sendall(data, flags)
        self.count.add(len(memoryview(data).cast("B")), 0)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        self.patience.get_left()
        num_bytes = super().recv_into(buffer, nbytes, flags)
        self.count.add(0, num_bytes)
        self.patience.note(num_bytes)
        return num_bytes


class Refused(Exception):
    """This URL gave no usable answer."""


class Foreign(Refused):
    """What answered at this URL does not speak JSON-RPC."""


@dataclass(slots=True)
class Endpoint:
    """One URL and what is known of it."""

    url: str
    height: int = 0
    """Newest block that it told and was believed."""
    retry_at: float = 0.0
    """Monotonic seconds until which it is passed over."""
    backoff_seconds: float = _FIRST_BACKOFF_SECONDS
    doubted_until: float = 0.0
    """Monotonic seconds until which the others are asked before it."""
    idle: list[http.client.HTTPConnection] = field(default_factory=list)


class Transport:
    """Sends JSON-RPC bodies to URLs and keeps the order in which they are asked."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float) -> None:
        """Check the URLs; nothing is connected yet."""
        if not urls:
            raise ValueError("at least one chain URL is needed, got none")
        for url in urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ValueError(
                    f"chain URL {url!r} is no http(s)://host:port; next: write it as http://127.0.0.1:8545"
                )
        self.count = ByteCount()
        self.endpoints = [Endpoint(url) for url in urls]
        self._timeout_seconds = timeout_seconds
        self._preferred = 0
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None
        weakref.finalize(self, _close_idle, self.endpoints)

    def in_order(self) -> list[Endpoint]:
        """Return the URLs, best first: those that are set aside come last, before them those that are doubted."""
        with self._lock:
            start = self._preferred
            turned = self.endpoints[start:] + self.endpoints[:start]
        return sorted(turned, key=lambda endpoint: (not self.is_available(endpoint), self.is_doubted(endpoint)))

    def prefer(self, endpoint: Endpoint) -> None:
        """Ask this URL first from now on."""
        with self._lock:
            self._preferred = self.endpoints.index(endpoint)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            _close_idle(self.endpoints)

    def set_aside(self, endpoint: Endpoint) -> None:
        """Pass this URL over for a while."""
        with self._lock:
            endpoint.retry_at = time.monotonic() + endpoint.backoff_seconds
            endpoint.backoff_seconds = min(2 * endpoint.backoff_seconds, _LAST_BACKOFF_SECONDS)

    def accept(self, endpoint: Endpoint) -> None:
        """Note that a URL gave an answer that was asked for: it is set aside no more."""
        with self._lock:
            endpoint.backoff_seconds = _FIRST_BACKOFF_SECONDS
            endpoint.retry_at = 0.0

    def doubt(self, endpoint: Endpoint) -> None:
        """Ask the others before this URL for a while: it gave an error where another one had the answer."""
        with self._lock:
            endpoint.doubted_until = time.monotonic() + _DOUBT_SECONDS

    def is_doubted(self, endpoint: Endpoint) -> bool:
        """Say whether the others are asked before this URL at the moment."""
        return endpoint.doubted_until > time.monotonic()

    def is_available(self, endpoint: Endpoint) -> bool:
        """Say whether a URL is not set aside at the moment."""
        return endpoint.retry_at <= time.monotonic()

    def post(self, endpoint: Endpoint, body: Any) -> Any:
        """Send one body (a request, or a list of them) to one URL and return the parsed answer.

        Raises Refused where it gives none, and of it Foreign where it is another service.
        """
        payload = json.dumps(body).encode()
        patience = _Patience(self._timeout_seconds)
        while True:
            with self._lock:
                kept = endpoint.idle.pop() if endpoint.idle else None
            connection = kept if kept is not None else self._connection(endpoint.url)
            try:
                answer = self._exchange(connection, endpoint.url, payload, patience)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as e:
                connection.close()
                if kept is not None:
                    continue  # the server closed an idle connection: ask again on the next, at last on a new one
                raise Refused(str(e) or type(e).__name__) from e
            except Foreign:
                connection.close()
                raise
            except (OSError, http.client.HTTPException, ValueError) as e:
                connection.close()
                raise Refused(str(e) or type(e).__name__) from e
            with self._lock:
                is_kept = len(endpoint.idle) < _MAX_IDLE_CONNECTIONS and connection.sock is not None
                if is_kept:
                    endpoint.idle.append(connection)
            if not is_kept:
                connection.close()
            return answer

    def _exchange(self, connection: http.client.HTTPConnection, url: str, payload: bytes, patience: _Patience) -> Any:
        if connection.sock is None:
            connection.sock = self._connect(url, patience)
        assert isinstance(connection.sock, _CountingSocket | _CountingTlsSocket)
        connection.sock.patience = patience
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        connection.request("POST", urlsplit(url).path or "/", payload, headers)
        response = connection.getresponse()
        text = response.read(MAX_ANSWER_BYTES + 1)
        if len(text) > MAX_ANSWER_BYTES:
            raise ValueError(f"answer longer than {MAX_ANSWER_BYTES} bytes")
        if response.status != http.client.OK:
            shown = text[:200].decode(errors="replace").removeprefix(f"{response.status}").lstrip(": ")
            is_passing = response.status >= 500 or response.status in _PASSING_STATUSES
            raise (ValueError if is_passing else Foreign)(f"HTTP {response.status} {shown}".rstrip())
        try:
            answer = json.loads(text)
        except RecursionError as error:
            raise ValueError("answer nests too deeply to be read") from error
        except ValueError as error:
            raise Foreign(f"with what is no JSON: {text[:80]!r}") from error
        if not all(_is_answer(item) for item in _list(answer)):
            raise Foreign(f"with what is no JSON-RPC: {text[:80]!r}")
        return answer

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        return http.client.HTTPConnection(parts.netloc.rpartition("@")[2], timeout=self._timeout_seconds)

    def _connect(self, url: str, patience: _Patience) -> _CountingSocket | _CountingTlsSocket:
        parts = urlsplit(url)
        assert parts.hostname is not None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        last: OSError | None = None
        for family, kind, protocol, _, address in _look_up(parts.hostname, port, patience):
            connected = _CountingSocket(family, kind, protocol)
            connected.count = ByteCount() if parts.scheme == "https" else self.count
            connected.settimeout(patience.get_left())
            try:
                connected.connect(address)
                connected.settimeout(self._timeout_seconds)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._secured(connected, parts.hostname) if parts.scheme == "https" else connected
            except OSError as e:
                connected.close()
                last = e
        raise last if last is not None else OSError(f"{parts.hostname} has no address")

    def _secured(self, plain: _CountingSocket, hostname: str) -> _CountingTlsSocket:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
                self._tls.sslsocket_class = _CountingTlsSocket
            context = self._tls
        secured = context.wrap_socket(plain, server_hostname=hostname)
        assert isinstance(secured, _CountingTlsSocket)
        secured.count = self.count
        return secured


def _look_up(host: str, port: int, patience: _Patience) -> list[tuple[Any, ...]]:
    """Return a host's addresses; a look-up that hangs is left behind in its thread; raises OSError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # a name
    found: Future[list[tuple[Any, ...]]] = Future()

    def ask() -> None:
        try:
            found.set_result(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            found.set_exception(error if isinstance(error, OSError) else OSError(f"{host!r} is no host name"))

    left = patience.get_left()
    threading.Thread(target=ask, name="look-up", daemon=True).start()
    try:
        return found.result(left)
    except TimeoutError as error:
        raise TimeoutError(f"no address of {host} within {left:.1f} s") from error


def _is_answer(item: Any) -> bool:
    """Say whether a value has a result, or an error with code and message."""
    if not isinstance(item, dict):
        return False
    error = item.get("error")
    if error is None:
        return "result" in item
    return isinstance(error, dict) and type(error.get("code")) is int and isinstance(error.get("message"), str)


def _list(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def _close_idle(endpoints: Sequence[Endpoint]) -> None:
    for endpoint in endpoints:
        while endpoint.idle:
            endpoint.idle.pop().close()
