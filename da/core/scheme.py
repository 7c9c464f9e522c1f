"""Which code and which quorum a committee of n seats uses (DESIGN 5, *Committee*; da/SPEC.md, *Schemes*).

With f = floor((n - 1) / 3) liars or dead among n: k = n - 2f shards are enough to read, s = n - f receipts certify,
so at least s - f = k of the signed shards are honest. Invariant: k <= s <= n and s - f >= k.
"""

from __future__ import annotations

from da.core.errors import InvalidScheme
from da.core.types import Scheme, Tier

MAX_SEATS = 64
"""Seats of a committee; a certificate's bitmap is one 64-bit word (DESIGN 5)."""

MAX_SMALL_COMMITTEE = 3
"""Up to here f = 0, and the rule above would demand every seat; such committees keep copies instead (k = 1)."""

MIN_WIDE_COMMITTEE = 24
"""From here on cold blobs use k = 2n/3: 16 of 24 is lost with 3e-4 where a tenth of the shards go (DA.md)."""


def compute_scheme(num_seats: int) -> Scheme:
    """Return the scheme of a committee of ``num_seats``.

    ``compute_scheme(4)`` is (k 2, n 4, s 3); 6 -> (4, 6, 5); 12 -> (6, 12, 9); 1 -> (1, 1, 1); 2 and 3 -> copies
    with two signatures.

    Raises:
        InvalidScheme: not 1 .. 64 seats.
    """
    if not 1 <= num_seats <= MAX_SEATS:
        raise InvalidScheme(f"a committee of {num_seats} seats, expected 1 to {MAX_SEATS}")
    if num_seats <= MAX_SMALL_COMMITTEE:
        return Scheme(num_data=1, num_shards=num_seats, num_signatures=min(num_seats, 2))
    num_faulty = compute_num_faulty(num_seats)
    return Scheme(num_data=num_seats - 2 * num_faulty, num_shards=num_seats, num_signatures=num_seats - num_faulty)


def compute_tier_scheme(num_seats: int, tier: Tier) -> Scheme:
    """Return the scheme of a committee for a tier: cold blobs store 1.5 times their size where the committee allows.

    With 24 seats and more: k = floor(2n / 3), and s = k + f receipts, so that k of the signed shards are honest here
    too. ``compute_tier_scheme(24, Tier.COLD)`` is (16, 24, 23): a put needs all seats but one, and cold bytes can wait.

    Raises:
        InvalidScheme: not 1 .. 64 seats.
    """
    if tier is not Tier.COLD or num_seats < MIN_WIDE_COMMITTEE:
        return compute_scheme(num_seats)
    if num_seats > MAX_SEATS:
        raise InvalidScheme(f"a committee of {num_seats} seats, expected 1 to {MAX_SEATS}")
    num_data = 2 * num_seats // 3
    return Scheme(num_data=num_data, num_shards=num_seats, num_signatures=num_data + compute_num_faulty(num_seats))


def choose_scheme(num_seats: int, num_data: int | None = None, tier: Tier = Tier.HOT) -> Scheme:
    """Return a committee's scheme for a tier, or one with an explicit k: the quorum stays the committee's.

    A k above the committee's own survives fewer liars: (8, 12) survives crashes only.

    Raises:
        InvalidScheme: not 1 <= k <= s, or not 1 .. 64 seats.
    """
    scheme = compute_tier_scheme(num_seats, tier)
    if num_data is None:
        return scheme
    explicit = Scheme(num_data=num_data, num_shards=num_seats, num_signatures=scheme.num_signatures)
    validate_scheme(explicit)
    return explicit


def compute_num_faulty(num_seats: int) -> int:
    """Return f, the largest number of faulty seats with 3f < n."""
    return (num_seats - 1) // 3


def validate_scheme(scheme: Scheme) -> None:
    """Raise ``InvalidScheme`` unless 1 <= k <= s <= n <= 64."""
    if not 1 <= scheme.num_data <= scheme.num_signatures <= scheme.num_shards <= MAX_SEATS:
        raise InvalidScheme(
            f"k {scheme.num_data}, s {scheme.num_signatures}, n {scheme.num_shards}; expected 1 <= k <= s <= n <= "
            f"{MAX_SEATS}"
        )


def is_small(num_seats: int) -> bool:
    """Tell whether a committee is too small to survive a liar as well as a crash; tell people when it is."""
    return num_seats <= MAX_SMALL_COMMITTEE
