"""Text from a model, token by token, reproducible by seed: bytes, or what the recipe's tokenizer has."""

from __future__ import annotations

import torch

from training.core.canonical import CanonicalState
from training.core.recipe import Recipe
from training.data.tokenizer import BYTES, Tokenizer
from training.evaluation import build_model


def generate_text(
    recipe: Recipe,
    state: CanonicalState,
    prompt: str,
    *,
    num_tokens: int,
    temperature: float,
    seed: int,
    device: str = "cpu",
    tokenizer: Tokenizer = BYTES,
) -> str:
    """Continue ``prompt`` by ``num_tokens`` tokens; temperature 0 takes the likeliest each time.

    The model sees at most the recipe's context.  A model may know more tokens than its tokenizer: those are never
    taken.
    """
    model = build_model(recipe, state, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    tokens = [int(token) for token in tokenizer.encode([prompt.encode() or b"\n"])] or [0]
    with torch.no_grad():
        for _ in range(num_tokens):
            window = torch.tensor([tokens[-recipe.model.context :]], dtype=torch.int64, device=device)
            logits = model(window)[0, -1, : tokenizer.size]
            if temperature <= 0:
                choice = int(logits.argmax())
            else:
                choice = int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator))
            tokens.append(choice)
    return tokenizer.decode(tokens)
