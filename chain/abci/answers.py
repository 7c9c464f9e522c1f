"""What the application answers CometBFT, in its protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from chain.abci import abci_pb2 as pb
from chain.abci.wire import encode_length
from chain.core.contracts.staking.keys import POWER_PREFIX
from chain.core.errors import CODE_EXECUTION_FAILED, CODESPACE, InvalidTransaction
from chain.core.record_codec import unpack
from chain.core.records import Receipt, Transaction

_REMEMBERED_RESULTS = 64
"""Most transfers of a block have the same one."""

QUERY_NOT_FOUND = 1
"""Result code of a query that names nothing."""


def refuse_query(reason: str) -> pb.ResponseQuery:
    """Say that a query names nothing."""
    return pb.ResponseQuery(code=QUERY_NOT_FOUND, log=reason, codespace=CODESPACE)


def refuse_transaction(error: InvalidTransaction) -> pb.ResponseCheckTx:
    """Say why a transaction is not taken."""
    return pb.ResponseCheckTx(code=error.code, log=str(error), codespace=CODESPACE)


def encode_admission(transaction: Transaction) -> bytes:
    """Return a ResponseCheckTx that takes a transaction: its hash as data (field 2), its gas limit (5)."""
    return b"\x12\x20" + transaction.hash + b"\x28" + encode_length(transaction.gas_limit)


def make_validator_updates(changes: Sequence[tuple[bytes, bytes | None]]) -> list[pb.ValidatorUpdate]:
    """Return what CometBFT must be told of the validator set: keys whose power the block changed."""
    return [
        pb.ValidatorUpdate(
            pub_key=pb.PublicKey(ed25519=key[len(POWER_PREFIX) :]), power=0 if value is None else unpack(value)
        )
        for key, value in changes
        if key.startswith(POWER_PREFIX)
    ]


def make_result(result: Receipt | InvalidTransaction, transaction: Any) -> pb.ExecTxResult:
    """Return what a block says of one of its transactions; the same object for the same words."""
    if isinstance(result, InvalidTransaction):
        return pb.ExecTxResult(code=result.code, log=str(result), codespace=CODESPACE)
    return _make_executed(result.status, result.output, result.error, transaction.gas_limit, result.gas_used)


@lru_cache(_REMEMBERED_RESULTS)
def _make_executed(status: int, output: bytes, error: str, gas_wanted: int, gas_used: int) -> pb.ExecTxResult:
    return pb.ExecTxResult(
        code=0 if status else CODE_EXECUTION_FAILED,
        data=output,
        log=error,
        gas_wanted=gas_wanted,
        gas_used=gas_used,
        codespace="" if status else CODESPACE,
    )
