"""Prometheus metrics of the JSON-RPC process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "archipelago_"

HELP = {
    "rpc_calls": "JSON-RPC calls answered since this process began, by method and outcome (ok, error).",
    "rpc_call_seconds": "Seconds from a JSON-RPC call's turn to its answer, by method.",
    "chain_height": "Height of the newest block that is stored whole.",
    "chain_block_time_seconds": "Time of that block by its validators, Unix seconds.",
    "chain_block_gas_used": "Gas that the transactions of that block used.",
}
"""Of every series that this process counts itself, with its unit."""


class Metrics:
    """Counts calls and shows the chain's head; one registry each, so that tests don't share."""

    def __init__(self) -> None:
        """Make the collectors."""
        self._registry = CollectorRegistry()
        self._children: dict[tuple[str, bool], tuple[Counter, Histogram]] = {}
        """By method and outcome: looking them up costs more than counting."""
        self._calls = Counter(*_name("rpc_calls"), ["method", "outcome"], registry=self._registry)
        self._seconds = Histogram(*_name("rpc_call_seconds"), ["method"], registry=self._registry)
        self._height = Gauge(*_name("chain_height"), registry=self._registry)
        self._age = Gauge(*_name("chain_block_time_seconds"), registry=self._registry)
        self._gas = Gauge(*_name("chain_block_gas_used"), registry=self._registry)

    def observe(self, method: str, seconds: float, *, is_error: bool) -> None:
        """Count one call."""
        key = (method, is_error)
        children = self._children.get(key)
        if children is None:
            children = self._calls.labels(method, "error" if is_error else "ok"), self._seconds.labels(method)
            self._children[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def set_head(self, *, height: int, time_seconds: int, gas_used: int) -> None:
        """Show the newest block."""
        self._height.set(height)
        self._age.set(time_seconds)
        self._gas.set(gas_used)

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)


def _name(name: str) -> tuple[str, str]:
    return PREFIX + name, HELP[name]
