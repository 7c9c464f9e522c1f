"""What a node tells about itself: one dictionary, shown as JSON, as a page and by ``storage-node status``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from da.bulk import BULK_PORT_KEY
from storage.core.errors import DiskFailed
from storage.core.leaving import NEVER
from storage.core.tiers import POLICIES
from storage.node.answerer import Answerer
from storage.node.auditor import AuditCounts, Auditor
from storage.node.collector import Collector
from storage.node.engine import StoreEngine
from storage.node.index import IndexTotals
from storage.node.keys import ReceiptKey
from storage.node.reconcile import Reconciliation
from storage.node.registration import RegistrationState
from storage.node.repairer import RepairCounts, Repairer
from storage.node.scrubber import Scrubber
from storage.node.watch import ChainWatch, get_my_seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepers:
    """The parts that see to it that shards stay; None: this node runs without."""

    scrubber: Scrubber | None = None
    repairer: Repairer | None = None
    auditor: Auditor | None = None
    answerer: Answerer | None = None


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
        keepers: Keepers | None = None,
    ) -> None:
        """Read from these; they are the parts of one node."""
        self.engine = engine
        self.watch = watch
        self.collector = collector
        self.key = key
        self.address = address
        """The operator's chain account, None where the node does not register itself."""
        self.found = found
        self.keepers = keepers if keepers is not None else Keepers()
        self.url = ""
        """Where clients reach it; known once it listens."""
        self.bulk_port: int | None = None
        """Where the bulk port listens, None while it doesn't."""
        self.registration: RegistrationState | None = None
        self._totals = IndexTotals(used_bytes=0, num_shards=0, tier_bytes=(0,) * len(POLICIES))

    def get_status(self) -> dict[str, Any]:
        """Return the status; sizes in bytes, heights in blocks."""
        quota, totals = self.engine.get_quota(), self._get_totals()
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
                "num_shards": totals.num_shards,
            },
            "tiers": [
                {
                    "name": policy.tier.name.lower(),
                    "durability": policy.durability,
                    "medium": policy.medium,
                    "repair": policy.repair,
                    "is_served": policy.is_served,
                    "used_bytes": used_bytes,
                }
                for policy, used_bytes in zip(POLICIES.values(), totals.tier_bytes, strict=True)
            ],
            "disk": self.engine.health.get_status(),
            "memory": self.engine.disk.get_memory_status(),
            "repair": self._get_repair(),
            "scrub": self._get_scrub(),
            "audits": self._get_audits(),
            "income": self._get_income(),
            "collector": {"deleted": self.collector.num_deleted, "failed_sweeps": self.collector.num_failed},
            "found_at_start": asdict(self.found),
        }

    def _get_totals(self) -> IndexTotals:
        """Return the index's counters; while the disk fails, those that it gave last."""
        try:
            self._totals = self.engine.index.get_totals()
        except DiskFailed as error:
            self.engine.health.note(error)
        return self._totals

    def _get_repair(self) -> dict[str, Any]:
        repairer = self.keepers.repairer
        losses = self.engine.losses.get_counts()
        return {
            "is_running": repairer is not None,
            "losses": sum(losses.values()),
            **(asdict(repairer.counts) if repairer is not None else asdict(RepairCounts())),
        }

    def _get_scrub(self) -> dict[str, int]:
        scrubber = self.keepers.scrubber
        return {
            "scrubbed": scrubber.num_scrubbed if scrubber is not None else 0,
            "damaged": scrubber.num_damaged if scrubber is not None else 0,
        }

    def _get_audits(self) -> dict[str, Any]:
        auditor, answerer = self.keepers.auditor, self.keepers.answerer
        counts = auditor.counts if auditor is not None else AuditCounts()
        accuser = auditor.accuser if auditor is not None else None
        return {
            "leaves_good": counts.leaves_good,
            "leaves_failed": counts.leaves_failed,
            "folds_judged": counts.folds_judged,
            "liars_named": counts.liars_named,
            "faults_by_node": dict(counts.faults),
            "suspects": len(accuser.suspicions) if accuser is not None else 0,
            "challenges_opened": accuser.num_accused if accuser is not None else 0,
            "challenges_answered": answerer.num_answered if answerer is not None else 0,
            "challenges_failed": answerer.num_failed if answerer is not None else 0,
        }

    def _get_income(self) -> dict[str, int | None]:
        account = self.keepers.answerer.account if self.keepers.answerer is not None else None
        if account is None:
            return {"earned_wei": None, "bond_wei": None, "num_faults": None, "bond_free_height": None}
        return {
            "earned_wei": account.earned,
            "bond_wei": account.bond,
            "num_faults": account.num_faults,
            "bond_free_height": account.free_height if account.free_height < NEVER else None,
        }
