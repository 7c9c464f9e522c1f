"""py-evm's view of the chain's overlay, for the length of one transaction.

Accounts, code and slots are read and written where everything else lies; what only lasts for the transaction (warm
addresses and slots, transient storage, how much money the EVM made or burned) has an undo journal of its own.  A
checkpoint is the length of both journals.  Invariant: after ``revert(snapshot)`` all of it is as it was.
"""

from __future__ import annotations

from typing import Any, cast

from eth.vm.execution_context import ExecutionContext
from eth.vm.forks.prague.state import PragueState

from chain.core import accounts
from chain.core.block_hashes import BLOCK_HASH_RULES, find_block_hash
from chain.core.environment import BlockEnvironment, Contracts, Watch
from chain.core.evm import layout
from chain.core.evm.code import JumpTargets
from chain.core.evm.computation import EvmComputation
from chain.core.evm.precompiles import Precompile, choose_precompiles
from chain.core.evm.system_calls import call_system_contract
from chain.core.evm.tracing import Tracer
from chain.core.hashing import keccak256
from chain.core.records import AccessList
from chain.core.state import Overlay
from chain.core.types import Address

EMPTY_CODE_HASH = keccak256(b"")
_MINTED = b"minted"


class EvmState(PragueState):
    """One transaction's state."""

    computation_class = EvmComputation

    def __init__(
        self,
        overlay: Overlay,
        environment: BlockEnvironment,
        contracts: Contracts,
        watch: Watch | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Stand on the overlay; the base class would open a trie database instead."""
        self.overlay = overlay
        self.environment = environment
        self.contracts = contracts
        self.watch = watch
        self.tracer = tracer
        self.precompiles: dict[bytes, Precompile] = {
            **choose_precompiles(environment.rules),
            **dict.fromkeys(contracts, call_system_contract),
        }
        parameters = environment.parameters
        self.execution_context = ExecutionContext(
            coinbase=cast(Any, environment.proposer),
            timestamp=environment.time_seconds,
            block_number=cast(Any, environment.height),
            difficulty=0,
            mix_hash=cast(Any, environment.block_seed),
            gas_limit=parameters.gas_limit,
            prev_hashes=(),  # see get_ancestor_hash
            chain_id=parameters.evm_chain_id,
            base_fee_per_gas=parameters.base_fee,
            excess_blob_gas=0,
        )
        self.jump_targets: JumpTargets = {}
        self.unworked_gas = 0
        """That writes took beyond their work; a revert gives back neither."""
        self._warm: dict[Any, None] = {}
        self._transient: dict[Any, bytes] = {}
        self._totals: dict[Any, int] = {}
        self._originals: dict[tuple[bytes, int], int] = {}
        self._journal: list[tuple[dict[Any, Any], Any, Any]] = []

    # ---- Checkpoints

    def snapshot(self) -> Any:
        """Open a checkpoint."""
        return self.overlay.begin(), len(self._journal)

    def revert(self, snapshot: Any) -> None:
        """Undo everything since the checkpoint."""
        mark, length = snapshot
        self.overlay.rollback(mark)
        journal = self._journal
        while len(journal) > length:
            changed, key, old = journal.pop()
            if old is None:
                changed.pop(key)
            else:
                changed[key] = old

    def commit(self, snapshot: Any) -> None:
        """Keep what was done since the checkpoint; an outer one still undoes it."""

    def _set(self, changed: dict[Any, Any], key: Any, value: Any) -> None:
        self._journal.append((changed, key, changed.get(key)))
        changed[key] = value

    # ---- Accounts

    def get_balance(self, address: bytes) -> int:
        """Return wei."""
        return accounts.load_account(self.overlay, address)[1]

    def set_balance(self, address: bytes, balance: int) -> None:
        """Write wei, and keep count of what that makes or burns."""
        nonce, old, code_hash = accounts.load_account(self.overlay, address)
        if balance != old:
            accounts.save_account(self.overlay, address, nonce, balance, code_hash)
            self._set(self._totals, _MINTED, self._totals.get(_MINTED, 0) + balance - old)

    def get_nonce(self, address: bytes) -> int:
        """Return the count of transactions, or of creations by a contract."""
        return accounts.load_account(self.overlay, address)[0]

    def set_nonce(self, address: bytes, nonce: int) -> None:
        """Write the nonce."""
        _, balance, code_hash = accounts.load_account(self.overlay, address)
        accounts.save_account(self.overlay, address, nonce, balance, code_hash)

    def increment_nonce(self, address: bytes) -> None:
        """Add one to the nonce."""
        self.set_nonce(address, self.get_nonce(address) + 1)

    def get_code(self, address: bytes) -> bytes:
        """Return code, empty where there is none."""
        return layout.get_code(self.overlay, address)

    def set_code(self, address: bytes, code: bytes) -> None:
        """Write code."""
        layout.set_code(self.overlay, address, code)

    def delete_code(self, address: bytes) -> None:
        """Remove code."""
        layout.set_code(self.overlay, address, b"")

    def get_code_hash(self, address: bytes) -> Any:
        """Return keccak256 of the code."""
        return accounts.get_code_hash(self.overlay, address) or EMPTY_CODE_HASH

    def has_code_or_nonce(self, address: bytes) -> bool:
        """Say whether a creation there would collide."""
        nonce, _, code_hash = accounts.load_account(self.overlay, address)
        return bool(nonce or code_hash)

    def account_exists(self, address: bytes) -> bool:
        """Say whether there is an account; an empty one is never kept."""
        return self.overlay.get(accounts.ACCOUNT_PREFIX + address) is not None

    def account_is_empty(self, address: bytes) -> bool:
        """Say whether nonce, balance and code are all nothing."""
        return not self.account_exists(address)

    def touch_account(self, address: bytes) -> None:
        """Do nothing: an empty account is never kept."""

    def delete_account(self, address: bytes) -> None:
        """Remove an account with its code and slots; what it held is burned."""
        self.set_balance(address, 0)
        layout.set_code(self.overlay, address, b"")
        layout.delete_slots(self.overlay, address)
        accounts.save_account(self.overlay, address, 0, 0, b"")

    # ---- Slots

    def get_storage(self, address: bytes, slot: int, from_journal: bool = True) -> int:
        """Return a slot as it is, or as it was when the transaction began."""
        if not from_journal:
            original = self._originals.get((address, slot))
            if original is not None:
                return original
        return layout.get_slot(self.overlay, address, slot)

    def set_storage(self, address: bytes, slot: int, value: int) -> None:
        """Write a slot."""
        key = (address, slot)
        if key not in self._originals:
            # The first write sees the first value; undoing the write doesn't change what that was.
            self._originals[key] = layout.get_slot(self.overlay, address, slot)
        layout.set_slot(self.overlay, address, slot, value)

    def delete_storage(self, address: bytes) -> None:
        """Do nothing: CREATE2 asks for it where there is no account, and so, by the layout's invariant, no slot."""

    def get_transient_storage(self, address: bytes, slot: int) -> bytes:
        """Return a slot that lasts for the transaction (EIP-1153)."""
        return self._transient.get((address, slot), b"")

    def set_transient_storage(self, address: bytes, slot: int, value: bytes) -> None:
        """Write one."""
        self._set(self._transient, (address, slot), value)

    # ---- Warm and cold

    def is_address_warm(self, address: bytes) -> bool:
        """Say whether the transaction has paid for touching an address (EIP-2929)."""
        return address in self._warm or address in self.precompiles

    def mark_address_warm(self, address: bytes) -> None:
        """Remember that it has."""
        if address not in self._warm:
            self._touch(address)

    def is_storage_warm(self, address: bytes, slot: int) -> bool:
        """Say whether the transaction has paid for touching a slot."""
        return (address, slot) in self._warm

    def mark_storage_warm(self, address: bytes, slot: int) -> None:
        """Remember that it has."""
        if (address, slot) not in self._warm:
            self._touch((address, slot))

    def _touch(self, key: Any) -> None:
        self._journal.append((self._warm, key, None))
        self._warm[key] = None

    # ---- Blocks

    def get_ancestor_hash(self, block_number: int) -> Any:
        """Return the hash of one of the last 256 blocks, nothing for any other (BLOCKHASH)."""
        environment = self.environment
        if environment.rules < BLOCK_HASH_RULES:
            return b""
        return find_block_hash(self.overlay, environment.height, block_number, environment.read_block_hash)

    # ---- What is left at the end

    @property
    def burned(self) -> int:
        """Wei that self-destruction took out of the world."""
        minted = self._totals.get(_MINTED, 0)
        assert minted <= 0, f"the EVM made {minted} wei"
        return -minted

    def get_access_list(self, *, without: tuple[bytes, ...]) -> AccessList:
        """Return what was touched, by ascending address, less addresses that are warm anyway and have no slots."""
        slots: dict[bytes, list[bytes]] = {}
        for key in self._warm:
            if isinstance(key, tuple):
                slots.setdefault(key[0], []).append(key[1].to_bytes(32, "big"))
            elif key not in without and key not in self.precompiles:
                slots.setdefault(key, [])
        return tuple((Address(address), tuple(sorted(slots[address]))) for address in sorted(slots))
