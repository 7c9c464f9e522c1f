"""What counts as a member's payload: the same for every worker, whatever it has seen before (case 22)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.bindings.types import RefusalReason, Update, UpdateFate
from training.worker.errors import PayloadInconsistent
from training.worker.source import PayloadSource, compute_digest
from training.worker.trace import Trace

GOOD = b"honest payload!!"
JUNK = b"something else.."
SIZE = len(GOOD)
A_BLOB, M_BLOB, BAD_BLOB = b"A" * 32, b"M" * 32, b"X" * 32


@dataclass
class Stores:
    """Blobs in memory, and what was asked for."""

    blobs: dict[bytes, bytes] = field(default_factory=lambda: {A_BLOB: GOOD, M_BLOB: JUNK})
    asked: list[bytes] = field(default_factory=list)

    def get(self, blob: bytes, *, max_bytes: int) -> bytes:
        self.asked.append(blob)
        if blob == BAD_BLOB:
            raise PayloadInconsistent(blob, "badly encoded")
        assert len(self.blobs[blob]) <= max_bytes
        return self.blobs[blob]

    def put(self, data: bytes, *, tier: int, blocks: int) -> bytes:
        raise NotImplementedError

    def traffic(self) -> dict[str, int]:
        return {}


def make_update(member: str, blob: bytes, *, digest: bytes = b"", size: int = SIZE) -> Update:
    return Update(
        member=member,
        fate=UpdateFate.PENDING,
        reason=RefusalReason.NONE,
        digest=digest or compute_digest(GOOD),
        blob=blob,
        size_bytes=size,
        tokens=1,
        loss_micro=1,
        height=1,
        paid=0,
    )


HONEST, COPY = make_update("A", A_BLOB), make_update("M", M_BLOB)
Make = Callable[..., PayloadSource]


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def make(tmp_path: Path, stores: Stores) -> Iterator[Make]:
    sources: list[PayloadSource] = []
    trace = Trace(tmp_path / "trace.jsonl")

    def build(own: dict[bytes, bytes] | None = None, folder: str = "payloads") -> PayloadSource:
        sources.append(PayloadSource(tmp_path / folder, stores, trace, find_own=(own or {}).get))
        return sources[-1]

    yield build
    for source in sources:
        source.close()
    trace.close()


def test_a_copied_digest_over_junk_is_refused_by_everybody(make: Make) -> None:
    both = [(0, HONEST), (1, COPY)]
    expected = {0: GOOD, 1: b""}
    owner = make({A_BLOB: GOOD}, "owner")
    assert owner.fetch(0, both, num_bytes=SIZE).payloads == expected
    early = make(folder="early")
    early.fetch(0, [(0, HONEST)], num_bytes=SIZE)
    assert early.fetch(0, both, num_bytes=SIZE).payloads == expected
    assert make(folder="late").fetch(0, both, num_bytes=SIZE).payloads == expected
    assert early.fetch(0, both, num_bytes=SIZE).payloads == expected, "from what it keeps"


def test_the_liar_itself_comes_to_the_same_verdict(make: Make) -> None:
    """Its own blob holds junk under a foreign digest."""
    liar = make({M_BLOB: JUNK})
    assert liar.fetch(0, [(0, HONEST), (1, COPY)], num_bytes=SIZE).payloads == {0: GOOD, 1: b""}


def test_equal_bytes_of_two_members_both_count(make: Make, stores: Stores) -> None:
    twin = make_update("B", A_BLOB)
    source = make()
    assert source.fetch(0, [(0, HONEST), (1, twin)], num_bytes=SIZE).payloads == {0: GOOD, 1: GOOD}
    assert source.fetch(0, [(0, HONEST), (1, twin)], num_bytes=SIZE).payloads == {0: GOOD, 1: GOOD}
    assert set(stores.asked) == {A_BLOB}


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1, 1 << 30])
def test_invalid_length_is_refused_unread(make: Make, stores: Stores, size: int) -> None:
    assert make().fetch(0, [(0, make_update("M", M_BLOB, size=size))], num_bytes=SIZE).payloads == {0: b""}
    assert stores.asked == []


def test_invalid_code_is_asked_for_once(make: Make, stores: Stores) -> None:
    source = make()
    for _ in range(3):
        assert source.fetch(0, [(0, make_update("M", BAD_BLOB))], num_bytes=SIZE).payloads == {0: b""}
    assert stores.asked == [BAD_BLOB]


def test_each_refusal_has_its_reason(make: Make) -> None:
    source = make()
    bad = [(0, COPY), (1, make_update("B", BAD_BLOB)), (2, make_update("C", M_BLOB, size=1)), (3, HONEST)]
    for _ in range(3):
        fetched = source.fetch(0, bad, num_bytes=SIZE)
        assert fetched.payloads == {0: b"", 1: b"", 2: b"", 3: GOOD}
        assert fetched.refused == {
            0: "not what its digest says",
            1: "badly encoded",
            2: "1 bytes, expected 16",
        }


def test_altered_file_is_fetched_anew(make: Make, stores: Stores, tmp_path: Path) -> None:
    make().fetch(0, [(0, HONEST)], num_bytes=SIZE)
    (path,) = (tmp_path / "payloads").iterdir()
    for damaged in (b"", path.read_bytes()[:-1], path.read_bytes()[:32] + JUNK):
        path.write_bytes(damaged)
        assert make().fetch(0, [(0, HONEST)], num_bytes=SIZE).payloads == {0: GOOD}
    assert len(stores.asked) == 4


def test_altered_own_payload_is_fetched_from_the_stores(make: Make, stores: Stores) -> None:
    """It was taken for its length, and the worker refused itself or came to another root."""
    altered = bytes([GOOD[0] ^ 1]) + GOOD[1:]
    assert make({A_BLOB: altered}).fetch(0, [(0, HONEST)], num_bytes=SIZE).payloads == {0: GOOD}
    assert stores.asked == [A_BLOB]
