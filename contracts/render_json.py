"""The standard ABI JSON of a declaration (Solidity documentation, "Contract ABI Specification", JSON)."""

from __future__ import annotations

import json
from typing import Any

from chain.core.abi.declare import Contract, Field, Struct
from contracts.naming import json_type, solidity_type


def render_json(contract: Contract) -> str:
    """Render one entry a line, so that a change shows as one line of a diff."""
    entries = [
        *(
            {
                "type": "function",
                "name": function.name,
                "inputs": [_parameter(field) for field in function.inputs],
                "outputs": [_parameter(field) for field in function.outputs],
                "stateMutability": str(function.mutability),
            }
            for function in contract.functions
        ),
        *(
            {
                "type": "event",
                "name": event.name,
                "inputs": [{**_parameter(field), "indexed": field.is_indexed} for field in event.fields],
                "anonymous": False,
            }
            for event in contract.events
        ),
        *(
            {"type": "error", "name": error.name, "inputs": [_parameter(field) for field in error.fields]}
            for error in contract.errors
        ),
    ]
    return "[\n" + ",\n".join("  " + json.dumps(entry) for entry in entries) + "\n]\n"


def _parameter(field: Field) -> dict[str, Any]:
    parameter: dict[str, Any] = {"name": field.name, "type": json_type(field)}
    if isinstance(field.kind, Struct):
        parameter["internalType"] = f"struct {solidity_type(field)}"
        parameter["components"] = [_parameter(inner) for inner in field.kind.fields]
    return parameter
