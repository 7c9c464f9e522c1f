"""A command that is told no chain asks the devnet that runs here, also where it got another port."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.bindings.devnet import DEVNET_RECORD, find_devnet
from localnet.core.config import DEFAULT_HOME, RECORD_NAME
from localnet.process import ProcessId, get_own_id
from localnet.record import DevnetRecord, Phase, save_record
from storage.cli import app as storage
from training.cli import app as trainer

PORT_OF_NOBODY = "http://127.0.0.1:1"


def make_record(home: Path) -> DevnetRecord:
    home.mkdir(parents=True)
    record = DevnetRecord(
        home=str(home),
        phase=Phase.READY,
        supervisor=get_own_id(),
        processes=(),
        chain_id="archipelago-00000001",
        rpc_urls=(PORT_OF_NOBODY,),
        public_urls=(),
        storage_urls=(),
        faucet_key="",
    )
    save_record(record)
    return record


@pytest.mark.parametrize("command", ["storage", "trainer"])
def test_the_devnet_here_is_asked_unless_another_chain_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARCHIPELAGO_CHAIN", raising=False)
    make_record(tmp_path / ".cache" / "devnet")
    app, arguments = (storage, ["stat", "00" * 32]) if command == "storage" else (trainer, ["run", "list"])

    def ask(*more: str) -> str:
        result = CliRunner().invoke(app, [*arguments, *more])
        return result.output + result.stderr + str(result.exception)

    seen = ask()
    assert f"chain: {PORT_OF_NOBODY}, the devnet in .cache/devnet" in seen
    assert f"({PORT_OF_NOBODY}: " in seen
    assert PORT_OF_NOBODY + "," not in ask("--chain", "http://127.0.0.1:2")
    monkeypatch.setenv("ARCHIPELAGO_CHAIN", "http://127.0.0.1:3")
    assert "http://127.0.0.1:3" in ask()


def test_only_a_devnet_that_runs_is_found(tmp_path: Path) -> None:
    assert str(DEVNET_RECORD) == f"{DEFAULT_HOME}/{RECORD_NAME}"
    path = tmp_path / "home" / RECORD_NAME
    assert find_devnet(path) == []
    record = make_record(path.parent)
    assert find_devnet(path) == [PORT_OF_NOBODY]
    save_record(replace(record, supervisor=ProcessId(pid=get_own_id().pid, started=1.0)))
    assert find_devnet(path) == []
    path.write_text("[]")
    assert find_devnet(path) == []
