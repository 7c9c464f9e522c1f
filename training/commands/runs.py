"""``trainer run``: create a run, list them, show one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from contracts.bindings.amounts import format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.sender import Outcome, Sender
from contracts.bindings.types import RunParams, RunState
from contracts.bindings.unlocking import unlock_key
from training.commands.asking import fetch_recipe_name, fetch_recipe_rank, fetch_run
from training.commands.describing import describe_escrow, describe_rank, describe_run
from training.commands.options import (
    DEFAULT_CHAINS,
    ChainOption,
    DataOption,
    JsonOption,
    KeyOption,
    RunOption,
    TokenizerOption,
)
from training.commands.output import (
    STDERR,
    STDOUT,
    create_progress,
    format_hash,
    format_name,
    parse_amount,
    print_json,
    print_pairs,
    print_table,
)
from training.commands.timing import BlockPace, measure_pace
from training.commands.void_rounds import fetch_void_rounds
from training.core.loss_unit import LossUnit, get_loss_unit
from training.core.recipe import ANY_TEXT, DataSource, Recipe
from training.core.recipe_text import parse_recipe
from training.recipes.reading import find_recipe_text
from training.worker.errors import Fatal, WrongRun

LEASED_TIERS = (0, 1)
"""Tiers of payloads and checkpoints; what is left of a lease at a commit is at least half of it, and no less
than either tier's shortest."""

DEFAULT_REWARD = "0.01"
"""Tokens for each accepted update of a run with an allow-list."""

MAX_SECONDS = 10_000_000
"""Longest timer, 115 days: in the shortest blocks, 0.01 s, it is still a u32."""

app = typer.Typer(help="Create, list and show runs.", no_args_is_help=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Timers as people give them, seconds."""

    round_seconds: float
    grace_seconds: float
    attest_seconds: float
    dispute_seconds: float
    recover_seconds: float
    lock_seconds: float
    lease_seconds: float


def create_params(
    recipe: Recipe,
    times: RunTimes,
    pace: BlockPace,
    *,
    min_members: int,
    max_members: int,
    checkpoint_interval: int | None,
    num_parts: int,
    reward_wei: int,
    bond_wei: int,
    is_allow_listed: bool,
    min_lease_blocks: int,
) -> RunParams:
    """Turn a recipe and seconds into the chain's parameters; every timer lasts at least two proposer rotations."""
    return RunParams(
        num_fragments=recipe.rounds.num_fragments,
        overlap=recipe.rounds.overlap,
        local_steps=recipe.rounds.local_steps,
        num_rounds=recipe.rounds.num_rounds,
        min_members=min_members,
        max_members=max_members,
        round_blocks=pace.compute_blocks(times.round_seconds),
        grace_blocks=pace.compute_blocks(times.grace_seconds),
        reveal_blocks=pace.compute_blocks(times.grace_seconds),
        attest_blocks=pace.compute_blocks(times.attest_seconds),
        dispute_blocks=pace.compute_blocks(times.dispute_seconds),
        recover_blocks=pace.compute_blocks(times.recover_seconds),
        lock_blocks=pace.compute_blocks(times.lock_seconds),
        checkpoint_interval=checkpoint_interval or 2 * recipe.rounds.num_fragments,
        num_checkpoint_parts=num_parts,
        lease_blocks=max(pace.compute_blocks(times.lease_seconds), min_lease_blocks),
        is_allow_listed=is_allow_listed,
        is_sealed=False,
        reward_per_update=reward_wei,
        member_bond=bond_wei,
    )


@app.command("create")
def create(
    recipe_file: Annotated[str, typer.Argument(metavar="RECIPE", help="TOML file, or the name of a shipped recipe.")],
    key_file: KeyOption,
    chain: ChainOption = DEFAULT_CHAINS,
    escrow: Annotated[str, typer.Option(help="Tokens put into the run's escrow: rewards and storage.")] = "50",
    reward: Annotated[
        str | None, typer.Option(help="Tokens for each accepted update; default 0.01 with an allow-list, else 0.")
    ] = None,
    bond: Annotated[str, typer.Option(help="Tokens a member must bond.")] = "1",
    min_members: Annotated[int, typer.Option(min=1, help="Rounds open with at least so many.")] = 1,
    max_members: Annotated[int, typer.Option(min=1, max=256, help="Members at most.")] = 64,
    round_seconds: Annotated[float, typer.Option(min=0.1, max=MAX_SECONDS, help="Longest a round stays open.")] = 36.0,
    grace_seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, help="For the slow, after two thirds are in.")
    ] = 3.0,
    attest_seconds: Annotated[float, typer.Option(min=0.1, max=MAX_SECONDS, help="For one attempt at a vote.")] = 9.0,
    dispute_seconds: Annotated[float, typer.Option(min=0.1, max=MAX_SECONDS, help="For a dispute.")] = 18.0,
    recover_seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, help="Before a run without members may go back.")
    ] = 60.0,
    lock_seconds: Annotated[float, typer.Option(min=0.1, max=MAX_SECONDS, help="Bond lock after leaving.")] = 60.0,
    lease_seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, help="Storage lease of a payload.")
    ] = 3600.0,
    checkpoint_rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rounds between checkpoints; default 2F, for short runs. Each uploads the whole state: more rounds"
            " save bytes, and a newcomer replays them.",
        ),
    ] = None,
    parts: Annotated[int, typer.Option(min=1, max=64, help="Parts a checkpoint is uploaded in.")] = 2,
    allow: Annotated[list[str] | None, typer.Option(help="Only these addresses may join; may be repeated.")] = None,
    allow_listed: Annotated[bool, typer.Option("--allow-listed", help="Only allowed addresses may join.")] = False,
    block_seconds: Annotated[
        float | None, typer.Option(min=0.01, max=3600, help="Time of a block; default: measured.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Begin from these safetensors; for a recipe made with `trainer recipe --weights`."),
    ] = None,
    data: DataOption = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a run from a recipe, store its genesis and print its number."""
    # What computes takes seconds to load: only here, so that the other commands answer at once.
    from da.blocking import BlobClient
    from training.models.registry import check_module
    from training.models.start import create_first_state
    from training.worker.duties import HOT_TIER
    from training.worker.stores import CommitteeStores

    text = find_recipe_text(recipe_file)
    recipe = parse_recipe(text)
    check_module(recipe.model)
    _check_text_is_named(recipe, recipe_file)
    _check_tokenizer(recipe, tokenizer)
    num_train_tokens = None if data is None else _check_file(recipe, data, tokenizer)
    for address in allow or ():
        if re.fullmatch(r"(0x)?[0-9a-fA-F]{40}", address) is None:
            raise Fatal(
                f"--allow {address!r} is no address", next_step="give 0x and 40 hex digits: trainer keys show FILE"
            )
    if min_members > max_members:
        raise Fatal(
            f"--min-members {min_members} is more than --max-members {max_members}",
            next_step="lower the one, or raise the other",
        )
    is_allow_listed = bool(allow) or allow_listed
    reward_wei = parse_amount(reward if reward is not None else DEFAULT_REWARD if is_allow_listed else "0")
    if reward_wei and not is_allow_listed:
        raise Fatal(
            "a run that pays needs an allow-list, as long as there are no audits",
            next_step="add --allow ADDRESS (or --allow-listed), or leave --reward out",
        )
    escrow_wei, bond_wei = parse_amount(escrow), parse_amount(bond)
    client = ChainClient(chain)
    sender = Sender(client, unlock_key(key_file))
    pace = measure_pace(client, block_seconds=block_seconds)
    min_lease = 2 * max((tier.min_blocks for tier in client.storage.tiers() if tier.id in LEASED_TIERS), default=1)
    params = create_params(
        recipe,
        RunTimes(
            round_seconds=round_seconds,
            grace_seconds=grace_seconds,
            attest_seconds=attest_seconds,
            dispute_seconds=dispute_seconds,
            recover_seconds=recover_seconds,
            lock_seconds=lock_seconds,
            lease_seconds=lease_seconds,
        ),
        pace,
        min_members=min_members,
        max_members=max_members,
        checkpoint_interval=checkpoint_rounds,
        num_parts=parts,
        reward_wei=reward_wei,
        bond_wei=bond_wei,
        is_allow_listed=is_allow_listed,
        min_lease_blocks=min_lease,
    )
    _check_balance(client, sender.address, escrow_wei)
    num_members = max(min_members, len(allow or ()))
    about_text = describe_text(recipe, num_train_tokens, num_members)
    if num_train_tokens is None and about_text is not None:
        STDERR.print(about_text)
    if about_rank := describe_rank(recipe):
        STDERR.print(about_rank)
    genesis = create_first_state(recipe, weights)
    blobs = BlobClient()
    try:
        with create_progress() as progress:
            task = progress.add_task("creating the run", total=parts + 2)
            outcome = sender.send(
                "Training", "createRun", params, text.encode(), genesis.root(), value=escrow_wei, deadline_seconds=60
            )
            run = int(outcome.event("RunCreated").fields["run"])
            progress.advance(task)
            if allow:
                sender.send("Training", "allow", run, allow, True)
            stores = CommitteeStores(client, blobs)
            for part in range(parts):
                progress.update(task, description=f"storing genesis, part {part + 1} of {parts}")
                certificate = stores.put(genesis.encode_part(part, parts), tier=HOT_TIER, blocks=params.lease_blocks)
                sender.send("Training", "checkpoint", run, 0, part, certificate)
                progress.advance(task)
    finally:
        blobs.close()
    info = client.training.run(run)
    if as_json:
        print_json({"run": run, "transaction": outcome.transaction_hash, "info": info})
        return
    STDOUT.print(f"run {run} created by {sender.address}, genesis root {format_hash(info.genesis_root)}")
    STDOUT.print(f"one block is about {pace.block_seconds:.2f} s; a round lasts at most {params.round_blocks} blocks")
    STDOUT.print(describe_pay(reward_wei, escrow_wei))
    if short := describe_short_escrow(reward_wei, escrow_wei, info.num_rounds_total, num_members):
        STDOUT.print(f"{short}; add to it: trainer run fund TOKENS --run {run} --key-file {key_file}")
    if num_train_tokens is not None and about_text is not None:
        STDOUT.print(about_text)
    where = "" if chain == DEFAULT_CHAINS else "".join(f" --chain {url}" for url in chain)
    files = describe_files(recipe, data, tokenizer)
    STDOUT.print(f"join it: trainer join --run {run} --key-file WORKER.key{files}{where}")
    if is_allow_listed and not allow:
        STDOUT.print(f"nobody may join yet: trainer run allow 0xWORKER --run {run} --key-file {key_file}{where}")


def describe_pay(reward_wei: int, escrow_wei: int) -> str:
    """Say what a member earns, and how to make a run pay that pays nothing."""
    if not reward_wei:
        return (
            f"nobody is paid in this run: its escrow of {format_tokens(escrow_wei)} pays for storage only\n"
            "to pay members, create it with --allow ADDRESS --reward TOKENS (runs that pay are allow-listed)"
        )
    num_paid = escrow_wei // reward_wei
    return (
        f"each counted update is paid {format_tokens(reward_wei)}; "
        f"the escrow of {format_tokens(escrow_wei)} is enough for about {num_paid:,}"
    )


def describe_short_escrow(reward_wei: int, escrow_wei: int, num_rounds: int, num_members: int) -> str | None:
    """Warn of an escrow that ends before the run does, else None; what storage takes of it comes on top."""
    if not reward_wei or escrow_wei >= reward_wei * num_rounds * num_members:
        return None
    num_paid = escrow_wei // reward_wei
    who = f"one member for {num_paid:,} of {num_rounds:,} rounds"
    if num_members > 1:
        who = f"{num_members} members for {num_paid // num_members:,} of {num_rounds:,} rounds, {who}"
    return f"warning: the escrow pays {who}, at most"


def describe_files(recipe: Recipe, data: Path | None, tokenizer: Path | None = None) -> str:
    """Return the options that a member must add for the files that the recipe names by digest only."""
    text = f" --data {data or 'FILE'}" if recipe.data.source is DataSource.FILE else ""
    return text + (f" --tokenizer {tokenizer or 'tokenizer.json'}" if recipe.data.tokenizer_digest else "")


def describe_text(recipe: Recipe, num_train_tokens: int | None, num_members: int) -> str | None:
    """Say how a run of a file and its text's size go together; None where the text is the source's own.

    ``num_train_tokens`` is None where nobody has shown the file: then, what it must have.
    """
    if recipe.data.source is not DataSource.FILE:
        return None
    rounds, inner, context = recipe.rounds, recipe.inner, recipe.model.context
    num_steps = rounds.num_rounds * rounds.local_steps // rounds.num_fragments
    num_read = num_steps * inner.batch_size * context * num_members
    members = "one member reads" if num_members == 1 else f"{num_members} members read"
    unit = "bytes" if get_loss_unit(recipe) is LossUnit.BYTE else "tokens"
    read = f"{members} {num_read:,} {unit} ({num_steps:,} steps of {inner.batch_size} samples of {context})"
    if num_train_tokens is None:
        whose = (
            "each member brings a text of its own, whose size"
            if recipe.data.digest == ANY_TEXT
            else "the recipe's digest settles which text it is, but its size"
        )
        return (
            f"warning: {whose} was not checked: --data FILE does that, or "
            "trainer data digest --recipe RECIPE --data FILE\n"
            f"  `trainer join` refuses one with fewer than {context + 2:,} {unit} to train on or held out, and a small "
            f"one is repeated: {read}"
        )
    times = num_read / num_train_tokens
    again = f"about {times:,.1f} times over" if times > 1 else f"{100 * times:.2g} % of it"
    return f"the text has {num_train_tokens:,} {unit} to train on; {read}, {again}"


@app.command("list")
def list_runs(chain: ChainOption = DEFAULT_CHAINS, as_json: JsonOption = False) -> None:
    """List all runs."""
    client = ChainClient(chain)
    runs = [client.training.run(run) for run in range(1, client.training.num_runs() + 1)]
    if as_json:
        print_json(runs)
        return
    rows = [
        (
            str(info.run),
            format_name(info.state),
            f"{info.num_settled} of {info.num_rounds_total}",
            f"{info.num_eligible} eligible of {info.num_members}" if info.num_members else "none yet",
            describe_escrow(info),
            fetch_recipe_name(client, info.run),
            info.owner,
        )
        for info in runs
    ]
    print_table("runs", ("run", "state", "rounds settled", "members", "escrow", "recipe", "owner"), rows)


@app.command("show")
def show(run: RunOption, chain: ChainOption = DEFAULT_CHAINS, as_json: JsonOption = False) -> None:
    """Show one run."""
    client = ChainClient(chain)
    info = fetch_run(client, run)
    members = client.training.members(run)
    void = fetch_void_rounds(client, info, client.height())
    if as_json:
        print_json({"info": info, "members": members, "void_rounds": void})
        return
    print_pairs(f"run {run}", describe_run(info, fetch_recipe_rank(client, run), void))
    print_table(
        "members",
        ("worker", "state", "accepted", "refused", "missed", "tokens", "earned"),
        [
            (
                member.worker,
                format_name(member.state),
                str(member.accepted),
                str(member.refused),
                str(member.missed),
                f"{member.tokens:,}",
                format_tokens(member.earned),
            )
            for member in members
        ],
    )
    if 0 < info.num_eligible < 4 and info.state is not RunState.FINISHED:
        STDOUT.print("note: below four members, votes protect against crashes, not against lies")


@app.command("allow")
def allow_workers(
    workers: Annotated[list[str], typer.Argument(help="Addresses.")],
    run: RunOption,
    key_file: KeyOption,
    chain: ChainOption = DEFAULT_CHAINS,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take them off the list.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Owner: put addresses on a run's allow-list, or take them off."""
    sender = _connect(run, key_file, chain, is_for_members=True)
    outcome = sender.send("Training", "allow", run, workers, not revoke)
    what = f"{len(workers)} address" + ("" if len(workers) == 1 else "es")
    _print_done(outcome, f"{what} {'taken off' if revoke else 'put on'} the list", as_json)


@app.command("fund")
def fund(
    amount: Annotated[str, typer.Argument(help="Tokens.")],
    run: RunOption,
    key_file: KeyOption,
    chain: ChainOption = DEFAULT_CHAINS,
    as_json: JsonOption = False,
) -> None:
    """Add tokens to a run's escrow."""
    sender = _connect(run, key_file, chain)
    _print_done(sender.send("Training", "fund", run, value=parse_amount(amount)), f"{amount} tokens added", as_json)


@app.command("pause")
def pause(
    run: RunOption, key_file: KeyOption, chain: ChainOption = DEFAULT_CHAINS, as_json: JsonOption = False
) -> None:
    """Owner: open no further round."""
    _print_done(_connect(run, key_file, chain).send("Training", "pause", run), "paused", as_json)


@app.command("resume")
def resume(
    run: RunOption, key_file: KeyOption, chain: ChainOption = DEFAULT_CHAINS, as_json: JsonOption = False
) -> None:
    """Owner: open rounds again."""
    _print_done(_connect(run, key_file, chain).send("Training", "resume", run), "resumed", as_json)


@app.command("reclaim")
def reclaim(
    run: RunOption, key_file: KeyOption, chain: ChainOption = DEFAULT_CHAINS, as_json: JsonOption = False
) -> None:
    """Owner: take the free escrow of a run that has stood still; `fund` and `resume` wake it again."""
    outcome = _connect(run, key_file, chain).send("Training", "reclaim", run)
    amount = outcome.event("EscrowReturned").fields["amount"]
    _print_done(outcome, f"{format_tokens(amount)} returned", as_json)


def _connect(run: int, key_file: Path, chain: list[str], *, is_for_members: bool = False) -> Sender:
    """Return the owner's sender, once the run is known to exist, and not to have ended where members are meant."""
    client = ChainClient(chain)
    if fetch_run(client, run).state is RunState.FINISHED and is_for_members:
        raise WrongRun(
            f"run {run} has finished: nobody joins it any more",
            next_step=f"take its model: trainer checkpoint pull --run {run} --out model; or create another run",
        )
    return Sender(client, unlock_key(key_file))


def _print_done(outcome: Outcome, text: str, as_json: bool) -> None:
    if as_json:
        print_json({"transaction": outcome.transaction_hash, "height": outcome.height})
    else:
        STDOUT.print(f"{text} in block {outcome.height}")


def _check_text_is_named(recipe: Recipe, recipe_file: str) -> None:
    """Refuse a run of a file that no member could tell from another file."""
    if recipe.data.source is DataSource.FILE and not recipe.data.digest:
        raise Fatal(
            "the recipe's data.source is 'file', and its data.digest doesn't say which",
            next_step=f"put the line under [data] that this prints: trainer data digest --recipe {recipe_file} "
            f'--data FILE (or digest = "{ANY_TEXT}": each member its own text)',
        )


def _check_tokenizer(recipe: Recipe, tokenizer: Path | None) -> None:
    """Refuse a tokenizer that isn't there or isn't the recipe's; a recipe's own may stay with those who train."""
    from training.data.tokenizer import load_tokenizer

    if tokenizer is not None:
        load_tokenizer(tokenizer, recipe.data.tokenizer_digest, recipe.model.vocabulary)


def _check_file(recipe: Recipe, file: Path, tokenizer: Path | None) -> int:
    """Refuse a text that is not the recipe's, or too small for it, before money is locked; return its tokens."""
    from training.data.corpus import check_size, check_text, load_corpus

    corpus = load_corpus(recipe.data, file, tokenizer_file=tokenizer, vocabulary=recipe.model.vocabulary)
    check_text(recipe.data, corpus, file)
    check_size(corpus, recipe.model.context)
    return int(corpus.train.size)


def _check_balance(client: ChainClient, address: str, escrow_wei: int) -> None:
    balance = client.balance(address)
    if balance <= escrow_wei:
        raise Fatal(
            f"{address} holds {format_tokens(balance)} {client.describe_chain()}, needs more than the escrow of "
            f"{format_tokens(escrow_wei)}",
            next_step=f"fund it (on a devnet: localnet fund {address}), or lower --escrow",
        )
