"""A recipe as TOML text: what `parse_recipe` reads back to the same value."""

from __future__ import annotations

import json
from dataclasses import fields
from enum import StrEnum
from typing import Any

from training.core.recipe import Recipe


def write_recipe(recipe: Recipe) -> str:
    """Return the TOML text, every field spelt out."""
    lines = [f"name = {_write(recipe.name)}", f"seed = {recipe.seed}"]
    if recipe.software:
        lines.append(f"software = {_write(recipe.software)}")
    for section in fields(Recipe):
        if section.name in ("name", "seed", "software"):
            continue
        value: Any = getattr(recipe, section.name)
        lines += ["", f"[{section.name}]"]
        lines += [f"{field.name} = {_write(getattr(value, field.name))}" for field in fields(value)]
    return "\n".join(lines) + "\n"


def _write(value: object) -> str:
    """Return one value: JSON's strings are TOML's, except where a line break reads better as one."""
    if isinstance(value, StrEnum):
        return json.dumps(value.value)
    if isinstance(value, str) and "\n" in value and "'''" not in value:
        return f"'''\n{value}'''"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)
