"""``trainer join`` and ``trainer leave``."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler

from contracts.bindings.amounts import format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import UNKNOWN_HEIGHT, BindingError
from contracts.bindings.foreign_text import ForeignTextFormatter
from contracts.bindings.option_needs import check_needs
from contracts.bindings.sender import Sender
from contracts.bindings.types import Member, MemberState
from contracts.bindings.unlocking import unlock_key
from training.commands.asking import fetch_run
from training.commands.options import (
    DEFAULT_CHAINS,
    ChainOption,
    DataOption,
    DeviceOption,
    JsonOption,
    KeyOption,
    MicroBatchesOption,
    RunOption,
    TokenizerOption,
)
from training.commands.output import STDERR, STDOUT, print_json, print_pairs
from training.commands.stopping import StopSignals
from training.commands.timing import BlockPace, describe_wait, measure_pace
from training.worker.errors import Fatal

LOG = logging.getLogger("trainer")

LOOPBACK = "127.0.0.1"
"""Where metrics are served unless told otherwise: only this machine reads them."""

FIRST_LOOK_SECONDS = 2.0
"""For the first question of all, before torch is loaded."""


def join(
    run: RunOption,
    key_file: KeyOption,
    chain: ChainOption = DEFAULT_CHAINS,
    home: Annotated[
        Path | None, typer.Option(help="Folder of this worker; default ~/.archipelago/chain-HASH/run-N/ADDRESS.")
    ] = None,
    data: DataOption = None,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to torch.")] = 0,
    device: DeviceOption = "auto",
    stages: Annotated[
        int,
        typer.Option(
            min=1, help="Processes that the layers are spread over, at most as many as layers; GPU i for stage i."
        ),
    ] = 1,
    shards: Annotated[
        int, typer.Option(min=1, help="Processes that every weight is spread over (FSDP); a GPU for each.")
    ] = 1,
    precision: Annotated[
        str, typer.Option(help="Of the model's products: fp32, bf16, or auto: bf16 on a GPU that has it.")
    ] = "auto",
    micro_batches: MicroBatchesOption = 0,
    tokenizer: TokenizerOption = None,
    evaluate_every: Annotated[int, typer.Option(min=0, help="Rounds between recorded held-out losses; 0: never.")] = 4,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds without the chain, or without money, before giving up.")
    ] = 3600.0,
    first_patience: Annotated[
        float, typer.Option(min=1, help="The same, for a chain that this worker has never reached.")
    ] = 60.0,
    idle: Annotated[float, typer.Option(min=1, help="Seconds without a round for us before giving up.")] = 86_400.0,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port; 0: a free one.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="With --metrics-port: the address it listens on.")] = LOOPBACK,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard's event files; needs the extra 'tensorboard'.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Join a run and train until it has finished; Ctrl-C stops in order and keeps the membership."""
    if micro_batches and shards > 1:
        raise typer.BadParameter(
            f"{micro_batches} beside --shards {shards}: a shard takes its part of the batch at once; give one of them",
            param_hint="--micro-batches",
        )
    check_needs("--metrics-host", metrics_host != LOOPBACK, "--metrics-port", metrics_port is not None)
    private_key = unlock_key(key_file)
    _start_logging()
    signals = StopSignals()
    LOG.info("trainer join: run %d at %s; loading torch ...", run, ", ".join(chain))
    with contextlib.suppress(BindingError), ChainClient(chain, timeout_seconds=FIRST_LOOK_SECONDS) as client:
        fetch_run(client, run)  # a wrong number is said at once; who doesn't answer is waited for, below
    # What computes takes seconds to load, minutes on a busy machine.
    from training.worker.loop import Patience
    from training.worker.process import JoinConfig, join_and_train

    signals.begin()
    summary = join_and_train(
        JoinConfig(
            chain_urls=tuple(chain),
            run=run,
            private_key=private_key,
            home=home,
            data_file=data,
            num_threads=threads,
            device=device,
            evaluation_interval=evaluate_every,
            patience=Patience(chain_seconds=patience, idle_seconds=idle, first_contact_seconds=first_patience),
            tokenizer_file=tokenizer,
            num_stages=stages,
            num_shards=shards,
            precision=precision,
            num_micro_batches=micro_batches,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            tensorboard_folder=tensorboard,
        ),
        signals.stop,
    )
    if as_json:
        print_json(summary)
        return
    has_state = any(bytes.fromhex(summary.root))
    account = [("updates", "not known: the chain gives no answer")]
    if summary.earned is not None:
        account = [
            ("updates", f"{summary.accepted} counted, {summary.refused} refused"),
            ("earned", format_tokens(summary.earned)),
        ]
    print_pairs(
        f"run {run}: {summary.end.value}",
        [
            ("worker", summary.worker),
            ("agreed state", f"version {summary.version}, root 0x{summary.root}" if has_state else "none yet"),
            *account,
        ],
    )


def leave(
    run: RunOption,
    key_file: KeyOption,
    chain: ChainOption = DEFAULT_CHAINS,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the bond back, once it is unlocked.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Leave a run; the bond is free again after the lock."""
    client = ChainClient(chain)
    lock_blocks = fetch_run(client, run).params.lock_blocks
    sender = Sender(client, unlock_key(key_file))
    before = client.training.member(run, sender.address)
    where = "" if chain == DEFAULT_CHAINS else "".join(f" --chain {url}" for url in chain)
    again = f"trainer leave --run {run} --key-file {key_file}{where}"
    if before.state is MemberState.NONE:
        raise Fatal(
            f"{sender.address} has never been a member of run {run}: there is nothing to leave",
            next_step="give the --key-file of a member",
        )
    if withdraw and before.state is not MemberState.LEFT:
        raise Fatal(
            f"{sender.address} is {before.state.name} in run {run}, expected LEFT: its bond is held until it has left",
            next_step=again,
        )
    outcome = sender.send("Training", "withdrawBond" if withdraw else "leave", run)
    member = client.training.member(run, sender.address)
    if as_json:
        print_json({"transaction": outcome.transaction_hash, "height": outcome.height, "member": member})
    elif withdraw:
        STDOUT.print(f"bond of {format_tokens(before.bond)} withdrawn in block {outcome.height}")
    elif member.bond == 0:
        STDOUT.print(f"left run {run} in block {outcome.height}; there was no bond")
    else:
        lock = describe_lock(member, outcome.height, lock_blocks, measure_pace(client))
        STDOUT.print(
            f"left run {run} in block {outcome.height}; the bond of {format_tokens(member.bond)} {lock}\n"
            f"next:  {again} --withdraw"
        )


def describe_lock(member: Member, height: int, lock_blocks: int, pace: BlockPace) -> str:
    """Say when the bond of who has left is free; while rounds of its are open the chain itself doesn't know."""
    if member.bond_unlock_height == UNKNOWN_HEIGHT:
        wait = describe_wait(pace, lock_blocks).removeprefix("in ")
        return f"is free {lock_blocks} blocks ({wait}) after the rounds that it takes part in have settled"
    wait = describe_wait(pace, member.bond_unlock_height - height)
    return f"is free from block {member.bond_unlock_height}, {wait}"


def _start_logging() -> None:
    """Log the worker's own lines and others' warnings to stderr; plain lines where it is no terminal."""
    handler: logging.Handler
    if STDERR.is_terminal:
        handler = RichHandler(console=STDERR, show_path=False, show_level=False, log_time_format="%H:%M:%S")
        handler.setFormatter(ForeignTextFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(ForeignTextFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("trainer").setLevel(logging.INFO)
