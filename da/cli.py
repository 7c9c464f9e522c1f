"""``da``: blobs without a chain. Disperse to the seats of a committee file, read back, test the arithmetic.

Exit codes: 0 done, 1 the work failed (says which seats and why), 2 the command makes no sense or names no good file.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.bindings.failures import describe_failure
from contracts.bindings.version import add_version
from da.blocking import BlobClient
from da.codec import decode_blob, encode_blob
from da.committee_file import CommitteeFile, decode_committee
from da.core.blob import MAX_BLOB_BYTES
from da.core.certificate import encode_certificate
from da.core.errors import DataAvailabilityError, InvalidScheme, Malformed, NotAFile, SeatFault, WrongDigest
from da.core.hashing import compute_digest
from da.core.merkle import BULK_LEAF_BYTES, PAYLOAD_LEAF_BYTES
from da.core.scheme import compute_scheme
from da.core.types import Height, Tier
from da.input_file import read_input
from da.kernel import get_kernel
from da.landing import open_part
from da.protocol import decode_blob_id
from da.recovery import recover_blob
from da.sealing import SealedSource, create_secret, load_secret, unseal_file
from da.slabs import FileSource

MAX_COMMITTEE_BYTES = 1 << 20
"""Of a committee file: 64 seats take a fiftieth."""

FAILED, BAD_INPUT = 1, 2
"""Exit codes."""

INPUT_ERRORS = (
    NotAFile,
    Malformed,
    InvalidScheme,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)
"""What is wrong with a command itself: its words, or a file that it names."""

SELFTEST_BYTES = 1 << 20
"""Size of the blob that the self-test codes and decodes."""

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Erasure-coded blobs: disperse, retrieve, selftest.")
add_version(app)

CommitteeOption = Annotated[Path, typer.Option("--committee", help="JSON file with epoch, genesisHash and seats.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key", help="File with the key that seals the bytes; see keygen."),
]
DeadlineOption = Annotated[float, typer.Option("--deadline", min=0.1, max=86_400, help="Seconds to wait for one seat.")]


def main() -> None:
    """Run the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    app()


@app.command()
def disperse(
    file: Annotated[Path, typer.Argument(help="What to disperse.")],
    committee: CommitteeOption,
    expiry: Annotated[int, typer.Option(help="Block height until which the seats shall keep it.", min=1)],
    tier: Annotated[str, typer.Option(help="temporary, hot or cold.")] = "temporary",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where to write the certificate.")] = None,
    small_leaves: Annotated[bool, typer.Option(help="1 KiB leaves instead of 64 KiB, for proofs on chain.")] = False,
    encrypt: KeyOption = None,
    deadline: DeadlineOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Disperse FILE and print its blob id and certificate."""
    with _explain(as_json):
        target = _read_committee(committee)
        with FileSource(file) as plain, BlobClient(deadline_seconds=deadline) as client:
            source = plain if encrypt is None else SealedSource(plain, load_secret(encrypt))
            dispersal = client.disperse_stream(
                source,
                committee=target.committee,
                genesis_hash=target.genesis_hash,
                tier=_parse_tier(tier),
                expiry=Height(expiry),
                leaf_bytes=PAYLOAD_LEAF_BYTES if small_leaves else BULK_LEAF_BYTES,
            )
            encoded = encode_certificate(dispersal.certificate)
            if out is not None:
                _write_file(out, encoded)
            answer = {
                "blob": dispersal.certificate.terms.blob.hex(),
                "sizeBytes": source.size_bytes,
                "signatures": len(dispersal.certificate.signatures),
                "seats": len(target.committee.seats),
                "certificate": encoded.hex() if out is None else str(out),
                "faults": _describe(dispersal.faults),
                "bytesSent": client.bytes_sent,
                "bytesReceived": client.bytes_received,
            }
        _print(answer, as_json)


@app.command()
def retrieve(
    blob: Annotated[str, typer.Argument(help="Blob id, 64 hex digits.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to write the bytes.")],
    committee: CommitteeOption,
    max_bytes: Annotated[int, typer.Option(help="Refuse a larger blob.", min=0)] = MAX_BLOB_BYTES,
    decrypt: KeyOption = None,
    deadline: DeadlineOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Read a blob, verified, and name the seats that failed."""
    with _explain(as_json):
        target = _read_committee(committee)
        with BlobClient(deadline_seconds=deadline) as client:
            blob_id = decode_blob_id(blob.removeprefix("0x"))
            key = None if decrypt is None else load_secret(decrypt)
            path = out if key is None else out.with_name(f".{out.name[:40]}.{secrets.token_hex(4)}.sealed")
            report = client.retrieve_to_file(blob_id, path, committee=target.committee, max_bytes=max_bytes)
            if key is not None:
                try:
                    with FileSource(path) as sealed:
                        unseal_file(sealed, out, key)
                finally:
                    path.unlink()
            answer = {
                "file": str(out),
                "sizeBytes": out.stat().st_size,
                "seats": list(report.seats),
                "faults": _describe(report.faults),
                "bytesReceived": client.bytes_received,
            }
        _print(answer, as_json)


@app.command()
def sample(
    blob: Annotated[str, typer.Argument(help="Blob id, 64 hex digits.")],
    committee: CommitteeOption,
    samples: Annotated[int, typer.Option(help="Seats that are asked for a random leaf each.", min=1, max=64)] = 8,
    deadline: DeadlineOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Check as a light client that a blob is there, without fetching it; exit code 1 when a sample fails."""
    with _explain(as_json):
        target, blob_id = _read_committee(committee), decode_blob_id(blob.removeprefix("0x"))
        with BlobClient(deadline_seconds=deadline, has_bulk=False) as client:
            sampling = client.sample(blob_id, committee=target.committee, num_samples=samples)
            answer = {
                "blob": blob_id.hex(),
                "good": sampling.num_good,
                "failed": len(sampling.faults),
                "detection": sampling.detection,
                "miss": f"{sampling.miss[0]}/{sampling.miss[1]}",
                "bytesReceived": client.bytes_received,
                "faults": _describe(sampling.faults),
            }
        _print(answer, as_json)
    if sampling.faults:
        raise typer.Exit(1)


@app.command()
def selftest(
    seats: Annotated[int, typer.Option(help="Committee size.", min=1, max=64)] = 12,
    as_json: JsonOption = False,
) -> None:
    """Compare the erasure code with reedsolo and rebuild a random blob from parity."""
    with _explain(as_json):
        kernel = get_kernel()
        scheme = compute_scheme(seats)
        data = secrets.token_bytes(SELFTEST_BYTES)
        encoded = encode_blob(data, num_data=scheme.num_data, num_shards=scheme.num_shards, leaf_bytes=BULK_LEAF_BYTES)
        last = range(scheme.num_shards - scheme.num_data, scheme.num_shards)
        decoded = decode_blob(encoded.header, {index: b"".join(encoded.shards[index]) for index in last})
        is_equal = decoded == data
        answer = {
            "kernel": kernel.name,
            "k": scheme.num_data,
            "n": scheme.num_shards,
            "s": scheme.num_signatures,
            "ok": is_equal,
        }
        _print(answer, as_json)
    if not is_equal:
        raise typer.Exit(1)


@app.command()
def keygen(
    out: Annotated[Path, typer.Argument(help="File to make; without it, sealed bytes are lost.")],
) -> None:
    """Make a key that seals blobs."""
    with _explain(False):
        create_secret(out)
        typer.echo(f"wrote {out}, mode 0600; keep a copy, nobody else has one")


@app.command()
def recover(
    shards: Annotated[
        list[str], typer.Argument(help="INDEX=FILE, one for each shard that is left; some may be wrong.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to write the bytes.")],
    k: Annotated[int, typer.Option("-k", help="Data shards of the code.", min=1, max=64)],
    n: Annotated[int, typer.Option("-n", help="All shards of the code.", min=1, max=64)],
    size: Annotated[int, typer.Option(help="Bytes of the blob.", min=0)],
    digest: Annotated[str | None, typer.Option(help="BLAKE3 of the blob, 64 hex digits, to be sure.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put a blob together without its proofs, and name the shards that are wrong."""
    files = dict(_parse_shard(text) for text in shards)
    if len(files) < len(shards):
        raise typer.BadParameter("an index is named twice; name each shard once", param_hint="SHARDS")
    with _explain(as_json):
        recovery = recover_blob(
            {index: read_input(path, limit_bytes=MAX_BLOB_BYTES) for index, path in files.items()},
            num_data=k,
            num_shards=n,
            size_bytes=size,
        )
        got = compute_digest(recovery.data).hex()
        if digest is not None and got != digest.lower().removeprefix("0x"):
            raise WrongDigest(expected=digest, got=got)
        _write_file(out, recovery.data)
        answer = {
            "file": str(out),
            "sizeBytes": size,
            "digest": got,
            "isDigestKnown": digest is not None,
            "wrongBytes": {str(index): count for index, count in recovery.wrong_bytes.items()},
        }
        _print(answer, as_json)


def _parse_shard(text: str) -> tuple[int, Path]:
    index, _, path = text.partition("=")
    if not index.isascii() or not index.isdigit() or not path:
        raise typer.BadParameter(f"{text!r}; expected INDEX=FILE, e.g. 3=shard3.bin", param_hint="SHARDS")
    return int(index), Path(path)


@contextmanager
def _explain(as_json: bool) -> Iterator[None]:
    """Turn expected failures into readable lines, or one JSON object, and an exit code."""
    try:
        yield
    except (DataAvailabilityError, OSError) as error:
        code = BAD_INPUT if isinstance(error, INPUT_ERRORS) else FAILED
        if as_json:
            typer.echo(json.dumps({"error": type(error).__name__, "message": str(error)}))
        else:
            typer.echo(describe_failure(error), err=True)
        raise typer.Exit(code) from error


def _read_committee(path: Path) -> CommitteeFile:
    return decode_committee(read_input(path, limit_bytes=MAX_COMMITTEE_BYTES))


def _write_file(path: Path, data: bytes) -> None:
    """Write under a temporary name and rename, so that a cut run leaves no half file; raises NotAFile, OSError."""
    fd, part = open_part(path)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _parse_tier(name: str) -> Tier:
    try:
        return Tier[name.upper()]
    except KeyError as error:
        known = ", ".join(tier.name.lower() for tier in Tier)
        raise typer.BadParameter(f"tier {name!r}; known are {known}", param_hint="--tier") from error


def _describe(faults: tuple[SeatFault, ...]) -> list[dict[str, Any]]:
    return [
        {"seat": fault.seat, "url": fault.url, "kind": fault.kind.value, "reason": fault.reason} for fault in faults
    ]


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for key, value in answer.items():
        if key != "faults":
            typer.echo(f"{key:>14}  {value}")
    for fault in answer.get("faults", []):
        typer.echo(f"{'seat failed':>14}  {fault['seat']} ({fault['url']}): {fault['kind']}: {fault['reason']}")
