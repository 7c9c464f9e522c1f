"""Bring a devnet up: genesis with a faucet, one validator, storage nodes with seats in the committee.

Everything runs from the console scripts that people use themselves.  The supervisor owns the home through a
lock, so two of them never share it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError
from contracts.bindings.keys import address_of, create_key, load_key
from contracts.bindings.sender import Sender
from contracts.bindings.standstill import BlockWatch, read_core_height
from localnet.command import CommandRunner, get_command
from localnet.core.config import (
    CHAIN_FORMAT,
    FIRST_STORAGE_PORT,
    FORMAT_NAME,
    OPERATOR_TOKENS,
    RECORD_NAME,
    WEI_PER_TOKEN,
    DevnetConfig,
    build_alloc,
)
from localnet.core.errors import (
    CannotStart,
    ChainOfOtherFormat,
    ChainStopped,
    ChildExited,
    DevnetAlreadyUp,
    HomeNotUsable,
    LocalnetError,
    NotReadyInTime,
    PortTaken,
    RecordNotWritten,
    StrangerAnswers,
    describe_end,
)
from localnet.core.restarts import Restarts
from localnet.hints import home_option
from localnet.identity import check_is_ours
from localnet.ports import choose_port, is_free
from localnet.process import Child, get_own_id
from localnet.record import DevnetRecord, NamedProcess, Phase, load_record, save_record
from localnet.stopping import StopRequest
from localnet.supervisor import Stage, Supervisor

INIT_DEADLINE_SECONDS = 60.0
"""`chain-node init` writes a few files; importing its libraries on a busy machine is most of it."""
FIRST_BLOCK_DEADLINE_SECONDS = 60.0
"""From starting the validator to its first block; about 3 s on two idle cores."""
SEATS_DEADLINE_SECONDS = 90.0
"""From starting the storage nodes to a committee with all of them: a registration and a storage epoch."""
PORT_ATTEMPTS = 4
"""How often other ports are chosen when somebody binds one between our look and our use of it."""
IN_USE = "in use"
"""What chain-node, CometBFT and storage-node say of a port that somebody has."""
IN_USE_AND_MENDED = "is in use, taking"
"""What chain-node says where it has chosen another already: not what ended it."""
NOTE_AGAIN_SECONDS = 1.0
"""Between two tries to write a record, as on a full disk."""
LOCK_NAME = "lock"
"""Held by the supervisor while it lives."""

Say = Callable[[str], None]
"""Where progress goes, a line at a time."""


def make_home(home: Path) -> None:
    """Make the folder; raises HomeNotUsable."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HomeNotUsable(str(home), error.strerror or str(error)) from error


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Own a home while the block runs; raises DevnetAlreadyUp when another supervisor owns it, HomeNotUsable."""
    make_home(home)
    try:
        descriptor = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HomeNotUsable(str(home), error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode() or "0"
            raise DevnetAlreadyUp(str(home), int(holder), home_option(home)) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def reset_home(home: Path, mark: str = RECORD_NAME) -> None:
    """Remove the contents of a home that is ours, the mark last.

    Raises LocalnetError when the directory holds files and not the file ``mark``.
    """
    names = {path.name for path in home.iterdir()} - {LOCK_NAME, "logs"} if home.exists() else set()
    if names and mark not in names:
        raise LocalnetError(f"{home} holds files but no {mark}: not removing them; next: choose another --home")
    for name in sorted(names | {"logs"}, key=lambda name: name == mark):
        path = home / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class Devnet:
    """A devnet that this process supervises."""

    def __init__(self, config: DevnetConfig, supervisor: Supervisor, stop: StopRequest, say: Say) -> None:
        """Nothing is started yet; the home must be held (`hold_home`)."""
        self.config = config
        self.home = Path(config.home).resolve()
        self._supervisor = supervisor
        self._stop = stop
        self._say = say
        self._commands = CommandRunner(supervisor, stop)
        self._storage: list[Child] = []
        self._storage_ports: list[int] = []
        self._is_new_chain = False
        self._restarts: dict[int, Restarts] = {}
        """By index of the store; only those that have ended once."""
        self._waiting: dict[int, float] = {}
        """Stores that are down, and when (monotonic seconds) they are started again."""
        self._note_at = math.inf
        """When (monotonic seconds) a record that could not be written is tried again."""
        self._ports: set[int] = set()
        self.record = DevnetRecord(
            home=str(self.home),
            phase=Phase.STARTING,
            supervisor=get_own_id(),
            processes=(),
            chain_id="",
            rpc_urls=(),
            public_urls=(),
            storage_urls=(),
            faucet_key=str(self.home / "faucet.key"),
            host=config.host,
            advertise=config.advertise,
            rpc_port=config.rpc_port,
        )

    def start(self) -> DevnetRecord:
        """Bring everything up and return the record, phase READY.

        Raises LocalnetError with the failing step, and Stopped when a person asks to stop.
        """
        save_record(self.record)
        operators = self._provide_keys()
        chain_id = self._provide_genesis(operators)
        self._update(chain_id=chain_id)
        try:
            self._start_chain(operators)
            self._wait_for_block()
            self._fund_operators()
            self._start_storage()
        except (ChildExited, NotReadyInTime) as error:
            if self._is_new_chain:
                raise
            raise ChainStopped(str(self.home), str(error), home_option(self.home)) from error
        self._update(phase=Phase.READY)
        return self.record

    def watch(self) -> None:
        """Run until a person asks to stop (Stopped) or the validator ends (ChildExited).

        A storage node that ends is reported and started again; the others go on meanwhile, as on real machines.
        """
        blocks = None
        if self.record.rpc_url:
            client = ChainClient([self.record.rpc_url], timeout_seconds=1.0)
            blocks = BlockWatch(client.height, client.ask_consensus)
        while True:
            self._stop.pause(0.2)
            self._check_validators()
            if blocks is not None:
                self._note_blocks(blocks)
            now = time.monotonic()
            self._note_again(now)
            for index, store in enumerate(self._storage):
                if store.exit_code is not None and index not in self._waiting:
                    self._plan_restart(index, now)
                elif self._waiting.get(index, math.inf) <= now:
                    del self._waiting[index]
                    self._restart(index)

    def _check_validators(self) -> None:
        for child in self._supervisor.children:
            if child not in self._storage:
                child.check()

    def _note_blocks(self, blocks: BlockWatch) -> None:
        """Say once that the chain stands still, and once that it goes on."""
        found = blocks.look()
        if found == self.record.why:
            return
        self._say(found or "blocks come again")
        with suppress(RecordNotWritten):  # `status` looks itself
            self._update(why=found)

    def _wait_for_block(self) -> None:
        """Return once a block has come since the start: an old chain has a height also when it stands still.

        That it does is said after a few seconds; then whoever it needs is waited for, until somebody asks to stop.
        """
        client = ChainClient([self.record.rpc_url], timeout_seconds=2.0)
        ask = client.ask_consensus
        blocks = BlockWatch(lambda: read_core_height(ask), ask, look_seconds=0.1)
        deadline_seconds = FIRST_BLOCK_DEADLINE_SECONDS if self._is_new_chain else math.inf
        found = ""

        def has_grown() -> bool:
            nonlocal found
            self._check_validators()
            said, found = found, blocks.look() or found
            if found and not said:
                self._say(found)
                self._update(why=found)
            return blocks.has_grown

        try:
            self._stop.wait_until(has_grown, "the second block", deadline_seconds=deadline_seconds)
        finally:
            client.close()
        if found:
            self._say("blocks come again")
            self._update(why="")

    def _restart(self, index: int) -> None:
        """Start a store again; where nothing can be started or noted now, as on a full disk, the others go on."""
        ended = self._storage[index]
        try:
            self._storage[index] = self._start_store(index, self._storage_ports[index])
        except CannotStart as error:
            self._say(str(error))  # a store that is still the one that ended is planned again
            return
        self._supervisor.release(ended)
        try:
            self._note_processes()
        except RecordNotWritten as error:
            self._say(str(error))
            self._note_at = time.monotonic() + NOTE_AGAIN_SECONDS

    def _note_again(self, now: float) -> None:
        """Write the record that could not be written before; where that fails again, nothing is said."""
        if now < self._note_at:
            return
        self._note_at = math.inf
        try:
            self._note_processes()
        except RecordNotWritten:
            self._note_at = now + NOTE_AGAIN_SECONDS

    def _plan_restart(self, index: int, now: float) -> None:
        store = self._storage[index]
        how = describe_end(store.exit_code)
        restarts = self._restarts[index] = self._restarts.get(index, Restarts()).note_end(now)
        at = restarts.compute_start() if self.config.restarts_stores else None
        self._waiting[index] = math.inf if at is None else at
        if at is not None:
            self._say(f"{store.name} {how}; it is started again in {at - now:.0f} s; its log is {store.log}")
            return
        why = f"for the {len(restarts.ended_at)}th time, and stays down" if self.config.restarts_stores else ""
        self._say(
            f"{store.name} {how} {why}; next: read {store.log}, then start the devnet again, its chain goes on: "
            f"localnet down{home_option(self.home)}, localnet up{home_option(self.home)}"
        )

    def begin_stop(self) -> None:
        """Note that the devnet is being stopped in order: whoever ends this process now has not killed it."""
        self._update(phase=Phase.STOPPING)

    def finish(self, phase: Phase, why: str = "") -> None:
        """Note that nothing is up any more."""
        self._update(phase=phase, why=why, processes=())

    def _provide_keys(self) -> tuple[str, ...]:
        _provide_key(self.home / "faucet.key")
        return tuple(address_of(_provide_key(self._operator_key(index))) for index in range(self.config.num_storage))

    def _provide_genesis(self, operators: tuple[str, ...]) -> str:
        marker = self.home / "chain-id"
        if marker.exists():
            self._check_format()
            self._say("the chain of last time goes on (--reset starts a new one)")
            return marker.read_text(encoding="utf-8").strip()
        chain_id = f"archipelago-{secrets.token_hex(4)}"
        alloc = build_alloc(address_of(load_key(self.home / "faucet.key")), operators)
        (self.home / "alloc.json").write_text(json.dumps(alloc, indent=2) + "\n", encoding="utf-8")
        for path in self.home.glob("validator-*"):
            shutil.rmtree(path)
        num_validators = self.config.num_validators
        where = ["init", "--home", str(self.home / "validator-0")]
        if num_validators > 1:
            where = ["testnet", "--home", str(self.home), "--validators", str(num_validators)]
        self._commands.run(
            "chain-init",
            [get_command("chain-node"), *where, "--chain-id", chain_id, "--alloc", str(self.home / "alloc.json")],
            step="write the genesis (chain-node init)",
            deadline_seconds=INIT_DEADLINE_SECONDS,
            next_step="read the log below; localnet up --reset starts from nothing",
            stage=Stage.CHAIN,
        )
        (self.home / FORMAT_NAME).write_text(f"{CHAIN_FORMAT}\n", encoding="utf-8")
        marker.write_text(chain_id + "\n", encoding="utf-8")
        self._is_new_chain = True
        return chain_id

    def _check_format(self) -> None:
        """Refuse a chain that can't go on; one that says nothing is older than the format, and may or may not."""
        path = self.home / FORMAT_NAME
        got = path.read_text(encoding="utf-8", errors="replace").strip()[:40] if path.exists() else str(CHAIN_FORMAT)
        if got != str(CHAIN_FORMAT):
            raise ChainOfOtherFormat(str(self.home), CHAIN_FORMAT, got, home_option(self.home))

    def _start_chain(self, operators: tuple[str, ...]) -> None:
        """Start the validators, again on other ports if somebody was faster on one of them."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                self._start_validators()
                return
            except PortTaken as error:
                if attempt == PORT_ATTEMPTS:
                    raise
                self._say(f"{error.what}: another program took {error.ports} meanwhile; trying others")
            if self._is_new_chain and self.config.num_validators > 1:
                # Several validators know each other by ports that genesis wrote down: nothing is lost by a new one.
                (self.home / "chain-id").unlink()
                self._update(chain_id=self._provide_genesis(operators))

    def _start_validators(self) -> None:
        homes = sorted(self.home.glob("validator-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        if len(homes) != self.config.num_validators:
            raise LocalnetError(
                f"the chain in {self.home} has {len(homes)} validators, expected {self.config.num_validators}; "
                "next: --reset starts a new one"
            )
        ports, validators = [], []
        for index, home in enumerate(homes):
            port = self._choose_port(self.config.rpc_port + index)
            ports.append(port)
            command = [get_command("chain-node"), "start", "--home", str(home)]
            command += ["--rpc-listen", f"{self.config.host}:{port}"]
            validators.append(self._supervisor.start(home.name, command, stage=Stage.CHAIN))
        urls = tuple(f"http://{self.config.local_host}:{port}" for port in ports)
        self._say(
            f"chain {self.record.chain_id}: starting {_count(len(homes), 'validator')}, JSON-RPC at {', '.join(urls)}"
        )
        public = tuple(f"http://{self.config.public_host}:{port}" for port in ports)
        self._update(rpc_urls=urls, public_urls=public, rpc_port=ports[0])
        self._note_processes()
        # One client a URL: each must be ours, not just one of them.
        clients = {url: ChainClient([url], timeout_seconds=2.0) for url in urls}

        def has_blocks() -> bool:
            for validator in validators:
                validator.check()
            try:
                for url, client in clients.items():
                    check_is_ours(client, url, self.record.chain_id)
                    if client.height() < 1:
                        return False
            except BindingError:
                return False
            return True

        try:
            self._stop.wait_until(has_blocks, "the first block", deadline_seconds=FIRST_BLOCK_DEADLINE_SECONDS)
        except (ChildExited, NotReadyInTime, StrangerAnswers) as error:
            for validator in validators:
                self._supervisor.stop_one(validator)
            self._note_processes()
            self._raise_if_taken("the chain", ports, error)
            raise
        finally:
            for client in clients.values():
                client.close()

    def _raise_if_taken(self, what: str, ports: Sequence[int], error: LocalnetError) -> None:
        """Raise PortTaken from ``error`` where a port that was free a moment ago explains it."""
        taken = [port for port in ports if not is_free(self.config.host, port)]
        if taken:
            raise PortTaken(what, f"port {', '.join(map(str, taken))}") from error
        if isinstance(error, StrangerAnswers) or (isinstance(error, ChildExited) and _names_taken_port(error.tail)):
            raise PortTaken(what, "a port") from error

    def _fund_operators(self) -> None:
        """Give money to operators that genesis did not know: a devnet that goes on with more nodes."""
        client = ChainClient(self.record.rpc_urls)
        operators = [address_of(load_key(self._operator_key(index))) for index in range(self.config.num_storage)]
        poor = [operator for operator in operators if client.balance(operator) == 0]
        if poor:
            self._say(f"sending {OPERATOR_TOKENS} tokens to each of {len(poor)} new storage operators")
            faucet = Sender(client, load_key(Path(self.record.faucet_key)))
            for operator in poor:
                self._stop.check()
                faucet.transfer(operator, OPERATOR_TOKENS * WEI_PER_TOKEN)
        client.close()

    def _start_storage(self) -> None:
        for index in range(self.config.num_storage):
            port = self._choose_port(FIRST_STORAGE_PORT + index)
            self._storage.append(self._start_store(index, port))
            self._storage_ports.append(port)
        self._note_stores()
        urls = self.record.storage_urls
        self._say(f"starting {_count(len(urls), 'storage node')} at {', '.join(urls)}")
        client = ChainClient(self.record.rpc_urls)
        seats = moves = 0

        def has_seats() -> bool:
            nonlocal seats, moves
            for child in self._supervisor.children:
                if child not in self._storage:
                    child.check()
            for index, store in enumerate(self._storage):
                try:
                    store.check()
                except ChildExited as error:
                    if moves == PORT_ATTEMPTS:
                        raise
                    self._move_store(index, error)
                    moves += 1
            urls = self.record.storage_urls
            try:
                committee = client.storage.committee(client.storage.epoch())
            except BindingError:
                return False
            seats = sum(1 for seat in committee if seat.url in urls)
            return seats == len(urls)

        self._stop.wait_until(
            has_seats,
            f"{len(urls)} seats in the storage committee",
            deadline_seconds=SEATS_DEADLINE_SECONDS,
            last=lambda: f"{seats} seats",
        )
        client.close()

    def _start_store(self, index: int, port: int) -> Child:
        command = [get_command("storage-node"), "start", "--home", str(self.home / f"storage-{index}")]
        command += [part for chain in self.record.rpc_urls for part in ("--chain", chain)]
        command += ["--listen", f"{self.config.host}:{port}"]
        command += ["--advertise", self._get_store_url(port), "--capacity", self.config.capacity]
        command += ["--key-file", str(self._operator_key(index))]
        return self._supervisor.start(f"storage-{index}", command, stage=Stage.STORAGE)

    def _move_store(self, index: int, error: ChildExited) -> None:
        """Start a store again on another port if its own was taken; raise ``error`` otherwise."""
        store, port = self._storage[index], self._storage_ports[index]
        if is_free(self.config.host, port) and not _names_taken_port(error.tail):
            raise error
        self._supervisor.release(store)
        chosen = self._choose_port(FIRST_STORAGE_PORT + index)
        self._say(f"{store.name}: another program took port {port} meanwhile; trying {chosen}")
        self._storage[index] = self._start_store(index, chosen)
        self._storage_ports[index] = chosen
        self._note_stores()

    def _get_store_url(self, port: int) -> str:
        return f"http://{self.config.public_host}:{port}"

    def _note_stores(self) -> None:
        self._update(storage_urls=tuple(self._get_store_url(port) for port in self._storage_ports))
        self._note_processes()

    def _choose_port(self, preferred: int) -> int:
        port = choose_port(self.config.host, preferred, self._ports)
        self._ports.add(port)
        if port != preferred:
            self._say(f"port {preferred} is busy, taking {port}")
        return port

    def _operator_key(self, index: int) -> Path:
        return self.home / "operators" / f"node-{index}.key"

    def _note_processes(self) -> None:
        """Note who is up: the validators, then the stores by number, also where one was started again."""
        validators = [child for child in self._supervisor.children if child not in self._storage]
        children = [*validators, *(store for store in self._storage if store in self._supervisor.children)]
        self._update(processes=tuple(NamedProcess(name=child.name, id=child.id) for child in children))

    def _update(self, **changes: object) -> None:
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]
        save_record(self.record)


def find_running(home: Path) -> DevnetRecord | None:
    """Return the record of a devnet that is up in ``home``, or None."""
    if not (home / RECORD_NAME).exists():
        return None
    record = load_record(home)
    return record if record.is_up else None


def _names_taken_port(tail: str) -> bool:
    """Say whether the end of a log gives a port that somebody has as the reason."""
    return any(IN_USE in line and IN_USE_AND_MENDED not in line for line in tail.splitlines())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _provide_key(path: Path) -> bytes:
    return load_key(path) if path.exists() else create_key(path)
