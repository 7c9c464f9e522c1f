"""Moves are copy, certify, flip, grace, delete; killed at any point, nothing live is lost (cases 63, 68, 76)."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from da.core.types import BlobId, Height
from storage.core.errors import InvalidRetention
from storage.core.retention import Action, Retention, Step
from storage.mover import Mover, get_readable, load_catalogue, make_aging_plan, make_retention_plan


class Killed(BaseException):
    """The process ends here."""


class World:
    """A chain that certifies checkpoints, and a store that may be away; ``kill_in`` ends the process at a call."""

    def __init__(self) -> None:
        self.height = 100
        self.newest = -1
        self.hot: dict[int, tuple[BlobId, ...]] = {}
        self.live: set[BlobId] = set()
        self.contents: dict[BlobId, BlobId] = {}
        self.base_of: dict[BlobId, BlobId | None] = {}
        self.depth: dict[BlobId, int] = {}
        self.kill_in = 10**9
        self.newest_copy = BlobId(b"")
        self.left_over: set[BlobId] = set()

    def certify(self, version: int) -> None:
        blobs = tuple(BlobId(bytes([part]) * 4 + version.to_bytes(28, "big")) for part in range(2))
        self.hot[version], self.newest = blobs, version
        self.live.update(blobs)

    def get_height(self) -> Height:
        return Height(self.height)

    def get_checkpoints(self) -> tuple[int, dict[int, tuple[BlobId, ...]]]:
        return self.newest, dict(self.hot)

    def copy(self, blob: BlobId, base: BlobId | None) -> tuple[BlobId, BlobId | None]:
        self._call()
        assert blob in self.live, "the source of a copy is there"
        if base is not None and self.depth[base] >= 4:
            base = None
        assert base is None or base in self.live
        archive = BlobId(b"cold" + blob[:4] + blob[8:])
        self.live.add(archive)
        self.newest_copy = archive
        self.contents[archive], self.base_of[archive] = blob, base
        self.depth[archive] = 0 if base is None else self.depth[base] + 1
        self._call()
        return archive, base

    def release(self, blob: BlobId) -> None:
        self._call()
        self.live.discard(blob)
        self._call()

    def _call(self) -> None:
        self.kill_in -= 1
        if self.kill_in == 0:
            self.left_over.add(self.newest_copy)
            raise Killed

    def can_read(self, blobs: tuple[BlobId, ...]) -> bool:
        """Tell whether blobs, and all that they build on, are live."""
        return all(
            blob in self.live and ((base := self.base_of.get(blob)) is None or self.can_read((base,))) for blob in blobs
        )


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_hot=st.integers(1, 3),
    cold_every=st.integers(0, 3),
    num_cold=st.integers(0, 3),
    grace=st.integers(0, 60),
)
@example(seed=0, num_hot=1, cold_every=2, num_cold=1, grace=0)  # a move begun for nothing was a newer one's base
def test_any_history_with_kills_keeps_what_the_policy_promises(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_hot: int, cold_every: int, num_cold: int, grace: int
) -> None:
    path = tmp_path_factory.mktemp("mover") / "catalogue.json"
    world, chance = World(), random.Random(seed)
    retention = Retention(num_hot=num_hot, cold_every=cold_every, num_cold=num_cold, grace_blocks=grace)
    certified: list[int] = []
    for version in range(12):
        world.certify(version)
        certified.append(version)
        for _ in range(chance.randrange(1, 4)):
            world.height += chance.randrange(0, 80)
            world.kill_in = chance.choice([10**9, chance.randrange(1, 9)])
            with contextlib.suppress(Killed):
                Mover(world, path, make_retention_plan(retention)).step()
            catalogue = load_catalogue(path)
            for kept in catalogue.values():
                blobs, _ = get_readable(kept)
                is_promised = kept.version in certified[-num_hot:] or (
                    cold_every
                    and kept.version % cold_every == 0
                    and (not num_cold or kept.version in [v for v in certified if v % cold_every == 0][-num_cold:])
                )
                if is_promised:
                    assert world.can_read(blobs), f"checkpoint {kept.version} at {kept.step} can't be read"
    world.kill_in = 10**9
    for _ in range(6):
        world.height += grace + 1
        Mover(world, path, make_retention_plan(retention)).step()
    assert Mover(world, path, make_retention_plan(retention)).step() == (), "it comes to rest"
    catalogue = load_catalogue(path)
    hot_live = {version for version, blobs in world.hot.items() if set(blobs) & world.live}
    assert hot_live == set(certified[-num_hot:]), "old hot copies are gone"
    assert max(world.depth.values(), default=0) <= 4
    wanted = {archive for kept in catalogue.values() if kept.step is Step.COLD for archive in kept.cold}
    archives = {blob for blob in world.live if blob in world.contents}
    assert wanted <= archives <= wanted | world.left_over, "no archive is left behind but where a kill hit its note"


def test_the_steps_of_a_move_in_order(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "catalogue.json"
    mover = Mover(world, path, make_retention_plan(Retention(num_hot=1, cold_every=1, grace_blocks=50)))
    world.certify(0)
    assert mover.step() == ()
    world.certify(1)
    assert mover.step() == ((Action.COPY, 0),)
    assert get_readable(load_catalogue(path)[0]) == (world.hot[0], False)
    assert mover.step() == ((Action.FLIP, 0),)
    blobs, is_archive = get_readable(load_catalogue(path)[0])
    assert is_archive
    assert set(world.hot[0]) <= world.live, "readers that have begun may end"
    world.height += 49
    assert mover.step() == ()
    world.height += 1
    assert mover.step() == ((Action.RELEASE_HOT, 0),)
    assert world.live == {*world.hot[1], *blobs}


def test_logs_go_cold_when_they_are_old(tmp_path: Path) -> None:
    """Each goes its own way: what was copied is flipped, what was flipped waits for the grace, none is hot for ever."""
    world, path = World(), tmp_path / "catalogue.json"
    mover = Mover(world, path, make_aging_plan(50))
    world.certify(0)
    assert mover.step() == ((Action.COPY, 0),)
    world.certify(1)
    assert mover.step() == ((Action.FLIP, 0), (Action.COPY, 1))
    world.height += 50
    assert mover.step() == ((Action.RELEASE_HOT, 0), (Action.FLIP, 1))
    world.height += 50
    assert mover.step() == ((Action.RELEASE_HOT, 1),)
    assert mover.step() == ()
    assert world.live == {blob for kept in load_catalogue(path).values() for blob in kept.cold}


def test_a_broken_catalogue_stops_the_mover_by_name(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.json"
    path.write_text("{}")
    with pytest.raises(InvalidRetention, match="is no catalogue"):
        Mover(World(), path, make_retention_plan(Retention())).step()


@pytest.mark.parametrize("changes", [{"num_hot": 0}, {"cold_every": -1}, {"grace_blocks": -1}])
def test_invalid_policies(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidRetention):
        Retention(**changes)
