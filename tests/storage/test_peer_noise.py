"""A peer can't fill the log with tracebacks, and a defect of ours still shows one."""

from __future__ import annotations

import logging
import sys

import pytest
from aiohttp.http_exceptions import LineTooLong

from storage.node.peer_noise import MAX_CHARACTERS, PeerNoise


def make_record(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:  # noqa: BLE001
        return logging.LogRecord("aiohttp.server", logging.ERROR, "f", 1, "request from %s", ("peer",), sys.exc_info())


@pytest.mark.parametrize("error", [LineTooLong(b"a\n" * 10_000, 8190), ConnectionResetError("closing transport")])
def test_a_peers_fault_is_one_line(error: Exception) -> None:
    record = make_record(error)
    assert PeerNoise().filter(record)
    text = logging.Formatter().format(record)
    assert text.startswith("request from peer: ")
    assert "\n" not in text
    assert len(text) < MAX_CHARACTERS + 50
    assert record.levelno == logging.INFO


def test_a_defect_has_its_traceback() -> None:
    record = make_record(RuntimeError("ours"))
    assert PeerNoise().filter(record)
    assert "Traceback" in logging.Formatter().format(record)
