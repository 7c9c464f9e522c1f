"""What waits in the queue costs the next block nothing: no recheck, and no walk over all of it (case 38)."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import coincurve
from abci_driver import Driver

from chain.abci.application import ChainApplication
from chain.cometbft import Timing, write_config
from chain.core import rlp
from chain.core.genesis import process_genesis
from chain.core.hashing import keccak256
from chain.store import Store

CHAIN_ID = 4242
NUM_WAITING = 5_000
NUM_SENDERS = 50
BLOCK_BYTES = 30_000
"""Some 260 transfers."""
MOST_SECONDS = 0.05
"""Of the processor, that waiting transactions may add to a block."""


class FastSigner:
    """Signs transfers at a tenth of eth-account's time."""

    def __init__(self, number: int) -> None:
        self.key = coincurve.PrivateKey(number.to_bytes(32, "big"))
        self.address = keccak256(self.key.public_key.format(compressed=False)[1:])[12:]

    def transfer(self, nonce: int) -> bytes:
        numbers = (CHAIN_ID, nonce, 0, 2 * 10**9, 21_000)
        fields = [*map(rlp.encode_integer, numbers), b"\xb0" * 20, rlp.encode_integer(1), b"", []]
        signature = self.key.sign_recoverable(keccak256(b"\x02" + rlp.encode(fields)), hasher=None)
        r, s = signature[:32].lstrip(b"\0"), signature[32:64].lstrip(b"\0")
        return b"\x02" + rlp.encode([*fields, rlp.encode_integer(signature[64]), r, s])


def make_block(driver: Driver) -> tuple[float, int]:
    """Propose out of the queue, execute, commit; return the processor's seconds and the transfers."""
    started = time.process_time()
    response = driver.block(driver.prepare([], max_tx_bytes=BLOCK_BYTES))
    seconds = time.process_time() - started
    assert all(result.code == 0 for result in response.tx_results)
    return seconds, len(response.tx_results)


def test_waiting_transactions_do_not_delay_the_block_after(tmp_path: Path) -> None:
    """Blocks of equal size, with thousands behind them and with none to speak of; the best of three each."""
    senders = [FastSigner(1_000 + index) for index in range(NUM_SENDERS)]
    raws = [sender.transfer(nonce) for nonce in range(NUM_WAITING // NUM_SENDERS) for sender in senders]
    seconds: dict[int, float] = {}
    for num_waiting in (1_300, NUM_WAITING):
        store = Store(tmp_path / str(num_waiting))
        driver = Driver(
            ChainApplication(store, {}, process_genesis),
            {"evmChainId": CHAIN_ID, "alloc": {"0x" + sender.address.hex(): str(10**24) for sender in senders}},
        )
        driver.init_chain()
        for raw in raws[:num_waiting]:
            assert driver.check(raw).code == 0
        make_block(driver)
        blocks = [make_block(driver) for _ in range(3)]
        assert len({size for _, size in blocks}) == 1
        assert blocks[0][1] > 200
        seconds[num_waiting] = min(each for each, _ in blocks)
        store.close()
    assert seconds[NUM_WAITING] < seconds[1_300] + MOST_SECONDS, seconds


def test_the_core_is_told_not_to_recheck(tmp_path: Path) -> None:
    write_config(tmp_path, moniker="m", rpc_listen="127.0.0.1:1", p2p_listen="127.0.0.1:2", timing=Timing())
    document = tomllib.loads((tmp_path / "config/config.toml").read_text())
    assert document["mempool"]["recheck"] is False
