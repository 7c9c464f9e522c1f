"""``storage archive | restore | keep | age | rehome | challenge``: what is done to blobs that are in the store."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from contracts.bindings.errors import BindingError
from contracts.bindings.errors import ChainUnreachable as NoChainAnswers
from contracts.bindings.failures import describe_failure
from contracts.bindings.sender import Sender
from contracts.bindings.types import BlobState
from contracts.bindings.unlocking import unlock_key
from da.blocking import BlobClient
from da.core.errors import DataAvailabilityError
from da.core.types import BlobId
from storage.amounts import format_wei
from storage.archives import keep_file, restore_file
from storage.cli_session import (
    DEFAULT_CHAIN,
    Chain,
    Deadline,
    Json,
    open_storage,
    report_errors,
    show,
    show_progress,
    tell_height,
)
from storage.client import Rehomed, StorageClient, parse_blob_id
from storage.core.delta import WIDTHS
from storage.core.errors import ChainUnreachable, CommitteeSizeChanged, InvalidRetention, StorageError, UnknownBlob
from storage.core.retention import Retention
from storage.core.tiers import parse_tier
from storage.mover import (
    AgedMovePort,
    Mover,
    RunMovePort,
    get_readable,
    load_catalogue,
    make_aging_plan,
    make_retention_plan,
)
from storage.sizes import format_size
from storage.whole_file import FORCE_HELP, refuse_existing

DAY = 288_000
"""Blocks of 0.3 s."""

REHOME_SECONDS = 30.0
"""Between two looks of ``rehome --watch``: an epoch changes once in many minutes."""

KEEP_SECONDS = 10.0
"""Between two looks of ``keep --watch`` and ``age --watch``."""


def add_keeping_commands(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (challenge, archive, restore, keep, age, rehome):
        app.command()(command)


def challenge(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    seat: Annotated[int, typer.Argument(min=0, max=63, help="The seat that is accused.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that risks the bond.")],
    leaf: Annotated[int | None, typer.Option(min=0, help="The leaf to show; by default one drawn now.")] = None,
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Accuse a seat of having lost its shard: it shows a leaf on the chain and gets your bond, or is slashed."""
    with report_errors(as_json), open_storage(chain, 30.0) as (client, storage, _):
        blob_id, wanted = parse_blob_id(blob), secrets.randbits(62) if leaf is None else leaf
        due = storage.challenge(blob_id, seat=seat, leaf=wanted, sender=Sender(client, unlock_key(key_file)))
        result = {"blob": "0x" + blob_id.hex(), "seat": seat, "leaf": wanted, "due_height": due}
        show(result, as_json, f"seat {seat} must answer until {tell_height(client, due)}")


def archive(
    file: Annotated[Path, typer.Argument(help="The file, such as a checkpoint.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that pays.")],
    base: Annotated[str, typer.Option(help="Archive of the checkpoint before: only the difference is kept.")] = "",
    width: Annotated[int, typer.Option(help="Bytes of a number: 2 for bf16, 4 for fp32.")] = 4,
    blocks: Annotated[int, typer.Option(min=1, help="How long to keep it, in blocks.")] = 8_760_000,
    tier: Annotated[str, typer.Option(help="cold, or another.")] = "cold",
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Keep a file compressed, as the difference to an earlier one; get it back with restore."""
    with report_errors(as_json), open_storage(chain, deadline) as (client, storage, blobs):
        if width not in WIDTHS:
            raise ValueError(f"--width {width}, expected one of {WIDTHS}; next: give --width 4, or 2 for bf16")
        with show_progress(f"archiving {file.name}", lambda: blobs.bytes_sent, as_json):
            kept = keep_file(
                storage,
                file,
                blocks=blocks,
                sender=Sender(client, unlock_key(key_file)),
                width=width,
                base=parse_blob_id(base) if base else None,
                tier=parse_tier(tier),
            )
        result = {
            "blob": "0x" + kept.stored.blob.hex(),
            "size_bytes": kept.size_bytes,
            "stored_bytes": kept.stored.size_bytes,
            "depth": kept.depth,
            "base": None if kept.base is None else "0x" + kept.base.hex(),
            "expiry_height": kept.stored.expiry,
            "fee_wei": kept.stored.fee,
        }
        show(
            result,
            as_json,
            f"{result['blob']}",
            note=f"{format_size(kept.size_bytes)} in {format_size(kept.stored.size_bytes)} "
            f"({kept.gain:.1f} times smaller, depth {kept.depth}), until height {kept.stored.expiry}, "
            f"fee {format_wei(kept.stored.fee)}",
        )


def restore(
    blob: Annotated[str, typer.Argument(help="The archive's blob id, 64 hex digits.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")],
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Get the contents of an archive, with all that it builds on."""
    with report_errors(as_json), ExitStack() as session:
        refuse_existing(out, is_forced=force)
        _, storage, blobs = session.enter_context(open_storage(chain, deadline))
        with show_progress(f"restoring {out.name}", lambda: blobs.bytes_received, as_json):
            size_bytes = restore_file(storage, parse_blob_id(blob), out)
        result = {"file": str(out), "size_bytes": size_bytes, "bytes_received": blobs.bytes_received}
        show(result, as_json, f"{out}: {format_size(size_bytes)}, verified")


def keep(
    run: Annotated[int, typer.Option(min=1, help="The training run.")],
    key_file: Annotated[Path, typer.Option(help="Key of the run's owner, who has the leases.")],
    home: Annotated[Path, typer.Option(help="Where the catalogue lies, with room for some checkpoint parts.")],
    hot: Annotated[int, typer.Option(min=1, help="The newest so many checkpoints stay hot.")] = 2,
    cold_every: Annotated[int, typer.Option(min=0, help="Versions that are multiples of this go cold; 0: none.")] = 10,
    cold: Annotated[int, typer.Option(min=0, help="The newest so many cold ones are kept; 0: all.")] = 0,
    grace: Annotated[int, typer.Option(min=0, help="Blocks between flip and release of the hot copy.")] = 200,
    width: Annotated[int, typer.Option(help="Bytes of a number of the state.")] = 4,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Move a run's checkpoints from hot to cold: copy, certify, flip, grace, delete."""
    with report_errors(as_json), open_storage(chain, deadline) as (client, storage, _):
        home.mkdir(parents=True, exist_ok=True)
        retention = Retention(num_hot=hot, cold_every=cold_every, num_cold=cold, grace_blocks=grace)
        sender = Sender(client, unlock_key(key_file))
        port = RunMovePort(client, storage, sender, run=run, directory=home, width=width)
        mover = Mover(port, home / f"run-{run}.json", make_retention_plan(retention))
        _move(mover, "checkpoint", watch, as_json)


def age(
    key_file: Annotated[Path, typer.Option(help="Key of the account whose blobs these are.")],
    home: Annotated[Path, typer.Option(help="Where the catalogue lies, with room for one blob.")],
    after: Annotated[int, typer.Option(min=0, help="Blobs older than so many blocks go cold; a day by default.")] = DAY,
    grace: Annotated[int, typer.Option(min=0, help="Blocks between flip and release of the hot copy.")] = 200,
    find: Annotated[str, typer.Option(help="Only say which archive a blob has become.")] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Move an account's old blobs, such as logs, to the cold tier: copy, certify, flip, grace, delete."""
    catalogue = home / "aged.json"
    with report_errors(as_json):
        if find:
            _show_archive(catalogue, parse_blob_id(find), as_json)
            return
        with open_storage(chain, deadline) as (client, storage, _):
            home.mkdir(parents=True, exist_ok=True)
            sender = Sender(client, unlock_key(key_file))
            port = AgedMovePort(client, storage, sender, after_blocks=after, directory=home, width=1)
            _move(Mover(port, catalogue, make_aging_plan(grace)), "blob", watch, as_json)


def _move(mover: Mover, what: str, watch: bool, as_json: bool) -> None:
    """Do what is due, once or again and again, and say it."""

    def once() -> None:
        done = mover.step()
        result = {"done": [{"action": action.value, "version": version} for action, version in done]}
        if done or not watch:
            lines = [f"{what} {version}: {action.value}" for action, version in done]
            show(result, as_json, "\n".join(lines) or "nothing to do")

    _repeat(once, watch=watch, pause_seconds=KEEP_SECONDS)


def _repeat(once: Callable[[], None], *, watch: bool, pause_seconds: float) -> None:
    """Do it once; with ``watch`` again and again: what fails then is said, and the next pass may do better."""
    while True:
        try:
            once()
        except (StorageError, DataAvailabilityError, BindingError, OSError) as error:
            if not watch or isinstance(error, InvalidRetention):
                raise
            print(describe_failure(error), file=sys.stderr, flush=True)
        if not watch:
            return
        time.sleep(pause_seconds)


def _show_archive(catalogue: Path, blob: BlobId, as_json: bool) -> None:
    for kept in load_catalogue(catalogue).values():
        if blob in kept.hot:
            blobs, is_archive = get_readable(kept)
            result = {"blob": "0x" + blob.hex(), "archive": "0x" + blobs[0].hex() if is_archive else None}
            show(result, as_json, str(result["archive"] or "not cold yet; next: storage get"))
            return
    raise UnknownBlob(blob=blob)


def rehome(
    blobs: Annotated[list[str] | None, typer.Argument(help="Blob ids, 64 hex digits each.")] = None,
    key_file: Annotated[Path, typer.Option(help="Key of the account that pays for them.")] = Path("owner.key"),
    all_blobs: Annotated[bool, typer.Option("--all", help="All blobs that the account has put.")] = False,
    directory: Annotated[Path, typer.Option(help="Where there is room for one blob at a time.")] = Path("."),
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C: whatever loses a seat is moved.")] = False,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Move blobs off committees whose nodes are gone to the current one; what is paid is not paid again."""
    with report_errors(as_json), open_storage(chain, deadline) as (client, storage, traffic):
        if not blobs and not all_blobs:
            raise ValueError("no blob given; next: name some, or give --all")
        sender = Sender(client, unlock_key(key_file))
        named = [parse_blob_id(text) for text in blobs or ()]
        if not directory.is_dir():
            raise ValueError(f"--directory {directory} is no folder; next: name one with room for a blob")

        def once() -> None:
            wanted = [*named, *(_list_live(storage, sender.address) if all_blobs else ())]
            _rehome(storage, traffic, wanted, sender, directory, as_json, is_quiet=watch)

        _repeat(once, watch=watch, pause_seconds=REHOME_SECONDS)


def _list_live(storage: StorageClient, address: str) -> list[BlobId]:
    owned = storage.list_blobs(address)
    return [parse_blob_id(info.blob.hex()) for info in owned if info.state is BlobState.LIVE]


def _rehome(
    storage: StorageClient,
    traffic: BlobClient,
    wanted: list[BlobId],
    sender: Sender,
    directory: Path,
    as_json: bool,
    *,
    is_quiet: bool,
) -> None:
    """Move those that have lost a seat, and say it; ``is_quiet``: say nothing where nothing was to be done.

    One that fails keeps no other back; the last failure is raised when all had their turn.
    """
    done: list[Rehomed] = []
    left: list[CommitteeSizeChanged] = []
    failed: list[tuple[BlobId, Exception]] = []
    for blob in wanted:
        with show_progress(f"moving {blob.hex()[:16]}", lambda: traffic.bytes_sent, as_json):
            try:
                done.append(storage.rehome(blob, sender=sender, directory=directory))
            except CommitteeSizeChanged as error:
                left.append(error)
            except (ChainUnreachable, NoChainAnswers):
                raise
            except (StorageError, DataAvailabilityError, BindingError, OSError) as error:
                failed.append((blob, error))
    is_worth_saying = any(item.is_moved for item in done) or not is_quiet
    if is_worth_saying and (done or left or not failed):
        _show_moves(done, left, failed, as_json)
    for _, failure in failed[:-1]:
        print(describe_failure(failure), file=sys.stderr, flush=True)
    if failed:
        raise failed[-1][1]


def _show_moves(
    done: list[Rehomed], left: list[CommitteeSizeChanged], failed: list[tuple[BlobId, Exception]], as_json: bool
) -> None:
    moved = [item for item in done if item.is_moved]
    result = {
        "moved": [
            {"blob": "0x" + item.blob.hex(), "epoch": item.epoch, "gone": list(item.gone), "fee_wei": item.fee}
            for item in moved
        ],
        "num_staying": len(done) - len(moved),
        "put_anew": ["0x" + error.blob.hex() for error in left],
        "failed": [{"blob": "0x" + blob.hex(), "message": str(error)} for blob, error in failed],
    }
    lines = [
        f"0x{item.blob.hex()}: seats {', '.join(map(str, item.gone))} are gone, moved to epoch {item.epoch}, "
        f"fee {format_wei(item.fee)}"
        for item in moved
    ]
    lines += [f"0x{error.blob.hex()}: {error}" for error in left]
    failures = f", {len(failed)} failed" if failed else ""
    lines.append(f"{len(moved)} moved, {len(done) - len(moved)} stay where they are{failures}")
    show(result, as_json, "\n".join(lines))
