"""One worker behind a shaped link: it trains as it is told, by several schemes, and says how long that took.

``main()`` with the arguments RANK BOARD_PORT SEATS.json FOLDER HOST DEVICE; then each line of JSON on standard input is
a `Task` and is answered by a line of JSON, a `Result`.  Where DEVICE is the loopback, the rank shapes itself
(`link_user`).  AllReduce is torch's own DDP with its bf16 hook over gloo; DiLoCo averages whole bf16 pseudo-gradients
over gloo; ours is the worker's engine, which disperses to and reads from real storage nodes in another thread, with its
state made durable each round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.link_namespaces import read_link_bytes
from benchmarks.link_user import DEVICE, PacedExchange, PacedLink, exchange_paced, reduce_paced
from benchmarks.store_fleet import EXPIRY, GENESIS
from da.blocking import BlobClient
from da.core.certificate import decode_certificate, encode_certificate
from da.core.types import Committee, Epoch, Seat, ShardIndex, Tier
from training.baselines import read_state
from training.core.canonical import CanonicalState, create_genesis, dequantise
from training.core.recipe import (
    CodecKind,
    CodecRecipe,
    DataRecipe,
    InnerRecipe,
    ModelRecipe,
    OuterRecipe,
    Recipe,
    RoundsRecipe,
)
from training.core.sampling import compute_data_seed, plan_samples
from training.core.schedule import learning_rate, plan_steps
from training.core.settle import Settlement, settle
from training.data.corpus import Corpus, load_corpus
from training.evaluation import evaluate_state, gather_samples
from training.inner import InnerLoop
from training.local import LocalWorker
from training.simulate import make_members

NUM_RANKS = 2
"""D."""

FRAGMENTS = 4
"""F of ours: each round makes a whole worker state durable, which would not be short beside a tenth of these H."""

RANK = 8
"""r of ours."""

WARM_STEPS = 10
"""Of inner steps alone, before the clock starts: fifty would show what the first ones allocate."""

OUTER_MOMENTUM, OUTER_RATE = 0.9, 0.7
"""Of DiLoCo, as published; ours follows its recipe's ramp."""

AHEAD = 2
"""Messages of a ring that may be under way at a time in each direction, as gloo has it."""

BOARD_SECONDS = 120.0
"""Longest wait for another rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to do."""

    kind: str
    """compute, allreduce, diloco, ours, or of bytes alone: flow, ring."""
    num_steps: int
    """Inner steps of each rank; flow: bytes that rank 0 sends; ring: bytes that each sends."""
    local_steps: int = 1
    """H; ring: messages that the bytes are sent in."""
    num_points: int = 0
    """Held-out losses along the way, computed after the clock has stopped."""
    paced_bits: int = 0
    """Bits a second that a rank on the loopback keeps to; 0: no limit."""


@dataclass(slots=True, kw_only=True)
class Result:
    """How it went."""

    seconds: float = 0.0
    """From a meeting of the ranks to the end of this rank's last step."""
    up_bytes: int = 0
    """Sent in that time, as the kernel counts; on the loopback as they would stand on the wire."""
    down_bytes: int = 0
    """Received."""
    points: list[tuple[int, float]] = field(default_factory=list)
    """(steps, held-out nats a byte)."""
    root: str = ""
    """Ours: agreed root."""
    payload_bytes: int = 0
    """Ours: of one exchange of all fragments."""


def make_recipe(num_steps: int, local_steps: int, fragments: int) -> Recipe:
    """Return one million parameters with so small a batch that a step is short beside its gradient's way."""
    return Recipe(
        name="link",
        seed=0,
        model=ModelRecipe(width=128, num_layers=5, num_heads=4, hidden=352, context=32),
        data=DataRecipe(eval_windows=256),
        inner=InnerRecipe(batch_size=1, learning_rate=0.002, warmup_steps=50),
        codec=CodecRecipe(kind=CodecKind.LOW_RANK_2BIT, rank=RANK),
        outer=OuterRecipe(),
        rounds=RoundsRecipe(
            num_fragments=fragments,
            overlap=1 if fragments > 1 else 0,
            local_steps=local_steps,
            num_rounds=max(1, num_steps * fragments // local_steps),
        ),
    )


class LinkRank:
    """A rank with its connections."""

    def __init__(
        self, rank: int, port: int, seats: list[dict[str, str]], folder: Path, host: str, link: PacedLink | None
    ) -> None:
        """Meet the others; with a ``link`` wait for it."""
        self._rank = rank
        self._folder = folder
        self._link = link
        timeout = timedelta(seconds=BOARD_SECONDS)
        self._board = dist.TCPStore(host, port, is_master=False, timeout=timeout)
        gloo = dist.PrefixStore("gloo", self._board)
        dist.init_process_group("gloo", store=gloo, rank=rank, world_size=NUM_RANKS, timeout=timeout)
        self._blobs = BlobClient()
        self._committee = Committee(
            epoch=Epoch(1),
            seats=tuple(
                Seat(index=ShardIndex(index), key=bytes.fromhex(seat["key"]), url=seat["url"])
                for index, seat in enumerate(seats)
            ),
        )
        self._corpus: Corpus = load_corpus(DataRecipe())
        self._num_tasks = 0
        self._members = make_members(NUM_RANKS)
        self._finish: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Leave."""
        self._blobs.close()
        dist.destroy_process_group()

    def work(self, task: Task) -> Result:
        """Do one task."""
        self._num_tasks += 1
        run = {
            "compute": self._compute,
            "allreduce": self._allreduce,
            "diloco": self._diloco,
            "ours": self._ours,
            "flow": self._flow,
            "ring": self._ring,
        }
        is_ours = task.kind == "ours"
        recipe = make_recipe(
            task.num_steps if task.kind not in ("flow", "ring") else 1, task.local_steps, FRAGMENTS if is_ours else 1
        )
        if self._link is not None:
            self._link.set_rate(task.paced_bits)
        read_bytes = read_link_bytes if self._link is None else self._link.read_bytes
        result, seen = Result(), list[tuple[int, Callable[[], CanonicalState]]]()
        train = run[task.kind](task, recipe, result, seen)
        dist.barrier()
        up, down = read_bytes()
        started = time.perf_counter()
        train()
        result.seconds = time.perf_counter() - started
        up_after, down_after = read_bytes()
        result.up_bytes, result.down_bytes = up_after - up, down_after - down
        self._finish()
        self._finish = lambda: None
        dist.barrier()
        if task.num_points and self._rank == 0:
            result.points = [(steps, evaluate_state(recipe, read(), self._corpus)) for steps, read in seen]
        return result

    def _steps(self, recipe: Recipe, inner: InnerLoop) -> Callable[[int], None]:
        """Return what does inner step number i on this rank's samples."""
        plan = plan_samples(
            seed=recipe.seed,
            round_index=0,
            data_seed=compute_data_seed(recipe.seed, 0),
            member=self._members[self._rank],
            participants=self._members,
            num_bytes=int(self._corpus.train.size),
            context=recipe.model.context,
        )
        batch = recipe.inner.batch_size

        def step(index: int) -> None:
            starts = list(plan.starts(index * batch, batch))
            samples = gather_samples(self._corpus.train, starts, recipe.model.context)
            inner.step(samples, learning_rate(recipe.inner, recipe.rounds, index))

        return step

    def _compute(self, task: Task, recipe: Recipe, result: Result, seen: list[Any]) -> Callable[[], None]:
        """Inner steps and nothing else: what the others are measured by."""
        inner = InnerLoop(recipe, torch.device("cpu"))
        inner.set_weights(dequantise(create_genesis(recipe)))
        step = self._steps(recipe, inner)
        for index in range(WARM_STEPS):
            step(index)

        def train() -> None:
            for index in range(task.num_steps):
                step(index)

        return train

    def _allreduce(self, task: Task, recipe: Recipe, result: Result, seen: list[Any]) -> Callable[[], None]:
        inner, genesis = InnerLoop(recipe, torch.device("cpu")), create_genesis(recipe)
        inner.set_weights(dequantise(genesis))
        parallel = DistributedDataParallel(inner.model)
        if self._link is None:
            parallel.register_comm_hook(None, bf16_compress_hook)
        else:
            paced = PacedExchange(self._link, NUM_RANKS)
            parallel.register_comm_hook(paced, exchange_paced)
            self._finish = paced.close
        inner.model = parallel
        step = self._steps(recipe, inner)

        def train() -> None:
            for index in range(task.num_steps):
                step(index)
                if _is_point(task, index + 1):
                    state = read_state(genesis, inner)
                    seen.append((index + 1, lambda state=state: state))

        return train

    def _diloco(self, task: Task, recipe: Recipe, result: Result, seen: list[Any]) -> Callable[[], None]:
        inner, genesis = InnerLoop(recipe, torch.device("cpu")), create_genesis(recipe)
        inner.set_weights(dequantise(genesis))
        step = self._steps(recipe, inner)
        weights = list(inner.weights.values())
        anchor = torch.cat([weight.detach().reshape(-1) for weight in weights])
        momentum = torch.zeros_like(anchor)

        def train() -> None:
            for index in range(task.num_steps):
                step(index)
                if (index + 1) % task.local_steps == 0:
                    local = torch.cat([weight.detach().reshape(-1) for weight in weights])
                    delta = (anchor - local).to(torch.bfloat16)
                    if self._link is None:
                        dist.all_reduce(delta)
                    else:
                        reduce_paced(self._link, delta, NUM_RANKS)
                    mean = delta.float() / NUM_RANKS
                    momentum.mul_(OUTER_MOMENTUM).add_(mean)
                    anchor.sub_(OUTER_RATE * (mean + OUTER_MOMENTUM * momentum))
                    with torch.no_grad():
                        for weight, value in zip(weights, anchor.split([w.numel() for w in weights]), strict=True):
                            weight.copy_(value.reshape(weight.shape))
                if _is_point(task, index + 1):
                    state = read_state(genesis, inner)
                    seen.append((index + 1, lambda state=state: state))

        return train

    def _ours(self, task: Task, recipe: Recipe, result: Result, seen: list[Any]) -> Callable[[], None]:
        genesis, me = create_genesis(recipe), self._members[self._rank]
        worker = LocalWorker(recipe, genesis, 0, me, corpus=self._corpus)
        name = f"run{self._num_tasks}"
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exchange")
        pending: list[Future[Settlement]] = []

        def exchange(t: int, payload: bytes) -> Settlement:
            before = pending[t - 1].result().state if t else genesis
            with self._carried():
                certificate = self._blobs.disperse(
                    payload, committee=self._committee, genesis_hash=GENESIS, tier=Tier.TEMPORARY, expiry=EXPIRY
                )
            self._board.set(f"{name}/{t}/{self._rank}", encode_certificate(certificate))
            payloads = []
            for other in range(NUM_RANKS):
                if other == self._rank:
                    payloads.append(payload)
                    continue
                blob = decode_certificate(self._board.get(f"{name}/{t}/{other}")).terms.blob
                with self._carried():
                    got = self._blobs.retrieve(blob, committee=self._committee, max_bytes=len(payload))
                payloads.append(bytes(got.data))
            done = settle(recipe, before, t, payloads, rank=RANK, local_steps=task.local_steps)
            done.state.root()
            return done

        def train() -> None:
            for t in range(recipe.rounds.num_rounds):
                for settled in range(worker.version, max(0, t - recipe.rounds.overlap)):
                    worker.apply(pending[settled].result(), settled, True)
                worker.train(t, plan_steps(recipe.rounds, t, task.local_steps), participants=self._members)
                payload = worker.send(t, rank=RANK)
                worker.save(self._folder / "state")
                result.payload_bytes += len(payload) if t < FRAGMENTS else 0
                pending.append(pool.submit(exchange, t, payload))
                if _is_point(task, (t + 1) * task.local_steps // FRAGMENTS):
                    steps = (t + 1) * task.local_steps // FRAGMENTS
                    seen.append((steps, lambda future=pending[-1]: future.result().state))

        def finish() -> None:
            result.root = pending[-1].result().state.root().hex()
            pool.shutdown()

        self._finish = finish
        return train

    @contextmanager
    def _carried(self) -> Iterator[None]:
        """Wait for the link to carry what the stores' client moves meanwhile."""
        started, sent, received = time.monotonic(), self._blobs.bytes_sent, self._blobs.bytes_received
        yield
        if self._link is not None:
            up_bytes, down_bytes = self._blobs.bytes_sent - sent, self._blobs.bytes_received - received
            self._link.carry(started, up_bytes=up_bytes, down_bytes=down_bytes)

    def _flow(self, task: Task, recipe: Recipe, result: Result, seen: list[Any]) -> Callable[[], None]:
        """One flow from rank 0 to rank 1, after a small one that opens the connection."""
        data = torch.zeros(task.num_steps, dtype=torch.uint8)
        is_sender = self._rank == 0

        def move(piece: torch.Tensor) -> None:
            started = time.monotonic()
            if is_sender:
                dist.send(piece, 1)
            else:
                dist.recv(piece, 0)
            if self._link is not None:
                up, down = (piece.numel(), 0) if is_sender else (0, piece.numel())
                self._link.carry(started, up_bytes=up, down_bytes=down)

        move(data[:16])
        return lambda: move(data)

    def _ring(self, task: Task, recipe: Recipe, result: Result, seen: list[Any]) -> Callable[[], None]:
        """The messages of a ring between two, without sums: both ways at once, each after what came before it.

        What makes this slower than a flow: gloo has one connection for both ways, on which "you may send" queues
        behind payload, so that who is ahead waits.
        """
        pieces = torch.zeros(task.num_steps, dtype=torch.uint8).chunk(task.local_steps)
        other = 1 - self._rank

        def move() -> None:
            started = time.monotonic()
            arriving: list[Any] = []
            leaving: list[Any] = []
            for index, piece in enumerate(pieces):
                arriving.append(dist.irecv(torch.empty_like(piece), other))
                if index >= AHEAD:
                    arriving[index - AHEAD].wait()
                leaving.append(dist.isend(piece, other))
            for each in (*arriving[-AHEAD:], *leaving):
                each.wait()
            if self._link is not None:
                self._link.carry(started, up_bytes=task.num_steps, down_bytes=task.num_steps)

        return move


def _is_point(task: Task, steps: int) -> bool:
    every = task.num_steps // task.num_points if task.num_points else 0
    return every > 0 and steps % every == 0


def main() -> None:
    """Do tasks until standard input ends."""
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4])
    host, device = sys.argv[5], sys.argv[6]
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    os.environ["GLOO_SOCKET_IFNAME"] = device
    torch.set_num_threads(1)
    link = PacedLink() if device == DEVICE else None
    me = LinkRank(rank, port, json.loads(Path(sys.argv[3]).read_text()), folder, host, link)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        result = me.work(Task(**json.loads(line)))
        fields = {name: getattr(result, name) for name in Result.__slots__}
        print(json.dumps(fields), flush=True)
    me.close()
