"""``trainer keys``: plain and encrypted files, and that no key or password is ever shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import load_key
from contracts.bindings.unlocking import PASSWORD, PASSWORD_FILE, unlock_key
from training.commands.keys import app

SECRET = "a long password"


@pytest.fixture(autouse=True)
def password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A password file, as a service has it."""
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    monkeypatch.delenv(PASSWORD, raising=False)
    monkeypatch.setenv(PASSWORD_FILE, str(path))
    return path


def test_new_encrypt_and_show(tmp_path: Path, password: Path) -> None:
    runner, plain, fresh = CliRunner(), tmp_path / "plain.key", tmp_path / "fresh.key"
    said = [runner.invoke(app, ["new", str(plain)], catch_exceptions=False).output]
    key = load_key(plain)
    said.append(runner.invoke(app, ["encrypt", str(plain)], catch_exceptions=False).output)
    assert unlock_key(plain) == key
    made = runner.invoke(app, ["new", str(fresh), "--encrypted", "--json"], catch_exceptions=False).output
    assert json.loads(made)["is_encrypted"] is True
    assert key.hex() not in plain.read_text()
    password.write_text("another one\n")
    with pytest.raises(KeyFileError, match="wrong password"):
        unlock_key(plain)
    shown = runner.invoke(app, ["show", str(plain)], catch_exceptions=False).output
    assert shown.strip() == re.findall(r"0x[0-9a-fA-F]{40}", said[0])[0], "its address needs no password"
    assert [text for text in (*said, made, shown) if SECRET in text or key.hex() in text] == []
