"""``chain-node doctor``: what is wrong with a node, and what to do, whether it runs or not.

Each check is a function from what it looks at to findings; none changes anything.  Time and addresses of the outside
(clock, ports, peers) come in as arguments, so that the checks are tested without them.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chain.cometbft import KEY_STEP, VERSION, CometBftMissing, load_keys, load_signed_height
from chain.core.contracts.staking.validators import get_operator, get_validator
from chain.core.light import LightError
from chain.core.types import Address
from chain.documents import BrokenFile
from chain.findings import Finding, ok, problem, warn
from chain.home import (
    HomeError,
    check_agreement,
    find_supervisor,
    load_addresses,
    load_chain_id,
    load_listening,
)
from chain.light_client import CometBftSource, read_moment
from chain.ports import is_free, split_address
from chain.settings import InvalidSettings, load_settings
from chain.store import Reader, StoreBroken, StoreError, StoreMissing, StoreUnread, read_map_usage
from chain.store_file import can_be_read
from chain.supervisor import LOG_NAME, fetch_status
from contracts.bindings.failures import SEPARATOR
from contracts.bindings.standstill import describe_votes, read_votes

MIN_FREE_BYTES = 256 << 20
"""Below it a node will stop soon: CometBFT writes some 50 MB an hour of a busy devnet."""
COMFORTABLE_FREE_BYTES = 4 << 30
MAX_MAP_PERCENT = 90
"""The map grows when a quarter of it is left (`chain.store`): above this it could not."""
MAX_READ_BYTES = 1 << 30
"""Of a database that is read whole: some seconds."""
MAX_CLOCK_SKEW_SECONDS = 1.0
"""CometBFT takes block times from the validators' clocks; more makes proposals late or early."""
STALE_BLOCK_SECONDS = 30.0
"""Without a new block the chain stands still."""
PEER_SECONDS = 2.0
"""For a connection to a peer."""
_KEY_FILES = ("config/priv_validator_key.json", "config/node_key.json")
_VERSION_PATTERN = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


def examine(
    home: Path, *, find_binary: Callable[[], Path], rpc_listen: str, get_time: Callable[[], float] = time.time
) -> list[Finding]:
    """Return everything that was looked at, in the order in which a start would meet it."""
    try:
        chain_id = load_chain_id(home)
    except HomeError as error:
        what, _, step = str(error).partition("; next: ")
        return [problem("home", what, step)]
    pid = find_supervisor(home)
    findings = [ok("home", f"{home}, chain {chain_id}, " + (f"runs as process {pid}" if pid else "not running"))]
    findings += check_writable(home)
    findings += check_binary(find_binary)
    findings += check_settings(home)
    findings += check_key_files(home)
    findings += check_disk(home)
    findings += check_database(home, is_running=pid is not None)
    findings += check_app_and_core(home)
    if pid is None:
        findings += check_ports(home, rpc_listen)
    findings += check_peers(home)
    if pid is not None:
        findings += check_running(home, chain_id, get_time)
        findings += check_validator(home)
    return findings


def check_writable(home: Path) -> Iterator[Finding]:
    """Look whether whoever asks may write where the node does."""
    refused = [path for path in (home, home / "config", home / "data", home / "app") if path.exists()]
    refused = [path for path in refused if not os.access(path, os.W_OK | os.X_OK)]
    if refused:
        step = "run it as the user that owns them, or give them to this one (chown)"
        yield problem("home", f"not writable by this user: {', '.join(map(str, refused))}", step)


def check_binary(find_binary: Callable[[], Path]) -> Iterator[Finding]:
    """Look for CometBFT and ask its version."""
    try:
        binary = find_binary()
        done = subprocess.run([str(binary), "version"], capture_output=True, text=True, timeout=10, check=False)
    except CometBftMissing as error:
        yield problem("CometBFT", str(error).partition("; next: ")[0], "build it: python -m localnet.cometbft")
        return
    except (OSError, subprocess.TimeoutExpired) as error:
        yield problem("CometBFT", f"it can't be run: {error}", "set COMETBFT_BIN to a binary for this machine")
        return
    found = _VERSION_PATTERN.search(done.stdout)
    wanted = ".".join(VERSION.split(".")[:2])
    if found is None or f"{found[1]}.{found[2]}" != wanted:
        said = (done.stdout or done.stderr).strip()[:80]
        yield problem("CometBFT", f"{binary} is version {said!r}, expected {wanted}.x", f"install CometBFT {VERSION}")
    else:
        yield ok("CometBFT", f"{binary}, version {found[0]}")


def check_settings(home: Path) -> Iterator[Finding]:
    """Read both configuration files."""
    try:
        load_settings(home)
        load_addresses(home)
    except (InvalidSettings, HomeError) as error:
        what = str(error).partition("; next: ")[0]
        yield problem("configuration", what, f"mend the file under {home}/config")
    else:
        yield ok("configuration", "config.toml and app.toml can be read")


def check_key_files(home: Path) -> Iterator[Finding]:
    """Look whether others may read the keys."""
    for name in _KEY_FILES:
        path = home / name
        if not path.exists():
            yield problem("keys", f"{path} is missing", KEY_STEP)
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield problem(
                "keys", f"{path} has mode {mode:04o}, expected 0600: others can sign for you", f"chmod 600 {path}"
            )
        else:
            yield ok("keys", f"{path.name} is yours alone (mode {mode:04o})")
    try:
        load_keys(home)
    except BrokenFile as error:
        if error.path.exists():  # a missing one was named above
            yield _describe(error)
    try:
        load_signed_height(home)
    except BrokenFile as error:
        yield _describe(error)


def _describe(error: BrokenFile) -> Finding:
    what, _, step = str(error).partition("; next: ")
    return problem("keys", what, step)


def check_disk(home: Path, free_bytes: int | None = None) -> Iterator[Finding]:
    """Look at the space that is left."""
    free = shutil.disk_usage(home).free if free_bytes is None else free_bytes
    text = f"{free / 1e9:.1f} GB free under {home}"
    step = f"free space, or keep fewer blocks: retain_blocks in {home}/config/app.toml"
    if free < MIN_FREE_BYTES:
        yield problem("disk", f"{text}, expected at least {MIN_FREE_BYTES / 1e9:.1f} GB", step)
    elif free < COMFORTABLE_FREE_BYTES:
        yield warn("disk", f"{text}, {COMFORTABLE_FREE_BYTES / 1e9:.1f} GB would be comfortable", step)
    else:
        yield ok("disk", text)


def check_database(home: Path, *, is_running: bool = False) -> Iterator[Finding]:
    """Look how full the LMDB map is, whether the disk lets it grow, and whether all of it can be read.

    A running node writes meanwhile, and a large database takes long: of those the last is not asked.
    """
    try:
        used, size = read_map_usage(home / "app")
    except StoreMissing:
        yield ok("database", "none yet: the first start makes it")
        return
    except (StoreBroken, StoreUnread) as error:
        yield _explain(error)
        return
    try:
        is_whole = is_running or used > MAX_READ_BYTES or can_be_read(home / "app")
    except TimeoutError as error:
        yield _explain(StoreUnread(home / "app", str(error)))
        return
    if not is_whole:
        yield _explain(StoreBroken(home / "app", ValueError("pages of it are damaged")))
        return
    percent = 100 * used / size
    text = f"{used / 1e6:.0f} MB of a map of {size / 1e6:.0f} MB ({percent:.0f} %)"
    free = shutil.disk_usage(home).free
    if percent > MAX_MAP_PERCENT:
        yield problem("database", f"{text}: nearly full", "restart the node: it grows the map at start")
    elif free < used:
        yield warn("database", f"{text}, and {free / 1e6:.0f} MB of disk are free", "free space before it doubles")
    else:
        yield ok("database", text)


def _explain(error: StoreError) -> Finding:
    what, _, step = str(error).partition("; next: ")
    return problem("database", what, step)


def check_app_and_core(home: Path) -> Iterator[Finding]:
    """Say whether the application and CometBFT can go on together."""
    try:
        check_agreement(home)
    except BrokenFile:
        return  # told with the keys
    except HomeError as error:
        what, _, step = str(error).partition("; next: ")
        yield problem("app and core", what, step)
    else:
        yield ok("app and core", "of the same chain, the application not ahead")


def check_ports(home: Path, rpc_listen: str) -> Iterator[Finding]:
    """Look whether a start would find its ports free."""
    try:
        addresses, has_peers = load_addresses(home)
    except HomeError:
        return
    wanted = [("CometBFT RPC", addresses.rpc), ("CometBFT p2p", addresses.p2p), ("JSON-RPC", rpc_listen)]
    for name, address in wanted:
        host, port = split_address(address)
        if port == 0 or is_free(host, port):
            yield ok("ports", f"{name} {address} is free")
        elif name == "JSON-RPC":
            yield problem("ports", f"{name} {address} is in use", "stop what listens, or choose with --rpc-listen")
        elif has_peers:
            yield problem("ports", f"{name} {address} is in use, and peers rely on it", "stop what listens there")
        else:
            yield warn("ports", f"{name} {address} is in use", "a start takes another; give your peers the new one")


def check_peers(home: Path, seconds: float = PEER_SECONDS) -> Iterator[Finding]:
    """Try to reach each configured peer."""
    try:
        document = tomllib.loads((home / "config" / "config.toml").read_text())
    except (OSError, ValueError):
        return
    peers = [each for each in str(document.get("p2p", {}).get("persistent_peers", "")).split(",") if each]
    unreachable = []
    for peer in peers:
        host, _, port = peer.partition("@")[2].rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=seconds).close()
        except (OSError, ValueError) as error:
            unreachable.append(f"{host}:{port} ({error})")
    if not peers:
        yield ok("peers", "none are configured: this validator is alone, or is dialled by others")
    elif unreachable:
        step = "ask their operators; check addresses and firewalls, then persistent_peers in config/config.toml"
        make = problem if 3 * len(unreachable) >= len(peers) + 1 else warn
        yield make("peers", f"{len(unreachable)} of {len(peers)} can't be reached: {', '.join(unreachable)}", step)
    else:
        yield ok("peers", f"all {len(peers)} can be reached")


def check_running(home: Path, chain_id: str, get_time: Callable[[], float]) -> Iterator[Finding]:
    """Ask the running core which chain it follows, whether it has caught up, and what time its blocks have."""
    try:
        listening = load_listening(home)
    except BrokenFile:
        listening = None
    status = fetch_status(listening.cometbft_url) if listening is not None else None
    log_path = home / "logs" / LOG_NAME
    if listening is None or status is None:
        where = listening.cometbft_url if listening is not None else "any address"
        yield problem("running", f"CometBFT doesn't answer at {where}", f"read {log_path}")
        return
    source = CometBftSource(listening.cometbft_url)
    yield from check_status(status, chain_id, get_time(), log_path, explain=lambda: _explain_standstill(source))


def _explain_standstill(source: CometBftSource) -> str:
    """Say whose votes are missing; empty where the core doesn't tell."""
    try:
        return describe_votes(read_votes(source.ask)).partition(SEPARATOR)[0]
    except (LightError, ValueError):
        return ""


def check_status(
    status: dict[str, Any], chain_id: str, now: float, log_path: Path, *, explain: Callable[[], str] = lambda: ""
) -> Iterator[Finding]:
    """Judge CometBFT's /status."""
    network, sync = str(status["node_info"]["network"]), status["sync_info"]
    height = int(sync["latest_block_height"])
    if network != chain_id:
        step = "stop what listens there: it is another node"
        yield problem("chain id", f"the core follows {network}, genesis.json says {chain_id}", step)
        return
    yield ok("chain id", network)
    moment = read_moment(str(sync["latest_block_time"]))
    age = now - moment.seconds - moment.nanos / 1e9
    if sync["catching_up"]:
        yield warn("blocks", f"catching up, at height {height}", "wait; if it stays there, look at its peers")
    elif age > STALE_BLOCK_SECONDS:
        step = f"more than two thirds of the power must be up: ask the other validators; then {log_path}"
        why = explain()
        what = f"the newest, {height}, is {age:.0f} s old: the chain stands still, or this clock is ahead"
        yield problem("blocks", f"{what}; {why}" if why else what, step)
    else:
        yield ok("blocks", f"height {height}, {max(age, 0.0):.1f} s old")
    if age < -MAX_CLOCK_SKEW_SECONDS:
        step = "set this machine's clock (chronyc tracking, timedatectl): the blocks' time is the validators' median"
        yield problem(
            "clock", f"it is {-age:.1f} s behind the newest block, expected at most {MAX_CLOCK_SKEW_SECONDS}", step
        )
    else:
        yield ok("clock", "not behind the blocks")


def check_validator(home: Path) -> Iterator[Finding]:
    """Say whether this node's key is in the set, and whether it is jailed."""
    try:
        address = Address(bytes.fromhex(load_keys(home).validator_address))
        with Reader(home / "app") as reader, reader.snapshot() as view:
            if view.is_empty:
                return
            found = get_validator(view.state, get_operator(view.state, address))
            height = view.height
    except (StoreError, BrokenFile):
        return
    if found is None:
        yield ok("validator", "this node's key backs no validator: it follows the chain")
    elif found.jailed_until:
        step = "find out why it signed twice (two nodes with one key?), then Staking.unjail() from its operator"
        yield problem("validator", f"jailed until block {found.jailed_until}, the chain is at {height}", step)
    else:
        yield ok("validator", "in the set, not jailed")


def to_documents(findings: list[Finding]) -> list[dict[str, str]]:
    """Return findings as JSON values."""
    return [
        {"subject": each.subject, "level": each.level.value, "what": each.what, "next": each.next_step}
        for each in findings
    ]
