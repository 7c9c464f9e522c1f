"""A recipe: everything that decides a run's numbers (SPEC, *Recipe*); `recipe_text` reads it from TOML.

Every value is checked when it is made, so that nothing below has to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from training.core.errors import RecipeValueError

Q15_ONE = 1 << 15
"""1.0 in the outer optimizer's coefficients: 15 fraction bits keep mu * u under 2^47 in int64."""

ANY_TEXT = "any"
"""``data.digest`` of a run whose members train on texts of their own, which nobody else can recompute."""

MAX_NAME_CHARACTERS = 64
"""Of what a recipe is called, and a column of its text; they stand in lines and tables."""

MAX_PLACE_CHARACTERS = 1_024
"""Of a data set's name or folder."""

MAX_ROUNDS_TOTAL = (1 << 32) - 1
"""Rounds and flush rounds: a payload's header has the round in four bytes (SPEC, *Payloads*)."""

MAX_RANK = 4096
"""Keeps one payload's low-rank sum under 2^26 before its exponent (SPEC, *Bounds*)."""


UNITS = {"_bps": "ten-thousandths, whole ones: 0.3 is 3000", "_q15": "units of 2^-15, whole ones: 0.9 is 29491"}
"""What the integer of a key that ends so counts."""


class CodecKind(StrEnum):
    """How an update becomes bytes."""

    LOW_RANK_2BIT = "low_rank_2bit"
    LOW_RANK_INT4 = "low_rank_int4"
    SPARSE_2BIT = "sparse_2bit"
    VECTOR = "vector"
    DENSE_INT8 = "dense_int8"
    DENSE_INT4 = "dense_int4"
    NONE = "none"


class AggregationKind(StrEnum):
    """How the updates of a round become one."""

    MEAN = "mean"
    MEDIAN_CLIP = "median_clip"
    TRIMMED_MEAN = "trimmed_mean"
    CENTERED_CLIP = "centered_clip"


class OptimizerKind(StrEnum):
    """What makes an inner step of a gradient."""

    ADAMW = "adamw"
    MUON = "muon"
    SGD = "sgd"


class StartKind(StrEnum):
    """Where a worker goes on while its update is under way (SPEC, *Overlap*)."""

    CONTINUE = "continue"
    REWIND = "rewind"
    EAGER = "eager"


class DataSource(StrEnum):
    """Where the text comes from."""

    PYTHON_STDLIB = "python_stdlib"
    FILE = "file"
    DATASET = "dataset"


class ModelKind(StrEnum):
    """What is built of a recipe's [model]."""

    GPT = "gpt"
    HUGGING_FACE = "hugging_face"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecipe:
    """A compact GPT (RMSNorm, rotary positions, SwiGLU, tied embeddings, no dropout), or a causal LM by its config."""

    width: int
    """Model width, a multiple of ``num_heads``; an even number a head."""
    num_layers: int
    """Transformer blocks, from 1."""
    num_heads: int
    """Attention heads, from 1."""
    hidden: int
    """Width of the SwiGLU layer, from 1."""
    context: int
    """Tokens a sample, from 2."""
    kind: ModelKind = ModelKind.GPT
    """Our GPT, or an architecture of transformers."""
    vocabulary: int = 256
    """Tokens there are, from 256: the bytes, or what the tokenizer and the config say."""
    config: str = ""
    """hugging_face: its config.json, as text."""
    tensors: str = ""
    """hugging_face: every parameter, its shape and start, a line each (SPEC, *Tensors*); `trainer recipe` writes it."""

    def __post_init__(self) -> None:
        _check("model.vocabulary", self.vocabulary, 256, 1 << 24)
        for key, text in (("model.config", self.config), ("model.tensors", self.tensors)):
            if not text.translate(str.maketrans("", "", _LAYOUT)).isprintable():
                raise RecipeValueError(key, _find_unprintable(text), "text without control characters")
        given = [key for key, text in (("model.config", self.config), ("model.tensors", self.tensors)) if text]
        if self.kind is ModelKind.HUGGING_FACE and len(given) != 2:
            expected = f"model.config and model.tensors beside it, there is {''.join(given) or 'neither'}"
            raise RecipeValueError("model.kind", self.kind.value, expected)
        if self.kind is ModelKind.GPT and given:
            expected = f"hugging_face beside {' and '.join(given)}: gpt has neither config nor tensors"
            raise RecipeValueError("model.kind", self.kind.value, expected)
        _check("model.num_layers", self.num_layers, 1, 512)
        _check("model.num_heads", self.num_heads, 1, 512)
        _check("model.width", self.width, 2, 1 << 16)
        _check("model.hidden", self.hidden, 1, 1 << 18)
        _check("model.context", self.context, 2, 1 << 20)
        if self.width % (2 * self.num_heads) != 0:
            raise RecipeValueError(
                "model.width", self.width, f"a multiple of 2 * model.num_heads = {2 * self.num_heads}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecipe:
    """The text and its split."""

    source: DataSource = DataSource.PYTHON_STDLIB
    """The standard library's own source, a file that each worker names, or a data set by its name."""
    held_out_bps: int = 300
    """Share of the text that is never trained on, in hundredths of a percent, 1..5,000."""
    eval_windows: int = 64
    """Held-out samples a loss is taken over, from 1."""
    column: str = "text"
    """Where the text is in JSONL, parquet and data sets."""
    token_bits: int = 16
    """Of a number in a file of tokens (.bin, little-endian): 16 or 32."""
    tokenizer_digest: str = ""
    """blake3 of the tokenizer's JSON file, hex, so that all members use one; empty: bytes are the tokens."""
    digest: str = ""
    """`Corpus.digest` that every member's text must have, hex, or ``any``: each its own; empty: the source's."""
    dataset: str = ""
    """dataset: its name, or a folder that it was saved to."""
    split: str = "train"
    """dataset: which part of it."""

    def __post_init__(self) -> None:
        if self.token_bits not in (16, 32):
            raise RecipeValueError("data.token_bits", self.token_bits, "16 or 32")
        _check_line("data.column", self.column, MAX_NAME_CHARACTERS)
        _check_line("data.dataset", self.dataset, MAX_PLACE_CHARACTERS)
        _check_line("data.split", self.split, MAX_NAME_CHARACTERS)
        if (self.source is DataSource.DATASET) != bool(self.dataset):
            raise RecipeValueError("data.dataset", self.dataset, "a name where data.source is dataset, else nothing")
        if self.digest not in ("", ANY_TEXT) and re.fullmatch(r"[0-9a-f]{64}", self.digest) is None:
            raise RecipeValueError("data.digest", self.digest, f"64 small hex digits, {ANY_TEXT!r}, or nothing")
        if self.tokenizer_digest and re.fullmatch(r"[0-9a-f]{64}", self.tokenizer_digest) is None:
            raise RecipeValueError("data.tokenizer_digest", self.tokenizer_digest, "64 small hex digits, or nothing")
        _check("data.held_out_bps", self.held_out_bps, 1, 5_000)
        _check("data.eval_windows", self.eval_windows, 1, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerRecipe:
    """The optimizer inside a worker; its learning rate is a pure function of the global step."""

    batch_size: int
    """Samples a step, from 1."""
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    """AdamW; Muon for the blocks' matrices and AdamW for the rest; or plain SGD."""
    learning_rate: float
    """Peak rate, above 0."""
    final_rate_ratio: float = 0.1
    """Rate at the last step over the peak (cosine in between), 0..1."""
    warmup_steps: int = 20
    """Steps of linear warm-up, from 0."""
    weight_decay: float = 0.1
    """Decoupled decay of matrices, from 0."""
    beta1: float = 0.9
    """Decay of the first moment, 0..1."""
    beta2: float = 0.95
    """Decay of the second moment, 0..1."""
    momentum: float = 0.9
    """Decay of Muon's running sum of gradients, 0..1."""
    clip_norm: float = 1.0
    """Gradient norm above which a step's gradient is scaled down, above 0."""

    def __post_init__(self) -> None:
        _check("inner.batch_size", self.batch_size, 1, 1 << 20)
        _check("inner.warmup_steps", self.warmup_steps, 0, 1 << 40)
        _check_real("inner.learning_rate", self.learning_rate, 0.0, 10.0, is_open=True)
        _check_real("inner.final_rate_ratio", self.final_rate_ratio, 0.0, 1.0)
        _check_real("inner.weight_decay", self.weight_decay, 0.0, 10.0)
        _check_real("inner.beta1", self.beta1, 0.0, 0.99999)
        _check_real("inner.beta2", self.beta2, 0.0, 0.99999)
        _check_real("inner.momentum", self.momentum, 0.0, 0.99999)
        _check_real("inner.clip_norm", self.clip_norm, 0.0, 1e9, is_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRecipe:
    """How updates are compressed."""

    kind: CodecKind = CodecKind.LOW_RANK_2BIT
    """Codec of the run; two bits at twice the rank did better than four at the same bytes (TRAINING)."""
    rank: int = 32
    """r at the first round, 1..4096; the chain's rank decides later. See ``has_rank``."""
    keep_energy_bps: int = 0
    """Share of an update's energy that the rank is moved to keep, in hundredths of a percent; 0: the rank stays."""
    forget_bps: int = 0
    """Share of its error feedback that a worker drops after each exchange, in hundredths of a percent; 500 is what
    SparseLoCo calls a decay of 0.95."""

    def __post_init__(self) -> None:
        _check("codec.keep_energy_bps", self.keep_energy_bps, 0, 9_999)
        _check("codec.forget_bps", self.forget_bps, 0, 10_000)
        _check("codec.rank", self.rank, 1, MAX_RANK)

    @property
    def has_rank(self) -> bool:
        """Say whether anything goes in low rank: under ``vector`` the table of tokens does."""
        return self.kind in (CodecKind.LOW_RANK_2BIT, CodecKind.LOW_RANK_INT4, CodecKind.VECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsRecipe:
    """The outer loop's shape; the same numbers stand in the chain's RunParams."""

    num_fragments: int
    """F: each round exchanges one of F groups of tensors, 1..256."""
    overlap: int
    """d: 0 synchronous, 1 one round late."""
    local_steps: int
    """H: inner steps between two exchanges of the same tensor, from F."""
    num_rounds: int
    """Rounds before the F flush rounds, from 1; with them below 2^32."""
    start: StartKind = StartKind.CONTINUE
    """Whether weights keep what is under way (the default), go back to theta (DiLoCoX), or keep this worker's share."""
    max_local_steps: int = 0
    """Up to where H may grow while the link is slow, from ``local_steps``; 0: H stays."""

    def __post_init__(self) -> None:
        if self.max_local_steps and self.max_local_steps < self.local_steps:
            raise RecipeValueError(
                "rounds.max_local_steps",
                self.max_local_steps,
                f"0 or at least rounds.local_steps = {self.local_steps}",
            )
        _check("rounds.max_local_steps", self.max_local_steps, 0, 1 << 20)
        _check("rounds.num_fragments", self.num_fragments, 1, 256)
        _check("rounds.overlap", self.overlap, 0, 1)
        _check("rounds.local_steps", self.local_steps, 1, 1 << 20)
        most = MAX_ROUNDS_TOTAL - self.num_fragments
        if not 1 <= self.num_rounds <= most:
            counted = f"1..{most}: with {self.num_fragments} flush rounds at most {MAX_ROUNDS_TOTAL}"
            raise RecipeValueError("rounds.num_rounds", self.num_rounds, counted)
        if self.local_steps < self.num_fragments:
            raise RecipeValueError(
                "rounds.local_steps", self.local_steps, f"at least rounds.num_fragments = {self.num_fragments}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRecipe:
    """Nesterov momentum on the agreed state, linear from start to end over the rounds, in units of 2^-15."""

    momentum_start_q15: int = 0
    """mu at round 0, 0..32767: from scratch momentum hurts early (TRAINING, *What we found*)."""
    momentum_end_q15: int = 29491
    """mu at the last round, 0..32767; 29491 is 0.9."""
    rate_start_q15: int = 32768
    """eta at round 0, 1..65536; 32768 is 1."""
    rate_end_q15: int = 22938
    """eta at the last round, 1..65536; 22938 is 0.7."""
    aggregation: AggregationKind = AggregationKind.MEDIAN_CLIP
    """What becomes of the updates of three workers and more; of two always the mean."""

    def __post_init__(self) -> None:
        _check("outer.momentum_start_q15", self.momentum_start_q15, 0, Q15_ONE - 1)
        _check("outer.momentum_end_q15", self.momentum_end_q15, 0, Q15_ONE - 1)
        _check("outer.rate_start_q15", self.rate_start_q15, 1, 2 * Q15_ONE)
        _check("outer.rate_end_q15", self.rate_end_q15, 1, 2 * Q15_ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a run's numbers."""

    name: str
    """For people, 1..64 printable characters."""
    seed: int
    """Root of all randomness of the run, 0..2^63-1."""
    model: ModelRecipe
    """Architecture."""
    data: DataRecipe
    """Text."""
    inner: InnerRecipe
    """Inner optimizer."""
    codec: CodecRecipe
    """Compression."""
    rounds: RoundsRecipe
    """Outer loop."""
    outer: OuterRecipe
    """Outer optimizer."""
    software: str = ""
    """Least version of this software that members need, such as 0.2.0; empty: any."""

    def __post_init__(self) -> None:
        if not self.name:
            raise RecipeValueError("name", self.name, f"1 to {MAX_NAME_CHARACTERS} characters")
        _check_line("name", self.name, MAX_NAME_CHARACTERS)
        _check("seed", self.seed, 0, (1 << 63) - 1)
        if self.software and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", self.software) is None:
            raise RecipeValueError("software", self.software, "a version such as 0.2.0")


def get_unit(key: str) -> str | None:
    """Return what a key's integer counts, None where its name alone says it.

    >>> get_unit("codec.forget_bps")
    'ten-thousandths, whole ones: 0.3 is 3000'
    """
    return next((unit for ending, unit in UNITS.items() if key.endswith(ending)), None)


def _check(key: str, value: int, minimum: int, maximum: int) -> None:
    """Raise unless an integer lies in its closed range."""
    if not minimum <= value <= maximum:
        unit = get_unit(key)
        raise RecipeValueError(key, value, f"{minimum}..{maximum}" + (f" ({unit})" if unit else ""))


_LAYOUT = "\n\r\t"
"""What text of several lines may hold besides what is printed."""


def _check_line(key: str, value: str, max_characters: int) -> None:
    """Raise unless a text can stand in a line: everybody who joins a run prints what its owner wrote."""
    if len(value) > max_characters or not value.isprintable():
        raise RecipeValueError(key, value, f"at most {max_characters} characters, none of them unprintable")


def _find_unprintable(text: str) -> str:
    """Return the first character that doesn't print, and what stands around it."""
    at = next(index for index, each in enumerate(text) if not (each.isprintable() or each in _LAYOUT))
    return text[max(0, at - 20) : at + 20]


def _check_real(key: str, value: float, minimum: float, maximum: float, *, is_open: bool = False) -> None:
    """Raise unless a real lies in its range; NaN never does."""
    if not (minimum <= value <= maximum) or (is_open and value <= minimum):
        raise RecipeValueError(key, value, f"{'above ' if is_open else 'from '}{minimum} to {maximum}")
