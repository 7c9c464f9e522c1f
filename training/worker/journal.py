"""What a worker must not forget when it is killed (DESIGN 4.1, *Workers*).

``journal.json`` names the newest whole worker state and every update of ours whose fate is open, with its
payload and, once signed, its raw transaction.  Order of durability: payload and worker state, then the
journal that names both (one rename commits them together), then the signed transaction in the journal, and
only then the network.  So after kill -9 at any moment either the round was never sent and its progress is in
the saved state's past, or everything needed to finish the sending is here.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from da.foreign_json import parse_json
from training.worker.durable import save_durable
from training.worker.source import compute_digest

LOG = logging.getLogger("trainer")

JOURNAL_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SentUpdate:
    """An update of ours that has left the local weights."""

    round: int
    """t."""
    base_root: str
    """Hex, as the round froze it."""
    digest: str
    """Hex, blake3 of the payload."""
    payload_file: str
    """Name inside the home's ``sent`` folder."""
    tokens: int
    """Tokens trained on for it."""
    loss_micro: int
    """Mean training loss, micronats."""
    blob: str = ""
    """Hex id under which the stores certified it; empty until they have."""
    raw_transaction: str = ""
    """Hex; empty until the certificate is there and the commit is signed."""
    is_committed: bool = False
    """Seen on the chain."""
    note: str = ""
    """Why it never got there, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """The file."""

    genesis_hash: str
    """Hex: the chain."""
    run: int
    """The run."""
    recipe_digest: str
    """Hex."""
    member: str = ""
    """Address of the key; empty in a journal from before it was written down."""
    state_file: str = ""
    """Name of the newest whole worker state in the home's ``state`` folder; empty before the first."""
    trained_round: int = -1
    """Round whose inner steps are in the saved state without having been sent; -1 for none."""
    trained_steps: int = 0
    """How many of them."""
    trained_tokens: int = 0
    """Their tokens."""
    trained_loss_micro: int = 0
    """Their mean loss."""
    last_sent_round: int = -1
    """Newest round taken out of the weights."""
    sent: tuple[SentUpdate, ...] = ()
    """Updates whose round is not in the agreed state of ``state_file`` yet, by round."""


class Journal:
    """The journal of one home folder; safe to use from several threads."""

    def __init__(self, home: Path, contents: JournalContents) -> None:
        """Take over ``contents`` without writing."""
        self.home = home
        self._contents = contents
        self._lock = threading.Lock()

    @property
    def contents(self) -> JournalContents:
        """The contents as they are on disk."""
        with self._lock:
            return self._contents

    @property
    def state_folder(self) -> Path:
        """Where worker states lie."""
        return self.home / "state"

    @property
    def sent_folder(self) -> Path:
        """Where own payloads lie."""
        return self.home / "sent"

    def find_sent(self, round_index: int) -> SentUpdate | None:
        """Return our update of a round, if its fate is open."""
        return next((update for update in self.contents.sent if update.round == round_index), None)

    def load_payload(self, update: SentUpdate) -> bytes:
        """Return the payload of an update of ours, exactly as it was sent.

        Raises FileNotFoundError where the file is gone, or was altered on the disk: then it is set aside, and said.
        """
        path = self.sent_folder / update.payload_file
        try:
            payload = path.read_bytes()
            got = compute_digest(payload).hex()
            if got == update.digest:
                return payload
            reason = f"it has digest {got}, was written with {update.digest}"
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = f"it can't be read: {error.strerror}"
        path.replace(path.with_name(f"{path.name}.altered"))
        LOG.warning("round %d: our payload %s was altered on the disk and is set aside: %s", update.round, path, reason)
        raise FileNotFoundError(errno.ENOENT, "was altered on the disk and set aside", str(path))

    def save_payload(self, update: SentUpdate, payload: bytes) -> None:
        """Write the payload of an open update anew, where its file was lost. Raises OSError, on a full disk for one."""
        self.sent_folder.mkdir(parents=True, exist_ok=True)
        save_durable(self.sent_folder / update.payload_file, payload)

    def record_state(
        self,
        save_state: Callable[[Path], None],
        *,
        name: str,
        change: Callable[[JournalContents], JournalContents],
        payload: tuple[str, bytes] | None = None,
    ) -> None:
        """Make a worker state (and a payload) durable and name them in one step; older files go.

        Raises OSError, on a full disk for one: then the last good state is named as before, and what was written
        for this one is gone.
        """
        for folder in (self.state_folder, self.sent_folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            if payload is not None:
                save_durable(self.sent_folder / payload[0], payload[1])
            save_state(self.state_folder / name)
            with self._lock:
                self._write(replace(change(self._contents), state_file=name))
        finally:
            self._remove_unnamed()

    def update_sent(self, round_index: int, change: Callable[[SentUpdate], SentUpdate]) -> None:
        """Change one open update durably; nothing happens when it is closed already."""
        with self._lock:
            sent = tuple(change(item) if item.round == round_index else item for item in self._contents.sent)
            if sent != self._contents.sent:
                self._write(replace(self._contents, sent=sent))

    def reset(self) -> None:
        """Forget the worker state and every open update: the run went back behind them."""
        with self._lock:
            self._write(
                JournalContents(
                    genesis_hash=self._contents.genesis_hash,
                    run=self._contents.run,
                    recipe_digest=self._contents.recipe_digest,
                    member=self._contents.member,
                )
            )
        self._remove_unnamed()

    def _write(self, contents: JournalContents) -> None:
        body = json.dumps({"version": JOURNAL_VERSION, **asdict(contents)}, indent=1).encode()
        save_durable(self.home / "journal.json", body)
        self._contents = contents

    def _remove_unnamed(self) -> None:
        contents = self.contents
        keep = {contents.state_file, *(update.payload_file for update in contents.sent)}
        for folder in (self.state_folder, self.sent_folder):
            if folder.is_dir():
                for path in folder.iterdir():
                    if path.name not in keep:
                        path.unlink(missing_ok=True)


def load_journal(home: Path) -> JournalContents | None:
    """Read a home's journal; None where there is none.

    Raises ValueError, naming the field, when the file is not a journal of this version.
    """
    path = home / "journal.json"
    if not path.exists():
        return None
    raw = parse_json(path.read_bytes())
    if not isinstance(raw, dict) or raw.pop("version", None) != JOURNAL_VERSION:
        raise ValueError(f"it is not a journal of version {JOURNAL_VERSION}")
    sent = raw.get("sent")
    if not isinstance(sent, list):
        raise ValueError(f"sent is {str(sent)[:80]!r}, expected a list")
    updates = tuple(_read(SentUpdate, item, f"sent[{index}].") for index, item in enumerate(sent))
    rounds = [update.round for update in updates]
    if rounds != sorted(set(rounds)):
        raise ValueError(f"sent has rounds {rounds}, expected each once, ascending")
    return _read(JournalContents, {**raw, "sent": updates}, "")


T = TypeVar("T", SentUpdate, JournalContents)


def _read(kind: type[T], raw: Any, where: str) -> T:
    """Make a dataclass of a JSON object, each field checked; raises ValueError that names the field."""
    if not isinstance(raw, dict):
        raise ValueError(f"{where.rstrip('.')} is {str(raw)[:80]!r}, expected an object")
    known = {field.name: field for field in fields(kind)}
    for name, value in raw.items():
        if name not in known:
            raise ValueError(f"{where}{name} is not a field of this version")
        if not _CHECKS[name](value):
            raise ValueError(f"{where}{name} is {str(value)[:80]!r}, expected {_EXPECTED[_CHECKS[name]]}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in raw]
    if missing:
        raise ValueError(f"{where}{missing[0]} is missing")
    return kind(**raw)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_digest_or_empty(value: Any) -> bool:
    return value == "" or _is_digest(value)


def _is_hex(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("(?:[0-9a-f]{2})*", value) is not None


def _is_address_or_empty(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{40}", value) is not None)


def _is_name(value: Any) -> bool:
    """Say whether a value names a file in a folder: nothing that leads out of it."""
    return isinstance(value, str) and re.fullmatch("[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", value) is not None


def _is_name_or_empty(value: Any) -> bool:
    return value == "" or _is_name(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_round_or_none(value: Any) -> bool:
    return value == -1 or _is_count(value)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "genesis_hash": _is_digest,
    "run": _is_count,
    "recipe_digest": _is_digest,
    "member": _is_address_or_empty,
    "state_file": _is_name_or_empty,
    "trained_round": _is_round_or_none,
    "trained_steps": _is_count,
    "trained_tokens": _is_count,
    "trained_loss_micro": _is_count,
    "last_sent_round": _is_round_or_none,
    "sent": lambda value: isinstance(value, tuple),
    "round": _is_count,
    "base_root": _is_digest,
    "digest": _is_digest,
    "payload_file": _is_name,
    "tokens": _is_count,
    "loss_micro": _is_count,
    "blob": _is_digest_or_empty,
    "raw_transaction": _is_hex,
    "is_committed": lambda value: isinstance(value, bool),
    "note": lambda value: isinstance(value, str),
}
"""What each field of the file may hold."""

_EXPECTED: Mapping[Callable[[Any], bool], str] = {
    _is_digest: "64 hex digits",
    _is_digest_or_empty: "64 hex digits or nothing",
    _is_hex: "hex",
    _is_address_or_empty: "an address or nothing",
    _is_name: "a file's name, without a folder",
    _is_name_or_empty: "a file's name, without a folder, or nothing",
    _is_count: "an integer from 0",
    _is_round_or_none: "a round, or -1",
    _CHECKS["sent"]: "a list",
    _CHECKS["is_committed"]: "true or false",
    _CHECKS["note"]: "text",
}
