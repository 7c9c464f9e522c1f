"""Any causal language model of transformers, by its config (extra ``hf``).

The recipe holds the config and a table of all parameters, so what is agreed does not depend on the version of
transformers: a version that builds other parameters is refused by name.  Nothing is downloaded, no code of a
model repository runs, no pickle is read; weights come from our own draw or from safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from training.core.errors import MissingExtraError, ModelMismatchError, RecipeValueError, WeightsError
from training.core.recipe import ModelKind, ModelRecipe
from training.models.start import pick_weight

DEFAULT_CONTEXT = 512
"""Tokens a sample where nobody says: what fits most GPUs; the model's positions where it has fewer."""

START_BITS = 20
"""Standard deviations and maxima stand in the table as fractions of 2^20: far finer than they matter."""

TWO_SIDED = ("xlnet",)
"""Causal only with a permutation that nobody passes, and no filler of masks to the library."""

LAYER_NAMES = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
"""What families call the number of their layers; some configs make a list of that length, before any model."""

MAX_LAYERS = 512
"""As of `ModelRecipe`: more would take minutes to build, only to be refused."""

SIZES = {"num_attention_heads": 1 << 16, "hidden_size": 1 << 16, "max_position_embeddings": 1 << 30}
"""From 1 up to what, by the names that the library translates a family's into."""

ROTARY_NAMES = ("rope_theta", "rotary_emb_base", "factor")
"""What families call the base of rotary positions, and the factor by which ROTARY_OBJECTS stretch them."""

ROTARY_OBJECTS = ("rope_scaling", "rope_parameters")
"""How rotary positions go on behind the trained ones: an object, or null."""

MAX_INITIALIZER_RANGE = 100
"""Far more than any model trains with."""

MAX_WEIGHT = 1 << 24
"""Of a given or drawn weight: 64 times as much still has a grid in 32 bits."""

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Modules that leave something out by chance."""


class CausalLm(nn.Module):
    """Tokens to logits; parameters carry the library's own names."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return logits, (B, T, vocabulary)."""
        logits: torch.Tensor = self.inner(input_ids=tokens_BT, use_cache=False).logits
        return logits

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Return the library's names; a tied weight appears once."""
        return self.inner.named_parameters(*args, **kwargs)


def create_causal_lm(model: ModelRecipe) -> CausalLm:
    """Build a recipe's model and compare its parameters with the recipe's table.

    Raises `MissingExtraError`, `RecipeValueError`, or `ModelMismatchError` naming the first tensor that differs.
    """
    module = CausalLm(_build(model.config, model.context))
    built = {name: "x".join(str(size) for size in weight.shape) for name, weight in module.named_parameters()}
    told = dict(_read_table(model.tensors))
    for name in sorted(built.keys() | told.keys()):
        if built.get(name) != told.get(name):
            raise ModelMismatchError(name, told.get(name), built.get(name))
    return module


def describe_causal_lm(
    config_text: str, context: int | None = None, given: dict[str, torch.Tensor] | None = None
) -> ModelRecipe:
    """Return the [model] of a config: its table from the library, each tensor's start from its name or from ``given``.

    Drawn matrices get the config's ``initializer_range``.  Without ``context`` it is `DEFAULT_CONTEXT`, or as many
    positions as the model has.  Raises what `create_causal_lm` raises, and `WeightsError` for weights that don't fit.
    """
    config = _read_config(config_text)
    with torch.device("meta"):  # shapes are all that is asked for: a model of any size is described in seconds
        module = _build(config_text, context)
    if context is None:
        context = min(DEFAULT_CONTEXT, _count_positions(module.config) or DEFAULT_CONTEXT)
    deviation = Fraction(config.get("initializer_range", 0.02)).limit_denominator(10_000)
    if given is None and deviation == 0:
        expected = f"0.0001..{MAX_INITIALIZER_RANGE}, what weights are drawn with"
        raise RecipeValueError("model.config.initializer_range", config["initializer_range"], expected)
    squared = 3 * deviation * deviation
    lines = []
    for name, weight in sorted(module.named_parameters()):
        shape = "x".join(str(size) for size in weight.shape)
        if given is not None:
            value = pick_weight(given, name, tuple(weight.shape))
            largest = float(value.abs().max())
            if largest > MAX_WEIGHT:
                raise WeightsError(f"tensor {name}", f"weights up to {largest:g}", f"at most {MAX_WEIGHT}")
            peak = int(largest * (1 << START_BITS)) + 1
            start = f"given:{peak * peak}/{1 << 2 * START_BITS}"
        elif name.endswith("bias"):
            start = "zeros"
        elif weight.dim() == 1:
            start = "ones"
        else:
            start = f"uniform:{squared.numerator}/{squared.denominator}"
        lines.append(f"{name} {shape} {start}")
    built = module.config
    try:
        heads, width, depth = int(built.num_attention_heads), int(built.hidden_size), int(built.num_hidden_layers)
    except AttributeError as error:
        raise RecipeValueError("model.config", config["model_type"], f"a text model of one stack ({error})") from error
    return ModelRecipe(
        width=width,
        num_layers=depth,
        num_heads=heads if width % (2 * heads) == 0 else 1,
        hidden=int(getattr(built, "intermediate_size", None) or 4 * width),
        context=context,
        kind=ModelKind.HUGGING_FACE,
        vocabulary=int(built.vocab_size),
        config=json.dumps(config, sort_keys=True),
        tensors="\n".join(lines),
    )


def _read_table(tensors: str) -> Iterator[tuple[str, str]]:
    """Yield name and shape of each line. Raises `RecipeValueError` for one whose weights no grid holds."""
    for line in tensors.split("\n"):
        if not line.strip():
            continue
        try:
            name, shape, start = line.split()
            ratio = start.partition(":")[2] or "0/1"
            num, den = (int(part) for part in ratio.split("/"))
        except ValueError as error:
            raise RecipeValueError("model.tensors", line, "NAME SHAPE START, as `trainer recipe` writes it") from error
        if num > MAX_WEIGHT**2 * den * 2:  # a given maximum is rounded up
            raise RecipeValueError("model.tensors", line, f"weights of at most {MAX_WEIGHT}, squared")
        yield name, shape


def _read_config(config_text: str) -> dict[str, Any]:
    """Return a config.json's object. Raises `RecipeValueError`."""
    try:
        config = json.loads(config_text)
    except (ValueError, RecursionError) as error:
        raise RecipeValueError(
            "model.config", config_text[:80], f"the JSON of a model's config.json ({error})"
        ) from error
    if not isinstance(config, dict):
        raise RecipeValueError("model.config", config_text[:80], "the JSON object of a model's config.json")
    return config


def _build(config_text: str, context: int | None) -> Any:
    """Build an untrained model in float32, without dropout, on torch's default device."""
    try:
        import transformers
        from huggingface_hub import errors as hub_errors
    except ImportError as error:
        raise MissingExtraError("hf", "transformers", "model.kind = 'hugging_face'") from error
    library: Any = transformers
    fields = _read_config(config_text)
    kind = fields.pop("model_type", None)
    if not isinstance(kind, str) or "auto_map" in fields:
        raise RecipeValueError("model.config", kind, "a model_type that transformers itself knows, and no auto_map")
    if fields.get("quantization_config") is not None:
        expected = "a config without quantization_config: weights of F32, F16, BF16 or F64"
        raise RecipeValueError("model.config", kind, expected)
    _check_fields(fields)
    # What versions of the library before its strict configs don't have never comes.
    refused: Any = getattr(hub_errors, "StrictDataclassError", ValueError)
    try:
        config = library.AutoConfig.for_model(kind, **fields)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, refused) as error:
        raise _create_refusal(kind, error, "a model_type that transformers knows, with its fields") from error
    _clear_dropout(config)
    _check_is_causal(kind, config, library)
    _check_sizes(config)
    positions = _count_positions(config)
    if context is not None and positions is not None and context > positions:
        raise RecipeValueError("model.context", context, f"at most {positions}, the positions that the model has")
    try:
        built = library.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, refused) as error:
        raise _create_refusal(kind, error, "a causal language model that can be built with sdpa attention") from error
    for module in built.modules():  # some models have a chance of their own, which no config names
        if isinstance(module, DROPOUTS):
            module.p = 0.0
    return built


def _clear_dropout(config: Any) -> None:
    """Set every chance of leaving something out to 0, those of configs within it too: a resumed worker draws nothing.

    A family has its own names for them: dropout, attn_pdrop, hidden_dropout_prob, layerdrop.
    """
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _clear_dropout(value)
        elif ("dropout" in name or name.endswith(("pdrop", "layerdrop"))) and type(value) in (int, float):
            setattr(config, name, type(value)(0))


def _check_fields(fields: dict[str, Any]) -> None:
    """Refuse numbers that the library would build minutes on, or a model of NaN. Raises `RecipeValueError`."""
    for name, value in fields.items():
        if name in ROTARY_OBJECTS and value is not None and not isinstance(value, dict):
            raise RecipeValueError(f"model.config.{name}", value, "an object or null")
        if isinstance(value, dict):
            _check_fields(value)
        elif type(value) in (int, float):
            if name in LAYER_NAMES and not 1 <= value <= MAX_LAYERS:
                raise RecipeValueError(f"model.config.{name}", value, f"1..{MAX_LAYERS}")
            if name in ROTARY_NAMES and not 0 < value < float("inf"):
                raise RecipeValueError(f"model.config.{name}", value, "a finite number above 0")
            if name == "initializer_range" and not 0 <= value <= MAX_INITIALIZER_RANGE:
                raise RecipeValueError(f"model.config.{name}", value, f"0..{MAX_INITIALIZER_RANGE}")


def _check_sizes(config: Any) -> None:
    """Refuse a size that no model has. Raises `RecipeValueError`, with the config's own name of it."""
    for name, largest in SIZES.items():
        value = getattr(config, name, None)
        if type(value) is int and not 1 <= value <= largest:
            own = getattr(config, "attribute_map", {}).get(name, name)
            raise RecipeValueError(f"model.config.{own}", value, f"1..{largest}")


def _check_is_causal(kind: str, config: Any, library: Any) -> None:
    """Refuse models whose positions see later ones: they would learn to copy the token that they should foretell.

    The library builds a causal head for these too.  Its decoders (gpt2, llama) fill no masks; a model that does is
    causal only where its config says so.  Raises `RecipeValueError`.
    """
    if config.is_encoder_decoder:
        raise RecipeValueError("model.config", kind, "a causal language model: this one has an encoder")
    fills_masks = type(config) in library.MODEL_FOR_MASKED_LM_MAPPING
    if (fills_masks and not (getattr(config, "is_decoder", False) or getattr(config, "causal", False))) or (
        kind in TWO_SIDED
    ):
        raise RecipeValueError(
            "model.config", kind, "a causal language model, such as gpt2, llama or qwen2: here, a token sees later ones"
        )


def _count_positions(config: Any) -> int | None:
    """Return how many tokens a sample may have, None where the config doesn't say."""
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _create_refusal(kind: str, error: Exception, expected: str) -> RecipeValueError:
    """Return the error for what the library refuses, with its own reason on one short line."""
    reason = " ".join(str(error).split())
    return RecipeValueError("model.config", kind, f"{expected} ({reason[:200]})")
