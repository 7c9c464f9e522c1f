"""A node under challenge: many at once are answered side by side, each once, and what fails is tried again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

from contracts.bindings.errors import DeadlinePassed
from contracts.bindings.types import Challenge, NodeAccount
from da.core.merkle import decode_proof, verify_proof
from storage.node.answerer import NUM_AT_ONCE, Answerer

BLOCK_SECONDS = 0.05


class SlowChain:
    """Each answer waits for its block; the first try of every third is lost."""

    def __init__(self, challenges: list[Challenge], roots: dict[bytes, bytes]) -> None:
        self._open = {challenge.blob: challenge for challenge in challenges}
        self._roots = roots
        self._lock = threading.Lock()
        self.tries: Counter[bytes] = Counter()
        self.at_once = 0
        self.most_at_once = 0

    def get_account(self) -> NodeAccount:
        return NodeAccount(
            bond=1, earned=0, num_faults=0, num_challenges=len(self._open), last_epoch=1, free_height=2**64 - 1
        )

    def get_challenges(self) -> tuple[Challenge, ...]:
        with self._lock:
            return tuple(sorted(self._open.values(), key=lambda challenge: challenge.due_height))[:64]

    def answer(self, challenge: Challenge, *, header: bytes, leaf: bytes, proof: bytes) -> None:
        with self._lock:
            self.tries[challenge.blob] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            verify_proof(self._roots[challenge.blob], leaf, decode_proof(proof))
            time.sleep(BLOCK_SECONDS)
            if challenge.due_height % 3 == 0 and self.tries[challenge.blob] == 1:
                raise DeadlinePassed(bytes(32), 30.0)
            with self._lock:
                assert self._open.pop(challenge.blob, None) is not None, "answered twice"
        finally:
            with self._lock:
                self.at_once -= 1

    def accuse(self, *_: Any) -> Any:
        raise NotImplementedError


def test_a_flood_is_answered_side_by_side(open_engine: Any, make_shard: Any, keep: Any, wait_until: Any) -> None:
    engine = open_engine()
    shards = [make_shard(random.Random(number).randbytes(5_000)) for number in range(40)]
    for shard in shards:
        keep(engine, shard)
    challenges = [
        Challenge(
            blob=shard.offer.blob, seat=0, leaf=number, challenger="", operator="", bond=1, due_height=100 + number
        )
        for number, shard in enumerate(shards)
    ]
    chain = SlowChain(challenges, {shard.offer.blob: shard.offer.header.shard_roots[0] for shard in shards})
    answerer = Answerer(engine, chain, poll_seconds=0.02)
    stop = threading.Event()
    thread = threading.Thread(target=answerer.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: answerer.num_answered == 40, "all are answered")
    finally:
        stop.set()
        thread.join(5)
    assert chain.most_at_once == NUM_AT_ONCE
    assert answerer.num_failed == sum(count - 1 for count in chain.tries.values()) == 13
    assert chain.get_challenges() == ()
