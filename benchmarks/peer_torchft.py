"""torchft's DiLoCo on our model, start, samples and rates: what `training_peer` runs in torchft's own environment.

``main()`` with the argument TASK.json starts a lighthouse and a process for each replica, as torchft's documentation
has it, and prints one line of JSON: loss of the last averaged weights, CPU and wall seconds an inner step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.core.canonical import create_genesis, replace_theta
from training.core.fixed_point import to_units
from training.core.recipe import Recipe
from training.core.recipe_text import parse_recipe
from training.core.sampling import compute_data_seed, plan_samples
from training.core.schedule import learning_rate
from training.data.corpus import load_corpus
from training.evaluation import build_model, evaluate_state, gather_samples
from training.models.gpt import compute_loss
from training.simulate import make_members

RANK = "from benchmarks.peer_torchft import train; train()"
"""What each replica runs."""

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Of torchft's examples and of DiLoCo as published."""

TIMEOUT = timedelta(seconds=60)
"""Of torchft's calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTask:
    """What all replicas do."""

    recipe: str
    """TOML: model, inner optimizer, H and seed; the codec is torchft's own."""
    num_steps: int
    """Inner steps of each replica."""
    num_workers: int
    """D."""


def main() -> None:
    """Run all replicas and say how it went."""
    from torchft.coordination import LighthouseServer

    path = Path(sys.argv[1])
    task = PeerTask(**json.loads(path.read_text()))
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=task.num_workers, join_timeout_ms=10_000)
    port = lighthouse.address().rpartition(":")[2]
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    command = [sys.executable, "-c", RANK, str(path)]
    replicas = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, text=True, env=environment)
        for index in range(task.num_workers)
    ]
    try:
        results = [json.loads(replica.communicate()[0].splitlines()[-1]) for replica in replicas]
    finally:
        for replica in replicas:
            replica.kill()
        lighthouse.shutdown()
    print(
        json.dumps(
            {
                "loss": results[0]["loss"],
                "cpu_seconds": sum(each["cpu_seconds"] for each in results) / len(results),
                "seconds": max(each["seconds"] for each in results),
            }
        )
    )


def train() -> None:
    """Train one replica; the weights after the last synchronisation are evaluated."""
    import torch.distributed as dist
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    task, index = PeerTask(**json.loads(Path(sys.argv[1]).read_text())), int(sys.argv[2])
    torch.set_num_threads(1)
    recipe = parse_recipe(task.recipe)
    corpus = load_corpus(recipe.data)
    model = build_model(recipe, create_genesis(recipe)).train()
    inner = make_inner_optimizer(recipe, model)
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=task.num_workers,
        use_async_quorum=False,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=f"replica{index}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
    )
    members, batch, local_steps = make_members(task.num_workers), recipe.inner.batch_size, recipe.rounds.local_steps
    try:
        with DiLoCo(manager, [model], inner, outer, sync_every=local_steps, pin_memory=False):
            started, cpu_started = time.perf_counter(), time.process_time()
            for step in range(task.num_steps):
                t = step // local_steps
                plan = plan_samples(
                    seed=recipe.seed,
                    round_index=t,
                    data_seed=compute_data_seed(recipe.seed, t),
                    member=members[index],
                    participants=members,
                    num_bytes=int(corpus.train.size),
                    context=recipe.model.context,
                )
                starts = list(plan.starts(step % local_steps * batch, batch))
                for group in inner.param_groups:
                    group["lr"] = learning_rate(recipe.inner, recipe.rounds, step)
                inner.zero_grad()
                compute_loss(model, gather_samples(corpus.train, starts, recipe.model.context)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.inner.clip_norm)
                inner.step()
            seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        genesis = create_genesis(recipe)
        weights = {
            name: to_units(weight, genesis.fraction_bits[name]).to(torch.int32)
            for name, weight in model.named_parameters()
        }
        loss = evaluate_state(recipe, replace_theta(genesis, weights), corpus)
    finally:
        manager.shutdown(wait=False)
    print(json.dumps({"loss": loss, "seconds": seconds, "cpu_seconds": cpu_seconds}), flush=True)


def make_inner_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return torch's AdamW as our inner loop has it: only matrices decay."""
    inner = recipe.inner
    groups = [
        {"params": [w for w in model.parameters() if w.dim() > 1], "weight_decay": inner.weight_decay},
        {"params": [w for w in model.parameters() if w.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (inner.beta1, inner.beta2)
    return torch.optim.AdamW(groups, lr=inner.learning_rate, betas=betas, eps=1e-8, fused=True)
