"""``Staking`` at 0x..1002: bonds of operators, the validators that they back, and governance."""

from __future__ import annotations

from chain.core.abi.declare import Contract, call, error, event, fields, payable, struct, view
from chain.core.abi.shared import CALL_ERRORS

STAKING_ADDRESS = bytes.fromhex("0000000000000000000000000000000000001002")

VALIDATOR = struct(
    "Validator",
    "A validator; power 0: not in the set. jailedUntil 0: not jailed. A genesis validator whose key has not named an "
    "account yet has its consensus address as operator.",
    "address operator",
    "bytes32 key",
    "address consensusAddress",
    "uint256 bond",
    "uint64 power",
    "uint64 jailedUntil",
    "uint256 slashed",
)

STAKING_PARAMS = struct(
    "StakingParams",
    "What governance may change, with gasLimit and baseFeeWei.",
    "uint64 unbondBlocks",
    "uint256 powerUnitWei",
    "uint256 minValidatorBondWei",
    "uint32 maxValidators",
    "uint32 doubleSignSlashPpm",
    "uint64 jailBlocks",
    "uint32 rules",
)

PROPOSAL = struct(
    "Proposal",
    "A wish to change a parameter from a height on. state: 0 none, 1 OPEN, 2 PASSED, 3 ACTIVE, 4 FAILED.",
    "uint64 proposal",
    "uint8 state",
    "string name",
    "uint256 value",
    "uint64 activationHeight",
    "address proposer",
    "address[] voters",
)

STAKING = Contract(
    name="Staking",
    address=STAKING_ADDRESS,
    doc="Bonds of operators, validators and governance.",
    functions=(
        payable("bond", (), "Add the value sent to the sender's bond."),
        call("unbond", fields("uint256 amount"), "Start to free a part of the bond; it unlocks after unbondBlocks."),
        call("withdraw", (), "Take what has unlocked."),
        payable(
            "registerValidator",
            fields("bytes32 key", "bytes proof"),
            "Become a validator with the sender's bond and the value sent; proof is the key's signature over the "
            "sender's address. Also how the owner of a genesis validator's key takes its bond and fees.",
        ),
        call("unjail", (), "Return to the set when the time is over."),
        call(
            "propose",
            fields("string name", "uint256 value", "uint64 activationHeight"),
            "Validator: propose a parameter's value from a height on; counts as the proposer's approval.",
            fields("uint64 proposal"),
        ),
        call("approve", fields("uint64 proposal"), "Validator: approve; it passes above two thirds of voting bonds."),
        view("bondOf", fields("address owner"), fields("uint256 amount"), "The active bond."),
        view(
            "unbondingOf",
            fields("address owner"),
            fields("uint256 amount", "uint64 unlockHeight"),
            "What is being freed.",
        ),
        view("totalBonded", (), fields("uint256 amount"), "The sum of all active bonds."),
        view("unbondBlocks", (), fields("uint64 blocks"), "The lock, in blocks."),
        view("validator", fields("address operator"), fields((VALIDATOR, "info")), "A validator; key 0: none."),
        view("validators", (), fields((VALIDATOR, "list[]")), "All validators by operator, jailed ones too."),
        view(
            "operatorOf",
            fields("address consensusAddress"),
            fields("address operator"),
            "Who gets a proposer's fees; the address itself while its key has named nobody.",
        ),
        view("stakingParams", (), fields((STAKING_PARAMS, "params")), "The parameters in force."),
        view("numProposals", (), fields("uint64 count"), "Number of proposals; ids are 1..count."),
        view("proposal", fields("uint64 proposal"), fields((PROPOSAL, "info")), "A proposal."),
    ),
    events=(
        event("Bonded", "", "indexed address owner", "uint256 amount"),
        event("Unbonded", "", "indexed address owner", "uint256 amount", "uint64 unlockHeight"),
        event("Withdrawn", "", "indexed address owner", "uint256 amount"),
        event("ValidatorRegistered", "", "indexed address operator", "bytes32 key"),
        event(
            "ValidatorPowerChanged", "Acts two blocks later.", "indexed address operator", "bytes32 key", "uint64 power"
        ),
        event(
            "ValidatorSlashed",
            "kind: 1 double sign, 2 light client attack.",
            "indexed address operator",
            "uint256 amount",
            "uint64 height",
            "uint8 kind",
        ),
        event("ValidatorJailed", "", "indexed address operator", "uint64 jailedUntil"),
        event("ValidatorUnjailed", "", "indexed address operator"),
        event(
            "ParameterProposed",
            "",
            "indexed uint64 proposal",
            "indexed address proposer",
            "string name",
            "uint256 value",
            "uint64 activationHeight",
        ),
        event("ProposalPassed", "", "indexed uint64 proposal", "uint64 activationHeight"),
        event("ProposalFailed", "Not enough votes before its height.", "indexed uint64 proposal"),
        event("ParameterChanged", "From the next block on.", "indexed uint64 proposal", "string name", "uint256 value"),
    ),
    errors=(
        error("InsufficientBond", "", "uint256 expected", "uint256 got"),
        error("NothingUnlocked", "", "uint64 unlockHeight", "uint64 height"),
        error("ZeroAmount", ""),
        error("AlreadyValidator", "", "address operator", "bytes32 key"),
        error("KeyInUse", "", "bytes32 key", "address operator"),
        error("BadKeyProof", "The signature is not the key's over this chain and sender.", "bytes32 key"),
        error("ValidatorBondTooSmall", "", "uint256 expected", "uint256 got"),
        error("NotValidator", "", "address operator"),
        error("TooManyValidators", "", "uint32 limit"),
        error("NotJailed", "", "address operator"),
        error("StillJailed", "", "uint64 jailedUntil", "uint64 height"),
        error("LastValidator", "Nobody else could make blocks.", "uint256 expected", "uint256 got"),
        error("UnknownParameter", "", "string name"),
        error("BadParameter", "", "string name", "uint256 least", "uint256 most", "uint256 got"),
        error("BadActivationHeight", "", "uint64 earliest", "uint64 got"),
        error("TooManyProposals", "", "uint32 limit"),
        error("UnknownProposal", "", "uint64 proposal"),
        error("ProposalClosed", "", "uint64 proposal", "uint8 state"),
        error("AlreadyInFavour", "", "uint64 proposal", "address operator"),
        *CALL_ERRORS,
    ),
)
