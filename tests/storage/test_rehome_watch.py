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
from storage.core.errors import ChainUnreachable, InvalidRetention, NotFunded

BLOB = "ab" * 32


def run_watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: list[str], *arguments: str
) -> tuple[Any, list[tuple[str, str]]]:
    """Run ``storage rehome`` over a store that does what ``plan`` says; return the result and what was asked."""
    passes: list[tuple[str, str]] = []
    steps = iter(plan)

    class Store:
        def rehome(self, blob: BlobId, **_: Any) -> Rehomed:
            passes.append((blob.hex()[:2], step := next(steps)))
            if step == "chain is away":
                raise ChainUnreachable("the chain gave no answer")
            if step == "no money":
                raise NotFunded(address="0x12", balance=1, needed=5, where="on chain id 7", what="moving it")
            return Rehomed(blob=blob, epoch=Epoch(3), gone=(2,), is_moved=step == "moves", fee=0)

    @contextmanager
    def open_storage(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(), Store(), SimpleNamespace(bytes_sent=0)

    def sleep(_: float) -> None:
        if len(passes) == len(plan):
            raise KeyboardInterrupt

    monkeypatch.setattr(keeping_commands, "open_storage", open_storage)
    monkeypatch.setattr(keeping_commands, "unlock_key", lambda _: bytes(32))
    monkeypatch.setattr(keeping_commands, "Sender", lambda *_: SimpleNamespace(address="0x"))
    monkeypatch.setattr(keeping_commands, "time", SimpleNamespace(sleep=sleep))
    command = ["rehome", "--key-file", str(tmp_path / "key"), "--directory", str(tmp_path), *arguments]
    return CliRunner().invoke(cli.app, command), passes


def test_it_goes_on_over_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = ["stays", "chain is away", "moves", "stays"]
    done, passes = run_watch(monkeypatch, tmp_path, plan, BLOB, "--watch")
    assert done.exit_code == 130, "until Ctrl-C"
    assert [step for _, step in passes] == plan
    assert done.stdout.splitlines() == [
        f"0x{BLOB}: seats 2 are gone, moved to epoch 3, fee 0 tokens",
        "1 moved, 0 stay where they are",
    ]
    assert "the chain gave no answer" in done.stderr


@pytest.mark.parametrize("watch", [[], ["--watch"]])
def test_a_blob_that_can_not_be_moved_keeps_no_other_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watch: list[str]
) -> None:
    plan = ["no money", "moves"]
    done, passes = run_watch(monkeypatch, tmp_path, plan, BLOB, "cd" * 32, *watch)
    assert passes == [("ab", "no money"), ("cd", "moves")]
    assert done.stdout.splitlines()[-1] == "1 moved, 0 stay where they are, 1 failed"
    assert done.exit_code == (130 if watch else 6)
    assert "on chain id 7, moving it needs 0.000000005 gwei, 4 wei more\nnext:  send it 0.000000004 gwei" in done.stderr


def test_invalid_directory_is_named_before_anything_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done, passes = run_watch(monkeypatch, tmp_path, [], BLOB, "--directory", str(tmp_path / "none"))
    assert (done.exit_code, passes) == (2, [])


def test_keeping_goes_on_over_failures_but_not_over_a_catalogue_that_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[str] = []
    plan = iter(["chain is away", "nothing", "no catalogue"])

    class Steps:
        def step(self) -> tuple[()]:
            passes.append(step := next(plan))
            if step == "chain is away":
                raise ChainUnreachable("the chain gave no answer")
            if step == "no catalogue":
                raise InvalidRetention("it is no catalogue")
            return ()

    monkeypatch.setattr(keeping_commands, "time", SimpleNamespace(sleep=lambda _: None))
    with pytest.raises(InvalidRetention):
        keeping_commands._move(Steps(), "blob", True, False)  # type: ignore[arg-type]
    assert passes == ["chain is away", "nothing", "no catalogue"]
