"""Genesis: what the app_state of CometBFT's genesis.json says, and the state it makes.

``genesis_hash`` names the chain in every signature outside transactions (receipts, certificates, key proofs), so a
devnet that was reset accepts nothing signed for the old one.  It is sha256 of GENESIS_TAG, the length of the
CometBFT chain id as u16, the id, and the app_state as JSON with sorted keys and no spaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from chain.core import accounts, rlp
from chain.core.errors import InvalidGenesis
from chain.core.evm.gas import EVM_BLOCK_GAS
from chain.core.hashing import GENESIS_TAG, sha256
from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount, Hash

GENESIS_PREFIX = b"g/"
"""Keys of chain parameters and of the supply."""

DEFAULT_GAS_LIMIT = 60_000_000
"""Gas of a block: some 2,800 transfers or, of native calls, two seconds at most; the EVM has a meter of its own."""

DEFAULT_BASE_FEE_WEI = 1_000_000_000
"""Wei a gas, constant: 1 gwei, so a transfer burns 0.000021 token."""

PARAMETERS_KEY = GENESIS_PREFIX + b"parameters"
"""Written at genesis and by governance."""

_SUPPLY_KEY = GENESIS_PREFIX + b"supply"
_MAX_AMOUNT = 2**256 - 1
_MAX_EVM_CHAIN_ID = 2**53 - 1
"""JavaScript wallets keep the chain id in a double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainParameters:
    """What every block is executed under; kept in the state."""

    chain_id: str
    """CometBFT's chain id."""
    evm_chain_id: int
    """Chain id in transactions."""
    genesis_hash: Hash
    """32 bytes, see the module."""
    gas_limit: int
    """Gas of a block."""
    base_fee: Amount
    """Wei a gas, burned."""
    evm_gas_limit: int = EVM_BLOCK_GAS
    """Gas of all EVM execution in a block, without intrinsic gas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """A parsed app_state."""

    parameters: ChainParameters
    """Parameters of the chain."""
    alloc: tuple[tuple[Address, Amount], ...]
    """First balances, by ascending address."""
    contract_parameters: Mapping[str, int] = field(default_factory=dict)
    """The other keys of app_state, for the system contracts: camelCase name -> integer."""


def parse_genesis(chain_id: str, app_state: bytes) -> Genesis:
    """Read the app_state of a CometBFT genesis; raises InvalidGenesis."""
    try:
        document = json.loads(app_state)
    except ValueError as error:
        raise InvalidGenesis(f"app_state is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidGenesis("app_state is no JSON object: write it with `chain-node init`")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    rest = dict(document)
    evm_chain_id = _read_integer(rest, "evmChainId", None, _MAX_EVM_CHAIN_ID)
    gas_limit = _read_integer(rest, "gasLimit", DEFAULT_GAS_LIMIT, 2**63 - 1)
    base_fee = _read_integer(rest, "baseFeeWei", DEFAULT_BASE_FEE_WEI, _MAX_AMOUNT)
    evm_gas_limit = _read_integer(rest, "evmGasLimit", EVM_BLOCK_GAS, 2**63 - 1)
    alloc = _read_alloc(rest.pop("alloc", {}))
    if evm_chain_id == 0 or gas_limit == 0:
        raise InvalidGenesis(f"evmChainId is {evm_chain_id} and gasLimit is {gas_limit}, both must be above 0")
    name = chain_id.encode()
    return Genesis(
        parameters=ChainParameters(
            chain_id=chain_id,
            evm_chain_id=evm_chain_id,
            genesis_hash=Hash(sha256(GENESIS_TAG + len(name).to_bytes(2, "big") + name + canonical)),
            gas_limit=gas_limit,
            base_fee=Amount(base_fee),
            evm_gas_limit=evm_gas_limit,
        ),
        alloc=alloc,
        contract_parameters={key: _read_integer(rest, key, None, _MAX_AMOUNT) for key in sorted(rest)},
    )


def process_genesis(state: Overlay, genesis: Genesis) -> None:
    """Write the parameters, the first balances and the supply into an empty state."""
    save_parameters(state, genesis.parameters)
    for address, amount in genesis.alloc:
        accounts.credit(state, address, amount)
    set_supply(state, Amount(sum(amount for _, amount in genesis.alloc)))


def save_parameters(state: Overlay, parameters: ChainParameters) -> None:
    """Write the parameters; the next block is executed under them."""
    fields = (parameters.evm_chain_id, parameters.gas_limit, parameters.base_fee, parameters.evm_gas_limit)
    encoded = rlp.encode(
        [parameters.chain_id.encode(), parameters.genesis_hash, *(rlp.encode_integer(value) for value in fields)]
    )
    state.set(PARAMETERS_KEY, encoded)


def get_parameters(state: Base) -> ChainParameters | None:
    """Read the parameters, None before genesis."""
    value = state.get(PARAMETERS_KEY)
    if value is None:
        return None
    items = rlp.decode(value)
    chain_id, genesis_hash, evm_chain_id, gas_limit, base_fee, evm_gas_limit = (
        bytes(item) for item in items if isinstance(item, bytes)
    )
    return ChainParameters(
        chain_id=chain_id.decode(),
        evm_chain_id=int.from_bytes(evm_chain_id, "big"),
        genesis_hash=Hash(genesis_hash),
        gas_limit=int.from_bytes(gas_limit, "big"),
        base_fee=Amount(int.from_bytes(base_fee, "big")),
        evm_gas_limit=int.from_bytes(evm_gas_limit, "big"),
    )


def get_supply(state: Base) -> Amount:
    """Return the wei that exist: what genesis made less the base fees that were burned."""
    return Amount(int.from_bytes(state.get(_SUPPLY_KEY) or b"", "big"))


def set_supply(state: Overlay, amount: Amount) -> None:
    """Write the wei that exist."""
    state.set(_SUPPLY_KEY, amount.to_bytes(32, "big"))


def _read_integer(document: dict[str, object], key: str, default: int | None, limit: int) -> int:
    value = document.pop(key, default)
    if value is None:
        raise InvalidGenesis(f"app_state has no {key}")
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise InvalidGenesis(f"{key} in app_state is {value!r}, expected an integer from 0 to {limit}")
    return value


def _read_alloc(alloc: object) -> tuple[tuple[Address, Amount], ...]:
    if not isinstance(alloc, dict):
        raise InvalidGenesis("alloc in app_state is no object of address -> wei")
    balances: dict[bytes, int] = {}
    for text, amount in alloc.items():
        try:
            address = bytes.fromhex(text.removeprefix("0x"))
        except ValueError as error:
            raise InvalidGenesis(f"address {text!r} in alloc is no hex") from error
        if len(address) != 20:
            raise InvalidGenesis(f"address {text!r} in alloc has {len(address)} bytes, expected 20")
        if address in balances:
            raise InvalidGenesis(f"address {text!r} is twice in alloc")
        balances[address] = _read_integer({text: amount}, text, None, _MAX_AMOUNT)
    if sum(balances.values()) > _MAX_AMOUNT:
        raise InvalidGenesis(f"alloc sums to {sum(balances.values())} wei, at most {_MAX_AMOUNT}")
    return tuple((Address(address), Amount(balances[address])) for address in sorted(balances))
