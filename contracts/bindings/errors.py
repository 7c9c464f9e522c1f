"""Why a call or a transaction did not do what was asked, for people and for programs.

BindingError
├── ChainUnreachable        no URL answered in time
│   └── NotJsonRpc          what answers at every URL is no chain node
├── WrongChain              a URL serves another chain than the first one did
├── RpcError                the node answered with an error that is no custom error
│   ├── BadAnswer           what the node answered can't be read
│   ├── NonceTaken          another transaction of the key has the nonce: sign again
│   ├── QueueFull           the node keeps no more at the moment: sign again later
│   └── TransactionRefused  the node won't take the transaction as it is
├── ContractError           a custom error of a system contract, by name and with its values
├── TransactionFailed       mined, but failed without a custom error (out of gas)
├── DeadlinePassed          not mined in time; the hash says what to ask for later
└── KeyFileError            a key file is missing, unreadable or malformed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from contracts.bindings.failures import SEPARATOR
from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.types import ProposalState, RoundState, RunState

STATES: Mapping[str, type[IntEnum]] = {
    "WrongRunState": RunState,
    "WrongRoundState": RoundState,
    "ProposalClosed": ProposalState,
}
"""Custom errors whose small numbers are states: these are shown by name."""

_AMOUNT, _BLOCK, _BLOCKS, _BYTES, _COUNT = "{} wei", "block {}", "{} blocks", "{} bytes", "{}"

UNKNOWN_HEIGHT = 2**64 - 1
"""What the contracts say of a block that isn't known yet: it hangs on rounds or challenges that are still open."""

UNITS: Mapping[str, str] = {
    "BondTooSmall": _AMOUNT,
    "EscrowTooSmall": _AMOUNT,
    "FeeTooSmall": _AMOUNT,
    "InsufficientBond": _AMOUNT,
    "ValidatorBondTooSmall": _AMOUNT,
    "NotPayable": _AMOUNT,
    "ReclaimTooEarly": _BLOCK,
    "BondLocked": _BLOCK,
    "RejoinTooEarly": _BLOCK,
    "CertificateExpired": _BLOCK,
    "NothingUnlocked": _BLOCK,
    "StillJailed": _BLOCK,
    "BadActivationHeight": _BLOCK,
    "LeaseTooShort": _BLOCKS,
    "LeaseTooLong": _BLOCKS,
    "RecipeTooLarge": _BYTES,
    "NotCheckpointVersion": _COUNT,
    "WrongEpoch": _COUNT,
    "StaleAttempt": _COUNT,
    "NotEnoughSignatures": _COUNT,
    "LastValidator": _COUNT,
    "WrongTier": _COUNT,
}
"""Custom errors whose two numbers are of one kind -> how each is written; others name their values."""

NEXT_STEPS: Mapping[str, str] = {
    "UnknownRun": "list the runs with `trainer run list`",
    "UnknownRound": "ask run() for numOpened",
    "UnknownVersion": "ask run() for headVersion",
    "NotOwner": "sign with the owner's key",
    "NotMember": "join the run first with `trainer join`",
    "NotEligible": "send ready() and wait for the next opening",
    "NotAllowed": "ask the run's owner for allow(run, [your address], true)",
    "AlreadyMember": "leave first, or use another key",
    "RunFull": "wait until a member leaves, or choose another run",
    "PaidRunNeedsAllowList": "set isAllowListed, or rewardPerUpdate to 0",
    "WrongRunState": "see how the run stands with `trainer run show`, and wait for that state",
    "ReclaimTooEarly": "send it again from that block on, or wake the run with `trainer run fund` and `resume`",
    "WrongRoundState": "ask round() and act in the expected state",
    "RoundArchived": "ask a node that has executed all blocks (--chain), or a node for archipelago_archivedRound",
    "BadArchiveProof": "ask a node for archipelago_archivedRound again: the archive may have grown since",
    "RecipeTooLarge": "shorten the recipe: comments, and lines that say the default, may go",
    "BadParams": "give the field a value within these bounds; where both are the same it can't be changed",
    "SealedNotSupported": "create it with isSealed false",
    "RecipeMismatch": "fetch the recipe again with recipe(run)",
    "BadKeyProof": "sign with that key, for this chain's genesis and this sender; a home must be of the same chain",
    "BondTooSmall": "send at least the expected bond",
    "BondLocked": "wait until the height is reached",
    "RejoinTooEarly": "wait until the height is reached",
    "StaleBase": "apply the settled rounds up to the expected root, then train the round again",
    "UnknownRoot": "catch up to the newest settled round and show its root",
    "AlreadyCommitted": "ask update(run, round, you): the first update stands",
    "StaleAttempt": "ask round() and updates() again, and vote for what the expected attempt counts",
    "BadMask": "set bit i for the i-th of updates(run, round), at least one to report, none beyond them",
    "WrongKey": "reveal the key that the update has committed to",
    "EmptyPayload": "put at least one byte, and give that blob's certificate",
    "PreviousUnsettled": "wait until the round before has settled, then send it again",
    "AlreadyRevealed": "nothing to do: the key is shown",
    "AlreadyEvaluated": "nothing to do: the version has its loss",
    "CheckpointSuperseded": "nothing to do: a later checkpoint is certified",
    "NothingToWithdraw": "ask member(run, you) for the bond",
    "UnknownBlob": "put it again with `storage put`",
    "NoLease": "give the key that pays for it",
    "BlobIsPinned": "wait until its run lets it go",
    "NotSigned": "choose a seat that signed for it",
    "ChallengeIsOpen": "wait until it is answered, or its height is reached",
    "NoChallenge": "ask challengesOf(operator) for the open ones: this one was answered, or its height has passed",
    "BadAnswer": "show the leaf that challengeAt(blob, seat) names; `storage-node start` does it by itself",
    "UnknownTier": "ask tiers()",
    "WrongTier": "put it again in the expected tier: tiers() has their names",
    "TooMany": "ask for at most the maximum at once; what is counted by the chain, when some of it has ended",
    "BadUrl": "give http://HOST:PORT or https://HOST:PORT, as others reach the node",
    "NodeAlreadyRegistered": "change it with updateNode",
    "KeyAlreadyRegistered": "use another receipt key",
    "UnknownNode": "register it with registerNode",
    "AlreadyVoted": "nothing to do: the first vote stands",
    "EscrowTooSmall": "fund(run) with the difference",
    "NotCheckpointVersion": "upload at a multiple of the interval",
    "PartAlreadyStored": "nothing to do: the part is there",
    "UnknownPart": "name a part below that number: they count from 0",
    "NotYourPart": "wait for the grace blocks, then any member may upload it",
    "BadCertificate": "disperse again, and give the certificate as it came",
    "NotEnoughSignatures": "collect receipts from more seats",
    "WrongEpoch": "ask committee(epoch()) and disperse again",
    "CertificateExpired": "disperse again with a later expiry",
    "LeaseTooShort": "take at least the minimum of blocks",
    "LeaseTooLong": "take at most the maximum of blocks",
    "FeeTooSmall": "send what quote() says",
    "InsufficientBond": "ask bondOf(you)",
    "UnknownFunction": "the chain runs another version: take contracts/abi from that version",
    "BadCalldata": "encode the arguments by contracts/abi of the version that the chain runs",
    "NotPayable": "send it again without money",
    "WriteInStaticCall": "send it in a transaction; from a contract, by call and not by staticcall",
    "NothingUnlocked": "wait until the height is reached",
    "ZeroAmount": "give an amount above 0; unbondingOf(you) says whether there is anything to withdraw",
    "AlreadyValidator": "nothing to do; to change the key, first `chain-node leave-validator`",
    "KeyInUse": "register the key of another home, or act as the operator who has this one",
    "ValidatorBondTooSmall": "send the difference: `chain-node register-validator` with a higher --bond",
    "NotValidator": "become one first: `chain-node register-validator`",
    "TooManyValidators": "wait until one leaves: validators() lists them",
    "NotJailed": "nothing to do: validator(you) says how it stands",
    "StillJailed": "wait until the height is reached, then send unjail()",
    "LastValidator": "leave the expected bond, or let somebody else `chain-node register-validator` first",
    "UnknownParameter": "name one of gasLimit, baseFeeWei, unbondBlocks, powerUnitWei, minValidatorBondWei, "
    "maxValidators, doubleSignSlashPpm, jailBlocks, rules",
    "BadParameter": "propose a value from the least to the most",
    "BadActivationHeight": "propose it for a height from the earliest on, at most 100,000,000 blocks ahead",
    "TooManyProposals": "approve(proposal) one of the open ones, or wait until its height ends it",
    "UnknownProposal": "ask numProposals(): they count from 1 to that",
    "ProposalClosed": "propose() it anew",
    "AlreadyInFavour": "nothing to do: this validator's vote is counted",
}
"""Custom error -> what to do next; every error of the system contracts has an entry (case 31)."""


class BindingError(Exception):
    """Root of what contracts.bindings raises."""


class ChainUnreachable(BindingError):
    """No URL gave an answer."""

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        """Keep (url, reason) of each."""
        listed = "; ".join(f"{url}: {show_foreign(reason)}" for url, reason in reasons)
        super().__init__(
            f"no chain URL answered ({listed}); next: `localnet up`, or give the URL of a chain node with --chain"
        )
        self.reasons = tuple(reasons)


class NotJsonRpc(ChainUnreachable):
    """Every URL answered, and none of the answers was JSON-RPC: another service listens there."""

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        """Keep (url, answer) of each."""
        super().__init__(reasons)
        listed = "; ".join(f"{url} answered {show_foreign(reason)}" for url, reason in reasons)
        self.args = (
            f"no chain node there ({listed}); next: give the URL of a chain node's JSON-RPC with --chain, "
            "on a devnet http://127.0.0.1:8545",
        )


class WrongChain(BindingError):
    """URLs that belong to different chains were mixed."""

    def __init__(self, url: str, expected: int, got: int) -> None:
        """Keep both chain ids."""
        super().__init__(f"{url} serves chain id {got}, expected {expected}; next: name only URLs of one chain")
        self.url = url
        self.expected = expected
        self.got = got


class RpcError(BindingError):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        """Keep the three members of the error object, the message as a person may read it."""
        message = show_foreign(message)
        what, separator, step = message.partition(SEPARATOR)
        super().__init__(f"{what} (code {code}){separator}{step}")
        self.code = code
        self.message = message
        self.data = data


class BadAnswer(RpcError):
    """What a node answered doesn't fit what was asked: another service, or another version's contracts."""

    def __init__(self, what: str, url: str = "") -> None:
        """Name the URL as soon as it is known."""
        super().__init__(-32603, what)
        self.args = (
            f"{f'{url}: ' if url else ''}{self.message}{SEPARATOR}give the URL of a chain node's JSON-RPC with "
            "--chain, of a chain of this version",
        )


class NonceTaken(RpcError):
    """The nonce belongs to another transaction; this one can't land any more, so signing again is safe."""


class QueueFull(RpcError):
    """The node keeps no more transactions at the moment; signing again later is safe."""


class TransactionRefused(RpcError):
    """The node refused the transaction before it entered the queue."""


class ContractError(BindingError):
    """A custom error raised by a system contract."""

    def __init__(self, name: str, fields: Mapping[str, Any], text: str) -> None:
        """Keep the error's name, its values by snake_case name, and the whole text, as a person may read it."""
        text = show_foreign(text)
        super().__init__(text)
        self.name = name
        self.fields = dict(fields)
        self.text = text


class TransactionFailed(BindingError):
    """A mined transaction failed without a custom error."""

    def __init__(self, transaction_hash: bytes, height: int, reason: str) -> None:
        """Keep where it failed and the node's one line."""
        super().__init__(
            f"transaction 0x{transaction_hash.hex()} failed in block {height}: "
            f"{show_foreign(reason) or 'no reason given'}; next: simulate it with eth_call, or raise its gas limit"
        )
        self.transaction_hash = transaction_hash
        self.height = height
        self.reason = reason


class DeadlinePassed(BindingError):
    """A transaction was not seen in a block in time; it may still land."""

    def __init__(self, transaction_hash: bytes, waited_seconds: float, why: str = "") -> None:
        """Keep the hash to ask for; ``why`` is what a standing chain lacks, with what to do."""
        what, _, step = show_foreign(why).partition(SEPARATOR)
        super().__init__(
            f"transaction 0x{transaction_hash.hex()} is in no block after {waited_seconds:.0f} s"
            + (f": {what}" if what else "")
            + f"{SEPARATOR}{step + '; ' if step else ''}it may still land: wait for the same hash, don't send another"
        )
        self.transaction_hash = transaction_hash
        self.waited_seconds = waited_seconds


class KeyFileError(BindingError):
    """A key file can't be used."""


def describe_error(name: str, fields: Mapping[str, Any]) -> str:
    """Write a custom error with all its values and the next step."""
    values = ", ".join(f"{key} {_shown(name, key, value)}" for key, value in fields.items())
    text = f"{name}: {values}" if values else name
    step = NEXT_STEPS.get(name)
    if name == "WrongRunState" and fields.get("got") == RunState.FINISHED:
        step = "nothing can be changed any more: take its model with `trainer checkpoint pull`, or create another run"
    if name == "BondLocked" and UNKNOWN_HEIGHT in fields.values():
        step = "wait until the rounds or challenges that it answers for are over; who is a member leaves first"
    return f"{text}; next: {step}" if step else text


def _shown(name: str, key: str, value: Any) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if name in STATES and key in ("expected", "got", "state") and value in set(STATES[name]):
        return f"{STATES[name](value).name} ({value})"
    if value == UNKNOWN_HEIGHT and UNITS.get(name) == _BLOCK:
        return "a block that is not known yet"
    return UNITS.get(name, "{}").format(value)
