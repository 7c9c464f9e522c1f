"""Regenerate the protobuf stubs beside ``abci.proto`` (development only: needs grpcio-tools)."""

from __future__ import annotations

import sys
from pathlib import Path

PROTO = Path(__file__).with_name("abci.proto")
"""The one source of the stubs."""


def generate(directory: Path) -> None:
    """Write ``chain/abci/abci_pb2.py`` and its ``.pyi`` under ``directory``; raises RuntimeError."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    include = Path(protoc.__file__).parent / "_proto"
    root = PROTO.parent.parent.parent
    arguments = ["protoc", f"-I{root}", f"-I{include}", f"--python_out={directory}", f"--pyi_out={directory}"]
    code = protoc.main([*arguments, str(PROTO.relative_to(root))])
    if code != 0:
        raise RuntimeError(f"protoc ended with {code}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTO.parent.parent.parent)
