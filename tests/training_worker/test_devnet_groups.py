"""Workers of every shape in one run on a real devnet: one process, pipeline stages, shards (cases 12, 20).

Told in order, on one devnet: they agree on every root; then one process of each group is ended from outside, and
each worker goes on from what it saved.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import psutil
import pytest
from training_worker_devnet import STOP_SECONDS, Devnet, Worker, open_devnet
from training_worker_tiny_recipe import make_recipe

from contracts.bindings.types import MemberState, RoundState, UpdateFate
from training.core.recipe import CodecKind

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RECIPE = make_recipe(
    "shapes",
    12,
    model={"num_layers": 2},
    inner={"batch_size": 4},
    codec={"kind": CodecKind.LOW_RANK_2BIT},
    rounds={"num_fragments": 2, "local_steps": 16, "num_rounds": 400},
)

EXIT_SECONDS = 60.0

SHAPES = {"single": (), "pipeline": ("--stages", "2"), "sharded": ("--shards", "2")}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    with open_devnet(tmp_path_factory.mktemp("shapes"), tuple(SHAPES)) as found:
        found.create_run(RECIPE, "--min-members", "3")
        for name, options in SHAPES.items():
            found.workers[name].options = options
            found.workers[name].start()
        yield found


def get_processes(worker: Worker) -> list[psutil.Process]:
    """Return everything that a worker has started."""
    assert worker.process is not None
    return psutil.Process(worker.process.pid).children(recursive=True)


def is_running(process: psutil.Process) -> bool:
    """Say whether a process still runs; one that nobody has reaped does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def get_group(worker: Worker) -> list[psutil.Process]:
    """Return the stages or shards: those that listen for one another."""
    return [process for process in get_processes(worker) if get_ports([process])]


def get_ports(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    return [
        (connection.laddr.ip, connection.laddr.port)
        for process in processes
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_all_shapes_agree_on_every_root(net: Devnet) -> None:
    addresses = {worker.address for worker in net.workers.values()}
    reader = net.client.training

    def get_common() -> list[int]:
        """Return the rounds that counted an update of everybody."""
        return [
            t
            for t in range(net.info().num_settled)
            if {each.member for each in reader.updates(1, t) if each.fate is UpdateFate.ACCEPTED} == addresses
        ]

    net.wait_for(lambda: len(get_common()) >= 3, "three rounds with an update of each", 240)
    for t in range(net.info().num_settled):
        assert reader.round(1, t).state is RoundState.FINAL
        votes = {vote.member: vote.root for vote in reader.votes(1, t)}
        assert set(votes.values()) == {reader.root(1, t + 1)}, f"round {t}: one root only"
    for t in get_common():
        losses = [each.loss_micro for each in reader.updates(1, t)]
        assert all(losses), "each has trained in it"
    for worker in net.workers.values():
        assert "restoring from a checkpoint" not in worker.log
        assert "memory, " in worker.log
    assert "stage 1" in net.workers["pipeline"].log
    assert "shard 1" in net.workers["sharded"].log


def test_a_killed_stage_ends_its_worker_and_a_shard_told_to_stop_ends_it_in_order(net: Devnet) -> None:
    pipeline, sharded = net.workers["pipeline"], net.workers["sharded"]
    processes = get_processes(pipeline) + get_processes(sharded)
    stages, shards = get_group(pipeline), get_group(sharded)
    assert (len(stages), len(shards)) == (2, 2)
    ports = get_ports(stages + shards)
    assert all(host == "127.0.0.1" for host, _ in ports), "nobody outside this host can reach a group"
    stages[1].send_signal(signal.SIGKILL)
    shards[1].send_signal(signal.SIGTERM)
    net.wait_for(lambda: "error: " in pipeline.log and "run 1: stopped" in sharded.log, "both end", STOP_SECONDS)
    assert not any(map(is_running, stages + shards))
    # What is left is the interpreter's own exit: a second of computing, however long that takes on a busy machine.
    for worker, code in ((pipeline, 3), (sharded, 0)):
        assert worker.process is not None
        assert worker.process.wait(EXIT_SECONDS) == code, worker.log
    said = " ".join(pipeline.log.split())
    assert f"error: stage 1 (pid {stages[1].pid}) ended with exit code -9" in said
    assert "next:" in said
    assert f"shard 1 (pid {shards[1].pid}) was told to stop" in sharded.log
    net.wait_for(lambda: not any(map(is_running, processes)), "nobody outlives the worker", EXIT_SECONDS)
    for host, port in ports:
        with socket.create_server((host, port)):
            pass
    assert net.member("sharded").state is not MemberState.LEFT, "it is dropped at most, for the rounds it misses"


def test_they_resume_and_count_again(net: Devnet) -> None:
    opened = net.info().num_opened
    for name in ("pipeline", "sharded"):
        net.workers[name].start()
    for name in ("pipeline", "sharded"):
        net.wait_for_counted(name, opened, 240)
        assert "resumed at version" in net.workers[name].log
        assert "restoring from a checkpoint" not in net.workers[name].log
    for t in range(opened, net.info().num_settled):
        votes = {vote.root for vote in net.client.training.votes(1, t)}
        assert votes <= {net.client.training.root(1, t + 1)}, f"round {t}: one root only"
