"""Ours on the same footing as `peer_torchft`: a process for each worker, payloads through gloo, every part in its time.

``main()`` with the argument TASK.json starts a worker a replica and prints one line of JSON: loss of the last agreed
weights, CPU seconds a worker.  Each worker trains, compresses, exchanges payloads over the loopback, decodes all, and
settles with the root, as in a run; what a run has beyond that is not there: chain, stores, durable state.  torchft in
turn has its lighthouse and managers, whose processes' and threads' time outside the replicas is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.peer_torchft import PeerTask
from training.core.canonical import create_genesis
from training.core.recipe_text import parse_recipe
from training.core.schedule import compute_num_rounds_total, plan_steps
from training.core.settle import Settlement, settle
from training.data.corpus import load_corpus
from training.evaluation import evaluate_state
from training.local import LocalWorker
from training.simulate import make_members

RANK = "from benchmarks.peer_ours import train; train()"
"""What each worker runs."""

HOST = "127.0.0.1"
"""Where they meet."""

TIMEOUT = timedelta(seconds=120)
"""Of one exchange, and of the meeting."""

RUN_SECONDS = 600.0
"""Longest wait for a worker."""


def main() -> None:
    """Run all workers and say how it went."""
    path = Path(sys.argv[1])
    task = PeerTask(**json.loads(path.read_text()))
    board = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    command = [sys.executable, "-c", RANK, str(path), str(board.port)]
    workers = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, text=True) for index in range(task.num_workers)
    ]
    try:
        results = [json.loads(worker.communicate(timeout=RUN_SECONDS)[0].splitlines()[-1]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert len({each["root"] for each in results}) == 1, "the workers disagree about the agreed root"
    print(
        json.dumps(
            {
                "loss": results[0]["loss"],
                "root": results[0]["root"],
                "cpu_seconds": sum(each["cpu_seconds"] for each in results) / len(results),
                "seconds": max(each["seconds"] for each in results),
            }
        )
    )


def train() -> None:
    """Train one worker to the end of the flush; the agreed weights are evaluated."""
    task = PeerTask(**json.loads(Path(sys.argv[1]).read_text()))
    port, index = int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    recipe = parse_recipe(task.recipe)
    corpus = load_corpus(recipe.data)
    members, genesis, rank = make_members(task.num_workers), create_genesis(recipe), recipe.codec.rank
    worker = LocalWorker(recipe, genesis, 0, members[index], corpus=corpus)
    board = dist.TCPStore(HOST, port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=board, rank=index, world_size=task.num_workers, timeout=TIMEOUT)
    settled: list[Settlement] = []

    def catch_up(version: int) -> None:
        while worker.version < min(version, len(settled)):
            worker.apply(settled[worker.version], worker.version, True)

    dist.barrier()
    started, cpu_started = time.perf_counter(), time.process_time()
    for round_index in range(compute_num_rounds_total(recipe.rounds)):
        catch_up(round_index - recipe.rounds.overlap)
        num_steps = plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)
        worker.train(round_index, num_steps, participants=members)
        payloads = _exchange(worker.send(round_index, rank=rank), task.num_workers)
        before = settled[-1].state if settled else genesis
        done = settle(recipe, before, round_index, payloads, rank=rank, local_steps=recipe.rounds.local_steps)
        done.state.root()
        settled.append(done)
    catch_up(len(settled))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    loss = evaluate_state(recipe, settled[-1].state, corpus)
    root = settled[-1].state.root().hex()
    dist.destroy_process_group()
    print(json.dumps({"loss": loss, "root": root, "seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)


def _exchange(payload: bytes, num_workers: int) -> list[bytes]:
    """Return all workers' payloads of a round, which are equally long."""
    own = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(num_workers)]
    dist.all_gather(gathered, own)
    return [each.numpy().tobytes() for each in gathered]
