"""Prometheus metrics of the JSON-RPC process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counts calls and shows the chain's head; one registry each, so that tests don't share."""

    def __init__(self) -> None:
        """Make the collectors."""
        self._registry = CollectorRegistry()
        self._children: dict[tuple[str, bool], tuple[Counter, Histogram]] = {}
        """By method and outcome: looking them up costs more than counting."""
        self._calls = Counter("archipelago_rpc_calls", "JSON-RPC calls", ["method", "outcome"], registry=self._registry)
        self._seconds = Histogram(
            "archipelago_rpc_call_seconds", "Time in a JSON-RPC call", ["method"], registry=self._registry
        )
        self._height = Gauge("archipelago_chain_height", "Newest complete block", registry=self._registry)
        self._age = Gauge(
            "archipelago_chain_block_time_seconds", "BFT time of the newest block, Unix", registry=self._registry
        )
        self._gas = Gauge("archipelago_chain_block_gas_used", "Gas of the newest block", registry=self._registry)

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
