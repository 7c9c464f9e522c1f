"""The demo's promises are checked by the demo itself; here: what makes it fail, and that Ctrl-C leaves nothing."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from localnet.core.snapshot import Snapshot, WorkerRow
from localnet.demo.checkpoint import Pulled
from localnet.demo.report import build_checks, print_how_to_go_on, print_report
from localnet.demo.scenario import Result
from localnet.demo.settings import DemoSettings
from localnet.process import get_own_id
from localnet.record import DevnetRecord, Phase

DEADLINE_SECONDS = 120.0
STOP_SECONDS = 15.0


@pytest.fixture
def result() -> Result:
    worker = WorkerRow(
        name="A",
        address="0x" + "a" * 40,
        process="ended",
        is_alive=False,
        state="ACTIVE",
        activity="-",
        num_accepted=28,
        num_refused=0,
        num_tokens=700_000,
        earned=14 * 10**18,
        num_steps=720,
        bytes_sent=10_000_000,
        bytes_received=6_000_000,
    )
    snapshot = Snapshot(
        height=548,
        seconds=149.0,
        run_state="FINISHED",
        num_settled=28,
        num_rounds_total=28,
        rounds=(),
        workers=(worker,),
        losses=((0, 5.472), (28, 1.924)),
        certified_version=28,
        paid_rewards=28 * 10**18,
        paid_storage=10**11,
        escrow=972 * 10**18,
        allreduce_bytes=500_000_000,
    )
    return Result(
        first_loss=5.472,
        last_loss=1.924,
        num_final=28,
        num_void=0,
        rejoined_round=15,
        seconds=148.0,
        snapshot=snapshot,
        solo=None,
        pulled=Pulled(
            version=28, root=b"\x0b" * 32, chain_root=b"\x0b" * 32, loss=1.9241, chain_loss=1.9241, text="def f():"
        ),
    )


def count_failures(result: Result, *, has_own_data: bool = False) -> int:
    return sum(not check.is_kept for check in build_checks(result, has_own_data=has_own_data))


def test_everything_kept_is_a_success(result: Result) -> None:
    assert count_failures(result) == 0
    output = io.StringIO()
    print_report(Console(file=output, width=120), result, build_checks(result, has_own_data=False))
    assert "50 times less" in output.getvalue()
    assert "FAIL" not in output.getvalue()


def test_kept_devnet_is_the_one_that_every_line_means(tmp_path: Path) -> None:
    home = tmp_path / "devnet"
    record = DevnetRecord(
        home=str(home),
        phase=Phase.READY,
        supervisor=get_own_id(),
        processes=(),
        chain_id="archipelago-1",
        rpc_urls=("http://127.0.0.1:8546",),
        public_urls=(),
        storage_urls=(),
        faucet_key="",
    )
    output = io.StringIO()
    print_how_to_go_on(Console(file=output, width=120), DemoSettings(home=tmp_path), record)
    lines = output.getvalue().splitlines()
    commands = [line for line in lines if " localnet " in line and "plain localnet up" not in line]
    assert [f"--home {home}" in line for line in commands] == [True] * 4
    assert "THIS_MACHINE:8546" in output.getvalue()
    first = min(index for index, line in enumerate(lines) if " trainer status" in line)
    assert any(line.endswith(" . .venv/bin/activate") for line in lines[:first]), "said before the first command"


def test_invalid_each_broken_promise_fails(result: Result) -> None:
    pulled = result.pulled
    broken = [
        replace(result, num_final=23),
        replace(result, last_loss=2.8),
        replace(result, rejoined_round=None),
        replace(result, pulled=replace(pulled, chain_root=b"\x0c" * 32)),
        replace(result, pulled=replace(pulled, chain_loss=1.9251)),
        replace(result, pulled=replace(pulled, chain_loss=None)),
        replace(result, pulled=replace(pulled, text="  \n")),
    ]
    assert [count_failures(one) for one in broken] == [1] * len(broken)


def test_own_text_need_only_be_learned(result: Result) -> None:
    assert count_failures(replace(result, last_loss=4.0), has_own_data=True) == 0
    assert count_failures(replace(result, last_loss=5.5), has_own_data=True) == 1


@pytest.mark.integration
@pytest.mark.parametrize("moment", ["devnet/devnet.json", "worker-A/trace.jsonl"])
def test_ctrl_c_leaves_no_process_and_no_half_written_file(tmp_path: Path, moment: str) -> None:
    home = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, "-m", "localnet.demo", "--home", str(home), "--no-solo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        end = time.monotonic() + DEADLINE_SECONDS
        while not (home / moment).exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end, f"{moment} never came"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=STOP_SECONDS)
        assert process.returncode == 130, output
        assert "nothing is left running" in output
        assert _list_processes(home) == []
        assert not [path for path in home.rglob("*.part") if path.is_file()]
        for path in home.glob("*.json"):
            json.loads(path.read_text())
    finally:
        process.kill()
        process.communicate(timeout=STOP_SECONDS)
        for pid in _list_processes(home):
            psutil.Process(pid).kill()


def _list_processes(home: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(home) in part for part in process.info["cmdline"] or ())
    ]
