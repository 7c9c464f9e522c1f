"""What a worker waits for before it joins: the chain's answers and its own money, both with one patience (case 27)."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.bindings.errors import ChainUnreachable, NotJsonRpc
from contracts.bindings.keys import address_of
from contracts.bindings.readers import TrainingReader
from contracts.bindings.types import RunState
from training.worker.asking import Interrupted, ask_patiently
from training.worker.errors import ChainSilent, NotFunded, WrongRun
from training.worker.loop import LoopEnd, Patience
from training.worker.process import JoinConfig, _wait_for_money, has_been_there, join_and_train

NOWHERE = "http://127.0.0.1:1"
"""Nothing listens on port 1."""


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("asking", "process"):
        monkeypatch.setattr(f"training.worker.{module}.RETRY_SECONDS", 0.01)


def make_config(home: Path, seconds: float) -> JoinConfig:
    return JoinConfig(
        chain_urls=(NOWHERE,),
        run=1,
        private_key=bytes(31) + b"\x01",
        home=home,
        data_file=None,
        num_threads=0,
        device="cpu",
        evaluation_interval=0,
        patience=Patience(chain_seconds=seconds, idle_seconds=1),
    )


def test_a_question_is_asked_until_it_is_answered() -> None:
    answers: list[Any] = [ChainUnreachable([("url", "down")]), ChainUnreachable([("url", "down")]), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    assert ask_patiently(ask, 5.0, threading.Event()) == 7


def test_a_stop_and_the_end_of_patience_are_told_apart() -> None:
    def ask() -> int:
        raise ChainUnreachable([("url", "down")])

    stop = threading.Event()
    with pytest.raises(ChainSilent, match="down"):
        ask_patiently(ask, 0.05, stop)
    stop.set()
    with pytest.raises(Interrupted):
        ask_patiently(ask, 60.0, stop)


def test_join_gives_up_on_a_silent_chain_after_its_patience(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ChainSilent, match=NOWHERE) as raised:
        join_and_train(make_config(tmp_path / "home", 0.2), threading.Event())
    assert time.monotonic() - began < 10
    assert raised.value.exit_code == 3
    assert "--chain" in raised.value.next_step


def test_a_chain_that_was_never_reached_is_not_waited_for_as_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped --chain is said within a minute, not an hour; a worker that was there waits on."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    config = make_config(tmp_path / "home", 3600.0)
    assert Patience().first_contact_seconds == 60
    config = replace(config, patience=replace(config.patience, first_contact_seconds=0.1))
    for home in (config.home, None):
        with pytest.raises(ChainSilent, match=NOWHERE) as raised:
            join_and_train(replace(config, home=home), threading.Event())
        assert "--first-patience" in raised.value.next_step
    address = address_of(config.private_key)
    own, default = tmp_path / "home", tmp_path / ".archipelago" / "chain-00112233" / "run-1" / address.lower()
    for folder, home in ((own, own), (default, None)):
        assert not has_been_there(replace(config, home=home), address)
        folder.mkdir(parents=True)
        (folder / "journal.json").write_text("{}")
        assert has_been_there(replace(config, home=home), address)
        stop = threading.Event()
        timer = threading.Timer(0.5, stop.set)
        timer.start()
        began = time.monotonic()
        assert join_and_train(replace(config, home=home), stop).end is LoopEnd.STOPPED
        assert time.monotonic() - began >= 0.4, "it waited until it was stopped"
        timer.join()


def test_join_without_money_gives_up_after_its_patience(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    with (
        caplog.at_level("WARNING", logger="trainer"),
        pytest.raises(NotFunded, match="holds 0 tokens on chain id 7") as raised,
    ):
        _wait_for_money(
            lambda: (0, 10**18), make_config(tmp_path, 0.2), "0xabc", threading.Event(), where="on chain id 7"
        )
    assert 0.2 <= time.monotonic() - began < 5
    assert raised.value.exit_code == 3
    assert "localnet fund 0xabc" in raised.value.next_step
    assert caplog.text.count("waiting up to") == 1


def test_money_that_comes_is_noticed(tmp_path: Path) -> None:
    balances = [0, 0, 10**18]
    _wait_for_money(lambda: (balances.pop(0), 10**18), make_config(tmp_path, 60.0), "0xabc", threading.Event())
    assert not balances


def test_a_stop_while_money_is_waited_for_ends_in_order(tmp_path: Path) -> None:
    stop = threading.Event()

    def read() -> tuple[int, int]:
        stop.set()
        return 0, 1

    with pytest.raises(Interrupted):
        _wait_for_money(read, make_config(tmp_path, 60.0), "0xabc", stop)


def test_a_stop_while_the_chain_is_away_ends_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    stop.set()
    with caplog.at_level("INFO", logger="trainer"):
        summary = join_and_train(make_config(tmp_path / "home", 60.0), stop)
    assert (summary.end, summary.is_member) == (LoopEnd.STOPPED, None)
    assert "stopped; the chain gives no answer: nothing was sent to it after the stop" in caplog.text


@pytest.fixture
def other_service() -> Iterator[str]:
    """Some other HTTP service, as a person may name it by mistake."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = {"/": b"405: Method Not Allowed", "/json": b'{"detail": 1}', "/text": b"<html>"}.get(self.path, b"")
            self.send_response({"/": 405, "/busy": 503}.get(self.path, 200))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize(
    ("path", "answer"), [("/", r"HTTP 405 Method Not"), ("/json", "no JSON-RPC"), ("/text", "no JSON")]
)
def test_another_service_than_a_chain_is_said_at_once(
    tmp_path: Path, other_service: str, path: str, answer: str
) -> None:
    config = replace(make_config(tmp_path / "home", 60.0), chain_urls=(other_service + path,))
    began = time.monotonic()
    with pytest.raises(NotJsonRpc, match=f"{other_service}{path} answered .*{answer}.*; next: .*--chain"):
        join_and_train(config, threading.Event())
    assert not (tmp_path / "home").exists()
    assert time.monotonic() - began < 5


def test_a_busy_gateway_is_waited_for(tmp_path: Path, other_service: str) -> None:
    config = replace(make_config(tmp_path / "home", 0.2), chain_urls=(other_service + "/busy",))
    with pytest.raises(ChainSilent, match="HTTP 503"):
        join_and_train(config, threading.Event())


def test_a_long_wait_is_said_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def ask() -> int:
        raise NotJsonRpc([("url", "another service")])  # after the first contact: a proxy whose node is away

    monkeypatch.setattr("training.worker.asking.SAY_AGAIN_SECONDS", 0.05)
    with caplog.at_level("WARNING", logger="trainer"), pytest.raises(ChainSilent):
        ask_patiently(ask, 0.4, threading.Event())
    assert 3 <= caplog.text.count("waiting up to") <= 9


def test_a_wait_that_is_over_is_not_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second line, a minute after the first, came when the patience of a minute had ended."""

    def ask() -> int:
        raise ChainUnreachable([("url", "down")])

    monkeypatch.setattr("training.worker.asking.RETRY_SECONDS", 0.5)
    monkeypatch.setattr("training.worker.asking.SAY_AGAIN_SECONDS", 0.6)
    with caplog.at_level("WARNING", logger="trainer"), pytest.raises(ChainSilent):
        ask_patiently(ask, 0.8, threading.Event())
    assert "waiting up to 1 s" in caplog.text
    assert "waiting up to 0 s" not in caplog.text


def test_a_run_that_is_not_there_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingReader, "run", lambda _, run: SimpleNamespace(run=run, state=RunState.NONE))
    with pytest.raises(WrongRun, match="there is no run 1"):
        join_and_train(make_config(tmp_path / "home", 60.0), threading.Event())
    assert list(tmp_path.iterdir()) == []
