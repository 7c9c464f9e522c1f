"""Which tensors a recipe has: names, shapes, fixed-point scale, start values, fragment (SPEC, *Tensors*).

A pure function of the recipe, so the chain's recipe digest fixes all of it.  Names are those of the model's
parameters; every worker of any shape exchanges under them.  Invariant: each tensor is in exactly one fragment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod

from training.core.errors import RecipeValueError
from training.core.recipe import ModelKind, Recipe

MAX_FRACTION_BITS = 28
"""s of ordinary tensors: range 8, resolution 2^-28, about that of fp32 at the weights' size (DESIGN 7)."""

RANGE_OVER_MAXIMUM = 64
"""An agreed tensor can grow to 64 times its first maximum before it saturates (DESIGN 7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """One tensor of the agreed state."""

    name: str
    """Parameter name, e.g. ``layers.0.qkv.weight``."""
    shape: tuple[int, ...]
    """Row-major shape."""
    fraction_bits: int
    """s: value = integer * 2^-s."""
    limit_units: int
    """Start values are uniform in -limit..limit grid units; 0 where they are constant."""
    constant_units: int
    """The start value where it is constant (norm weights 1, biases 0)."""
    is_given: bool = False
    """Whether a run begins with values from a file, which the recipe doesn't hold."""
    fragment: int
    """0..F-1."""

    @property
    def num_elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All tensors of a run."""

    tensors: tuple[TensorLayout, ...]
    """Sorted by name."""
    fragments: tuple[tuple[str, ...], ...]
    """Names of each fragment, sorted."""

    def tensor(self, name: str) -> TensorLayout:
        """Return the tensor called ``name``."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(tensor.num_elements for tensor in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """How a tensor begins: uniform with squared limit num/den, or constant where num is 0."""

    shape: tuple[int, ...]
    num: int
    den: int
    constant: int = 1
    is_given: bool = False


@lru_cache(maxsize=64)
def build_layout(recipe: Recipe) -> Layout:
    """Return the layout of a recipe's model."""
    starts = _read_tensors(recipe) if recipe.model.kind is ModelKind.HUGGING_FACE else _plan_gpt(recipe)
    fragment_of = assign_balanced({name: prod(start.shape) for name, start in starts.items()}, _num_fragments(recipe))
    tensors = tuple(_build_tensor(name, starts[name], fragment_of[name]) for name in sorted(starts))
    fragments = tuple(
        tuple(tensor.name for tensor in tensors if tensor.fragment == fragment)
        for fragment in range(_num_fragments(recipe))
    )
    return Layout(tensors=tensors, fragments=fragments)


def assign_balanced(sizes: dict[str, int], num_groups: int) -> dict[str, int]:
    """Return a group for each name: largest first, into the group that has least so far.

    >>> assign_balanced({"a": 5, "b": 3, "c": 3}, 2)
    {'a': 0, 'b': 1, 'c': 1}
    """
    loads = [0] * num_groups
    group_of: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        group = min(range(num_groups), key=lambda index: (loads[index], index))
        group_of[name] = group
        loads[group] += sizes[name]
    return group_of


def _num_fragments(recipe: Recipe) -> int:
    return recipe.rounds.num_fragments


def _plan_gpt(recipe: Recipe) -> dict[str, _Start]:
    """Return the start of every parameter of `training.models.gpt.Gpt`.

    Matrices: uniform with limit 1/sqrt(fan in), those that write into the residual stream smaller by
    sqrt(2 * layers).  Embedding: variance 1/(25 width), so that first logits have a spread of 0.2.
    """
    model = recipe.model
    width, hidden, depth = model.width, model.hidden, 2 * model.num_layers
    plan = {"embed.weight": _Start(shape=(model.vocabulary, width), num=3, den=25 * width)}
    for layer in range(model.num_layers):
        prefix = f"layers.{layer}."
        plan[prefix + "attention_norm.weight"] = _Start(shape=(width,), num=0, den=1)
        plan[prefix + "qkv.weight"] = _Start(shape=(3 * width, width), num=1, den=width)
        plan[prefix + "attention_out.weight"] = _Start(shape=(width, width), num=1, den=width * depth)
        plan[prefix + "feed_norm.weight"] = _Start(shape=(width,), num=0, den=1)
        plan[prefix + "gate_up.weight"] = _Start(shape=(2 * hidden, width), num=1, den=width)
        plan[prefix + "down.weight"] = _Start(shape=(width, hidden), num=1, den=hidden * depth)
    plan["final_norm.weight"] = _Start(shape=(width,), num=0, den=1)
    return plan


def _read_tensors(recipe: Recipe) -> dict[str, _Start]:
    """Return the table of a hugging_face recipe: lines of NAME SHAPE START, e.g. ``a.weight 8x4 uniform:3/2500``.

    START is ``ones``, ``zeros``, ``uniform:NUM/DEN`` or ``given:NUM/DEN``, the squared limit or maximum.
    """
    plan: dict[str, _Start] = {}
    for line in recipe.model.tensors.split("\n"):
        if not line.strip():
            continue
        try:
            name, shape_text, start = line.split()
            shape = tuple(int(size) for size in shape_text.split("x"))
            word, _, ratio = start.partition(":")
            num, den = (int(part) for part in ratio.split("/")) if ratio else (0, 1)
        except ValueError as error:
            raise RecipeValueError("model.tensors", line, "NAME SHAPE START, as `trainer recipe` writes it") from error
        is_drawn = word in ("uniform", "given")
        if word not in ("ones", "zeros", "uniform", "given") or is_drawn != (num > 0) or den < 1 or min(shape) < 1:
            raise RecipeValueError("model.tensors", line, "sizes from 1 and ones, zeros, uniform:N/D or given:N/D")
        if name in plan:
            raise RecipeValueError("model.tensors", line, "each tensor once")
        plan[name] = _Start(shape=shape, num=num, den=den, constant=int(word == "ones"), is_given=word == "given")
    return plan


def _build_tensor(name: str, start: _Start, fragment: int) -> TensorLayout:
    """Fix a tensor's scale: the finest grid whose range is at least 8 and 64 times the first maximum."""
    num, den = (start.num, start.den) if start.num else (1, 1)
    bits = MAX_FRACTION_BITS
    while (1 << 2 * (31 - bits)) * den < RANGE_OVER_MAXIMUM**2 * num:
        bits -= 1
    return TensorLayout(
        name=name,
        shape=start.shape,
        fraction_bits=bits,
        limit_units=isqrt((num << 2 * bits) // den) if start.num and not start.is_given else 0,
        constant_units=0 if start.num else start.constant << bits,
        fragment=fragment,
        is_given=start.is_given,
    )
