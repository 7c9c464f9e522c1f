"""A recipe as TOML text, and the two hashes that tell recipes apart (SPEC, *Recipe*).

The chain keeps the text itself and its keccak-256 as ``recipeDigest``, so two workers with one digest train the
same model under the same rules.  An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, TypeVar, get_type_hints

from eth_hash.auto import keccak

from da.core.hashing import Tag, compute_hash
from training.core.errors import MissingRecipeKeyError, RecipeSyntaxError, RecipeValueError, UnknownRecipeKeyError
from training.core.recipe import (
    CodecRecipe,
    DataRecipe,
    InnerRecipe,
    ModelRecipe,
    OuterRecipe,
    Recipe,
    RoundsRecipe,
    get_unit,
)

_MAX_DIGITS = 4_300
"""Python reads no longer decimal number (sys.int_info)."""

_MAX_DOTS = 8
"""In a line, outside of texts and comments: a key has two parts, a number one dot.  Python's reader takes time with the
square of a key's parts: 12 s for 20,000."""

_TEXTS = re.compile(
    r'''"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|'''
    r"'''.*?(?:'{3,5}|\Z)|"
    r""""(?:\\.|[^"\\\n])*+"?|"""
    r"'[^'\n]*+'?|"
    r"#[^\n]*+",
    re.DOTALL,
)
"""TOML's four kinds of text, also one without an end, and comments; each character is looked at once."""

_Section = TypeVar("_Section", ModelRecipe, DataRecipe, InnerRecipe, CodecRecipe, RoundsRecipe, OuterRecipe)


def parse_recipe(text: str) -> Recipe:
    """Read a recipe from TOML text.

    Raises one of the `RecipeError` classes, naming the key, what it is and what was expected.
    """
    if text.startswith("\ufeff"):
        raise RecipeSyntaxError("it begins with a byte order mark (BOM): save it as UTF-8 without one")
    _refuse_dots(text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeSyntaxError(str(error)) from error
    except ValueError as error:  # what Python's int() refuses
        raise RecipeSyntaxError(_find_long_number(text) or str(error)) from error
    except RecursionError as error:
        raise RecipeSyntaxError("its brackets are nested too deeply") from error
    _refuse_unknown("", table, {field.name for field in fields(Recipe)})
    return Recipe(
        name=_scalar("name", table, str),
        seed=_scalar("seed", table, int),
        software=_scalar("software", table, str) if "software" in table else "",
        model=_section(ModelRecipe, "model", table),
        data=_section(DataRecipe, "data", table),
        inner=_section(InnerRecipe, "inner", table),
        codec=_section(CodecRecipe, "codec", table),
        rounds=_section(RoundsRecipe, "rounds", table),
        outer=_section(OuterRecipe, "outer", table),
    )


def compute_recipe_digest(text: str) -> bytes:
    """Return keccak-256 of the TOML text in UTF-8: 32 bytes, the chain's ``recipeDigest``."""
    return bytes(keccak(text.encode()))


def compute_fingerprint(recipe: Recipe) -> bytes:
    """Return 32 bytes that tell recipes apart by what they say, whatever their TOML looks like."""
    return compute_hash(Tag.WORKER_STATE, repr(recipe).encode())


def _section(kind: type[_Section], name: str, table: Mapping[str, Any]) -> _Section:
    """Build one section's dataclass from its table; a section whose fields all have defaults may be absent."""
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise RecipeValueError(name, section, "a table")
    _refuse_unknown(f"{name}.", section, {field.name for field in fields(kind)})
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in section or field.default is MISSING:
            values[field.name] = _scalar(f"{name}.{field.name}", section, hints[field.name])
    return kind(**values)


def _scalar(key: str, table: Mapping[str, Any], kind: type) -> Any:
    """Return one value of exactly the type asked for (an integer also serves as a real)."""
    name = key.rpartition(".")[2]
    if name not in table:
        raise MissingRecipeKeyError(key)
    value = table[name]
    if issubclass(kind, StrEnum):
        if value not in [choice.value for choice in kind]:
            raise RecipeValueError(key, value, "one of " + ", ".join(choice.value for choice in kind))
        return kind(value)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise RecipeValueError(key, value, "a real number below 1.8e308") from error
    if type(value) is not kind:
        raise RecipeValueError(key, value, get_unit(key) or f"a value of type {kind.__name__}")
    return value


def _refuse_dots(text: str) -> None:
    """Raise for a key of more parts than can be read in no time, before it is."""
    lines = _TEXTS.sub(lambda found: "\n" * found[0].count("\n"), text).split("\n")
    for index, line in enumerate(lines, start=1):
        num_dots = line.count(".")
        if num_dots > _MAX_DOTS:
            raise RecipeSyntaxError(
                f"{num_dots:,} dots outside of texts, expected at most {_MAX_DOTS}: a key has two parts, such as "
                f"model.width (at line {index})"
            )


def _find_long_number(text: str) -> str:
    """Say where a number is longer than Python reads; nothing where there is none."""
    for index, line in enumerate(text.split("\n"), start=1):
        digits = max((len(found.replace("_", "")) for found in re.findall(r"[0-9][0-9_]*", line)), default=0)
        if digits > _MAX_DIGITS:
            key = line.partition("=")[0].strip()
            return f"{key[:64]!r} is a number of {digits:,} digits, no value has so many (at line {index})"
    return ""


def _refuse_unknown(prefix: str, table: Mapping[str, Any], known: set[str]) -> None:
    """Raise for the first key that nothing reads."""
    for key in sorted(set(table) - known):
        near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
        raise UnknownRecipeKeyError(prefix + key, prefix + near[0] if near else None)
