"""Tensors: the recipe's layout is the model's, every tensor is in one fragment, ranges hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.core.canonical import create_genesis, dequantise
from training.core.layout import assign_balanced, build_layout
from training.core.recipe import Recipe
from training.core.recipe_text import parse_recipe
from training.models.gpt import Gpt
from training.recipes.shipped import load_shipped, shipped_names

RecipeMaker = Callable[..., Recipe]


@pytest.mark.parametrize("name", shipped_names())
def test_layout_is_the_models(name: str) -> None:
    recipe = parse_recipe(load_shipped(name))
    expected = {name: tuple(weight.shape) for name, weight in Gpt(recipe.model).named_parameters()}
    assert {tensor.name: tensor.shape for tensor in build_layout(recipe).tensors} == expected


@pytest.mark.parametrize("fragments", [1, 3, 4, 8])
def test_fragments_cover_every_tensor_once(make_recipe: RecipeMaker, fragments: int) -> None:
    layout = build_layout(make_recipe(fragments=fragments))
    named = [name for names in layout.fragments for name in names]
    assert sorted(named) == [tensor.name for tensor in layout.tensors]
    assert len(layout.fragments) == fragments


def test_more_fragments_than_tensors_leave_some_empty(make_recipe: RecipeMaker) -> None:
    layout = build_layout(make_recipe(fragments=8))
    assert () not in layout.fragments[: len(layout.tensors)]


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), st.integers(0, 1000), max_size=30), st.integers(1, 9))
def test_groups_differ_by_at_most_the_largest(sizes: dict[str, int], num_groups: int) -> None:
    group_of = assign_balanced(sizes, num_groups)
    assert set(group_of) == set(sizes)
    loads = [sum(size for name, size in sizes.items() if group_of[name] == group) for group in range(num_groups)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@pytest.mark.parametrize("name", shipped_names())
def test_range_is_64_times_the_first_maximum_and_at_least_8(name: str) -> None:
    recipe = parse_recipe(load_shipped(name))
    values = dequantise(create_genesis(recipe))
    for tensor in build_layout(recipe).tensors:
        reach = 2.0 ** (31 - tensor.fraction_bits)
        assert reach >= 8
        assert reach >= 64 * float(values[tensor.name].abs().max())
