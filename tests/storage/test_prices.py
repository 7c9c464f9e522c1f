"""The page of SPEC.md on prices, kept: every figure there follows from the chain's integers."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

from chain.core.contracts.params import BLOCKS_PER_HOUR, BLOCKS_PER_MONTH, DEVNET_TIERS, TERABYTE, WEI
from chain.core.contracts.storage.pricing import compute_fee

TEMPORARY, HOT, COLD = DEVNET_TIERS
SPEC = (Path(__file__).parents[2] / "storage" / "SPEC.md").read_text(encoding="utf-8")

PAYLOAD_BYTES = 32 * TERABYTE
"""Written by the run of SPEC.md 14 over its 1,000 steps."""
CHECKPOINT_BYTES = 2_170_000_000_000
"""Checkpoints that are kept."""
ARCHIVE_BYTES = 375_000_000_000
"""The same as archives: 5.8 times smaller; DA.md measured 2 to 7.5 for bf16."""


def dollars(wei: int) -> Fraction:
    return Fraction(wei, WEI)


def find(pattern: str) -> list[str]:
    found = re.search(pattern, SPEC)
    assert found is not None, f"SPEC.md does not say {pattern!r}"
    return list(found.groups())


def test_ten_dollars_a_terabyte_month() -> None:
    fee = dollars(compute_fee(HOT, TERABYTE, BLOCKS_PER_MONTH))
    assert abs(fee - 10) * 10**6 < 10
    (text,) = find(r"1 TB hot for a month costs \*\*\$([0-9.]+)\*\*")
    assert round(float(fee), 2) == float(text)


def test_one_dollar_a_terabyte_month_cold_and_ten_a_month_of_hours() -> None:
    assert abs(dollars(compute_fee(COLD, TERABYTE, BLOCKS_PER_MONTH)) - 1) * 10**6 < 1
    hour = dollars(compute_fee(TEMPORARY, TERABYTE, BLOCKS_PER_HOUR))
    assert abs(730 * hour - 10) * 10**6 < 10
    (text,) = find(r"1 TB temporary for an hour costs \*\*\$([0-9.]+)\*\*")
    assert round(float(hour), 4) == float(text)


def test_the_run_of_the_table_is_112_to_417_times_cheaper_in_tiers() -> None:
    days_30 = 720 * BLOCKS_PER_HOUR
    all_hot = dollars(compute_fee(HOT, PAYLOAD_BYTES, days_30) + compute_fee(HOT, CHECKPOINT_BYTES, days_30))
    figures = {}
    for hours in (1, 6):
        payloads = compute_fee(TEMPORARY, PAYLOAD_BYTES, hours * BLOCKS_PER_HOUR)
        figures[hours] = dollars(payloads + compute_fee(COLD, ARCHIVE_BYTES, days_30))
    hot_text, one_text, six_text = find(r"all hot \*\*\$(\d+)\*\*, in tiers \*\*\$([0-9.]+)\*\* .*?\*\*\$([0-9.]+)\*\*")
    assert round(all_hot) == int(hot_text)
    assert round(float(figures[1]), 2) == float(one_text)
    assert round(float(figures[6]), 2) == float(six_text)
    least, most = find(r"\*\*(\d+) to (\d+) times\*\* cheaper")
    assert 2 < CHECKPOINT_BYTES / ARCHIVE_BYTES < 7.5
    assert [round(all_hot / figures[6]), round(all_hot / figures[1])] == [int(least), int(most)]


def test_an_hour_is_the_least_that_is_worth_advertising() -> None:
    assert compute_fee(HOT, 1, 1) == 1_169, "1 byte pays for 1 KiB: never nothing"
    assert COLD.min_blocks == 720 * BLOCKS_PER_HOUR
