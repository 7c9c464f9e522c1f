"""The last proof: processes that know only the chain's URL pull the model, check it, evaluate it and let it write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contracts.bindings.client import ChainClient
from localnet.command import CommandRunner, get_command
from localnet.demo.facts import MICRO, get_evaluations
from localnet.demo.settings import RUN

DEADLINE_SECONDS = 90.0
"""Each command; loading torch is most of it."""
PROMPT = "def "
"""What the generated text begins with: the model has read Python."""
OWN_DATA_PROMPT = "The "
"""The same for a person's own text."""
NUM_BYTES = 120
"""Length of the generated text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What came out."""

    version: int
    """Version of the checkpoint."""
    root: bytes
    """Root computed from what was pulled."""
    chain_root: bytes
    """Root of that version on the chain."""
    loss: float
    """Held-out loss, evaluated afresh, nats a byte."""
    chain_loss: float | None
    """Held-out loss of that version on the chain."""
    text: str
    """What the model wrote."""


def pull_and_check(
    commands: CommandRunner, client: ChainClient, url: str, out: Path, data: Path | None, say: Callable[[str], None]
) -> Pulled:
    """Pull, compare the root with the chain's, evaluate, generate; raises StepFailed where a command fails."""
    pulled = json.loads(
        commands.run(
            "checkpoint-pull",
            [
                *(get_command("trainer"), "checkpoint", "pull", "--run", str(RUN), "--chain", url),
                *("--out", str(out), "--json"),
            ],
            step="pull the checkpoint (trainer checkpoint pull)",
            deadline_seconds=DEADLINE_SECONDS,
        )
    )
    version = int(pulled["version"])
    root = bytes.fromhex(pulled["root"].removeprefix("0x"))
    chain_root = client.training.root(RUN, version)
    say(f"pulled version {version} into {out}")
    say(f"  root of what came   0x{root.hex()}")
    say(f"  root on the chain   0x{chain_root.hex()}")
    with_data = ["--data", str(data)] if data is not None else []
    evaluated = json.loads(
        commands.run(
            "evaluate",
            [get_command("trainer"), "evaluate", str(out), "--json", *with_data],
            step="evaluate the checkpoint (trainer evaluate)",
            deadline_seconds=DEADLINE_SECONDS,
        )
    )
    loss = float(evaluated["loss"])
    recorded = {one.version: one.loss_micro / MICRO for one in get_evaluations(client, RUN)}
    chain_loss = recorded.get(version)
    say(f"  held-out loss       {loss:.3f}, on the chain {'none' if chain_loss is None else f'{chain_loss:.3f}'}")
    generated = json.loads(
        commands.run(
            "generate",
            [
                *(get_command("trainer"), "generate", str(out), "--prompt", OWN_DATA_PROMPT if data else PROMPT),
                *("--length", str(NUM_BYTES), "--json"),
            ],
            step="let the model write (trainer generate)",
            deadline_seconds=DEADLINE_SECONDS,
        )
    )
    text = str(generated["text"])
    say("  it writes")
    for line in text.splitlines():
        say(f"    | {line}".rstrip())
    return Pulled(version=version, root=root, chain_root=chain_root, loss=loss, chain_loss=chain_loss, text=text)
