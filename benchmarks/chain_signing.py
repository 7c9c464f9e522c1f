"""Transactions of the chain's benchmarks, signed before the clock starts, and the genesis under which they run.

Every transaction is known before its chain is: nonces, committee, run numbers and roots follow from genesis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from coincurve import PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain.core import rlp
from chain.core.abi.storage import STORAGE_ADDRESS
from chain.core.contracts.registry import CODECS
from chain.core.evm.addresses import compute_create_address
from chain.core.genesis import parse_genesis
from chain.core.hashing import keccak256, sha256
from chain.core.rounds.book import TRAINING
from chain.core.types import Address
from chain.home import compute_evm_chain_id
from da.core.certificate import encode_certificate
from da.core.receipt import compute_receipt_message, key_proof_message
from da.core.scheme import compute_tier_scheme
from da.core.types import BlobId, Certificate, Epoch, Height, ReceiptTerms, ShardIndex, Tier

CHAIN_ID = "benchmark"
GWEI = 10**9
NUM_SENDERS = 256
"""Of transfers and storage writes: four on each of 64 connections."""
BLOCK_GAS = 700_000_000
"""Of a block: 33,000 transfers, as many as kvstore gets into block.max_bytes."""
WRITE_GAS = 44_000
"""Limit of a storage write: 43,700 are used."""
COMMIT_GAS = 300_000
"""Limit of a training commit with three signatures."""
MEMBERS_PER_RUN = 256
"""As many as a run may have."""
NUM_STORAGE_NODES = 4
"""Seats of the committee: three of them sign."""
LEASE_BLOCKS = 4_000
EXPIRY_HEIGHT = 3_000
"""Of every certificate: long enough a lease up to block 1,000."""
GENESIS_ROOT = sha256(b"benchmark genesis root")
RECIPE = b"benchmark\n"
_STORAGE = Address(STORAGE_ADDRESS)
_TABLE = bytes.fromhex(
    "6080604052348015600e575f5ffd5b5060b580601a5f395ff3fe6080604052348015600e575f5ffd5b50600436106030"
    "575f3560e01c80631ab06ee5146034578063bafff8c0146052575b5f5ffd5b6050603f3660046080565b5f9182526020"
    "829052604090912055565b005b606e605d366004609f565b5f6020819052908152604090205481565b60405190815260"
    "200160405180910390f35b5f5f604083850312156090575f5ffd5b50508035926020909101359150565b5f6020828403"
    "121560ae575f5ffd5b503591905056"
)
"""solc 0.8.30 of ``mapping(uint256 => uint256) public table; function set(uint256 key, uint256 value)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent to one chain."""

    transactions: tuple[bytes, ...]
    """Measured; one sender's stand in the order of their nonces."""
    senders: tuple[int, ...]
    """For each transaction a number of its sender: one connection carries all of a sender's."""
    alloc: Mapping[str, str]
    """Balances at genesis."""
    phases: tuple[tuple[bytes, ...], ...] = ()
    """Sent before, each when the phase before it is in blocks."""
    options: Mapping[str, int] = field(default_factory=dict)
    """More of app_state."""

    @property
    def app_state(self) -> dict[str, Any]:
        """The genesis under which all of it runs."""
        return make_app_state(self.alloc, self.options)

    @property
    def mean_bytes(self) -> int:
        """Size of a measured transaction."""
        return sum(map(len, self.transactions)) // len(self.transactions)


class Wallet:
    """One key, which counts its nonces."""

    def __init__(self, number: int) -> None:
        """Take the key of a number."""
        self._key = PrivateKey(number.to_bytes(32, "big"))
        self.address = Address(keccak256(self._key.public_key.format(compressed=False)[1:])[12:])
        self._nonce = 0

    def sign(self, to: bytes, *, gas: int, value: int = 0, data: bytes = b"") -> bytes:
        """Sign the next transaction."""
        chain_id = compute_evm_chain_id(CHAIN_ID)
        fields: list[object] = [rlp.encode_integer(each) for each in (chain_id, self._nonce, GWEI, 2 * GWEI, gas)]
        fields += [to, rlp.encode_integer(value), data, []]
        self._nonce += 1
        signature = self._key.sign_recoverable(keccak256(b"\x02" + rlp.encode(fields)), hasher=None)
        parts = (signature[64], int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"))
        return b"\x02" + rlp.encode([*fields, *(rlp.encode_integer(part) for part in parts)])


def make_transfers(number: int, *, num_senders: int = NUM_SENDERS) -> Load:
    """Sign transfers over all senders in turn, each to an address of its own."""
    wallets = _make_wallets(num_senders)
    return Load(
        transactions=tuple(
            wallets[index % num_senders].sign(keccak256(b"%d" % index)[12:], gas=21_000, value=1)
            for index in range(number)
        ),
        senders=tuple(index % num_senders for index in range(number)),
        alloc=fund(wallets),
    )


def make_writes(number: int, *, options: Mapping[str, int]) -> Load:
    """Sign the creation of a table in Solidity, and writes to it over all senders, a new slot each."""
    wallets = _make_wallets(NUM_SENDERS)
    table = compute_create_address(wallets[0].address, 0)
    creation = wallets[0].sign(b"", gas=1_000_000, data=_TABLE)
    selector = keccak256(b"set(uint256,uint256)")[:4]
    return Load(
        transactions=tuple(
            wallets[index % NUM_SENDERS].sign(
                table, gas=WRITE_GAS, data=selector + index.to_bytes(32, "big") + (1).to_bytes(32, "big")
            )
            for index in range(number)
        ),
        senders=tuple(index % NUM_SENDERS for index in range(number)),
        alloc=fund(wallets),
        phases=((creation,),),
        options=options,
    )


def make_commits(num_runs: int, *, others: Mapping[str, str] = MappingProxyType({})) -> Load:
    """Sign one training commit with its certificate for each member of some full runs, and all that comes before.

    ``others`` are more balances for genesis, which certificates name by its hash.
    """
    owner, *operators = _make_wallets(1 + NUM_STORAGE_NODES, first=10_000)
    members = _make_wallets(num_runs * MEMBERS_PER_RUN, first=20_000)
    alloc = {**fund([owner, *operators, *members]), **others}
    options = {"storageEpochBlocks": 1}
    genesis_hash = parse_genesis(CHAIN_ID, json.dumps(make_app_state(alloc, options)).encode()).parameters.genesis_hash
    keys = [Ed25519PrivateKey.from_private_bytes(sha256(b"node %d" % index)) for index in range(NUM_STORAGE_NODES)]
    registrations = [
        _call(
            operator,
            _STORAGE,
            "registerNode",
            f"http://127.0.0.1:{9_000 + index}",
            key.public_key().public_bytes_raw(),
            key.sign(key_proof_message(genesis_hash, operator.address)),
            10**12,
        )
        for index, (operator, key) in enumerate(zip(operators, keys, strict=True))
    ]
    runs = range(1, num_runs + 1)
    creations = [
        _call(owner, TRAINING, "createRun", _make_run_params(), RECIPE, GENESIS_ROOT, value=10**20) for _ in runs
    ]
    creations += [
        _call(owner, TRAINING, "checkpoint", run, 0, 0, _certify(keys, genesis_hash, b"part %d" % run, Tier.HOT))
        for run in runs
    ]
    joins: list[bytes] = []
    commits: list[bytes] = []
    for index, member in enumerate(members):
        run = 1 + index // MEMBERS_PER_RUN
        joins.append(_call(member, TRAINING, "join", run, keccak256(RECIPE), member.address, "benchmark"))
        joins.append(_call(member, TRAINING, "ready", run, GENESIS_ROOT))
        certificate = _certify(keys, genesis_hash, b"payload %d" % index, Tier.TEMPORARY)
        digest = sha256(b"digest %d" % index)
        commits.append(_call(member, TRAINING, "commit", run, 0, GENESIS_ROOT, digest, certificate, 100, 5))
    return Load(
        transactions=tuple(commits),
        senders=tuple(range(len(commits))),
        alloc=alloc,
        phases=(tuple(registrations), tuple(creations), tuple(joins)),
        options=options,
    )


def make_pairs(number: int, size_bytes: int) -> Load:
    """Make what kvstore takes: ``key=value`` of the same size as the transactions beside it."""
    return Load(
        transactions=tuple((b"k%07d=" % index).ljust(size_bytes, b"v") for index in range(number)),
        senders=tuple(index % NUM_SENDERS for index in range(number)),
        alloc={},
    )


def make_app_state(alloc: Mapping[str, str], options: Mapping[str, int]) -> dict[str, Any]:
    """Return the app_state of a genesis."""
    return {
        "evmChainId": compute_evm_chain_id(CHAIN_ID),
        "alloc": dict(alloc),
        "gasLimit": BLOCK_GAS,
        **options,
    }


def _make_wallets(number: int, *, first: int = 1_000) -> list[Wallet]:
    return [Wallet(first + index) for index in range(number)]


def fund(wallets: Sequence[Wallet]) -> dict[str, str]:
    """Return balances that last."""
    return {f"0x{wallet.address.hex()}": str(10**22) for wallet in wallets}


def _call(wallet: Wallet, contract: Address, function: str, *arguments: object, value: int = 0) -> bytes:
    data = CODECS[contract].by_name[function].encode_inputs(arguments)
    return wallet.sign(contract, gas=COMMIT_GAS, value=value, data=data)


def _make_run_params() -> tuple[object, ...]:
    """Return RunParams in the ABI's order: a run whose first round waits for all its members."""
    return (
        *(1, 0, 20, 100),  # numFragments, overlap, localSteps, numRounds
        *(MEMBERS_PER_RUN, MEMBERS_PER_RUN),  # minMembers, maxMembers
        *(100_000, 100_000, 10, 100_000, 60, 100_000, 20),  # round, grace, reveal, attest, dispute, recover, lock
        *(8, 1, LEASE_BLOCKS),  # checkpointInterval, numCheckpointParts, leaseBlocks
        *(False, False, 0, 0),  # isAllowListed, isSealed, rewardPerUpdate, memberBond
    )


def _certify(keys: Sequence[Ed25519PrivateKey], genesis_hash: bytes, name: bytes, tier: Tier) -> bytes:
    """Return the certificate of a blob, signed by as many seats as it takes."""
    terms = ReceiptTerms(
        genesis_hash=genesis_hash,
        epoch=Epoch(1),
        blob=BlobId(sha256(name)),
        size_bytes=1_000_000,
        tier=tier,
        expiry=Height(EXPIRY_HEIGHT),
    )
    num_signatures = compute_tier_scheme(len(keys), tier).num_signatures
    signatures = tuple(
        (ShardIndex(seat), key.sign(compute_receipt_message(terms, ShardIndex(seat))))
        for seat, key in enumerate(keys[:num_signatures])
    )
    return encode_certificate(Certificate(terms=terms, signatures=signatures))
