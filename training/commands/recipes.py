"""``trainer recipe``: a full recipe as TOML, for a size or for a Hugging Face config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.core.recipe import DataSource
from training.core.recipe_text import parse_recipe
from training.recipes.shipped import load_shipped, shipped_names
from training.worker.errors import Fatal


def recipe(
    name: Annotated[
        str,
        typer.Argument(
            help="0.4M, 10M, 125M, 1.3B, 7B, or shipped: "
            + ", ".join(shipped_names())
            + "; or a config.json or its folder (extra hf)."
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(help="With a config.json: begin from these safetensors, a file or folder.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json that every member must use.")] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=2, help="With a config.json: tokens a sample; default 512, or the model's positions if fewer."
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Text that every member must name with --data.")] = None,
) -> None:
    """Print a recipe: trainer recipe 125M > run.toml; change what you like, then trainer run create run.toml."""
    from dataclasses import replace

    from training.data.corpus import check_size, load_corpus
    from training.data.tokenizer import compute_tokenizer_digest, load_tokenizer
    from training.recipes.shapes import RECIPES, create_recipe, create_recipe_for
    from training.recipes.writing import write_recipe
    from training.worker.folder import CONFIG_FILE

    path = Path(name)
    if name in shipped_names():
        print(write_recipe(parse_recipe(load_shipped(name))), end="")
        return
    if name not in RECIPES and path.is_dir():
        path = path / CONFIG_FILE
        if not path.is_file():
            raise Fatal(f"{name} is a folder without {CONFIG_FILE}", next_step="name a folder of a model, or a file")
    if path.suffix == ".json":
        from training.models.hugging_face import describe_causal_lm
        from training.models.start import read_weights

        given = None if weights is None else read_weights(weights)
        text = _read(path)
        made = create_recipe_for(describe_causal_lm(text, context, given), path.parent.name[:64] or "model")
    elif name in RECIPES:
        made = create_recipe(name)
    else:
        known = ", ".join([*RECIPES, *shipped_names()])
        raise Fatal(f"no recipe {name!r}", next_step=f"name one of {known}, or a config.json")
    if tokenizer is not None:
        digest = compute_tokenizer_digest(tokenizer)
        made = replace(made, data=replace(made.data, tokenizer_digest=digest))
        load_tokenizer(tokenizer, digest, made.model.vocabulary)
    if data is not None:
        rules = replace(made.data, source=DataSource.FILE)
        corpus = load_corpus(rules, data, tokenizer_file=tokenizer, vocabulary=made.model.vocabulary)
        check_size(corpus, made.model.context)
        made = replace(made, data=replace(rules, digest=corpus.digest.hex()))
    text = write_recipe(made)
    parse_recipe(text)
    print(text, end="")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Fatal(
            f"{path} is not UTF-8 from byte {error.start} on", next_step="name a config.json of a model"
        ) from error
    except OSError as error:
        raise Fatal(f"{path} can't be read: {error.strerror}", next_step="name a config.json of a model") from error
