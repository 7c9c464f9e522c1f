"""The machine's records against the declarations: one meaning, two forms that may not drift apart."""

from __future__ import annotations

import re

import pytest

from chain.core.abi.enumerations import enumerations_of
from chain.core.abi.storage import NODE
from chain.core.abi.training import CHECKPOINT, MEMBER, ROUND_INFO, RUN_INFO, RUN_PARAMS, UPDATE
from chain.core.contracts.storage.nodes import NodeState
from chain.core.rounds import records


@pytest.mark.parametrize("struct", [RUN_INFO, ROUND_INFO, MEMBER, UPDATE, CHECKPOINT, NODE], ids=lambda s: s.name)
def test_enumerations_are_the_declared_ones(struct: object) -> None:
    found = enumerations_of(struct)  # type: ignore[arg-type]
    assert found
    for enumeration in found:
        ours = NodeState if enumeration.name == "StorageNodeState" else getattr(records, enumeration.name)
        assert tuple((member.value, member.name) for member in ours) == enumeration.members


def test_run_params_are_the_declared_ones_in_order() -> None:
    declared = [re.sub(r"(?<!^)(?=[A-Z])", "_", field.name).lower() for field in RUN_PARAMS.fields]
    assert list(records.RunParams.__dataclass_fields__) == declared
