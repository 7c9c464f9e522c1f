"""Half an hour of trouble on four real validators: ``pytest -m soak tests/chain``.

Kill, pause, cut off, cut in half, empty, rewind the application or its core, in random order, one or two at a time;
after each the chain goes on by itself, nothing sent is lost, and at the end all have the same blocks.
``ARCHIPELAGO_SOAK_SECONDS`` chooses another duration, ``ARCHIPELAGO_SOAK_SEED`` another order.  What each kind does
is in the gate too, once (`test_validators`).
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import real_node
from network import Network, Sender, check_same_chain, grow, keep_app, keep_core, rewind_app, rewind_core
from real_node import ROOT, wait_until

from chain.cometbft import CometBftMissing, Timing, find_cometbft
from chain.settings import NodeSettings

SOAK_SECONDS = float(os.environ.get("ARCHIPELAGO_SOAK_SECONDS", "1800"))
"""Half an hour, as validators' operators want it."""
SEED = int(os.environ.get("ARCHIPELAGO_SOAK_SEED", "1"))
TROUBLE_SECONDS = 4.0
"""How long a perturbation of two lasts."""
HALVES_SECONDS = 60.0
"""How long the halves of a network stay apart in the test that is about it."""
PATIENCE_SECONDS = 240.0
"""For one step to be over: a soak runs beside other work."""
REPORT_SECONDS = 60.0
"""Between two lines about how it goes."""
KINDS = ("kill", "kill two", "pause", "pause two", "cut off", "cut in half", "empty", "rewind", "ahead")

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(SOAK_SECONDS + 600)]


@pytest.fixture
def network(tmp_path: Path, app_state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr(real_node, "DEADLINE_SECONDS", PATIENCE_SECONDS)
    try:
        find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    except CometBftMissing as error:
        pytest.skip(str(error))
    made = Network(
        tmp_path,
        app_state,
        num_validators=4,
        settings=NodeSettings(snapshot_interval_blocks=50),
        timing=Timing(commit_milliseconds=100, propose_milliseconds=500),
    )
    yield made
    made.close()


def test_half_an_hour_of_perturbations(network: Network, alice: Any, tmp_path: Path) -> None:
    print(soak(network, Sender(alice), tmp_path, SOAK_SECONDS, random.Random(SEED)))


def test_halves_that_were_apart_for_a_minute_make_one_chain(network: Network, alice: Any, carol: Any) -> None:
    """Case 19: each half is sent transactions; neither makes a block, and after the cut all of them are in one chain.

    Rounds without a quorum take ever longer, so it is also measured how soon blocks come again.
    """
    nodes = network.nodes
    network.start(range(4))
    grow(nodes)
    network.isolate({2, 3})
    time.sleep(1)  # the block that was under way
    sent = [(near, signer.raw(nonce)) for near, signer in ((nodes[0], alice), (nodes[2], carol)) for nonce in range(20)]
    for near, raw in sent:
        assert near.send(raw)["code"] == 0
    network.check_halted(range(4), HALVES_SECONDS)
    assert all(node.find(raw) is None for node in nodes for _, raw in sent)
    network.heal()
    healed = time.monotonic()
    wait_until(lambda: all(node.find(raw) for node in nodes for _, raw in sent), "executed everywhere")
    print(
        f"{len(sent)} transactions of both halves executed {time.monotonic() - healed:.1f} s after the cut was mended"
    )
    grow(nodes)
    assert check_same_chain(nodes) > 0
    for node in nodes:
        assert node.stop() == 0


def soak(network: Network, sender: Sender, directory: Path, seconds: float, rng: random.Random) -> dict[str, int]:
    """Perturb until the time is over; returns how often each kind was played."""
    nodes = network.nodes
    network.start(range(4))
    grow(nodes)
    counts = dict.fromkeys(KINDS, 0)
    started = reported = time.monotonic()
    while time.monotonic() < started + seconds:
        kind = min(KINDS, key=lambda each: (counts[each], rng.random()))
        counts[kind] += 1
        victims = rng.sample(range(4), 2 if kind in ("kill two", "pause two", "cut in half") else 1)
        well = [node for index, node in enumerate(nodes) if index not in victims]
        perturb(network, kind, victims, directory, lambda well=well: sender.send(well[0]))  # type: ignore[misc]
        grow(nodes)
        sender.send(nodes[victims[0]])
        if time.monotonic() > reported + REPORT_SECONDS:
            reported = time.monotonic()
            _report(network, counts, reported - started)
    grow(nodes)
    for node in nodes:
        assert all(node.find(raw) is not None for raw in sender.raws)
    assert check_same_chain(nodes) > 0
    _report(network, counts, time.monotonic() - started)
    for node in nodes:
        assert node.stop() == 0
    return counts


def perturb(network: Network, kind: str, victims: list[int], directory: Path, send: Callable[[], None]) -> None:
    """Do it, see that the others go on where they are three, or halt where they are two, and undo it."""
    well = [index for index in range(4) if index not in victims]

    def watch() -> None:
        if len(victims) == 1:
            send()
        else:
            network.check_halted(range(4) if kind == "cut in half" else well, TROUBLE_SECONDS)

    node = network.nodes[victims[0]]
    match kind:
        case "pause" | "pause two":
            with network.paused(victims):
                watch()
        case "cut off" | "cut in half":
            network.isolate(victims)
            watch()
            network.heal()
        case "kill" | "kill two":
            for index in victims:
                network.kill(index)
            watch()
            network.start(victims)
        case "empty":
            network.kill(victims[0])
            watch()
            rewind_app(node, directory / "none")
            network.start(victims)
        case "rewind" | "ahead":
            older = directory / "older"
            shutil.rmtree(older, ignore_errors=True)
            assert node.stop() == 0
            (keep_app if kind == "rewind" else keep_core)(node, older)
            network.start(victims)
            grow(network.nodes)
            network.kill(victims[0])
            watch()
            if kind == "rewind":
                rewind_app(node, older)
            else:
                rewind_core(node, older)
                refused = node.spawn()
                errors = wait_until(lambda: refused.poll() is not None and refused.communicate()[1], "refused")
                node.process = None
                assert "app is at height" in errors, errors
                rewind_app(node, directory / "none")
            network.start(victims)


def _report(network: Network, counts: dict[str, int], seconds: float) -> None:
    sizes = []
    for node in network.nodes:
        assert node.process is not None
        family = [psutil.Process(node.process.pid), *psutil.Process(node.process.pid).children(recursive=True)]
        sizes.append(sum(each.memory_info().rss for each in family) >> 20)
    height = max(node.height() for node in network.nodes)
    print(f"{seconds:.0f} s, height {height}, {sum(counts.values())} perturbations {counts}, MiB {sizes}", flush=True)
