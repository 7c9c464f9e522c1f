"""A server that tells a joining node of its chain is a stranger: what it says goes into files and to a terminal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chain.cli import app
from chain.joining import JoinFailed
from chain.light_client import SourceFailed, _post

EVIL = 'x\x1b[2J"\n[rpc]\nladdr = "tcp://0.0.0.0:1'


class Stranger:
    """Answers like CometBFT's RPC, with what the test puts into it."""

    def __init__(self) -> None:
        self.node_id: Any = "ab" * 20
        self.listen = "tcp://0.0.0.0:26656"
        self.hash: Any = "CD" * 32
        self.whole: Any = None
        stranger = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(stranger.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> Any:
        if self.whole is not None:
            return self.whole
        if path.startswith("/status"):
            about = {"id": self.node_id, "listen_addr": self.listen}
            return {"result": {"node_info": about, "sync_info": {"latest_block_height": "9"}}}
        if path.startswith("/genesis"):
            return {"result": {"genesis": {"chain_id": "a\x1b[2J"}}}
        return {"result": {"signed_header": {"commit": {"block_id": {"hash": self.hash}}}}}


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    found = Stranger()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("node_id", EVIL), ("listen", f"tcp://{EVIL}:1"), ("hash", EVIL), ("hash", None), ("whole", {"error": EVIL})],
)
def test_invalid_words_of_a_server_reach_no_file_and_no_terminal(
    stranger: Stranger, tmp_path: Path, field: str, value: Any
) -> None:
    setattr(stranger, field, value)
    home = tmp_path / "home"
    result = CliRunner().invoke(app, ["join", "--server", stranger.url, "--home", str(home)])
    assert isinstance(result.exception, JoinFailed), result.exception
    assert str(result.exception).isprintable()
    assert "; next: name another --server" in str(result.exception)
    assert not home.exists()


def test_what_a_source_answers_is_one_line(stranger: Stranger) -> None:
    stranger.whole = {"error": {"code": -1, "message": EVIL}}
    with pytest.raises(SourceFailed) as caught:
        _post(stranger.url, "anything", {})
    assert str(caught.value).isprintable()
    assert "x\\x1b[2J" in str(caught.value)
