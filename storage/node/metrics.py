"""A node's counters for Prometheus; each has a registry of its own, so several nodes fit into one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from storage.node.status import NodeState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus text format."""

PREFIX = "storage_"

COUNTERS = {
    "puts": "Shards signed for since the node started, by tier.",
    "put_bytes": "Bytes of shards received and kept since the node started.",
    "get_bytes": "Bytes of shards sent since the node started.",
    "refusals": "Requests refused since the node started, by reason.",
    "failures": "Requests that failed in the node itself since it started.",
}
"""What the node counts as it answers."""

GAUGES = {
    "capacity_bytes": "Bytes that the operator gave.",
    "used_bytes": "Bytes charged for kept shards.",
    "reserved_bytes": "Bytes set aside for uploads under way.",
    "free_disk_bytes": "Bytes free on the filesystem.",
    "num_shards": "Number of shards kept.",
    "disk_failures": "Times that the medium or a database on it failed since start.",
    "chain_height": "Height of the newest block seen.",
    "chain_reachable": "1 while the chain answers, else 0.",
    "deleted_shards": "Expired shards deleted since start.",
    "failed_sweeps": "Sweeps of the collector since start that the chain did not answer.",
    "lost_shards": "Shards in the index that were not on disk at start.",
    "quarantined_shards": "Files found at start that were not what they say.",
    "losses": "Shards noticed missing or damaged since start.",
    "repaired_shards": "Shards rebuilt from others since start.",
    "failed_repairs": "Rebuilds since start that found too few good shards.",
    "repair_read_bytes": "Bytes read from others for rebuilding since start.",
    "repair_rebuilt_bytes": "Bytes of shards rebuilt since start.",
    "scrubbed_shards": "Shards read again since start and found right.",
    "damaged_shards": "Shards read again since start and found wrong.",
    "audit_leaves_good": "Leaves that other nodes proved since start.",
    "audit_leaves_failed": "Leaves that other nodes could not prove since start.",
    "audit_folds_judged": "Blobs whose shards were audited as a whole since start.",
    "audit_liars_named": "Seats found since start to keep other bytes than they signed for.",
    "audit_suspects": "Seats that failed an audit and were not cleared since.",
    "challenges_opened": "Challenges on the chain that this node opened since start.",
    "challenges_answered": "Challenges on the chain that this node answered since start.",
    "challenges_failed": "Tries since start to answer a challenge that failed.",
    "earned_wei": "What the chain has ever paid this node, in wei.",
    "bond_wei": "Bond that this node can lose, in wei.",
}
"""What is read from the node when somebody asks."""


class Metrics:
    """Counts requests; reads the rest from the node when asked."""

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = CollectorRegistry()
        registry = self._registry
        self.puts = Counter(PREFIX + "puts", COUNTERS["puts"], ["tier"], registry=registry)
        self.put_bytes = Counter(PREFIX + "put_bytes", COUNTERS["put_bytes"], registry=registry)
        self.get_bytes = Counter(PREFIX + "get_bytes", COUNTERS["get_bytes"], registry=registry)
        self.refusals = Counter(PREFIX + "refusals", COUNTERS["refusals"], ["reason"], registry=registry)
        self.failures = Counter(PREFIX + "failures", COUNTERS["failures"], registry=registry)
        self._gauges = {name: Gauge(PREFIX + name, text, registry=registry) for name, text in GAUGES.items()}

    def render(self, state: NodeState) -> bytes:
        """Return all of it as text."""
        status = state.get_status()
        space, chain, collector, found = (status[name] for name in ("space", "chain", "collector", "found_at_start"))
        values = {
            **space,
            "chain_height": chain["height"] or 0,
            "chain_reachable": int(chain["is_reachable"]),
            "deleted_shards": collector["deleted"],
            "failed_sweeps": collector["failed_sweeps"],
            "disk_failures": status["disk"]["failures"],
            "lost_shards": found["lost"],
            "quarantined_shards": found["quarantined"],
            "losses": status["repair"]["losses"],
            "repaired_shards": status["repair"]["rebuilt"],
            "failed_repairs": status["repair"]["failed"],
            "repair_read_bytes": status["repair"]["bytes_read"],
            "repair_rebuilt_bytes": status["repair"]["bytes_rebuilt"],
            "scrubbed_shards": status["scrub"]["scrubbed"],
            "damaged_shards": status["scrub"]["damaged"],
            "audit_leaves_good": status["audits"]["leaves_good"],
            "audit_leaves_failed": status["audits"]["leaves_failed"],
            "audit_folds_judged": status["audits"]["folds_judged"],
            "audit_liars_named": status["audits"]["liars_named"],
            "audit_suspects": status["audits"]["suspects"],
            "challenges_opened": status["audits"]["challenges_opened"],
            "challenges_answered": status["audits"]["challenges_answered"],
            "challenges_failed": status["audits"]["challenges_failed"],
            "earned_wei": status["income"]["earned_wei"] or 0,
            "bond_wei": status["income"]["bond_wei"] or 0,
        }
        for name, gauge in self._gauges.items():
            gauge.set(values[name])
        return generate_latest(self._registry)
