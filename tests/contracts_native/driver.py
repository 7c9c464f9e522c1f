"""A chain of system contracts without consensus: call functions by name, advance blocks, make certificates.

Other tests may reuse it: ``Chain()`` has money for ``alice`` ... and storage nodes with real ed25519 keys, so
certificates are verified like on the real chain.  ``height`` is the block being executed; ``advance`` ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from chain.core.abi.codec import ContractCodec
from chain.core.accounts import ACCOUNT_PREFIX, credit, get_balance, transfer
from chain.core.contracts.params import ContractParams
from chain.core.contracts.registry import CODECS, SYSTEM_CONTRACTS, initialise_contracts
from chain.core.native import BlockContext, CallContext, Meter, NativeContract, OutOfGas, Revert
from chain.core.records import Log
from chain.core.state import Overlay
from chain.core.types import Address, Amount, Height
from da.core.certificate import encode_certificate
from da.core.hashing import Tag, compute_hash
from da.core.receipt import compute_receipt_message, key_proof_message
from da.core.types import BlobId, Certificate, Epoch, ReceiptTerms, ShardIndex, Tier
from da.core.types import Height as DaHeight

GENESIS_HASH = bytes.fromhex("aa" * 32)
CALL_GAS = 30_000_000
FUNDS = 10**24

RUN_PARAMS: dict[str, Any] = {
    "numFragments": 4,
    "overlap": 1,
    "localSteps": 20,
    "numRounds": 100,
    "minMembers": 1,
    "maxMembers": 16,
    "roundBlocks": 120,
    "graceBlocks": 10,
    "revealBlocks": 10,
    "attestBlocks": 30,
    "disputeBlocks": 60,
    "recoverBlocks": 200,
    "lockBlocks": 20,
    "checkpointInterval": 8,
    "numCheckpointParts": 2,
    "leaseBlocks": 2_000,
    "isAllowListed": False,
    "isSealed": False,
    "rewardPerUpdate": 0,
    "memberBond": 0,
}
"""The devnet's timers (DESIGN 4.1), in the order of the ABI's RunParams."""


class Reverted(Exception):
    """A call reverted with a declared custom error."""

    def __init__(self, name: str, values: tuple[Any, ...]) -> None:
        super().__init__(f"{name}{values}")
        self.name = name
        self.values = values


@dataclass
class Node:
    """A storage node of the test chain."""

    operator: Address
    key: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def make_address(name: str) -> Address:
    """Return a fixed address of a name."""
    return Address(compute_hash(Tag.RANDOM, b"address", name.encode())[:20])


def make_hash(name: object) -> bytes:
    """Return a fixed 32-byte value of a name."""
    return compute_hash(Tag.RANDOM, b"value", str(name).encode())


def run_params(**changes: Any) -> tuple[Any, ...]:
    """Return RunParams for ``createRun``, the devnet's with changes by ABI name."""
    unknown = set(changes) - set(RUN_PARAMS)
    assert not unknown, unknown
    return tuple({**RUN_PARAMS, **changes}.values())


class Chain:
    """State, height and the contracts."""

    def __init__(self, *, num_nodes: int = 4, params: ContractParams | None = None) -> None:
        self.state = Overlay()
        self.height = 1
        self.logs: list[Log] = []
        self.gas_used = 0
        self.minted = 0
        self.nodes: list[Node] = []
        self.contracts: dict[str, NativeContract] = {contract.name: contract for contract in SYSTEM_CONTRACTS}
        initialise_contracts(self.state, params or ContractParams())
        for index in range(num_nodes):
            self.add_node(f"node{index}")
        if num_nodes:
            self.advance_to_epoch()

    # -- calls

    def codec(self, contract: str) -> ContractCodec:
        return CODECS[self.contracts[contract].address]

    def call(
        self,
        contract: str,
        function: str,
        *args: Any,
        sender: str | bytes = "alice",
        value: int = 0,
        gas: int = CALL_GAS,
    ) -> Any:
        """Send a transaction; return its outputs (one value alone, several as a tuple). Raises Reverted."""
        data = self.codec(contract).by_name[function].encode_inputs(args)
        output = self.call_raw(contract, data, sender=sender, value=value, gas=gas)
        return self._outputs(contract, function, output)

    def call_raw(
        self, contract: str, data: bytes, *, sender: str | bytes = "alice", value: int = 0, gas: int = CALL_GAS
    ) -> bytes:
        """Send raw calldata as the executor would: the value moves first, a revert undoes everything."""
        address = self.contracts[contract].address
        account = make_address(sender) if isinstance(sender, str) else Address(sender)
        if get_balance(self.state, account) < value:
            self._mint(account, FUNDS)
        mark = self.state.begin()
        transfer(self.state, account, address, value)
        context = self._context(account, value, is_static=False, gas=gas)
        try:
            output = self.contracts[contract].process_call(context, data)
        except Revert as revert:
            self.state.rollback(mark)
            self.gas_used = context.meter.used
            raise self._reverted(contract, revert) from revert
        except OutOfGas:
            self.state.rollback(mark)
            raise
        self.gas_used = context.meter.used
        self.logs += context.logs
        return output

    def view(self, contract: str, function: str, *args: Any) -> Any:
        """Call a view, statically."""
        data = self.codec(contract).by_name[function].encode_inputs(args)
        context = self._context(make_address("viewer"), 0, is_static=True, gas=CALL_GAS)
        before = self.state.begin()
        try:
            output = self.contracts[contract].process_call(context, data)
        except Revert as revert:
            raise self._reverted(contract, revert) from revert
        assert self.state.begin() == before, f"view {function} wrote"
        return self._outputs(contract, function, output)

    def struct(self, contract: str, function: str, *args: Any) -> dict[str, Any]:
        """Call a view that returns one struct, by field name."""
        return self._named(contract, function, self.view(contract, function, *args))

    def structs(self, contract: str, function: str, *args: Any) -> list[dict[str, Any]]:
        """Call a view that returns an array of structs, by field name."""
        return [self._named(contract, function, item) for item in self.view(contract, function, *args)]

    # -- blocks

    def advance(self, blocks: int = 1) -> None:
        """End the block, and start the next; ``blocks`` times."""
        for _ in range(blocks):
            context = BlockContext(
                state=self.state, height=Height(self.height), genesis_hash=GENESIS_HASH, block_seed=self.seed
            )
            for contract in SYSTEM_CONTRACTS:
                if contract.process_block_end is not None:
                    contract.process_block_end(context)
            self.logs += context.logs
            self.height += 1

    def advance_to_epoch(self) -> None:
        """Advance until a new committee stands."""
        before = self.view("Storage", "epoch")
        for _ in range(100):
            if self.view("Storage", "epoch") != before:
                return
            self.advance()
        raise AssertionError("no new epoch within 100 blocks")

    @property
    def seed(self) -> bytes:
        return make_hash(("seed", self.height))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return all events of a name so far, oldest first."""
        found = []
        for log in self.logs:
            decoded = CODECS[log.address].decode_log(log)
            if decoded is not None and decoded[0] == name:
                found.append(decoded[1])
        return found

    # -- money and storage

    def fund(self, name: str, amount: int = FUNDS) -> Address:
        """Create money for a name and return its address."""
        self._mint(make_address(name), amount)
        return make_address(name)

    def balance(self, name: str | bytes) -> int:
        """Return a balance, of a person or a contract's address."""
        return get_balance(self.state, make_address(name) if isinstance(name, str) else Address(name))

    def total_money(self) -> int:
        """Return the sum of all balances."""
        stop = ACCOUNT_PREFIX[:-1] + bytes([ACCOUNT_PREFIX[-1] + 1])
        return sum(
            get_balance(self.state, Address(key[len(ACCOUNT_PREFIX) :]))
            for key, _ in self.state.iterate(ACCOUNT_PREFIX, stop)
        )

    def add_node(self, name: str) -> Node:
        """Register a storage node; it gets a seat from the next epoch on."""
        node = Node(make_address(name), Ed25519PrivateKey.from_private_bytes(make_hash(("key", name))))
        proof = node.key.sign(key_proof_message(GENESIS_HASH, node.operator))
        url = f"http://127.0.0.1:{9000 + len(self.nodes)}"
        self.call("Storage", "registerNode", url, node.public, proof, 10**12, sender=node.operator)
        self.nodes.append(node)
        return node

    def certificate(
        self,
        blob: bytes,
        *,
        tier: Tier = Tier.TEMPORARY,
        expiry: int | None = None,
        size: int = 1000,
        seats: list[int] | None = None,
        epoch: int | None = None,
        genesis_hash: bytes = GENESIS_HASH,
    ) -> bytes:
        """Return an encoded certificate of a blob id, signed by ``seats`` (all of them by default)."""
        terms = ReceiptTerms(
            genesis_hash=genesis_hash,
            epoch=Epoch(self.view("Storage", "epoch") if epoch is None else epoch),
            blob=BlobId(blob),
            size_bytes=size,
            tier=tier,
            expiry=DaHeight(self.height + RUN_PARAMS["leaseBlocks"] if expiry is None else expiry),
        )
        keys = {node.public: node.key for node in self.nodes}
        committee = self.structs("Storage", "committee", int(terms.epoch))
        chosen = range(len(committee)) if seats is None else seats
        signatures = tuple(
            (ShardIndex(seat), keys[committee[seat]["key"]].sign(compute_receipt_message(terms, ShardIndex(seat))))
            for seat in chosen
        )
        return encode_certificate(Certificate(terms=terms, signatures=signatures))

    # -- a run, in a few words

    def create_run(
        self, *, owner: str = "owner", escrow: int = 10**20, recipe: bytes = b"F = 4\n", **params: Any
    ) -> int:
        """Create a run and certify its genesis; it is WAITING for members after this block."""
        root = make_hash("genesis")
        run: int = self.call("Training", "createRun", run_params(**params), recipe, root, sender=owner, value=escrow)
        for part in range(params.get("numCheckpointParts", RUN_PARAMS["numCheckpointParts"])):
            self.store_part(run, 0, part, sender=owner)
        self.advance()
        return run

    def store_part(self, run: int, version: int, part: int, *, sender: str | bytes) -> None:
        """Name a stored blob as a checkpoint's part."""
        certificate = self.certificate(make_hash(("part", run, version, part)), tier=Tier.HOT)
        self.call("Training", "checkpoint", run, version, part, certificate, sender=sender)

    def join(self, run: int, *names: str, value: int = 0) -> None:
        """Join and show the head root."""
        info = self.struct("Training", "run", run)
        for name in names:
            self.call(
                "Training", "join", run, info["recipeDigest"], make_address(name), "test", sender=name, value=value
            )
            self.call("Training", "ready", run, self.struct("Training", "run", run)["headRoot"], sender=name)

    def commit(self, run: int, t: int, name: str, *, payload: object = None, tokens: int = 100) -> None:
        """Commit an update to a round."""
        blob = make_hash(("payload", run, t, name if payload is None else payload))
        base = self.struct("Training", "round", run, t)["baseRoot"]
        self.call(
            "Training",
            "commit",
            run,
            t,
            base,
            make_hash(("digest", blob)),
            self.certificate(blob),
            tokens,
            5,
            sender=name,
        )

    def attest(self, run: int, t: int, *names: str, root: bytes | None = None, refused: int = 0) -> None:
        """Vote for the honest root of a round, or another."""
        for name in names:
            vote = self.honest_root(run, t, refused) if root is None else root
            attempt = self.struct("Training", "round", run, t)["retries"]
            self.call("Training", "attest", run, t, attempt, vote, refused, 0, 0, sender=name)

    def honest_root(self, run: int, t: int, refused: int = 0) -> bytes:
        """Return what an honest voter computes: a hash of the head and of the counted digests."""
        updates = self.structs("Training", "updates", run, t)
        counted = [update["digest"] for index, update in enumerate(updates) if not refused >> index & 1]
        return make_hash((self.view("Training", "root", run, t), counted))

    # -- private

    def _mint(self, account: Address, amount: int) -> None:
        credit(self.state, account, amount)
        self.minted += amount

    def _context(self, account: Address, value: int, *, is_static: bool, gas: int) -> CallContext:
        return CallContext(
            state=self.state,
            height=Height(self.height),
            genesis_hash=GENESIS_HASH,
            block_seed=self.seed,
            sender=account,
            value=Amount(value),
            is_static=is_static,
            meter=Meter(gas),
        )

    def _outputs(self, contract: str, function: str, output: bytes) -> Any:
        values = self.codec(contract).by_name[function].decode_outputs(output)
        return values[0] if len(values) == 1 else values or None

    def _named(self, contract: str, function: str, values: Any) -> dict[str, Any]:
        struct = self.codec(contract).by_name[function].function.outputs[0].kind
        return dict(zip([field.name for field in struct.fields], values, strict=True))

    def _reverted(self, contract: str, revert: Revert) -> Reverted:
        decoded = self.codec(contract).decode_error(revert.data)
        assert decoded is not None, f"{contract} reverted with undeclared data {revert.data.hex()}"
        return Reverted(*decoded)
