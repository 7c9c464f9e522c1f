"""What an operator does at the command line, on a real validator: join, verify, register, leave."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chain.cli import app
from chain.home import load_addresses
from chain.joining import JoinFailed

pytestmark = pytest.mark.integration


def test_one_node_under_two_names_is_one_witness(devnet: Any, tmp_path: Path) -> None:
    addresses, _ = load_addresses(devnet.home)
    same = [f"http://{addresses.rpc}", f"http://{addresses.rpc.replace('127.0.0.1', 'localhost')}"]
    for second in (same[0], same[1]):
        arguments = ["join", "--server", same[0], "--server", second, "--home", str(tmp_path / "h")]
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, JoinFailed)
        assert "are one node" in str(result.exception)
        assert "one witness, not two; next: give the address of another node" in str(result.exception)
        assert not (tmp_path / "h").exists()
    result = CliRunner().invoke(app, ["join", "--server", same[0], "--home", str(tmp_path / "h")])
    assert result.exit_code == 0
    assert "one node alone vouches for that" in result.output


def test_json_rpc_where_cometbft_is_meant(devnet: Any, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["join", "--server", devnet.url, "--home", str(tmp_path / "h")])
    assert isinstance(result.exception, JoinFailed)
    assert re.search(
        r"is no CometBFT RPC.*next: give --server the port of CometBFT's RPC, 26657", str(result.exception)
    )
    assert not (tmp_path / "h").exists()
