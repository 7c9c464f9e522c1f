"""What all ``storage`` commands share: options, exit codes, the connection, progress, errors in words."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from contracts.bindings.client import ChainClient
from contracts.bindings.devnet import CHAIN_VARIABLE, DEFAULT_CHAINS, choose_chains
from contracts.bindings.encoding import read_quantity
from contracts.bindings.errors import BindingError, KeyFileError
from contracts.bindings.failures import describe_failure
from contracts.bindings.foreign_text import show_lines
from da.blocking import BlobClient
from da.core.errors import DataAvailabilityError, DisperseFailed, NotAFile, RetrieveFailed
from storage.client import StorageClient
from storage.core.errors import (
    BlobReleased,
    CommitteeSizeChanged,
    InvalidBlobText,
    InvalidRetention,
    LeaseTooShortForTier,
    NotFunded,
    NotYourLease,
    StorageError,
    TierUnavailable,
    UnknownBlob,
)
from storage.core.leaving import BLOCK_MILLISECONDS, format_height
from storage.sizes import format_size

FAILED = 1
"""Exit code: the chain or the network failed."""
BAD_INPUT = 2
"""Exit code: an argument makes no sense, a file can't be read."""
NOT_STORED = 3
"""Exit code: too few nodes signed; nothing is certified."""
NOT_FOUND = 4
"""Exit code: the chain does not know the blob, or its leases have ended."""
NOT_READABLE = 5
"""Exit code: too few good shards."""
NOT_FUNDED = 6
"""Exit code: the account has less than it costs; nothing was sent."""
BROKEN_PIPE = 141
"""Exit code when the reader of the output has gone, as shells have it."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

Chain = Annotated[
    list[str],
    typer.Option(
        "--chain",
        envvar=CHAIN_VARIABLE,
        callback=choose_chains,
        help="JSON-RPC URL; give several to survive one being down. Without it the devnet that runs here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Deadline = Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds to wait for one node.")]
Seal = Annotated[Path | None, typer.Option("--encrypt", help="Seal with the key in this file; see keygen.")]
Unseal = Annotated[Path | None, typer.Option("--decrypt", help="Open with the key in this file.")]
DEFAULT_CHAIN = DEFAULT_CHAINS
NUM_SPANS = 5
"""Spans of blocks that are looked at for the chain's pace."""
SPAN_BLOCKS = 200
"""Length of one: block times are whole seconds, so that this is 1 s of 40 s off."""
LEAST_SPAN_BLOCKS = 40
"""Below this, rounding would decide."""


@contextmanager
def open_storage(urls: list[str], deadline: float) -> Iterator[tuple[ChainClient, StorageClient, BlobClient]]:
    """Give chain, store and blob client, and close them."""
    client = ChainClient(urls)
    try:
        with BlobClient(deadline_seconds=deadline) as blobs:
            yield client, StorageClient(client, blobs), blobs
    finally:
        client.close()


@contextmanager
def report_errors(as_json: bool) -> Iterator[None]:
    """Turn expected failures into a readable line and an exit code."""
    try:
        yield
    except (UnknownBlob, BlobReleased, NotYourLease) as error:
        fail(error, NOT_FOUND, as_json)
    except NotFunded as error:
        fail(error, NOT_FUNDED, as_json)
    except DisperseFailed as error:
        fail(error, NOT_STORED, as_json)
    except RetrieveFailed as error:
        fail(error, NOT_READABLE, as_json)
    except (
        InvalidBlobText,
        InvalidRetention,
        CommitteeSizeChanged,
        LeaseTooShortForTier,
        TierUnavailable,
        ValueError,
        KeyFileError,
        NotAFile,
        FileExistsError,
        FileNotFoundError,
        NotADirectoryError,
        IsADirectoryError,
        PermissionError,
    ) as error:
        fail(error, BAD_INPUT, as_json)
    except BrokenPipeError:  # whoever read the output has seen enough; nothing is left to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE) from None
    except (StorageError, DataAvailabilityError, BindingError, OSError) as error:
        fail(error, FAILED, as_json)
    except KeyboardInterrupt as error:
        fail(error, INTERRUPTED, as_json)


@contextmanager
def show_progress(text: str, get_bytes: Callable[[], int], as_json: bool) -> Iterator[None]:
    """Show the bytes at the sockets while the block runs; nothing where output is for programs."""
    if as_json or not sys.stderr.isatty():
        yield
        return
    stop = threading.Event()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)

        def follow() -> None:
            first, since = get_bytes(), time.monotonic()
            while not stop.wait(0.1):
                done = get_bytes() - first
                rate = int(done / max(0.1, time.monotonic() - since))
                progress.update(task, description=f"{text}: {format_size(done)} on the wire, {format_size(rate)}/s")

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def tell_height(client: ChainClient, height: int) -> str:
    """Return a height and when it comes; the height alone while the chain does not answer."""
    try:
        return format_height(height, now=client.height(), block_milliseconds=measure_block(client))
    except BindingError:
        return f"height {height:,}"


def measure_block(client: ChainClient) -> int:
    """Return how many milliseconds a block takes now: of equal spans of the newest blocks the one in the middle.

    A chain that stood still for a night shows it in one span. A young chain is taken to keep the pace of the prices.
    """
    now = client.height()
    span = min(SPAN_BLOCKS, (now - 1) // NUM_SPANS)
    if span < LEAST_SPAN_BLOCKS:
        return BLOCK_MILLISECONDS
    heights = [now - span * index for index in range(NUM_SPANS + 1)]
    times = client.interpret(
        [("eth_getBlockByNumber", (hex(height), False)) for height in heights],
        lambda blocks: [read_quantity(block["timestamp"]) for block in blocks] if all(blocks) else [],
    )
    if not times:
        return BLOCK_MILLISECONDS
    seconds = sorted(newer - older for newer, older in pairwise(times))[NUM_SPANS // 2]
    return seconds * 1000 // span or BLOCK_MILLISECONDS


def show(result: dict[str, Any], as_json: bool, text: str, *, note: str = "") -> None:
    """Print a result for programs or for people; ``note``, for people only, goes to stderr.

    So ``ID=$(storage put FILE)`` is the id and nothing else.
    """
    print(json.dumps(result) if as_json else show_lines(text), flush=True)
    if note and not as_json:
        print(show_lines(note), file=sys.stderr, flush=True)


def fail(error: BaseException, code: int, as_json: bool) -> NoReturn:
    """Say what failed and what to do next, and end with ``code``."""
    text = str(error) or "interrupted"
    with contextlib.suppress(BrokenPipeError):
        if as_json:
            print(json.dumps({"error": type(error).__name__, "message": text}), flush=True)
        else:
            print(describe_failure(error), file=sys.stderr, flush=True)
    raise SystemExit(code)
