"""Staking through ABCI: validator updates, evidence, fees to operators, and rules that activate at a height."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from abci_driver import Driver
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.abci.errors import UnsupportedRules
from chain.core import accounts
from chain.core.abi.staking import STAKING_ADDRESS
from chain.core.contracts.registry import CODECS
from chain.core.contracts.staking.keys import NEWEST_RULES
from chain.core.contracts.staking.validators import compute_consensus_address, make_registration_message
from chain.core.genesis import get_supply
from chain.core.types import Address
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis

TOKEN = 10**18
CODEC = CODECS[Address(STAKING_ADDRESS)]


class Staked(Driver):
    """A chain with two genesis validators of power 10."""

    def __init__(self, store: Store, app_state: dict[str, Any]) -> None:
        super().__init__(ChainApplication(store, CONTRACTS, process_system_genesis), app_state)
        self.store = store
        self.keys = [Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (1, 2)]
        self.misbehavior: list[pb.Misbehavior] = []
        self.proposer = compute_consensus_address(self.public(0))

    def public(self, index: int) -> bytes:
        return self.keys[index].public_key().public_bytes_raw()

    def init_chain(self) -> None:
        request = pb.RequestInitChain(chain_id="test-chain", app_state_bytes=json.dumps(self.app_state).encode())
        request.validators.extend(
            pb.ValidatorUpdate(pub_key=pb.PublicKey(ed25519=self.public(index)), power=10) for index in (0, 1)
        )
        self.app_hash = self.application.process_init_chain(request).app_hash

    def finalize(self, txs: list[bytes]) -> pb.ResponseFinalizeBlock:
        request = pb.RequestFinalizeBlock(
            txs=txs, height=self.height + 1, hash=bytes(32), proposer_address=self.proposer
        )
        request.misbehavior.extend(self.misbehavior)
        self.misbehavior = []
        return self.application.process_finalize_block(request)

    def double_sign(self, index: int) -> None:
        self.misbehavior = [
            pb.Misbehavior(
                type=pb.DUPLICATE_VOTE,
                validator=pb.Validator(address=compute_consensus_address(self.public(index)), power=10),
                height=self.height,
            )
        ]


@pytest.fixture
def staked(tmp_path: Path, app_state: dict[str, Any]) -> Iterator[Staked]:
    store = Store(tmp_path / "app")
    made = Staked(store, {**app_state, "jailBlocks": 5})
    made.init_chain()
    yield made
    store.close()


def call(signer: Any, nonce: int, function: str, *args: object, value: int = 0) -> bytes:
    data = CODEC.by_name[function].encode_inputs(args)
    raw: bytes = signer.raw(nonce, to=STAKING_ADDRESS, data=data, value=value, gas=500_000)
    return raw


def updates(response: pb.ResponseFinalizeBlock) -> dict[bytes, int]:
    return {each.pub_key.ed25519: each.power for each in response.validator_updates}


def register(staked: Staked, signer: Any, nonce: int, key: Ed25519PrivateKey, value: int) -> bytes:
    parameters = staked.store.committed.genesis_info()
    proof = key.sign(make_registration_message(parameters.genesis_hash, signer.address))
    public = key.public_key().public_bytes_raw()
    return call(signer, nonce, "registerValidator", public, proof, value=value)


def test_genesis_validators_hold_bonds_that_are_part_of_the_supply(staked: Staked, app_state: dict[str, Any]) -> None:
    state = staked.store.committed.state
    assert accounts.get_account(state, Address(STAKING_ADDRESS))[1] == 20 * TOKEN
    assert get_supply(state) == sum(map(int, app_state["alloc"].values())) + 20 * TOKEN
    assert updates(staked.block([])) == {}


def test_a_new_validator_and_a_double_sign_reach_cometbft(staked: Staked, alice: Any) -> None:
    key = Ed25519PrivateKey.generate()
    response = staked.block([register(staked, alice, 0, key, 7 * TOKEN)])
    assert response.tx_results[0].code == 0
    assert updates(response) == {key.public_key().public_bytes_raw(): 7}
    supply = get_supply(staked.store.committed.state)
    staked.double_sign(1)
    response = staked.block([])
    assert updates(response) == {staked.public(1): 0}
    assert get_supply(staked.store.committed.state) == supply - TOKEN // 2
    logs = [CODEC.decode_log(each) for each in staked.store.committed.timer_logs(staked.height)]
    names = [decoded[0] for decoded in logs if decoded is not None]
    assert names == ["ValidatorSlashed", "ValidatorJailed", "ValidatorPowerChanged"]


def test_priority_fees_reach_the_operator(staked: Staked, alice: Any, carol: Any) -> None:
    tip = 21_000 * 10**8
    staked.block([alice.raw(0)])
    state = staked.store.committed.state
    assert accounts.get_account(state, staked.proposer)[1] == tip, "until its key names an account"
    before = accounts.get_account(state, carol.address)[1]
    response = staked.block([register(staked, carol, 0, staked.keys[0], 0)])
    assert response.tx_results[0].code == 0
    after = accounts.get_account(staked.store.committed.state, carol.address)[1]
    gas = response.tx_results[0].gas_used
    assert after == before - gas * 11 * 10**8 + tip + gas * 10**8, "what it had earned, with this block's fee"
    assert updates(response) == {}, "the same key, the same power"
    staked.block([alice.raw(1)])
    state = staked.store.committed.state
    assert accounts.get_account(state, carol.address)[1] == after + tip
    block = staked.store.committed.block(3)
    assert block is not None
    assert block.proposer == carol.address


def test_rules_activate_at_their_height_and_unknown_ones_stop_the_node(staked: Staked, alice: Any, carol: Any) -> None:
    staked.block([register(staked, alice, 0, staked.keys[0], 0), register(staked, carol, 0, staked.keys[1], 0)])
    newer = NEWEST_RULES + 1
    activation = staked.height + 4
    response = staked.block([call(alice, 1, "propose", "rules", newer, activation)])
    assert response.tx_results[0].code == 0
    assert staked.block([call(carol, 1, "approve", 1)]).tx_results[0].code == 0
    while staked.height < activation - 1:
        staked.block([])
    with pytest.raises(UnsupportedRules, match=f"from block {activation} on the chain follows rules {newer}"):
        staked.finalize([])


def test_a_gas_limit_of_governance_binds_the_block_of_its_height(staked: Staked, alice: Any, carol: Any) -> None:
    staked.block([register(staked, alice, 0, staked.keys[0], 0), register(staked, carol, 0, staked.keys[1], 0)])
    activation = staked.height + 3
    staked.block([call(alice, 1, "propose", "gasLimit", 1_000_000, activation)])
    staked.block([call(carol, 1, "approve", 1)])
    assert staked.height == activation - 1
    staked.block([alice.raw(2, gas=1_000_001)])
    blocks = [staked.store.committed.block(height) for height in (activation - 1, activation)]
    assert [block.gas_limit for block in blocks if block is not None] == [60_000_000, 1_000_000]
    assert staked.check(alice.raw(3, gas=1_000_001)).code != 0
