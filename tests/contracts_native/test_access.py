"""Who may call what: every state-changing function of the three contracts, by every role (case 30).

Each call is one that the right sender could make, so what stands in the way is who sends it.  A refusal leaves nothing
behind.
"""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from driver import GENESIS_HASH, Chain, Reverted, make_address, make_hash, run_params

from chain.core.abi.declare import Mutability
from chain.core.abi.staking import STAKING
from chain.core.abi.storage import STORAGE
from chain.core.abi.training import TRAINING
from chain.core.contracts.staking.validators import make_registration_message
from da.core.receipt import key_proof_message

ROLES = ("owner", "ann", "bob", "new", "node0", "tenant", "val", "saver", "eve")
"""Of the run: its owner, two members (ann has committed to both rounds, bob to one), one who only joined.  Of storage:
a node's operator, who pays for a blob.  Of staking: a validator, somebody with a bond.  Nobody at all."""
WORKS = None
BLOB = make_hash("tenant's blob")


class World:
    """A chain in which every role has something to lose."""

    def __init__(self) -> None:
        self.chain = chain = Chain()
        self.run = chain.create_run(numFragments=1, overlap=1)
        chain.join(self.run, "ann", "bob")
        digest = chain.struct("Training", "run", self.run)["recipeDigest"]
        chain.call("Training", "join", self.run, digest, bytes(20), "", sender="new")
        chain.advance()
        for t, name in ((0, "ann"), (0, "bob"), (1, "ann")):
            chain.commit(self.run, t, name)
        chain.advance()
        chain.call("Storage", "certify", chain.certificate(BLOB), sender="tenant", value=10**15)
        proof = self.prove_key("val")
        chain.call("Staking", "registerValidator", *proof, sender="val", value=10**20)
        chain.call("Staking", "bond", sender="saver", value=10**18)
        chain.advance()
        self.proposal = chain.call("Staking", "propose", "unbondBlocks", 400, chain.height + 900, sender="val")
        for role in ROLES:
            chain.fund(role)
        self.base = chain.struct("Training", "round", self.run, 1)["baseRoot"]

    def prove_key(self, role: str) -> tuple[bytes, bytes]:
        key = Ed25519PrivateKey.from_private_bytes(make_hash(("validator", role)))
        message = make_registration_message(GENESIS_HASH, make_address(role))
        return key.public_key().public_bytes_raw(), key.sign(message)

    def arguments(self, function: str, role: str) -> tuple[tuple[Any, ...], int]:
        """Return the arguments and the value with which the right sender would succeed."""
        chain, run, base = self.chain, self.run, self.base
        key = Ed25519PrivateKey.from_private_bytes(make_hash(("receipts", role)))
        node = ("http://h:1", key.public_key().public_bytes_raw())
        node_proof = key.sign(key_proof_message(GENESIS_HASH, make_address(role)))
        digest = chain.struct("Training", "run", run)["recipeDigest"]
        height = chain.height
        known: dict[str, tuple[tuple[Any, ...], int]] = {
            "createRun": ((run_params(), b"", make_hash("g")), 0),
            "fund": ((run,), 1),
            "reclaim": ((run,), 0),
            "allow": ((run, [], True), 0),
            "setParams": ((run, run_params(numFragments=1)), 0),
            "pause": ((run,), 0),
            "resume": ((run,), 0),
            "join": ((run, digest, bytes(20), ""), 0),
            "ready": ((run, base), 0),
            "leave": ((run,), 0),
            "withdrawBond": ((run,), 0),
            "commit": ((run, 1, base, make_hash("d"), chain.certificate(make_hash(("p", role))), 0, 0), 0),
            "reveal": ((run, 0, make_hash("k")), 0),
            "attest": ((run, 0, 0, make_hash("r"), 0, 0, 0), 0),
            "reportMissing": ((run, 0, 0, 1), 0),
            "checkpoint": ((run, 0, 0, chain.certificate(make_hash("q"), tier=1)), 0),  # type: ignore[arg-type]
            "recordEvaluation": ((run, 0, 1), 0),
            "registerNode": ((*node, node_proof, 10**9), 0),
            "updateNode": (("http://h:2", 10**9), 0),
            "retireNode": ((), 0),
            "addNodeBond": ((), 1),
            "withdrawNodeBond": ((), 0),
            "certify": ((chain.certificate(make_hash(("b", role))),), 10**15),
            "renew": ((BLOB, height + 3_000), 10**15),
            "release": ((BLOB,), 0),
            "challenge": ((BLOB, 0, 0), 10**18),
            "answerChallenge": ((BLOB, 0, b"", b"", b""), 0),
            "bond": ((), 1),
            "unbond": ((1,), 0),
            "withdraw": ((), 0),
            "registerValidator": (self.prove_key(role), 10**18),
            "unjail": ((), 0),
            "propose": (("unbondBlocks", 300, height + 1_000), 0),
            "approve": ((self.proposal,), 0),
        }
        return known[function]

    def outcome(self, contract: str, function: str, role: str) -> str | None:
        """Return the refusal's name, None where it works; the chain is as before either way."""
        arguments, value = self.arguments(function, role)
        before = dict(self.chain.state.changes())
        mark = self.chain.state.begin()
        try:
            self.chain.call(contract, function, *arguments, sender=role, value=value)
        except Reverted as reverted:
            after = {key: each for key, each in self.chain.state.changes() if each is not None}
            assert after == {key: each for key, each in before.items() if each is not None}
            return reverted.name
        else:
            return WORKS
        finally:
            self.chain.state.rollback(mark)


MATRIX: dict[tuple[str, str], tuple[str | None, dict[str, str | None]]] = {
    ("Training", "createRun"): (WORKS, {}),
    ("Training", "fund"): (WORKS, {}),
    ("Training", "reclaim"): ("NotOwner", {"owner": "WrongRunState"}),
    ("Training", "allow"): ("NotOwner", {"owner": WORKS}),
    ("Training", "setParams"): ("NotOwner", {"owner": WORKS}),
    ("Training", "pause"): ("NotOwner", {"owner": WORKS}),
    ("Training", "resume"): ("NotOwner", {"owner": "WrongRunState"}),
    ("Training", "join"): (WORKS, {"ann": "AlreadyMember", "bob": "AlreadyMember", "new": "AlreadyMember"}),
    ("Training", "ready"): ("NotMember", {"ann": WORKS, "bob": WORKS, "new": WORKS}),
    ("Training", "leave"): ("NotMember", {"ann": WORKS, "bob": WORKS, "new": WORKS}),
    ("Training", "withdrawBond"): (
        "NotMember",
        {"ann": "NothingToWithdraw", "bob": "NothingToWithdraw", "new": "NothingToWithdraw"},
    ),
    ("Training", "commit"): ("NotEligible", {"ann": "AlreadyCommitted", "bob": WORKS}),
    ("Training", "reveal"): ("WrongRoundState", {}),
    ("Training", "attest"): ("NotEligible", {"ann": WORKS, "bob": WORKS}),
    ("Training", "reportMissing"): ("NotEligible", {"ann": WORKS, "bob": WORKS}),
    ("Training", "checkpoint"): ("PartAlreadyStored", {}),
    ("Training", "recordEvaluation"): ("NotMember", {"ann": WORKS, "bob": WORKS, "new": "NotEligible"}),
    ("Storage", "registerNode"): (WORKS, {"node0": "NodeAlreadyRegistered"}),
    ("Storage", "updateNode"): ("UnknownNode", {"node0": WORKS}),
    ("Storage", "retireNode"): ("UnknownNode", {"node0": WORKS}),
    ("Storage", "addNodeBond"): ("UnknownNode", {"node0": WORKS}),
    ("Storage", "withdrawNodeBond"): ("UnknownNode", {"node0": "BondTooSmall"}),
    ("Storage", "certify"): (WORKS, {}),
    ("Storage", "renew"): ("NoLease", {"tenant": WORKS}),
    ("Storage", "release"): ("NoLease", {"tenant": WORKS}),
    ("Storage", "challenge"): (WORKS, {}),
    ("Storage", "answerChallenge"): ("NoChallenge", {}),
    ("Staking", "bond"): (WORKS, {}),
    ("Staking", "unbond"): ("InsufficientBond", {"val": WORKS, "saver": WORKS}),
    ("Staking", "withdraw"): ("ZeroAmount", {}),
    ("Staking", "registerValidator"): (WORKS, {"val": "AlreadyValidator"}),
    ("Staking", "unjail"): ("NotValidator", {"val": "NotJailed"}),
    ("Staking", "propose"): ("NotValidator", {"val": WORKS}),
    ("Staking", "approve"): ("NotValidator", {"val": "ProposalClosed"}),
}
"""(contract, function) -> what everybody gets, and who gets something else."""


@pytest.fixture(scope="module")
def world() -> World:
    """Made once: no call leaves anything behind."""
    return World()


@pytest.mark.parametrize("role", ROLES)
def test_only_who_may_acts(world: World, role: str) -> None:
    for (contract, function), (others, exceptions) in MATRIX.items():
        expected = exceptions.get(role, others)
        assert world.outcome(contract, function, role) == expected, (contract, function)


def test_the_matrix_is_whole() -> None:
    writes = {
        (contract.name, function.name)
        for contract in (TRAINING, STORAGE, STAKING)
        for function in contract.functions
        if function.mutability is not Mutability.VIEW
    }
    assert set(MATRIX) == writes
    assert all(set(exceptions) <= set(ROLES) for _, exceptions in MATRIX.values())
