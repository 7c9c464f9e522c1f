"""What is taken out of a home to begin again: as a new chain, or on the same chain from what others have.

A key that signs two blocks of one height loses its bond, so what it has signed last
(``data/priv_validator_state.json``) outlives every reset on the same chain, unless its owner says otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from chain.cometbft import (
    SIGNED_NAME,
    StateSyncSource,
    create_keys,
    load_keys,
    load_signed_height,
    write_genesis,
    write_state_sync,
)
from chain.home import HomeError, compute_evm_chain_id, load_addresses, load_genesis

_STATE_NAMES = ("data", "app", "snapshots", "run.json")
"""All that a node writes while it runs, but its log."""


class ValidatorsReset(HomeError):
    """A chain of several validators can't be begun anew by one of them."""

    def __init__(self, home: Path, num_validators: int) -> None:
        """Keep the count."""
        super().__init__(
            f"{home} has {num_validators} validators: a new chain is all theirs; next: `chain-node reset --state`"
            " forgets this node's blocks and stays on the chain, `chain-node testnet` writes homes of a new one"
        )
        self.num_validators = num_validators


class NowhereElse(HomeError):
    """What would be forgotten can't be fetched from anybody."""

    def __init__(self, home: Path) -> None:
        """Keep the home."""
        super().__init__(
            f"{home} is the chain's only validator, or knows no peer: its blocks would be nowhere else;"
            f" next: for a broken {home}/app remove that alone, the blocks are replayed; give --server to take a"
            " snapshot of other nodes; or `chain-node reset` without --state for a new chain"
        )


def reset_home(home: Path, *, chain_id: str, time: datetime) -> None:
    """Forget all blocks and start a chain with a new id; keys, balances and configuration stay."""
    genesis = load_genesis(home)
    if len(genesis["validators"]) != 1:
        raise ValidatorsReset(home, len(genesis["validators"]))
    _remove(home, _STATE_NAMES)
    app_state = dict(genesis["app_state"])
    if app_state["evmChainId"] == compute_evm_chain_id(genesis["chain_id"]):
        app_state["evmChainId"] = compute_evm_chain_id(chain_id)
    write_genesis([home], [create_keys(home)], chain_id=chain_id, app_state=app_state, time=time)


def reset_state(home: Path, *, source: StateSyncSource | None, is_forgetting_signatures: bool) -> int:
    """Forget blocks and state and stay on the chain; return the height that the key has signed last.

    The next start fetches all blocks from the peers, or with ``source`` a snapshot.  Genesis, keys, configuration and
    what the key has signed stay.  Raises NowhereElse, and BrokenFile where nobody can say what was signed.
    """
    _, has_peers = load_addresses(home)
    validators = [validator["address"] for validator in load_genesis(home)["validators"]]
    is_alone = validators == [load_keys(home).validator_address] or not has_peers
    if is_alone and source is None and not is_forgetting_signatures:
        raise NowhereElse(home)
    signed_height = 0 if is_forgetting_signatures else load_signed_height(home)
    if source is not None:
        write_state_sync(home, source)
    _remove(home, [name for name in _STATE_NAMES if name != "data"])
    for path in (home / "data").glob("*"):
        if path.name != SIGNED_NAME or is_forgetting_signatures:
            _remove(home / "data", [path.name])
    create_keys(home)  # CometBFT wants a file, also where nothing was signed
    return signed_height


def _remove(folder: Path, names: Collection[str]) -> None:
    """Remove files and folders; of one that is a link to another disk, what lies in it."""
    for name in names:
        path = folder / name
        is_elsewhere = path.is_symlink() and path.is_dir()
        for each in list(path.iterdir()) if is_elsewhere else [path]:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)
