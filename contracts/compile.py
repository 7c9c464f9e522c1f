"""Compile the example contracts to the artifacts that are checked in beside them.

``python -m contracts.compile --solc FOLDER`` writes ``examples/*.json``; FOLDER is npm's ``solc`` of the version
below, ``--node`` says where Node.js is.  No metadata is appended, so the same source gives the same bytes anywhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SOLC_VERSION = "0.8.30"
"""Another compiler writes other bytes."""
SETTINGS: dict[str, Any] = {
    "evmVersion": "prague",
    "optimizer": {"enabled": True, "runs": 200},
    "metadata": {"appendCBOR": False, "bytecodeHash": "none"},
}
FOLDER = Path(__file__).resolve().parent
COMPILE_SECONDS = 120.0

_PROGRAM = """
const solc = require(process.argv[1]);
const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
const output = JSON.parse(solc.compile(JSON.stringify(input)));
process.stdout.write(JSON.stringify({ version: solc.version(), output }));
"""


class CompilationFailed(Exception):
    """The compiler refused the source, or is another version."""


def compile_sources(
    node: str, solc: Path, sources: dict[str, str], *, are_warnings_errors: bool = True
) -> dict[str, Any]:
    """Return solc's contracts by source and name; raises CompilationFailed with its messages."""
    wanted = {"*": {"*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"]}}
    request = {
        "language": "Solidity",
        "sources": {name: {"content": text} for name, text in sources.items()},
        "settings": {**SETTINGS, "outputSelection": wanted},
    }
    done = subprocess.run(
        [node, "-e", _PROGRAM, str(solc)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise CompilationFailed(done.stderr[-2_000:])
    answer = json.loads(done.stdout)
    if not answer["version"].startswith(SOLC_VERSION + "+"):
        raise CompilationFailed(f"solc is {answer['version']}, expected {SOLC_VERSION}")
    faults = [
        fault["formattedMessage"]
        for fault in answer["output"].get("errors", ())
        if are_warnings_errors or fault["severity"] == "error"
    ]
    if faults:
        raise CompilationFailed("\n".join(faults))
    contracts: dict[str, Any] = answer["output"]["contracts"]
    return contracts


def render_artifacts(node: str, solc: Path) -> dict[str, str]:
    """Return the wanted content of each artifact, by path below ``contracts/``."""
    paths = [*sorted((FOLDER / "solidity").glob("*.sol")), *sorted((FOLDER / "examples").glob("*.sol"))]
    sources = {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in paths}
    compiled = compile_sources(node, solc, sources)
    files = {}
    for source in sources:
        if not source.startswith("examples/"):
            continue
        for name, contract in compiled[source].items():
            artifact = {
                "contractName": name,
                "compiler": {"name": "solc", "version": SOLC_VERSION, "settings": SETTINGS},
                "abi": contract["abi"],
                "bytecode": "0x" + contract["evm"]["bytecode"]["object"],
                "deployedBytecode": "0x" + contract["evm"]["deployedBytecode"]["object"],
            }
            files[f"examples/{name}.json"] = json.dumps(artifact, indent=1) + "\n"
    return files


def main() -> int:
    """Write the artifacts."""
    parser = argparse.ArgumentParser(description="Compile the example contracts.")
    parser.add_argument("--solc", type=Path, required=True, help=f"folder of npm's solc@{SOLC_VERSION}")
    parser.add_argument("--node", default="node", help="Node.js")
    arguments = parser.parse_args()
    for path, content in render_artifacts(arguments.node, arguments.solc.resolve()).items():
        (FOLDER / path).write_text(content, encoding="utf-8")
        print(f"wrote contracts/{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
