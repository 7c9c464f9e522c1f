"""The example contract: compiled as checked in, and paid when a real round machine says FINAL and ACCEPTED."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from eth_abi import decode
from evm_pair import calldata, new_parameters

from chain.core import accounts
from chain.core.accumulator import prove
from chain.core.environment import BlockEnvironment, CallResult
from chain.core.evm.addresses import compute_create_address
from chain.core.evm.execution import run_evm
from chain.core.rounds import archive
from chain.core.types import Address, Height
from chain.system import CONTRACTS
from contracts.compile import FOLDER, render_artifacts

MONEY = 10**18
OFFER = "offer(uint64,uint64,address,uint64)"


def _load_driver() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "contracts_native/driver.py"
    spec = importlib.util.spec_from_file_location("bounty_driver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bounty_driver"] = module
    spec.loader.exec_module(module)
    return module


driver = _load_driver()


class BountyChain(driver.Chain):  # type: ignore[misc, name-defined]
    """The contracts' chain with users' contracts on it."""

    def __init__(self) -> None:
        super().__init__()
        self.sponsor = self.fund("sponsor")
        artifact = json.loads((FOLDER / "examples/Bounty.json").read_text())
        self.bounty = compute_create_address(self.sponsor, 0)
        assert self.run(self.sponsor, None, bytes.fromhex(artifact["bytecode"][2:])).status == 1

    def run(self, sender: Address, to: Address | None, data: bytes, value: int = 0) -> CallResult:
        nonce = accounts.get_nonce(self.state, sender)
        accounts.bump_nonce(self.state, sender)
        environment = BlockEnvironment(
            height=Height(self.height),
            time_seconds=self.height,
            proposer=Address(b"\x99" * 20),
            block_seed=self.seed,
            parameters=new_parameters(driver.GENESIS_HASH),
        )
        before = self.total_money()
        result = run_evm(
            self.state,
            environment,
            CONTRACTS,
            sender=sender,
            nonce=nonce,
            to=to,
            value=value,
            data=data,
            gas_limit=5_000_000,
            gas_price=0,
        )
        assert self.total_money() == before
        return result

    def send(self, signature: str, *values: Any, value: int = 0) -> CallResult:
        return self.run(self.sponsor, self.bounty, calldata(signature, *values), value)

    def offer(self, run: int, t: int, worker: str, blocks: int = 100) -> int:
        found = self.send(OFFER, run, t, _shown(driver.make_address(worker)), self.height + blocks, value=MONEY)
        assert found.status == 1, found.error
        return int(decode(["uint256"], found.output)[0])

    def is_earned(self, offer: int) -> bool:
        return bool(decode(["bool"], self.send("isEarned(uint256)", offer).output)[0])


def _shown(address: bytes) -> str:
    return "0x" + address.hex()


@pytest.fixture
def chain() -> BountyChain:
    """A chain with the bounty deployed."""
    return BountyChain()


def _play(chain: BountyChain, run: int, t: int, *names: str) -> None:
    for name in names:
        chain.commit(run, t, name)
    chain.advance()
    chain.attest(run, t, "ann", "bob", "cem")
    chain.advance()


def test_a_worker_is_paid_when_its_update_was_accepted(chain: BountyChain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann", "bob", "cem")
    chain.advance()
    first, other = chain.offer(run, 0, "ann"), chain.offer(run, 0, "dee")
    assert accounts.get_balance(chain.state, chain.bounty) == 2 * MONEY
    assert not chain.is_earned(first)
    assert chain.send("claim(uint256)", first).output == calldata("NotEarned(uint256)", first)
    _play(chain, run, 0, "ann", "bob", "cem")
    assert (chain.is_earned(first), chain.is_earned(other)) == (True, False)
    before = chain.balance("ann")
    assert chain.send("refund(uint256)", first).status == 0
    assert chain.send("claim(uint256)", first).status == 1
    assert chain.balance("ann") == before + MONEY
    assert chain.send("claim(uint256)", first).output == calldata("UnknownOffer(uint256)", first)
    # dee took no part, and the round has settled: no need to wait for the deadline
    assert chain.send("refund(uint256)", other).status == 1
    assert accounts.get_balance(chain.state, chain.bounty) == 0


def test_a_refused_update_earns_nothing(chain: BountyChain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann", "bob", "cem")
    chain.advance()
    offer = chain.offer(run, 0, "cem")
    for name in ("ann", "bob", "cem"):
        chain.commit(run, 0, name)
    chain.advance()
    chain.attest(run, 0, "ann", "bob", "cem", refused=0b100)
    chain.advance()
    assert chain.struct("Training", "update", run, 0, driver.make_address("cem"))["fate"] == 3
    assert chain.send("claim(uint256)", offer).status == 0
    assert chain.send("refund(uint256)", offer).status == 1


def test_the_sponsor_has_the_money_back_after_the_deadline_only(chain: BountyChain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    offer = chain.offer(run, 3, "ann", blocks=5)
    chain.advance(5)
    refused = chain.send("refund(uint256)", offer)
    assert refused.output == calldata("NotLost(uint256,uint64,uint256)", offer, chain.height, chain.height)
    chain.advance()
    before = chain.balance("sponsor")
    assert chain.send("refund(uint256)", offer).status == 1
    assert chain.balance("sponsor") == before + MONEY


def test_a_round_that_has_left_the_state_is_claimed_by_its_proof(
    chain: BountyChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[bytes] = []
    encode = archive.encode_archived

    def keep(*parts: Any) -> bytes:
        records.append(encode(*parts))
        return records[-1]

    monkeypatch.setattr(archive, "encode_archived", keep)
    run = chain.create_run(numFragments=1, overlap=0, checkpointInterval=4, numCheckpointParts=1, numRounds=100)
    chain.join(run, "ann", "bob", "cem")
    chain.advance()
    earned, absent = chain.offer(run, 2, "ann", blocks=10_000), chain.offer(run, 2, "dee", blocks=100)
    for t in range(archive.KEPT_ROUNDS + 8):
        _play(chain, run, t, "ann", "bob", "cem")
        if (t + 1) % 4 == 0:
            uploader = chain.view("Training", "checkpointPartOf", run, t + 1)[0]
            chain.store_part(run, t + 1, 0, sender=uploader)
    chain.advance(3)
    leaves = [archive.compute_record_leaf(record) for record in records]
    assert len(leaves) > 3
    assert chain.send("claim(uint256)", earned).output == calldata("RoundLeft(uint64,uint64)", run, 2)
    assert not chain.is_earned(earned)
    claim = "claimArchived(uint256,bytes,bytes32[])"
    assert chain.send(claim, earned, records[3], prove(leaves, 3)).status == 0
    lost = chain.send(claim, absent, records[2], prove(leaves, 2))
    assert lost.output == calldata("NotEarned(uint256)", absent)
    before = chain.balance("ann")
    assert chain.send(claim, earned, records[2], prove(leaves, 2)).status == 1
    assert chain.balance("ann") == before + MONEY
    chain.advance(101)
    assert chain.send("refund(uint256)", absent).status == 1


def test_invalid_offers(chain: BountyChain) -> None:
    ann = _shown(driver.make_address("ann"))
    assert chain.send(OFFER, 9, 0, ann, 10**6, value=1).output == calldata("UnknownRun(uint64)", 9)
    run = chain.create_run()
    assert chain.send(OFFER, run, 0, ann, 10**6).output == calldata("NothingOffered()")
    late = chain.send(OFFER, run, 0, ann, chain.height, value=1)
    assert late.output == calldata("DeadlinePassed(uint64,uint256)", chain.height, chain.height)
    assert chain.send("claim(uint256)", 7).output == calldata("UnknownOffer(uint256)", 7)


def test_solc_compiles_to_what_is_checked_in(npm_package: Callable[[str], tuple[str, Path]]) -> None:
    for path, wanted in render_artifacts(*npm_package("solc")).items():
        assert (FOLDER / path).read_text() == wanted, f"run python -m contracts.compile: contracts/{path} is stale"
