"""Keys that sign through eth-account (the oracle), and the addresses of the chain's tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eth_account import Account

from chain.core.records import Transaction
from chain.core.transactions import decode_transaction
from chain.core.types import Address

EVM_CHAIN_ID = 4242
COUNTER = Address(b"\x77" * 20)
BOB = Address(b"\xb0" * 20)
PROPOSER = Address(b"\x99" * 20)
GWEI = 10**9


@dataclass(frozen=True, slots=True)
class Signer:
    """One key, signing through eth-account."""

    key: bytes

    @property
    def address(self) -> Address:
        return Address(bytes.fromhex(Account.from_key(self.key).address[2:]))

    def raw(self, nonce: int, **fields: Any) -> bytes:
        request: dict[str, Any] = {
            "type": 2,
            "chainId": EVM_CHAIN_ID,
            "nonce": nonce,
            "to": BOB,
            "value": 1,
            "gas": 21_000,
            "maxFeePerGas": 2 * GWEI,
            "maxPriorityFeePerGas": GWEI // 10,
            **fields,
        }
        if "gasPrice" in fields:
            for name in ("type", "maxFeePerGas", "maxPriorityFeePerGas"):
                del request[name]
        if request["to"] is None:
            del request["to"]
        return bytes(Account.sign_transaction(request, self.key).raw_transaction)

    def transaction(self, nonce: int, **fields: Any) -> Transaction:
        return decode_transaction(self.raw(nonce, **fields), EVM_CHAIN_ID)
