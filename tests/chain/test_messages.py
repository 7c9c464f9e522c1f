"""Each refusal of the chain says what to do next: the classes are found, so a new one is checked too."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import chain.light_client
import chain.verified_reads  # noqa: F401  defines more of them
from chain.core.errors import ChainError
from chain.home import HomeError
from chain.joining import JoinFailed
from chain.recursion import StackTooSmall
from chain.rpc.faults import RpcFault
from chain.settings import InvalidSettings
from chain.store import StoreError
from contracts.bindings.failures import describe_failure

ROOTS = (ChainError, HomeError, JoinFailed, StoreError, InvalidSettings, StackTooSmall, RpcFault)
ELSEWHERE = {"RpcFault", "MethodNotFound", "Reverted"}
"""Their messages are written where they are raised or by the contract, or name the nearest method."""
EXAMPLES: dict[str, Any] = {
    "int": 7,
    "str": "x",
    "bytes": b"\x01" * 32,
    "Path": Path("home"),
    "Exception": ValueError("x"),
    "Sequence[str]": ["PATH"],
    "object": 3,
    "float": 1.0,
}


def _all(root: type[Exception]) -> list[type[Exception]]:
    return [root, *(each for child in root.__subclasses__() for each in _all(child))]


def _make(kind: type[Exception]) -> Exception | None:
    """Make one from its own parameters; None for the roots of trees, which are never raised themselves."""
    if "__init__" not in vars(kind) or kind.__name__ in ELSEWHERE:
        return None
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return kind(*(EXAMPLES[str(each.annotation).removesuffix(" | None")] for each in parameters))


CLASSES = sorted({each for root in ROOTS for each in _all(root)}, key=lambda each: each.__qualname__)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
def test_every_refusal_says_what_to_do_next(kind: type[Exception]) -> None:
    error = _make(kind)
    if error is None:
        return
    what, _, step = describe_failure(error).partition("\nnext:  ")
    assert what.startswith("error: ")
    assert step, what
    assert "; next: " not in step, "one next step"


def test_classes_are_found() -> None:
    names = {each.__name__ for each in CLASSES}
    assert len(names) > 40
    assert {"NonceTooLow", "AppAheadOfCore", "StoreMissing", "SourceFailed", "NotEnoughPower"} <= names
