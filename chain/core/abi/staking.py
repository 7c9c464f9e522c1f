"""``Staking`` at 0x..1002: bonds of operators, free again after a lock."""

from __future__ import annotations

from chain.core.abi.declare import Contract, call, error, event, fields, payable, view
from chain.core.abi.shared import CALL_ERRORS

STAKING_ADDRESS = bytes.fromhex("0000000000000000000000000000000000001002")

STAKING = Contract(
    name="Staking",
    address=STAKING_ADDRESS,
    doc="Bonds of operators.",
    functions=(
        payable("bond", (), "Add the value sent to the sender's bond."),
        call("unbond", fields("uint256 amount"), "Start to free a part of the bond; it unlocks after unbondBlocks."),
        call("withdraw", (), "Take what has unlocked."),
        view("bondOf", fields("address owner"), fields("uint256 amount"), "The active bond."),
        view(
            "unbondingOf",
            fields("address owner"),
            fields("uint256 amount", "uint64 unlockHeight"),
            "What is being freed.",
        ),
        view("totalBonded", (), fields("uint256 amount"), "The sum of all active bonds."),
        view("unbondBlocks", (), fields("uint64 blocks"), "The lock, in blocks."),
    ),
    events=(
        event("Bonded", "", "indexed address owner", "uint256 amount"),
        event("Unbonded", "", "indexed address owner", "uint256 amount", "uint64 unlockHeight"),
        event("Withdrawn", "", "indexed address owner", "uint256 amount"),
    ),
    errors=(
        error("InsufficientBond", "", "uint256 expected", "uint256 got"),
        error("NothingUnlocked", "", "uint64 unlockHeight", "uint64 height"),
        error("ZeroAmount", ""),
        *CALL_ERRORS,
    ),
)
