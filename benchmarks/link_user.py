"""A link shaped in user space, by waiting, where the kernel makes no namespaces or has no TBF.

Processes meet over the loopback.  Whoever has moved bytes says since when and how many each way, and waits until a
link of that rate would have carried them: a queue a direction, one transfer behind the other, and bytes as they would
stand on the wire.  Invariant: in no stretch of time does a direction carry more than its rate.  What this cannot show
is TCP's own share: slow start, losses, and "you may send" that queues behind payload, which cost a ring up to a sixth.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist

HOST, DEVICE = "127.0.0.1", "lo"
"""Where all processes meet."""

FRAME_BYTES, SEGMENT_BYTES = 1_514, 1_448
"""Of a full Ethernet frame, and what TCP with timestamps has in it."""


class UserLinks:
    """Stands for `link_namespaces.Links`: nothing is made, and the ranks shape themselves by what a task says."""

    hub = ""
    """No namespace."""

    def __init__(self, num_spokes: int) -> None:
        """Shape nothing yet."""
        self.spokes = ("",) * num_spokes
        self.paced_bits = 0

    def wrap(self, namespace: str, command: list[str]) -> list[str]:
        """Return the command as it is."""
        return command

    def set_rate(self, bits_a_second: int) -> None:
        """Have every later task shaped; 0 leaves it as fast as it is."""
        self.paced_bits = bits_a_second


class PacedLink:
    """One worker's link, full duplex."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Carry everything at once until a rate is set."""
        self._clock, self._sleep = clock, sleep
        self._bits_a_second = 0
        self._lock = Lock()
        self._free_at = [0.0, 0.0]
        self._moved = [0, 0]

    def set_rate(self, bits_a_second: int) -> None:
        """Have later transfers wait for so many bits a second each way; 0: for nothing."""
        self._bits_a_second = bits_a_second

    def read_bytes(self) -> tuple[int, int]:
        """Return what was sent and received, as it would stand on the wire."""
        return self._moved[0], self._moved[1]

    def now(self) -> float:
        """Return the time that `carry` counts from."""
        return self._clock()

    def carry(self, started: float, *, up_bytes: int, down_bytes: int) -> None:
        """Wait until the link would have carried a transfer that began at ``started``."""
        with self._lock:
            end = started
            for way, payload_bytes in enumerate((up_bytes, down_bytes)):
                wire_bytes = compute_wire_bytes(payload_bytes)
                self._moved[way] += wire_bytes
                if self._bits_a_second:
                    begin = max(started, self._free_at[way])
                    self._free_at[way] = begin + 8 * wire_bytes / self._bits_a_second
                    end = max(end, self._free_at[way])
        left = end - self._clock()
        if left > 0:
            self._sleep(left)


class PacedExchange:
    """What `exchange_paced` keeps: buckets one after the other, beside the backward pass."""

    def __init__(self, link: PacedLink, num_ranks: int) -> None:
        """Exchange in a thread of its own, as gloo does."""
        self._link = link
        self._num_ranks = num_ranks
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paced")

    def start(self, gradient: torch.Tensor) -> torch.futures.Future[Any]:
        """Begin the exchange of a bucket."""
        done: torch.futures.Future[Any] = torch.futures.Future()
        self._pool.submit(self._exchange, gradient, done)
        return done

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _exchange(self, gradient: torch.Tensor, done: torch.futures.Future[Any]) -> None:
        try:
            halved = gradient.to(torch.bfloat16).div_(self._num_ranks)
            reduce_paced(self._link, halved, self._num_ranks)
            done.set_result(gradient.copy_(halved))
        except RuntimeError as error:
            done.set_exception(error)  # the backward pass raises it


def exchange_paced(state: PacedExchange, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Give DDP a bucket's mean, through bf16, when the link would have carried it; DDP reads these annotations."""
    return state.start(bucket.buffer())


def reduce_paced(link: PacedLink, values: torch.Tensor, num_ranks: int) -> None:
    """Sum in place over all ranks, in the time that a ring of ``num_ranks`` takes on the link."""
    started = link.now()
    dist.all_reduce(values)
    ring_bytes = 2 * (num_ranks - 1) * values.numel() * values.element_size() // num_ranks
    link.carry(started, up_bytes=ring_bytes, down_bytes=ring_bytes)


def compute_wire_bytes(payload_bytes: int) -> int:
    """Return the bytes of the frames that TCP cuts a transfer into.

    >>> compute_wire_bytes(0), compute_wire_bytes(1), compute_wire_bytes(1_449)
    (0, 67, 1581)
    """
    frames = -(-payload_bytes // SEGMENT_BYTES)
    return payload_bytes + frames * (FRAME_BYTES - SEGMENT_BYTES)
