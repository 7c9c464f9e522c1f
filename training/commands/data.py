"""``trainer data``: which samples a member trains on in a round, for anyone to recompute; and a text's digest.

SPEC, *Samples* and *Text*.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from contracts.bindings.encoding import checksummed
from contracts.bindings.option_needs import check_needs
from training.commands.options import DEFAULT_CHAINS, ChainOption, DataOption, JsonOption, TokenizerOption
from training.commands.output import print_json, print_pairs
from training.core.recipe_text import parse_recipe
from training.recipes.reading import find_recipe_text
from training.worker.errors import Fatal

MAX_ROUND = (1 << 32) - 1
"""A round a second for 136 years."""
MAX_SAMPLES = 10_000
"""Listed at once."""
SHOWN_MEMBERS = 8
"""Of a round, where one asks for somebody else; a round has up to 64."""

app = typer.Typer(help="Data of a run.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Data of a run."""


@app.command("explain")
def explain(
    round_index: Annotated[int, typer.Option("--round", min=0, max=MAX_ROUND, help="The round.")],
    member: Annotated[str, typer.Option(help="Address of the member, 0x...")],
    run: Annotated[int | None, typer.Option(min=1, help="Run on the chain: its recipe, seed and members.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Offline: a recipe, a file or shipped, in place of a run.")] = None,
    among: Annotated[
        list[str] | None, typer.Option(help="With --recipe: the round's members; may be repeated.")
    ] = None,
    chain: ChainOption = DEFAULT_CHAINS,
    data: DataOption = None,
    tokenizer: Annotated[Path | None, typer.Option(help="The run's tokenizer.json.")] = None,
    samples: Annotated[int, typer.Option(min=1, max=MAX_SAMPLES, help="Samples to list.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """Print the places in the text that a member's samples of a round begin at, and the text of the first."""
    from training.core.sampling import compute_data_seed, plan_samples
    from training.data.corpus import check_size, is_agreed_text, load_corpus

    check_needs("--among", among, "--recipe", recipe is not None)
    if (run is None) == (recipe is None):
        raise Fatal("name either --run or --recipe", next_step="trainer data explain --run 1 --round 7 --member 0x...")
    num_archived = None
    if run is not None:
        from contracts.bindings.client import ChainClient
        from training.commands.drawn_rounds import fetch_drawn_round

        client = ChainClient(chain)
        drawn = fetch_drawn_round(client, chain, run, round_index)
        rules = parse_recipe(client.training.recipe(run).decode())
        seed, members, num_archived = drawn.data_seed, list(drawn.participants), drawn.num_archived
        if _to_bytes(member) not in members:
            raise Fatal(
                f"--member {member} is no participant of round {round_index} of run {run}; its {len(members)} are "
                f"{_list_addresses(members)}",
                next_step="name one of them, or a --round that was opened with the member",
            )
    else:
        assert recipe is not None
        rules = parse_recipe(find_recipe_text(recipe))
        seed = compute_data_seed(rules.seed, round_index)
        members = [_to_bytes(each) for each in among or ()]
        if among and _to_bytes(member) not in members:
            raise Fatal(
                f"--member {member} is none of the round's members that --among names, {', '.join(among)}",
                next_step=f"name the member, too: --among {member}",
            )
    corpus = load_corpus(rules.data, data, tokenizer_file=tokenizer, vocabulary=rules.model.vocabulary)
    is_agreed = is_agreed_text(rules.data, corpus) is not None
    check_size(corpus, rules.model.context)
    plan = plan_samples(
        seed=rules.seed,
        round_index=round_index,
        data_seed=seed,
        member=_to_bytes(member),
        participants=members,
        num_bytes=int(corpus.train.size),
        context=rules.model.context,
    )
    starts = list(plan.starts(0, samples))
    first = corpus.train[starts[0] : starts[0] + rules.model.context + 1]
    found = {
        "round": round_index,
        "member": member,
        "data_seed": seed.hex(),
        "num_archived": num_archived,
        "member_index": plan.member_index,
        "num_members": plan.num_members,
        "context": plan.context,
        "phase": plan.phase,
        "num_windows": plan.num_windows,
        "multiplier": plan.multiplier,
        "offset": plan.offset,
        "train_tokens": int(corpus.train.size),
        "digest": corpus.digest.hex(),
        "is_agreed_text": is_agreed,
        "train_digest": corpus.train_digest.hex(),
        "starts": starts,
        "first_sample": first.tolist(),
    }
    if as_json:
        print_json(found)
        return
    origin = "" if num_archived is None else f", of a record under the archive of rounds 0 to {num_archived - 1}"
    shown = bytes(first.tolist()).decode("utf-8", errors="replace") if corpus.train.dtype.itemsize == 1 else str(first)
    print_pairs(
        f"samples of {member} in round {round_index}",
        [
            ("text", f"{corpus.train.size:,} tokens to train on"),
            ("digest", f"{corpus.digest.hex()}, {'as the recipe says' if is_agreed else 'the recipe names none'}"),
            ("data seed", f"0x{seed.hex()}{origin}"),
            ("member", f"{plan.member_index + 1} of {plan.num_members} in the round"),
            ("window", f"{plan.context} tokens; {plan.num_windows:,} windows from token {plan.phase}"),
            (
                "sample j",
                f"window ({plan.multiplier} * (j * {plan.num_members} + {plan.member_index}) + {plan.offset}) mod "
                f"{plan.num_windows}",
            ),
            ("begin at", ", ".join(str(start) for start in starts)),
            ("first", repr(shown[:160])),
        ],
    )


@app.command("digest")
def digest(
    recipe: Annotated[str, typer.Option(help="The recipe, for its split, column and tokenizer.")],
    data: DataOption = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the line of a recipe's data section by which all members of a run train on this text: digest = "..."."""
    from training.data.corpus import check_size, load_corpus

    rules = parse_recipe(find_recipe_text(recipe))
    corpus = load_corpus(rules.data, data, tokenizer_file=tokenizer, vocabulary=rules.model.vocabulary)
    check_size(corpus, rules.model.context)
    if as_json:
        print_json({"digest": corpus.digest.hex(), "train_tokens": int(corpus.train.size)})
        return
    print(f'digest = "{corpus.digest.hex()}"')


def _list_addresses(members: Sequence[bytes]) -> str:
    shown = [checksummed("0x" + each.hex()) for each in members[:SHOWN_MEMBERS]]
    return ", ".join(shown) + (", ..." if len(members) > SHOWN_MEMBERS else "")


def _to_bytes(address: str) -> bytes:
    try:
        raw = bytes.fromhex(address.removeprefix("0x"))
    except ValueError as error:
        raise Fatal(f"{address!r} is no address", next_step="name 20 bytes in hex, 0x...") from error
    if len(raw) != 20:
        raise Fatal(f"{address!r} has {len(raw)} bytes, an address has 20", next_step="name 20 bytes in hex, 0x...")
    return raw
