"""The AllReduce that all methods are compared with, against torch's own: DDP, AdamW and clipping over two processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from training.baselines import train_allreduce
from training.core.canonical import dequantise
from training.core.recipe import OptimizerKind, Recipe
from training.data.corpus import Corpus
from training.recipes.writing import write_recipe
from training.simulate import load_recipe

NUM_RANKS = 2
RANK_SECONDS = 240
"""To load torch twice at once and train for seconds, on a busy machine."""

RANK = """
    import os
    import sys
    from datetime import timedelta
    from pathlib import Path

    import numpy as np
    import torch
    from safetensors.torch import save_file
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from training.core.canonical import create_genesis, dequantise
    from training.core.recipe_text import parse_recipe
    from training.core.sampling import compute_data_seed, plan_samples
    from training.core.schedule import compute_global_step, learning_rate, plan_steps
    from training.evaluation import gather_samples
    from training.models.gpt import compute_loss
    from training.models.registry import create_module
    from training.simulate import make_members

    folder, rank, num_ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=200)
    )
    recipe = parse_recipe((folder / "recipe.toml").read_text())
    text = np.fromfile(folder / "text", dtype=np.uint8)
    model = create_module(recipe.model)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in dequantise(create_genesis(recipe)).items():
            weights[name].copy_(value)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for weight in weights.values() if weight.dim() > 1]},
            {"params": [weight for weight in weights.values() if weight.dim() <= 1], "weight_decay": 0.0},
        ],
        betas=(recipe.inner.beta1, recipe.inner.beta2),
        eps=1e-8,
        weight_decay=recipe.inner.weight_decay,
    )
    members, batch = make_members(num_ranks), recipe.inner.batch_size
    for round_index in range(recipe.rounds.num_rounds):
        plan = plan_samples(
            seed=recipe.seed,
            round_index=round_index,
            data_seed=compute_data_seed(recipe.seed, round_index),
            member=members[rank],
            participants=members,
            num_bytes=len(text),
            context=recipe.model.context,
        )
        num_steps = plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)
        for step in range(num_steps):
            global_step = compute_global_step(recipe.rounds, round_index, step, num_steps)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe.inner, recipe.rounds, global_step)
            optimizer.zero_grad()
            starts = list(plan.starts(step * batch, batch))
            compute_loss(parallel, gather_samples(text, starts, recipe.model.context)).backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), recipe.inner.clip_norm)
            optimizer.step()
    if rank == 0:
        save_file({name: weight.detach() for name, weight in weights.items()}, folder / "weights")
    distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    tiny = load_recipe("tiny")
    return replace(
        tiny,
        inner=replace(tiny.inner, optimizer=OptimizerKind.ADAMW),
        rounds=replace(tiny.rounds, num_fragments=1, overlap=0, local_steps=8, num_rounds=3),
    )


@pytest.fixture(scope="module")
def weights_of_ddp(recipe: Recipe, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("ddp")
    (folder / "recipe.toml").write_text(write_recipe(recipe))
    np.asarray(corpus.train).tofile(folder / "text")
    (folder / "rank.py").write_text(textwrap.dedent(RANK))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, str(folder / "rank.py"), str(folder), str(rank), str(NUM_RANKS)], env=env)
        for rank in range(NUM_RANKS)
    ]
    try:
        assert [rank.wait(RANK_SECONDS) for rank in ranks] == [0] * NUM_RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return load_file(folder / "weights")


@pytest.mark.integration
def test_allreduce_is_ddp(recipe: Recipe, corpus: Corpus, weights_of_ddp: dict[str, torch.Tensor]) -> None:
    """Within rounding: the mean of two means is summed in another order, and AdamW divides by small second moments."""
    ours = dequantise(train_allreduce(recipe, corpus, NUM_RANKS))
    alone = dequantise(train_allreduce(recipe, corpus, 1))
    assert set(ours) == set(weights_of_ddp)
    off = max(float((ours[name] - weight).abs().max()) for name, weight in weights_of_ddp.items())
    moved = max(float((alone[name] - weight).abs().max()) for name, weight in weights_of_ddp.items())
    assert off < 1e-3 < 1e-2 < moved, f"off by {off}, one worker alone by {moved}"
