"""Any causal language model of transformers, by its config (extra ``hf``).

The recipe holds the config and a table of all parameters, so what is agreed does not depend on the version of
transformers: a version that builds other parameters is refused by name.  Nothing is downloaded, no code of a
model repository runs, no pickle is read; weights come from our own draw or from safetensors.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from training.core.errors import MissingExtraError, ModelMismatchError, RecipeValueError
from training.core.recipe import ModelKind, ModelRecipe

START_BITS = 20
"""Standard deviations and maxima stand in the table as fractions of 2^20: far finer than they matter."""


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

    Raises `MissingExtraError`, or `ModelMismatchError` naming the first tensor that differs.
    """
    module = CausalLm(_build(model.config))
    built = {name: "x".join(str(size) for size in weight.shape) for name, weight in module.named_parameters()}
    told = {line.split()[0]: line.split()[1] for line in model.tensors.split("\n") if line.strip()}
    for name in sorted(built.keys() | told.keys()):
        if built.get(name) != told.get(name):
            raise ModelMismatchError(name, told.get(name), built.get(name))
    return module


def describe_causal_lm(config_text: str, context: int, given: dict[str, torch.Tensor] | None = None) -> ModelRecipe:
    """Return the [model] of a config: its table from the library, each tensor's start from its name or from ``given``.

    Drawn matrices get the config's ``initializer_range``.
    """
    config = json.loads(config_text)
    module = _build(config_text)
    deviation = Fraction(config.get("initializer_range", 0.02)).limit_denominator(10_000)
    squared = 3 * deviation * deviation
    lines = []
    for name, weight in sorted(module.named_parameters()):
        shape = "x".join(str(size) for size in weight.shape)
        if given is not None:
            peak = -(-int(given[name].abs().max().double() * (1 << START_BITS)) // 1) + 1
            start = f"given:{peak * peak}/{1 << 2 * START_BITS}"
        elif name.endswith("bias"):
            start = "zeros"
        elif weight.dim() == 1:
            start = "ones"
        else:
            start = f"uniform:{squared.numerator}/{squared.denominator}"
        lines.append(f"{name} {shape} {start}")
    built = module.config
    heads, width = int(built.num_attention_heads), int(built.hidden_size)
    return ModelRecipe(
        width=width,
        num_layers=int(built.num_hidden_layers),
        num_heads=heads if width % (2 * heads) == 0 else 1,
        hidden=int(getattr(built, "intermediate_size", None) or 4 * width),
        context=context,
        kind=ModelKind.HUGGING_FACE,
        vocabulary=int(built.vocab_size),
        config=json.dumps(config, sort_keys=True),
        tensors="\n".join(lines),
    )


def _build(config_text: str) -> Any:
    """Build an untrained model on the CPU in float32, without dropout."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("hf", "transformers", "model.kind = 'hugging_face'") from error
    library: Any = transformers
    fields = json.loads(config_text)
    kind = fields.pop("model_type", None)
    if not isinstance(kind, str) or "auto_map" in fields:
        raise RecipeValueError("model.config", kind, "a model_type that transformers itself knows, and no auto_map")
    try:
        config = library.AutoConfig.for_model(kind, **fields)
    except ValueError as error:
        raise RecipeValueError("model.config", kind, "a model_type that transformers knows") from error
    for name in list(config.to_dict()):
        if name.endswith(("dropout", "_pdrop")) and isinstance(getattr(config, name, None), float):
            setattr(config, name, 0.0)
    return library.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
