"""The chain's LMDB: state, records and (height, app hash), written in one transaction a block (CHAIN.md, State).

One process writes (``Store``); any number read (``Reader``), each on a consistent snapshot of one block.
Invariant: whatever moment the process dies, the file holds exactly the blocks up to ``height``, whole.

| named database | key | value |
|---|---|---|
| meta | name | height as u64, first height with records as u64, app hash |
| state | state key | state value |
| blocks | height u64 | msgpack of Block |
| block_heights | block hash | height u64 |
| receipts | height u64 | msgpack of [receipts, timer logs] |
| transactions | transaction hash | msgpack of [height, index, sender, raw] |
| archive | state key | last value of a record that left the state under an accumulator |
| hashes | height u64 | hash of one of the last 256 blocks, also of those whose records were pruned |
| undo | height u64 | msgpack of [state key, its value before the block or nil], of the last HISTORY_BLOCKS blocks |

Records of old blocks may be pruned, and a node restored from a snapshot never had them: ``first_height`` is the
lowest block that is whole here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import Any

import lmdb
import msgpack

from chain.core.block_hashes import NUM_RECENT_BLOCKS, compute_first_missing
from chain.core.contracts.staking.keys import get_rules
from chain.core.environment import BlockEnvironment
from chain.core.genesis import ChainParameters, get_parameters
from chain.core.records import Block, Log, Receipt, Transaction
from chain.core.rounds.archive import ARCHIVED_PREFIXES
from chain.core.snapshots import Entry, EntryKind
from chain.core.state import Base
from chain.core.transactions import restore_transaction
from chain.core.types import Address, Hash, Height
from chain.store_file import FILE_NAME, find_missing_end, has_file
from chain.stored_records import decode_block, decode_log, decode_receipt, encode_block, encode_log, encode_receipt
from chain.stored_states import UNKNOWN, ArchiveState, KnownState, SnapshotState, iterate_all, remember_all

DATABASES = (
    b"meta",
    b"state",
    b"blocks",
    b"block_heights",
    b"receipts",
    b"transactions",
    b"archive",
    b"hashes",
    b"undo",
)
"""Named databases."""

HISTORY_BLOCKS = 128
"""Blocks back of which the state can still be read, as go-ethereum keeps: half a minute of a devnet's.  It costs one
read a changed key in Commit, some 1 % of a full block."""

MAX_UNDO_BYTES = 16 << 20
"""Of old values that one read of the past takes in, about 0.1 s: 50 blocks of 2,500 transfers."""

PRUNED_BLOCKS_A_COMMIT = 4
"""Old blocks whose records go in one commit: more than come, so a backlog goes too."""


INITIAL_MAP_BYTES = 4 << 30
"""Address space, not disk: the file grows as it is written."""

_GROWTH_FACTOR = 2
_HEADROOM_DIVISOR = 4
"""The map grows when less than a quarter of it is free."""
_REMAP_DEADLINE_SECONDS = 10.0
"""How long a reader waits for its other snapshots to close, before it follows a map that has grown."""
_MAX_READERS = 512
_READER_CHECK_COMMITS = 64
"""A reader that was killed pins old pages, and the file grows, until its slot is cleared."""
_HEIGHT_BYTES = 8
_META_HEIGHT = b"height"
_META_APP_HASH = b"app_hash"
_META_FIRST_HEIGHT = b"first_height"
_ENTRY_DATABASES = (b"state", b"blocks", b"block_heights", b"receipts", b"transactions", b"hashes")
"""By chain.core.snapshots.EntryKind."""


class StoreError(Exception):
    """The database can't be used as asked."""


class StoreBroken(StoreError):
    """What lies there is no database, or can't be read."""

    def __init__(self, directory: Path, error: Exception) -> None:
        """Keep the directory."""
        super().__init__(
            f"{directory} can't be read: {error}; next: remove {directory}: the blocks are replayed; where old ones"
            " were pruned, `chain-node reset --state --server URL --server URL` takes a snapshot of other nodes"
        )
        self.directory = directory


DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.BadTxnError)
"""What LMDB raises over pages that hold something else than they should; a full disk is none of it."""


@contextmanager
def naming_damage(directory: Path) -> Iterator[None]:
    """Turn what LMDB says of a damaged database into StoreBroken."""
    try:
        yield
    except DAMAGE as error:
        raise StoreBroken(directory, error) from error


class StoreTruncated(StoreBroken):
    """The end of the database's file is missing."""

    def __init__(self, directory: Path, expected_bytes: int, got_bytes: int) -> None:
        """Keep both sizes."""
        reason = f"{FILE_NAME} has {got_bytes:,} bytes, expected {expected_bytes:,}: its end is missing"
        super().__init__(directory, ValueError(reason))
        self.expected_bytes = expected_bytes
        self.got_bytes = got_bytes


class StoreUnread(StoreError):
    """The disk takes far too long to say whether the database is whole."""

    def __init__(self, directory: Path, reason: str) -> None:
        """Keep the directory."""
        super().__init__(
            f"{reason}; next: see the system's log for the disk of {directory}, and start again when it answers"
        )
        self.directory = directory


class StoreMissing(StoreError):
    """There is no database yet."""

    def __init__(self, path: Path) -> None:
        """Keep the path."""
        super().__init__(f"no chain database at {path}; next: `chain-node start --home ...`")
        self.path = path


class SnapshotsHeldOpen(StoreError):
    """The map grew and this process can't follow while it reads."""

    def __init__(self, num_open: int) -> None:
        """Keep the count."""
        super().__init__(
            f"the database grew, and {num_open} snapshots of this process stayed open for"
            f" {_REMAP_DEADLINE_SECONDS:.0f} s; next: close a snapshot before slow work"
        )
        self.num_open = num_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A block that is ready to be made durable."""

    height: Height
    """0 for genesis."""
    app_hash: bytes
    """32 bytes, of the state with the changes."""
    changes: Sequence[tuple[bytes, bytes | None]]
    """State keys that differ; None means deleted."""
    block: Block
    """Its record."""
    receipts: Sequence[Receipt]
    """Of its transactions, in order."""
    transactions: Sequence[Transaction]
    """Those executed, in the receipts' order."""
    timer_logs: Sequence[Log]
    """Emitted after the last transaction."""


class Snapshot:
    """The chain as of one block; close it before slow work."""

    __slots__ = ("_databases", "_height", "_state", "_transaction")

    def __init__(
        self,
        transaction: lmdb.Transaction,
        databases: dict[bytes, Any],
        known: dict[bytes, bytes | None] | None = None,
    ) -> None:
        """Read through ``transaction``; the writer remembers in ``known`` what the state holds."""
        self._transaction = transaction
        self._databases = databases
        self._state = (
            SnapshotState(transaction, databases[b"state"])
            if known is None
            else KnownState(transaction, databases[b"state"], known)
        )
        self._height: Height | None = None

    @property
    def is_empty(self) -> bool:
        """True before genesis was written."""
        return self._get(b"meta", _META_HEIGHT) is None

    @property
    def height(self) -> Height:
        """The newest block, 0 at genesis and before."""
        if self._height is None:
            self._height = Height(int.from_bytes(self._get(b"meta", _META_HEIGHT) or b"", "big"))
        return self._height

    @property
    def first_height(self) -> Height:
        """The lowest block whose records are here: 0 unless older ones were pruned or never fetched."""
        return Height(int.from_bytes(self._get(b"meta", _META_FIRST_HEIGHT) or b"", "big"))

    @property
    def app_hash(self) -> bytes:
        """32 bytes after block ``height``; empty before genesis."""
        return self._get(b"meta", _META_APP_HASH) or b""

    @property
    def state(self) -> Base:
        """The state after block ``height``; usable while the snapshot is open."""
        return self._state

    @property
    def state_and_archive(self) -> Base:
        """The state, and behind it the records that left it: for views of this node only, never for a block."""
        return ArchiveState(self._transaction, self._databases[b"state"], self._databases[b"archive"])

    def changed_since(self, height: int) -> dict[bytes, bytes | None] | None:
        """Return what keys that blocks after ``height`` have changed held then (``PastState``); None where it is gone.

        It is read whole, so after MAX_UNDO_BYTES of busy blocks nothing further back can be asked about.
        """
        changed: dict[bytes, bytes | None] = {}
        num_bytes = 0
        for each in range(self.height, height, -1):
            record = self._get(b"undo", _encode_height(each))
            num_bytes += len(record or b"")
            if record is None or num_bytes > MAX_UNDO_BYTES:
                return None
            changed.update(msgpack.unpackb(record))
        return changed

    def iterate_entries(self) -> Iterator[Entry]:
        """Yield what a snapshot of this block holds (chain.core.snapshots)."""
        for key, value in iterate_all(self.state):
            yield EntryKind.STATE, key, value
        block = self.block(self.height)
        assert block is not None, "height and block are written together"
        height = _encode_height(block.height)
        yield EntryKind.BLOCK, height, self._get(b"blocks", height) or b""
        yield EntryKind.BLOCK_HEIGHT, block.hash, height
        receipts = self._get(b"receipts", height)
        if receipts is not None:
            yield EntryKind.RECEIPTS, height, receipts
        for transaction in sorted(block.transactions):
            yield EntryKind.TRANSACTION, transaction, self._get(b"transactions", transaction) or b""
        for each in range(compute_first_missing(self.state, block.height + 1), block.height + 1):
            yield EntryKind.RECENT_HASH, _encode_height(each), self.block_hash(each)

    def genesis_info(self) -> ChainParameters:
        """Return the chain's ids, genesis hash, gas limit and base fee."""
        parameters = get_parameters(self.state)
        if parameters is None:
            raise StoreError("the chain has no genesis yet: wait for its first block")
        return parameters

    def environment(self, *, is_pending: bool = False) -> BlockEnvironment:
        """Return the environment of the newest block, or of the one to come, for ``simulate_call``."""
        block = self.block(self.height)
        assert block is not None, "height and block are written together"
        return BlockEnvironment(
            height=Height(block.height + 1) if is_pending else block.height,
            time_seconds=block.time_seconds,
            proposer=block.proposer,
            block_seed=self.app_hash,
            parameters=self.genesis_info(),
            rules=get_rules(self.state),
            read_block_hash=self.block_hash,
        )

    def block(self, height: Height | int) -> Block | None:
        """Return the block at a height, None where there is none."""
        value = self._get(b"blocks", _encode_height(height)) if height >= 0 else None
        return None if value is None else decode_block(value)

    def block_hash(self, height: Height | int) -> Hash:
        """Return the hash of one of the last 256 blocks."""
        found = self.find_block_hash(height)
        assert found is not None, f"the hash of block {height} was not kept"
        return found

    def find_block_hash(self, height: Height | int) -> Hash | None:
        """Return the hash of a block, None where this node has forgotten it."""
        value = self._get(b"hashes", _encode_height(height))
        if value is not None:
            return Hash(value)
        block = self.block(height)
        return None if block is None else block.hash

    def height_of_block_hash(self, block_hash: bytes) -> Height | None:
        """Return the height of a block by its hash."""
        value = self._get(b"block_heights", block_hash) if block_hash else None
        return None if value is None else Height(int.from_bytes(value, "big"))

    def transaction(self, transaction_hash: bytes) -> tuple[Transaction, Height, int] | None:
        """Return (transaction, height, index in its block) of an executed transaction."""
        value = self._get(b"transactions", transaction_hash) if transaction_hash else None
        if value is None:
            return None
        height, index, sender, raw = msgpack.unpackb(value)
        return restore_transaction(raw, Address(sender)), Height(height), index

    def receipts(self, height: Height | int) -> list[Receipt]:
        """Return the receipts of a block, in order; empty where there is no block."""
        return [decode_receipt(fields) for fields in self._receipt_record(height)[0]]

    def timer_logs(self, height: Height | int) -> list[Log]:
        """Return the logs of a block that belong to no transaction; their indices follow the receipts' logs."""
        return [decode_log(fields) for fields in self._receipt_record(height)[1]]

    def _receipt_record(self, height: int) -> tuple[list[Any], list[Any]]:
        value = self._get(b"receipts", _encode_height(height)) if height >= 0 else None
        if value is None:
            return [], []
        receipts, logs = msgpack.unpackb(value)
        return receipts, logs

    def _get(self, database: bytes, key: bytes) -> bytes | None:
        value = self._transaction.get(key, db=self._databases[database])
        return None if value is None else bytes(value)


class Reader:
    """Read-only access from another process than the writer's; safe to share between threads."""

    def __init__(self, directory: Path) -> None:
        """Open the database in ``directory`` (``<home>/app``); raises StoreMissing."""
        if not has_file(directory):
            raise StoreMissing(directory)
        self._env = _open_environment(
            directory, readonly=True, max_dbs=len(DATABASES), max_readers=_MAX_READERS, readahead=False
        )
        self._directory = directory
        self._databases = _open_databases(self._env, directory, is_writer=False)
        self._is_free = Condition()
        self._num_open = 0

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Open a consistent view of the newest block; raises StoreBroken for what can't be read of it."""
        transaction = self._begin()
        try:
            with naming_damage(self._directory):
                yield Snapshot(transaction, self._databases)
        finally:
            transaction.abort()
            with self._is_free:
                self._num_open -= 1
                self._is_free.notify_all()

    def close(self) -> None:
        """Close the database; every snapshot must be closed before."""
        self._env.close()

    def __enter__(self) -> Reader:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _begin(self) -> lmdb.Transaction:
        with self._is_free:
            try:
                transaction = self._env.begin(buffers=False)
            except lmdb.MapResizedError:
                if not self._is_free.wait_for(lambda: self._num_open == 0, timeout=_REMAP_DEADLINE_SECONDS):
                    raise SnapshotsHeldOpen(self._num_open) from None
                self._env.set_mapsize(0)
                transaction = self._env.begin(buffers=False)
            self._num_open += 1
            return transaction


class Store:
    """The one writer."""

    def __init__(self, directory: Path, *, map_bytes: int = INITIAL_MAP_BYTES) -> None:
        """Open or create the database; clears reader slots that dead processes left."""
        directory.mkdir(parents=True, exist_ok=True)
        existing = (directory / FILE_NAME).stat().st_size if (directory / FILE_NAME).exists() else 0
        self._env = _open_environment(
            directory,
            map_size=max(map_bytes, existing * _GROWTH_FACTOR),
            max_dbs=len(DATABASES),
            max_readers=_MAX_READERS,
            readahead=False,
        )
        self._env.reader_check()
        self._databases = _open_databases(self._env, directory, is_writer=True)
        self._num_commits = 0
        self._known: dict[bytes, bytes | None] = {}
        """What the newest state holds, of keys that were read or written of late."""
        self._begin_reading()

    @property
    def committed(self) -> Snapshot:
        """The newest durable block; valid until the next ``commit``."""
        return self._committed

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Do as ``Reader.snapshot``, inside the writer's process."""
        yield self.committed

    def commit(self, candidate: Candidate, *, keep_from: int = 0) -> None:
        """Make a block durable, all or nothing; records of some blocks below ``keep_from`` go in the same step."""
        self._reading.abort()
        self._num_commits += 1
        if self._num_commits % _READER_CHECK_COMMITS == 0:
            self._env.reader_check()
        self._grow_if_needed()
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    self._write(transaction, candidate)
                    self._prune(transaction, keep_from)
                break
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * _GROWTH_FACTOR)
        remember_all(self._known, candidate.changes)
        self._begin_reading()

    def put_entries(self, entries: Sequence[Entry]) -> None:
        """Write a part of a snapshot; until ``finish_restore`` the store still counts as empty."""
        self._write_between_blocks(lambda transaction: self._put_entries(transaction, entries))

    def finish_restore(self, height: Height, app_hash: bytes) -> None:
        """Make the entries count: the chain continues after block ``height``."""

        def write(transaction: lmdb.Transaction) -> None:
            for name in (_META_HEIGHT, _META_FIRST_HEIGHT):
                transaction.put(name, _encode_height(height), db=self._databases[b"meta"])
            transaction.put(_META_APP_HASH, app_hash, db=self._databases[b"meta"])

        self._write_between_blocks(write)

    def wipe(self) -> None:
        """Forget everything: InitChain starts a chain from nothing."""
        self._reading.abort()
        with self._env.begin(write=True) as transaction:
            for database in self._databases.values():
                transaction.drop(database, delete=False)
        self._known.clear()
        self._begin_reading()

    def close(self) -> None:
        """Close the database."""
        self._reading.abort()
        self._env.close()

    def _begin_reading(self) -> None:
        self._reading = self._env.begin()
        self._committed = Snapshot(self._reading, self._databases, self._known)

    def _write_between_blocks(self, write: Callable[[lmdb.Transaction], None]) -> None:
        self._reading.abort()
        self._known.clear()
        self._grow_if_needed()
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    write(transaction)
                break
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * _GROWTH_FACTOR)
        self._begin_reading()

    def _put_entries(self, transaction: lmdb.Transaction, entries: Sequence[Entry]) -> None:
        for kind, key, value in entries:
            transaction.put(key, value, db=self._databases[_ENTRY_DATABASES[kind]])

    def _prune(self, transaction: lmdb.Transaction, keep_from: int) -> None:
        meta = self._databases[b"meta"]
        first = int.from_bytes(transaction.get(_META_FIRST_HEIGHT, db=meta) or b"", "big")
        stop = min(keep_from, first + PRUNED_BLOCKS_A_COMMIT)
        if stop <= first:
            return
        for height in map(_encode_height, range(first, stop)):
            value = transaction.get(height, db=self._databases[b"blocks"])
            if value is not None:
                block = decode_block(bytes(value))
                transaction.delete(block.hash, db=self._databases[b"block_heights"])
                for executed in block.transactions:
                    transaction.delete(executed, db=self._databases[b"transactions"])
            transaction.delete(height, db=self._databases[b"blocks"])
            transaction.delete(height, db=self._databases[b"receipts"])
        transaction.put(_META_FIRST_HEIGHT, _encode_height(stop), db=meta)

    def _write(self, transaction: lmdb.Transaction, candidate: Candidate) -> None:
        state = self._databases[b"state"]
        undo: list[tuple[bytes, bytes | None]] = []
        for key, value in candidate.changes:
            old = self._known.get(key, UNKNOWN)
            if old is UNKNOWN:
                old = transaction.get(key, db=state)
            if old == value:
                continue
            undo.append((key, None if old is None else bytes(old)))
            if value is None:
                if key[:3] in ARCHIVED_PREFIXES:
                    self._archive(transaction, key)
                transaction.delete(key, db=state)
            else:
                transaction.put(key, value, db=state)
        height = _encode_height(candidate.height)
        if candidate.height:
            transaction.put(height, msgpack.packb(undo), db=self._databases[b"undo"])
        if candidate.height >= HISTORY_BLOCKS:
            transaction.delete(_encode_height(candidate.height - HISTORY_BLOCKS), db=self._databases[b"undo"])
        transaction.put(height, encode_block(candidate.block), db=self._databases[b"blocks"])
        transaction.put(candidate.block.hash, height, db=self._databases[b"block_heights"])
        transaction.put(height, candidate.block.hash, db=self._databases[b"hashes"])
        if candidate.height >= NUM_RECENT_BLOCKS:
            transaction.delete(_encode_height(candidate.height - NUM_RECENT_BLOCKS), db=self._databases[b"hashes"])
        receipts = [encode_receipt(receipt) for receipt in candidate.receipts]
        logs = [encode_log(log) for log in candidate.timer_logs]
        if receipts or logs:
            transaction.put(height, msgpack.packb([receipts, logs]), db=self._databases[b"receipts"])
        pack, transactions = msgpack.Packer().pack, self._databases[b"transactions"]
        for index, executed in enumerate(candidate.transactions):
            record = pack([candidate.height, index, executed.sender, executed.raw])
            transaction.put(executed.hash, record, db=transactions)
        transaction.put(_META_HEIGHT, height, db=self._databases[b"meta"])
        transaction.put(_META_APP_HASH, candidate.app_hash, db=self._databases[b"meta"])

    def _archive(self, transaction: lmdb.Transaction, key: bytes) -> None:
        value = transaction.get(key, db=self._databases[b"state"])
        if value is not None:
            transaction.put(key, value, db=self._databases[b"archive"])

    def _grow_if_needed(self) -> None:
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        if (info["map_size"] - used) * _HEADROOM_DIVISOR < info["map_size"]:
            self._env.set_mapsize(info["map_size"] * _GROWTH_FACTOR)


def read_map_usage(directory: Path) -> tuple[int, int]:
    """Return (bytes in use, bytes of the map) of a database that this process has not open; raises StoreMissing."""
    if not has_file(directory):
        raise StoreMissing(directory)
    env = _open_environment(directory, readonly=True, map_size=0, max_readers=_MAX_READERS)  # 0: as the writer chose it
    try:
        info = env.info()
        return (info["last_pgno"] + 1) * env.stat()["psize"], info["map_size"]
    finally:
        env.close()


def _open_environment(directory: Path, **options: Any) -> lmdb.Environment:
    """Open LMDB's files; raises StoreBroken for what is no database, or can't be read, StoreUnread for a dead disk."""
    try:
        short = find_missing_end(directory)
    except TimeoutError as error:
        raise StoreUnread(directory, str(error)) from error
    if short is not None:
        raise StoreTruncated(directory, short.expected_bytes, short.got_bytes)
    try:
        return lmdb.open(str(directory), **options)
    except lmdb.Error as error:
        raise StoreBroken(directory, error) from error


def _open_databases(env: lmdb.Environment, directory: Path, *, is_writer: bool) -> dict[bytes, Any]:
    try:
        return {name: env.open_db(name, create=is_writer) for name in DATABASES}
    except lmdb.NotFoundError as error:
        env.close()
        raise StoreMissing(directory) from error
    except DAMAGE as error:
        env.close()
        raise StoreBroken(directory, error) from error


def _encode_height(height: int) -> bytes:
    return height.to_bytes(_HEIGHT_BYTES, "big")
