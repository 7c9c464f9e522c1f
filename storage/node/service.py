"""One running node: parts put together, started in order, stopped in order (SPEC.md 5).

Start: lock the home -> reconcile -> listen -> follow the chain, collect, register.  It serves reads before the
chain answers.  Stop: take no new request, finish those under way for at most 3 s, then close.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from storage.core.accusation import AccusationPolicy
from storage.core.errors import AddressTaken, StorageError
from storage.node.accuser import Accuser
from storage.node.answerer import Answerer
from storage.node.auditor import Auditor
from storage.node.boot import is_new_boot, note_boot
from storage.node.chain_port import ChainPort, ChallengePort, KeepingPort
from storage.node.collector import Collector
from storage.node.config import NodeConfig
from storage.node.connections import raise_file_limit
from storage.node.daemon_thread import DaemonThread
from storage.node.engine import StoreEngine
from storage.node.homes import bind_home, lock_home
from storage.node.keys import ReceiptKey
from storage.node.ram import RamFolder, check_memory
from storage.node.reconcile import Reconciliation, reconcile
from storage.node.registration import Registration, RegistrationPort, RegistrationState, ensure_registered
from storage.node.repairer import Repairer
from storage.node.scrubber import Scrubber
from storage.node.server import SOCKET_BYTES, Server
from storage.node.shelf import Shelf
from storage.node.status import Keepers, NodeState
from storage.node.trace import MemoryTrace, Trace
from storage.node.upload import Fault, no_fault
from storage.node.watch import ChainWatch
from storage.node.workplace import Workplace

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 3.0
"""For requests under way; the whole stop stays below 5 s."""

DISK_THREADS = 8
"""Threads for hashing, writing and reading; hashing and file calls release the interpreter's lock."""


async def run_node(
    config: NodeConfig,
    chain: ChainPort,
    key: ReceiptKey,
    *,
    registration: RegistrationPort | None = None,
    keeping: KeepingPort | None = None,
    challenges: ChallengePort | None = None,
    address: str | None = None,
    trace: Trace | None = None,
    fault: Fault = no_fault,
    on_listen: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run a node until SIGTERM, SIGINT or ``stop``; ``on_listen`` is told its URL.

    Without ``keeping`` it neither repairs nor audits; without ``challenges`` it does not answer for itself.

    Raises: HomeInUse, WrongChain, NotFunded, WrongReceiptKey, ContractError, AddressTaken.
    """
    config.home.mkdir(parents=True, exist_ok=True)
    with lock_home(config.home):
        node = _Node(
            config, chain, key, keeping=keeping, challenges=challenges, address=address, trace=trace, fault=fault
        )
        try:
            await node.run(registration, on_listen, stop or asyncio.Event())
        finally:
            node.close()


class _Node:
    def __init__(
        self,
        config: NodeConfig,
        chain: ChainPort,
        key: ReceiptKey,
        *,
        keeping: KeepingPort | None,
        challenges: ChallengePort | None,
        address: str | None,
        trace: Trace | None,
        fault: Fault,
    ) -> None:
        self._config = config
        self._key = key
        trace = trace if trace is not None else MemoryTrace()
        self._engine = StoreEngine(
            config.home,
            capacity_bytes=config.capacity_bytes,
            floor_bytes=config.floor_bytes,
            map_bytes=config.map_bytes,
            trace=trace,
            fault=fault,
            certify_seconds=config.certify_seconds,
            shelf=open_shelf(config.cold_bucket, config.cold_bucket_options),
            ram=_open_ram(config),
        )
        found = reconcile(self._engine, is_new_boot=is_new_boot(config.home))
        note_boot(config.home)
        _log_findings(found)
        self._disk_threads = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        # One thread for all questions, so the chain's client has one caller; it never holds up a stop.
        self._chain_thread = DaemonThread("chain")
        self._watch = ChainWatch(chain, self._chain_thread, poll_seconds=config.poll_seconds)
        self._collector = Collector(
            self._engine,
            chain,
            self._watch,
            questions=self._chain_thread,
            disk=self._disk_threads,
            every_blocks=config.collect_every_blocks,
        )
        self._scrubber: Scrubber | None = None
        if config.scrub_bytes_per_second is not None:
            self._scrubber = Scrubber(
                self._engine, disk=self._disk_threads, bytes_per_second=config.scrub_bytes_per_second
            )
        self._repairer: Repairer | None = None
        self._auditor: Auditor | None = None
        if keeping is not None:
            work = Workplace(
                engine=self._engine,
                watch=self._watch,
                chain=keeping,
                key=key.public,
                questions=self._chain_thread,
                disk=self._disk_threads,
            )
            self._repairer = Repairer(
                work,
                bytes_per_second=config.repair_bytes_per_second,
                every_blocks=config.repair_every_blocks,
            )
            self._auditor = Auditor(
                work,
                every_blocks=config.audit_every_blocks,
                chance=random.SystemRandom(),
                accuser=_make_accuser(challenges, config.accusations),
            )
        self._answerer = (
            Answerer(self._engine, challenges, poll_seconds=config.poll_seconds) if challenges is not None else None
        )
        self._state = NodeState(
            engine=self._engine,
            watch=self._watch,
            collector=self._collector,
            key=key,
            address=address,
            found=found,
            keepers=Keepers(
                scrubber=self._scrubber, repairer=self._repairer, auditor=self._auditor, answerer=self._answerer
            ),
        )
        self._server = Server(
            self._state,
            self._disk_threads,
            trace,
            max_uploads=config.max_uploads,
            body_timeout_seconds=config.body_timeout_seconds,
            extra_codes=config.extra_codes,
        )
        self._bulk = self._server.make_bulk()
        self._runner: web.AppRunner | None = None
        self._stop_registration = threading.Event()

    async def run(
        self, port: RegistrationPort | None, on_listen: Callable[[str], None] | None, stop: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        if port is not None:
            self._state.registration = RegistrationState.WAITING_FOR_CHAIN
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        runner = web.AppRunner(
            self._server.make_app(), shutdown_timeout=SHUTDOWN_SECONDS, access_log=None, read_bufsize=SOCKET_BYTES
        )
        await runner.setup()
        raise_file_limit()
        self._runner = runner
        try:
            await self._listen(runner)
            self._state.url = self._config.advertise_url or _get_url(runner, self._config.host)
            log.info("listening on %s, bulk port %s", self._state.url, self._state.bulk_port)
            if on_listen is not None:
                on_listen(self._state.url)
            await self._follow(port, stop)
        finally:
            self._stop_registration.set()
            await self._bulk.close()
            await runner.cleanup()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self._config.host, self._config.port
        try:
            await web.TCPSite(runner, host, port, reuse_address=True).start()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise AddressTaken(host=host, port=port, reason=reason) from error
        bulk_port = self._config.bulk_port
        if bulk_port is None:
            return
        try:
            self._state.bulk_port = await self._bulk.start(host, bulk_port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise AddressTaken(host=host, port=bulk_port, reason=reason) from error

    async def _follow(self, port: RegistrationPort | None, stop: asyncio.Event) -> None:
        """Run the background work until ``stop``; what fails there for good ends the node."""
        tasks = [
            asyncio.create_task(self._watch.run()),
            asyncio.create_task(self._collector.run()),
            asyncio.create_task(self._check_chain()),
            asyncio.create_task(self._register(port)),
            asyncio.create_task(self._answer()),
            asyncio.create_task(self._server.connections.watch(self._get_connections)),
        ]
        if self._scrubber is not None:
            tasks.append(asyncio.create_task(self._scrubber.run()))
        if self._repairer is not None:
            tasks.append(asyncio.create_task(self._repairer.run()))
        if self._auditor is not None:
            tasks.append(asyncio.create_task(self._auditor.run()))
        waiting = asyncio.create_task(stop.wait())
        try:
            pending = {*tasks, waiting}
            while not waiting.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._stop_registration.set()
            for task in (*tasks, waiting):
                task.cancel()
            await asyncio.gather(*tasks, waiting, return_exceptions=True)

    def _get_connections(self) -> Sequence[RequestHandler]:
        return self._runner.server.connections if self._runner is not None and self._runner.server is not None else ()

    async def _check_chain(self) -> None:
        """Refuse to mix two chains in one home."""
        async with self._watch.advanced:
            await self._watch.advanced.wait_for(lambda: self._watch.view is not None)
        assert self._watch.view is not None
        bind_home(self._config.home, self._watch.view.genesis_hash)

    async def _register(self, port: RegistrationPort | None) -> None:
        if port is None:
            return
        address = self._state.address
        assert address is not None, "a node that registers itself has an account"
        wanted = Registration(
            address=address,
            url=self._state.url,
            capacity_bytes=self._config.capacity_bytes,
            key=self._key,
            funds_deadline_seconds=self._config.funds_deadline_seconds,
            poll_seconds=self._config.poll_seconds,
            rejoins=self._config.rejoins,
        )

        def report(state: RegistrationState) -> None:
            self._state.registration = state

        # Its own thread: a transaction that is waited for must hold up neither the questions nor a stop.
        thread = DaemonThread("registration")
        try:
            await asyncio.get_running_loop().run_in_executor(
                thread, lambda: ensure_registered(port, wanted, stop=self._stop_registration, report=report)
            )
        finally:
            thread.shutdown()

    async def _answer(self) -> None:
        if self._answerer is None:
            return
        thread = DaemonThread("challenges")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._answerer.run, self._stop_registration)
        finally:
            thread.shutdown()

    def close(self) -> None:
        self._chain_thread.shutdown()
        self._disk_threads.shutdown(wait=True, cancel_futures=True)
        self._engine.close()


def open_shelf(bucket: str | None, options: tuple[tuple[str, str], ...]) -> Shelf | None:
    """Return the bucket's shelf; None where there is no bucket.

    Raises: ShelfUnavailable for a URL that makes no sense.
    """
    if bucket is None:
        return None
    from storage.node.bucket import open_bucket  # obstore takes its time to load, and most nodes have no bucket

    return open_bucket(bucket, config=dict(options))


def _open_ram(config: NodeConfig) -> RamFolder | None:
    """Return where temporary shards lie; None: in the home.

    Raises: StorageError when there can be no such folder.
    """
    if config.ram is None:
        return None
    try:
        check_memory(config.ram)
        return RamFolder(config.ram, config.home, max_bytes=config.ram_bytes)
    except OSError as error:
        raise StorageError(
            f"no folder for temporary shards in {config.ram}: {error.strerror}; "
            "next: name a mounted memory file system that may be written to, or leave --ram out"
        ) from error


def _make_accuser(port: ChallengePort | None, policy: AccusationPolicy | None) -> Accuser | None:
    return Accuser(port, policy) if port is not None and policy is not None else None


def _get_url(runner: web.AppRunner, host: str) -> str:
    address = runner.addresses[0]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{address[1]}"


def _log_findings(found: Reconciliation) -> None:
    values = found.get_findings()
    if values:
        log.warning("disk and index brought to agree: %s", values)
