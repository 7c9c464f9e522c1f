"""What a node tells about itself: one dictionary, shown as JSON, as a page and by ``storage-node status``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from da.bulk import BULK_PORT_KEY
from storage.core.tiers import POLICIES
from storage.node.collector import Collector
from storage.node.engine import StoreEngine
from storage.node.keys import ReceiptKey
from storage.node.reconcile import Reconciliation
from storage.node.registration import RegistrationState
from storage.node.watch import ChainWatch, get_my_seats


class NodeState:
    """Everything that the status and the metrics are made of."""

    def __init__(
        self,
        *,
        engine: StoreEngine,
        watch: ChainWatch,
        collector: Collector,
        key: ReceiptKey,
        address: str | None,
        found: Reconciliation,
    ) -> None:
        """Read from these; they are the parts of one node."""
        self.engine = engine
        self.watch = watch
        self.collector = collector
        self.key = key
        self.address = address
        """The operator's chain account, None where the node does not register itself."""
        self.found = found
        self.url = ""
        """Where clients reach it; known once it listens."""
        self.bulk_port: int | None = None
        """Where the bulk port listens, None while it doesn't."""
        self.registration: RegistrationState | None = None

    def get_status(self) -> dict[str, Any]:
        """Return the status; sizes in bytes, heights in blocks."""
        quota = self.engine.get_quota()
        view = self.watch.view
        return {
            BULK_PORT_KEY: self.bulk_port,
            "node": {
                "key": self.key.public.hex(),
                "address": self.address,
                "url": self.url,
                "registration": None if self.registration is None else self.registration.value,
            },
            "chain": {
                "is_reachable": self.watch.is_reachable,
                "height": None if view is None else view.height,
                "genesis_hash": None if view is None else view.genesis_hash.hex(),
                "seats": {}
                if view is None
                else {
                    str(committee.epoch): list(get_my_seats(committee, self.key.public))
                    for committee in view.committees
                },
            },
            "space": {
                "capacity_bytes": quota.capacity_bytes,
                "used_bytes": quota.used_bytes,
                "reserved_bytes": quota.reserved_bytes,
                "free_disk_bytes": self.engine.disk.get_free_bytes(),
                "num_shards": self.engine.index.get_totals().num_shards,
            },
            "tiers": [
                {"name": policy.tier.name.lower(), "durability": policy.durability, "is_served": policy.is_served}
                for policy in POLICIES.values()
            ],
            "collector": {"deleted": self.collector.num_deleted, "failed_sweeps": self.collector.num_failed},
            "found_at_start": asdict(self.found),
        }
