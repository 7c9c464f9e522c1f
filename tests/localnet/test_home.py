"""A devnet's home: one owner, a record that is whole, nothing removed that is not ours."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chain.cometbft import Timing
from chain.core.contracts.staking.keys import NEWEST_RULES
from chain.home import Addresses, create_home
from contracts.bindings.keys import create_key
from localnet import cli
from localnet.core.config import CHAIN_FORMAT, DevnetConfig, build_alloc
from localnet.core.errors import BadDevnetRecord, DevnetAlreadyUp, DevnetNotUp, LocalnetError, NotReadyInTime, Stopped
from localnet.devnet import hold_home, reset_home
from localnet.process import ProcessId, get_own_id
from localnet.record import DevnetRecord, NamedProcess, Phase, load_record, load_up, save_record
from localnet.stopping import StopRequest


def up_old_chain(home: Path, **files: str) -> str:
    """Go on with a chain that the home says it has; return what is said of why not."""
    for name, text in files.items():
        (home / name.replace("_", "-")).write_text(text)
    command = [sys.executable, "-m", "localnet.cli", "up", "--home", str(home), "--storage", "1"]
    done = subprocess.run(  # a process of its own: it adopts orphans
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_a_chain_of_another_format_asks_for_a_reset(tmp_path: Path) -> None:
    said = up_old_chain(tmp_path, chain_id="archipelago-0badcafe\n", chain_format="0\n")
    assert f"error: the chain in {tmp_path} was begun with format 0, this software goes on with format 1" in said
    assert (
        f"next:  localnet up --reset --home {tmp_path} starts a new chain, with new accounts and empty stores" in said
    )
    assert not (tmp_path / "validator-0").exists(), "nothing was started"


@pytest.mark.integration
def test_a_chain_of_newer_rules_says_so_and_how_to_begin_anew(tmp_path: Path) -> None:
    """As after a devnet's governance, or newer software, has gone further than this one can: real CometBFT."""
    home = tmp_path / "home"
    create_home(
        home / "validator-0",
        chain_id="archipelago-0badcafe",
        app_state={"evmChainId": 4242, "alloc": {}, "rules": NEWEST_RULES + 1},
        addresses=Addresses(rpc="127.0.0.1:0", p2p="127.0.0.1:0"),
        timing=Timing(commit_milliseconds=100),
        time=datetime.now(UTC),
    )
    for home_name, text in (("chain-id", "archipelago-0badcafe\n"), ("chain-format", f"{CHAIN_FORMAT}\n")):
        (home / home_name).write_text(text)
    said = up_old_chain(home)
    assert f"error: the chain of last time in {home} does not go on: validator-0 ended with exit code 1" in said
    assert f"follows rules {NEWEST_RULES + 1}, this software knows them up to {NEWEST_RULES}" in said
    assert f"where other software has begun this chain: localnet up --reset --home {home} starts a new one" in said
    assert "Traceback" not in said


@pytest.fixture
def record(tmp_path: Path) -> DevnetRecord:
    return DevnetRecord(
        home=str(tmp_path),
        phase=Phase.READY,
        supervisor=get_own_id(),
        processes=(NamedProcess(name="validator-0", id=get_own_id()),),
        chain_id="archipelago-00000001",
        rpc_urls=("http://127.0.0.1:8545",),
        public_urls=("http://islands.example:8545",),
        storage_urls=("http://127.0.0.1:9100",),
        faucet_key=str(tmp_path / "faucet.key"),
    )


def test_record_survives_the_disk(record: DevnetRecord, tmp_path: Path) -> None:
    save_record(record)
    assert load_record(tmp_path) == record
    assert load_up(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == ["devnet.json"]


def test_record_of_a_dead_supervisor_is_not_up(record: DevnetRecord, tmp_path: Path) -> None:
    own = get_own_id()
    save_record(replace(record, supervisor=ProcessId(pid=own.pid, started=own.started - 60)))
    with pytest.raises(DevnetNotUp, match="localnet up"):
        load_up(tmp_path)


def test_invalid_record_is_named(record: DevnetRecord, tmp_path: Path) -> None:
    save_record(record)
    path = tmp_path / "devnet.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(BadDevnetRecord, match="format 99, expected 1"):
        load_record(tmp_path)
    path.write_text("{")
    with pytest.raises(BadDevnetRecord, match="JSONDecodeError"):
        load_record(tmp_path)


def test_home_has_one_owner(tmp_path: Path) -> None:
    with hold_home(tmp_path), pytest.raises(DevnetAlreadyUp, match=str(get_own_id().pid)), hold_home(tmp_path):
        pass
    with hold_home(tmp_path):
        pass


def test_reset_removes_a_home_of_ours(record: DevnetRecord, tmp_path: Path) -> None:
    save_record(record)
    (tmp_path / "validator-0" / "data").mkdir(parents=True)
    reset_home(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_invalid_reset_of_somebody_elses_directory(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LocalnetError, match="not removing"):
        reset_home(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_storage", 0), ("num_storage", 65), ("num_validators", 0), ("rpc_port", 70_000), ("host", "0.0.0.0")],
)
def test_invalid_config_names_field_and_value(field: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        DevnetConfig(home=tmp_path, **{field: value})


def test_open_devnet_is_told_by_its_name_and_used_by_its_loopback(tmp_path: Path) -> None:
    config = DevnetConfig(home=tmp_path, host="0.0.0.0", advertise="islands.example")
    assert (config.local_host, config.public_host) == ("127.0.0.1", "islands.example")
    config = DevnetConfig(home=tmp_path)
    assert (config.local_host, config.public_host) == ("127.0.0.1", "127.0.0.1")


def test_genesis_balances_are_exact_decimals() -> None:
    assert build_alloc("0xf", ("0xa",)) == {"0xf": "1000000" + "0" * 18, "0xa": "1000" + "0" * 18}


def test_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    create_key(tmp_path / "faucet.key")
    assert stat.S_IMODE((tmp_path / "faucet.key").stat().st_mode) == 0o600


def test_wait_ends_at_its_deadline_with_what_was_seen() -> None:
    with pytest.raises(NotReadyInTime, match="for four seats; seen last: 3 seats"):
        StopRequest().wait_until(lambda: False, "four seats", deadline_seconds=0.05, last=lambda: "3 seats")


def test_wait_ends_when_somebody_asks_to_stop() -> None:
    stop = StopRequest()
    stop.set()
    with pytest.raises(Stopped):
        stop.wait_until(lambda: False, "nothing", deadline_seconds=60)


def test_cli_loads_without_torch() -> None:
    import subprocess

    script = "import localnet.cli, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_home_that_cannot_be_made_is_an_error_with_a_next_step(tmp_path: Path, detach: list[str]) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "localnet.cli", "up", "--home", str(tmp_path / "file" / "x"), *detach]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "can be no home: Not a directory" in done.stderr
    assert "give another --home" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("tokens", ["inf", "-inf", "nan", "0", "-1", "x", "1e-30"])
def test_invalid_amounts_are_refused_before_anybody_is_asked(tokens: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["fund", "0x" + "ab" * 20, "--tokens", tokens, "--home", str(tmp_path)])
    assert done.exit_code == 2
    assert f"--tokens is {tokens}" in done.stderr.replace("'", "")
    assert "next:  such as 1000 or 0.5" in done.stderr


def test_an_address_that_is_none_is_wrong_input(tmp_path: Path) -> None:
    """Code 2 as with `trainer`, and before the devnet is looked for; without one it is 1."""
    done = CliRunner().invoke(cli.app, ["fund", "0x123", "--home", str(tmp_path)])
    assert (done.exit_code, "'0x123' is no address" in done.stderr) == (2, True)
    assert CliRunner().invoke(cli.app, ["fund", "0x" + "ab" * 20, "--home", str(tmp_path)]).exit_code == 1


def test_a_busy_port_is_said_with_what_makes_other_commands_ask_this_chain(
    record: DevnetRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_key(tmp_path / "faucet.key")
    cli.print_ready(record, 8545)
    out = capsys.readouterr().out
    assert "export" not in out
    assert "CometBFT" not in out, "no node has started"
    node = Path(record.home) / "validator-0"
    node.mkdir()
    (node / "run.json").write_text('{"cometbft_url": "http://127.0.0.1:26999", "rpc_url": "", "supervisor_pid": 1}')
    cli.print_ready(replace(record, rpc_urls=("http://127.0.0.1:8546",)), 8545)
    out = capsys.readouterr().out
    assert "port 8545 is busy" in out
    assert "export ARCHIPELAGO_CHAIN=http://127.0.0.1:8546" in out
    assert "CometBFT's RPC     http://127.0.0.1:26999" in out


def test_up_listens_as_last_time_unless_told_anew(record: DevnetRecord, tmp_path: Path) -> None:
    assert cli.recall_address(tmp_path, None, None) == (None, None, "")
    save_record(replace(record, host="0.0.0.0", advertise="islands.example"))
    host, advertise, said = cli.recall_address(tmp_path, None, None)
    assert (host, advertise) == ("0.0.0.0", "islands.example")
    assert "listening on 0.0.0.0, to others islands.example, as last time" in said
    assert cli.recall_address(tmp_path, None, "other.example")[:2] == ("0.0.0.0", "other.example")
    assert cli.recall_address(tmp_path, "127.0.0.1", None) == ("127.0.0.1", None, "")
    assert cli.recall_address(tmp_path, "0.0.0.0", "x.example") == ("0.0.0.0", "x.example", "")


def test_up_without_options_takes_the_host_of_last_time(
    record: DevnetRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_record(replace(record, phase=Phase.STOPPED, host="0.0.0.0", advertise="islands.example"))
    started: list[DevnetConfig] = []
    monkeypatch.setattr(cli, "up_foreground", lambda config, **_: started.append(config) or 0)
    for more in ((), ("--host", "127.0.0.1"), ("--reset",)):
        assert CliRunner().invoke(cli.app, ["up", "--home", str(tmp_path), *more]).exit_code == 0
    assert [(config.host, config.advertise) for config in started] == [
        ("0.0.0.0", "islands.example"),
        ("127.0.0.1", ""),
        ("127.0.0.1", ""),
    ]


def test_up_without_options_takes_the_port_of_last_time(
    record: DevnetRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was had; an option wins, and --reset forgets it."""
    save_record(replace(record, phase=Phase.STOPPED, rpc_port=18_545))
    started: list[DevnetConfig] = []
    monkeypatch.setattr(cli, "up_foreground", lambda config, **_: started.append(config) or 0)
    said = []
    for more in ((), ("--host", "127.0.0.2"), ("--rpc-port", "18600"), ("--reset",)):
        done = CliRunner().invoke(cli.app, ["up", "--home", str(tmp_path), *more])
        assert done.exit_code == 0, done.output
        said.append("JSON-RPC on port 18545, as last time; the usual one: --rpc-port 8545" in done.output)
    assert [config.rpc_port for config in started] == [18_545, 18_545, 18_600, 8545]
    assert said == [True, True, False, False]


def test_a_record_of_before_ports_were_kept_has_none(record: DevnetRecord, tmp_path: Path) -> None:
    save_record(record)
    path = tmp_path / "devnet.json"
    old = json.loads(path.read_text())
    del old["rpc_port"]
    path.write_text(json.dumps(old))
    assert cli.recall_port(tmp_path, None) == (None, "")


@pytest.mark.parametrize(
    ("why", "said"), [("", "nothing is up; next: localnet up --home"), ("no room; next: free some", "next: free some")]
)
def test_status_of_what_is_down_says_what_brings_it_up(
    record: DevnetRecord, tmp_path: Path, why: str, said: str
) -> None:
    phase = Phase.FAILED if why else Phase.STOPPED
    save_record(replace(record, phase=phase, processes=(), why=why))
    done = CliRunner().invoke(cli.app, ["status", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert said in done.output
    assert "process" not in done.output
    assert "block" not in done.output, "there is no chain to have one"
    as_json = CliRunner().invoke(cli.app, ["status", "--home", str(tmp_path), "--json"])
    assert (as_json.exit_code, json.loads(as_json.stdout)["is_up"]) == (1, False)
