"""The node's two ports to the chain over contracts.bindings: questions, and registration.

Apart from the ports themselves, because the Ethereum libraries take a second to load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from eth_abi.exceptions import DecodingError

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError
from contracts.bindings.sender import Sender
from contracts.bindings.types import BlobState, Challenge, NodeAccount, StorageNode
from da.core.types import BlobId, Committee, Epoch, Height, ShardIndex, Tier
from storage.committees import make_committee
from storage.core.errors import ChainUnreachable
from storage.core.repair import BlobFacts
from storage.node.registration import Funds

T = TypeVar("T")

REGISTRATION_GAS = 1_000_000
"""Gas set aside for registerNode and some updates; a published native call costs less (CHAIN.md, gas table)."""


class RpcChain:
    """ChainPort over contracts.bindings; called from one thread at a time."""

    def __init__(self, client: ChainClient) -> None:
        """Ask through ``client``."""
        self._client = client
        self._cached: dict[Epoch, Committee] = {}

    def get_genesis_hash(self) -> bytes:
        """Return the 32 bytes that receipts are bound to."""
        return _ask(self._client.genesis_hash)

    def get_height(self) -> Height:
        """Return the newest block height."""
        return Height(_ask(self._client.height))

    def get_committees(self) -> tuple[Committee, ...]:
        """Return the current committee and then the one before; snapshots never change, so they are kept."""
        epoch = _ask(self._client.storage.epoch)
        wanted = [Epoch(number) for number in (epoch, epoch - 1) if number >= 1]
        found = {number: self._cached.get(number) or self._fetch(number) for number in wanted}
        self._cached = {number: committee for number, committee in found.items() if committee.seats}
        return tuple(found.values())

    def get_release_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """Return the release height of each blob, 0 where unknown."""
        heights = _ask(lambda: self._client.storage.release_heights(tuple(blobs)))
        if len(heights) != len(blobs):
            raise ChainUnreachable(f"releaseHeights answered {len(heights)} heights for {len(blobs)} blobs")
        return heights

    def get_signed_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """Return until when each blob's newest certified receipts bind, 0 where unknown."""
        heights = _ask(lambda: self._client.storage.signed_heights(tuple(blobs)))
        if len(heights) != len(blobs):
            raise ChainUnreachable(f"signedHeights answered {len(heights)} heights for {len(blobs)} blobs")
        return heights

    def get_committee(self, epoch: Epoch) -> Committee:
        """Return any epoch's committee; URLs are asked anew, as nodes may move."""
        return self._fetch(epoch)

    def get_facts(self, blob: BlobId) -> BlobFacts:
        """Return what the chain says of a blob."""
        info = _ask(lambda: self._client.storage.blob(blob))
        return BlobFacts(
            blob=blob,
            tier=Tier(info.tier),
            epoch=Epoch(info.epoch),
            expiry=Height(info.expiry_height),
            release=Height(info.release_height),
            is_live=info.state is BlobState.LIVE,
            signers=info.signers,
        )

    def _fetch(self, epoch: Epoch) -> Committee:
        return make_committee(epoch, _ask(lambda: self._client.storage.committee(epoch)))


class RpcRegistration:
    """RegistrationPort over contracts.bindings."""

    def __init__(self, client: ChainClient, sender: Sender, *, bond: int = 0) -> None:
        """Send as ``sender``; a registration brings ``bond`` wei, or what the chain asks for where that is more."""
        self._client = client
        self._sender = sender
        self._bond = bond

    def get_node(self) -> StorageNode:
        """Return the operator's node."""
        return _ask(lambda: self._client.storage.node(self._sender.address))

    def get_funds(self) -> Funds:
        """Return the balance and what registration may cost, at twice the present gas price, the bond included."""
        price = _ask(self._client.gas_price)
        needed = 2 * price * REGISTRATION_GAS + self._compute_bond()
        balance = _ask(lambda: self._client.balance(self._sender.address))
        return Funds(balance=balance, needed=needed, where=_ask(self._client.describe_chain))

    def get_genesis_hash(self) -> bytes:
        """Return the 32 bytes that the key proof is bound to."""
        return _ask(self._client.genesis_hash)

    def register(self, *, url: str, key: bytes, key_proof: bytes, capacity_bytes: int) -> None:
        """Send registerNode and wait for its block."""
        bond = self._compute_bond()
        self._sender.send("Storage", "registerNode", url, key, key_proof, capacity_bytes, value=bond)

    def update(self, *, url: str, capacity_bytes: int) -> None:
        """Send updateNode and wait for its block."""
        self._sender.send("Storage", "updateNode", url, capacity_bytes)

    def _compute_bond(self) -> int:
        """Return what is missing to the wanted bond."""
        wanted = max(self._bond, _ask(self._client.storage.node_terms).node_bond)
        return max(0, wanted - _ask(lambda: self._client.storage.node_account(self._sender.address)).bond)


class RpcChallenges:
    """ChallengePort over contracts.bindings."""

    def __init__(self, client: ChainClient, sender: Sender) -> None:
        """Answer and accuse as ``sender``."""
        self._client = client
        self._sender = sender

    def get_challenges(self) -> tuple[Challenge, ...]:
        """Return the node's open challenges."""
        return _ask(lambda: self._client.storage.challenges_of(self._sender.address))

    def answer(self, challenge: Challenge, *, header: bytes, leaf: bytes, proof: bytes) -> None:
        """Send answerChallenge and wait for its block."""
        self._sender.send("Storage", "answerChallenge", challenge.blob, challenge.seat, header, leaf, proof)

    def accuse(self, blob: BlobId, shard: ShardIndex, leaf: int) -> Height:
        """Open a bonded challenge and return until when the seat must answer."""
        bond = _ask(self._client.storage.node_terms).challenge_bond
        outcome = self._sender.send("Storage", "challenge", blob, shard, leaf, value=bond)
        return Height(int(outcome.event("ChallengeOpened").fields["due_height"]))

    def get_account(self) -> NodeAccount:
        """Return the node's bond and book."""
        return _ask(lambda: self._client.storage.node_account(self._sender.address))


def _ask(question: Callable[[], T]) -> T:
    """Return the answer.

    Raises: ChainUnreachable for everything that is none.
    """
    try:
        return question()
    except BindingError as error:
        raise ChainUnreachable(f"the chain gave no answer: {error}") from error
    except (DecodingError, TypeError, ValueError, KeyError) as error:
        # What a broken proxy or another version sends must neither stop the node nor count as an answer.
        raise ChainUnreachable(f"the chain's answer can't be read: {type(error).__name__}: {error}") from error
