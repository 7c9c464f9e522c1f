"""The sync facade and the command line, against nodes in another thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from da.blocking import BlobClient
from da.cli import app
from da.committee_file import CommitteeFile, decode_committee, encode_committee
from da.core.certificate import decode_certificate, verify_certificate
from da.core.errors import HeaderUnavailable, MalformedMessage
from da.core.types import BlobId, Height, Tier


@pytest.fixture
def nodes(fakes: Any) -> Iterator[Any]:
    """Four nodes that run in a thread of their own, and a way to call into it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    context = fakes.run_nodes(4)
    running = call(context.__aenter__())
    running.call = call
    yield running
    call(context.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_round_trip_from_many_threads(nodes: Any, fakes: Any) -> None:
    def work(index: int) -> bool:
        data = bytes([index]) * (1000 + index)
        certificate = client.disperse(
            data, committee=nodes.committee, genesis_hash=fakes.GENESIS, tier=Tier.TEMPORARY, expiry=fakes.EXPIRY
        )
        verify_certificate(certificate, nodes.committee, genesis_hash=fakes.GENESIS, height=Height(1))
        return client.retrieve(certificate.terms.blob, committee=nodes.committee, max_bytes=10**4).data == data

    with BlobClient(deadline_seconds=5) as client, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
        assert client.bytes_sent > 16 * 4 * 500
        assert client.bytes_received > 16 * 2 * 500


def test_errors_come_through(nodes: Any) -> None:
    with BlobClient(deadline_seconds=5) as client, pytest.raises(HeaderUnavailable):
        client.retrieve(BlobId(bytes(32)), committee=nodes.committee, max_bytes=1)


def test_closing_twice_and_using_afterwards(nodes: Any) -> None:
    num_threads = threading.active_count()
    client = BlobClient()
    client.close()
    client.close()
    assert threading.active_count() == num_threads
    with pytest.raises(RuntimeError, match="closed"):
        client.retrieve(BlobId(bytes(32)), committee=nodes.committee, max_bytes=1)


def test_closing_ends_a_transfer_that_hangs(nodes: Any, fakes: Any) -> None:
    is_asked = threading.Event()

    async def hang(request: Any) -> Any:
        is_asked.set()
        return await fakes.hang(request)

    for node in nodes.nodes:
        node.header_fault = hang
    client = BlobClient()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.retrieve, BlobId(bytes(32)), committee=nodes.committee, max_bytes=1)
        assert is_asked.wait(10)
        client.close()
        with pytest.raises(CancelledError):
            call.result(10)


@pytest.fixture
def committee_file(nodes: Any, fakes: Any, tmp_path: Path) -> Path:
    path = tmp_path / "committee.json"
    path.write_text(encode_committee(CommitteeFile(committee=nodes.committee, genesis_hash=fakes.GENESIS)))
    return path


def test_commands_round_trip(nodes: Any, committee_file: Path, tmp_path: Path) -> None:
    source, target, certificate = tmp_path / "in", tmp_path / "out", tmp_path / "certificate"
    source.write_bytes(b"command line" * 1000)
    committee = ["--committee", str(committee_file)]
    nodes.call(nodes.kill(2))
    put = CliRunner().invoke(
        app, ["disperse", str(source), *committee, "--expiry", "9", "--tier", "hot", "-o", str(certificate), "--json"]
    )
    assert put.exit_code == 0, put.output
    answer = json.loads(put.stdout)
    assert answer["signatures"] == 3
    assert [fault["seat"] for fault in answer["faults"]] == [2]
    assert decode_certificate(certificate.read_bytes()).terms.blob.hex() == answer["blob"]
    got = CliRunner().invoke(app, ["retrieve", answer["blob"], *committee, "-o", str(target)])
    assert got.exit_code == 0, got.output
    assert target.read_bytes() == source.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out", "certificate", "committee.json"}


def test_sealed_files_round_trip(nodes: Any, committee_file: Path, tmp_path: Path) -> None:
    source, out, key, other = (tmp_path / name for name in ("in", "out", "key", "other"))
    source.write_bytes(b"a secret to everybody " * 500)
    committee = ["--committee", str(committee_file)]
    for path in (key, other):
        assert CliRunner().invoke(app, ["keygen", str(path)]).exit_code == 0
    put = ["disperse", str(source), *committee, "--expiry", "9", "--key", str(key), "--json"]
    answers = [json.loads(CliRunner().invoke(app, put).stdout) for _ in range(2)]
    assert answers[0]["blob"] == answers[1]["blob"]  # tried again, it is the same blob
    get = ["retrieve", answers[0]["blob"], *committee, "-o", str(out)]
    refused = CliRunner().invoke(app, [*get, "--key", str(other)])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: sealed blob: segment 0 does not open")
    long = ["retrieve", answers[0]["blob"], *committee, "-o", str(tmp_path / ("n" * 250)), "--key", str(key)]
    assert CliRunner().invoke(app, long).exit_code == 0, "the name of the sealed bytes beside it is none too long"
    (tmp_path / ("n" * 250)).unlink()
    assert CliRunner().invoke(app, [*get, "--key", str(key)]).exit_code == 0
    assert out.read_bytes() == source.read_bytes()
    assert CliRunner().invoke(app, get).exit_code == 0
    assert b"secret" not in out.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out", "key", "other", "committee.json"}


def test_commands_explain_failures(committee_file: Path, tmp_path: Path) -> None:
    committee = ["--committee", str(committee_file)]
    got = CliRunner().invoke(app, ["retrieve", "00" * 32, *committee, "-o", str(tmp_path / "out")])
    assert got.exit_code == 1
    assert got.stderr.startswith("error: no seat has the header")
    assert "\nnext:  see that its storage nodes run" in got.stderr
    assert "Traceback" not in got.output
    got = CliRunner().invoke(app, ["retrieve", "zz", *committee, "-o", str(tmp_path / "out"), "--json"])
    assert json.loads(got.stdout)["error"] == "MalformedMessage"
    got = CliRunner().invoke(app, ["disperse", str(tmp_path / "none"), *committee, "--expiry", "9"])
    assert (got.exit_code, "none: No such file or directory\nnext:  name one that exists" in got.stderr) == (2, True)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    got = CliRunner().invoke(app, ["sample", "00" * 32, "--committee", str(tmp_path / "binary")])
    assert got.exit_code == 2
    assert got.stderr.startswith("error: no valid message: committee file is no JSON: ")
    got = CliRunner().invoke(app, ["disperse", str(committee_file), *committee, "--expiry", "9", "--tier", "warm"])
    assert got.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_selftest() -> None:
    got = CliRunner().invoke(app, ["selftest", "--json"])
    assert got.exit_code == 0
    answer = json.loads(got.stdout)
    assert answer.pop("kernel").startswith("isa-l")
    assert answer == {"k": 6, "n": 12, "s": 9, "ok": True}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "no JSON"),
        ("[]", "must be an object"),
        ('{"epoch": 1, "genesis": "", "seats": []}', "unknown key 'genesis', did you mean genesisHash"),
        ('{"epoch": 1, "seats": []}', "'genesisHash' is missing"),
        ('{"epoch": 1, "genesisHash": "", "seats": []}', "list of 1 to 64"),
        ('{"epoch": true, "genesisHash": "", "seats": [1]}', "whole number"),
        ('{"epoch": 1, "genesisHash": "00", "seats": [{"key": "00", "url": ""}]}', "64 hex digits"),
        ('{"epoch": 1, "genesisHash": "00", "seats": [{"key": 5, "url": 5}]}', "url must be text"),
    ],
)
def test_invalid_committee_files_are_refused(text: str, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode_committee(text)
