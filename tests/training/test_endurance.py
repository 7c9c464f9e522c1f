"""What hurts only after a while: small updates, growth, a full disk (CASES 8, 23, 24)."""

from __future__ import annotations

import errno
import gc
import os
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from training.core.canonical import create_genesis
from training.core.recipe import CodecKind
from training.core.settle import settle
from training.data.corpus import Corpus
from training.local import LocalWorker
from training.memory import compute_disk_bytes, describe_short_disk, plan_needs
from training.simulate import make_members, simulate


def test_every_norm_weight_moves(make_recipe, corpus: Corpus) -> None:  # type: ignore[no-untyped-def]
    """Norm weights begin at 1, where a coarse format would swallow each step; the agreed state keeps all of them."""
    recipe = make_recipe(CodecKind.LOW_RANK_2BIT, fragments=4, overlap=1, num_rounds=24)
    state, _ = simulate(recipe, corpus, 2)
    genesis = create_genesis(recipe)
    for name, theta in state.theta.items():
        if "norm" in name:
            assert bool((theta != genesis.theta[name]).all()), name


def test_nothing_grows_over_500_rounds(make_recipe, corpus: Corpus, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    base = make_recipe(CodecKind.DENSE_INT8, fragments=4, overlap=1, num_rounds=600)
    recipe = replace(base, rounds=replace(base.rounds, local_steps=4))
    members = make_members(1)
    workers = [LocalWorker(recipe, create_genesis(recipe), 0, member, corpus=corpus) for member in members]
    state, process, before, sizes = create_genesis(recipe), psutil.Process(), None, (0, 0)
    for round_index in range(500):
        payloads = []
        for worker in workers:
            worker.train(round_index, 1, participants=members)
            payloads.append(worker.send(round_index, rank=4))
        settlement = settle(recipe, state, round_index, payloads, rank=4, local_steps=4)
        state = settlement.state
        for worker in workers:
            worker.apply(settlement, round_index, True)
        if round_index % 50 == 49:
            workers[0].save(tmp_path / "state")
        if round_index in (149, 499):
            gc.collect()
            rss = process.memory_info().rss
            now = (process.num_fds(), threading.active_count(), len(list(tmp_path.iterdir())))
            size = (tmp_path / "state").stat().st_size
            if before is None:
                before, sizes = now, (rss, size)
            else:
                assert now == before, "descriptors, threads, files"
                assert rss - sizes[0] < 8 << 20, f"{(rss - sizes[0]) >> 10} KiB more after 350 rounds"
                assert abs(size - sizes[1]) < 1024


def test_a_full_disk_costs_the_save_only(make_recipe, corpus: Corpus, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The last good state stays and loads, nothing half is left behind, and training goes on."""
    recipe = make_recipe()
    worker = LocalWorker(recipe, create_genesis(recipe), 0, b"\x01" * 20, corpus=corpus)
    worker.train(0, 2)
    worker.save(tmp_path / "state")
    good = worker.digest()
    worker.train(0, 4)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            worker.save(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert LocalWorker.load(tmp_path / "state", recipe, b"\x01" * 20, corpus=corpus).digest() == good
    assert worker.train(0, 6).steps == 2
    worker.save(tmp_path / "state")


def test_a_short_disk_is_said_before_the_start(make_recipe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    needs = plan_needs(make_recipe())
    needed = compute_disk_bytes(needs)
    assert describe_short_disk(needs, tmp_path, needed) is None
    assert "--home" in (describe_short_disk(needs, tmp_path, needed - 1) or "")


def test_a_saved_state_is_as_large_as_the_warning_counts(make_recipe, corpus: Corpus, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    base = make_recipe()
    recipe = replace(base, model=replace(base.model, width=64, hidden=128))
    worker = LocalWorker(recipe, create_genesis(recipe), 0, b"\x01" * 20, corpus=corpus)
    worker.train(0, 1)
    worker.send(0, rank=4)
    worker.save(tmp_path / "state")
    size = (tmp_path / "state").stat().st_size
    assert 0.6 < size / (compute_disk_bytes(plan_needs(recipe)) / 3) <= 1
