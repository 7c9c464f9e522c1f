"""What a devnet consists of, and where its files lie.

Layout of a home:  devnet.json (what is up), faucet.key, operators/node-I.key, alloc.json, validator-I/
(chain-node's homes), storage-I/ (a storage node's home), chain-id, chain-format, logs/NAME.log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

RECORD_NAME = "devnet.json"
"""The file that says what is up; its presence also marks a directory as ours."""
FORMAT_NAME = "chain-format"
"""The file that says by which CHAIN_FORMAT the chain of a home was begun."""
CHAIN_FORMAT = 1
"""Raised by whoever changes what lies in homes of chain-node or storage-node, or what blocks do, in a way that chains
of before can't go on with: no version of the rules stands for it (``tests/histories``)."""
DEFAULT_HOME = ".cache/devnet"
"""Under the working directory; not in git."""
RPC_PORT = 8545
"""The port that wallets and tools expect of an Ethereum node."""
FIRST_STORAGE_PORT = 9100
"""Storage node I listens on this plus I, where that is free."""
MOST_VALIDATORS = 16
"""Each is three processes: more than a machine for trying things out should carry."""
MOST_STORAGE_NODES = 64
"""Seats of a committee (DESIGN 5)."""
WEI_PER_TOKEN = 10**18
"""One token; the tables show it as one dollar."""
FAUCET_TOKENS = 1_000_000
"""What the faucet account has in genesis."""
OPERATOR_TOKENS = 1_000
"""What each storage operator has in genesis, for fees."""
FUND_TOKENS = 1_000
"""What `localnet fund` sends unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetConfig:
    """How many of what, and where they listen."""

    home: PurePath
    """Everything of this devnet is under it."""
    host: str = "127.0.0.1"
    """Address that JSON-RPC and the storage nodes listen on; 0.0.0.0 lets other machines in."""
    advertise: str = ""
    """Host name or address by which other machines reach this one; empty: the listen address."""
    rpc_port: int = RPC_PORT
    """Wish; the next free port is taken where it is busy."""
    num_validators: int = 1
    """Validators, 1..16, each with its own JSON-RPC."""
    num_storage: int = 4
    """Storage nodes, 1..64; below 4 no lying node is survived."""
    capacity: str = "2GB"
    """What each storage node offers, as its command line takes it."""
    restarts_stores: bool = True
    """Whether a storage node that ended is started again."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming field and value."""
        if not 1 <= self.num_validators <= MOST_VALIDATORS:
            raise ValueError(f"num_validators is {self.num_validators}, expected 1..{MOST_VALIDATORS}")
        if not 1 <= self.num_storage <= MOST_STORAGE_NODES:
            raise ValueError(f"num_storage is {self.num_storage}, expected 1..{MOST_STORAGE_NODES}")
        if not 0 < self.rpc_port < 65536:
            raise ValueError(f"rpc_port is {self.rpc_port}, expected 1..65535")
        if self.host == "0.0.0.0" and not self.advertise:
            raise ValueError("host is 0.0.0.0 and advertise is empty: say by which address others reach this machine")

    @property
    def public_host(self) -> str:
        """Host in the URLs that others are told."""
        return self.advertise or self.host

    @property
    def local_host(self) -> str:
        """Host in the URLs that this machine's own processes use."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host


def build_alloc(faucet: str, operators: tuple[str, ...]) -> dict[str, str]:
    """Return the genesis balances: address -> wei, decimal."""
    alloc = {faucet: str(FAUCET_TOKENS * WEI_PER_TOKEN)}
    alloc.update({operator: str(OPERATOR_TOKENS * WEI_PER_TOKEN) for operator in operators})
    return alloc
