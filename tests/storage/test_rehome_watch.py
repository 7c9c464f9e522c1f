"""``storage rehome --watch`` goes on over failures, and is quiet where nothing is to be done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from da.core.types import BlobId, Epoch
from storage import cli, keeping_commands
from storage.client import Rehomed
from storage.core.errors import ChainUnreachable

BLOB = "ab" * 32


def test_it_goes_on_over_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    passes: list[str] = []
    plan = iter(["stays", "chain is away", "moves", "stays"])

    class Store:
        def rehome(self, blob: BlobId, **_: Any) -> Rehomed:
            passes.append(step := next(plan))
            if step == "chain is away":
                raise ChainUnreachable("the chain gave no answer")
            return Rehomed(blob=blob, epoch=Epoch(3), gone=(2,), is_moved=step == "moves", fee=0)

    @contextmanager
    def open_storage(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(), Store(), SimpleNamespace(bytes_sent=0)

    def sleep(_: float) -> None:
        if len(passes) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(keeping_commands, "open_storage", open_storage)
    monkeypatch.setattr(keeping_commands, "unlock_key", lambda _: bytes(32))
    monkeypatch.setattr(keeping_commands, "Sender", lambda *_: SimpleNamespace(address="0x"))
    monkeypatch.setattr(keeping_commands, "time", SimpleNamespace(sleep=sleep))
    done = CliRunner().invoke(cli.app, ["rehome", BLOB, "--key-file", str(tmp_path / "key"), "--watch"])
    assert done.exit_code == 130, "until Ctrl-C"
    assert passes == ["stays", "chain is away", "moves", "stays"]
    assert done.stdout.splitlines() == [
        f"0x{BLOB}: seats 2 are gone, moved to epoch 3, fee 0 tokens",
        "1 moved, 0 stay where they are",
    ]
    assert "the chain gave no answer" in done.stderr
