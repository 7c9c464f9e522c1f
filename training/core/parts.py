"""A checkpoint in parts: each can be stored, fetched and checked against the root on its own (SPEC, *Parts*).

Layout, big-endian: magic "APST", part u16, parts u16, header length u32, header, the entry hash of every
tensor (32 bytes each, by name), then for each tensor of this part, by name: theta, u as little-endian int32.
Tensors go to parts by size, largest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from da.core.hashing import HASH_BYTES
from training.core.errors import StatePartError
from training.core.layout import Layout, assign_balanced
from training.core.state_root import compute_entry, decode_integers, encode_integers

_MAGIC = b"APST"
_FIXED_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PartContent:
    """What a part carries: header and entry hashes of the whole state, and some or all of its tensors."""

    header: bytes
    """The state's header leaf."""
    entries: tuple[bytes, ...]
    """Entry hash of every tensor of the state, by name."""
    theta: Mapping[str, torch.Tensor]
    """int32."""
    momentum: Mapping[str, torch.Tensor]
    """int32."""


def encode_part(content: PartContent, part_index: int, num_parts: int) -> bytes:
    """Return part ``part_index`` of ``num_parts`` of a state whose tensors are all in ``content``."""
    sizes = {name: tensor.numel() for name, tensor in content.theta.items()}
    chunks = [
        _MAGIC,
        part_index.to_bytes(2, "big"),
        num_parts.to_bytes(2, "big"),
        len(content.header).to_bytes(4, "big"),
        content.header,
        *content.entries,
    ]
    for name in names_of_part(sizes, part_index, num_parts):
        chunks += [encode_integers(content.theta[name]), encode_integers(content.momentum[name])]
    return b"".join(chunks)


def decode_part(layout: Layout, header_bytes: int, part: bytes, part_index: int, num_parts: int) -> PartContent:
    """Read a part, checking its form, its lengths and the entry hashes of the tensors inside.

    Raises `StatePartError`.
    """
    by_name = {tensor.name: tensor for tensor in layout.tensors}
    names = names_of_part({name: tensor.num_elements for name, tensor in by_name.items()}, part_index, num_parts)
    entries_at = _FIXED_BYTES + header_bytes
    at = entries_at + HASH_BYTES * len(by_name)
    expected_bytes = at + sum(8 * by_name[name].num_elements for name in names)
    if len(part) != expected_bytes:
        raise StatePartError("length in bytes", len(part), expected_bytes)
    start = _MAGIC + part_index.to_bytes(2, "big") + num_parts.to_bytes(2, "big") + header_bytes.to_bytes(4, "big")
    if part[: len(start)] != start:
        raise StatePartError("first bytes", part[: len(start)].hex(), start.hex())
    entries = {name: part[entries_at + HASH_BYTES * i :][:HASH_BYTES] for i, name in enumerate(by_name)}
    theta, momentum = {}, {}
    view = memoryview(part)
    for name in names:
        num_bytes = 4 * by_name[name].num_elements
        theta[name] = decode_integers(view[at : at + num_bytes], by_name[name].shape)
        momentum[name] = decode_integers(view[at + num_bytes : at + 2 * num_bytes], by_name[name].shape)
        at += 2 * num_bytes
        got = compute_entry(name, by_name[name].fraction_bits, theta[name], momentum[name])
        if got != entries[name]:
            raise StatePartError(f"hash of {name}", got.hex(), entries[name].hex())
    return PartContent(
        header=part[_FIXED_BYTES:entries_at], entries=tuple(entries.values()), theta=theta, momentum=momentum
    )


def names_of_part(sizes: dict[str, int], part_index: int, num_parts: int) -> list[str]:
    """Return the tensors of a part, by name. Raises `StatePartError` where there is no such part."""
    if not 0 <= part_index < num_parts <= 0xFFFF:
        raise StatePartError("part", f"{part_index} of {num_parts}", "an index below the number, at most 65535 parts")
    group_of = assign_balanced(sizes, num_parts)
    return sorted(name for name in sizes if group_of[name] == part_index)
