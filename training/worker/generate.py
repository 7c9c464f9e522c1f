"""Text from a model, byte by byte, reproducible by seed."""

from __future__ import annotations

import torch

from training.core.canonical import CanonicalState
from training.core.recipe import Recipe
from training.evaluation import build_model


def generate_text(
    recipe: Recipe,
    state: CanonicalState,
    prompt: str,
    *,
    num_bytes: int,
    temperature: float,
    seed: int,
    device: str = "cpu",
) -> str:
    """Continue ``prompt`` by ``num_bytes`` bytes; temperature 0 takes the likeliest byte each time.

    The model sees at most the recipe's context; bytes that are no UTF-8 are shown as replacement characters.
    """
    model = build_model(recipe, state, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    text = list(prompt.encode() or b"\n")
    with torch.no_grad():
        for _ in range(num_bytes):
            window = torch.tensor([text[-recipe.model.context :]], dtype=torch.int64, device=device)
            logits = model(window)[0, -1]
            if temperature <= 0:
                choice = int(logits.argmax())
            else:
                choice = int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator))
            text.append(choice)
    return bytes(text).decode("utf-8", errors="replace")
