"""Commands for people: readable errors, exit codes, whole files only."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import create_key
from contracts.bindings.types import Blob, BlobState, OwnerAccount
from da.core.errors import FaultKind, NotAFile, NotEnoughReceipts, NotEnoughShards, SeatFault
from da.core.types import Tier
from da.retrieval import RetrieveReport
from da.sealing import load_secret, seal
from storage import cli, cli_session, node_cli
from storage.amounts import format_wei
from storage.core.errors import InvalidRetention, NotFunded, StorageError, UnknownBlob, WrongChain
from storage.mover import load_catalogue
from storage.node.boot import is_new_boot, note_boot
from storage.node.config import NodeConfig
from storage.node.homes import bind_home
from storage.node.keys import load_or_create_operator_key, load_or_create_receipt_key
from storage.node.ram import RamFolder
from storage.sizes import format_size, parse_size
from storage.whole_file import create_whole

BLOB = "ab" * 32
FAULT = SeatFault(seat=2, url="http://x", kind=FaultKind.BAD_SHARD, reason="root differs")


class FakeStorage:
    """StorageClient as far as the commands use it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.data = b"the bytes"

    def get_to_file(self, blob: bytes, path: Path) -> RetrieveReport:
        if self.error is not None:
            raise self.error
        path.write_bytes(self.data)
        return RetrieveReport(seats=(0, 1), faults=(FAULT,))

    def put(self, data: Any, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        signed = SimpleNamespace(signatures=(1, 2, 3))
        return SimpleNamespace(
            blob=bytes.fromhex(BLOB), size_bytes=9, tier=Tier.HOT, expiry=103_000, fee=5, certificate=signed, faults=()
        )

    def list_blobs(self, owner: str) -> list[Blob]:
        return [self.stat(b"")]

    def get_account(self, owner: str) -> OwnerAccount:
        return OwnerAccount(num_blobs=3, paid=10**18, refunded=10**17)

    def choose_blocks(self, tier: int, wanted: int | None) -> int:
        return 77 if wanted is None else wanted

    def quote(self, *, tier: int, size_bytes: int, blocks: int) -> int:
        return size_bytes * blocks

    def stat(self, blob: bytes) -> Blob:
        return Blob(
            blob=blob,
            owner="0x00",
            size_bytes=9,
            tier=1,
            epoch=3,
            certified_height=10,
            expiry_height=20,
            release_height=2**64 - 1,
            state=BlobState.LIVE,
            paid=5,
            signers=7,
            signed_height=20,
        )


class FakeChain:
    """A chain of 3,000 blocks of 0.2 s that once stood still for a night."""

    def height(self) -> int:
        return 3_000

    def interpret(self, calls: Any, read: Callable[[list[Any]], Any]) -> Any:
        heights = [int(parameters[0], 16) for _, parameters in calls]
        return read([{"timestamp": hex(height // 5 + (30_000 if height > 2_500 else 0))} for height in heights])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeStorage:
    storage = FakeStorage()

    @contextmanager
    def opened(urls: list[str], deadline: float) -> Iterator[Any]:
        yield FakeChain(), storage, SimpleNamespace(bytes_sent=0, bytes_received=0)

    monkeypatch.setattr(cli, "_open", opened)
    return storage


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_get_writes_the_file_and_names_the_culprit(fake: FakeStorage, tmp_path: Path) -> None:
    out = tmp_path / "out.bin"
    result = run("get", "0x" + BLOB, "-o", str(out))
    assert result.exit_code == 0
    assert out.read_bytes() == b"the bytes"
    assert "verified, from seats 0, 1" in result.output
    assert "seat 2 (http://x): bad-shard: root differs" in result.output
    value = json.loads(run("get", BLOB, "-o", str(out), "--force", "--json").output)
    assert (value["size_bytes"], value["seats"], len(value["faults"])) == (9, [0, 1], 1)


@pytest.mark.parametrize("command", ["get", "restore"])
def test_a_file_that_is_there_is_replaced_only_by_force(fake: FakeStorage, tmp_path: Path, command: str) -> None:
    """As `trainer checkpoint pull` has it; a link that leads nowhere is there, too."""
    out, link = tmp_path / "out.bin", tmp_path / "link"
    out.write_bytes(b"mine")
    link.symlink_to(tmp_path / "nowhere")
    for path in (out, link):
        result = run(command, BLOB, "-o", str(path))
        assert result.exit_code == cli_session.BAD_INPUT
        assert f"{path} exists already" in result.stderr
        assert "--force" in result.stderr
    assert (out.read_bytes(), link.is_symlink()) == (b"mine", True)
    if command == "get":
        assert run("get", BLOB, "-o", str(out), "--force").exit_code == 0
        assert out.read_bytes() == b"the bytes"


def test_a_sealed_file_opens_with_its_key_only(fake: FakeStorage, tmp_path: Path) -> None:
    out, key, other = tmp_path / "out", tmp_path / "key", tmp_path / "other"
    for path in (key, other):
        assert run("keygen", str(path)).exit_code == 0
        again = run("keygen", str(path))
        assert again.exit_code == cli_session.BAD_INPUT
        assert again.stderr == f"error: {path}: File exists\nnext:  name another, or move that one away\n"
    fake.data = seal(b"secret bytes", load_secret(key))
    assert b"secret" not in fake.data
    result = run("get", BLOB, "-o", str(out), "--decrypt", str(key))
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == b"secret bytes"
    result = run("get", BLOB, "-o", str(out), "--force", "--decrypt", str(other))
    assert result.exit_code == cli_session.NOT_READABLE
    assert "segment 0 does not open: another key" in result.output
    assert out.read_bytes() == b"secret bytes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "other", "out"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownBlob(blob=bytes.fromhex(BLOB)), cli_session.NOT_FOUND),
        (NotEnoughShards(blob=bytes(32), expected=2, got=1, faults=(FAULT,)), cli_session.NOT_READABLE),
        (StorageError("something"), cli_session.FAILED),
        (NotFunded(address="0x1", balance=0, needed=9, where="on chain id 7"), cli_session.NOT_FUNDED),
        (KeyboardInterrupt(), cli_session.INTERRUPTED),
        (OSError("no space"), cli_session.FAILED),
    ],
)
def test_a_failed_get_leaves_what_was_there(fake: FakeStorage, tmp_path: Path, error: Any, code: int) -> None:
    """Case 77: cut at any moment, the final name has the old bytes or none, and nothing else is left."""
    out = tmp_path / "out.bin"
    fake.error = error
    result = run("get", BLOB, "-o", str(out), "--json")
    assert result.exit_code == code
    assert json.loads(result.output)["error"] == type(error).__name__
    assert list(tmp_path.iterdir()) == []
    out.write_bytes(b"old")
    assert run("get", BLOB, "-o", str(out), "--force").exit_code == code
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_put_that_is_not_certified_has_its_own_exit_code(fake: FakeStorage, tmp_path: Path) -> None:
    file, key = tmp_path / "file", tmp_path / "key"
    file.write_bytes(b"x")
    key.write_text("11" * 32)
    key.chmod(0o600)
    fake.error = NotEnoughReceipts(expected=3, got=2, faults=(FAULT,))

    def sender(*_: object) -> None:
        return None

    original, cli.Sender = cli.Sender, sender  # type: ignore[assignment,misc]
    try:
        result = run("put", str(file), "--key-file", str(key))
    finally:
        cli.Sender = original  # type: ignore[misc]
    assert result.exit_code == cli_session.NOT_STORED
    assert "seat 2 (http://x)" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "xyz", "-o", "out"),
        ("get", "ab" * 31, "-o", "out"),
        ("stat", "ab"),
        ("quote", "10 bananas"),
        ("put", "missing", "--key-file", "missing"),
    ],
)
def test_invalid_input_is_exit_2(
    fake: FakeStorage, arguments: tuple[str, ...], monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == cli_session.BAD_INPUT
    assert result.output.strip()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tier_is_refused_by_name(fake: FakeStorage) -> None:
    result = run("quote", "1GB", "--tier", "lukewarm")
    assert result.exit_code == cli_session.BAD_INPUT
    assert "lukewarm" in result.output


def test_a_blob_can_be_piped(fake: FakeStorage, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("get", BLOB, "-o", "-")
    assert (result.exit_code, result.stdout_bytes) == (0, fake.data)
    assert "verified" in result.stderr
    assert run("get", BLOB, "-o", "-", "--json").exit_code == cli_session.BAD_INPUT
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file_to_write(fake: FakeStorage, tmp_path: Path) -> None:
    result = run("get", BLOB, "-o", str(tmp_path))
    assert result.exit_code == cli_session.BAD_INPUT
    assert f"{tmp_path} is a folder" in result.stderr


def test_an_id_alone_is_the_output_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from storage.cli_session import report_errors, show\n"
        "with report_errors(False):\n"
        "    show({}, False, '0xid', note='how it went')\n"
        "    sys.stdin.read()\n"
        "    show({}, False, 'more')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "0xid\n"
    process.stdout.close()
    process.stdin.close()
    assert process.wait(60) == cli_session.BROKEN_PIPE
    assert process.stderr.read() == "how it went\n"
    process.stderr.close()


def test_quote_and_stat(fake: FakeStorage) -> None:
    value = json.loads(run("quote", "1KB", "--blocks", "10", "--json").output)
    assert (value["fee_wei"], value["max_fee_wei"]) == (10_000, 110_000)
    assert json.loads(run("quote", "1KB", "--json").output)["blocks"] == 77
    value = json.loads(run("stat", BLOB, "--json").output)
    assert (value["is_pinned"], value["release_height"], value["state"]) == (True, None, "LIVE")
    assert "pinned by a run" in run("stat", BLOB).output


def test_put_says_how_long_by_the_pace_of_the_chain_and_how_to_renew(fake: FakeStorage, tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    (tmp_path / "file").write_bytes(b"the bytes")
    result = run("put", str(tmp_path / "file"), "--key-file", str(tmp_path / "key"))
    assert result.stdout == f"0x{BLOB}\n"
    assert "until height 103,000, in 100,000 blocks, about 5.5 h" in result.stderr
    assert f"storage renew 0x{BLOB} --key-file {tmp_path / 'key'}" in result.stderr
    assert "100,000 blocks, about 5.5 h" in run("quote", "1KB", "--blocks", "100000").output


def test_ls_says_what_its_total_counts(fake: FakeStorage) -> None:
    last = run("ls", "--owner", "0x00").output.splitlines()[-1]
    assert "this owner paid in all 1 token and got back 0.1 tokens" in last
    assert last.endswith("of it for the blobs listed 0.000000005 gwei")


def test_create_whole_survives_a_kill(tmp_path: Path) -> None:
    """SIGKILL in the middle: nothing under the final name."""
    program = (
        "import os, pathlib, signal, sys\n"
        "from storage.whole_file import create_whole\n"
        "with create_whole(pathlib.Path(sys.argv[1])) as write:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    out = tmp_path / "model.bin"
    result = subprocess.run([sys.executable, "-c", program, str(out)], timeout=60, check=False)
    assert result.returncode == -9
    assert not out.exists()
    assert all(path.name.endswith(".part") for path in tmp_path.iterdir())


def test_create_whole_without_a_write_makes_nothing(tmp_path: Path) -> None:
    with create_whole(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1GB", 10**9), ("1.5GiB", 3 << 29), ("2 kib", 2048), ("0.5KB", 500), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.2.3", "1 XB", "1e9", "١GB"])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_amounts_and_sizes_for_people() -> None:
    assert format_size(10**12) == "1.0 TB"
    assert format_wei(123 * 10**18 + 1) == "123 tokens"


def test_keys_are_made_once_and_readable_by_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "receipt.key"
    first, second = load_or_create_receipt_key(path), load_or_create_receipt_key(path)
    assert first.public == second.public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("")
    with pytest.raises(KeyFileError, match="holds 0 characters, expected one line of 64 hex digits; next: "):
        load_or_create_receipt_key(path)


@pytest.mark.parametrize("load", [load_or_create_receipt_key, load_or_create_operator_key])
def test_a_key_has_its_name_when_it_is_whole(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "a.key", os.fsync

    def cut(fd: int) -> None:
        assert not path.exists(), "a start that ends here leaves a key that nobody has"
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", cut)
        with pytest.raises(KeyboardInterrupt):
            load(path)
    assert list(tmp_path.iterdir()) == []

    def overtaken(fd: int) -> None:
        real(fd)
        if not path.exists():
            path.write_text("5" * 64 + "\n")
            path.chmod(0o600)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", overtaken)
        load(path)
    assert path.read_text() == "5" * 64 + "\n", "of two starts at once, both have the key of the faster one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["receipt.key", "operator.key", "genesis", "boot", "ram"])
@pytest.mark.parametrize("kind", ["a pipe", "a folder"])
def test_a_home_with_something_else_in_the_place_of_a_file_holds_no_start(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody writes to would be waited for without end."""
    home = tmp_path / "home"
    home.mkdir()
    (os.mkfifo if kind == "a pipe" else os.mkdir)(home / name)

    async def run_node(config: NodeConfig, *_: Any, **__: Any) -> None:
        bind_home(home, bytes(32))
        is_new_boot(home)
        note_boot(home)
        RamFolder(tmp_path, home, max_bytes=1)

    monkeypatch.setattr(node_cli, "run_node", run_node)
    arguments = ["start", "--home", str(home), "--chain", "http://127.0.0.1:1", "--json"]
    result = CliRunner().invoke(node_cli.app, arguments)
    said = json.loads(result.stdout.splitlines()[-1])
    if name == "boot":  # only a note: what was never synced is hashed again
        assert result.exit_code == 0
        return
    assert result.exit_code == node_cli.BAD_INPUT
    assert str(home / name) in said["message"]
    assert "; next: " in said["message"]


def test_a_trace_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace")
    for path in (tmp_path / "trace", tmp_path):
        arguments = ["start", "--home", str(tmp_path / "home"), "--chain", "http://127.0.0.1:1", "--trace", str(path)]
        result = CliRunner().invoke(node_cli.app, arguments)
        assert result.exit_code == node_cli.FAILED
        assert f"error: {path}: can't be written to: " in result.stderr
        assert "next:  name a file, or a pipe that somebody reads" in result.stderr


def test_a_catalogue_is_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "aged.json")
    result = CliRunner().invoke(cli.app, ["age", "--home", str(tmp_path), "--key-file", "k", "--find", BLOB])
    assert result.exit_code == cli_session.BAD_INPUT
    assert "aged.json is a device, a pipe or a socket, expected a file" in result.stderr
    assert "next:  " in result.stderr
    with pytest.raises(NotAFile, match="expected a file; next: "):
        load_catalogue(Path("/dev/zero"))
    deep = tmp_path / "deep.json"
    deep.write_bytes(b"[" * 100_000)
    with pytest.raises(InvalidRetention, match="is no catalogue"):
        load_catalogue(deep)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"capacity_bytes": 5}, "capacity_bytes 5"), ({"host": "0.0.0.0"}, "needs advertise_url")],
)
def test_invalid_node_config(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"home": tmp_path, "host": "127.0.0.1", "port": 0, "capacity_bytes": 1 << 20}
    with pytest.raises(StorageError, match=f"{words}.*; next: "):
        NodeConfig(**{**values, **changes})


def test_a_home_belongs_to_one_chain(tmp_path: Path) -> None:
    bind_home(tmp_path, bytes(32))
    bind_home(tmp_path, bytes(32))
    with pytest.raises(WrongChain, match="give another --home"):
        bind_home(tmp_path, b"\1" * 32)
    for text in (b"zz", b"\xff"):
        (tmp_path / "genesis").write_bytes(text)
        with pytest.raises(StorageError, match=f"holds no hash: .*; next: write {bytes(32).hex()} there"):
            bind_home(tmp_path, bytes(32))
    assert [path.name for path in tmp_path.iterdir()] == ["genesis"]


@pytest.mark.parametrize("listen", ["9001", "host:", "host:99999", "host:http"])
def test_invalid_listen_address(tmp_path: Path, listen: str) -> None:
    arguments = ["start", "--home", str(tmp_path), "--chain", "http://127.0.0.1:1", "--listen", listen, "--json"]
    result = CliRunner().invoke(node_cli.app, arguments)
    assert result.exit_code == node_cli.BAD_INPUT
    assert "expected host:port" in json.loads(result.stdout)["message"]


def test_status_of_nobody() -> None:
    result = CliRunner().invoke(node_cli.app, ["status", "--url", "http://127.0.0.1:1", "--json"])
    assert result.exit_code == node_cli.NOT_REACHED
    assert "is storage-node start running there" in json.loads(result.stdout)["message"]


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"null", b"{", b'{"node": {}}', b"x" * 100_000])
def test_status_of_something_else(answer: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        result = CliRunner().invoke(node_cli.app, ["status", "--url", f"http://127.0.0.1:{server.server_port}"])
    assert result.exit_code == node_cli.NOT_REACHED, result.output
    assert "gave no status: " in result.stderr
    assert "next:  give its --url" in result.stderr


@pytest.mark.integration
def test_a_node_starts_serves_and_stops_while_the_chain_is_down(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "storage.node_cli", "start", "--home", str(tmp_path / "home"), "--json"]
    command += ["--chain", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--capacity", "10MB"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        with urllib.request.urlopen(said["url"] + "/v1/status", timeout=10) as answer:
            value = json.load(answer)
        assert value["node"]["registration"] == "waiting for chain"
        assert value["node"]["address"] == said["operator"]
        shown = subprocess.run(
            [sys.executable, "-m", "storage.node_cli", "status", "--url", said["url"]],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "waiting for chain" in shown.stdout
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
    for name in ("operator.key", "receipt.key"):
        assert stat.S_IMODE((tmp_path / "home" / name).stat().st_mode) == 0o600
