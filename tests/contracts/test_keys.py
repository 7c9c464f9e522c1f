"""Key files: private, never overwritten, refused with a reason."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eth_account import Account

from contracts.bindings import keystore, unlocking
from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import address_of, create_key, encrypt_file, load_address, load_key
from contracts.bindings.keystore import decrypt_key, encrypt_key
from contracts.bindings.unlocking import PASSWORD, PASSWORD_FILE, ask_new_password, unlock_key

LIGHT = 2
"""scrypt's n in tests: a guess costs nothing."""
PASSWORD_TEXT = "correct horse"


def test_a_new_key_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "worker.key"
    key = create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path) == key
    with pytest.raises(KeyFileError, match="exists already"):
        create_key(path)
    assert load_key(path) == key


def test_address_of_a_known_key() -> None:
    assert address_of((1).to_bytes(32, "big")) == "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 characters"),
        ("ab" * 31, "62 characters"),
        ("xy" * 32, "64 characters"),
        ("00" * 32, "outside 1"),
        ("ff" * 32, "outside 1"),
    ],
)
def test_invalid_key_files(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=reason):
        load_key(path)


def test_invalid_missing_file_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="make one with `trainer keys new"):
        load_key(tmp_path / "none")


def test_a_key_that_others_may_read_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    create_key(path)
    path.chmod(0o644)
    load_key(path)
    assert "mode 0644, expected 0600" in caplog.text


def test_the_command_warns_in_one_plain_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.key"
    path.write_text("no key")
    path.chmod(0o644)
    command = [sys.executable, "-m", "training.cli", "keys", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.splitlines()
    assert lines[0] == f"warning: {path} has mode 0644, expected 0600; next: chmod 600 {path}"
    assert lines[1].startswith("error: ")


@pytest.fixture
def encrypted(tmp_path: Path) -> tuple[Path, bytes]:
    """A keystore that is cheap to open, and its key."""
    path, key = tmp_path / "worker.json", b"\x05" * 32
    path.write_text(encrypt_key(key, PASSWORD_TEXT, work_factor=LIGHT) + "\n")
    path.chmod(0o600)
    return path, key


def test_keystore_is_what_eth_account_writes_and_reads(encrypted: tuple[Path, bytes]) -> None:
    path, key = encrypted
    assert bytes(Account.decrypt(path.read_text(), PASSWORD_TEXT)) == key
    other = json.dumps(Account.encrypt(key, PASSWORD_TEXT, kdf="pbkdf2", iterations=1))
    assert decrypt_key(path, other, PASSWORD_TEXT) == key


def test_encrypted_file_is_opened_by_password_only(
    encrypted: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, key = encrypted
    with pytest.raises(KeyFileError, match="encrypted and no password"):
        load_key(path)
    assert load_key(path, lambda _: PASSWORD_TEXT) == key
    with pytest.raises(KeyFileError, match="wrong password") as refused:
        load_key(path, lambda _: "a wrong one")
    assert "a wrong one" not in str(refused.value)
    assert refused.value.__cause__ is None
    monkeypatch.setenv(PASSWORD, PASSWORD_TEXT)
    assert unlock_key(path) == key
    kept = tmp_path / "password"
    kept.write_text(PASSWORD_TEXT + "\nsecond line\n")
    monkeypatch.setenv(PASSWORD, "the file wins")
    monkeypatch.setenv(PASSWORD_FILE, str(kept))
    assert unlock_key(path) == key
    kept.write_text("\n")
    with pytest.raises(KeyFileError, match="first line is empty"):
        unlock_key(path)
    monkeypatch.setenv(PASSWORD_FILE, str(tmp_path / "none"))
    with pytest.raises(KeyFileError, match=r"can't be read: No such file .*; next: "):
        unlock_key(path)
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(KeyFileError, match=r"holds no key: 1 bytes, expected one line of 64 hex digits.*; next: "):
        load_key(tmp_path / "binary")


def test_password_from_a_pipe(encrypted: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's <(...) is a pipe; one that nobody writes to, or a line without an end, must not hold a command."""
    path, key = encrypted
    reading, writing = os.pipe()
    os.write(writing, (PASSWORD_TEXT + "\n").encode())
    monkeypatch.setenv(PASSWORD_FILE, f"/dev/fd/{reading}")
    assert unlock_key(path) == key, "also while the writer stays"
    os.write(writing, PASSWORD_TEXT.encode())
    os.close(writing)
    assert unlock_key(path) == key, "a last line without its end"
    os.close(reading)
    monkeypatch.setattr(unlocking, "PASSWORD_SECONDS", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv(PASSWORD_FILE, str(fifo))
    with pytest.raises(KeyFileError, match=r"can't be read: nothing whole came within 0 s; next: "):
        unlock_key(path)
    monkeypatch.setenv(PASSWORD_FILE, "/dev/zero")
    with pytest.raises(KeyFileError, match=r"can't be read: its first line has more than 4096 bytes; next: "):
        unlock_key(path)
    monkeypatch.setenv(PASSWORD_FILE, str(tmp_path))
    with pytest.raises(KeyFileError, match=r"can't be read: Is a directory; next: "):
        unlock_key(path)


@pytest.mark.parametrize("cut", ["write", "fsync", "link"])
def test_a_cut_leaves_no_half_key(cut: str, tmp_path: Path) -> None:
    """Killed on the way, `keys new` leaves no file of that name; the next one makes it."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from contracts.bindings.keys import create_key\n"
        "die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "if sys.argv[2] == 'write':\n"
        "    os.fdopen = die\n"
        "else:\n"
        "    setattr(os, sys.argv[2], die)\n"
        "create_key(Path(sys.argv[1]))\n"
    )
    path = tmp_path / "worker.key"
    done = subprocess.run([sys.executable, "-c", script, str(path), cut], timeout=60, check=False)
    assert done.returncode == -9
    assert not path.exists(), "a key file that is there is whole"
    key = create_key(path)
    assert load_key(path) == key


def test_prompt_asks_once_to_open_and_twice_for_a_new_one(
    encrypted: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = encrypted
    for name in (PASSWORD, PASSWORD_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(unlocking.sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(KeyFileError, match=f"no terminal to ask for its password; next: set {PASSWORD_FILE}"):
        unlock_key(path)
    monkeypatch.setattr(unlocking.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    typed = iter([PASSWORD_TEXT, "twice the same", "twice the same", "one", "another"])
    monkeypatch.setattr(unlocking.getpass, "getpass", lambda prompt: next(typed))
    assert unlock_key(path) == key
    assert ask_new_password(path) == "twice the same"
    with pytest.raises(KeyFileError, match="passwords differ"):
        ask_new_password(path)


def test_address_is_known_without_the_password(encrypted: tuple[Path, bytes], tmp_path: Path) -> None:
    path, key = encrypted
    assert load_address(path) == address_of(key)
    plain = tmp_path / "plain"
    made = create_key(plain)
    assert load_address(plain) == address_of(made)


def test_a_plain_file_is_encrypted_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore.encrypt_key, "__kwdefaults__", {"work_factor": LIGHT})
    path = tmp_path / "key"
    key = create_key(path)
    with pytest.raises(KeyFileError, match="has 5 characters, expected at least 8"):
        encrypt_file(path, "short")
    assert load_key(path) == key, "a refusal changes nothing"
    assert encrypt_file(path, PASSWORD_TEXT) == address_of(key)
    assert key.hex() not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path, lambda _: PASSWORD_TEXT) == key
    assert [each.name for each in tmp_path.iterdir()] == ["key"]
    with pytest.raises(KeyFileError, match="encrypted already"):
        encrypt_file(path, PASSWORD_TEXT)
    fresh = tmp_path / "fresh"
    made = create_key(fresh, PASSWORD_TEXT)
    assert load_key(fresh, lambda _: PASSWORD_TEXT) == made


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"version": 1}', '{"version": 3}', '{"version": 3, "crypto": {"kdf": "x"}}']
)
def test_invalid_keystores(text: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=r"; next: ") as refused:
        load_key(path, lambda _: PASSWORD_TEXT)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("kdf", "changes", "reason"),
    [
        ("scrypt", {"p": 1 << 24}, "asks for scrypt n"),
        ("scrypt", {"n": 1 << 40}, "asks for scrypt n"),
        ("scrypt", {"dklen": 1 << 30}, "1073741824 bytes, at most"),
        ("scrypt", {"n": "262144"}, "no keystore that can be read"),
        ("scrypt", {"r": -8}, "no keystore that can be read"),
        ("pbkdf2", {"c": 1 << 31}, "pbkdf2 c 2147483648"),
    ],
)
def test_invalid_keystore_that_asks_for_endless_work(
    kdf: str, changes: dict[str, Any], reason: str, encrypted: tuple[Path, bytes]
) -> None:
    path, _ = encrypted
    document = json.loads(path.read_text())
    document["crypto"]["kdf"] = kdf
    document["crypto"]["kdfparams"] |= changes
    path.write_text(json.dumps(document))
    with pytest.raises(KeyFileError, match=reason):
        load_key(path, lambda _: PASSWORD_TEXT)


def test_invalid_keystore_that_names_another_address(encrypted: tuple[Path, bytes]) -> None:
    """Its address is shown without the password, and gets money."""
    path, _ = encrypted
    path.write_text(json.dumps(json.loads(path.read_text()) | {"address": "11" * 20}))
    with pytest.raises(KeyFileError, match="its key is that of 0x"):
        load_key(path, lambda _: PASSWORD_TEXT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"address": "zz" * 20}))
    with pytest.raises(KeyFileError, match="names no address"):
        load_address(path)
