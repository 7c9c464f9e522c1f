"""The model of speed: tokens a second of AllReduce, and of an outer loop with and without its tricks.

Stands in SPEC, *On paper*.

Symbols: t_c one inner step, T = 2 (D-1)/D * bytes / bandwidth a whole exchange of bf16, rho the compression, R = T/t_c.
Published: 107B on 160 GPUs at 1 Gbps, 357 times AllReduce (DiLoCoX, arXiv 2506.21263); a test pins it and the ablation.
Real links give less: goodput, codec time and start-up are terms of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.core.errors import PlanError

BF16_BYTES = 2
"""Of a gradient or weight in an AllReduce."""

BACKWARD_SHARE = 2 / 3
"""Of an inner step: two products a weight, where the forward pass has one."""

MAX_FIGURE = 1e15
"""Parameters, bits and tokens: a thousand times what anybody has, and far from where floats end."""

MAX_WORKERS = 1_000_000
"""D."""

MIN_GOODPUT = 1e-6
"""Below it there is no link."""

MAX_LOCAL_STEPS = 1 << 20
"""H, as in a recipe."""

MIN_COMPRESSION = 1e-6
"""Below 1 a worker moves more than a ring of bf16 would: so does fetching the payloads of a thousand others."""

MAX_COMPRESSION = 1e6
"""rho: a bit for sixty thousand parameters."""

MAX_SECONDS = 1e9
"""Thirty years."""

PUBLISHED_PARAMETERS = 107e9
PUBLISHED_WORKERS = 20
PUBLISHED_GPUS = 8
"""Of a worker."""
PUBLISHED_TOKENS_PER_SECOND = 3713.0
"""Of all 20 workers, 8 GPUs each, computing only (DiLoCoX, table of throughput)."""
PUBLISHED_TOKENS_PER_STEP = 33_928.0
"""Of all 20 workers: fitted, so that R is the published 356."""

ASSUMED_GPU_FLOPS = (
    6 * PUBLISHED_PARAMETERS * PUBLISHED_TOKENS_PER_SECOND / (PUBLISHED_WORKERS * PUBLISHED_GPUS)  # 1.5e13
)
"""Operations a second that one of its GPUs sustained, at 6 a parameter and token: 15 TFLOP/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines and link."""

    num_parameters: float
    """P."""
    num_workers: int
    """D, from 2."""
    bandwidth_bits: float
    """Of one worker's link, bits a second."""
    goodput: float = 1.0
    """Share of it that a flow gets; real links about 0.9."""
    tokens_per_second: float
    """Of all workers, computing only."""
    tokens_per_step: float
    """Of all workers, in one inner step."""
    startup_seconds: float = 0.0
    """Of one exchange, however small it is: round trips and the framework's own work."""
    early_share: float = 0.0
    """Share of an AllReduce that begins before the backward pass has ended: the first bucket of gradients."""

    def __post_init__(self) -> None:
        _check("--params", self.num_parameters, 1, MAX_FIGURE)
        _check("--workers", self.num_workers, 2, MAX_WORKERS)
        _check("--bandwidth", self.bandwidth_bits, 1, MAX_FIGURE)
        _check("--goodput", self.goodput, MIN_GOODPUT, 1)
        _check("--tokens-per-second", self.tokens_per_second, 1 / MAX_FIGURE, MAX_FIGURE)
        _check("--tokens-per-step", self.tokens_per_step, 1, MAX_FIGURE)
        _check("startup_seconds", self.startup_seconds, 0, MAX_SECONDS)
        if not 0 <= self.early_share < 1:
            raise PlanError("early_share", self.early_share, "from 0, below 1")

    @property
    def step_seconds(self) -> float:
        """t_c."""
        return self.tokens_per_step / self.tokens_per_second

    @property
    def exchange_seconds(self) -> float:
        """T: one whole exchange of bf16 by a ring."""
        return self.startup_seconds + self.transfer_seconds

    @property
    def transfer_seconds(self) -> float:
        """Return the part of T that bytes take."""
        return 8 * self.exchange_bytes / (self.bandwidth_bits * self.goodput)

    @property
    def exchange_bytes(self) -> float:
        """Return what one worker sends in a whole exchange of bf16."""
        return 2 * (self.num_workers - 1) / self.num_workers * BF16_BYTES * self.num_parameters

    @property
    def allreduce_step_seconds(self) -> float:
        """Return the time of a step with its AllReduce; what begins early hides behind the rest of backward."""
        left_seconds = (1 - self.early_share) * BACKWARD_SHARE * self.step_seconds
        hidden_seconds = min(self.early_share * self.transfer_seconds, left_seconds)
        return self.step_seconds + self.exchange_seconds - hidden_seconds

    @property
    def ratio(self) -> float:
        """R: exchange over step."""
        return self.exchange_seconds / self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterLoop:
    """What is exchanged, and how often."""

    local_steps: int
    """H."""
    compression: float
    """rho: bytes of a bf16 exchange over bytes of ours, on one worker's link."""
    codec_seconds: float = 0.0
    """Compress, sum and apply, each exchange, beside the inner steps where these are overlapped."""
    pause_seconds: float = 0.0
    """Of each exchange, in which the inner steps stand still however much is overlapped: what shares their core."""

    def __post_init__(self) -> None:
        _check("--local-steps", self.local_steps, 1, MAX_LOCAL_STEPS)
        _check("--compression", self.compression, MIN_COMPRESSION, MAX_COMPRESSION)
        _check("--codec-seconds", self.codec_seconds, 0, MAX_SECONDS)
        _check("pause_seconds", self.pause_seconds, 0, MAX_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One row of the table."""

    scheme: str
    """What is on."""
    tokens_per_second: float
    """Of all workers."""
    utilisation: float
    """Share of the time that computes, 0..1."""
    speed_up: float
    """Over AllReduce."""


def compute_speeds(cluster: Cluster, loop: OuterLoop) -> list[Speed]:
    """Return AllReduce, ours, and ours without overlap or without compression.

    >>> paper = Cluster(
    ...     num_parameters=107e9, num_workers=20, bandwidth_bits=1e9, tokens_per_second=3713, tokens_per_step=33_928
    ... )
    >>> [round(speed.speed_up) for speed in compute_speeds(paper, OuterLoop(local_steps=125, compression=4.4))][:2]
    [1, 357]
    """
    plain = OuterLoop(local_steps=loop.local_steps, compression=1.0)
    seconds = {
        "AllReduce": cluster.allreduce_step_seconds,
        "overlap and compression": compute_step_seconds(cluster, loop, is_overlapped=True),
        "without overlap": compute_step_seconds(cluster, loop, is_overlapped=False),
        "without compression": compute_step_seconds(cluster, plain, is_overlapped=True),
        "without both": compute_step_seconds(cluster, plain, is_overlapped=False),
    }
    return [
        Speed(
            scheme=scheme,
            tokens_per_second=cluster.tokens_per_step / each,
            utilisation=cluster.step_seconds / each,
            speed_up=seconds["AllReduce"] / each,
        )
        for scheme, each in seconds.items()
    ]


def assume_compute(
    num_parameters: float,
    num_workers: int,
    tokens_per_second: float | None,
    tokens_per_step: float | None,
    batch_tokens: int | None,
) -> tuple[float, float]:
    """Return (tokens a second, tokens a step) of all workers; what isn't given is assumed.

    A token takes work in proportion to the parameters, so as many operations a second a worker as in DiLoCoX's cluster
    are P_0 / P times as many tokens.  A worker's step takes ``batch_tokens``, those of a recipe; None: as long as
    there, its batch grown by as much.  At 107B and 20 workers: the published.

    >>> assume_compute(107e9, 20, None, None, None)
    (3713.0, 33928.0)
    """
    _check("--params", num_parameters, 1, MAX_FIGURE)
    _check("--workers", num_workers, 2, MAX_WORKERS)
    scale = PUBLISHED_PARAMETERS / num_parameters * (num_workers / PUBLISHED_WORKERS)
    speed = PUBLISHED_TOKENS_PER_SECOND * scale if tokens_per_second is None else tokens_per_second
    if tokens_per_step is not None:
        return speed, tokens_per_step
    if batch_tokens is not None:
        return speed, float(num_workers * batch_tokens)
    if tokens_per_second is None:
        return speed, PUBLISHED_TOKENS_PER_STEP * scale
    return speed, tokens_per_second * PUBLISHED_TOKENS_PER_STEP / PUBLISHED_TOKENS_PER_SECOND


def compute_least_compression(cluster: Cluster, local_steps: int) -> float:
    """Return the least rho with which an overlapped exchange is hidden: R / H."""
    return max(1.0, cluster.ratio / local_steps)


def compute_step_seconds(cluster: Cluster, loop: OuterLoop, *, is_overlapped: bool) -> float:
    """Return the time of an inner step with its share of the exchange."""
    compute = loop.local_steps * cluster.step_seconds + loop.pause_seconds
    exchange = cluster.startup_seconds + cluster.transfer_seconds / loop.compression + loop.codec_seconds
    return (max(compute, exchange) if is_overlapped else compute + exchange) / loop.local_steps


def _check(option: str, value: float, minimum: float, maximum: float) -> None:
    """Raise unless a figure lies in its closed range; NaN never does."""
    if not minimum <= value <= maximum:
        raise PlanError(option, f"{value:g}", f"{minimum:g} to {maximum:g}")
