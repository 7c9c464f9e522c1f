"""The newest durable block as the handlers see it: its state, the tree over it, the parameters in force.

It moves on with Commit, with a chain's first block and with a restored snapshot.  Whoever reads it between
FinalizeBlock and Commit sees the block before.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.abci.errors import OutOfOrder
from chain.abci.recent_trees import RecentTrees
from chain.core import accounts
from chain.core.genesis import PARAMETERS_KEY, ChainParameters, get_parameters
from chain.core.smt import Tree
from chain.core.state import Base
from chain.core.types import Address, Amount, Nonce
from chain.store import Snapshot, Store
from chain.stored_states import iterate_all


class NewestBlock:
    """What the application stands on."""

    __slots__ = ("_parameters", "_store", "tree", "trees")

    def __init__(self, store: Store) -> None:
        """Look at the newest block of ``store``; rebuilds the tree from its leaves.  Raises OutOfOrder on damage."""
        self._store = store
        self._parameters: ChainParameters | None = get_parameters(store.committed.state)
        self.tree = Tree().update(iterate_all(store.committed.state))
        self.trees = RecentTrees()
        committed = store.committed
        if committed.is_empty:
            return
        if self.tree.root != committed.app_hash:
            raise OutOfOrder(
                f"state at height {committed.height} hashes to {self.tree.root.hex()},"
                f" expected {committed.app_hash.hex()}: the database is damaged; next: remove it to replay the chain"
            )
        self.trees.add(committed.height, self.tree, 0)

    @property
    def committed(self) -> Snapshot:
        """Return its snapshot, empty before genesis."""
        return self._store.committed

    @property
    def state(self) -> Base:
        """Return what is agreed after it."""
        return self._store.committed.state

    @property
    def parameters(self) -> ChainParameters | None:
        """Return what governs the next block; None before genesis, and amid a state sync."""
        return self._parameters

    def get_parameters(self) -> ChainParameters:
        """Return what governs the next block; raises OutOfOrder where there is no genesis yet."""
        if self._parameters is None:
            raise OutOfOrder("a transaction before InitChain")
        return self._parameters

    def get_account(self, address: Address) -> tuple[Nonce, Amount]:
        """Return an account's nonce and balance."""
        return accounts.get_account(self.state, address)

    def begin(self, tree: Tree) -> None:
        """Stand on a first block, of a chain or of a snapshot, that the store has taken in."""
        self.tree = tree
        self.trees.clear()
        self.trees.add(self.committed.height, tree, 0)
        self._parameters = get_parameters(self.state)

    def advance(self, tree: Tree, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Stand on the next block, that the store has taken in."""
        self.tree = tree
        self.trees.add(self.committed.height, tree, len(changes))
        if any(key == PARAMETERS_KEY for key, _ in changes):
            self._parameters = get_parameters(self.state)

    def forget(self) -> None:
        """Stand on nothing: a snapshot follows."""
        self.tree = Tree()
        self.trees.clear()
        self._parameters = None
