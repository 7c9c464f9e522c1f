"""Failed audits become challenges by themselves, rarely and only when sure; the accused answers, or can't."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da.blocking import BlobClient
from da.core.types import BlobId, Height, ShardIndex, Tier
from storage.core.accusation import (
    MAX_SUSPICIONS,
    AccusationPolicy,
    Suspicions,
    drop,
    is_own_fault,
    note_failure,
    plan_accusation,
)
from storage.core.errors import InvalidAccusationPolicy

BLOB = BlobId(b"\1" * 32)
POLICY = AccusationPolicy(strikes=3, min_blocks=20, every_blocks=100)


def fail_at(*heights: int, blob: BlobId = BLOB, suspicions: Suspicions = ()) -> Suspicions:
    for height in heights:
        suspicions = note_failure(suspicions, blob, ShardIndex(1), height, Height(height))
    return suspicions


def test_a_seat_is_accused_of_the_leaf_that_it_failed_again_and_again() -> None:
    assert plan_accusation(fail_at(10, 20), POLICY, Height(30), accused_at=None) is None, "too few"
    assert plan_accusation(fail_at(10, 12, 14), POLICY, Height(30), accused_at=None) is None, "too fast"
    found = plan_accusation(fail_at(10, 20, 30), POLICY, Height(30), accused_at=None)
    assert found is not None
    assert (found.blob, found.shard, found.leaf, found.num_failed) == (BLOB, 1, 10, 3)
    assert plan_accusation(fail_at(10, 20, 30), POLICY, Height(109), accused_at=Height(10)) is None, "too soon again"
    assert plan_accusation(fail_at(10, 20, 30), POLICY, Height(110), accused_at=Height(10)) == found
    assert drop(fail_at(10, 20, 30), [(BLOB, ShardIndex(1))]) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.integers(1, 5), st.integers(0, 30))
def test_whoever_proves_a_leaf_starts_anew(history: list[tuple[int, bool]], strikes: int, min_blocks: int) -> None:
    policy = AccusationPolicy(strikes=strikes, min_blocks=min_blocks, every_blocks=1)
    suspicions: Suspicions = ()
    rows: dict[int, list[int]] = {number: [] for number in range(4)}
    for height, (number, is_good) in enumerate(history):
        blob = BlobId(bytes([number]) * 32)
        if is_good:
            suspicions, rows[number] = drop(suspicions, [(blob, ShardIndex(1))]), []
        else:
            suspicions, rows[number] = fail_at(height, blob=blob, suspicions=suspicions), [*rows[number], height]
        found = plan_accusation(suspicions, policy, Height(height), accused_at=None)
        ripe = {n for n, row in rows.items() if len(row) >= strikes and row[-1] - row[0] >= min_blocks}
        assert (found is not None) == bool(ripe)
        if found is not None:
            assert found.blob[0] in ripe
            assert found.leaf == rows[found.blob[0]][0]


def test_memory_is_bounded_and_an_own_fault_accuses_nobody() -> None:
    suspicions: Suspicions = ()
    for number in range(2 * MAX_SUSPICIONS):
        suspicions = note_failure(suspicions, BlobId(number.to_bytes(32, "big")), ShardIndex(0), 0, Height(1))
    assert len(suspicions) == MAX_SUSPICIONS
    assert [is_own_fault(failed, 3) for failed in range(4)] == [False, False, True, True]
    assert is_own_fault(0, 0), "nobody was asked"


@pytest.mark.parametrize("changes", [{"strikes": 0}, {"min_blocks": -1}, {"every_blocks": 0}])
def test_invalid_policies(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidAccusationPolicy, match="next: raise --challenge-after"):
        AccusationPolicy(**changes)


class LyingProxy:
    """Passes requests on to a real node, and alters every leaf that comes back."""

    def __init__(self, honest_url: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with urllib.request.urlopen(honest_url + self.path, timeout=5) as answer:
                    body = bytearray(answer.read())
                if re.search(r"/leaves/\d+$", self.path):
                    body[-1] ^= 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()


@pytest.fixture
def lie() -> Iterator[Any]:
    opened: list[LyingProxy] = []

    def start(url: str) -> str:
        opened.append(LyingProxy(url))
        return opened[-1].url

    yield start
    for proxy in opened:
        proxy.close()


@pytest.mark.integration
def test_nodes_challenge_who_lost_and_who_lies_and_the_honest_answer(fleet: Any, wait_until: Any, lie: Any) -> None:
    """One's files are deleted and it can't repair; another lies to its peers but has its shard."""
    watching = fleet.start_all([f"n{index}" for index in range(4)], is_keeping=True, has_challenges=True)
    nodes = [*watching, *fleet.start_all(["n4", "n5"], has_challenges=True)]
    committee = fleet.seat(nodes)
    entry = fleet.chain["committees"][0]
    data = random.Random(1).randbytes(400_000)
    with BlobClient(deadline_seconds=10) as client:
        blob = client.disperse(
            data, committee=committee, genesis_hash=bytes(range(32)), tier=Tier.HOT, expiry=Height(90_000)
        ).terms.blob
    entry["seats"][4]["url"] = lie(nodes[4].url)
    fleet.save_chain(releases={blob.hex(): 90_000}, facts={blob.hex(): [1, 1, 90_000]})
    shutil.rmtree(nodes[5].home / "shards")
    path = fleet.chain_path.with_suffix(".challenges")

    def get_lines() -> list[dict[str, Any]]:
        fleet.save_chain(height=fleet.chain["height"] + 1)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def accused(lines: list[dict[str, Any]]) -> set[int]:
        return {line["seat"] for line in lines if line["event"] == "challenged"}

    wait_until(lambda: accused(get_lines()) >= {4, 5}, "both are challenged", 40.0)
    wait_until(lambda: any(line["event"] == "answered" for line in get_lines()), "who has its shard answers")
    lines = get_lines()
    assert {line["seat"] for line in lines if line["event"] == "answered"} == {4}
    assert accused(lines) == {4, 5}
    assert all(line["leaf"] < 400 for line in lines if line["event"] == "challenged")
    with urllib.request.urlopen(nodes[5].url + "/v1/status", timeout=5) as answer:
        audits = json.load(answer)["audits"]
    assert audits["challenges_failed"] >= 1
    assert audits["challenges_answered"] == 0
    counts = []
    for node in watching:
        with urllib.request.urlopen(node.url + "/v1/status", timeout=5) as answer:
            counts.append(json.load(answer)["audits"]["challenges_opened"])
    assert sum(counts) >= 2
    by_node: dict[str, list[int]] = {}
    for line in lines:
        if line["event"] == "challenged":
            by_node.setdefault(line["by"], []).append(line["due"])
    for heights in by_node.values():
        assert all(later - earlier >= 5 for earlier, later in pairwise(heights)), "rate limited"
