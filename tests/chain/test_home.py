"""Files of a node, and the command line around them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chain import home as module
from chain.cli import app
from chain.cometbft import SIGNED_NAME, CometBftMissing, StateSyncSource, Timing, find_cometbft, load_signed_height
from chain.core.errors import InvalidGenesis
from chain.documents import BrokenFile
from chain.home import (
    Addresses,
    HomeExists,
    HomeMissing,
    NodeRuns,
    compute_evm_chain_id,
    create_network,
    hold_home,
    load_addresses,
)
from chain.resetting import NowhereElse, ValidatorsReset, reset_home, reset_state
from chain.settings import InvalidSettings

ROOT = Path(__file__).parents[2]


def _create(tmp_path: Path, num_validators: int) -> list[Path]:
    homes = [tmp_path / f"v{index}" for index in range(num_validators)]
    create_network(
        homes,
        chain_id="net",
        app_state={"evmChainId": 5},
        addresses=[Addresses(rpc=f"127.0.0.1:{1000 + i}", p2p=f"127.0.0.1:{2000 + i}") for i in range(num_validators)],
        timing=Timing(),
        time=datetime(2026, 1, 2, tzinfo=UTC),
    )
    return homes


def test_network_shares_genesis_and_names_its_peers(tmp_path: Path) -> None:
    homes = _create(tmp_path, 3)
    texts = {(home / "config" / "genesis.json").read_text() for home in homes}
    assert len(texts) == 1
    genesis = json.loads(texts.pop())
    assert (genesis["chain_id"], genesis["app_state"]) == ("net", {"evmChainId": 5})
    assert genesis["genesis_time"] == "2026-01-02T00:00:00.000000Z"
    assert len({validator["address"] for validator in genesis["validators"]}) == 3
    for index, home in enumerate(homes):
        config = tomllib.loads((home / "config" / "config.toml").read_text())
        peers = config["p2p"]["persistent_peers"].split(",")
        assert len(peers) == 2
        assert not any(peer.endswith(f":{2000 + index}") for peer in peers)
        assert config["mempool"]["recheck"] is False
        assert config["consensus"]["create_empty_blocks"] is True
        addresses, has_peers = load_addresses(home)
        assert (addresses.rpc, has_peers) == (f"127.0.0.1:{1000 + index}", True)
        key = json.loads((home / "config" / "priv_validator_key.json").read_text())
        public = base64.b64decode(key["pub_key"]["value"])
        assert key["address"] == hashlib.sha256(public).hexdigest()[:40].upper()
        assert base64.b64decode(key["priv_key"]["value"])[32:] == public
        for name in ("priv_validator_key.json", "node_key.json"):
            assert (home / "config" / name).stat().st_mode & 0o777 == 0o600


def test_existing_home_is_kept(tmp_path: Path) -> None:
    _create(tmp_path, 1)
    before = (tmp_path / "v0" / "config" / "priv_validator_key.json").read_text()
    with pytest.raises(HomeExists, match="belongs to chain net already"):
        _create(tmp_path, 1)
    assert (tmp_path / "v0" / "config" / "priv_validator_key.json").read_text() == before


def test_reset_starts_another_chain_with_the_same_keys(tmp_path: Path) -> None:
    (home,) = _create(tmp_path, 1)
    key = (home / "config" / "priv_validator_key.json").read_text()
    genesis = module.load_genesis(home)
    genesis["app_state"]["evmChainId"] = compute_evm_chain_id("net")
    (home / "config" / "genesis.json").write_text(json.dumps(genesis))
    (home / "app").mkdir()
    (home / "data" / "blockstore.db").mkdir()
    reset_home(home, chain_id="next", time=datetime.now(UTC))
    renewed = module.load_genesis(home)
    assert renewed["chain_id"] == "next"
    assert renewed["app_state"]["evmChainId"] == compute_evm_chain_id("next") != compute_evm_chain_id("net")
    assert [entry["address"] for entry in renewed["validators"]] == [genesis["validators"][0]["address"]]
    assert (home / "config" / "priv_validator_key.json").read_text() == key
    assert not (home / "app").exists()
    assert [path.name for path in (home / "data").iterdir()] == ["priv_validator_state.json"]


def test_reset_of_the_state_keeps_what_the_key_has_signed(tmp_path: Path) -> None:
    home = _create(tmp_path, 4)[0]
    (home / "data" / SIGNED_NAME).write_text('{"height": "41", "round": 0, "step": 3}')
    for name in ("app", "snapshots", "data/blockstore.db", "data/cs.wal"):
        (home / name).mkdir()
    (home / "data" / "state.db").write_text("x")
    kept = {path: path.read_bytes() for path in (home / "config").iterdir()}
    with pytest.raises(ValidatorsReset, match="has 4 validators"):
        reset_home(home, chain_id="next", time=datetime.now(UTC))
    assert (home / "app").exists(), "a refusal changes nothing"
    assert reset_state(home, source=None, is_forgetting_signatures=False) == 41
    assert [path.name for path in (home / "data").iterdir()] == [SIGNED_NAME]
    assert load_signed_height(home) == 41
    assert sorted(path.name for path in home.iterdir()) == ["config", "data"]
    assert {path: path.read_bytes() for path in (home / "config").iterdir()} == kept
    assert reset_state(home, source=None, is_forgetting_signatures=True) == 0
    assert load_signed_height(home) == 0


@pytest.mark.parametrize("is_state", [True, False])
def test_reset_empties_folders_on_another_disk(tmp_path: Path, is_state: bool) -> None:
    """A link stays, and what it leads to as a folder; what that links to is somebody else's."""
    home = _create(tmp_path, 4 if is_state else 1)[0]
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    for folder in (disk, elsewhere):
        folder.mkdir()
    (elsewhere / "kept").write_text("x")
    (home / "data").rename(disk / "data")
    for name in ("app", "data/blockstore.db"):
        (disk / name).mkdir()
    (disk / "app" / "data.mdb").write_text("x")
    (disk / "app" / "other").symlink_to(elsewhere)
    for name in ("app", "data"):
        (home / name).symlink_to(disk / name)
    (home / "snapshots").symlink_to(disk / "nowhere")
    if is_state:
        reset_state(home, source=None, is_forgetting_signatures=True)
    else:
        reset_home(home, chain_id="next", time=datetime.now(UTC))
    assert list((home / "app").iterdir()) == []
    assert (home / "app").is_symlink()
    assert [path.name for path in (disk / "data").iterdir()] == [SIGNED_NAME]
    assert (elsewhere / "kept").exists()
    assert not (home / "snapshots").is_symlink()


@pytest.mark.parametrize("head", ["[statesync]", "  [ statesync ]  # its own words: [a]", '["statesync"]'])
def test_reset_of_the_state_may_take_a_snapshot_of_others(head: str, tmp_path: Path) -> None:
    home = _create(tmp_path, 2)[0]
    path = home / "config" / "config.toml"
    own = f'{head}\nenable = false\nrpc_servers = "old"\n[fastsync]\nown = 1\nlist = [\n  [2],\n]\n'
    path.write_text(path.read_text() + own)
    source = StateSyncSource(rpc_servers=("http://a:1", "http://b:1"), trust_height=7, trust_hash="AB")
    reset_state(home, source=source, is_forgetting_signatures=False)
    document = tomllib.loads(path.read_text())
    assert document["statesync"]["rpc_servers"] == "http://a:1,http://b:1"
    assert (document["statesync"]["enable"], document["statesync"]["trust_height"]) == (True, 7)
    assert document["fastsync"] == {"own": 1, "list": [[2]]}
    assert document["p2p"]["persistent_peers"] != ""


def test_invalid_resets_of_the_state(tmp_path: Path) -> None:
    (home,) = _create(tmp_path, 1)
    (home / "app").mkdir()
    with pytest.raises(NowhereElse, match="only validator"):
        reset_state(home, source=None, is_forgetting_signatures=False)
    other = _create(tmp_path / "more", 4)[0]
    (other / "app").mkdir()
    (other / "data" / "blockstore.db").mkdir()
    (other / "data" / SIGNED_NAME).unlink()
    with pytest.raises(BrokenFile, match=r"put back the newest copy"):
        reset_state(other, source=None, is_forgetting_signatures=False)
    for each in (home, other):
        assert (each / "app").exists(), "a refusal changes nothing"
    for options in (["--unsafe"], ["--server", "http://127.0.0.1:1"], ["--state", "--chain-id", "x"]):
        assert CliRunner().invoke(app, ["reset", "--home", str(home), *options]).exit_code == 2
    with hold_home(other):
        held = CliRunner().invoke(app, ["reset", "--home", str(other), "--state", "--unsafe"])
    assert isinstance(held.exception, NodeRuns)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retain_blocks = 0\nsnapshot_interval_blocks 7\n", "line 2: 'snapshot_interval_blocks 7' is no TOML"),
        ("# mine\n\nretain_blocks = 'x'\n", "line 3: retain_blocks is 'x', expected an integer"),
        ("retain_bloks = 1\n", "line 1: unknown key 'retain_bloks', did you mean retain_blocks?"),
        ("\nretain_blocks = 7\n", "line 2: retain_blocks is 7, expected 0 or at least 100"),
        ("num_snapshots_kept = 0", "line 1: num_snapshots_kept is 0, expected at least 1"),
        ("verifier = 2", "line 1: verifier is 2, expected -1, 0 or 1"),
    ],
)
def test_start_names_the_line_of_junk_settings_at_once(tmp_path: Path, text: str, said: str) -> None:
    (home,) = _create(tmp_path, 1)
    path = home / "config" / "app.toml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["start", "--home", str(home)], env={"COMETBFT_BIN": sys.executable})
    assert isinstance(result.exception, InvalidSettings)
    assert str(result.exception).startswith(f"{path}, {said}")
    assert not (home / "logs").exists(), "nothing was started"


def test_missing_binary_names_three_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CometBftMissing, match=r"next: one of three: .*localnet\.cometbft.*PATH.*COMETBFT_BIN"):
        find_cometbft(None, tmp_path)
    with pytest.raises(CometBftMissing, match="which is no file"):
        find_cometbft(str(tmp_path / "nothing"), tmp_path)
    binary = tmp_path / "cometbft"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert find_cometbft(None, tmp_path / "elsewhere") == binary


def test_init_writes_a_home_that_status_reads(tmp_path: Path) -> None:
    alloc = tmp_path / "alloc.json"
    alloc.write_text(json.dumps({"0x" + "1a" * 20: "5"}))
    runner = CliRunner()
    home = str(tmp_path / "h")
    options = ["--home", home, "--alloc", str(alloc), "--storage-epoch-blocks", "7", "--json"]
    summary = json.loads(runner.invoke(app, ["init", *options], catch_exceptions=False).stdout)
    assert summary["evm_chain_id"] == compute_evm_chain_id(summary["chain_id"])
    app_state = module.load_genesis(tmp_path / "h")["app_state"]
    assert app_state["storageEpochBlocks"] == 7
    assert app_state["alloc"] == {"0x" + "1a" * 20: "5"}
    status = json.loads(runner.invoke(app, ["status", "--home", home, "--json"], catch_exceptions=False).stdout)
    assert (status["chain_id"], status["height"], status["running"]) == (summary["chain_id"], None, False)
    result = runner.invoke(app, ["reset", "--home", home, "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["chain_id"] != summary["chain_id"]
    trusted = ["--trust-height", "5", "--trust-hash", "AB" * 32]
    result = runner.invoke(app, ["reset", "--home", home, "--state", "--unsafe", *trusted])
    assert result.exit_code == 2
    assert "need --server" in result.output, "what was to be trusted is not left out without a word"


@pytest.mark.parametrize("chain_id", ["x" * 51, "a b", "a\n", "\u0661"])
def test_invalid_chain_id_changes_nothing(tmp_path: Path, chain_id: str) -> None:
    """CometBFT refuses it at the start, when a reset has forgotten the chain before."""
    runner = CliRunner()
    home = tmp_path / "h"
    for command, folder in (("init", home), ("testnet", tmp_path / "many")):
        result = runner.invoke(app, [command, "--home", str(folder), "--chain-id", chain_id])
        assert (result.exit_code, "expected 1 to 50" in result.output) == (2, True)
        assert not folder.exists()
    runner.invoke(app, ["init", "--home", str(home), "--chain-id", "x" * 50], catch_exceptions=False)
    (home / "app").mkdir()
    before = (home / "config" / "genesis.json").read_bytes()
    assert runner.invoke(app, ["reset", "--home", str(home), "--chain-id", chain_id]).exit_code == 2
    assert (home / "config" / "genesis.json").read_bytes() == before
    assert (home / "app").exists()


def test_invalid_alloc_changes_nothing(tmp_path: Path) -> None:
    alloc = tmp_path / "alloc.json"
    runner = CliRunner()
    for text in ("{", "[]", '{"0x12": "1"}'):
        alloc.write_text(text)
        result = runner.invoke(app, ["init", "--home", str(tmp_path / "h"), "--alloc", str(alloc)])
        assert isinstance(result.exception, InvalidGenesis)
    assert not (tmp_path / "h").exists()
    assert isinstance(runner.invoke(app, ["status", "--home", str(tmp_path / "h")]).exception, HomeMissing)


@pytest.mark.integration
def test_errors_are_one_readable_line_and_the_next_step(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chain.cli", "start", "--home", str(tmp_path / "nowhere")]
    environment: dict[str, Any] = {**os.environ, "COMETBFT_BIN": sys.executable}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30, env=environment)
    assert ended.returncode == 1
    assert ended.stderr.strip().count("\n") == 1
    assert "is no chain node's home\nnext:  `chain-node init" in ended.stderr


@pytest.mark.integration
def test_the_command_line_loads_no_evm() -> None:
    """The supervisor, `doctor` and the snapshot maker need none of it: half a second and 24 MB each."""
    code = "import sys, chain.cli; print([name for name in ('eth', 'aiohttp', 'web3', 'torch') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
