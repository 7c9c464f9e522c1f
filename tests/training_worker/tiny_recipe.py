"""The recipes of the stories on a real devnet: the shipped ``tiny`` one, and what a story needs to be otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from training.core.recipe_text import parse_recipe
from training.recipes.shipped import load_shipped
from training.recipes.writing import write_recipe


def make_recipe(name: str, seed: int, **sections: Mapping[str, Any]) -> str:
    """Return the text of the tiny recipe with other values in some sections; an unknown field is a TypeError."""
    base = parse_recipe(load_shipped("tiny"))
    changed = {section: replace(getattr(base, section), **values) for section, values in sections.items()}
    return write_recipe(replace(base, name=name, seed=seed, **changed))
