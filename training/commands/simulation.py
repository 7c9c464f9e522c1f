"""``trainer simulate``: a recipe's rounds with N workers in one process, without chain or store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chain.core.rounds.params import MAX_PARTICIPANTS
from contracts.bindings.option_needs import check_needs
from training.attack_kind import AttackKind
from training.commands.describing import describe_rank
from training.commands.options import DataOption, JsonOption, MicroBatchesOption, TokenizerOption
from training.commands.output import STDERR, STDOUT, format_bytes, format_loss, print_json, print_pairs
from training.core.recipe import Recipe, RoundsRecipe
from training.core.recipe_text import parse_recipe
from training.core.schedule import compute_num_rounds_total
from training.recipes.reading import find_recipe_text
from training.recipes.shipped import shipped_names

if TYPE_CHECKING:
    from training.simulate import SimulatedRound, SimulatedStep

PROGRESS_SECONDS = 15.0
"""Without a line of a round one says how far it is."""


def simulate(
    recipe: Annotated[
        str, typer.Argument(help="A shipped recipe or size, as `trainer recipe` takes them, or a TOML file.")
    ],
    workers: Annotated[int, typer.Option(min=1, max=MAX_PARTICIPANTS, help="D.")] = 2,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many rounds.")] = None,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Rounds between two held-out losses.")] = 1,
    attack: Annotated[AttackKind | None, typer.Option(help="What the last members send instead.")] = None,
    attackers: Annotated[int, typer.Option(min=1, help="With --attack: how many of them lie.")] = 1,
    seats: Annotated[
        int | None, typer.Option(min=1, max=64, help="Storage nodes, for the bytes dispersed; default 4.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=4096, help="CPU threads.")] = 1,
    micro_batches: MicroBatchesOption = 0,
    data: DataOption = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe with N workers here: losses, roots and exact bytes, a line a round."""
    check_needs("--attackers", attackers > 1, "--attack", attack)
    parsed = load_any_recipe(recipe)
    most = compute_num_rounds_total(parsed.rounds)
    if rounds is not None and rounds > most:
        raise typer.BadParameter(f"{rounds}, the recipe has {most} rounds", param_hint="--rounds")
    if attack is not None and attackers >= workers:
        raise typer.BadParameter(
            f"{attackers} of {workers} workers: at least one must be honest", param_hint="--attackers"
        )
    company = f"{workers} worker{'' if workers == 1 else 's'}"
    text = data if data is not None else parsed.data.source.value
    STDERR.print(
        f"{parsed.name}: {company}, {most if rounds is None else rounds} of {most} rounds of "
        f"{describe_steps(parsed.rounds)}, text {text}; loading"
    )
    # torch takes seconds to load: only here, so that the other commands answer at once.
    import torch

    from training.core.layout import build_layout
    from training.data.corpus import check_size, load_corpus
    from training.evaluation import evaluate_state
    from training.simulate import DEFAULT_SEATS, NO_TRAFFIC
    from training.simulate import simulate as run_rounds

    if about_rank := describe_rank(parsed):
        STDERR.print(about_rank)
    torch.set_num_threads(threads)
    corpus = load_corpus(parsed.data, data, tokenizer_file=tokenizer, vocabulary=parsed.model.vocabulary)
    check_size(corpus, parsed.model.context)
    lines: list[dict[str, Any]] = []
    total = NO_TRAFFIC

    said_at = time.monotonic()

    def note(done: SimulatedStep) -> None:
        nonlocal said_at
        if time.monotonic() >= said_at + PROGRESS_SECONDS:
            said_at = time.monotonic()
            STDERR.print(
                f"round {done.round_index:4d}  worker {done.worker_index + 1} of {workers}  "
                f"step {done.step} of {done.num_steps}"
            )

    def show(done: SimulatedRound) -> None:
        nonlocal total, said_at
        total = total + done.traffic
        is_due = (done.round_index + 1) % evaluate_every == 0
        state = done.settlement.state
        loss = round(1e6 * evaluate_state(parsed, state, corpus)) if is_due else None
        line = {
            "round": done.round_index,
            "held_out_micro": loss,
            "train_micro": done.train_loss_micro,
            "rank": done.rank if parsed.codec.has_rank else None,
            "accepted": done.settlement.num_accepted,
            "clipped": done.settlement.clipped,
            "payload_bytes": done.traffic.payload_bytes,
            "up_bytes": done.traffic.up_bytes,
            "down_bytes": done.traffic.down_bytes,
            "root": state.root(),
        }
        lines.append(line)
        if not as_json:
            said_at = time.monotonic()
            train = "flush" if done.train_loss_micro is None else f"train {format_loss(done.train_loss_micro)}"
            STDOUT.print(
                f"round {done.round_index:4d}  held-out {'-' if loss is None else format_loss(loss)}"
                f"  {train:12}  {format_bytes(done.payload_bytes)} a worker"
                f"{f'  clipped {done.settlement.clipped:b}' if done.settlement.clipped else ''}"
                f"  root 0x{state.root().hex()[:12]}"
            )

    state, _ = run_rounds(
        parsed,
        corpus,
        workers,
        show,
        num_rounds=rounds,
        attack=attack,
        num_attackers=attackers,
        num_seats=DEFAULT_SEATS if seats is None else seats,
        num_micro_batches=micro_batches,
        on_step=note,
    )
    loss = evaluate_state(parsed, state, corpus)
    parameters = build_layout(parsed).num_parameters
    if as_json:
        print_json(
            {
                "rounds": lines,
                "traffic": total,
                "held_out": loss,
                "unit": corpus.loss_unit,
                "bits_a_byte": corpus.compute_bits_a_byte(loss),
                "parameters": parameters,
                "root": state.root(),
            }
        )
        return
    print_pairs(
        f"{parsed.name}: {company}, {parameters:,} parameters",
        [
            ("held-out loss", corpus.describe_loss(loss)),
            *([("flush", describe_flush(parsed))] if lines[-1]["train_micro"] is None else []),
            ("payloads of a worker", format_bytes(total.payload_bytes)),
            ("up, with the store's redundancy", format_bytes(total.up_bytes)),
            ("down", format_bytes(total.down_bytes)),
            ("root", f"0x{state.root().hex()}"),
        ],
    )


def describe_steps(rounds: RoundsRecipe) -> str:
    """Say how many inner steps a round has under the recipe's H, and which rounds have none."""
    least, rest = divmod(rounds.local_steps, rounds.num_fragments)
    steps = f"{least} or {least + 1} steps" if rest else f"{least} step{'' if least == 1 else 's'}"
    return f"{steps} (none in the last {'one' if rounds.num_fragments == 1 else rounds.num_fragments})"


def describe_flush(recipe: Recipe) -> str:
    """Say what the last F rounds are for, and why their payloads are larger, where they are."""
    from training.core.payload import codec_of_round

    count = recipe.rounds.num_fragments
    kind = codec_of_round(recipe, recipe.rounds.num_rounds)
    text = f"the last {count} rounds have no inner steps" if count > 1 else "the last round has no inner steps"
    text += " and send what is left over"
    if kind is recipe.codec.kind:
        return text
    return f"{text}: whole, as {kind.value}, since nothing follows that could carry the rest, so payloads are larger"


def load_any_recipe(name: str) -> Recipe:
    """Return what `trainer recipe` prints for a name, or the recipe in a TOML file."""
    if name and name not in shipped_names() and not Path(name).exists() and not name.endswith(".toml"):
        # It counts with the codecs, which load torch: only here, so that other recipes are named at once.
        from training.recipes.shapes import RECIPES, create_recipe

        if name in RECIPES:
            return create_recipe(name)
    return parse_recipe(find_recipe_text(name))
