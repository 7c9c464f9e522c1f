"""Read the training state as any web3.py user would: the real package, the ABI JSON of `contracts/abi`, one URL.

Nothing of the project's own bindings is used here, on purpose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from web3 import HTTPProvider, Web3
from web3.contract import Contract

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
    """Return the lines that the demo prints: run, last round, its updates with their fates, agreed root."""
    w3, training = connect_training(url)
    info = _call(training, "run", run)
    last = info["numSettled"] - 1
    lines = [
        f"web3.py {_version()} on chain {w3.eth.chain_id}, block {w3.eth.block_number}, contract {TRAINING_ADDRESS}:",
        f"  run({run}): {RUN_STATES[info['state']]}, {info['numSettled']} of {info['numRoundsTotal']} rounds settled, "
        f"{info['numMembers']} members, recipe {_short(info['recipeDigest'])}, "
        f"pay {_tokens(info['paidRewards'])}, storage {_tokens(info['paidStorage'])}",
    ]
    round_info = _call(training, "round", run, last)
    lines.append(
        f"  round({run}, {last}): {ROUND_STATES[round_info['state']]}, fragment {round_info['fragment']}, "
        f"{round_info['numAccepted']} of {round_info['numCommitted']} updates counted, settled in block "
        f"{round_info['settledHeight']}"
    )
    for update in _call(training, "updates", run, last):
        lines.extend(_describe_update(update))
    missing = set(_call(training, "participants", run, last)) - {
        u["member"] for u in _call(training, "updates", run, last)
    }
    lines.extend(f"    {member}: no update in this round" for member in sorted(missing))
    root = _call(training, "root", run, info["headVersion"])
    lines.append(f"  root({run}, {info['headVersion']}): 0x{bytes(root).hex()}   <- the agreed state")
    return lines


def _describe_update(update: dict[str, Any]) -> list[str]:
    reason = REASONS[update["reason"]]
    return [
        f"    {update['member']}: {FATES[update['fate']]}{f' because {reason}' if reason else ''}, "
        f"{update['tokens']:,} tokens, loss {update['lossMicro'] / 1e6:.3f}, {update['sizeBytes']:,} bytes, "
        f"paid {_tokens(update['paid'])}",
        f"      digest 0x{bytes(update['digest']).hex()}",
        f"      blob   0x{bytes(update['blob']).hex()}",
    ]


def _call(contract: Contract, function: str, *arguments: int) -> Any:
    """Call a view and name the fields of the struct, or structs, that it returns."""
    output = contract.get_function_by_name(function).abi["outputs"][0]
    answer = contract.functions[function](*arguments).call()
    names = [component["name"] for component in output.get("components", ())]
    if not names:
        return answer
    if output["type"].endswith("[]"):
        return [dict(zip(names, one, strict=True)) for one in answer]
    return dict(zip(names, answer, strict=True))


def _tokens(wei: int) -> str:
    return f"{Web3.from_wei(wei, 'ether'):.6f}"


def _short(value: bytes) -> str:
    return f"0x{bytes(value).hex()[:16]}..."


def _version() -> str:
    from importlib.metadata import version

    return version("web3")
