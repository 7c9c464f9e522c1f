"""k, n and s of every committee size."""

from __future__ import annotations

import pytest

from da.core.errors import InvalidScheme
from da.core.scheme import (
    MAX_SEATS,
    choose_scheme,
    compute_num_faulty,
    compute_scheme,
    compute_tier_scheme,
    is_small,
    validate_scheme,
)
from da.core.types import Scheme, Tier


@pytest.mark.parametrize(
    ("num_seats", "num_data", "num_signatures"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 2), (4, 2, 3), (5, 3, 4), (6, 4, 5), (7, 3, 5), (12, 6, 9), (64, 22, 43)],
)
def test_known_schemes(num_seats: int, num_data: int, num_signatures: int) -> None:
    assert compute_scheme(num_seats) == Scheme(num_data=num_data, num_shards=num_seats, num_signatures=num_signatures)


@pytest.mark.parametrize("num_seats", range(1, MAX_SEATS + 1))
def test_signed_shards_of_honest_seats_suffice_to_read(num_seats: int) -> None:
    scheme = compute_scheme(num_seats)
    num_faulty = compute_num_faulty(num_seats)
    validate_scheme(scheme)
    assert scheme.num_signatures - num_faulty >= scheme.num_data
    assert scheme.num_signatures <= num_seats - num_faulty
    if not is_small(num_seats):
        assert 3 * scheme.num_signatures > 2 * num_seats


@pytest.mark.parametrize("num_seats", [-1, 0, 65])
def test_invalid_committee_sizes_are_refused(num_seats: int) -> None:
    with pytest.raises(InvalidScheme, match=str(num_seats)):
        compute_scheme(num_seats)


def test_invalid_quorum_below_k_is_refused() -> None:
    with pytest.raises(InvalidScheme):
        validate_scheme(Scheme(num_data=3, num_shards=4, num_signatures=2))


def test_an_explicit_k_keeps_the_quorum() -> None:
    assert choose_scheme(12) == compute_scheme(12)
    explicit = choose_scheme(12, 8)
    assert (explicit.num_data, explicit.num_shards, explicit.num_signatures) == (8, 12, 9)
    for num_data in (0, 10):
        with pytest.raises(InvalidScheme):
            choose_scheme(12, num_data)


@pytest.mark.parametrize("num_seats", range(1, 65))
def test_cold_blobs_survive_as_many_liars(num_seats: int) -> None:
    cold, own = compute_tier_scheme(num_seats, Tier.COLD), compute_scheme(num_seats)
    assert compute_tier_scheme(num_seats, Tier.HOT) == own
    if num_seats < 24:
        assert cold == own
        return
    num_faulty = (num_seats - 1) // 3
    assert cold.num_signatures - num_faulty == cold.num_data
    assert cold.num_signatures < num_seats, "one seat may be away"
    assert 1.5 <= num_seats / cold.num_data < 1.57


def test_16_of_24() -> None:
    assert compute_tier_scheme(24, Tier.COLD) == Scheme(num_data=16, num_shards=24, num_signatures=23)
    with pytest.raises(InvalidScheme):
        compute_tier_scheme(65, Tier.COLD)
