"""The agreed state: one root for one state, on any machine, whole or in parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.core.canonical import CanonicalState, check_root, create_genesis, decode_parts, dequantise, verify_part
from training.core.errors import RootMismatchError, StatePartError
from training.core.recipe import Recipe
from training.core.recipe_text import parse_recipe
from training.core.state_root import compute_entry, compute_state_root
from training.recipes.shipped import load_shipped, shipped_names

RecipeMaker = Callable[..., Recipe]
VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "training_genesis.json").read_text())


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return parse_recipe(load_shipped("tiny"))


@pytest.fixture(scope="module")
def genesis(recipe: Recipe) -> CanonicalState:
    return create_genesis(recipe)


def _fresh(state: CanonicalState) -> CanonicalState:
    return replace(state, entry_cache={})


@pytest.mark.parametrize("name", shipped_names())
def test_genesis_has_the_known_root(name: str) -> None:
    """Golden: rewritten only on purpose, since every run created before would start from other weights."""
    assert create_genesis(parse_recipe(load_shipped(name))).root().hex() == VECTORS[name]


def test_genesis_depends_on_the_seed(recipe: Recipe, genesis: CanonicalState) -> None:
    assert create_genesis(replace(recipe, seed=8)).root() != genesis.root()


def test_genesis_spread_is_that_of_a_uniform_draw(genesis: CanonicalState) -> None:
    values = dequantise(genesis)["layers.0.gate_up.weight"]
    assert float(values.abs().max()) <= 0.25
    assert float(values.std()) == pytest.approx(0.25 / 3**0.5, rel=0.05)
    assert abs(float(values.mean())) < 0.02


def test_root_covers_everything(genesis: CanonicalState) -> None:
    name = "layers.0.qkv.weight"
    theta = genesis.theta[name].clone()
    theta[5, 3] += 1
    changes: list[CanonicalState] = [
        replace(genesis, theta={**genesis.theta, name: theta}, entry_cache={}),
        replace(genesis, momentum={**genesis.momentum, name: theta}, entry_cache={}),
        replace(genesis, fraction_bits={**genesis.fraction_bits, name: 20}, entry_cache={}),
        replace(genesis, exponents={**genesis.exponents, name: 1}),
        replace(genesis, ranks={**genesis.ranks, name: 1}),
        replace(genesis, local_steps=9),
        replace(genesis, step=1),
    ]
    roots = [state.root() for state in changes] + [genesis.root()]
    assert len(set(roots)) == len(roots)


def test_a_second_layout_of_the_same_tensors_has_the_same_root(genesis: CanonicalState) -> None:
    """Two stages hash their own tensors, stored column by column; the root needs only the entries."""
    names = sorted(genesis.theta)
    entries: dict[str, bytes] = {}
    for stage in (names[1::2], names[0::2]):
        for name in reversed(stage):
            theta = genesis.theta[name].T.contiguous().T if genesis.theta[name].dim() == 2 else genesis.theta[name]
            entries[name] = compute_entry(name, genesis.fraction_bits[name], theta, genesis.momentum[name])
    assert compute_state_root(genesis.header(), [entries[name] for name in names]) == genesis.root()


@pytest.mark.parametrize("num_parts", [1, 2, 3, 30])
def test_parts_join_to_the_same_state(recipe: Recipe, genesis: CanonicalState, num_parts: int) -> None:
    parts = [genesis.encode_part(index, num_parts) for index in range(num_parts)]
    for index, part in enumerate(parts):
        verify_part(recipe, part, index, num_parts, genesis.root())
    joined = decode_parts(recipe, parts)
    assert joined.root() == _fresh(joined).root() == genesis.root()
    assert all(torch.equal(joined.theta[name], theta) for name, theta in genesis.theta.items())
    assert (joined.exponents, joined.ranks) == (genesis.exponents, genesis.ranks)


def test_invalid_part_altered_in_any_region(recipe: Recipe, genesis: CanonicalState) -> None:
    part = genesis.encode_part(0, 2)
    for position in (0, 5, 7, 9, 13, 20, 30, 80, 200, len(part) // 2, len(part) - 1):
        altered = bytearray(part)
        altered[position] ^= 1
        with pytest.raises((StatePartError, RootMismatchError)):
            verify_part(recipe, bytes(altered), 0, 2, genesis.root())


@pytest.mark.parametrize("size", [0, 1, 11, 12, 100, -1])
def test_invalid_part_cut_short(recipe: Recipe, genesis: CanonicalState, size: int) -> None:
    with pytest.raises(StatePartError, match="length in bytes"):
        verify_part(recipe, genesis.encode_part(0, 2)[:size], 0, 2, genesis.root())


def test_invalid_parts_of_two_states(recipe: Recipe, genesis: CanonicalState) -> None:
    other = replace(genesis, step=3)
    with pytest.raises(StatePartError, match="another state"):
        decode_parts(recipe, [genesis.encode_part(0, 2), other.encode_part(1, 2)])
    with pytest.raises(RootMismatchError):
        verify_part(recipe, other.encode_part(1, 2), 1, 2, genesis.root())


def test_invalid_parts_swapped_or_missing(recipe: Recipe, genesis: CanonicalState) -> None:
    first, second = genesis.encode_part(0, 2), genesis.encode_part(1, 2)
    for parts in ([second, first], [first], []):
        with pytest.raises(StatePartError):
            decode_parts(recipe, parts)


def test_check_root_names_both(genesis: CanonicalState) -> None:
    check_root(genesis, genesis.root(), "genesis")
    with pytest.raises(RootMismatchError) as caught:
        check_root(genesis, bytes(32), "genesis")
    assert genesis.root().hex() in str(caught.value)
    assert bytes(32).hex() in str(caught.value)
