"""``storage put | get | quote | stat``: any file into the store and back, for people and for scripts."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError, KeyFileError
from contracts.bindings.failures import describe_failure
from contracts.bindings.keys import address_of, load_key
from contracts.bindings.sender import Sender
from contracts.bindings.types import BlobState
from da.blocking import BlobClient
from da.core.errors import DataAvailabilityError, DisperseFailed, RetrieveFailed
from da.core.types import Tier
from da.sealing import SealedSource, create_secret, load_secret, unseal_file
from da.slabs import FileSource
from storage.amounts import format_wei
from storage.archives import keep_file, restore_file
from storage.client import CERTIFY_BLOCKS, StorageClient, parse_blob_id
from storage.core.delta import WIDTHS
from storage.core.errors import (
    BlobReleased,
    InvalidBlobText,
    LeaseTooShortForTier,
    StorageError,
    TierUnavailable,
    UnknownBlob,
)
from storage.core.retention import Retention
from storage.core.tiers import parse_tier
from storage.mover import Mover, StoreMovePort
from storage.sizes import format_size, parse_size

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
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

KEEP_SECONDS = 10.0
"""Between two looks of ``keep --watch``."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a private key may be among them
    help="Put any file into the store, and get it back.",
)

Chain = Annotated[list[str], typer.Option("--chain", help="JSON-RPC URL; give several to survive one being down.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Deadline = Annotated[float, typer.Option(help="Seconds to wait for one node.")]
Seal = Annotated[Path | None, typer.Option("--encrypt", help="Seal with the key in this file; see keygen.")]
Unseal = Annotated[Path | None, typer.Option("--decrypt", help="Open with the key in this file.")]
DEFAULT_CHAIN = ["http://127.0.0.1:8545"]


@app.command()
def put(
    file: Annotated[Path, typer.Argument(help="The file.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that pays.")],
    tier: Annotated[str, typer.Option(help="temporary, hot or cold (at least 30 days).")] = "hot",
    blocks: Annotated[int, typer.Option(min=1, help="How long to keep it, in blocks.")] = 100_000,
    encrypt: Seal = None,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Put a file of any size: upload, certify, pay its lease."""
    with _errors(as_json), _open(chain, deadline) as (client, storage, blobs):
        wanted = parse_tier(tier)
        sender = Sender(client, load_key(key_file))
        with FileSource(file) as plain:
            source = plain if encrypt is None else SealedSource(plain, load_secret(encrypt))
            with _progress(f"storing {file.name}, {format_size(source.size_bytes)}", lambda: blobs.bytes_sent, as_json):
                stored = storage.put(source, tier=wanted, blocks=blocks, sender=sender)
        result = {
            "blob": "0x" + stored.blob.hex(),
            "size_bytes": stored.size_bytes,
            "tier": stored.tier.name.lower(),
            "expiry_height": stored.expiry,
            "fee_wei": stored.fee,
            "is_sealed": encrypt is not None,
            "num_signatures": len(stored.certificate.signatures),
            "faults": [str(fault) for fault in stored.faults],
        }
        _show(
            result,
            as_json,
            f"{result['blob']}\n{format_size(stored.size_bytes)} in tier {result['tier']} until height "
            f"{stored.expiry}, {len(stored.certificate.signatures)} nodes signed, fee {format_wei(stored.fee)}"
            + "".join(f"\nwarning: {fault}" for fault in stored.faults),
        )


@app.command()
def keygen(
    out: Annotated[Path, typer.Argument(help="File to make; without it, sealed bytes are lost.")],
    as_json: Json = False,
) -> None:
    """Make a key that seals files: it stays here, nodes see cipher text only."""
    with _errors(as_json):
        create_secret(out)
        _show({"file": str(out)}, as_json, f"wrote {out}, mode 0600; keep a copy, nobody else has one")


@app.command()
def get(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")],
    decrypt: Unseal = None,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Get a blob: read from any k nodes, verified; nothing stands under the name before it is whole."""
    with _errors(as_json), _open(chain, deadline) as (_, storage, blobs):
        blob_id = parse_blob_id(blob)
        key = None if decrypt is None else load_secret(decrypt)
        path = out if key is None else out.with_name(f".{out.name}.{secrets.token_hex(4)}.sealed")
        with _progress(f"reading {out.name}", lambda: blobs.bytes_received, as_json):
            report = storage.get_to_file(blob_id, path)
            if key is not None:
                try:
                    with FileSource(path) as sealed:
                        unseal_file(sealed, out, key)
                finally:
                    path.unlink()
        size_bytes = out.stat().st_size
        faults = [str(fault) for fault in report.faults]
        result = {
            "blob": "0x" + blob_id.hex(),
            "file": str(out),
            "size_bytes": size_bytes,
            "seats": list(report.seats),
            "faults": faults,
        }
        _show(
            result,
            as_json,
            f"{out}: {format_size(size_bytes)}, verified, from seats "
            f"{', '.join(map(str, report.seats))}" + "".join(f"\nwarning: {fault}" for fault in faults),
        )


@app.command()
def quote(
    size: Annotated[str, typer.Argument(help="A size such as 1GB, or a file.")],
    tier: Annotated[str, typer.Option(help="temporary, hot or cold (at least 30 days).")] = "hot",
    blocks: Annotated[int, typer.Option(min=1, help="How long, in blocks.")] = 100_000,
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Show what a lease costs; a put is charged for this and at most 100 blocks more."""
    with _errors(as_json), _open(chain, 30.0) as (_, storage, _blobs):
        path = Path(size)
        size_bytes = path.stat().st_size if path.is_file() else parse_size(size)
        wanted = parse_tier(tier)
        fee = storage.quote(tier=wanted, size_bytes=size_bytes, blocks=blocks)
        most = storage.quote(tier=wanted, size_bytes=size_bytes, blocks=blocks + CERTIFY_BLOCKS)
        result = {
            "size_bytes": size_bytes,
            "tier": wanted.name.lower(),
            "blocks": blocks,
            "fee_wei": fee,
            "max_fee_wei": most,
        }
        _show(
            result,
            as_json,
            f"{format_size(size_bytes)} in tier {wanted.name.lower()} for {blocks} blocks: {format_wei(fee)}, "
            f"at most {format_wei(most)}",
        )


@app.command()
def stat(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Show what the chain knows of a blob."""
    with _errors(as_json), _open(chain, 30.0) as (_, storage, _blobs):
        info = storage.stat(parse_blob_id(blob))
        is_pinned = info.release_height == 2**64 - 1
        result = {
            "blob": "0x" + info.blob.hex(),
            "owner": info.owner,
            "size_bytes": info.size_bytes,
            "tier": info.tier,
            "epoch": info.epoch,
            "certified_height": info.certified_height,
            "expiry_height": info.expiry_height,
            "release_height": None if is_pinned else info.release_height,
            "is_pinned": is_pinned,
            "state": info.state.name,
            "paid_wei": info.paid,
        }
        kept = "pinned by a run" if is_pinned else f"kept until height {info.release_height}"
        _show(
            result,
            as_json,
            f"{result['blob']}: {info.state.name.lower()}, {format_size(info.size_bytes)}, {kept}, "
            f"certified at height {info.certified_height} by epoch {info.epoch}, paid {format_wei(info.paid)}",
        )


@app.command("ls")
def list_(
    owner: Annotated[str, typer.Option(help="Address; by default that of the key.")] = "",
    key_file: Annotated[Path | None, typer.Option(help="Key of the owner.")] = None,
    has_ended: Annotated[bool, typer.Option("--all", help="Show blobs whose leases have ended, too.")] = False,
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """List the blobs that an owner put, and what they cost."""
    with _errors(as_json), _open(chain, 30.0) as (_, storage, _blobs):
        if not owner and key_file is None:
            raise ValueError("whose blobs? give --owner or --key-file")
        address = owner or address_of(load_key(key_file)) if key_file is not None else owner
        blobs = [info for info in storage.list_blobs(address) if has_ended or info.state is BlobState.LIVE]
        account = storage.get_account(address)
        result = {
            "owner": address,
            "paid_wei": account.paid,
            "refunded_wei": account.refunded,
            "blobs": [
                {
                    "blob": "0x" + info.blob.hex(),
                    "size_bytes": info.size_bytes,
                    "tier": Tier(info.tier).name.lower(),
                    "expiry_height": info.expiry_height,
                    "state": info.state.name,
                    "paid_wei": info.paid,
                }
                for info in blobs
            ],
        }
        lines = [
            f"0x{info.blob.hex()}  {Tier(info.tier).name.lower():<9}  {format_size(info.size_bytes):>9}  "
            f"until {info.expiry_height}"
            for info in blobs
        ]
        total = f"{len(blobs)} blobs, {format_size(sum(info.size_bytes for info in blobs))}"
        money = f"paid {format_wei(account.paid)}, got back {format_wei(account.refunded)}"
        _show(result, as_json, "\n".join([*lines, f"{total}; {money}"]))


@app.command()
def rm(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that pays for it.")],
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """End your lease of a blob now; what it did not use comes back."""
    with _errors(as_json), _open(chain, 30.0) as (client, storage, _):
        blob_id = parse_blob_id(blob)
        refund = storage.release(blob_id, sender=Sender(client, load_key(key_file)))
        result = {"blob": "0x" + blob_id.hex(), "refund_wei": refund}
        _show(result, as_json, f"released 0x{blob_id.hex()}, {format_wei(refund)} came back")


@app.command()
def renew(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that pays for it.")],
    blocks: Annotated[int, typer.Option(min=1, help="How much longer, in blocks.")] = 100_000,
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Lengthen your lease of a blob."""
    with _errors(as_json), _open(chain, 30.0) as (client, storage, _):
        renewed = storage.renew(parse_blob_id(blob), blocks=blocks, sender=Sender(client, load_key(key_file)))
        result = {"blob": "0x" + renewed.blob.hex(), "expiry_height": renewed.expiry, "fee_wei": renewed.fee}
        _show(result, as_json, f"kept until height {renewed.expiry}, fee {format_wei(renewed.fee)}")


@app.command()
def challenge(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    seat: Annotated[int, typer.Argument(min=0, max=63, help="The seat that is accused.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that risks the bond.")],
    leaf: Annotated[int | None, typer.Option(min=0, help="The leaf to show; by default one drawn now.")] = None,
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Accuse a seat of having lost its shard: it shows a leaf on the chain and gets your bond, or is slashed."""
    with _errors(as_json), _open(chain, 30.0) as (client, storage, _):
        blob_id, wanted = parse_blob_id(blob), secrets.randbits(62) if leaf is None else leaf
        due = storage.challenge(blob_id, seat=seat, leaf=wanted, sender=Sender(client, load_key(key_file)))
        result = {"blob": "0x" + blob_id.hex(), "seat": seat, "leaf": wanted, "due_height": due}
        _show(result, as_json, f"seat {seat} must answer until height {due}")


@app.command()
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
    with _errors(as_json), _open(chain, deadline) as (client, storage, blobs):
        if width not in WIDTHS:
            raise ValueError(f"--width {width}, expected one of {WIDTHS}")
        with _progress(f"archiving {file.name}", lambda: blobs.bytes_sent, as_json):
            kept = keep_file(
                storage,
                file,
                blocks=blocks,
                sender=Sender(client, load_key(key_file)),
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
        _show(
            result,
            as_json,
            f"{result['blob']}\n{format_size(kept.size_bytes)} in {format_size(kept.stored.size_bytes)} "
            f"({kept.gain:.1f} times smaller, depth {kept.depth}), until height {kept.stored.expiry}, "
            f"fee {format_wei(kept.stored.fee)}",
        )


@app.command()
def restore(
    blob: Annotated[str, typer.Argument(help="The archive's blob id, 64 hex digits.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")],
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Get the contents of an archive, with all that it builds on."""
    with _errors(as_json), _open(chain, deadline) as (_, storage, blobs):
        with _progress(f"restoring {out.name}", lambda: blobs.bytes_received, as_json):
            size_bytes = restore_file(storage, parse_blob_id(blob), out)
        result = {"file": str(out), "size_bytes": size_bytes, "bytes_received": blobs.bytes_received}
        _show(result, as_json, f"{out}: {format_size(size_bytes)}, verified")


@app.command()
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
    with _errors(as_json), _open(chain, deadline) as (client, storage, _):
        home.mkdir(parents=True, exist_ok=True)
        sender = Sender(client, load_key(key_file))
        port = StoreMovePort(client, storage, sender, run=run, directory=home, width=width)
        retention = Retention(num_hot=hot, cold_every=cold_every, num_cold=cold, grace_blocks=grace)
        mover = Mover(port, home / f"run-{run}.json", retention)
        while True:
            done = mover.step()
            result = {"done": [{"action": action.value, "version": version} for action, version in done]}
            if done or not watch:
                lines = [f"checkpoint {version}: {action.value}" for action, version in done]
                _show(result, as_json, "\n".join(lines) or "nothing to do")
            if not watch:
                return
            time.sleep(KEEP_SECONDS)


def main() -> None:
    """Run the command line; SIGTERM stops it as tidily as Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


@contextmanager
def _open(urls: list[str], deadline: float) -> Iterator[tuple[ChainClient, StorageClient, BlobClient]]:
    client = ChainClient(urls)
    try:
        with BlobClient(deadline_seconds=deadline) as blobs:
            yield client, StorageClient(client, blobs), blobs
    finally:
        client.close()


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """Turn expected failures into a readable line and an exit code."""
    try:
        yield
    except (UnknownBlob, BlobReleased) as error:
        _fail(error, NOT_FOUND, as_json)
    except DisperseFailed as error:
        _fail(error, NOT_STORED, as_json)
    except RetrieveFailed as error:
        _fail(error, NOT_READABLE, as_json)
    except (
        InvalidBlobText,
        LeaseTooShortForTier,
        TierUnavailable,
        ValueError,
        KeyFileError,
        FileNotFoundError,
        IsADirectoryError,
        PermissionError,
    ) as error:
        _fail(error, BAD_INPUT, as_json)
    except (StorageError, DataAvailabilityError, BindingError, OSError) as error:
        _fail(error, FAILED, as_json)
    except KeyboardInterrupt as error:
        _fail(error, INTERRUPTED, as_json)


@contextmanager
def _progress(text: str, get_bytes: Callable[[], int], as_json: bool) -> Iterator[None]:
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


def _show(result: dict[str, Any], as_json: bool, text: str) -> None:
    print(json.dumps(result) if as_json else text, flush=True)


def _fail(error: BaseException, code: int, as_json: bool) -> NoReturn:
    text = str(error) or "interrupted"
    with contextlib.suppress(BrokenPipeError):
        if as_json:
            print(json.dumps({"error": type(error).__name__, "message": text}), flush=True)
        else:
            print(describe_failure(error), file=sys.stderr, flush=True)
    raise SystemExit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
