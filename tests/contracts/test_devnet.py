"""A command that is told no chain asks the devnet that runs here, also where it got another port."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from contracts.bindings.devnet import CHAIN_VARIABLE, DEFAULT_CHAINS, DEVNET_RECORD, find_devnet
from contracts.bindings.keys import create_key
from localnet.core.config import DEFAULT_HOME, RECORD_NAME
from localnet.process import ProcessId, get_own_id
from localnet.record import DevnetRecord, Phase, save_record
from storage.cli import app as storage
from storage.node_cli import app as storage_node
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


def _find_chain_options() -> Iterator[tuple[str, Any]]:
    """Yield each command of ours that has --chain, and the option."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        for child, each in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {child}", each)
        yield from ((name, option) for option in command.params if "--chain" in option.opts)

    for program in ("chain.cli", "da.cli", "localnet.cli", "storage.cli", "storage.node_cli", "training.cli"):
        yield from walk(program, typer.main.get_command(importlib.import_module(program).app))


def test_every_command_takes_its_chain_in_the_same_way() -> None:
    """By option, by the variable, or the devnet that runs here; whichever program it belongs to."""
    found = dict(_find_chain_options())
    assert {"storage.node_cli retire", "storage.cli put", "training.cli join", "chain.cli verify"} <= found.keys()
    for name, option in found.items():
        taken = (option.envvar, option.required, option.default, option.multiple)
        assert taken == (CHAIN_VARIABLE, False, DEFAULT_CHAINS, True), name
        assert option.callback is not None, f"{name} looks for no devnet"
        assert "Without it the devnet that runs here" in " ".join(option.help.split()), name


def test_a_store_retires_on_the_chain_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHAIN_VARIABLE, "http://127.0.0.1:3")
    create_key(tmp_path / "store.key")
    result = CliRunner().invoke(storage_node, ["retire", "--key-file", str(tmp_path / "store.key")])
    assert result.exit_code == 1
    assert "http://127.0.0.1:3" in result.output + result.stderr
