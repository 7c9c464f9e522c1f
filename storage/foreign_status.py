"""A node's status as ``storage-node status`` and ``drain`` ask for it: from any URL, so perhaps from a stranger.

Invariant: the question is over by its deadline, whoever answers and however slowly (`contracts.bindings.whole_answer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.whole_answer import DIRECT, read_within
from da.foreign_json import parse_json
from da.node_calls import MAX_STATUS_BYTES
from da.protocol import STATUS_PATH
from storage.amounts import format_wei
from storage.sizes import format_size

LOCAL_URLS = ("http://127.0.0.1:9001", "http://127.0.0.1:9100")
"""Where ``start`` listens by default, and a devnet's first node."""

STATUS_SECONDS = 5.0
"""Longest wait for a node's whole answer."""

STATUS_PARTS = {"node", "chain", "space", "disk", "tiers", "repair", "audits", "income"}
"""Of a status, as it is printed."""

NO_NODE = "what answers there is no storage node of this version"
"""Of an answer that is JSON, and no status."""


def fetch_status(url: str) -> dict[str, Any]:
    """Return a node's status; without a URL that of the first on this machine that answers.

    Raises: OSError, ValueError.
    """
    if not url:
        for candidate in LOCAL_URLS[:-1]:
            with suppress(OSError, ValueError):
                return fetch_status(candidate)
        url = LOCAL_URLS[-1]
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"URL {url!r}, expected http://HOST:PORT")
    value = parse_json(
        # Nodes are asked directly, as they are for shards.
        read_within(url.rstrip("/") + STATUS_PATH, STATUS_SECONDS, max_bytes=MAX_STATUS_BYTES, opener=DIRECT)
    )
    if not isinstance(value, dict) or not value.keys() >= STATUS_PARTS:
        raise ValueError(NO_NODE)
    return value


def get_kept(status: dict[str, Any]) -> tuple[int, int]:
    """Return how many shards a node keeps, and their bytes; raises ValueError."""
    with _refuse_other_shapes():
        return int(status["space"]["num_shards"]), int(status["space"]["used_bytes"])


def describe_status(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a status in words, line by line, without control characters; raises ValueError."""
    with _refuse_other_shapes():
        return [(name, show_foreign(text)) for name, text in _describe(status)]


def _describe(status: dict[str, Any]) -> list[tuple[str, str]]:
    node, chain, space = status["node"], status["chain"], status["space"]
    seats = "; ".join(f"epoch {epoch}: {', '.join(map(str, held)) or 'none'}" for epoch, held in chain["seats"].items())
    used, capacity = format_size(space["used_bytes"]), format_size(space["capacity_bytes"])
    return [
        ("url", str(node["url"])),
        ("operator", str(node["address"] or "-")),
        ("receipt key", str(node["key"])),
        ("registration", str(node["registration"] or "-")),
        ("chain", f"height {chain['height']}" + ("" if chain["is_reachable"] else ", not reachable now")),
        ("seats", seats or "none"),
        ("used", f"{used} of {capacity}, {space['num_shards']} shards"),
        ("free on disk", format_size(space["free_disk_bytes"])),
        *_describe_disk(status["disk"]),
        *_describe_memory(status.get("memory")),
        ("tiers", ", ".join(f"{tier['name']} {format_size(tier['used_bytes'])}" for tier in status["tiers"])),
        ("repair", "{rebuilt} rebuilt, {failed} failed, {losses} losses noticed".format(**status["repair"])),
        ("audits", "{leaves_good} leaves good, {leaves_failed} failed, {liars_named} liars".format(**status["audits"])),
        ("income", _describe_income(status["income"])),
    ]


def _describe_disk(disk: dict[str, Any]) -> list[tuple[str, str]]:
    if not disk["failures"]:
        return []
    times = f"{disk['failures']} failures, the last {disk['last_seconds_ago']} s ago: {disk['last_failure']}"
    return [("disk", f"{times}; next: see the system's log, then storage-node doctor")]


def _describe_memory(memory: dict[str, Any] | None) -> list[tuple[str, str]]:
    if not memory:
        return []
    used, most = format_size(memory["used_bytes"]), format_size(memory["max_bytes"])
    lost = ", not there any more; next: mount it again and restart the node"
    return [("in memory", f"{used} of {most} in {memory['path']}{'' if memory['is_there'] else lost}")]


def _describe_income(income: dict[str, Any]) -> str:
    if income["earned_wei"] is None:
        return "-"
    earned, bond = format_wei(income["earned_wei"]), format_wei(income["bond_wei"])
    return f"{earned} earned, {bond} bond, {income['num_faults']} faults"


@contextmanager
def _refuse_other_shapes() -> Iterator[None]:
    """Turn what a status of another shape leads to into ValueError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(NO_NODE) from error
