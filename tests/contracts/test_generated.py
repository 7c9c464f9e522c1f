"""What is generated equals the declarations, compiles with solc and means the same to web3.py."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from web3 import Web3

from chain.core.abi.codec import ContractCodec, topic
from chain.core.abi.declare import Contract, Struct, struct
from chain.core.abi.enumerations import UndocumentedEnum, enumerations_of
from chain.core.contracts.staking.governance import LIMITS
from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.encoding import decode_error, decode_output, encode_call, load_abi
from contracts.bindings.errors import NEXT_STEPS, STATES, UNITS, UNKNOWN_HEIGHT, describe_error
from contracts.bindings.failures import SEPARATOR
from contracts.bindings.types import RoundState, RunParams
from contracts.generate import CONTRACTS, FOLDER, find_stale, render_all

COMPILE = """
const solc = require(process.argv[1]);
const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(solc.compile(JSON.stringify(input)));
"""


def test_check_passes_on_what_is_committed() -> None:
    done = subprocess.run([sys.executable, "-m", "contracts.generate", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_changed_file_is_stale(tmp_path: Path) -> None:
    for path, content in render_all().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert find_stale(tmp_path) == []
    (tmp_path / "abi/Training.json").write_text("[]")
    (tmp_path / "bindings/types.py").unlink()
    assert find_stale(tmp_path) == ["abi/Training.json", "bindings/types.py"]


def test_solc_compiles_the_interfaces_to_the_same_abi(npm_package: Callable[[str], tuple[str, Path]]) -> None:
    node, folder = npm_package("solc")
    sources = {path.name: {"content": path.read_text()} for path in sorted((FOLDER / "solidity").glob("*.sol"))}
    settings = {"evmVersion": "prague", "outputSelection": {"*": {"*": ["abi"]}}}
    compiler_input = json.dumps({"language": "Solidity", "sources": sources, "settings": settings})
    command = [node, "-e", COMPILE, str(folder)]
    done = subprocess.run(command, input=compiler_input, capture_output=True, text=True, timeout=120)
    output = json.loads(done.stdout)
    assert output.get("errors", []) == []
    for contract in CONTRACTS:
        compiled = output["contracts"][f"I{contract.name}.sol"][f"I{contract.name}"]["abi"]
        ours = [dict(entry) for entry in load_abi(contract.name)]
        assert sorted(map(_meaning, compiled)) == sorted(map(_meaning, ours))


def _meaning(entry: dict[str, object]) -> str:
    def bare(value: object) -> object:
        if isinstance(value, dict):
            return {name: bare(item) for name, item in value.items() if name != "internalType"}
        return [bare(item) for item in value] if isinstance(value, list) else value

    return json.dumps(bare(entry), sort_keys=True)


def test_web3_and_the_node_compute_the_same_selectors_and_topics() -> None:
    for contract in CONTRACTS:
        codec = ContractCodec(contract)
        web3_contract = Web3().eth.contract(abi=list(load_abi(contract.name)))
        for function in contract.functions:
            signature = web3_contract.get_function_by_name(function.name).signature
            assert codec.by_selector[bytes(Web3.keccak(text=signature)[:4])].function is function
        for event in contract.events:
            assert bytes(Web3.keccak(text=web3_contract.get_event_by_name(event.name).signature)) == topic(event)


def test_bindings_and_node_encode_alike() -> None:
    numbers = {name: index for index, name in enumerate(RunParams.__slots__)}
    params = RunParams(**{**numbers, "is_allow_listed": True, "is_sealed": False})
    values = tuple(getattr(params, name) for name in RunParams.__slots__)
    codec = ContractCodec(CONTRACTS[0])
    arguments = (params, b"recipe", b"\x01" * 32)
    assert encode_call("Training", "createRun", arguments) == codec.by_name["createRun"].encode_inputs(
        (values, b"recipe", b"\x01" * 32)
    )


def test_returned_structs_are_typed() -> None:
    function = ContractCodec(CONTRACTS[0]).by_name["round"]
    fields = function.function.outputs[0].kind
    assert isinstance(fields, Struct)
    values = [b"\x07" * 32 if field.kind == "bytes32" else 3 for field in fields.fields]
    found = decode_output("Training", "round", function.encode_outputs([tuple(values)]))
    assert found.state is RoundState.ATTEST
    assert found.base_root == b"\x07" * 32


def test_addresses_are_those_of_the_contracts() -> None:
    assert {contract.name: "0x" + contract.address.hex() for contract in CONTRACTS} == ADDRESSES


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_every_error_says_its_values_and_what_to_do(contract: Contract) -> None:
    """CASES 31: of 103 errors 43 ended with their values."""
    for error in contract.errors:
        values = [_make_value(field.kind) for field in error.fields]
        said = decode_error(ContractCodec(contract).encode_error(error.name, values))
        assert said is not None
        what, separator, step = str(said).partition(SEPARATOR)
        name, _, shown = what.partition(": ")
        assert (name, len(shown.split(", "))) == (error.name, len(values) or 1), what
        assert separator, f"{contract.name}.{error.name}: what is to be done about it?"
        assert step == NEXT_STEPS[error.name]


def test_next_steps_name_what_exists() -> None:
    errors = {error.name for contract in CONTRACTS for error in contract.errors}
    functions = {function.name for contract in CONTRACTS for function in contract.functions}
    assert set(NEXT_STEPS) - errors == set()
    for name, step in NEXT_STEPS.items():
        for command in re.findall(r"`([^`]+)`", step):
            assert _is_command(command), f"{name}: {step}"
        for function in re.findall(r"\b(\w+)\(", step):
            assert function in functions, f"{name}: {step}"
    assert all(parameter in NEXT_STEPS["UnknownParameter"] for parameter in LIMITS)


def _is_command(text: str) -> bool:
    """Say whether a command line, or a command of ``trainer run`` alone, is there."""
    program, *path = text.split()
    modules = {"trainer": "training.cli", "chain-node": "chain.cli", "storage": "storage.cli"}
    modules["storage-node"] = "storage.node_cli"
    if program not in modules:
        program, path = "trainer", ["run", program, *path]
    command: Any = typer.main.get_command(importlib.import_module(modules[program]).app)
    for name in path:
        command = command.commands.get(name)
        if command is None:
            return False
    return True


def _make_value(kind: object) -> object:
    if kind == "string":
        return "why"
    if kind == "address":
        return b"\x07" * 20
    if str(kind).startswith("bytes"):
        return b"\x07" * int(str(kind).removeprefix("bytes"))
    return 7


def test_an_error_s_numbers_say_what_they_are_of() -> None:
    """`expected 2, got 5` and `expected 8648, got 5890` said nothing to whoever read them."""
    said = str(describe_error("WrongRunState", {"expected": 2, "got": 5}))
    assert said.startswith("WrongRunState: expected RUNNING (2), got FINISHED (5); next: ")
    assert "wait" not in said, "a run that has finished comes to no other state"
    assert "`trainer run show`" in describe_error("WrongRunState", {"expected": 2, "got": 4})
    assert "expected block 8648, got block 5890; next: " in describe_error(
        "ReclaimTooEarly", {"expected": 8648, "got": 5890}
    )
    locked = describe_error("BondLocked", {"until_height": UNKNOWN_HEIGHT, "height": 7})
    assert locked.startswith("BondLocked: until_height a block that is not known yet, height block 7; next: wait until")
    assert "the height is reached" not in locked, "18446744073709551615 was told as one"
    assert "expected 5 wei, got 1 wei" in describe_error("BondTooSmall", {"expected": 5, "got": 1})
    assert "got 99" in describe_error("WrongRunState", {"expected": 2, "got": 99}), "of a later version"
    for contract in CONTRACTS:
        for error in contract.errors:
            kinds = [field.kind for field in error.fields if field.kind.startswith("uint")]
            bounds = {field.name for field in error.fields} >= {"expected", "got"}
            if any(field.name.lower().endswith("height") for field in error.fields) or (bounds and len(kinds) == 2):
                assert error.name in UNITS or error.name in STATES, error.name


def test_invalid_enum_without_documented_values() -> None:
    with pytest.raises(UndocumentedEnum, match=r"Member.state: expected 'state: 0 none"):
        enumerations_of(struct("Member", "No values here.", "uint8 state"))
