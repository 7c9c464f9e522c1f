"""The node's own reading of the contracts' views, as JSON: what the page and the metrics are made of.

The same views that any client calls, run on a throwaway overlay; nothing is read past the contracts.  Structs
become objects by field name, enumerations their names, amounts (uint128, uint256) and whatever a double can't hold
decimal strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from chain.core.abi.codec import ContractCodec
from chain.core.abi.declare import Field, Struct
from chain.core.abi.enumerations import enumeration_name_of, enumerations_of
from chain.core.contracts.registry import CODECS
from chain.core.executor import simulate_call
from chain.core.types import Address
from chain.rpc.faults import CallFailed
from chain.rpc.session import Session
from chain.rpc.state_methods import MAX_CALL_GAS

_AMOUNTS = ("uint128", "uint256")
"""Too wide for a JSON reader's double."""
_LARGEST_EXACT = 2**53 - 1
"""Above it a JSON reader's double is no longer exact: such numbers are strings too."""
_NOBODY = Address(bytes(20))


def read_view(session: Session, contract: str, function: str, *arguments: object) -> Any:
    """Call a view and return its outputs as JSON values; a single output stands alone."""
    codec = _codecs()[contract]
    view = codec.by_name[function]
    result = simulate_call(
        session.snapshot.state_and_archive,
        session.head.environment,
        sender=_NOBODY,
        to=Address(codec.contract.address),
        data=view.encode_inputs(arguments),
        gas_limit=MAX_CALL_GAS,
        contracts=session.contracts,
    )
    if not result.status:
        raise CallFailed(f"{contract}.{function}: {result.error}")
    outputs = view.function.outputs
    values = view.decode_outputs(result.output)
    shown = [_shown(field, value, None) for field, value in zip(outputs, values, strict=True)]
    return shown[0] if len(shown) == 1 else shown


def show_fields(fields: Sequence[Field], values: Sequence[Any]) -> dict[str, Any]:
    """Return decoded values as JSON by field name."""
    return {field.name: _shown(field, value, None) for field, value in zip(fields, values, strict=True)}


def _shown(field: Field, value: Any, struct: Struct | None) -> Any:
    if field.is_array:
        item = Field(name=field.name, kind=field.kind)
        return [_shown(item, each, struct) for each in value]
    if isinstance(field.kind, Struct):
        return _shown_struct(field.kind, value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if field.kind in _AMOUNTS or (isinstance(value, int) and value > _LARGEST_EXACT):
        return str(value)
    names = _names(struct, field.name) if struct is not None else None
    return names.get(value, str(value)) if names else value


def _shown_struct(struct: Struct, values: Sequence[Any]) -> dict[str, Any]:
    return {field.name: _shown(field, value, struct) for field, value in zip(struct.fields, values, strict=True)}


@cache
def _names(struct: Struct, field: str) -> dict[int, str] | None:
    name = enumeration_name_of(struct, field)
    if name is None:
        return None
    return next(dict(each.members) for each in enumerations_of(struct) if each.name == name)


@cache
def _codecs() -> dict[str, ContractCodec]:
    return {codec.contract.name: codec for codec in CODECS.values()}
