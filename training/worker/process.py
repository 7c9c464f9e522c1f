"""``trainer join``: the real chain, stores and engine put together around one home folder."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from contracts.bindings.amounts import format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ContractError
from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.keys import address_of
from contracts.bindings.sender import Sender
from contracts.bindings.types import Member, MemberState, RunInfo, RunState
from da.blocking import BlobClient
from training.core.errors import GroupEndedError
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.group.shape import GroupConfig
from training.memory import describe_short_disk, plan_needs
from training.worker.asking import RETRY_SECONDS, Answer, Interrupted, ask_patiently
from training.worker.durable import remove_half_written, save_durable
from training.worker.duties import CLIENT_NAME
from training.worker.engine_rules import EngineRules
from training.worker.errors import (
    Fatal,
    GroupEnded,
    HomeUnusable,
    KeyInUse,
    NotAllowedHere,
    NotFunded,
    WrongRecipe,
    WrongRun,
    WrongSoftware,
)
from training.worker.homes import TOKENIZER_FILE, list_homes
from training.worker.journal import load_journal
from training.worker.loop import LoopEnd, Patience
from training.worker.metrics import Metrics, MetricsSink
from training.worker.metrics_sinks import JsonLines, Prometheus, TensorBoard, Thinned
from training.worker.opening import check_usable, open_journal
from training.worker.pace import Pace
from training.worker.sending import TrainingSender
from training.worker.session import Summary, WorkerParts, describe_stop, run_worker, summarise
from training.worker.stores import CommitteeStores
from training.worker.trace import Trace

LOG = logging.getLogger("trainer")

STORE_DEADLINE_SECONDS = 10.0
"""For one blob: a few seconds of a round, so that a dead node costs no round."""

FEE_RESERVE_WEI = 10**16
"""Kept for fees beside the bond: some ten thousand transactions at a devnet's prices."""


MAX_CLIENTS_SHOWN = 8
"""Of the names that members give their software; each may write its own."""

MAX_CLIENT_CHARACTERS = 64
"""Of such a name; the chain takes as many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig:
    """What a person says to ``trainer join``."""

    chain_urls: tuple[str, ...]
    """JSON-RPC, one or several."""
    run: int
    """The run's number."""
    private_key: bytes
    """Worker key, 32 bytes."""
    home: Path | None
    """Folder of this worker; None: a folder of the user's home by chain, run and address."""
    data_file: Path | None
    """Own text instead of the recipe's."""
    num_threads: int
    """CPU threads of torch, 0 for its own choice."""
    device: str
    """cpu, cuda, cuda:N or auto."""
    evaluation_interval: int
    """Versions between two recorded held-out losses, 0 for never."""
    patience: Patience
    """When to give up."""
    tokenizer_file: Path | None = None
    """The run's tokenizer.json, where the recipe names one."""
    num_stages: int = 1
    """Processes that the layers are spread over."""
    num_shards: int = 1
    """Processes that every weight is spread over (FSDP)."""
    precision: str = "auto"
    """fp32, bf16, or auto: bf16 on a GPU that has it."""
    num_micro_batches: int = 0
    """Of a step, without shards; 0: chosen with stages, else one."""
    metrics_port: int | None = None
    """Prometheus: port to serve on, 0 for a free one; None: no server."""
    metrics_host: str = "127.0.0.1"
    """Prometheus: address to serve on."""
    tensorboard_folder: Path | None = None
    """Event files go here; None: none are written."""


def join_and_train(config: JoinConfig, stop: threading.Event) -> Summary:
    """Join and train until the run has finished or ``stop`` is set; see ``run_worker``.

    After a stop no transaction is sent, so one that comes before the worker has joined costs nothing.
    """
    address = address_of(config.private_key)
    if config.num_threads > 0:
        torch.set_num_threads(config.num_threads)
    with ChainClient(config.chain_urls) as client:
        try:
            summary = _join_and_train(client, address, config, stop)
        except Interrupted:
            summary = summarise(client, config.run, address, LoopEnd.STOPPED)
    if summary.end is LoopEnd.STOPPED:
        LOG.info("%s", describe_stop(summary))
    return summary


def _join_and_train(client: ChainClient, address: str, config: JoinConfig, stop: threading.Event) -> Summary:
    """Find the run and a folder of our own, then work there. Raises `Interrupted` on a stop before that."""
    with contextlib.ExitStack() as held:
        is_held = config.home is not None and os.path.exists(config.home)  # False where it can't be seen
        if config.home is not None and is_held:
            held.enter_context(hold_home(config.home))
        seconds = config.patience.chain_seconds
        first_seconds = seconds if has_been_there(config, address) else config.patience.first_contact_seconds
        run = ask_patiently(
            lambda: _read_run(client, config),
            min(seconds, first_seconds),
            stop,
            is_first=True,
            next_step="check --chain and that its node runs, then start again; to wait longer for a chain that was "
            "never reached, add --first-patience SECONDS",
        )
        genesis_hash = ask_patiently(client.genesis_hash, seconds, stop)
        home = config.home or choose_home(genesis_hash, config.run, address)
        if not is_held:
            held.enter_context(hold_home(home))
        # Another's home is refused before anything is written or paid.
        open_journal(home, genesis_hash, run, address)
        with hold_key(genesis_hash, config.run, address, home):
            return _work_at(home, client, run, address, config, stop)


def choose_home(genesis_hash: bytes, run: int, address: str) -> Path:
    """Return the default folder of a worker: by chain, run and key; an older one by run and key if it is this chain's.

    The numbers of runs begin anew with each chain, as after `localnet up --reset`.
    """
    folder = Path.home() / ".archipelago"
    older = folder / f"run-{run}" / address.lower()
    with contextlib.suppress(ValueError, OSError):  # what can't be read is nobody's: it is left alone
        contents = load_journal(older)
        if contents is not None and contents.genesis_hash == genesis_hash.hex():
            return older
    return folder / f"chain-{genesis_hash.hex()[:8]}" / f"run-{run}" / address.lower()


def has_been_there(config: JoinConfig, address: str) -> bool:
    """Say whether this worker has been in a run of that number before: then its chain is away, not mistyped."""
    homes = [config.home] if config.home else list_homes(config.run, address)
    return any((home / "journal.json").exists() for home in homes)


def _work_at(
    home: Path,
    client: ChainClient,
    run: RunInfo,
    address: str,
    config: JoinConfig,
    stop: threading.Event,
) -> Summary:
    """Join and train in a folder and for a key that nobody else has."""

    def ask(question: Callable[[], Answer]) -> Answer:
        return ask_patiently(question, config.patience.chain_seconds, stop)

    blobs = BlobClient(deadline_seconds=STORE_DEADLINE_SECONDS)
    pace = Pace()
    metrics = _open_metrics(config, home, address)
    trace = Trace(home / "trace.jsonl", (pace.note, metrics.note))
    try:
        ask(lambda: _check_may_join(client, config, run, address))
        where = ask(client.describe_chain)
        _wait_for_money(
            lambda: ask(lambda: _compute_lack(client, config, run, address)), config, address, stop, where=where
        )
        _warn_of_other_software(ask(lambda: client.training.members(config.run)), address)
        text = ask(lambda: client.training.recipe(config.run)).decode("utf-8", errors="replace")
        rules = _create_rules(text, config, run, address, stop)
        if config.tokenizer_file is not None:
            _keep_tokenizer(config.tokenizer_file, home / TOKENIZER_FILE)
        if short := describe_short_disk(plan_needs(rules.recipe), home, shutil.disk_usage(home).free):
            LOG.warning("%s", short)
        about = f"recipe {rules.recipe.name}, on {rules.device}; losses are {rules.loss_unit}"
        LOG.info("run %d: %s, %s", run.run, address, about)
        parts = WorkerParts(
            chain=client,
            sender=TrainingSender(Sender(client, config.private_key)),
            payloads=CommitteeStores(client, blobs),
            rules=rules,
            trace=trace,
            home=home,
            run=config.run,
            patience=config.patience,
            evaluation_interval=config.evaluation_interval,
            pace=pace,
        )
        try:
            with explain_memory(rules.device):
                summary = run_worker(parts, stop)
            rules.check()
            return summary
        except GroupEndedError as error:
            raise GroupEnded(str(error), next_step="see the lines above for its reason, then start again") from error
        finally:
            rules.close()
    finally:
        trace.close()
        metrics.close()
        blobs.close()


def _keep_tokenizer(given: Path, kept: Path) -> None:
    """Copy the run's tokenizer into the home, for `trainer checkpoint pull`; training goes on without the copy."""
    try:
        save_durable(kept, given.read_bytes())
    except OSError as error:
        LOG.warning("no copy of the tokenizer in %s: %s", kept, error.strerror)


@contextmanager
def explain_memory(device: str) -> Iterator[None]:
    """Turn what torch says when memory ends into a message with a next step: activations are only estimated before.

    Raises `Fatal`.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_cpu_full = "DefaultCPUAllocator" in str(error)  # a plain RuntimeError, unlike a GPU's
        if not (is_cpu_full or isinstance(error, torch.OutOfMemoryError | MemoryError)):
            raise
        raise Fatal(
            f"no memory is left on {device}: {' '.join(str(error).split())[:200]}",
            next_step="use more --stages or --shards, --precision bf16, another --device, or end what else uses it; "
            "the membership and what was saved are kept",
        ) from error


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Keep a second process out of a home folder for as long as the block runs; one that can't be used is named.

    Raises `Fatal`.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Fatal(
            f"--home {home} can't be a folder: {error.strerror}", next_step="name another folder, on a disk with room"
        ) from error
    try:
        lock = (home / "lock").open("a", encoding="ascii")
    except OSError as error:
        raise HomeUnusable(str(home), str(home / "lock"), error.strerror or str(error)) from error
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Fatal(
                f"another worker uses {home}", next_step="stop it first, or give this worker its own --home and key"
            ) from error
        check_usable(home)
        remove_half_written(home)
        yield


@contextmanager
def hold_key(genesis_hash: bytes, run: int, address: str, home: Path) -> Iterator[None]:
    """Keep a second process with the same key out of the same run, on this machine, whatever its home.

    On two machines the chain decides: of each round the first update stands.  Raises `Fatal`.
    """
    folder = Path.home() / ".archipelago" / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{genesis_hash.hex()[:16]}-{run}-{address.lower()}").open("a+", encoding="utf-8")
    except OSError as error:
        LOG.warning("a second worker with this key would not be noticed: %s: %s", folder, error.strerror)
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise KeyInUse(address, run, file.read().strip()) from error
        file.truncate(0)
        file.write(f"{home} (process {os.getpid()})")
        file.flush()
        yield


def check_software(needed: str, got: str) -> None:
    """Refuse a run whose recipe asks for a newer version. Raises `WrongSoftware`."""
    if needed and _read_version(got) < _read_version(needed):
        raise WrongSoftware(needed, got)


def _read_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at its end: 0.2.0.dev3 is (0, 2)."""
    numbers = [int(part) for part in re.match(r"[0-9.]*", text)[0].split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _warn_of_other_software(members: Sequence[Member], address: str) -> None:
    """Say what the other live members run where it isn't what we run: votes of two versions may differ."""
    live = (MemberState.JOINED, MemberState.READY, MemberState.ACTIVE)
    others = {member.client for member in members if member.state in live and member.worker != address}
    if names := sorted(show_foreign(name, MAX_CLIENT_CHARACTERS) for name in others - {CLIENT_NAME}):
        more = f" and {len(names) - MAX_CLIENTS_SHOWN} more" if len(names) > MAX_CLIENTS_SHOWN else ""
        LOG.warning("other members run %s%s, this worker %s", ", ".join(names[:MAX_CLIENTS_SHOWN]), more, CLIENT_NAME)


def _open_metrics(config: JoinConfig, home: Path, address: str) -> Metrics:
    lines = JsonLines(home / "metrics.jsonl", time.time())
    sinks: list[MetricsSink] = [Thinned(lines)]
    if config.metrics_port is not None:
        labels = {"run": str(config.run), "worker": address}
        sinks.append(Prometheus(config.metrics_host, config.metrics_port, labels))
    if config.tensorboard_folder is not None:
        sinks.append(Thinned(TensorBoard(config.tensorboard_folder)))
    return Metrics(sinks, first_step=lines.last_step)


def _read_run(client: ChainClient, config: JoinConfig) -> RunInfo:
    try:
        run = client.training.run(config.run)
    except ContractError as error:
        raise WrongRun(f"there is no run {config.run}: {error.text}", next_step="trainer run list") from error
    if run.state is RunState.NONE:
        raise WrongRun(f"there is no run {config.run}", next_step="trainer run list")
    if run.params.is_sealed:
        raise Fatal("sealed runs are not supported yet", next_step="join a run that is not sealed")
    return run


def _create_rules(text: str, config: JoinConfig, run: RunInfo, address: str, stop: threading.Event) -> EngineRules:
    digest = compute_recipe_digest(text)
    if digest != run.recipe_digest:
        raise WrongRecipe(run.recipe_digest, digest)
    check_software(parse_recipe(text).software, metadata.version("archipelago"))
    group = GroupConfig(
        num_stages=config.num_stages,
        num_shards=config.num_shards,
        num_micro_batches=config.num_micro_batches,
        num_threads=config.num_threads,
    )
    return EngineRules(
        text,
        member=bytes.fromhex(address[2:]),
        device=config.device,
        data_file=config.data_file,
        tokenizer_file=config.tokenizer_file,
        group=group,
        precision=config.precision,
        on_end=stop.set,
    )


def _check_may_join(client: ChainClient, config: JoinConfig, run: RunInfo, address: str) -> None:
    """Refuse early, by name, what the contract would refuse."""
    member = client.training.member(config.run, address)
    is_member = member.state not in (MemberState.NONE, MemberState.LEFT)
    if run.state is RunState.FINISHED and not is_member:
        raise WrongRun(
            f"run {config.run} has finished", next_step=f"take its model: trainer checkpoint pull --run {config.run}"
        )
    if run.params.is_allow_listed and not is_member and not client.training.is_allowed(config.run, address):
        raise NotAllowedHere(
            f"run {config.run} is for listed workers, {address} is none",
            next_step=f"ask the owner for: trainer run allow {address} --run {config.run} --key-file OWNER.key",
        )


def _compute_lack(client: ChainClient, config: JoinConfig, run: RunInfo, address: str) -> tuple[int, int]:
    """Return what the key holds and what bond and fees need, wei."""
    member = client.training.member(config.run, address)
    is_member = member.state not in (MemberState.NONE, MemberState.LEFT)
    needed = FEE_RESERVE_WEI + (0 if is_member else max(0, run.params.member_bond - member.bond))
    return client.balance(address), needed


def _wait_for_money(
    read: Callable[[], tuple[int, int]], config: JoinConfig, address: str, stop: threading.Event, *, where: str = ""
) -> None:
    """Wait until the key holds enough, as long as the patience lasts. Raises `NotFunded`, `Interrupted`."""
    deadline = time.monotonic() + config.patience.chain_seconds
    has_said = False
    while True:
        balance, needed = read()
        if balance >= needed:
            return
        held = f"{format_tokens(balance)} {where}".rstrip()
        lack = f"{address} holds {held}, needs {format_tokens(needed)} for bond and fees"
        if not has_said:
            LOG.warning(
                "waiting up to %.0f s for money, on a devnet: localnet fund %s (%s)",
                config.patience.chain_seconds,
                address,
                lack,
            )
            has_said = True
        if stop.wait(RETRY_SECONDS):
            raise Interrupted("asked to stop")
        if time.monotonic() > deadline:
            raise NotFunded(lack, next_step=f"send it tokens (on a devnet: localnet fund {address}), then start again")
