"""Half an hour of trouble on four real validators: ``pytest -m soak tests/chain``.

Kill, pause, cut off, empty, rewind, in random order, one or two at a time; after each the chain goes on by itself,
nothing sent is lost, and at the end all have the same blocks.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from network import Network, Sender, check_same_chain, grow
from real_node import ROOT

from chain.cometbft import CometBftMissing, Timing, find_cometbft
from chain.settings import NodeSettings

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3_600)]

SOAK_SECONDS = 1_800.0
TROUBLE_SECONDS = 4.0
"""How long a perturbation lasts."""
KINDS = ("kill", "kill two", "pause", "pause two", "cut off", "cut in half", "empty", "rewind")


def test_half_an_hour_of_perturbations(tmp_path: Path, app_state: dict[str, Any], alice: Any) -> None:
    try:
        find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    except CometBftMissing as error:
        pytest.skip(str(error))
    network = Network(
        tmp_path,
        app_state,
        num_validators=4,
        settings=NodeSettings(snapshot_interval_blocks=50),
        timing=Timing(commit_milliseconds=100, propose_milliseconds=500),
    )
    try:
        print(soak(network, Sender(alice), tmp_path, SOAK_SECONDS, random.Random(1)))
    finally:
        network.close()


def soak(network: Network, sender: Sender, directory: Path, seconds: float, rng: random.Random) -> dict[str, int]:
    """Perturb until the time is over; returns how often each kind was played."""
    nodes = network.nodes
    network.start(range(4))
    grow(nodes)
    counts = dict.fromkeys(KINDS, 0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        kind = min(KINDS, key=lambda each: (counts[each], rng.random()))
        counts[kind] += 1
        victims = rng.sample(range(4), 2 if kind in ("kill two", "pause two", "cut in half") else 1)
        well = [node for index, node in enumerate(nodes) if index not in victims]
        perturb(network, kind, victims, directory, lambda well=well: sender.send(well[0]))  # type: ignore[misc]
        grow(nodes)
        sender.send(nodes[victims[0]])
    grow(nodes)
    for node in nodes:
        assert all(node.find(raw) is not None for raw in sender.raws)
    assert check_same_chain(nodes) > 0
    for node in nodes:
        assert node.stop() == 0
    return counts


def perturb(network: Network, kind: str, victims: list[int], directory: Path, send: Any) -> None:
    """Do it, see that the others go on where they are three, and undo it."""
    is_quorum = len(victims) == 1
    if kind.startswith("pause"):
        paused = [
            child
            for index in victims
            for child in psutil.Process(network.nodes[index].process.pid).children()  # type: ignore[union-attr]
        ]
        for child in paused:
            child.suspend()
        _watch(network, victims, send if is_quorum else None)
        for child in paused:
            child.resume()
        return
    if kind.startswith("cut"):
        network.isolate(victims)
        _watch(network, victims, send if is_quorum else None)
        network.heal()
        return
    for index in victims:
        home = network.nodes[index].home
        if kind == "rewind":
            assert network.nodes[index].stop() == 0
            shutil.copytree(home / "app", directory / "older-app")
            network.start([index])
            grow(network.nodes)
        network.kill(index)
        if kind in ("empty", "rewind"):
            shutil.rmtree(home / "app")
        if kind == "rewind":
            shutil.move(directory / "older-app", home / "app")
    _watch(network, victims, send if is_quorum else None)
    network.start(victims)


def _watch(network: Network, victims: list[int], send: Any) -> None:
    well = [node for index, node in enumerate(network.nodes) if index not in victims]
    if send is not None:
        send()
        return
    halted = max(node.height() for node in well) + 1
    deadline = time.monotonic() + TROUBLE_SECONDS
    while time.monotonic() < deadline:
        assert max(node.height() for node in well) <= halted, "two of four are no quorum"
        time.sleep(0.05)
