"""Fixtures of the EVM's tests; ``evm_pair`` lies beside it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from evm_pair import Anvil, Chain

from chain.recursion import allow_evm_depth
from contracts.compile import SETTINGS, SOLC_VERSION, compile_sources

FOLDER = Path(__file__).resolve().parent


@pytest.fixture(scope="session", autouse=True)
def _deep_calls() -> None:
    """The processes that execute raise the interpreter's limit; these tests execute in theirs."""
    allow_evm_depth()


@pytest.fixture
def chain() -> Chain:
    """The executor alone, at genesis."""
    return Chain()


@pytest.fixture(scope="session")
def anvil(npm_package: Callable[[str], tuple[str, Path]]) -> Iterator[Anvil]:
    """Return a running anvil."""
    _, folder = npm_package("@foundry-rs/anvil")
    programs = sorted(folder.parent.glob("anvil-*/bin/anvil*"))
    if not programs:
        pytest.skip("npm has no anvil for this machine")
    anvil = Anvil(programs[0])
    yield anvil
    anvil.stop()


@pytest.fixture(scope="session")
def solidity(npm_package: Callable[[str], tuple[str, Path]]) -> dict[str, Any]:
    """Return what solc makes of the contracts in this folder, by name; kept by the hash of the sources."""
    root = FOLDER.parents[1]
    paths = [*FOLDER.glob("*.sol"), *(root / "contracts/solidity").glob("*.sol")]
    sources = {str(path.relative_to(root)): path.read_text() for path in sorted(paths)}
    question = json.dumps([SOLC_VERSION, SETTINGS, sources], sort_keys=True)
    kept = root / ".cache/solc" / f"{hashlib.sha256(question.encode()).hexdigest()}.json"
    if not kept.exists():
        node, folder = npm_package("solc")
        compiled = compile_sources(node, folder, sources, are_warnings_errors=False)
        kept.parent.mkdir(parents=True, exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(compiled))
        written.replace(kept)
    contracts = json.loads(kept.read_text())
    return {name: contract for source in contracts.values() for name, contract in source.items()}
