"""Everything that training refuses, one class a reason.

TrainingError
|- RecipeError
|  |- RecipeSyntaxError        not TOML
|  |- UnknownRecipeKeyError    a key nobody reads
|  |- MissingRecipeKeyError
|  `- RecipeValueError         out of range, or two fields that contradict each other
|- PayloadRefusedError         an update that no worker counts
|- NonFiniteUpdateError        a local update that must not be sent
|- StateError
|  |- RootMismatchError        the agreed state is not the one that was named
|  |- StatePartError           a checkpoint part that doesn't fit the recipe
|  `- VersionMismatchError     a round applied out of order
|- WorkerStateError
|  |- WorkerStateMissingError
|  |- WorkerStateDamagedError  truncated, empty or altered file
|  `- WorkerStateForeignError  of another run or worker
|- PlanError                   a figure of `trainer plan` that cannot be
`- CorpusError
   |- CorpusMissingError
   `- CorpusTooSmallError
"""

from __future__ import annotations


class TrainingError(Exception):
    """Root of the tree."""


class RecipeError(TrainingError):
    """A recipe that cannot be used."""


class RecipeSyntaxError(RecipeError):
    """The text is not TOML."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the recipe is not valid TOML: {reason}")


class UnknownRecipeKeyError(RecipeError):
    """A key that nothing reads: a typing error would otherwise change the run silently."""

    def __init__(self, key: str, nearest: str | None) -> None:
        self.key = key
        self.nearest = nearest
        advice = f"did you mean {nearest!r}?" if nearest is not None else "remove it"
        super().__init__(f"unknown recipe key {key!r}; {advice}")


class MissingRecipeKeyError(RecipeError):
    """A key without a default is absent."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the recipe lacks the key {key!r}; add it (the recipes shipped in training/recipes show how)")


class RecipeValueError(RecipeError):
    """A value of the wrong type or outside its range."""

    def __init__(self, key: str, got: object, expected: str) -> None:
        self.key = key
        self.got = got
        self.expected = expected
        super().__init__(f"recipe key {key!r} is {got!r}, expected {expected}")


class PayloadRefusedError(TrainingError):
    """An update whose bytes don't fit their specification; every worker refuses it alike."""

    def __init__(self, reason: str, got: object, expected: object) -> None:
        self.reason = reason
        self.got = got
        self.expected = expected
        super().__init__(f"payload refused: {reason}: {got}, expected {expected}")


class NonFiniteUpdateError(TrainingError):
    """Local weights are not finite; such an update is never sent."""

    def __init__(self, tensor: str, num_bad: int, num_elements: int) -> None:
        self.tensor = tensor
        self.num_bad = num_bad
        self.num_elements = num_elements
        super().__init__(
            f"{num_bad} of {num_elements} local weights of {tensor!r} are not finite; nothing was sent; "
            "restore the last worker state and lower the learning rate"
        )


class StateError(TrainingError):
    """The agreed state and something else disagree."""


class RootMismatchError(StateError):
    """The state at hand has another root than the one named (on the chain, in a part)."""

    def __init__(self, expected: bytes, got: bytes, what: str) -> None:
        self.expected = expected
        self.got = got
        super().__init__(
            f"{what} has root 0x{got.hex()}, expected 0x{expected.hex()}; check that recipe and run belong together"
        )


class StatePartError(StateError):
    """A part of a checkpoint is malformed or doesn't fit."""

    def __init__(self, reason: str, got: object, expected: object) -> None:
        self.reason = reason
        self.got = got
        self.expected = expected
        super().__init__(f"bad state part: {reason}: {got}, expected {expected}; fetch it from another source")


class VersionMismatchError(StateError):
    """Rounds are applied in order, each once."""

    def __init__(self, expected: int, got: int) -> None:
        self.expected = expected
        self.got = got
        super().__init__(f"round {got} cannot be applied to version {expected}; apply round {expected} next")


class UnknownUpdateError(StateError):
    """The chain counted an update of this worker that its state knows nothing of (an older state was restored)."""

    def __init__(self, round_index: int, in_flight: tuple[int, ...]) -> None:
        self.round_index = round_index
        self.in_flight = in_flight
        super().__init__(
            f"an own update of round {round_index} was counted, in flight are {list(in_flight)}; "
            "train and send that round again and adopt the payload, or start fresh from the agreed state"
        )


class PlanError(TrainingError):
    """A figure that the models of speed and size cannot use."""

    def __init__(self, option: str, got: object, expected: str) -> None:
        self.option = option
        self.got = got
        self.expected = expected
        super().__init__(f"{option} is {got}, expected {expected}")


class WorkerStateError(TrainingError):
    """A worker's own saved state cannot be used."""


class WorkerStateMissingError(WorkerStateError):
    """There is no saved state."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"no worker state at {path}; start from a checkpoint")


class WorkerStateDamagedError(WorkerStateError):
    """The file and its digest disagree, and there is no older good one."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"worker state {path} is damaged: {reason}; move it away and start from a checkpoint")


class WorkerStateForeignError(WorkerStateError):
    """The file belongs to another run or worker."""

    def __init__(self, path: str, field: str, expected: str, got: str) -> None:
        self.path = path
        self.field = field
        self.expected = expected
        self.got = got
        super().__init__(f"worker state {path} has {field} {got}, expected {expected}; give each worker its own home")


class CorpusError(TrainingError):
    """The training text cannot be used."""


class CorpusMissingError(CorpusError):
    """There is no text where it should be."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"no text at {where}; name a text file with --data FILE")


class CorpusTooSmallError(CorpusError):
    """Not enough text for one window of training and one of evaluation."""

    def __init__(self, part: str, got_bytes: int, minimum_bytes: int) -> None:
        self.part = part
        self.got_bytes = got_bytes
        self.minimum_bytes = minimum_bytes
        super().__init__(f"the {part} text has {got_bytes} bytes, needs at least {minimum_bytes}; give a larger file")
