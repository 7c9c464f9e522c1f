"""The functions of the Training contract, from decoded arguments to outputs."""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.abi.training import TRAINING
from chain.core.contracts.dispatch import Call, Handler


def _refuse(call: Call, *arguments: object) -> None:
    raise Refusal("UnknownRun", arguments[0] if arguments and isinstance(arguments[0], int) else 0)


TRAINING_HANDLERS: dict[str, Handler] = {function.name: _refuse for function in TRAINING.functions}
"""By function name."""
