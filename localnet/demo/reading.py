"""Read the training state as any web3.py user would: the real package, the ABI JSON of `contracts/abi`, one URL.

Nothing of the project's own bindings is used here, on purpose.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from web3 import HTTPProvider, Web3
from web3.contract import Contract

from contracts.bindings.amounts import format_tokens

ABI_FILE = Path(__file__).resolve().parents[2] / "contracts" / "abi" / "Training.json"
"""Generated from the one declaration of the contract."""
TRAINING_ADDRESS = "0x0000000000000000000000000000000000001000"
"""Where every Archipelago chain has it."""
RUN_STATES = ("none", "CREATED", "RUNNING", "WAITING", "PAUSED", "FINISHED")
"""Names of `RunInfo.state`."""
ROUND_STATES = ("none", "OPEN", "REVEAL", "ATTEST", "DISPUTE", "FINAL", "VOID")
"""Names of `RoundInfo.state`."""
FATES = ("none", "PENDING", "ACCEPTED", "REFUSED")
"""Names of `Update.fate`."""
REASONS = ("", "VOID_ROUND", "MISSING_PAYLOAD", "INVALID_PAYLOAD", "NOT_REVEALED", "NOT_DRAWN")
"""Names of `Update.reason`."""


def connect_training(url: str) -> tuple[Web3, Contract]:
    """Return web3 and the contract at 0x..1000."""
    w3 = Web3(HTTPProvider(url, request_kwargs={"timeout": 10}))
    raw = json.loads(ABI_FILE.read_text(encoding="utf-8"))
    abi = raw["abi"] if isinstance(raw, dict) else raw
    return w3, w3.eth.contract(address=Web3.to_checksum_address(TRAINING_ADDRESS), abi=abi)


def read_state(url: str, run: int) -> list[str]:
    """Return the lines that the demo prints: run, last rounds with each worker's update and its fate, agreed root."""
    w3, training = connect_training(url)
    info = _call(training, "run", run)
    last = info["numSettled"] - 1
    lines = [
        f"web3.py {version('web3')} on chain {w3.eth.chain_id}, block {w3.eth.block_number}, contract"
        f" {TRAINING_ADDRESS}:",
        f"  run({run}): {RUN_STATES[info['state']]}, {info['numSettled']} of {info['numRoundsTotal']} rounds settled, "
        f"{info['numMembers']} members, recipe {_short(info['recipeDigest'])}, "
        f"pay {format_tokens(info['paidRewards'])}, storage {format_tokens(info['paidStorage'])}",
    ]
    last_trained = min(info["params"]["numRounds"], info["numSettled"]) - 1
    if last_trained != last:
        lines += _describe_round(training, run, last_trained, "the last round with inner steps")
    lines += _describe_round(
        training, run, last, "the last round" if last == last_trained else "the last, a flush round"
    )
    root = _call(training, "root", run, info["headVersion"])
    lines.append(f"  root({run}, {info['headVersion']}): 0x{bytes(root).hex()}   <- the agreed state")
    return lines


def _describe_round(training: Contract, run: int, index: int, what: str) -> list[str]:
    info = _call(training, "round", run, index)
    updates = _call(training, "updates", run, index)
    lines = [
        f"  round({run}, {index}), {what}: {ROUND_STATES[info['state']]}, fragment {info['fragment']}, "
        f"{info['numAccepted']} of {info['numCommitted']} updates counted, settled in block {info['settledHeight']}"
    ]
    for update in updates:
        lines += _describe_update(update)
    absent = sorted(set(_call(training, "participants", run, index)) - {update["member"] for update in updates})
    return lines + [f"    {member}: no update in this round" for member in absent]


def _describe_update(update: dict[str, Any]) -> list[str]:
    reason = REASONS[update["reason"]]
    steps = f"{update['tokens']:,} tokens, loss {update['lossMicro'] / 1e6:.3f}" if update["tokens"] else "flush"
    return [
        f"    {update['member']}: {FATES[update['fate']]}{f' because {reason}' if reason else ''}, {steps}, "
        f"{update['sizeBytes']:,} bytes, "
        f"paid {format_tokens(update['paid'])}",
        f"      digest 0x{bytes(update['digest']).hex()}",
        f"      blob   0x{bytes(update['blob']).hex()}",
    ]


def _call(contract: Contract, function: str, *arguments: int) -> Any:
    """Call a view and name the fields of the structs that it returns."""
    output = contract.get_function_by_name(function).abi["outputs"][0]
    return _name_fields(output, contract.functions[function](*arguments).call())


def _name_fields(output: Any, value: Any) -> Any:
    components = output.get("components")
    if not components:
        return value
    if output["type"].endswith("[]"):
        return [_name_fields({**output, "type": "tuple"}, one) for one in value]
    return {part["name"]: _name_fields(part, one) for part, one in zip(components, value, strict=True)}


def _short(value: bytes) -> str:
    return f"0x{bytes(value).hex()[:16]}..."
