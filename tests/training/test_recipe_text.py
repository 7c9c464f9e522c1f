"""Recipes that a stranger wrote: free text that prints, numbers of any length, and rounds that a header can name."""

from __future__ import annotations

import time

import pytest

from contracts.bindings.failures import describe_failure
from training.commands.output import STDOUT, create_table, print_pairs
from training.core.errors import RecipeError, RecipeSyntaxError, RecipeValueError, UnknownRecipeKeyError
from training.core.recipe_text import parse_recipe
from training.recipes.shipped import load_shipped

TINY = load_shipped("tiny")
NAME = 'name = "tiny"'


def _parse(old: str, new: str) -> RecipeError:
    assert old in TINY
    with pytest.raises(RecipeError) as caught:
        parse_recipe(TINY.replace(old, new, 1))
    said = describe_failure(caught.value)
    assert "\nnext:  " in said
    assert len(said) < 600
    assert all(line.isprintable() for line in said.splitlines())
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (NAME, r'name = "a\nround 7: all is well"', "name"),
        (NAME, r'name = "a\u001b[2J"', "name"),
        (NAME, r'name = "a\u202eb"', "name"),
        (NAME, f'name = "{"a" * 65}"', "name"),
        (NAME, f'name = "{"a" * 60_000}"', "name"),
        ("[data]", '[data]\ncolumn = "a\\u0007"', "data.column"),
        ("[data]", '[data]\nsplit = "a\\nb"', "data.split"),
        ("[data]", '[data]\ndataset = "a\\u001b"', "data.dataset"),
        ("[data]", f'[data]\ndataset = "{"a" * 2_000}"', "data.dataset"),
        ("[model]", '[model]\nconfig = "{\\u001b}"', "model.config"),
        ("[model]", '[model]\ntensors = "a\\u009b"', "model.tensors"),
    ],
)
def test_invalid_text_that_does_not_print(old: str, new: str, key: str) -> None:
    error = _parse(old, new)
    assert isinstance(error, RecipeValueError)
    assert error.key == key


def test_text_that_prints_is_taken_as_it_is() -> None:
    assert parse_recipe(TINY.replace(NAME, 'name = "[red]Über 7 B…[/red]"')).name == "[red]Über 7 B…[/red]"


def test_an_unknown_key_of_any_length_is_named_in_a_line() -> None:
    error = _parse("[model]", f'[model]\n"{"k" * 50_000}" = 1')
    assert isinstance(error, UnknownRecipeKeyError)
    error = _parse("[model]", f"[{'k' * 50_000}]\n[{'k' * 50_000}]\n[model]")
    assert isinstance(error, RecipeSyntaxError)
    assert "(at line " in str(error)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("seed = 7", f"seed = 0x{'f' * 5_000}", "seed"),
        ("seed = 7", f"seed = [0x{'f' * 5_000}]", "seed"),
        ("learning_rate = 0.01", f"learning_rate = 1{'0' * 400}", "inner.learning_rate"),
        ("learning_rate = 0.01", f"learning_rate = 0x{'f' * 5_000}", "inner.learning_rate"),
        ("num_rounds", "num_rounds = 4294967296 #", "rounds.num_rounds"),
    ],
)
def test_invalid_number_names_its_key(old: str, new: str, key: str) -> None:
    error = _parse(old, new)
    assert isinstance(error, RecipeValueError)
    assert error.key == key


def test_a_number_longer_than_python_reads_is_named_with_its_line() -> None:
    error = _parse("seed = 7", f"seed = {'9' * 5_000}")
    assert isinstance(error, RecipeSyntaxError)
    line = TINY.split("\n").index("seed = 7") + 1
    assert f"'seed' is a number of 5,000 digits, no value has so many (at line {line})" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 20_000 + "a = 1",
        "[" + "a." * 20_000 + "a]",
        '"a" . ' * 10_000 + "a = 1",
        "x = {" + "a." * 20_000 + "a = 1}",
        'x = {y = """a"""""' + ", " + "a." * 20_000 + "a = 1}",
        "x = {y = '''a''''" + ", " + "a." * 20_000 + "a = 1}",
        'x = {y = "a\\"#", ' + "a." * 20_000 + "a = 1}",
        "x = '''\n'''\n" + "a." * 20_000 + "a = 1",
    ],
    ids=["key", "header", "quoted", "inline", "behind five quotes", "behind four", "behind an escape", "behind lines"],
)
def test_a_key_of_many_parts_is_refused_before_it_takes_time(text: str) -> None:
    """Python's reader takes 12 s for the first one; whoever asks for a run parses what a stranger wrote."""
    started = time.process_time()
    with pytest.raises(RecipeSyntaxError, match=r"[0-9],000 dots outside of texts, expected at most 8") as caught:
        parse_recipe(text)
    assert time.process_time() - started < 1
    assert f"a key has two parts, such as model.width (at line {len(text.splitlines())})" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["{q}" * 20_000, 'x = "' + '\\"' * 30_000, 'x = """' + '\\"' * 30_000, "\"'#" * 20_000]
)
def test_texts_without_an_end_take_no_time_either(text: str) -> None:
    started = time.process_time()
    for quote in ("'", '"'):
        with pytest.raises(RecipeSyntaxError, match="not valid TOML"):
            parse_recipe(text.replace("{q}", quote))
    assert time.process_time() - started < 2


def test_dots_in_texts_and_comments_are_free() -> None:
    dots = "a.b " * 5_000
    for quote in ("'", '"', "'''", '"""'):
        text = f"name = {quote}tiny{quote}  # {dots}\n#{dots}"
        assert parse_recipe(TINY.replace(NAME, text)) == parse_recipe(TINY)
    config = f"kind = 'hugging_face'\nconfig = '''\n{dots}'''\ntensors = \"\"\"{dots}\"\"\""
    assert parse_recipe(TINY.replace("[model]", f"[model]\n{config}")).model.config == dots


def test_the_last_flush_round_has_a_number_of_32_bits() -> None:
    recipe = parse_recipe(TINY)
    fragments = recipe.rounds.num_fragments
    old = f"num_rounds = {recipe.rounds.num_rounds}"
    most = (1 << 32) - 1 - fragments
    assert parse_recipe(TINY.replace(old, f"num_rounds = {most}")).rounds.num_rounds == most
    error = _parse(old, f"num_rounds = {most + 1}")
    assert f"1..{most}: with {fragments} flush rounds at most 4294967295" in str(error)


def test_markup_and_escapes_in_a_table_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    with STDOUT.capture() as shown:
        print_pairs("run [red]x[/red]\x1b[2J", [("name", "[bold]y[/bold] :smile: \x1b]0;z\x07")])
        STDOUT.print(create_table("[dim]t", ["c"], [["[blink]\x9b"]]))
    text = capsys.readouterr().out + shown.get()
    for whole in ("run [red]x[/red]\\x1b[2J", "[bold]y[/bold] :smile: \\x1b]0;z\\x07", "[dim]t", "[blink]\\x9b"):
        assert whole in text
