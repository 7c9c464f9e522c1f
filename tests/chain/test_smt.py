"""The tree against a naive one, written from the rule; and its proofs."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core.errors import InvalidProof
from chain.core.smt import EMPTY, Proof, Tree, verify

KEYS = st.integers(0, 60).map(lambda number: b"key%d" % number)
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=12), max_size=8)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _compute_naively(pairs: dict[bytes, bytes]) -> bytes:
    """Recompute everything, bit by bit of the path as text."""
    leaves = {f"{int.from_bytes(_hash(key), 'big'):0256b}": (_hash(key), _hash(value)) for key, value in pairs.items()}

    def compute(prefix: str) -> bytes:
        below = [leaf for path, leaf in leaves.items() if path.startswith(prefix)]
        if not below:
            return bytes(32)
        if len(below) == 1:
            return _hash(b"\x00" + below[0][0] + below[0][1])
        return _hash(b"\x01" + compute(prefix + "0") + compute(prefix + "1"))

    return compute("")


@settings(max_examples=80, deadline=None)
@given(CHANGES)
def test_root_is_that_of_the_pairs_whatever_the_history(batches: list[dict[bytes, bytes | None]]) -> None:
    tree = Tree()
    pairs: dict[bytes, bytes] = {}
    for batch in batches:
        before = tree.root
        tree.update(batch.items())
        assert tree.root == before, "an update changes no tree that exists"
        tree = tree.update(batch.items())
        for key, value in batch.items():
            if value is None:
                pairs.pop(key, None)
            else:
                pairs[key] = value
        assert tree.root == _compute_naively(pairs)
    assert Tree().update(pairs.items()).root == tree.root


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, st.binary(max_size=3), max_size=40), KEYS, st.binary(max_size=3))
def test_proofs(pairs: dict[bytes, bytes], key: bytes, other: bytes) -> None:
    tree = Tree().update(pairs.items())
    proof = tree.prove(key)
    value = pairs.get(key)
    verify(tree.root, key, value, proof)
    wrong = [other if value is None or other != value else other + b"!"]
    wrong += [None] if value is not None else []
    for claim in wrong:
        with pytest.raises(InvalidProof):
            verify(tree.root, key, claim, proof)
    if proof.siblings:
        damaged = Proof(siblings=(bytes(31) + b"\x01", *proof.siblings[1:]), other_leaf=proof.other_leaf)
        with pytest.raises(InvalidProof):
            verify(tree.root, key, value, damaged)


def test_invalid_absence_by_a_leaf_from_elsewhere() -> None:
    tree = Tree().update((b"key%d" % number, b"v") for number in range(30))
    elsewhere = tree.prove(b"absent one")
    present = tree.prove(b"key3")
    assert tree.prove(b"key3").other_leaf is None
    forged = Proof(siblings=present.siblings, other_leaf=(_hash(b"key3"), _hash(b"v")))
    with pytest.raises(InvalidProof):
        verify(tree.root, b"key3", None, forged)
    with pytest.raises(InvalidProof):
        verify(tree.root, b"key3", None, elsewhere)
    with pytest.raises(InvalidProof):
        verify(tree.root, b"key3", b"v", Proof(siblings=(EMPTY,) * 257, other_leaf=None))


def test_known_answers() -> None:
    """Two keys whose paths differ in the first bit, worked by hand."""
    left, right = b"a", b"b"
    assert _hash(left)[0] >> 7 == 1
    assert _hash(right)[0] >> 7 == 0
    tree = Tree().update([(left, b"1"), (right, b"2")])
    leaf = {key: _hash(b"\x00" + _hash(key) + _hash(value)) for key, value in ((left, b"1"), (right, b"2"))}
    assert tree.root == _hash(b"\x01" + leaf[right] + leaf[left])
    assert Tree().root == bytes(32)
    assert Tree().update([(left, b"1")]).root == leaf[left]
    assert tree.update([(right, None)]).root == leaf[left]
