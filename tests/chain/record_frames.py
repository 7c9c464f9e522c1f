"""Record what the real CometBFT sends: ``python tests/chain/record_frames.py`` rewrites the golden frames.

Two blocks with one transaction, and a query; each request once more than the test needs is left out.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import tempfile
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from eth_account import Account

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.abci.server import AbciProtocol
from chain.abci.wire import FrameReader
from chain.cometbft import Timing, find_cometbft
from chain.core.genesis import process_genesis
from chain.home import Addresses, create_home
from chain.ports import find_free_port
from chain.store import Store

OUTPUT = Path(__file__).parents[1] / "vectors" / "cometbft_frames.json"
ROOT = Path(__file__).parents[2]
KEY = b"\x01" * 32
NUM_BLOCKS = 4


class RecordingProtocol(AbciProtocol):
    """Writes down every request before it is answered."""

    recorded: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._recorder = FrameReader()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.recorded.extend(self._recorder.feed(data))
        super().data_received(data)


async def record(directory: Path) -> tuple[list[bytes], bytes]:
    """Run a validator for a few blocks and return its requests in order of arrival, and the last app hash."""
    app_state = {"evmChainId": 4242, "alloc": {Account.from_key(KEY).address: str(10**24)}}
    addresses = Addresses(rpc=f"127.0.0.1:{find_free_port()}", p2p=f"127.0.0.1:{find_free_port()}")
    timing = Timing(commit_milliseconds=100)
    create_home(
        directory, chain_id="golden", app_state=app_state, addresses=addresses, timing=timing, time=datetime.now(UTC)
    )
    store = Store(directory / "app")
    application = ChainApplication(store, {}, process_genesis)
    loop = asyncio.get_running_loop()
    socket = directory / "s"
    server = await loop.create_unix_server(lambda: RecordingProtocol(application, print), str(socket))
    binary = find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    process = await asyncio.create_subprocess_exec(
        *(str(binary), "start", "--home", str(directory), "--proxy_app", f"unix://{socket}"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    raw = Account.sign_transaction(
        {"type": 2, "chainId": 4242, "nonce": 0, "to": b"\xb0" * 20, "value": 1, "gas": 21_000}
        | {"maxFeePerGas": 2 * 10**9, "maxPriorityFeePerGas": 10**8},
        KEY,
    ).raw_transaction
    tx = base64.b64encode(bytes(raw)).decode()

    def call(method: str, **params: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(f"http://{addresses.rpc}", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()

    try:
        async with asyncio.timeout(60):
            while store.committed.height < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the store has no event to wait for
            await asyncio.to_thread(call, "broadcast_tx_sync", tx=tx)
            await asyncio.to_thread(
                call, "abci_query", path="/pending_nonce", data="1a642f0e3c3af545e7acbd38b07251b3990914f1"
            )
            while store.committed.height < NUM_BLOCKS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the store has no event to wait for
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 10)
        server.close()
    return RecordingProtocol.recorded, store.committed.app_hash


def main() -> None:
    """Rewrite the vector."""
    with tempfile.TemporaryDirectory() as directory:
        messages, app_hash = asyncio.run(record(Path(directory)))
    frames = [[str(pb.Request.FromString(message).WhichOneof("value")), message.hex()] for message in messages]
    lines = ",\n".join(f"  {json.dumps(frame)}" for frame in frames)
    OUTPUT.write_text(f'{{\n "app_hash": "{app_hash.hex()}",\n "frames": [\n{lines}\n ]\n}}\n')
    print(f"{len(frames)} frames", file=sys.stderr)


if __name__ == "__main__":
    main()
