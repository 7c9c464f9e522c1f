"""The link shaped in user space: no direction carries more than its rate, and DDP behind it learns the same."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks.link_user import PacedLink, compute_wire_bytes

ROOT = Path(__file__).parents[2]

RATE = 8_000_000
"""A million bytes a second."""


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def link(clock: Clock) -> PacedLink:
    link = PacedLink(clock, clock.sleep)
    link.set_rate(RATE)
    return link


def test_a_transfer_waits_for_its_bytes(link: PacedLink, clock: Clock) -> None:
    link.carry(clock.now, up_bytes=1_448_000, down_bytes=0)
    assert clock.now == pytest.approx(100 + 1.514), "a thousand frames of 1,514 bytes"


def test_what_took_longer_by_itself_waits_no_more(link: PacedLink, clock: Clock) -> None:
    started = clock.now
    clock.now += 5
    link.carry(started, up_bytes=1_448_000, down_bytes=1_448_000)
    assert clock.now == 105


def test_directions_are_apart_and_each_is_a_queue(link: PacedLink, clock: Clock) -> None:
    started = clock.now
    link.carry(started, up_bytes=1_448_000, down_bytes=0)
    link.carry(started, up_bytes=0, down_bytes=1_448_000)
    assert clock.now == pytest.approx(100 + 1.514), "both at once"
    link.carry(started, up_bytes=1_448_000, down_bytes=0)
    assert clock.now == pytest.approx(100 + 2 * 1.514), "behind what was there"
    assert link.read_bytes() == (2 * 1_514_000, 1_514_000)


def test_without_a_rate_bytes_are_counted_and_nothing_waits(clock: Clock) -> None:
    link = PacedLink(clock, clock.sleep)
    link.carry(clock.now, up_bytes=10**9, down_bytes=0)
    assert clock.now == 100
    assert link.read_bytes() == (compute_wire_bytes(10**9), 0)


def test_frames_grow_with_bytes() -> None:
    sizes = [compute_wire_bytes(payload_bytes) for payload_bytes in range(0, 5_000)]
    assert all(0 < after - before <= 67 for before, after in pairwise(sizes))


RANK = """
import json, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from benchmarks.link_user import PacedExchange, PacedLink, exchange_paced

rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
model = torch.nn.Linear(1_000, 500, bias=False)
parallel, link = DistributedDataParallel(model), PacedLink()
link.set_rate(8_000_000)
samples = torch.full((4, 1_000), 1.0 + rank)
parallel(samples).sum().backward()
plain = float(model.weight.grad.double().sum())
model.zero_grad()
paced = PacedExchange(link, 2)
parallel.register_comm_hook(paced, exchange_paced)
dist.barrier()
started = time.monotonic()
parallel(samples).sum().backward()
seconds = time.monotonic() - started
paced.close()
gradients = [plain, float(model.weight.grad.double().sum())]
print(json.dumps({"gradients": gradients, "seconds": seconds, "bytes": link.read_bytes()}))
dist.barrier()
dist.destroy_process_group()
"""
"""Backward passes of half a million parameters, a megabyte of bf16 each way: plain DDP, then paced."""


def test_ddp_behind_it_learns_the_same_and_waits_for_its_gradients() -> None:
    board = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(board.port)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(2)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
    for each in said:
        assert each["gradients"] == [4 * 1.5 * 500_000] * 2, "the mean of both ranks' samples"
        assert each["bytes"] == [compute_wire_bytes(1_000_000)] * 2
        assert each["seconds"] >= compute_wire_bytes(1_000_000) / 1_000_000
