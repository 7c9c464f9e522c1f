"""Arguments that have no place in their type: the one is named, with its value and what to do."""

from __future__ import annotations

import pytest

from contracts.bindings.encoding import BadArguments, encode_call


def test_a_number_that_is_too_large_is_named() -> None:
    with pytest.raises(BadArguments, match=rf"^Storage.quote: blocks is {2**64}, expected uint64; next: give a value"):
        encode_call("Storage", "quote", (1, 1, 2**64))


def test_what_is_no_address_is_named() -> None:
    with pytest.raises(BadArguments, match=r"workers is \['0x123'\], expected address\[\]"):
        encode_call("Training", "allow", (1, ["0x123"], True))


def test_a_field_of_a_struct_is_named() -> None:
    params = [0] * 20
    params[3] = 2**80
    params[16] = params[17] = False  # type: ignore[call-overload]
    with pytest.raises(BadArguments, match=rf"is {2**80}, expected uint64"):
        encode_call("Training", "createRun", (tuple(params), b"", bytes(32)))
