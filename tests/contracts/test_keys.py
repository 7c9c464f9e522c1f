"""Key files: private, never overwritten, refused with a reason."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import address_of, create_key, load_key


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


def test_a_key_that_others_may_read_warns(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_key(path)
    path.chmod(0o644)
    with pytest.warns(UserWarning, match="mode 0644, expected 0600"):
        load_key(path)
