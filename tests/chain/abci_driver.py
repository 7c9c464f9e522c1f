"""Plays CometBFT: calls an application as the core of one validator does."""

from __future__ import annotations

import json
from typing import Any

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication


class Driver:
    """Plays the core of one validator."""

    def __init__(self, application: ChainApplication, app_state: dict[str, Any]) -> None:
        self.application = application
        self.app_state = app_state
        self.height = 0
        self.app_hash = b""

    def make_init_request(self) -> pb.RequestInitChain:
        request = pb.RequestInitChain(chain_id="test-chain", app_state_bytes=json.dumps(self.app_state).encode())
        request.time.seconds = 1_700_000_000
        return request

    def init_chain(self) -> None:
        self.app_hash = self.application.process_init_chain(self.make_init_request()).app_hash

    def check(self, raw: bytes) -> pb.ResponseCheckTx:
        return self.application.process_check_tx(pb.RequestCheckTx(tx=raw))

    def prepare(self, txs: list[bytes], max_tx_bytes: int = 1 << 22) -> list[bytes]:
        request = pb.RequestPrepareProposal(txs=txs, max_tx_bytes=max_tx_bytes, height=self.height + 1)
        return list(self.application.process_prepare_proposal(request).txs)

    def finalize(self, txs: list[bytes]) -> pb.ResponseFinalizeBlock:
        request = pb.RequestFinalizeBlock(
            txs=txs, height=self.height + 1, hash=bytes(32), proposer_address=b"\x99" * 20
        )
        request.time.seconds = 1_700_000_000 + self.height
        return self.application.process_finalize_block(request)

    def commit(self) -> None:
        self.application.process_commit(pb.RequestCommit())
        self.height += 1

    def block(self, txs: list[bytes]) -> pb.ResponseFinalizeBlock:
        response = self.finalize(txs)
        self.app_hash = response.app_hash
        self.commit()
        return response

    def query(self, path: str, data: bytes = b"", prove: bool = False) -> pb.ResponseQuery:
        return self.application.process_query(pb.RequestQuery(path=path, data=data, prove=prove))
