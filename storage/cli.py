"""``storage``: any file into the store and back, for people and for scripts."""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from contracts.bindings.keys import load_address
from contracts.bindings.sender import Sender
from contracts.bindings.standing_alone import take_alone
from contracts.bindings.types import BlobState
from contracts.bindings.unlocking import ask_password, unlock_key
from contracts.bindings.version import add_version
from da.core.types import Epoch, Tier
from da.sealing import SealedSource, create_secret, load_secret, unseal_file
from da.slabs import FileSource
from storage.amounts import format_wei
from storage.cli_session import (
    DEFAULT_CHAIN,
    Chain,
    Deadline,
    Json,
    Seal,
    Unseal,
    measure_block,
)
from storage.cli_session import open_storage as _open
from storage.cli_session import report_errors as _errors
from storage.cli_session import show as _show
from storage.cli_session import show_progress as _progress
from storage.cli_session import tell_height as _tell_height
from storage.client import CERTIFY_BLOCKS, parse_blob_id
from storage.core.leaving import BLOCK_MILLISECONDS, format_blocks, format_height
from storage.core.tiers import parse_tier
from storage.keeping_commands import add_keeping_commands
from storage.sizes import format_size, parse_size
from storage.whole_file import FORCE_HELP, refuse_existing

Blocks = Annotated[
    int | None,
    typer.Option(min=1, help="How long to keep it, in blocks; by default 100,000, or what the tier sells at least."),
]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a private key may be among them
    help="Put any file into the store, and get it back.",
)
add_version(app)


@app.command()
def put(
    file: Annotated[Path, typer.Argument(help="The file.")],
    key_file: Annotated[Path, typer.Option(help="Key of the account that pays.")],
    tier: Annotated[str, typer.Option(help="temporary, hot or cold (at least 30 days).")] = "hot",
    blocks: Blocks = None,
    encrypt: Seal = None,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Put a file of any size: upload, certify, pay its lease."""
    with _errors(as_json), _open(chain, deadline) as (client, storage, blobs):
        wanted = parse_tier(tier)
        sender = Sender(client, unlock_key(key_file))
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
            f"{result['blob']}",
            note=f"{format_size(stored.size_bytes)} in tier {result['tier']} until "
            f"{_tell_height(client, stored.expiry)}, {len(stored.certificate.signatures)} nodes signed, "
            f"fee {format_wei(stored.fee)}; longer: storage renew {result['blob']} --key-file {key_file}"
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
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it; - for the standard output.")],
    decrypt: Unseal = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 30.0,
    as_json: Json = False,
) -> None:
    """Get a blob: read from any k nodes, verified; nothing stands under the name before it is whole."""
    with _errors(as_json), ExitStack() as scratch, _open(chain, deadline) as (_, storage, blobs):
        blob_id = parse_blob_id(blob)
        if out.is_dir():
            raise ValueError(f"{out} is a folder; next: name a file, such as {out / blob_id.hex()}")
        if is_piped := str(out) == "-":
            if as_json:
                raise ValueError("-o - and --json both want the standard output; next: leave one of them out")
            out = Path(scratch.enter_context(tempfile.TemporaryDirectory())) / blob_id.hex()
        refuse_existing(out, is_forced=force)
        key = None if decrypt is None else load_secret(decrypt)
        path = out if key is None else out.with_name(f".{out.name[:40]}.{secrets.token_hex(4)}.sealed")
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
        seen = f"{format_size(size_bytes)}, verified, from seats {', '.join(map(str, report.seats))}"
        seen += "".join(f"\nwarning: {fault}" for fault in faults)
        if is_piped:
            with out.open("rb") as whole:
                shutil.copyfileobj(whole, sys.stdout.buffer)
            sys.stdout.flush()
            print(seen, file=sys.stderr)
        else:
            _show(result, as_json, f"{out}: {seen}")


@app.command()
def quote(
    size: Annotated[str, typer.Argument(help="A size such as 1GB, or a file.")],
    tier: Annotated[str, typer.Option(help="temporary, hot or cold (at least 30 days).")] = "hot",
    blocks: Blocks = None,
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Show what a lease costs; a put is charged for this and at most 100 blocks more."""
    with _errors(as_json), _open(chain, 30.0) as (client, storage, _blobs):
        path = Path(size)
        size_bytes = path.stat().st_size if path.is_file() else parse_size(size)
        wanted = parse_tier(tier)
        blocks = storage.choose_blocks(wanted, blocks)
        fee = storage.quote(tier=wanted, size_bytes=size_bytes, blocks=blocks)
        most = storage.quote(tier=wanted, size_bytes=size_bytes, blocks=blocks + CERTIFY_BLOCKS)
        result = {
            "size_bytes": size_bytes,
            "tier": wanted.name.lower(),
            "blocks": blocks,
            "fee_wei": fee,
            "max_fee_wei": most,
        }
        time = "" if as_json else format_blocks(blocks, measure_block(client))
        _show(
            result,
            as_json,
            f"{format_size(size_bytes)} in tier {wanted.name.lower()} for {blocks:,} blocks, about {time}: "
            f"{format_wei(fee)}, at most {format_wei(most)}",
        )


@app.command()
def stat(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    chain: Chain = DEFAULT_CHAIN,
    as_json: Json = False,
) -> None:
    """Show what the chain knows of a blob."""
    with _errors(as_json), _open(chain, 30.0) as (client, storage, _blobs):
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
        until = "" if is_pinned or as_json else _tell_height(client, info.release_height)
        kept = "pinned by a run" if is_pinned else f"kept until {until}"
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
    with _errors(as_json), _open(chain, 30.0) as (client, storage, _blobs):
        if not owner and key_file is None:
            raise ValueError("whose blobs?; next: give --owner or --key-file")
        address = owner or load_address(key_file, ask_password) if key_file is not None else owner
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
        height, pace = client.height(), BLOCK_MILLISECONDS if as_json else measure_block(client)
        lines = [
            f"0x{info.blob.hex()}  {Tier(info.tier).name.lower():<9}  {format_size(info.size_bytes):>9}  "
            f"until {format_height(info.expiry_height, now=height, block_milliseconds=pace)}"
            f"{'' if info.state is BlobState.LIVE else ', ' + info.state.name.lower()}"
            for info in blobs
        ]
        total = (
            f"{len(blobs)} blob{'' if len(blobs) == 1 else 's'}, {format_size(sum(info.size_bytes for info in blobs))}"
        )
        money = (
            f"this owner paid in all {format_wei(account.paid)} and got back {format_wei(account.refunded)}; of it for "
            f"the blobs listed {format_wei(sum(info.paid for info in blobs))}"
        )
        _show(result, as_json, "\n".join([*lines, f"{total}; {money}"]))


@app.command()
def sample(
    blob: Annotated[str, typer.Argument(help="The blob id, 64 hex digits.")],
    samples: Annotated[int, typer.Option(help="Seats that are asked for a random leaf each.", min=1, max=64)] = 8,
    chain: Chain = DEFAULT_CHAIN,
    deadline: Deadline = 10.0,
    as_json: Json = False,
) -> None:
    """Check as a light client that a blob is there, without fetching it; exit code 1 when a sample fails."""
    with _errors(as_json), _open(chain, deadline) as (_, storage, blobs):
        blob_id = parse_blob_id(blob)
        seen = blobs.sample(
            blob_id, committee=storage.committee(Epoch(storage.stat(blob_id).epoch)), num_samples=samples
        )
        faults = [str(fault) for fault in seen.faults]
        result = {
            "blob": "0x" + blob_id.hex(),
            "good": seen.num_good,
            "failed": len(faults),
            "detection": seen.detection,
            "bytes_received": blobs.bytes_received,
            "faults": faults,
        }
        _show(
            result,
            as_json,
            f"{seen.num_good} good, {len(faults)} failed; so many samples find a blob that can't be read with "
            f"probability {seen.detection:.4f}" + "".join(f"\nwarning: {fault}" for fault in faults),
        )
    if faults:
        raise typer.Exit(1)


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
        refund = storage.release(blob_id, sender=Sender(client, unlock_key(key_file)))
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
        renewed = storage.renew(parse_blob_id(blob), blocks=blocks, sender=Sender(client, unlock_key(key_file)))
        result = {"blob": "0x" + renewed.blob.hex(), "expiry_height": renewed.expiry, "fee_wei": renewed.fee}
        until = _tell_height(client, renewed.expiry)
        _show(result, as_json, f"kept until {until}, fee {format_wei(renewed.fee)}")


add_keeping_commands(app)
take_alone(app)


def main() -> None:
    """Run the command line; SIGTERM stops it as tidily as Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
