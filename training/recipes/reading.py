"""Read the text of a recipe that a person names: a file, or one that is shipped."""

from __future__ import annotations

from pathlib import Path

from da.core.errors import NotAFile
from da.input_file import read_input
from training.core.errors import RecipeSyntaxError
from training.recipes.shipped import load_shipped, shipped_names
from training.worker.errors import Fatal

MAX_RECIPE_BYTES = 65_536
"""What the chain takes (`chain/core/rounds`)."""


def find_recipe_text(name: str) -> str:
    """Return the text of a TOML file, or of a shipped recipe where there is no such file.

    Raises `Fatal` naming what there is, and what `read_recipe_text` raises.
    """
    if not name:
        raise Fatal("the recipe's name is empty", next_step="name a TOML file, or a shipped recipe such as demo")
    path = Path(name)
    if name in shipped_names() and not path.is_file():
        return load_shipped(name)
    if path.suffix == ".toml" or path.exists():
        return read_recipe_text(path)
    # It counts with the codecs, which load torch: only here, so that other commands answer at once.
    from training.recipes.shapes import RECIPES

    shipped = ", ".join(shipped_names())
    if name in RECIPES:
        raise Fatal(
            f"{name} is a shape, not a recipe file",
            next_step=f"write it to a file, trainer recipe {name} > run.toml, and name that",
        )
    raise Fatal(
        f"no recipe {name!r}",
        next_step=f"name a TOML file, or one that is shipped: {shipped}; or make one of a shape: "
        "trainer recipe 0.4M > run.toml",
    )


def read_recipe_text(path: Path) -> str:
    """Return the text. Raises `Fatal` where it can't be read, and `RecipeSyntaxError` where it is no text."""
    try:
        return read_input(path, limit_bytes=MAX_RECIPE_BYTES).decode("utf-8")
    except NotAFile as error:
        raise Fatal(
            f"recipe {path} {error.found}", next_step="name a TOML file, such as `trainer recipe` prints"
        ) from error
    except OSError as error:
        raise Fatal(f"recipe {path} can't be read: {error.strerror}", next_step="name a TOML file") from error
    except UnicodeDecodeError as error:
        raise RecipeSyntaxError(f"{path} is not UTF-8 from byte {error.start} on") from error
