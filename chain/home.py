"""A node's directory: what lies where, and whether application and core agree before they are started.

``config`` and ``data`` are CometBFT's, ``app`` is the chain's LMDB, ``logs/node.log`` is what all its processes say,
``run.json`` says where the running node listens, and ``node.lock`` is held while it runs.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain.cometbft import (
    KEY_STEP,
    Keys,
    StateSyncSource,
    Timing,
    create_keys,
    load_keys,
    load_signed_height,
    write_config,
    write_genesis,
)
from chain.core.contracts.staking.validators import make_registration_message
from chain.core.genesis import parse_genesis
from chain.core.types import Address
from chain.documents import HomeError as HomeError
from chain.documents import reading
from chain.store import Reader, StoreBroken, StoreError, StoreMissing, StoreUnread

ADDRESS_BYTES = 20
"""Of an account."""

CONFIG_STEP = "mend it, or take the one of a new home (`chain-node init`)"
"""For config.toml."""

LOCK_NAME = "node.lock"
"""Held by the supervisor while it lives."""

FIRST_EVM_CHAIN_ID = 1_000_000
"""Devnets take ids from here on, far from the registered ones."""


class HomeMissing(HomeError):
    """Nothing was initialised there."""

    def __init__(self, home: Path) -> None:
        """Keep the path."""
        super().__init__(f"{home} is no chain node's home; next: `chain-node init --home {home}`")


class HomeExists(HomeError):
    """Something was initialised there already."""

    def __init__(self, home: Path, chain_id: str) -> None:
        """Keep the chain."""
        super().__init__(
            f"{home} belongs to chain {chain_id} already; next: take another --home, or `chain-node reset` it (with"
            " --state it stays on its chain)"
        )


class AppOfAnotherChain(HomeError):
    """The application's database was made by another genesis."""

    def __init__(self, home: Path, expected: str, got: str) -> None:
        """Keep both chain ids."""
        super().__init__(
            f"{home}/app holds chain {got}, genesis.json says {expected}; next: remove {home}/app to replay this "
            "chain from its blocks, or put back the genesis.json of the other"
        )


class FreshCore(HomeError):
    """The application has blocks, the core has none."""

    def __init__(self, home: Path, app_height: int) -> None:
        """Keep the height."""
        super().__init__(
            f"{home}/app is at height {app_height}, but CometBFT's {home}/data is empty (height 0); next: put back "
            f"its data, or remove {home}/app as well to start over, or run `chain-node reset --home {home}` for a new "
            "chain"
        )


class AppAheadOfCore(HomeError):
    """The application has blocks that the core doesn't know."""

    def __init__(self, home: Path, core_height: int, app_height: int) -> None:
        """Keep both heights."""
        super().__init__(
            f"{home}/app is at height {app_height}, CometBFT only at {core_height}: its data is from an older backup; "
            f"next: remove {home}/app, and the blocks are replayed from 1"
        )


class AppBelowBase(HomeError):
    """The application is empty or old, and the blocks it needs were pruned."""

    def __init__(self, home: Path, base_height: int, app_height: int) -> None:
        """Keep both heights."""
        super().__init__(
            f"{home}/app is at height {app_height}, CometBFT's blocks begin at {base_height}: older ones were pruned or"
            " never fetched; next: `chain-node reset --state --server URL --server URL` takes a snapshot of other"
            " nodes"
        )


class ApplicationTooOld(HomeError):
    """The chain, or its CometBFT, asks for what this software doesn't know."""

    def __init__(self, home: Path, words: str) -> None:
        """Keep what the application said."""
        what, _, step = words.partition("; next: ")
        super().__init__(f"{home}: {what}; next: {step or 'install the release that the other nodes run'}")
        self.words = words


class HomeNotWritable(HomeError):
    """The node can't write into its own directory."""

    def __init__(self, path: Path, reason: str) -> None:
        """Keep the path."""
        super().__init__(f"{path} can't be written: {reason}; next: give the directory to the user that runs the node")
        self.path = path


class NodeRuns(HomeError):
    """A node of this home runs already."""

    def __init__(self, home: Path, pid: int) -> None:
        """Keep its process."""
        super().__init__(f"the node of {home} runs (process {pid}); next: stop it first: kill {pid}")
        self.pid = pid


class AddressInUse(HomeError):
    """Something else listens where this node should."""

    def __init__(self, address: str, next_step: str) -> None:
        """Keep the address."""
        super().__init__(f"{address} is in use; next: {next_step}")
        self.address = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a running node can be reached."""

    cometbft_url: str
    """CometBFT's own RPC."""
    rpc_url: str
    """Ethereum JSON-RPC."""
    supervisor_pid: int
    """Process that supervises the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """``host:port`` of one node."""

    rpc: str
    """CometBFT's RPC."""
    p2p: str
    """CometBFT's peers."""


def create_home(
    home: Path, *, chain_id: str, app_state: Mapping[str, Any], addresses: Addresses, timing: Timing, time: datetime
) -> Keys:
    """Initialise a chain of one validator; raises HomeExists."""
    return create_network(
        [home], chain_id=chain_id, app_state=app_state, addresses=[addresses], timing=timing, time=time
    )[0]


def create_network(
    homes: Sequence[Path],
    *,
    chain_id: str,
    app_state: Mapping[str, Any],
    addresses: Sequence[Addresses],
    timing: Timing,
    time: datetime,
) -> list[Keys]:
    """Initialise one home a validator, all with the same genesis and each with the others as peers."""
    for home in homes:
        if (home / "config" / "genesis.json").exists():
            raise HomeExists(home, load_chain_id(home))
    keys = [create_keys(home) for home in homes]
    peers = [f"{key.node_id}@{address.p2p}" for key, address in zip(keys, addresses, strict=True)]
    for index, home in enumerate(homes):
        write_config(
            home,
            moniker=f"validator-{index}",
            rpc_listen=addresses[index].rpc,
            p2p_listen=addresses[index].p2p,
            persistent_peers=[peer for other, peer in enumerate(peers) if other != index],
            timing=timing,
        )
    write_genesis(homes, keys, chain_id=chain_id, app_state=app_state, time=time)
    return keys


def join_network(
    home: Path,
    *,
    genesis: Mapping[str, Any],
    addresses: Addresses,
    peers: Sequence[str],
    timing: Timing,
    state_sync: StateSyncSource | None,
) -> Keys:
    """Initialise the home of one more node of a running chain; raises HomeExists."""
    if (home / "config" / "genesis.json").exists():
        raise HomeExists(home, load_chain_id(home))
    keys = create_keys(home)
    write_config(
        home,
        moniker=f"node-{keys.node_id[:8]}",
        rpc_listen=addresses.rpc,
        p2p_listen=addresses.p2p,
        persistent_peers=peers,
        timing=timing,
        state_sync=state_sync,
    )
    (home / "config" / "genesis.json").write_text(json.dumps(genesis, indent=2) + "\n")
    return keys


def sign_registration(home: Path, operator: bytes) -> tuple[bytes, bytes]:
    """Return (public key, signature) with which a home's validator key names an operator."""
    if len(operator) != ADDRESS_BYTES:
        raise HomeError(f"operator address has {len(operator)} bytes, expected {ADDRESS_BYTES}; next: give 0x..")
    genesis = load_genesis(home)
    app_state = json.dumps(genesis["app_state"]).encode()
    genesis_hash = parse_genesis(genesis["chain_id"], app_state).parameters.genesis_hash
    path = home / "config" / "priv_validator_key.json"
    with reading(path, KEY_STEP):
        document = json.loads(path.read_text())
        private = Ed25519PrivateKey.from_private_bytes(base64.b64decode(document["priv_key"]["value"])[:32])
    message = make_registration_message(genesis_hash, Address(operator))
    return private.public_key().public_bytes_raw(), private.sign(message)


def compute_evm_chain_id(chain_id: str) -> int:
    """Return the EVM chain id that belongs to a CometBFT chain id, so that a new chain refuses old transactions."""
    return FIRST_EVM_CHAIN_ID + int.from_bytes(hashlib.sha256(chain_id.encode()).digest()[:4], "big") // 4


def load_genesis(home: Path) -> dict[str, Any]:
    """Read genesis.json; raises HomeMissing or BrokenFile."""
    path = home / "config" / "genesis.json"
    if not path.exists():
        raise HomeMissing(home)
    with reading(path, "put back the chain's genesis"):
        document: dict[str, Any] = json.loads(path.read_text())
        document["chain_id"], document["app_state"]
    return document


def load_chain_id(home: Path) -> str:
    """Return the CometBFT chain id of a home; raises HomeMissing."""
    return str(load_genesis(home)["chain_id"])


def load_addresses(home: Path) -> tuple[Addresses, bool]:
    """Return the configured addresses, and whether peers rely on them; raises HomeMissing or BrokenFile."""
    path = home / "config" / "config.toml"
    if not path.exists():
        raise HomeMissing(home)
    with reading(path, CONFIG_STEP):
        document = tomllib.loads(path.read_text())
        addresses = Addresses(
            rpc=document["rpc"]["laddr"].removeprefix("tcp://"), p2p=document["p2p"]["laddr"].removeprefix("tcp://")
        )
    return addresses, bool(document["p2p"].get("persistent_peers"))


def load_app_height(home: Path) -> tuple[str, int] | None:
    """Return (chain id, height) of the application's database, None where there is none or it is empty."""
    try:
        with Reader(home / "app") as reader, reader.snapshot() as snapshot:
            if snapshot.is_empty:
                return None
            return snapshot.genesis_info().chain_id, snapshot.height
    except StoreMissing:
        return None
    except (StoreBroken, StoreUnread) as error:
        raise HomeError(str(error)) from error
    except StoreError as error:
        raise HomeError(f"{home}/app can't be read: {error}; next: `chain-node doctor --home {home}`") from error


def check_agreement(home: Path) -> None:
    """Refuse a home whose application and core can't go on together; raises a subclass of HomeError.

    CometBFT refuses the same, later and in other words.  A validator that is alone has signed every block, so its
    signing state tells the core's height; with others that isn't so, and CometBFT's own refusal is translated.
    """
    genesis = load_genesis(home)
    app = load_app_height(home)
    if app is None:
        return
    app_chain_id, app_height = app
    if app_chain_id != genesis["chain_id"]:
        raise AppOfAnotherChain(home, genesis["chain_id"], app_chain_id)
    if app_height > 0 and not (home / "data" / "blockstore.db").exists():
        raise FreshCore(home, app_height)
    validators = [validator["address"] for validator in genesis["validators"]]
    if validators == [load_keys(home).validator_address] and app_height > load_signed_height(home):
        raise AppAheadOfCore(home, load_signed_height(home), app_height)


@contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Own a home while the block runs: two nodes of one home would destroy it; raises NodeRuns."""
    try:
        descriptor = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HomeNotWritable(home / LOCK_NAME, error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeRuns(home, int(os.pread(descriptor, 32, 0).decode() or "0")) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def find_supervisor(home: Path) -> int | None:
    """Return the process that holds a home, None where no node of it runs."""
    if not (home / LOCK_NAME).exists():
        return None
    try:
        with hold_home(home):
            return None
    except NodeRuns as error:
        return error.pid


def save_listening(home: Path, listening: Listening) -> None:
    """Write run.json."""
    (home / "run.json").write_text(json.dumps(asdict(listening), indent=2) + "\n")


def load_listening(home: Path) -> Listening | None:
    """Read run.json, None when the node was never started; raises BrokenFile."""
    path = home / "run.json"
    if not path.exists():
        return None
    with reading(path, "remove it: the next start writes it"):
        return Listening(**json.loads(path.read_text()))
