"""Our GPT under the names of transformers' Llama, which computes the same: what a pulled model folder holds.

Both are RMSNorm, rotary positions that turn pairs (i, i + D/2), SwiGLU and no bias (arXiv 2302.13971); ours has query,
key and value in one matrix, gate and up in another, and one table for embedding and logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from training.core.recipe import ModelRecipe
from training.models.gpt import NORM_EPSILON, ROTARY_BASE

WHOLE = {
    "attention_norm": "input_layernorm",
    "attention_out": "self_attn.o_proj",
    "feed_norm": "post_attention_layernorm",
    "down": "mlp.down_proj",
}
"""Modules of a block that are one of theirs."""

CUT = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Modules of a block whose rows are several of theirs, in equal parts."""


def rename_for_llama(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of `Gpt` as those of ``LlamaForCausalLM``."""
    renamed = {
        "model.embed_tokens.weight": tensors["embed.weight"],
        "model.norm.weight": tensors["final_norm.weight"],
    }
    for name, tensor in tensors.items():
        if not name.startswith("layers."):
            continue
        _, layer, module, _ = name.split(".")
        theirs = CUT.get(module) or (WHOLE[module],)
        for each, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            renamed[f"model.layers.{layer}.{each}.weight"] = part.contiguous()
    return renamed


def describe_as_llama(model: ModelRecipe) -> dict[str, Any]:
    """Return the config by which transformers builds a recipe's `Gpt`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_heads,
        "head_dim": model.width // model.num_heads,
        "max_position_embeddings": model.context,
        "rope_theta": ROTARY_BASE,
        "rms_norm_eps": NORM_EPSILON,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
