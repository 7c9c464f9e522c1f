"""Proof of a bad encoding that fits a message (STYLE 15): k + 1 leaves that cannot be of one code word.

The code works column by column, so the leaves of one number of all shards are k data leaves and their parity. Whoever
has the header, hence the id, can check the proof alone. Invariant: none exists against a blob that was encoded well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from da.core.blob import BlobHeader, compute_shard_bytes, iterate_stripes
from da.core.errors import BadProof
from da.core.matrix import compute_recovery_rows, multiply_row
from da.core.merkle import MerkleProof, compute_leaf_hashes, compute_proof, verify_proof

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenLeaf:
    """One leaf of one shard, with its path."""

    shard: int
    """Which shard."""
    leaf: bytes
    """Its bytes."""
    proof: MerkleProof
    """Its path to the shard's root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafEvidence:
    """k + 1 leaves of one number that are no code word; or one data leaf that is padded with other bytes than zeros."""

    leaves: tuple[ProvenLeaf, ...]
    """Of different shards; the last one is not what the others demand."""


def find_evidence(header: BlobHeader, shards: Mapping[int, Buffer]) -> LeafEvidence | None:
    """Return what proves that these k + 1 verified shards, or some padding in them, are wrong; None where nothing does.

    Takes k + 1 whole shards in memory; the last of the evidence is the one with the highest index.
    """
    leaf_bytes = header.leaf_bytes
    views = {index: memoryview(shard) for index, shard in sorted(shards.items())}
    for leaf_index, start in enumerate(range(0, compute_shard_bytes(header.size_bytes, header.num_data), leaf_bytes)):
        leaves = {index: bytes(view[start : start + leaf_bytes]) for index, view in views.items()}
        padded = next((index for index in leaves if _is_badly_padded(header, index, start, leaves)), None)
        if padded is not None:
            return LeafEvidence(leaves=(_prove(header, views, padded, leaf_index, leaves),))
        if len(leaves) == header.num_data + 1 and not _is_code_word(header, leaves):
            return LeafEvidence(leaves=tuple(_prove(header, views, index, leaf_index, leaves) for index in leaves))
    return None


def verify_evidence(header: BlobHeader, evidence: LeafEvidence) -> None:
    """Check that ``evidence`` proves the blob of ``header`` to be badly encoded.

    Raises:
        BadProof: it does not; says why.
    """
    shard_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
    leaves: dict[int, bytes] = {}
    numbers = {proven.proof.leaf_index for proven in evidence.leaves}
    if len(numbers) != 1:
        raise BadProof(f"leaves number {sorted(numbers)}, expected one number for all")
    for proven in evidence.leaves:
        if not 0 <= proven.shard < header.num_shards or proven.shard in leaves:
            raise BadProof(f"shard {proven.shard} twice, or not one of {header.num_shards}")
        if (proven.proof.size_bytes, proven.proof.leaf_bytes) != (shard_bytes, header.leaf_bytes):
            raise BadProof(
                f"leaf of {proven.proof.leaf_bytes} in {proven.proof.size_bytes} bytes, the header says "
                f"{header.leaf_bytes} in {shard_bytes}"
            )
        verify_proof(header.shard_roots[proven.shard], proven.leaf, proven.proof)
        leaves[proven.shard] = proven.leaf
    start = numbers.pop() * header.leaf_bytes
    if len(leaves) == 1:
        if not _is_badly_padded(header, evidence.leaves[0].shard, start, leaves):
            raise BadProof(f"leaf of shard {evidence.leaves[0].shard} is padded with zeros where it is padded")
    elif len(leaves) != header.num_data + 1:
        raise BadProof(f"{len(leaves)} leaves, expected 1, or k + 1 = {header.num_data + 1}")
    elif _is_code_word(header, leaves):
        raise BadProof("the leaves are of one code word: nothing is wrong with them")


def _is_code_word(header: BlobHeader, leaves: Mapping[int, bytes]) -> bool:
    base = tuple(sorted(leaves))[: header.num_data]
    others = tuple(index for index in leaves if index not in base)
    rows = compute_recovery_rows(header.num_data, header.num_shards, base, others)
    return all(
        multiply_row(row, [leaves[index] for index in base]) == leaves[other]
        for row, other in zip(rows, others, strict=True)
    )


def _is_badly_padded(header: BlobHeader, shard: int, start: int, leaves: Mapping[int, bytes]) -> bool:
    """Tell whether a leaf of a data shard has a byte other than zero beyond the blob's bytes."""
    leaf = leaves[shard]
    if shard >= header.num_data:
        return False
    for span in iterate_stripes(header.size_bytes, header.num_data):
        used = max(0, min(span.piece_bytes, span.stop - span.start - shard * span.piece_bytes))
        padded_from = max(span.piece_start + used, start)
        padded_to = min(span.piece_start + span.piece_bytes, start + len(leaf))
        if padded_from < padded_to and any(leaf[padded_from - start : padded_to - start]):
            return True
    return False


def _prove(
    header: BlobHeader, views: Mapping[int, memoryview], shard: int, leaf_index: int, leaves: Mapping[int, bytes]
) -> ProvenLeaf:
    hashes: Sequence[bytes] = compute_leaf_hashes(views[shard], leaf_bytes=header.leaf_bytes)
    proof = compute_proof(hashes, leaf_index, size_bytes=len(views[shard]), leaf_bytes=header.leaf_bytes)
    return ProvenLeaf(shard=shard, leaf=leaves[shard], proof=proof)
