"""Read a recipe's text from a file that a person names."""

from __future__ import annotations

from pathlib import Path

from da.core.errors import NotAFile
from da.input_file import read_input
from training.core.errors import RecipeSyntaxError
from training.worker.errors import Fatal

MAX_RECIPE_BYTES = 65_536
"""What the chain takes (`chain/core/rounds`)."""


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
