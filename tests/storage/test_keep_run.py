"""``storage keep`` on a run that trains meanwhile, and ``storage age``: copy, certify, flip, grace, delete, for real.

Minutes: ``pytest -m soak tests/storage/test_keep_run.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.bindings.client import ChainClient
from contracts.bindings.types import BlobState
from storage import cli
from storage.core.retention import Step
from storage.mover import get_readable, load_catalogue

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

UP_SECONDS = 240.0
STEP_SECONDS = 300.0
PINNED = 2**64 - 1

RECIPE = """
name = "kept"
seed = 3
[model]
width = 16
num_layers = 1
num_heads = 2
hidden = 32
context = 16
[data]
source = "python_stdlib"
eval_windows = 8
[inner]
batch_size = 2
learning_rate = 0.01
warmup_steps = 4
[codec]
kind = "low_rank_int4"
rank = 4
[rounds]
num_fragments = 1
overlap = 1
local_steps = 8
num_rounds = 60
[outer]
"""


def run_module(module: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(cli.app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1])


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + STEP_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {STEP_SECONDS} s: {what}"
        time.sleep(0.3)
    return found


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A devnet with a run on it, and one worker that trains."""
    net, worker = tmp_path / "net", None
    try:
        record = json.loads(run_module("localnet.cli", "up", "--detach", "--json", "--home", net))
        url: str = record["rpc_urls"][0]
        for name in ("owner", "worker"):
            address = json.loads(run_module("training.cli", "keys", "new", tmp_path / f"{name}.key", "--json"))
            run_module("localnet.cli", "fund", address["address"], "--home", net)
        (tmp_path / "recipe.toml").write_text(RECIPE)
        creating = ("run", "create", tmp_path / "recipe.toml", "--chain", url, "--key-file", tmp_path / "owner.key")
        pace = (
            "--round-seconds",
            "5",
            "--grace-seconds",
            "0.6",
            "--attest-seconds",
            "3",
            "--allow",
            address["address"],
        )
        assert json.loads(run_module("training.cli", *creating, *pace, "--json"))["run"] == 1
        joining = ["join", "--run", "1", "--chain", url, "--key-file", str(tmp_path / "worker.key")]
        with (tmp_path / "worker.log").open("w") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "training.cli", *joining, "--home", str(tmp_path / "worker"), "--threads", "1"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        yield url
    finally:
        if worker is not None:
            worker.kill()
            worker.wait(10)
        if net.exists():
            run_module("localnet.cli", "down", "--home", net)


def test_checkpoints_go_cold_while_the_run_goes_on(url: str, tmp_path: Path) -> None:
    client = ChainClient([url])
    home, paying = tmp_path / "kept", ("--key-file", tmp_path / "owner.key", "--chain", url)
    keep = ("keep", "--run", 1, "--home", home, "--hot", 2, "--cold-every", 4, "--grace", 10, *paying)
    hot: dict[int, list[bytes]] = {}

    def take_hot() -> None:
        """Read every checkpoint part while it is hot, to compare."""
        info = client.training.run(1)
        for version in range(0, info.certified_version + 1, info.params.checkpoint_interval):
            if version in hot:
                continue
            found, blobs = [], client.training.checkpoint_at(1, version).blobs
            if bytes(32) in blobs:
                continue  # a newer one was certified before all parts of this were in
            for number, blob in enumerate(blobs):
                out = tmp_path / f"hot-{version}-{number}"
                call("get", bytes(blob).hex(), "-o", out, "--chain", url)
                found.append(out.read_bytes())
            hot[version] = found

    def work() -> bool:
        take_hot()
        call(*keep)
        steps = {kept.version: kept.step for kept in load_catalogue(home / "run-1.json").values()}
        has_cold = any(step is Step.COLD for step in steps.values())
        return has_cold and any(step is Step.DROPPED for step in steps.values()) and len(steps) >= 6

    wait_for(work, "one checkpoint is cold, one dropped, and the newest are hot")
    catalogue = load_catalogue(home / "run-1.json")
    newest = client.training.run(1).certified_version
    for kept in catalogue.values():
        blobs, is_archive = get_readable(kept)
        if kept.step is Step.DROPPED:
            states = {client.storage.blob(blob).state for blob in kept.hot}
            assert states == {BlobState.RELEASED}, f"version {kept.version}"
        elif is_archive:
            for number, blob in enumerate(blobs):
                call("restore", blob.hex(), "-o", tmp_path / "back", "--force", "--chain", url)
                assert (tmp_path / "back").read_bytes() == hot[kept.version][number]
        if kept.step is Step.COLD:
            assert {client.storage.blob(blob).state for blob in kept.hot} == {BlobState.RELEASED}
            assert {client.storage.blob(blob).tier for blob in kept.cold} == {2}
    assert catalogue[max(catalogue)].step is Step.HOT
    assert newest > 0
    settled = client.training.run(1).num_settled
    wait_for(lambda: client.training.run(1).num_settled > settled + 2, "the run goes on meanwhile")

    # payloads are pinned until a later checkpoint is certified, and not for longer
    def find_payload(t: int) -> Any:
        update = next(iter(client.training.updates(1, t)), None)
        return None if update is None else client.storage.blob(update.blob)

    t = client.training.run(1).num_settled
    wait_for(lambda: find_payload(t) is not None, f"round {t} has a payload")
    assert find_payload(t).release_height == PINNED
    wait_for(lambda: client.training.run(1).certified_version > t + 1, "a later checkpoint is certified")
    wait_for(lambda: find_payload(t) is None or find_payload(t).release_height < PINNED, "the payload is let go")


def test_logs_go_cold_after_a_while(url: str, tmp_path: Path) -> None:
    """As ``storage age --after 288000`` does after a day."""
    paying = ("--key-file", tmp_path / "owner.key", "--chain", url)
    log = tmp_path / "day.log"
    log.write_text("".join(f"{number} all is well\n" for number in range(50_000)))
    blob = call("put", log, "--blocks", 100_000, *paying)["blob"]
    age = ("age", "--home", tmp_path / "aged", "--after", 20, "--grace", 10, *paying)
    find = ("age", "--find", blob, "--home", tmp_path / "aged", *paying)
    assert call(*age) == {"done": []}
    wait_for(lambda: call(*age)["done"], "it is old enough")
    wait_for(lambda: not call(*age)["done"] and call(*find)["archive"], "it is cold")
    wait_for(
        lambda: call(*age) and call("stat", blob, "--chain", url)["state"] == "RELEASED", "the hot one is released"
    )
    archive = call(*find)["archive"]
    assert call("stat", archive, "--chain", url)["size_bytes"] < log.stat().st_size // 4
    call("restore", archive, "-o", tmp_path / "back", "--force", "--chain", url)
    assert (tmp_path / "back").read_bytes() == log.read_bytes()
