"""``trainer checkpoint pull``, ``trainer evaluate`` and ``trainer generate``: the model, for its users."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.bindings.checkpoints import is_complete
from contracts.bindings.client import ChainClient
from contracts.bindings.foreign_text import show_lines
from contracts.bindings.types import CheckpointState
from training.commands.asking import fetch_run
from training.commands.options import (
    DEFAULT_CHAINS,
    ChainOption,
    DataOption,
    DeviceOption,
    JsonOption,
    RunOption,
    TokenizerOption,
)
from training.commands.output import STDERR, STDOUT, create_progress, print_json, print_pairs
from training.core.errors import StatePartError
from training.core.loss_unit import LossUnit
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.worker.errors import PayloadError, StateUnavailable, WrongRecipe

if TYPE_CHECKING:
    from training.core.canonical import CanonicalState
    from training.worker.stores import CommitteeStores

app = typer.Typer(help="Checkpoints of a run.", no_args_is_help=True)


@app.command("pull")
def pull(
    run: RunOption,
    out: Annotated[Path, typer.Option(help="Folder to write; appears only when it is whole and verified.")],
    chain: ChainOption = DEFAULT_CHAINS,
    version: Annotated[int | None, typer.Option(min=0, help="Certified version; default the newest.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the model that an earlier pull put there.")] = False,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a certified checkpoint from the stores, verify it against the chain, write a model folder."""
    from da.blocking import BlobClient
    from training.worker.folder import About, describe_missing_tokenizer, save_model_folder
    from training.worker.homes import find_tokenizer
    from training.worker.stores import CommitteeStores

    client = ChainClient(chain)
    info = fetch_run(client, run)
    recipe_text = client.training.recipe(run).decode()
    digest = compute_recipe_digest(recipe_text)
    if digest != info.recipe_digest:
        raise WrongRecipe(info.recipe_digest, digest)
    recipe = parse_recipe(recipe_text)
    if tokenizer is None and recipe.data.tokenizer_digest:
        tokenizer = find_tokenizer(run, recipe.data.tokenizer_digest)
    if tokenizer is not None:
        from training.data.tokenizer import load_tokenizer

        load_tokenizer(tokenizer, recipe.data.tokenizer_digest, recipe.model.vocabulary)
    wanted = info.certified_version if version is None else version
    with BlobClient() as blobs:
        state, root = fetch_checkpoint(client, CommitteeStores(client, blobs), run, wanted, recipe_text)
    about = About(
        chain_id=client.chain_id(),
        genesis_hash=client.genesis_hash().hex(),
        run=run,
        version=wanted,
        root=root.hex(),
        recipe_digest=digest.hex(),
    )
    save_model_folder(
        out, state=state, recipe_text=recipe_text, about=about, replace_existing=force, tokenizer_file=tokenizer
    )
    if recipe.data.tokenizer_digest and tokenizer is None:
        STDERR.print(describe_missing_tokenizer(out, recipe.data.tokenizer_digest))
    if as_json:
        print_json({"folder": str(out), **{name: getattr(about, name) for name in About.__slots__}})
        return
    STDOUT.print(f"version {wanted} of run {run} in {out}")
    STDOUT.print(f"root 0x{root.hex()}: computed from the integers, equal to the chain's")


@app.command("list")
def list_checkpoints(run: RunOption, chain: ChainOption = DEFAULT_CHAINS, as_json: JsonOption = False) -> None:
    """List a run's checkpoints that the chain still names."""
    client = ChainClient(chain)
    info = fetch_run(client, run)
    versions = sorted({*range(0, info.head_version + 1, info.params.checkpoint_interval), info.certified_version})
    found = [client.training.checkpoint_at(run, version) for version in versions]
    known = [checkpoint for checkpoint in found if checkpoint.state is not CheckpointState.NONE]
    if as_json:
        print_json(known)
        return
    print_pairs(
        f"checkpoints of run {run}",
        [(f"version {item.version}", f"{item.state.name.lower()}, root 0x{item.root.hex()}") for item in known],
    )


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")],
    data: DataOption = None,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Print the held-out loss of a model folder: on the run's text the number that the members record for its version.

    Where the recipe names the text by its digest, another one is refused.
    """
    import torch

    from training.data.corpus import check_size, is_agreed_text, load_corpus
    from training.evaluation import evaluate_state
    from training.worker.engine_rules import choose_device
    from training.worker.folder import load_model_folder
    from training.worker.homes import TOKENIZER_FILE

    model = load_model_folder(folder)
    own = folder / TOKENIZER_FILE
    chosen = tokenizer if tokenizer is not None else own if own.exists() else None
    corpus = load_corpus(model.recipe.data, data, tokenizer_file=chosen, vocabulary=model.recipe.model.vocabulary)
    is_agreed_text(model.recipe.data, corpus)
    check_size(corpus, model.recipe.model.context)
    loss = evaluate_state(model.recipe, model.state, corpus, torch.device(choose_device(device)))
    if as_json:
        print_json(
            {
                "loss": loss,
                "loss_micro": round(loss * 1_000_000),
                "unit": corpus.loss_unit,
                "bits_a_byte": corpus.compute_bits_a_byte(loss),
                "held_out_tokens": int(corpus.held_out.size),
                "held_out_bytes": corpus.held_out_bytes,
                "version": model.about.version,
                "root": model.about.root,
                "held_out_digest": corpus.held_out_digest,
            }
        )
        return
    if corpus.loss_unit is LossUnit.BYTE:
        size = f"{corpus.held_out.size:,} held-out bytes"
    elif corpus.held_out_bytes is not None:
        size = f"{corpus.held_out.size:,} held-out tokens of {corpus.held_out_bytes:,} bytes"
    else:
        size = f"{corpus.held_out.size:,} held-out tokens, of a file that doesn't say how many bytes they stand for"
    STDOUT.print(
        f"held-out loss {corpus.describe_loss(loss)} (version {model.about.version}, "
        f"{size}, digest {corpus.held_out_digest.hex()[:12]})"
    )


def generate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "def ",
    length: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to write; bytes without a tokenizer.")] = 120,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.7,
    seed: Annotated[int, typer.Option(help="The same seed writes the same text.")] = 0,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Write text with a model folder."""
    from training.worker.engine_rules import choose_device
    from training.worker.folder import load_folder_tokenizer, load_model_folder
    from training.worker.generate import generate_text

    model = load_model_folder(folder)
    text = generate_text(
        model.recipe,
        model.state,
        prompt,
        num_tokens=length,
        temperature=temperature,
        seed=seed,
        device=choose_device(device),
        tokenizer=load_folder_tokenizer(folder, model.recipe, tokenizer),
    )
    if as_json:
        print_json({"prompt": prompt, "text": text, "version": model.about.version})
    else:
        print(show_lines(text) if sys.stdout.isatty() else text)


def fetch_checkpoint(
    client: ChainClient, stores: CommitteeStores, run: int, version: int, recipe_text: str
) -> tuple[CanonicalState, bytes]:
    """Return (state, root) of one certified checkpoint, verified against the chain, with a progress bar."""
    from training.core.canonical import decode_parts
    from training.worker.restore import MAX_PART_BYTES

    checkpoint = client.training.checkpoint_at(run, version)
    if not is_complete(checkpoint):
        raise StateUnavailable(
            f"version {version} of run {run} has no certified checkpoint",
            next_step=f"trainer checkpoint list --run {run}, or leave --version out to take the newest",
        )
    parts = []
    with create_progress() as progress:
        task = progress.add_task("fetching the checkpoint", total=len(checkpoint.blobs))
        for index, blob in enumerate(checkpoint.blobs):
            try:
                parts.append(stores.get(blob, max_bytes=MAX_PART_BYTES))
            except PayloadError as error:
                raise StateUnavailable(
                    f"part {index + 1} of {len(checkpoint.blobs)}: {error}",
                    next_step="try again when more storage nodes answer; nothing was written",
                ) from error
            progress.advance(task)
    try:
        state = decode_parts(parse_recipe(recipe_text), parts)
    except StatePartError as error:
        raise StateUnavailable(f"version {version}: {error}", next_step="choose another --version") from error
    if state.root() != checkpoint.root:
        raise StateUnavailable(
            f"version {version}: the stored parts have root {state.root().hex()}, the chain's is "
            f"{checkpoint.root.hex()}",
            next_step="choose another --version; nothing was written",
        )
    return state, checkpoint.root
