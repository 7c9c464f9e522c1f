"""What can stop a worker, each with the exit code and the next step.

WorkerError
├── Fatal (exit 2)        nothing a retry would change
│   ├── WrongChain, WrongRun, WrongMember, WrongRecipe, WrongSoftware, NotAllowedHere, KeyInUse
│   ├── HomeUnusable, WorkerStateDamaged
│   ├── GenesisMismatch, AgreedRootMismatch
│   └── Refused           the contract said no, by name
└── GaveUp (exit 3)       a deadline passed; starting again later may work
    └── ChainSilent, RunIdle, NotFunded, StateUnavailable, GroupEnded
PayloadError              a blob could not be had
├── PayloadUnavailable    now, here; others may have it
└── PayloadInconsistent   badly encoded: the same verdict for every reader
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FATAL = 2
EXIT_GAVE_UP = 3

SEE_STORES = "see `storage stat` for the nodes; try again when enough of them answer"
ANOTHER_CHECKPOINT = "name an earlier one: trainer checkpoint list, then --version"
"""Next steps where no agreed state came."""


class WorkerError(Exception):
    """Base of everything that ends a worker with a message."""

    exit_code = 1

    def __init__(self, message: str, *, next_step: str) -> None:
        """Keep the message and what the person should do next: nobody is left without (case 31)."""
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class Fatal(WorkerError):
    """A retry would change nothing."""

    exit_code = EXIT_FATAL


class GaveUp(WorkerError):
    """A deadline passed."""

    exit_code = EXIT_GAVE_UP


class WrongChain(Fatal):
    """The home folder belongs to another chain."""

    def __init__(self, expected: bytes, got: bytes) -> None:
        """Keep both genesis hashes."""
        super().__init__(
            f"this home folder belongs to the chain {expected.hex()}, the node serves {got.hex()}",
            next_step="give another --home, or the URL of the first chain; a reset devnet is a new chain",
        )


class WrongRun(Fatal):
    """There is no such run, or the home folder belongs to another one."""


class WrongMember(Fatal):
    """The home folder belongs to another key."""

    def __init__(self, home: str, expected: str, got: str) -> None:
        """Keep the home and both addresses."""
        super().__init__(
            f"{home} belongs to {expected}, this key is {got}: nothing in it was touched",
            next_step="give each key its own --home, or start with that member's key",
        )


class WrongRecipe(Fatal):
    """The recipe's bytes are not what the chain's digest says."""

    def __init__(self, expected: bytes, got: bytes) -> None:
        """Keep both digests."""
        super().__init__(
            f"recipe digest {got.hex()}, the run's is {expected.hex()}",
            next_step="the node returned another recipe than the run's: give another --chain URL",
        )


class WrongSoftware(Fatal):
    """The run asks for a newer version than this one."""

    def __init__(self, expected: str, got: str) -> None:
        """Keep both versions."""
        super().__init__(
            f"this is version {got}, the run's recipe asks for {expected} or newer: no inner step was made",
            next_step="update this software, then start again: the membership and the worker's state are kept",
        )


class NotAllowedHere(Fatal):
    """The run has an allow-list without this key."""


class KeyInUse(Fatal):
    """Another process on this machine trains in the run with the same key."""

    def __init__(self, address: str, run: int, holder: str) -> None:
        """Keep the key's address and who holds it."""
        super().__init__(
            f"{address} trains in run {run} already, from {holder or 'another folder'}",
            next_step="stop that worker first, or make this one a key of its own: trainer keys new",
        )


class HomeUnusable(Fatal):
    """The home folder, or something in it, can't be read and written by this user."""

    def __init__(self, home: str, path: str, reason: str) -> None:
        """Keep the home, what in it is in the way, and what the system says."""
        super().__init__(
            f"{path} can't be used: {reason}",
            next_step=f"let the user who runs the worker read and write all of {home} (owner, mode, mount), "
            "or name another --home",
        )


class WorkerStateDamaged(Fatal):
    """The saved worker state is not whole."""

    def __init__(self, path: str, reason: str) -> None:
        """Keep the file and the reason."""
        super().__init__(
            f"worker state {path} is damaged: {reason}",
            next_step=f"move {path} away and start again: the worker restores from the chain and the stores",
        )


class GenesisMismatch(Fatal):
    """The state we would start from is not the one on the chain."""

    def __init__(self, run: int, expected: bytes, got: bytes) -> None:
        """Keep both roots."""
        super().__init__(
            f"genesis root {got.hex()}, the chain's is {expected.hex()}: no inner step was made",
            next_step="use the same version of the software as the run's owner; until then don't let the others wait: "
            f"trainer leave --run {run}",
        )


class AgreedRootMismatch(Fatal):
    """Our exact outcome of a round differs from the agreed one, twice, the second time from a checkpoint."""

    def __init__(self, round_index: int, expected: bytes, got: bytes) -> None:
        """Keep the round and both roots."""
        super().__init__(
            f"round {round_index}: our root is {got.hex()}, the agreed one {expected.hex()}",
            next_step="use the same version of the software as the other members",
        )


class Refused(Fatal):
    """The contract refused what the worker cannot do without."""


class ChainSilent(GaveUp):
    """No --chain URL has answered for longer than the worker's patience."""


class RunIdle(GaveUp):
    """The run has had no round for us for longer than the worker's patience."""


class NotFunded(GaveUp):
    """The worker key has no money for the bond and fees."""


class GroupEnded(GaveUp):
    """A stage or shard of the worker has ended or is silent; a restart goes on from the saved state."""


class StateUnavailable(GaveUp):
    """No agreed state can be restored: checkpoint parts or payloads cannot be had."""


class PayloadError(Exception):
    """A blob could not be had."""

    def __init__(self, blob: bytes, reason: str) -> None:
        """Keep the blob id and the reason, which names seats where seats are to blame."""
        super().__init__(f"blob {blob.hex()}: {reason}")
        self.blob = blob
        self.reason = reason


class PayloadUnavailable(PayloadError):
    """Not now, not here."""


class PayloadInconsistent(PayloadError):
    """Badly encoded; every reader gets this verdict."""
