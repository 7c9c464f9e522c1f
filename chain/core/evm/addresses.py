"""Addresses of contracts that are about to be created (yellow paper 7, EIP-1014)."""

from __future__ import annotations

from chain.core import rlp
from chain.core.hashing import keccak256
from chain.core.types import Address


def compute_create_address(sender: bytes, nonce: int) -> Address:
    """Return where a creation by ``sender`` under ``nonce`` puts its code."""
    return Address(keccak256(rlp.encode([sender, rlp.encode_integer(nonce)]))[12:])
