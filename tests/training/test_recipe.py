"""Recipes: what is refused, and what the error says."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from eth_hash.auto import keccak
from typer.testing import CliRunner

from contracts.bindings.failures import describe_failure
from training.cli import app
from training.commands.asking import fetch_recipe_rank
from training.commands.describing import describe_rank, describe_shape
from training.core.errors import (
    MissingRecipeKeyError,
    RecipeError,
    RecipeSyntaxError,
    RecipeValueError,
    UnknownRecipeKeyError,
)
from training.core.layout import build_layout
from training.core.recipe import CodecKind
from training.core.recipe_text import compute_fingerprint, compute_recipe_digest, parse_recipe
from training.recipes.shapes import create_recipe
from training.recipes.shipped import load_shipped, shipped_names
from training.recipes.writing import write_recipe

TINY = load_shipped("tiny")


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_recipes_are_valid(name: str) -> None:
    assert parse_recipe(load_shipped(name)).name == name


def test_demo_has_the_size_it_says() -> None:
    assert 200_000 <= build_layout(parse_recipe(load_shipped("demo"))).num_parameters <= 400_000


def test_unknown_shipped_name_lists_those_there_are() -> None:
    with pytest.raises(RecipeValueError, match="demo, tiny"):
        load_shipped("dmeo")


@pytest.mark.parametrize(
    ("line", "key", "nearest"),
    [
        ("num_headz = 2", "model.num_headz", "model.num_heads"),
        ("contxt = 16", "model.contxt", "model.context"),
    ],
)
def test_invalid_unknown_key_names_the_nearest(line: str, key: str, nearest: str) -> None:
    with pytest.raises(UnknownRecipeKeyError) as caught:
        parse_recipe(TINY.replace("[model]", f"[model]\n{line}"))
    assert (caught.value.key, caught.value.nearest) == (key, nearest)
    assert f"did you mean {nearest!r}?" in str(caught.value)


def test_invalid_unknown_section_names_the_nearest() -> None:
    with pytest.raises(UnknownRecipeKeyError, match="did you mean 'outer'"):
        parse_recipe(TINY.replace("[outer]", "[outter]"))


def test_invalid_missing_key() -> None:
    with pytest.raises(MissingRecipeKeyError, match=r"model\.width"):
        parse_recipe(TINY.replace("width = 16\n", "", 1))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("width = 16", "width = 18", "model.width"),
        ("width = 16", 'width = "16"', "model.width"),
        ("width = 16", "width = true", "model.width"),
        ("learning_rate = 0.01", "learning_rate = nan", "inner.learning_rate"),
        ("learning_rate = 0.01", "learning_rate = 0", "inner.learning_rate"),
        ("overlap = 1", "overlap = 2", "rounds.overlap"),
        ("local_steps = 8", "local_steps = 3", "rounds.local_steps"),
        ('kind = "low_rank_int4"', 'kind = "zip"', "codec.kind"),
        ("rank = 4", "rank = 0", "codec.rank"),
        ("seed = 7", "seed = -1", "seed"),
        ("[model]", "model = 3\n[mode]", "model"),
    ],
)
def test_invalid_value_names_key_and_expectation(old: str, new: str, key: str) -> None:
    with pytest.raises((RecipeValueError, UnknownRecipeKeyError)) as caught:
        parse_recipe(TINY.replace(old, new, 1))
    if isinstance(caught.value, RecipeValueError):
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("held_out_bps = 300", "held_out_bps = 0.03", "ten-thousandths, whole ones: 0.3 is 3000"),
        ("held_out_bps = 300", "held_out_bps = 30000", r"1\.\.5000 \(ten-thousandths"),
        ("momentum_end_q15 = 29491", "momentum_end_q15 = 0.9", "units of 2\\^-15, whole ones: 0.9 is 29491"),
        ("rate_end_q15 = 22938", "rate_end_q15 = 99999", "2\\^-15"),
        ("num_layers = 3", "num_layers = 3.5", "a value of type int"),
    ],
)
def test_invalid_value_names_its_unit(old: str, new: str, said: str) -> None:
    text = load_shipped("demo")
    assert old in text
    with pytest.raises(RecipeValueError, match=said):
        parse_recipe(text.replace(old, new))


def test_what_is_printed_names_the_choices_and_the_units() -> None:
    said = {line.split(" = ")[0]: line.partition("#")[2] for line in write_recipe(create_recipe("10M")).splitlines()}
    assert all(kind.value in said["kind"] for kind in CodecKind)
    for name, comment in said.items():
        if name.endswith("_bps"):
            assert "ten-thousandths" in comment, name
        if name.endswith("_start_q15"):
            assert "2^-15" in comment, name


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (CodecKind.LOW_RANK_2BIT, "codec.rank 300 .* 10 of 13 are cut to 96, their shorter side; 3 of 13 as int8"),
        (CodecKind.VECTOR, "1 of 1 are cut to 96"),
        (CodecKind.DENSE_INT4, None),
    ],
)
def test_a_rank_that_no_matrix_has_is_said(kind: CodecKind, said: str | None) -> None:
    recipe = create_recipe("0.4M")
    assert describe_rank(replace(recipe, codec=replace(recipe.codec, kind=kind))) is None
    text = describe_rank(replace(recipe, codec=replace(recipe.codec, kind=kind, rank=300)))
    assert (text is None) if said is None else re.search(said, str(text))


def test_a_codec_without_a_rank_has_none_in_a_run_s_shape() -> None:
    params = SimpleNamespace(num_fragments=2, overlap=1)
    info: Any = SimpleNamespace(params=params, local_steps=48, rank=0)
    assert "rank" not in describe_shape(info, 0)
    assert describe_shape(info, 32).endswith("rank as in the recipe (32)")
    text = load_shipped("demo")
    for kind, rank in (("dense_int4", 0), ("vector", 32)):
        recipe = text.replace('"dense_int4"', f'"{kind}"').encode()
        client: Any = SimpleNamespace(training=SimpleNamespace(recipe=lambda _, recipe=recipe: recipe))
        assert fetch_recipe_rank(client, 1) == rank


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("config = '{}'", "'gpt', expected hugging_face beside model.config: gpt has neither"),
        ("tensors = 'a'", "'gpt', expected hugging_face beside model.tensors: gpt has neither"),
        ("config = '{}'\ntensors = 'a'", "hugging_face beside model.config and model.tensors"),
        ("kind = 'hugging_face'", "model.config and model.tensors beside it, there is neither"),
        ("kind = 'hugging_face'\nconfig = '{}'", "model.config and model.tensors beside it, there is model.config"),
    ],
)
def test_invalid_config_beside_a_kind_that_does_not_read_it(fields: str, said: str) -> None:
    with pytest.raises(RecipeValueError, match=said):
        parse_recipe(TINY.replace("[model]", f"[model]\n{fields}"))


def test_a_byte_order_mark_is_called_by_its_name() -> None:
    with pytest.raises(RecipeSyntaxError, match=r"byte order mark \(BOM\): save it as UTF-8 without one"):
        parse_recipe("\ufeff" + TINY)


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_is_printed_whole_and_with_comments(name: str) -> None:
    printed = CliRunner().invoke(app, ["recipe", name]).stdout
    assert parse_recipe(printed) == parse_recipe(load_shipped(name))
    keys = [line.split(" = ")[0] for line in printed.splitlines()]
    assert keys == [line.split(" = ")[0] for line in write_recipe(create_recipe("0.4M")).splitlines()]
    assert "# one of mean, median_clip" in printed
    for trial in ("for a trial 40", "for a trial 20"):
        assert (trial in printed) == (name == "demo"), "only beside larger values"
        assert trial in write_recipe(create_recipe("0.4M"))


def test_invalid_toml() -> None:
    with pytest.raises(RecipeSyntaxError, match="not valid TOML"):
        parse_recipe("a = ")


@pytest.mark.parametrize(
    "text", ["a = ", TINY + "\n[odd]\n", TINY.replace("[codec]", "[codecs]"), "name = 'x'", TINY.replace("seed", "#")]
)
def test_whoever_gives_a_bad_recipe_is_told_what_to_do(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text)
    assert "\nnext:  " in describe_failure(caught.value)


def test_digest_is_keccak_of_the_text() -> None:
    assert compute_recipe_digest(TINY) == keccak(TINY.encode())


def test_fingerprint_ignores_how_the_toml_looks() -> None:
    commented = parse_recipe("# another comment\n" + TINY)
    assert compute_fingerprint(commented) == compute_fingerprint(parse_recipe(TINY))
    other = parse_recipe(TINY.replace("seed = 7", "seed = 8"))
    assert compute_fingerprint(other) != compute_fingerprint(parse_recipe(TINY))
