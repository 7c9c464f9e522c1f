"""The training schemes that are compared, each tuned for itself, and the sizes they are compared at.

A method turns the recipe that all share into its own; a scenario says with how many workers, how many local steps, how
long and from which seeds.  Rates and outer coefficients were chosen on seed 0 at D 4 and H 20, and a scenario names the
methods for which another rate is better there; ``RATES=1`` does half and twice each (SPEC, *Measurements*).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from training.core.recipe import (
    Q15_ONE,
    CodecKind,
    CodecRecipe,
    DataRecipe,
    InnerRecipe,
    ModelRecipe,
    OptimizerKind,
    OuterRecipe,
    Recipe,
    RoundsRecipe,
    StartKind,
)
from training.core.sizing import SHAPES
from training.recipes.shapes import MUON_OUTER

RAMP = OuterRecipe()
"""mu 0 -> 0.9, eta 1 -> 0.7: best with AdamW, for synchronous DiLoCo and for ours (TRAINING)."""

AHEAD = MUON_OUTER
"""mu 0 -> 0.9, eta 1.3 -> 0.8: with Muon best for ours, and no worse for synchronous DiLoCo (SPEC)."""

FURTHER = OuterRecipe(rate_start_q15=55377, rate_end_q15=34078)
"""mu 0 -> 0.9, eta 1.69 -> 1.04: better for ours with eight workers, and worse for synchronous DiLoCo (SPEC)."""

PLAIN = OuterRecipe(momentum_start_q15=0, momentum_end_q15=0, rate_start_q15=Q15_ONE, rate_end_q15=Q15_ONE)
"""mu 0, eta 1: best for one round late, for eager and for SparseLoCo (TRAINING, and its paper)."""

CLASSIC = OuterRecipe(momentum_start_q15=29491, momentum_end_q15=29491, rate_start_q15=22938, rate_end_q15=22938)
"""mu 0.9, eta 0.7, as DiLoCo was published."""

FRAGMENTS = 10
"""F of our default (TRAINING)."""

RANK = 16
"""Of the low-rank methods: 0.09 bytes a parameter and exchange at the smallest width."""

FORGET = 3_000
"""Of error feedback, with words: 2,000 and 3,000 did equally well, 0 and 4,000 worse (SPEC)."""

SPARSELOCO_FORGET = 500
"""Its paper's decay of 0.95."""

SMALL = ModelRecipe(width=64, num_layers=3, num_heads=4, hidden=176, context=64)
"""167,360 parameters."""

MIDDLE = replace(SHAPES["0.4M"], context=64)
"""357,024 parameters, with the samples of the others."""

LARGE = ModelRecipe(width=224, num_layers=5, num_heads=7, hidden=600, context=64)
"""3.1 million parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to train."""

    name: str
    """Row and legend."""
    recipe: Callable[[Recipe], Recipe]
    """Turns the common recipe into the method's."""
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    """Inside each worker."""
    learning_rate: float = 0.004
    """Its best of those tried at D 4 and H 20."""
    is_allreduce: bool = False
    """One model, averaged gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Where methods are compared."""

    name: str
    """In rows and files."""
    methods: tuple[str, ...]
    """By name."""
    model: ModelRecipe = SMALL
    """Shape."""
    num_workers: int = 4
    """D."""
    local_steps: int = 20
    """H."""
    num_steps: int = 800
    """Inner steps of each worker."""
    num_seeds: int = 2
    """From 0 on; the quick run takes the first."""
    is_full_only: bool = False
    """Left out of the quick run."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """By method, where another rate than its own is better here."""
    outers: Mapping[str, OuterRecipe] = field(default_factory=dict)
    """By method, where another outer schedule than its own is better here."""

    def describe(self) -> str:
        """Return what a reader needs to repeat it."""
        return (
            f"{self.name}: width {self.model.width}, {self.model.num_layers} layers, D {self.num_workers},"
            f" H {self.local_steps}, {self.num_steps} steps a worker, batch 8 x {self.model.context} bytes,"
            " held-out nats a byte"
        )


def make_common(scenario: Scenario, seed: int) -> Recipe:
    """Return the recipe that all methods of a scenario share."""
    steps, local_steps = scenario.num_steps, scenario.local_steps
    return Recipe(
        name="benchmark",
        seed=seed,
        model=scenario.model,
        data=DataRecipe(eval_windows=512),
        inner=InnerRecipe(batch_size=8, learning_rate=0.004, warmup_steps=min(40, steps // 5)),
        codec=CodecRecipe(kind=CodecKind.NONE, rank=RANK),
        rounds=RoundsRecipe(
            num_fragments=1, overlap=0, local_steps=local_steps, num_rounds=max(1, steps // local_steps)
        ),
        outer=RAMP,
    )


def make_recipe(method: Method, scenario: Scenario, seed: int, rate_scale: float = 1.0) -> Recipe:
    """Return what a method trains in a scenario; rates fall as 1/sqrt(width) from the smallest model's."""
    recipe = method.recipe(make_common(scenario, seed))
    recipe = replace(recipe, outer=scenario.outers.get(method.name, recipe.outer))
    best = scenario.rates.get(method.name, method.learning_rate)
    rate = round(best * rate_scale * (SMALL.width / scenario.model.width) ** 0.5, 6)
    return replace(recipe, inner=replace(recipe.inner, optimizer=method.optimizer, learning_rate=rate))


def _whole(
    overlap: int, outer: OuterRecipe, start: StartKind, codec: CodecKind = CodecKind.NONE, forget_bps: int = 0
) -> Callable[[Recipe], Recipe]:
    """All tensors at once, ``overlap`` rounds late."""

    def make(common: Recipe) -> Recipe:
        return replace(
            common,
            outer=outer,
            codec=replace(common.codec, kind=codec, forget_bps=forget_bps),
            rounds=replace(common.rounds, overlap=overlap, start=start),
        )

    return make


def in_turn(
    codec: CodecKind, rank: int = RANK, outer: OuterRecipe = RAMP, forget_bps: int = 0
) -> Callable[[Recipe], Recipe]:
    """Ten fragments in turn, one round late: ours."""

    def make(common: Recipe) -> Recipe:
        rounds = common.rounds
        return replace(
            common,
            outer=outer,
            codec=replace(common.codec, kind=codec, rank=rank, forget_bps=forget_bps),
            rounds=replace(rounds, num_fragments=FRAGMENTS, overlap=1, num_rounds=rounds.num_rounds * FRAGMENTS),
        )

    return make


_SYNC = _whole(0, RAMP, StartKind.CONTINUE)
_DILOCOX = _whole(1, PLAIN, StartKind.REWIND, CodecKind.LOW_RANK_INT4)
_MUON = OptimizerKind.MUON

METHODS = {
    method.name: method
    for method in (
        Method(name="allreduce", recipe=lambda common: common, is_allreduce=True),
        Method(
            name="allreduce_muon", recipe=lambda common: common, is_allreduce=True, optimizer=_MUON, learning_rate=0.008
        ),
        Method(name="diloco", recipe=_SYNC),
        Method(name="diloco_muon", recipe=_whole(0, AHEAD, StartKind.CONTINUE), optimizer=_MUON, learning_rate=0.011),
        Method(name="dilocox", recipe=_DILOCOX),
        Method(name="dilocox_muon", recipe=_DILOCOX, optimizer=_MUON, learning_rate=0.008),
        Method(name="default_adamw", recipe=in_turn(CodecKind.LOW_RANK_2BIT)),
        Method(
            name="default",
            recipe=in_turn(CodecKind.VECTOR, outer=AHEAD, forget_bps=FORGET),
            optimizer=_MUON,
            learning_rate=0.011,
        ),
        Method(name="eager", recipe=_whole(1, PLAIN, StartKind.EAGER)),
        Method(name="sparseloco", recipe=_whole(0, PLAIN, StartKind.REWIND, CodecKind.SPARSE_2BIT, SPARSELOCO_FORGET)),
        Method(name="int8", recipe=_whole(0, RAMP, StartKind.CONTINUE, CodecKind.DENSE_INT8)),
        Method(name="diloco_classic", recipe=_whole(0, CLASSIC, StartKind.CONTINUE)),
        Method(name="delayed", recipe=_whole(1, PLAIN, StartKind.REWIND)),
        Method(name="default_exact", recipe=in_turn(CodecKind.NONE, outer=AHEAD), optimizer=_MUON, learning_rate=0.011),
        Method(
            name="default_low_rank",
            recipe=in_turn(CodecKind.LOW_RANK_2BIT, outer=AHEAD),
            optimizer=_MUON,
            learning_rate=0.011,
        ),
    )
}
"""By name; ``delayed`` is DiLoCoX's overlap without its compression, ``default_exact`` ours without."""

_QUICK = (
    "allreduce",
    "allreduce_muon",
    "diloco",
    "diloco_muon",
    "dilocox",
    "dilocox_muon",
    "default",
    "default_adamw",
    "delayed",
    "eager",
    "sparseloco",
    "int8",
)
_MAIN = ("allreduce_muon", "diloco_muon", "dilocox_muon", "default")
_MATRIX = (*_MAIN, "allreduce", "diloco", "delayed", "eager", "sparseloco", "int8")

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="main", methods=_QUICK),
        Scenario(
            name="parts",
            methods=("diloco_classic", "default_exact", "default_low_rank"),
            is_full_only=True,
        ),
        Scenario(name="h50", methods=_MATRIX, local_steps=50, is_full_only=True),
        Scenario(name="d2", methods=_MATRIX, num_workers=2, is_full_only=True, rates={"diloco_muon": 0.008}),
        Scenario(name="d8", methods=_MATRIX, num_workers=8, is_full_only=True, outers={"default": FURTHER}),
        Scenario(name="0.4M", methods=_MAIN, model=MIDDLE, is_full_only=True),
        Scenario(name="3M", methods=_MAIN, model=LARGE, num_steps=400, num_seeds=1, is_full_only=True),
    )
}
"""``main`` is the quick run; ``FULL=1`` adds the rest."""
