"""Each thing that doctor finds: made wrong on purpose, named with both values, and with what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lmdb
import pytest
from abci_driver import Driver
from typer.testing import CliRunner

from chain import store_file
from chain.abci.application import ChainApplication
from chain.cli import app
from chain.cometbft import Timing
from chain.doctor import (
    check_binary,
    check_database,
    check_disk,
    check_peers,
    check_ports,
    check_status,
    examine,
)
from chain.findings import Finding, Level
from chain.home import Addresses, HomeError, create_network, hold_home, load_app_height
from chain.ports import find_free_port
from chain.store import Reader, Store, StoreBroken
from chain.system import CONTRACTS, process_system_genesis

NOW = 1_800_000_000.0


@pytest.fixture
def home(tmp_path: Path, app_state: dict[str, Any]) -> Path:
    """The home of one validator, as init writes it."""
    made = tmp_path / "n"
    create_network(
        [made],
        chain_id="test-chain",
        app_state=app_state,
        addresses=[Addresses(rpc=f"127.0.0.1:{find_free_port()}", p2p=f"127.0.0.1:{find_free_port()}")],
        timing=Timing(),
        time=datetime.now(UTC),
    )
    return made


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Something that says CometBFT's version."""
    path = tmp_path / "cometbft"
    _write_binary(path, "0.38.25")
    return path


def _write_binary(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)


def _bad(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(each.subject, each.what, each.next_step) for each in findings if each.level is Level.PROBLEM]


def _examine(home: Path, binary: Path, rpc_listen: str = "127.0.0.1:0") -> list[Finding]:
    return examine(home, find_binary=lambda: binary, rpc_listen=rpc_listen, get_time=lambda: NOW)


def test_a_fresh_home_is_well(home: Path, binary: Path) -> None:
    findings = _examine(home, binary)
    assert _bad(findings) == []
    assert {each.subject for each in findings} >= {"home", "CometBFT", "keys", "disk", "database", "ports", "peers"}
    assert all(each.next_step for each in findings if each.level is not Level.OK)


def test_no_home(tmp_path: Path, binary: Path) -> None:
    (only,) = _bad(_examine(tmp_path / "nothing", binary))
    assert only[2] == f"`chain-node init --home {tmp_path}/nothing`"


def test_broken_genesis(home: Path, binary: Path) -> None:
    (home / "config" / "genesis.json").write_text("{")
    assert "genesis.json can't be read" in _bad(_examine(home, binary))[0][1]


def test_home_that_this_user_cannot_write(home: Path, binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chain.doctor.os.access", lambda path, mode: Path(path).name != "data")
    ((subject, what, _),) = _bad(_examine(home, binary))
    assert (subject, what) == ("home", f"not writable by this user: {home}/data")


def test_other_version_and_binary_that_does_not_run(binary: Path, tmp_path: Path) -> None:
    _write_binary(binary, "v1.0.1")
    assert "is version 'v1.0.1', expected 0.38.x" in _bad(list(check_binary(lambda: binary)))[0][1]
    binary.chmod(0o644)
    assert "can't be run" in _bad(list(check_binary(lambda: binary)))[0][1]


def test_keys_that_others_may_read_and_missing_keys(home: Path, binary: Path) -> None:
    (home / "config" / "priv_validator_key.json").chmod(0o640)
    (home / "config" / "node_key.json").unlink()
    found = _bad(_examine(home, binary))
    assert ("mode 0640, expected 0600" in found[0][1], found[0][2].startswith("chmod 600 ")) == (True, True)
    assert "node_key.json is missing" in found[1][1]


@pytest.mark.parametrize(
    ("free", "level"), [(100 << 20, Level.PROBLEM), (1 << 30, Level.WARNING), (50 << 30, Level.OK)]
)
def test_disk(free: int, level: Level, home: Path) -> None:
    (found,) = check_disk(home, free)
    assert found.level is level
    assert (level is Level.OK) != ("retain_blocks" in found.next_step)


def test_map_nearly_full_and_no_database(home: Path) -> None:
    assert [each.level for each in check_database(home)] == [Level.OK]
    store = Store(home / "app", map_bytes=1 << 20)
    _fill(store)
    store.close()
    (found,) = check_database(home)
    assert found.level is Level.PROBLEM
    assert "nearly full" in found.what
    (home / "app" / "data.mdb").write_bytes(b"nonsense" * 4096)
    (found,) = check_database(home)
    assert "can't be read" in found.what
    assert found.next_step.startswith(f"remove {home}/app: the blocks are replayed")
    assert "reset --state --server" in found.next_step, "where old blocks were pruned"


@pytest.mark.parametrize("size", [0, 4096, 8192, 8200, 50_000])
def test_a_database_whose_end_is_missing_is_named(home: Path, app_state: dict[str, Any], size: int) -> None:
    """Whoever maps such a file and reads beyond its end is killed by the kernel (SIGBUS)."""
    store = Store(home / "app")
    Driver(ChainApplication(store, CONTRACTS, process_system_genesis), app_state).init_chain()
    store.close()
    path = home / "app" / "data.mdb"
    whole = path.stat().st_size
    assert [each.level for each in check_database(home)] == [Level.OK]
    os.truncate(path, size)
    (found,) = check_database(home)
    if size == 0:
        assert found.what == "none yet: the first start makes it", "LMDB itself begins with an empty file"
        return
    assert f"has {size:,} bytes, expected {whole:,}" in found.what
    commands = (["start", "--rpc-listen", "127.0.0.1:0"], ["status"])
    for command in commands if size == 50_000 else ():
        environment = {**os.environ, "COMETBFT_BIN": sys.executable}
        ended = subprocess.run(
            [sys.executable, "-m", "chain.cli", *command, "--home", str(home)],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        assert ended.returncode == 1, "not by a signal"
        assert f"its end is missing\nnext:  remove {home}/app" in ended.stderr


def test_damage_anywhere_is_named_and_never_a_crash(home: Path, app_state: dict[str, Any]) -> None:
    """Each page in turn holds something else: it is not in use, or what reads it says so."""
    store = Store(home / "app")
    driver = Driver(ChainApplication(store, CONTRACTS, process_system_genesis), app_state)
    driver.init_chain()
    driver.block([])
    store.close()
    path = home / "app" / "data.mdb"
    whole = path.read_bytes()
    said: list[str] = []
    for start in range(2 * 4096, len(whole), 4096):
        path.write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
        try:
            with Reader(home / "app") as reader, reader.snapshot() as snapshot:
                assert snapshot.height == 1
                assert snapshot.genesis_info().chain_id == "test-chain"
                assert [each is not None for each in map(snapshot.block, range(2))] == [True, True]
                assert len(list(snapshot.iterate_entries())) > 10
        except StoreBroken as error:
            said.append(str(error))
    assert len(said) > 2
    assert all("MDB_" in each and "next: remove" in each for each in said)
    start = whole.rindex(b"a/")  # in a leaf of the state
    damaged = start // 4096 * 4096
    path.write_bytes(whole[:damaged] + b"\xff" * 4096 + whole[damaged + 4096 :])
    (found,) = check_database(home)
    assert found.level is Level.PROBLEM
    assert "pages of it are damaged" in found.what
    assert check_database_levels(home, is_running=True) == [Level.OK], "not while it is written"


@pytest.mark.parametrize("size", [None, 50_000], ids=["whole", "short"])
def test_a_disk_that_does_not_answer_is_named(
    home: Path, app_state: dict[str, Any], size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it may be short or is only looked at: nobody waits for ten minutes, or sees a traceback."""
    store = Store(home / "app")
    Driver(ChainApplication(store, CONTRACTS, process_system_genesis), app_state).init_chain()
    store.close()
    if size is not None:
        os.truncate(home / "app" / "data.mdb", size)
    monkeypatch.setattr(store_file, "_PROBE", "import time; time.sleep(100)")
    monkeypatch.setattr(store_file, "PROBE_SECONDS", 0.5)
    (found,) = check_database(home)
    assert found.level is Level.PROBLEM
    assert "was not read to its end within" in found.what
    assert "and start again when it answers" in found.next_step
    if size is not None:
        with pytest.raises(HomeError, match=r"was not read to its end within .*; next: see the system's log"):
            load_app_height(home)


def check_database_levels(home: Path, *, is_running: bool) -> list[Level]:
    return [each.level for each in check_database(home, is_running=is_running)]


def test_a_file_that_lacks_only_what_nobody_reads_is_whole(home: Path, app_state: dict[str, Any]) -> None:
    """LMDB doesn't write pages at the end that it has given back in the same transaction."""
    store = Store(home / "app")
    Driver(ChainApplication(store, CONTRACTS, process_system_genesis), app_state).init_chain()
    store._reading.abort()
    with store._env.begin(write=True) as transaction:
        for index in range(64):
            transaction.put(b"%d" % index, bytes(1000), db=store._databases[b"state"])
        for index in range(64):
            transaction.delete(b"%d" % index, db=store._databases[b"state"])
    last_page = store._env.info()["last_pgno"]
    store._begin_reading()
    store.close()
    assert (home / "app" / "data.mdb").stat().st_size < (last_page + 1) * 4096
    assert [each.level for each in check_database(home)] == [Level.OK]


def _fill(store: Store) -> None:
    environment = store._env
    database = store._databases[b"state"]
    index = 0
    while True:
        try:
            with environment.begin(write=True) as transaction:
                transaction.put(b"%d" % index, bytes(2_000), db=database)
        except lmdb.MapFullError:
            return
        index += 1


def _write_app(home: Path, app_state: dict[str, Any], num_blocks: int) -> None:
    store = Store(home / "app", map_bytes=16 << 20)
    driver = Driver(ChainApplication(store, CONTRACTS, process_system_genesis), app_state)
    driver.init_chain()
    for _ in range(num_blocks):
        driver.block([])
    store.close()


def test_wrong_chain_and_app_ahead(home: Path, binary: Path, app_state: dict[str, Any]) -> None:
    _write_app(home, app_state, 7)
    assert "app is at height 7, but CometBFT's" in _bad(_examine(home, binary))[0][1]
    (home / "data" / "blockstore.db").mkdir()
    ((subject, what, step),) = _bad(_examine(home, binary))
    assert (subject, "app is at height 7, CometBFT only at 0" in what) == ("app and core", True)
    assert "replayed from 1" in step
    genesis = home / "config" / "genesis.json"
    genesis.write_text(genesis.read_text().replace("test-chain", "other"))
    assert "app holds chain test-chain, genesis.json says other" in _bad(_examine(home, binary))[0][1]


def test_ports_in_use(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = _bad(list(check_ports(home, address)))
        assert found == [("ports", f"JSON-RPC {address} is in use", "stop what listens, or choose with --rpc-listen")]
        config = home / "config" / "config.toml"
        config.write_text(config.read_text().replace('persistent_peers = ""', f'persistent_peers = "x@{address}"'))
        text = config.read_text()
        rpc = text.split('laddr = "tcp://')[1].split('"')[0]
        config.write_text(text.replace(rpc, address))
        assert "is in use, and peers rely on it" in _bad(list(check_ports(home, "127.0.0.1:0")))[0][1]


def test_peers_that_cannot_be_reached(home: Path) -> None:
    config = home / "config" / "config.toml"
    original = config.read_text()
    dead = [f"x@127.0.0.1:{find_free_port()}" for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as alive:
        peers = [*dead, *[f"x@127.0.0.1:{alive.getsockname()[1]}"] * 4]
        for count, level in ((6, Level.WARNING), (3, Level.PROBLEM)):
            config.write_text(
                original.replace('persistent_peers = ""', f'persistent_peers = "{",".join(peers[:count])}"')
            )
            (found,) = check_peers(home, seconds=2.0)
            assert (found.level, f"2 of {count} can't be reached" in found.what) == (level, True)
            assert dead[0].partition("@")[2] in found.what


def _status(age_seconds: float, *, network: str = "test-chain", catching_up: bool = False) -> dict[str, Any]:
    moment = datetime.fromtimestamp(NOW, UTC) - timedelta(seconds=age_seconds)
    return {
        "node_info": {"network": network},
        "sync_info": {
            "latest_block_height": "9",
            "latest_block_time": moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z",
            "catching_up": catching_up,
        },
    }


@pytest.mark.parametrize(
    ("status", "subject", "words"),
    [
        (_status(45.0), "blocks", "9, is 45 s old: the chain stands still, or this clock is ahead"),
        (_status(-5.0), "clock", "it is 5.0 s behind the newest block, expected at most 1.0"),
        (_status(0.0, network="stranger"), "chain id", "the core follows stranger, genesis.json says test-chain"),
    ],
)
def test_running_node(status: dict[str, Any], subject: str, words: str, tmp_path: Path) -> None:
    ((found, what, step),) = _bad(list(check_status(status, "test-chain", NOW, tmp_path / "node.log")))
    assert (found, words in what, bool(step)) == (subject, True, True)


def test_running_and_well_or_catching_up(tmp_path: Path) -> None:
    assert _bad(list(check_status(_status(0.4), "test-chain", NOW, tmp_path))) == []
    levels = [each.level for each in check_status(_status(900, catching_up=True), "test-chain", NOW, tmp_path)]
    assert levels == [Level.OK, Level.WARNING, Level.OK]


def test_held_home_that_does_not_answer(home: Path, binary: Path) -> None:
    with hold_home(home):
        findings = _examine(home, binary)
    assert f"runs as process {os.getpid()}" in findings[0].what
    assert _bad(findings)[0][:2] == ("running", "CometBFT doesn't answer at any address")


def test_command_exits_by_what_it_finds(home: Path, binary: Path) -> None:
    command = ["doctor", "--home", str(home), "--rpc-listen", "127.0.0.1:0"]
    environment = {"COMETBFT_BIN": str(binary)}
    assert CliRunner().invoke(app, command, env=environment).exit_code == 0
    (home / "config" / "node_key.json").chmod(0o666)
    done = CliRunner().invoke(app, [*command, "--json"], env=environment)
    assert done.exit_code == 1
    wrong = [each for each in json.loads(done.stdout) if each["level"] == "problem"]
    assert [(each["subject"], each["next"]) for each in wrong] == [
        ("keys", f"chmod 600 {home}/config/node_key.json"),
    ]
    text = CliRunner().invoke(app, command, env=environment).stdout
    assert f"next: chmod 600 {home}/config/node_key.json" in text


BROKEN_FILES = (
    "app/data.mdb",
    "config/config.toml",
    "config/app.toml",
    "config/genesis.json",
    "config/priv_validator_key.json",
    "config/node_key.json",
    "data/priv_validator_state.json",
)


@pytest.mark.parametrize("junk", [bytes(range(128, 256)) * 64, b"[]", b"{}"], ids=["bytes", "list", "object"])
@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_file_that_holds_something_else_is_named(name: str, junk: bytes, home: Path, binary: Path) -> None:
    path = home / name
    if name == "config/app.toml" and not path.exists() and junk != b"[]":
        junk = b"\xff"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(junk)
    path.chmod(0o600)
    found = _bad(_examine(home, binary))
    named = path.parent.name + "/" + path.name if name != "app/data.mdb" else "/app can't be read"
    assert any(named in what or path.name in what for _, what, _ in found), found
    assert all(step for _, _, step in found)


@pytest.mark.parametrize("name", ["config/config.toml", "config/priv_validator_key.json", "config/node_key.json"])
def test_a_file_that_is_gone_is_named(name: str, home: Path, binary: Path) -> None:
    (home / name).unlink()
    assert _bad(_examine(home, binary))


def test_a_signing_state_that_is_gone_is_named_where_there_are_blocks(home: Path, binary: Path) -> None:
    """Without it the key may sign a height twice; it is not "CometBFT at 0, remove the application"."""
    (home / "data" / "priv_validator_state.json").unlink()
    assert not _bad(_examine(home, binary)), "nothing has been signed yet"
    (home / "data" / "blockstore.db").mkdir()
    found = _bad(_examine(home, binary))
    assert any("priv_validator_state.json" in what and "newest copy" in step for _, what, step in found), found
