"""A recipe as TOML text: what `parse_recipe` reads back to the same value."""

from __future__ import annotations

import json
from dataclasses import fields
from enum import StrEnum
from typing import Any

from training.core.recipe import AggregationKind, CodecKind, OptimizerKind, Recipe, StartKind


def _name_all(kinds: type[StrEnum]) -> str:
    return "one of " + ", ".join(kind.value for kind in kinds)


COMMENTS = {
    ("data", "held_out_bps"): "ten-thousandths of the text: 300 is 3 %",
    ("inner", "optimizer"): _name_all(OptimizerKind),
    ("codec", "kind"): _name_all(CodecKind),
    ("codec", "rank"): "r of the low-rank codecs; with vector, of the table of tokens",
    ("codec", "keep_energy_bps"): "ten-thousandths of an update's energy that the rank moves to keep; 0: it stays",
    ("codec", "forget_bps"): "ten-thousandths of the error feedback dropped after each exchange: 3000 is 0.3",
    ("rounds", "overlap"): "d: 0 each round waits for its exchange, 1 the next round trains meanwhile",
    ("rounds", "start"): _name_all(StartKind) + "; where a round begins while an exchange is under way: with the "
    "weights as they are, those that were agreed (DiLoCoX's delay), or those and this worker's share",
    ("rounds", "max_local_steps"): "up to where H may grow while the link is slow; 0: it stays",
    ("outer", "momentum_start_q15"): "mu in units of 2^-15: 29491 is 0.9",
    ("outer", "rate_start_q15"): "eta in units of 2^-15: 32768 is 1",
    ("outer", "aggregation"): _name_all(AggregationKind),
    ("inner", "batch_size"): "samples a step of each member: fewer take less memory",
    ("inner", "warmup_steps"): "of a recipe by size a tenth of all steps, num_rounds * local_steps / num_fragments",
    ("rounds", "num_fragments"): "F: a round exchanges one, after local_steps / F inner steps",
    ("rounds", "local_steps"): "H: steps between two exchanges of a fragment",
}
"""What a person changes first, the choices there are and the units, beside the value."""

TRIALS = {
    ("rounds", "local_steps"): (40, "for a trial 40"),
    ("rounds", "num_rounds"): (20, "for a trial 20, with warmup_steps 8"),
}
"""What is said beside a value that is larger."""


def write_recipe(recipe: Recipe) -> str:
    """Return the TOML text, every field spelt out."""
    lines = [f"name = {_write(recipe.name)}", f"seed = {recipe.seed}"]
    if recipe.software:
        lines.append(f"software = {_write(recipe.software)}")
    for section in fields(Recipe):
        if section.name in ("name", "seed", "software"):
            continue
        value: Any = getattr(recipe, section.name)
        lines += ["", f"[{section.name}]"]
        for field in fields(value):
            own = getattr(value, field.name)
            most, trial = TRIALS.get((section.name, field.name), (0, ""))
            comment = "; ".join(
                part
                for part in (COMMENTS.get((section.name, field.name)), trial if most and own > most else "")
                if part
            )
            lines.append(f"{field.name} = {_write(own)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"


def _write(value: object) -> str:
    """Return one value: JSON's strings are TOML's, except where a line break reads better as one."""
    if isinstance(value, StrEnum):
        return json.dumps(value.value)
    if isinstance(value, str) and "\n" in value and "'''" not in value:
        return f"'''\n{value}'''"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)
