"""Record what a light client asks of real CometBFT validators: ``python tests/chain/record_light_block.py``."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from network import Network
from real_node import ROOT

from chain.cometbft import Timing
from chain.core.accounts import ACCOUNT_PREFIX
from chain.home import load_genesis
from chain.light_client import CometBftSource, LightClient
from chain.settings import NodeSettings

VECTOR = ROOT / "tests" / "vectors" / "light_block.json"
ADDRESS = "a0" * 20


class Recorder:
    """Passes questions on and keeps the answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, Any] = {}
        self._source = CometBftSource(url)

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._source.ask(method, params)
        self.answers[f"{method} {params.get('height', '')}".strip()] = answer
        return answer


def main() -> None:
    """Start three validators, read an account, write the vector."""
    with tempfile.TemporaryDirectory() as directory:
        network = Network(
            Path(directory),
            {"evmChainId": 4242, "alloc": {f"0x{ADDRESS}": "1000"}},
            num_validators=3,
            settings=NodeSettings(snapshot_interval_blocks=0),
            timing=Timing(commit_milliseconds=100),
        )
        try:
            network.start(range(3))
            for node in network.nodes:
                node.wait_for_height(5)
            recorder = Recorder(f"http://{network.nodes[0].addresses.rpc}")
            genesis = load_genesis(network.nodes[0].home)
            key = ACCOUNT_PREFIX + bytes.fromhex(ADDRESS)
            value, _ = LightClient(recorder, genesis=genesis).read(key)
        finally:
            network.close()
    assert value is not None
    document = {"genesis": genesis, "key": key.hex(), "value": value.hex(), **recorder.answers}
    VECTOR.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
