"""Whether a home folder may be used: by this user, for this chain, run and key, and for where the run stands.

It is looked at before anything in it is changed and before a bond is paid: a home of another key is somebody's
only copy of what they have trained.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from contracts.bindings.encoding import checksummed
from contracts.bindings.types import RunInfo
from da.foreign_json import parse_json
from training.worker.durable import is_disk_full
from training.worker.errors import HomeUnusable, WorkerStateDamaged, WrongChain, WrongMember, WrongRun
from training.worker.journal import Journal, JournalContents, load_journal
from training.worker_file import peek_bytes

FOLDERS = ("state", "sent", "payloads")
"""What a worker makes in its home; one that isn't there yet is made when it is needed."""

APPENDED = ("trace.jsonl", "metrics.jsonl")
"""Files that a worker goes on with."""


def check_usable(home: Path) -> None:
    """Write a nameless file into each folder of a home and open what is read or gone on with.

    A full disk is no reason to refuse: a worker outlives it.  Raises `HomeUnusable`.
    """
    for folder in (home, *(home / name for name in FOLDERS)):
        if folder.exists():
            with _explain(home, folder), tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0")
    kept = [(path, "rb") for name in ("state", "sent") for path in sorted((home / name).glob("*"))]
    for path, mode in [*kept, *((home / name, "ab") for name in APPENDED if (home / name).exists())]:
        if not path.is_file():  # a pipe would hold us up
            raise HomeUnusable(str(home), str(path), "it is no file")
        with _explain(home, path), path.open(mode):
            pass


def open_journal(home: Path, genesis_hash: bytes, run: RunInfo, me: str) -> Journal:
    """Open a home's journal, or begin one; writes nothing.

    Raises `WrongChain`, `WrongRun` (another run or recipe) or `WrongMember` for a home that is another's, and
    `WorkerStateDamaged`.
    """
    home.mkdir(parents=True, exist_ok=True)
    digest = run.recipe_digest.hex()
    fresh = JournalContents(genesis_hash=genesis_hash.hex(), run=run.run, recipe_digest=digest, member=me)
    try:
        contents = load_journal(home)
    except PermissionError as error:
        raise HomeUnusable(str(home), str(home / "journal.json"), error.strerror or str(error)) from error
    except (ValueError, OSError) as error:
        raise WorkerStateDamaged(str(home / "journal.json"), str(error)) from error
    if contents is None:
        return Journal(home, fresh)
    if contents.genesis_hash != fresh.genesis_hash:
        raise WrongChain(bytes.fromhex(contents.genesis_hash), genesis_hash)
    if (contents.run, contents.recipe_digest) != (run.run, digest):
        raise WrongRun(
            f"{home} belongs to run {contents.run}, not to run {run.run}", next_step="give each run its own --home"
        )
    member = contents.member or _read_member(home, contents)
    if member is not None and member.lower() != me.lower():
        raise WrongMember(str(home), member, me)
    return Journal(home, replace(contents, member=me))


def check_not_ahead(journal: Journal, run: RunInfo) -> None:
    """Refuse a journal that tells of rounds which the run has not opened. Raises `WorkerStateDamaged`.

    A round opens when all but ``overlap`` of those before it have settled, so a journal whose state is the run's
    knows of none after ``num_opened + overlap``, even where the run went back to that very state since.
    """
    contents = journal.contents
    known = {
        "last_sent_round": contents.last_sent_round,
        "trained_round": contents.trained_round,
        "sent": max((update.round for update in contents.sent), default=-1),
    }
    for field, newest in known.items():
        if newest > run.num_opened + run.params.overlap:
            raise WorkerStateDamaged(
                str(journal.home / "journal.json"),
                f"{field} names round {newest}, the run has opened {run.num_opened} rounds",
            )


def _read_member(home: Path, contents: JournalContents) -> str | None:
    """Return whose worker state a journal names that doesn't say it itself; None without a readable one."""
    about = peek_bytes(home / "state" / contents.state_file, "about") if contents.state_file else None
    try:
        return None if about is None else checksummed("0x" + parse_json(about)["member"])
    except (ValueError, LookupError, TypeError):  # damaged: loading it says so
        return None


@contextmanager
def _explain(home: Path, path: Path) -> Iterator[None]:
    """Say of what the system refuses in a home whose home it is. Raises `HomeUnusable`."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise HomeUnusable(str(home), str(path), error.strerror or str(error)) from error
