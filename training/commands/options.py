"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contracts.bindings.devnet import CHAIN_VARIABLE, DEFAULT_CHAINS, choose_chains

__all__ = ["DEFAULT_CHAINS"]

ChainOption = Annotated[
    list[str],
    typer.Option(
        "--chain",
        envvar=CHAIN_VARIABLE,
        callback=choose_chains,
        help="JSON-RPC URL of a chain node; several may be given, one down or lagging is survived. Without it the "
        "devnet that runs here.",
    ),
]
RunOption = Annotated[int, typer.Option("--run", min=1, help="The run's number, see `trainer run list`.")]
KeyOption = Annotated[Path, typer.Option("--key-file", help="Key file, see `trainer keys new`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 or auto.")]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", help="The run's tokenizer.json, where its recipe names one.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help='The run\'s text, where its recipe says data.source = "file".')
]
MicroBatchesOption = Annotated[
    int,
    typer.Option(
        "--micro-batches",
        min=0,
        help="Parts of a batch whose gradients add up: less memory for activations, the same bits whatever the "
        "--stages; not with --shards. 0: the whole batch at once, or what keeps the stages busy.",
    ),
]
