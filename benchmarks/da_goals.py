"""The goals of data availability, and what they come to on the machine at hand.

They were set where encoding and hashing give 3.5 GB/s a core. A weaker machine owes the same share of
min(encode + hash, loopback) as measured in the same invocation.
"""

from __future__ import annotations

REFERENCE_GB_PER_SECOND = 3.5
"""min(encode + hash, loopback) of the machine that the goals were set for."""

RATES = {
    "disperse_ram_bulk": 1.0,
    "disperse_ram_bulk_2of4": 0.6,
    "disperse_ram_http": 0.6,
    "read_verify_bulk": 2.0,
}
"""GB/s of blob bytes on that machine."""

WORDS = {
    "encode_8_4": "0.75 of ISA-L called bare",
    "encode_hash_8_4": "3.5 GB/s a core, or 0.84 of the harmonic limit",
    "disperse_disk_bulk": "0.7 of disperse_ram_bulk",
    "small_blobs": "2,000 blobs/s",
    "large_blob_memory": "below 600 MB",
}
"""Goals that are the same everywhere."""


def describe_goal(name: str, value: float, limit: float = 0.0) -> str:
    """Return what was asked of row ``name`` and, for rates, whether ``value`` meets it; empty where nothing was."""
    if name in WORDS:
        return f"; goal: {WORDS[name]}"
    if name not in RATES:
        return ""
    goal = compute_goal(name, limit)
    share = RATES[name] / REFERENCE_GB_PER_SECOND
    verdict = "met" if value >= goal else "missed"
    return (
        f"; goal: {RATES[name]:g} GB/s where min(encode + hash, loopback) is {REFERENCE_GB_PER_SECOND:g}, "
        f"the same share ({share:.2f}) here, where it is {limit:.2f}: {goal:.2f} GB/s, {verdict}"
    )


def compute_goal(name: str, limit: float) -> float:
    """Return the goal of a rate in GB/s where min(encode + hash, loopback) is ``limit``.

    >>> compute_goal("disperse_ram_bulk", 7.0), compute_goal("read_verify_bulk", 1.75)
    (1.0, 1.0)
    """
    return RATES[name] * min(1.0, limit / REFERENCE_GB_PER_SECOND)
