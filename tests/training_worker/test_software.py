"""The version of the software is checked against the run's recipe before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contracts.bindings.types import Member, MemberState
from training.core.errors import RecipeValueError
from training.core.recipe_text import parse_recipe
from training.recipes.shipped import load_shipped
from training.recipes.writing import write_recipe
from training.worker.duties import CLIENT_NAME
from training.worker.errors import WrongSoftware
from training.worker.process import _warn_of_other_software, check_software


@pytest.mark.parametrize(
    ("needed", "got", "is_enough"),
    [
        ("", "0.1.0", True),
        ("0.1", "0.1.0", True),
        ("0.1.0", "0.1", True),
        ("0.2.0", "0.1.9", False),
        ("0.10.0", "0.9.0", False),
        ("0.2.0", "0.2.0.dev3", True),
        ("1", "0.99", False),
    ],
)
def test_a_recipe_may_ask_for_a_version(needed: str, got: str, is_enough: bool) -> None:
    if is_enough:
        check_software(needed, got)
        return
    with pytest.raises(WrongSoftware, match=needed) as raised:
        check_software(needed, got)
    assert got in raised.value.message
    assert raised.value.next_step


def test_the_version_is_part_of_the_recipe() -> None:
    recipe = replace(parse_recipe(load_shipped("tiny")), software="0.1.0")
    assert parse_recipe(write_recipe(recipe)) == recipe
    with pytest.raises(RecipeValueError, match="software"):
        replace(recipe, software="newest")


def _member(worker: str, client: str, state: MemberState) -> Any:
    fields = dict.fromkeys(Member.__dataclass_fields__, 0) | {"worker": worker, "client": client, "state": state}
    return Member(**fields)  # type: ignore[arg-type]


def test_members_with_other_software_are_named(caplog: pytest.LogCaptureFixture) -> None:
    ours = [_member("0xa", "archipelago/9", MemberState.LEFT), _member("0xme", "archipelago/8", MemberState.ACTIVE)]
    with caplog.at_level("WARNING", logger="trainer"):
        _warn_of_other_software([*ours, _member("0xb", CLIENT_NAME, MemberState.ACTIVE)], "0xme")
        assert caplog.text == ""
        _warn_of_other_software([*ours, _member("0xb", "archipelago/7", MemberState.READY)], "0xme")
    assert "archipelago/7" in caplog.text
    assert CLIENT_NAME in caplog.text


def test_what_a_member_calls_its_software_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    strangers = [_member(f"0x{i}", f"x{i:02}\x1b[2J\nround 1: fake", MemberState.ACTIVE) for i in range(20)]
    with caplog.at_level("WARNING", logger="trainer"):
        _warn_of_other_software(strangers, "0xme")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert "x00\\x1b[2J\\nround 1: fake" in record.getMessage()
    assert "and 12 more" in record.getMessage()
