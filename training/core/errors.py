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
|- MissingExtraError            an optional package that a recipe needs
|- WeightsError                 given weights that are not the model's
|- ModelMismatchError           a library builds another model than the recipe says
|- MemoryShortError             the model does not fit the device
|- GroupError
|  |- StageCountError           more stages than can be
|  |- ShardCountError           a batch that can't be shared out so
|  |- DeviceCountError          fewer GPUs than processes
|  `- GroupEndedError           a process of a worker's group has ended
`- CorpusError
   |- CorpusMissingError
   |- CorpusTooSmallError
   |- CorpusFormatError         a file that is not what its name says
   |- TextChangedError          a file that is written to while a worker reads it
   |- TokenizerMissingError
   |- TokenizerError            another tokenizer than the recipe's
   `- TextDigestError           another text than the recipe's
"""

from __future__ import annotations

MAX_SHOWN_CHARACTERS = 100
"""Of a recipe's value that is refused: enough to know it again."""


class TrainingError(Exception):
    """Root of the tree."""


class RecipeError(TrainingError):
    """A recipe that cannot be used."""


class RecipeSyntaxError(RecipeError):
    """The text is not TOML."""

    def __init__(self, reason: str) -> None:
        self.reason = reason = reason if len(reason) <= 300 else f"{reason[:200]}…{reason[-60:]}"
        super().__init__(f"the recipe is not valid TOML: {reason}; next: mend it; `trainer recipe` prints a whole one")


class UnknownRecipeKeyError(RecipeError):
    """A key that nothing reads: a typing error would otherwise change the run silently."""

    def __init__(self, key: str, nearest: str | None) -> None:
        self.key = key
        self.nearest = nearest
        advice = f"did you mean {nearest!r}?" if nearest is not None else "remove it"
        super().__init__(f"unknown recipe key {_show_value(key)}; next: {advice}")


class MissingRecipeKeyError(RecipeError):
    """A key without a default is absent."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"the recipe lacks the key {key!r}; next: add it (the recipes shipped in training/recipes show how)"
        )


class RecipeValueError(RecipeError):
    """A value of the wrong type or outside its range."""

    def __init__(self, key: str, got: object, expected: str) -> None:
        self.key = key
        self.got = got
        self.expected = expected
        super().__init__(f"recipe key {key!r} is {_show_value(got)}, expected {expected}; next: give such a value")


def _show_value(value: object) -> str:
    """Write a value out of a recipe: whoever wrote that, it is one line of a readable length."""
    try:
        shown = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "one that can't be written"
    return shown if len(shown) <= MAX_SHOWN_CHARACTERS else f"{shown[:MAX_SHOWN_CHARACTERS]}…"


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
            "next: restore the last worker state and lower the learning rate"
        )


class StateError(TrainingError):
    """The agreed state and something else disagree."""


class RootMismatchError(StateError):
    """The state at hand has another root than the one named (on the chain, in a part)."""

    def __init__(self, expected: bytes, got: bytes, what: str) -> None:
        self.expected = expected
        self.got = got
        super().__init__(
            f"{what} has root 0x{got.hex()}, expected 0x{expected.hex()}; "
            "next: check that recipe and run belong together"
        )


class StatePartError(StateError):
    """A part of a checkpoint is malformed or doesn't fit."""

    def __init__(self, reason: str, got: object, expected: object) -> None:
        self.reason = reason
        self.got = got
        self.expected = expected
        super().__init__(f"bad state part: {reason}: {got}, expected {expected}; next: fetch it from another source")


class VersionMismatchError(StateError):
    """Rounds are applied in order, each once."""

    def __init__(self, expected: int, got: int) -> None:
        self.expected = expected
        self.got = got
        super().__init__(f"round {got} cannot be applied to version {expected}; next: apply round {expected} next")


class UnknownUpdateError(StateError):
    """The chain counted an update of this worker that its state knows nothing of (an older state was restored)."""

    def __init__(self, round_index: int, in_flight: tuple[int, ...]) -> None:
        self.round_index = round_index
        self.in_flight = in_flight
        super().__init__(
            f"an own update of round {round_index} was counted, in flight are {list(in_flight)}; "
            "next: start fresh from the agreed state"
        )


class PlanError(TrainingError):
    """A figure that the models of speed and size cannot use."""

    def __init__(self, option: str, got: object, expected: str) -> None:
        self.option = option
        self.got = got
        self.expected = expected
        super().__init__(f"{option} is {got}, expected {expected}; next: give such a value")


class WorkerStateError(TrainingError):
    """A worker's own saved state cannot be used."""


class WorkerStateMissingError(WorkerStateError):
    """There is no saved state."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"no worker state at {path}; next: start from a checkpoint")


class WorkerStateDamagedError(WorkerStateError):
    """The file and its digest disagree, and there is no older good one."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"worker state {path} is damaged: {reason}; next: move it away and start from a checkpoint")


class WorkerStateForeignError(WorkerStateError):
    """The file belongs to another run or worker."""

    def __init__(self, path: str, field: str, expected: str, got: str) -> None:
        self.path = path
        self.field = field
        self.expected = expected
        self.got = got
        super().__init__(
            f"worker state {path} has {field} {got}, expected {expected}; next: give each worker its own home"
        )


class MissingExtraError(TrainingError):
    """An optional package is not installed."""

    def __init__(self, extra: str, package: str, reason: str) -> None:
        self.extra = extra
        self.package = package
        super().__init__(f"{reason} needs {package}, which is not installed; next: pip install 'archipelago[{extra}]'")


class ModelMismatchError(TrainingError):
    """The installed library and the recipe's table disagree about a parameter."""

    def __init__(self, tensor: str, expected: str | None, got: str | None) -> None:
        self.tensor = tensor
        self.expected = expected
        self.got = got
        super().__init__(
            f"parameter {tensor!r} is {got or 'absent'} in the model built here, expected {expected or 'none'}; "
            "next: install the version of transformers that the run's owner used"
        )


WEIGHTS_STEP = "name the safetensors that belong to the config with --weights"
"""Where nothing better is known."""


class WeightsError(TrainingError):
    """Weights that a run should begin from don't fit its model."""

    def __init__(self, what: str, got: object, expected: object, *, next_step: str = WEIGHTS_STEP) -> None:
        self.what = what
        self.got = got
        self.expected = expected
        super().__init__(f"{what}: {got}, expected {expected}; next: {next_step}")


class MemoryShortError(TrainingError):
    """A device has less memory than weights, gradients and optimizers take."""

    def __init__(self, device: str, needed_bytes: int, free_bytes: int) -> None:
        self.device = device
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        super().__init__(
            f"{device} has {free_bytes / 1e9:.2f} GB free, the model needs {needed_bytes / 1e9:.2f} GB and its "
            "activations; next: use more --stages or --shards, another --device, or a smaller recipe"
        )


class GroupError(TrainingError):
    """A worker made of several processes cannot be, or cannot go on."""


class StageCountError(GroupError):
    """A model cannot be cut so."""

    def __init__(self, num_stages: int, expected: str) -> None:
        self.num_stages = num_stages
        super().__init__(f"{num_stages} stages, expected {expected}; next: choose another --stages")


class ShardCountError(GroupError):
    """A batch cannot be shared out so, or two shapes are asked for at once."""

    def __init__(self, num_shards: int, expected: str) -> None:
        self.num_shards = num_shards
        super().__init__(f"{num_shards} shards, expected {expected}; next: choose another --shards")


class DeviceCountError(GroupError):
    """Each process of a group needs a GPU of its own."""

    def __init__(self, first_device: str, num_processes: int, num_devices: int) -> None:
        self.num_processes = num_processes
        self.num_devices = num_devices
        super().__init__(
            f"{num_processes} processes from {first_device} on, {num_devices} CUDA devices are visible; "
            "next: use fewer --stages or --shards, another first --device, or --device cpu"
        )


class GroupEndedError(GroupError):
    """One process of the group ended or is silent; the whole worker stops, and resumes from its saved state."""

    def __init__(self, kind: str, index: int, pid: int, reason: str) -> None:
        self.kind = kind
        self.index = index
        self.pid = pid
        self.reason = reason
        super().__init__(f"{kind} {index} (pid {pid}) {reason}; the worker ends, its saved state is whole")


class CorpusError(TrainingError):
    """The training text cannot be used."""


class CorpusMissingError(CorpusError):
    """There is no text where it should be."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"no text at {where}; next: name a text file with --data FILE")


class CorpusTooSmallError(CorpusError):
    """Not enough text for one window of training and one of evaluation."""

    def __init__(self, part: str, got_bytes: int, minimum_bytes: int) -> None:
        self.part = part
        self.got_bytes = got_bytes
        self.minimum_bytes = minimum_bytes
        super().__init__(
            f"the {part} text has {got_bytes} tokens (bytes where there is no tokenizer), needs at least "
            f"{minimum_bytes}; next: give a larger file: a text is split in blocks of 16 KiB, and needs more than one"
        )


FORMAT_STEP = "name another file, or mend the recipe's [data]"
"""Where nothing better is known."""


class CorpusFormatError(CorpusError):
    """A file of text or tokens does not hold what its name promises."""

    def __init__(self, where: str, got: object, expected: str, *, next_step: str = FORMAT_STEP) -> None:
        self.where = where
        self.got = got
        self.expected = expected
        super().__init__(f"{where} holds {got}, expected {expected}; next: {next_step}")


class TextChangedError(CorpusError):
    """A text that is read sample by sample is not any more the one whose digest was taken."""

    def __init__(self, where: str, found: str) -> None:
        self.where = where
        self.found = found
        super().__init__(
            f"{where} has changed since its digest was taken: {found}; next: put the text back as it was, leave it "
            "alone and start again (a run's digest is compared anew)"
        )


class TokenizerMissingError(CorpusError):
    """There is no tokenizer's file where one was named."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"no tokenizer at {where}; next: name a tokenizer.json with --tokenizer FILE")


class TokenizerError(CorpusError):
    """The recipe's tokenizer and the one at hand differ."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected = expected
        self.got = got
        if not got:
            what = f"the recipe names a tokenizer of digest {expected}, and none was given"
            step = "add --tokenizer FILE, the run's tokenizer.json of that digest: its owner has it"
        elif not expected:
            what = f"the recipe names no tokenizer, its tokens are bytes; the one given has digest {got}"
            step = "leave --tokenizer out"
        else:
            what = f"the tokenizer has digest {got}, the recipe's is {expected}"
            step = f"give --tokenizer FILE with digest {expected}, the run's tokenizer.json: its owner has it"
        super().__init__(f"{what}; next: {step}")


class TextDigestError(CorpusError):
    """The recipe's text and the one at hand differ, or the recipe doesn't say which text a file must hold."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected = expected
        self.got = got
        if expected:
            advice = (
                "give the run's text with --data FILE; a file's digest: "
                "trainer data digest --recipe RECIPE.toml --data FILE"
            )
        else:
            advice = f'leave --data out, or have the run say under [data]: source = "file" and digest = "{got}"'
        super().__init__(f"the text has digest {got}, the recipe's is {expected or 'not given'}; next: {advice}")
