"""A compact GPT over bytes or tokens: RMSNorm, rotary positions, SwiGLU, tied embeddings, no dropout.

Legend: B batch, T time, W width, H heads, D width of a head.  Parameter names and shapes are those of
`training.core.layout`; a test compares them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from training.core.recipe import ModelRecipe

NORM_EPSILON = 1e-5
"""Added to the mean square of what an RMSNorm divides."""

ROTARY_BASE = 10_000.0
"""Longest wavelength of the rotary positions over 2 pi, as in RoFormer (arXiv 2104.09864)."""


class Block(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm and added to the stream."""

    def __init__(self, model: ModelRecipe) -> None:
        super().__init__()
        width, hidden = model.width, model.hidden
        self.num_heads = model.num_heads
        self.attention_norm = nn.RMSNorm(width, eps=NORM_EPSILON)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width, eps=NORM_EPSILON)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, stream_BTW: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor) -> torch.Tensor:
        """Return the stream after the block."""
        num_samples, length, width = stream_BTW.shape
        qkv = self.qkv(self.attention_norm(stream_BTW)).view(num_samples, length, 3, self.num_heads, -1)
        query_BHTD, key_BHTD, value_BHTD = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHTD = functional.scaled_dot_product_attention(
            _rotate(query_BHTD, cosine_TD, sine_TD), _rotate(key_BHTD, cosine_TD, sine_TD), value_BHTD, is_causal=True
        )
        mixed_BTW = mixed_BHTD.transpose(1, 2).reshape(num_samples, length, width)
        stream_BTW = stream_BTW + self.attention_out(mixed_BTW)
        gate, up = self.gate_up(self.feed_norm(stream_BTW)).chunk(2, dim=-1)
        down: torch.Tensor = self.down(functional.silu(gate) * up)
        return stream_BTW + down


class Gpt(nn.Module):
    """The model of a recipe."""

    def __init__(self, model: ModelRecipe) -> None:
        super().__init__()
        self.model = model
        self.embed = nn.Embedding(model.vocabulary, model.width)
        self.layers = nn.ModuleList(Block(model) for _ in range(model.num_layers))
        self.final_norm = nn.RMSNorm(model.width, eps=NORM_EPSILON)
        cosine_TD, sine_TD = compute_rotary_tables(model.context, model.width // model.num_heads)
        self.register_buffer("cosine_TD", cosine_TD, persistent=False)
        self.register_buffer("sine_TD", sine_TD, persistent=False)

    def fill_tables(self) -> None:
        """Compute the rotary tables again, for a module that was built without memory."""
        tables = compute_rotary_tables(self.model.context, self.model.width // self.model.num_heads)
        for name, table_TD in zip(("cosine_TD", "sine_TD"), tables, strict=True):
            self.get_buffer(name).copy_(table_TD)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return logits for the next token, (B, T, vocabulary); T at most the recipe's context."""
        length = tokens_BT.shape[1]
        cosine_TD, sine_TD = self.get_buffer("cosine_TD")[:length], self.get_buffer("sine_TD")[:length]
        stream_BTW = self.embed(tokens_BT)
        for layer in self.layers:
            stream_BTW = layer(stream_BTW, cosine_TD, sine_TD)
        return functional.linear(self.final_norm(stream_BTW), self.embed.weight)


def compute_loss(model: nn.Module, samples_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss in nats a token over samples of context + 1 tokens, of any module from tokens to logits."""
    logits = model(samples_BT[:, :-1])
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), samples_BT[:, 1:].reshape(-1))


def compute_rotary_tables(length: int, head_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of every position and frequency, each frequency twice."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_width, 2).float() / head_width)
    angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(vectors: torch.Tensor, cosine_TD: torch.Tensor, sine_TD: torch.Tensor) -> torch.Tensor:
    """Turn pairs (i, i + D/2) by their position's angle."""
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosine_TD + torch.cat((-second, first), dim=-1) * sine_TD
