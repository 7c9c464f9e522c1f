"""Model folders as `trainer checkpoint pull` leaves them, of a recipe and a state."""

from __future__ import annotations

from pathlib import Path

from training.core.canonical import CanonicalState, create_genesis
from training.core.recipe import Recipe
from training.core.recipe_text import compute_recipe_digest
from training.recipes.writing import write_recipe
from training.worker.folder import About, save_model_folder


def save_model(
    folder: Path,
    recipe: Recipe,
    tokenizer_file: Path | None = None,
    *,
    state: CanonicalState | None = None,
    version: int = 0,
) -> None:
    """Write the folder of a state, of the recipe's genesis without one."""
    text, state = write_recipe(recipe), state or create_genesis(recipe)
    about = About(
        chain_id=1,
        genesis_hash="",
        run=1,
        version=version,
        root=state.root().hex(),
        recipe_digest=compute_recipe_digest(text).hex(),
    )
    save_model_folder(
        folder, state=state, recipe_text=text, about=about, replace_existing=False, tokenizer_file=tokenizer_file
    )
