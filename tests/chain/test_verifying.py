"""The verifier beside a served application: asked, killed, stopped, started again and ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import coincurve
import psutil
import pytest

from chain.abci import abci_pb2 as pb
from chain.abci import verifying
from chain.abci.application import ChainApplication
from chain.abci.busyness import BUSY_PER_SECOND, WINDOW_SECONDS, Busyness
from chain.abci.server import serve
from chain.abci.verifier_wire import Terms
from chain.abci.verifying import Verifier, VerifierUse
from chain.abci.wire import FrameReader, encode_frame
from chain.core import rlp
from chain.core.genesis import process_genesis
from chain.core.hashing import keccak256
from chain.core.records import Transaction
from chain.core.transactions import decode_transaction
from chain.store import Store

CHAIN_ID = 4242
KEYS = [coincurve.PrivateKey(bytes([number]) * 32) for number in range(1, 21)]
ADDRESSES = [keccak256(key.public_key.format(compressed=False)[1:])[12:] for key in KEYS]
APP_STATE = {"evmChainId": CHAIN_ID, "alloc": {f"0x{address.hex()}": str(10**24) for address in ADDRESSES}}
TERMS = Terms(chain_id=CHAIN_ID, genesis_hash=bytes(32), committees={})
FLUSH = encode_frame(pb.Request(flush=pb.RequestFlush()).SerializeToString())


def sign(number: int, *, chain_id: int = CHAIN_ID) -> bytes:
    """Sign the transfer ``number``: senders in turn, each by its nonces."""
    key, nonce = KEYS[number % len(KEYS)], number // len(KEYS)
    numbers = (chain_id, nonce, 0, 2 * 10**9, 21_000)
    fields = [*map(rlp.encode_integer, numbers), b"\xb0" * 20, rlp.encode_integer(1), b"", []]
    signature = key.sign_recoverable(keccak256(b"\x02" + rlp.encode(fields)), hasher=None)
    parts = (signature[64], int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"))
    return b"\x02" + rlp.encode([*fields, *map(rlp.encode_integer, parts)])


async def wait_until(condition: Callable[[], Any], why: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why
        await asyncio.sleep(0.005)


@pytest.fixture
async def verifier() -> AsyncIterator[tuple[Verifier, dict[bytes, Transaction]]]:
    learned: dict[bytes, Transaction] = {}
    started = Verifier(VerifierUse.ALWAYS, learned.__setitem__)
    started.attach(lambda: None)
    started.set_terms(TERMS)
    started.ask([b"nobody is there yet"])
    await wait_until(lambda: started.is_ready, "it starts")
    yield started, learned
    started.close()


async def test_real_process_says_what_decoding_says(verifier: tuple[Verifier, dict[bytes, Transaction]]) -> None:
    asked, learned = verifier
    good = [sign(number) for number in range(600)]
    bad = [sign(1, chain_id=1), b"", b"\x02", b"no transaction" * 9_000, good[0][:-1]]
    asked.ask(good + bad)
    assert all(map(asked.is_pending, good + bad))
    await wait_until(lambda: len(learned) == len(good) and not asked._batches, "all is answered")
    assert not any(map(asked.is_pending, good + bad))
    assert learned == {raw: decode_transaction(raw, CHAIN_ID) for raw in good}


async def test_verdict_for_another_chain_is_not_learned(verifier: tuple[Verifier, dict[bytes, Transaction]]) -> None:
    asked, learned = verifier
    asked.ask([sign(0)])
    asked.set_terms(Terms(chain_id=1, genesis_hash=bytes(32), committees={}))
    asked.ask([sign(0, chain_id=1), sign(1)])
    await wait_until(lambda: not asked.is_pending(sign(1)) and not asked._batches, "all is answered")
    assert set(learned) == {sign(0, chain_id=1)}


async def test_what_is_asked_is_bounded(
    verifier: tuple[Verifier, dict[bytes, Transaction]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _ = verifier
    monkeypatch.setattr(verifying, "MAX_ASKED", 10)
    asked.ask([sign(number) for number in range(11)])
    assert not asked.is_pending(sign(0))
    asked.ask([sign(number) for number in range(10)])
    asked.ask([sign(10)])
    assert asked.is_pending(sign(9))
    assert not asked.is_pending(sign(10))


async def test_stopped_process_is_not_waited_for_and_then_replaced(
    verifier: tuple[Verifier, dict[bytes, Transaction]], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    asked, learned = verifier
    monkeypatch.setattr(verifying, "HUNG_SECONDS", 0.5)
    monkeypatch.setattr(verifying, "RESTART_SECONDS", (0.0, 0.0))
    asked._pause = 0.0
    pid = asked.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    asked.ask([sign(0)])
    await wait_until(lambda: not asked.is_pending(sign(0)), "given up")
    assert time.monotonic() - started < 10 * verifying.WAIT_SECONDS
    asked.ask([sign(1)])
    assert not asked.is_pending(sign(1)), "nothing more is asked of one that is late"
    await wait_until(lambda: not psutil.pid_exists(pid), "killed")
    assert "doesn't answer" in caplog.text
    await wait_until(lambda: asked.ask([sign(2)]) or asked.is_pending(sign(2)) or sign(2) in learned, "another one")
    await wait_until(lambda: sign(2) in learned, "it answers")
    assert asked.pid != pid


async def test_late_answers_count(verifier: tuple[Verifier, dict[bytes, Transaction]]) -> None:
    asked, learned = verifier
    assert asked.pid is not None
    os.kill(asked.pid, signal.SIGSTOP)
    asked.ask([sign(0)])
    await wait_until(lambda: not asked.is_pending(sign(0)), "given up")
    os.kill(asked.pid, signal.SIGCONT)
    await wait_until(lambda: sign(0) in learned, "answered")
    asked.ask([sign(1)])
    assert not asked.is_pending(sign(1)), "there is no processor for it: it rests"
    await wait_until(lambda: asked.ask([sign(2)]) or asked.is_pending(sign(2)) or sign(2) in learned, "asked again")


async def test_one_that_talks_nonsense_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verifying, "COMMAND", (sys.executable, "-c", "import os; os.write(0, b'\\x02\\xc1\\xc1')"))
    asked = Verifier(VerifierUse.ALWAYS, lambda raw, transaction: None)
    asked.attach(lambda: None)
    asked.set_terms(TERMS)
    asked.ask([sign(0)])
    await wait_until(lambda: "can't be understood" in caplog.text, "noticed")
    assert asked.pid is None
    asked.ask([sign(0)])
    assert asked.pid is None, "not at once again"
    asked.close()


async def test_one_that_never_gets_ready_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verifying, "COMMAND", (sys.executable, "-c", "import sys; sys.stdin.read()"))
    monkeypatch.setattr(verifying, "START_SECONDS", 0.0)
    asked = Verifier(VerifierUse.ALWAYS, lambda raw, transaction: None)
    asked.attach(lambda: None)
    asked.set_terms(TERMS)
    asked.ask([sign(0)])
    pid = asked.pid
    assert pid is not None
    asked.ask([sign(0)])
    assert asked.pid is None
    assert "doesn't get ready" in caplog.text
    assert not psutil.pid_exists(pid)
    asked.close()


async def test_one_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(verifying, "COMMAND", ("/nonexistent/python",))
    asked = Verifier(VerifierUse.ALWAYS, lambda raw, transaction: None)
    asked.attach(lambda: None)
    asked.set_terms(TERMS)
    asked.ask([sign(0)])
    assert "no verifier can be started" in caplog.text
    assert not asked.is_pending(sign(0))
    asked.close()


class Core:
    """Plays CometBFT on two connections to a served application."""

    def __init__(self, application: ChainApplication, path: Path) -> None:
        self.application = application
        self.path = path

    async def connect(self) -> None:
        self.mempool = await asyncio.open_unix_connection(str(self.path))
        self.consensus = await asyncio.open_unix_connection(str(self.path))
        self.frames = FrameReader()

    def send_checks(self, transactions: list[bytes]) -> None:
        requests = (pb.Request(check_tx=pb.RequestCheckTx(tx=raw)) for raw in transactions)
        self.mempool[1].write(b"".join(encode_frame(each.SerializeToString()) for each in requests) + FLUSH)

    async def read_hashes(self, number: int) -> list[bytes]:
        """Return what the next checks' answers name, in the order on the wire."""
        answers: list[pb.Response] = []
        async with asyncio.timeout(20):
            while sum(answer.HasField("check_tx") for answer in answers) < number:
                data = await self.mempool[0].read(1 << 16)
                assert data, "connection closed early"
                answers += [pb.Response.FromString(message) for message in self.frames.feed(data)]
        checks = [answer.check_tx for answer in answers if answer.HasField("check_tx")]
        assert not any(check.code for check in checks)
        return [check.data for check in checks]

    async def make_block(self, height: int, transactions: list[bytes]) -> bytes:
        """Execute and commit; return the app hash."""
        finalize = pb.RequestFinalizeBlock(txs=transactions, height=height, hash=bytes(32), proposer_address=bytes(20))
        frames = FrameReader()
        answers: list[pb.Response] = []
        for request in (pb.Request(finalize_block=finalize), pb.Request(commit=pb.RequestCommit())):
            self.consensus[1].write(encode_frame(request.SerializeToString()) + FLUSH)
        async with asyncio.timeout(20):
            while len(answers) < 4:
                data = await self.consensus[0].read(1 << 20)
                assert data, "connection closed early"
                answers += [pb.Response.FromString(message) for message in frames.feed(data)]
        assert not any(result.code for result in answers[0].finalize_block.tx_results)
        return answers[0].finalize_block.app_hash


@contextlib.asynccontextmanager
async def run_core(directory: Path, use: VerifierUse) -> AsyncIterator[Core]:
    store = Store(directory / "app")
    application = ChainApplication(store, {}, process_genesis, verifier_use=use)
    request = pb.RequestInitChain(chain_id="c", app_state_bytes=json.dumps(APP_STATE).encode())
    application.process_init_chain(request)
    stopping, listening = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(application, directory / "s", stopping, listening=listening))
    await asyncio.wait_for(listening.wait(), 10)
    core = Core(application, directory / "s")
    await core.connect()
    try:
        yield core
    finally:
        for _, writer in (core.mempool, core.consensus):
            writer.close()
        stopping.set()
        await serving
        application.close()
        store.close()


async def test_killed_in_the_middle_the_chain_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Same answers in the same order, same app hashes, and another one is started."""
    monkeypatch.setattr(verifying, "RESTART_SECONDS", (0.0, 0.0))
    blocks = [[sign(number) for number in range(start, start + 400)] for start in range(0, 2_400, 400)]
    expected: list[bytes] = []
    for directory in (tmp_path / "alone", tmp_path / "with"):
        directory.mkdir()
    async with run_core(tmp_path / "alone", VerifierUse.NEVER) as core:
        for height, block in enumerate(blocks, 1):
            expected.append(await core.make_block(height, block))
    pids: set[int] = set()
    async with run_core(tmp_path / "with", VerifierUse.ALWAYS) as core:
        verifier = core.application._verifier
        verifier._pause = 0.0
        for height, block in enumerate(blocks, 1):
            if height > 1:
                await wait_until(lambda: verifier.ask([b"x"]) or verifier.is_ready, "there is one")
            core.send_checks(block)
            if verifier.is_ready:
                await wait_until(lambda block=block: any(map(verifier.is_pending, block)), "asked")
                assert verifier.pid is not None
                pids.add(verifier.pid)
                os.kill(verifier.pid, signal.SIGKILL)
            assert await core.read_hashes(len(block)) == [keccak256(raw) for raw in block]
            assert await core.make_block(height, block) == expected[height - 1]
    assert len(pids) == len(blocks) - 1
    assert caplog.text.count("has ended") == len(pids)
    assert not any(map(psutil.pid_exists, pids))


async def test_checks_are_answered_in_order_while_some_are_verified_elsewhere(tmp_path: Path) -> None:
    async with run_core(tmp_path, VerifierUse.ALWAYS) as core:
        core.application._verifier.ask([b"x"])
        await wait_until(lambda: core.application._verifier.is_ready, "it starts")
        transactions = [sign(number) for number in range(2_000)]
        for start in range(0, len(transactions), 40):
            core.application._verdicts.decode(transactions[start], CHAIN_ID)  # known: nobody is asked
        core.send_checks(transactions)
        assert await core.read_hashes(len(transactions)) == [keccak256(raw) for raw in transactions]


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def test_checks_whose_verdicts_come_during_a_block_go_on(tmp_path: Path) -> None:
    """Nothing else arrives from the verifier: what the block has taken in must set them going again."""
    async with run_core(tmp_path, VerifierUse.ALWAYS) as core:
        application = core.application
        application._verifier.ask([b"x"])
        await wait_until(lambda: application._verifier.is_ready, "it starts")
        transactions = [sign(number) for number in range(200)]
        core.send_checks(transactions)
        await wait_until(lambda: application._verifier._batches, "asked")
        deadline = time.monotonic() + 20
        while application._verifier._batches:  # as a long block does: the loop gets no turn
            assert time.monotonic() < deadline
            application._drain()
        assert await core.read_hashes(len(transactions)) == [keccak256(raw) for raw in transactions]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """``chain-node abci`` that always verifies elsewhere."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "app.toml").write_text("verifier = 1\nsnapshot_interval_blocks = 0\n")
    command = [sys.executable, "-m", "chain.cli", "abci", "--home", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield process, tmp_path / "abci.sock"
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_process_is_left(running: tuple[subprocess.Popen[bytes], Path], number: signal.Signals) -> None:
    process, path = running
    await wait_until(lambda: listens(path), "it listens")
    core = Core(None, path)  # type: ignore[arg-type]
    await core.connect()
    core.send_checks([sign(0)])
    await wait_until(lambda: psutil.Process(process.pid).children(), "its verifier starts")
    (child,) = psutil.Process(process.pid).children()
    assert child.cmdline()[2:] == ["chain.abci.verifier"]
    process.send_signal(number)
    await asyncio.to_thread(process.wait, 20)
    await wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "it ends, too")
    for _, writer in (core.mempool, core.consensus):
        writer.close()


def test_it_is_used_while_much_is_to_do_and_a_processor_is_free() -> None:
    moment, times = 0.0, (0, 0)
    busyness = Busyness(num_processors=2, clock=lambda: moment, read_times=lambda: times)
    much = int(BUSY_PER_SECOND * WINDOW_SECONDS) + 1
    busyness.note(much - 1)
    assert not busyness.is_worthwhile
    busyness.note(1)
    assert busyness.is_worthwhile, "as soon as it is known"
    moment, times = 1.0, (10**9, 10**8)
    busyness.note(0)
    assert not busyness.is_worthwhile, "nothing came"
    for second in range(2, 6):  # it waits for nine tenths of each
        moment, times = float(second), (second * 10**8, second * 9 * 10**8)
        busyness.note(10 * much)
    assert not busyness.is_worthwhile, "others take the processors"
    for second in range(6, 8):
        moment, times = float(second), (times[0] + 10**9, times[1])
        busyness.note(10 * much)
    assert busyness.is_worthwhile, "a processor again"
    alone = Busyness(num_processors=1, clock=lambda: moment, read_times=lambda: times)
    alone.note(100 * much)
    assert not alone.is_worthwhile, "there is only one"
