"""Find a shipped recipe by name."""

from __future__ import annotations

from importlib import resources

from training.core.errors import RecipeValueError


def shipped_names() -> tuple[str, ...]:
    """Return the names of the shipped recipes, sorted."""
    folder = resources.files("training.recipes")
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_shipped(name: str) -> str:
    """Return the TOML text of a shipped recipe, e.g. ``demo``.

    Raises `RecipeValueError` naming the recipes there are.
    """
    if name not in shipped_names():
        raise RecipeValueError("name", name, "one of the shipped recipes " + ", ".join(shipped_names()))
    return (resources.files("training.recipes") / f"{name}.toml").read_text(encoding="utf-8")
