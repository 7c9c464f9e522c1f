"""How one node runs: what the command line, tests and benchmarks hand down (STYLE 19)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.core.accusation import AccusationPolicy
from storage.core.errors import StorageError
from storage.node.engine import DEFAULT_FLOOR_BYTES
from storage.node.index import DEFAULT_MAP_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """How one node runs."""

    home: Path
    host: str
    """Address to listen on."""
    port: int
    """0: a free one."""
    capacity_bytes: int
    """Bytes that the node may charge for shards, at least 1 MiB."""
    advertise_url: str | None = None
    """Where clients reach it; None: the listening address."""
    floor_bytes: int = DEFAULT_FLOOR_BYTES
    """Bytes that stay free on the filesystem."""
    map_bytes: int = DEFAULT_MAP_BYTES
    """Address space of the index."""
    poll_seconds: float = 1.0
    """Between two questions for the chain's height."""
    collect_every_blocks: int = 5
    """Between two sweeps of the collector."""
    max_uploads: int = 64
    """Uploads under way at once; more are told to come back."""
    body_timeout_seconds: float = 30.0
    """A body of which nothing comes for so long is given up."""
    bulk_port: int | None = 0
    """The bulk port, on the host of the URL; 0: a free one, None: none, as behind a proxy that passes HTTP only."""
    cold_bucket: str | None = None
    """URL of the bucket for cold shards, e.g. ``s3://bucket/prefix``; None: append segments in the home."""
    cold_bucket_options: tuple[tuple[str, str], ...] = ()
    """What overrides the environment for the bucket: endpoint, region, ..."""
    ram: Path | None = None
    """Folder of a memory file system for temporary shards; None: they lie in the home like the others."""
    ram_bytes: int = 1 << 30
    """What may lie there; the rest goes to the home."""
    repair_bytes_per_second: int = 64 << 20
    """What repair may read from others."""
    scrub_bytes_per_second: int | None = 32 << 20
    """What scrubbing may read from the own disk; None: no scrubbing."""
    repair_every_blocks: int = 100
    """Between two comparisons of inventories (30 s)."""
    audit_every_blocks: int = 100
    """Between two audits of others."""
    accusations: AccusationPolicy | None = AccusationPolicy()
    """When peers that fail audits are challenged on the chain; None: never."""
    extra_codes: tuple[tuple[int, int], ...] = ()
    """Codes (k, n) that are taken beside the committees' own."""
    rejoins: bool = False
    """Whether a node that was retired, or slashed, registers again."""
    certify_seconds: float = 60.0
    """For so long after a receipt its certificate may be on the way, whatever the chain says of earlier leases."""
    funds_deadline_seconds: float = 300.0
    """How long registration waits for funds."""

    def __post_init__(self) -> None:
        """Refuse what can't work.

        Raises: StorageError naming the field.
        """
        if self.capacity_bytes < 1 << 20:
            raise StorageError(
                f"capacity_bytes {self.capacity_bytes}, expected at least {1 << 20}; next: give --capacity 1MiB or more"
            )
        if self.advertise_url is None and self.host in ("0.0.0.0", "::", ""):
            raise StorageError(
                f"listening on {self.host or 'all addresses'} needs advertise_url: the URL that clients on other "
                "machines reach; next: give it, such as --advertise http://store.example.org:9001"
            )
