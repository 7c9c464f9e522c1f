"""What strangers write is shown, and moves no terminal and forges no line of a log."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest

from contracts.bindings.errors import (
    BadAnswer,
    ChainUnreachable,
    ContractError,
    DeadlinePassed,
    NotJsonRpc,
    RpcError,
    TransactionFailed,
)
from contracts.bindings.failures import describe_failure
from contracts.bindings.foreign_text import ForeignTextFormatter, show_foreign, show_lines
from da.core.errors import FaultKind
from da.core.types import Seat, ShardIndex
from da.seat_faults import fail

EVIL = "x\x1b[2J\x1b]0;owned\x07\r\n12:00:00 round 1: all is well\u202e\x9b31m\ud800"


def _is_clean(text: str) -> bool:
    return text.isprintable() and "\\x1b[2J" in text


def test_every_character_is_shown_or_escaped() -> None:
    assert show_foreign("plain [red] é …") == "plain [red] é …"
    assert _is_clean(show_foreign(EVIL))
    assert show_foreign(EVIL).encode()
    assert show_foreign("a" * 3_000) == "a" * 2_000 + "…"
    assert show_lines("one\n\ttwo\r\x1b") == "one\n\ttwo\\r\\x1b"


@pytest.mark.parametrize(
    "error",
    [
        RpcError(-1, EVIL),
        BadAnswer(EVIL, "http://node"),
        ContractError("Error", {"message": EVIL}, EVIL),
        TransactionFailed(bytes(32), 7, EVIL),
        DeadlinePassed(bytes(32), 1.0, EVIL),
        ChainUnreachable([("http://node", EVIL)]),
        NotJsonRpc([("http://node", EVIL)]),
        fail(Seat(index=ShardIndex(0), url="http://seat", key=bytes(32)), FaultKind.REFUSED, EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_with_a_strangers_words_is_one_clean_line(error: Exception) -> None:
    assert _is_clean(str(error)), str(error)
    assert [line.split(":")[0] for line in describe_failure(error).splitlines()] in (["error"], ["error", "next"])


def test_whatever_fails_no_control_character_is_printed() -> None:
    assert describe_failure(ValueError(f"two\nlines {EVIL}")).count("\n") == 2
    assert "\x1b" not in describe_failure(ValueError(EVIL))


def test_a_log_has_one_line_a_record() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(ForeignTextFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.Logger("foreign")
    logger.addHandler(handler)
    logger.warning("other members run %s", EVIL)
    assert out.getvalue().count("\n") == 1
    assert _is_clean(out.getvalue().rstrip("\n"))
    try:
        raise ValueError(EVIL)
    except ValueError:
        logger.exception("and that")
    assert "Traceback" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    "start", ["from chain.commands.options import configure_logging", "from training.commands import membership"]
)
def test_the_logs_of_processes_are_written_so(start: str) -> None:
    call = "configure_logging()" if "chain" in start else "membership._start_logging()"
    script = f"{start}\nimport logging\n{call}\nlogging.warning('other members run %s', {EVIL[:-1]!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    (line,) = done.stderr.splitlines()
    assert _is_clean(line)
