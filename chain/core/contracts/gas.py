"""The published gas table of native calls.

A native call pays the transaction's intrinsic gas like any other, then the entry of its function, then
the variable parts.  The figures follow the work: a signature check is about 100 us, a record about 10 us,
and a block of 30M gas should take about a second.  A commit with 43 signatures stays below 1M.
"""

from __future__ import annotations

UNKNOWN_FUNCTION_GAS = 2_000
"""Of a call that names no function."""

CALLDATA_BYTE_GAS = 8
"""Of each byte of arguments, for decoding."""

STORED_BYTE_GAS = 200
"""Of each byte that a call stores for good: recipe, url, client text."""

SIGNATURE_GAS = 10_000
"""Of each ed25519 signature that is checked."""

LISTED_RECORD_GAS = 2_000
"""Of each record that a view returns in a list."""

ALLOWED_WORKER_GAS = 20_000
"""Of each entry of an allow-list."""

VIEW_GAS = 10_000
"""Of every view, before its list."""

WRITE_GAS: dict[str, int] = {
    # Training
    "createRun": 200_000,
    "fund": 40_000,
    "reclaim": 60_000,
    "allow": 30_000,
    "setParams": 60_000,
    "pause": 40_000,
    "resume": 40_000,
    "join": 100_000,
    "ready": 60_000,
    "leave": 60_000,
    "withdrawBond": 50_000,
    "commit": 200_000,
    "reveal": 60_000,
    "attest": 100_000,
    "reportMissing": 80_000,
    "checkpoint": 200_000,
    "recordEvaluation": 60_000,
    # Storage
    "registerNode": 120_000,
    "updateNode": 60_000,
    "retireNode": 40_000,
    "certify": 120_000,
    "renew": 80_000,
    "release": 80_000,
    "addNodeBond": 50_000,
    "withdrawNodeBond": 50_000,
    "challenge": 100_000,
    "answerChallenge": 100_000,
    # Staking
    "bond": 50_000,
    "unbond": 60_000,
    "withdraw": 50_000,
    "registerValidator": 120_000,
    "unjail": 60_000,
    "propose": 150_000,
    "approve": 80_000,
}
"""Gas of a state-changing function, by name; the names of the three contracts do not overlap."""
