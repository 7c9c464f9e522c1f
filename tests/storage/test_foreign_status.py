"""``storage-node status`` asks whoever is named: drips, other protocols, other shapes, words that are code."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from storage import foreign_status, node_cli

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"

STATUS = {
    "node": {"url": "http://a:1", "address": None, "key": "ab", "registration": "registered"},
    "chain": {"height": 7, "is_reachable": True, "seats": {"3": [0, 2]}},
    "space": {"used_bytes": 5, "capacity_bytes": 10, "num_shards": 1, "free_disk_bytes": 9},
    "disk": {"failures": 0, "last_failure": None, "last_seconds_ago": None},
    "tiers": [{"name": "hot", "used_bytes": 5}],
    "repair": {"rebuilt": 0, "failed": 0, "losses": 0},
    "audits": {"leaves_good": 0, "leaves_failed": 0, "liars_named": 0},
    "income": {"earned_wei": None, "bond_wei": None, "num_faults": None},
}


@contextmanager
def serve(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Let a stranger listen who answers one connection."""

    def run() -> None:
        sock, _ = listener.accept()
        with sock:
            try:
                answer(sock)
            except OSError:
                return  # the client has gone

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def ask(url: str, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(node_cli.app, ["status", "--url", url, *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("part", ["head", "body"])
def test_bytes_that_drip_do_not_hold_it(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_status, "STATUS_SECONDS", 1.0)
    is_over = threading.Event()

    def drip(sock: socket.socket) -> None:
        sock.sendall(HEAD if part == "body" else b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not is_over.wait(0.2):
            sock.sendall(b" ")

    with serve(drip) as url:
        threading.Timer(20, is_over.set).start()  # without a deadline the answer ends here, and not the test
        since = time.monotonic()
        code, output = ask(url)
        took = time.monotonic() - since
        is_over.set()
    assert code == node_cli.NOT_REACHED
    assert "no whole answer within 1.0 s" in output
    assert took < 15


def test_another_protocol_is_named() -> None:
    with serve(lambda sock: sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as url:
        code, output = ask(url)
    assert code == node_cli.NOT_REACHED
    assert "what answers there speaks no HTTP" in output


@pytest.mark.parametrize("url", ["file:///dev/zero", "ftp://127.0.0.1/x", "127.0.0.1:9001"])
def test_only_http_is_asked(url: str) -> None:
    code, output = ask(url)
    assert code == node_cli.NOT_REACHED
    assert "expected http://HOST:PORT" in output


def answer_with(value: object) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(HEAD + json.dumps(value).encode())

    return answer


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (part, value)
        for part in sorted(STATUS)
        for value in (None, 5, "x", [], {}, [5])
        if part != "tiers" or value  # no tiers are no other shape
    ]
    + [("tiers", None)],
)
def test_a_status_of_another_shape_is_refused(part: str, value: object) -> None:
    with serve(answer_with({**STATUS, part: value})) as url:
        code, output = ask(url)
    assert code == node_cli.NOT_REACHED
    assert foreign_status.NO_NODE in output


def test_what_a_stranger_wrote_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    node = {"url": "[/nothing] \x1b]0;mine\x07", "address": "[bold]", "key": "ab", "registration": None}
    with serve(answer_with({**STATUS, "node": node})) as url:
        code, output = ask(url)
    assert code == 0
    assert r"[/nothing] \x1b]0;mine\x07" in output
    assert "[bold]" in output
    assert "\x1b" not in output
