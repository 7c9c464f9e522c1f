"""Random histories of one run, played on the round machine itself (DESIGN 4.1).

Actors join, leave, crash, lose their disks, lie, withhold payloads; stores fail and lose blobs.  After every
block ``check`` asks for what must always hold; ``play_history`` ends with silence (timers alone must
settle everything) and a lone newcomer that has only chain and storage (it must reach FINAL).
``python tests/contracts_native/simulator.py COUNT [FIRST_SEED]`` plays more histories than the tests do.
"""

from __future__ import annotations

from history_actors import Actor, Odds
from history_acts import play_actor
from history_invariants import check, check_pins
from history_world import OWNER, World

from chain.core.rounds.membership import process_leave, process_withdraw_bond
from chain.core.rounds.records import RunState
from chain.core.rounds.running import process_resume


def play_history(seed: int, *, fragments: int, overlap: int, blocks: int = 100) -> World:
    """Play one random history, then silence, then a lone newcomer."""
    world = World(seed, fragments=fragments, overlap=overlap)
    for _ in range(world.rng.randint(1, 5)):
        world.add_actor()
    for _ in range(blocks):
        play_block(world)
    # silence: timers alone settle everything and stop opening rounds
    world.actors = []
    limit = 6 * (overlap + 1) * world.bound
    for _ in range(limit):
        world.end_block()
        check(world)
        book = world.book()
        if not book.get_unsettled() and (book.run.num_eligible == 0 or book.run.state == RunState.PAUSED):
            break
    else:
        raise AssertionError(f"not at rest after {limit} empty blocks")
    world.outage_until = 0
    play_newcomer(world)
    check_pins(world)
    return world


def play_newcomer(world: World) -> None:
    """Let one honest newcomer, with chain and storage alone, bring the run to FINAL again."""
    world.odds = Odds(liars=0, crash=0, leave=0, join=0, erase=0, withhold=0, outage=0, loss=0)
    newcomer = Actor(name="newcomer", pace=1.0)
    world.actors = [newcomer]
    before = world.num_final
    limit = world.params.recover_blocks + 8 * world.bound
    for _ in range(limit):
        play_block(world)
        if newcomer.is_forked:  # a lie became FINAL: wait for the last resort, from the checkpoint before it
            newcomer.is_forked = newcomer.has_left = False
            newcomer.version = -1
        if world.num_final > before and world.book().run.state == RunState.RUNNING:
            break
    else:
        raise AssertionError(f"the lone newcomer did not reach FINAL in {limit} blocks: {world.book().run}")
    assert newcomer.version >= 0
    for _ in range(world.params.lock_blocks + world.bound):  # and its bond comes back
        world.end_block()
    world.attempt(process_leave, newcomer.address)
    for _ in range(2 * world.bound + world.params.lock_blocks):
        world.end_block()
        check(world)
    if world.params.member_bond:
        assert world.attempt(process_withdraw_bond, newcomer.address)
    assert world.total_money() == world.total


def play_block(world: World) -> None:
    """Fate, then every actor in random order, then the timers and the checks."""
    rng, odds = world.rng, world.odds
    if rng.random() < odds.outage:
        world.outage_until = world.height + rng.choice((5, 20, 60))
    if rng.random() < odds.join and len(world.actors) < 12:
        world.add_actor()
    for actor in rng.sample(world.actors, len(world.actors)):
        play_actor(world, actor)
    if world.book().run.state == RunState.PAUSED and rng.random() < 0.1:
        world.attempt(process_resume, OWNER)
    world.end_block()
    if rng.random() < odds.loss:
        world.lose_payload()
    check(world)


def main() -> None:
    """Play as many histories as asked and print what happened."""
    import sys
    import time

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = time.perf_counter()
    final = void = lies = reverts = 0
    for seed in range(first, first + count):
        try:
            world = play_history(seed, fragments=(1, 4)[seed & 1], overlap=(seed >> 1) & 1)
        except BaseException:
            print(f"seed {seed}")
            raise
        final, void = final + world.num_final, void + world.num_void
        lies, reverts = lies + bool(world.lies_final), reverts + world.num_reverts
        for lie in world.lies_final:
            print(f"seed {seed}: {lie}")
    seconds = time.perf_counter() - start
    print(f"{count} histories in {seconds:.1f} s: {final} final, {void} void, {lies} with a lie, {reverts} reverts")


if __name__ == "__main__":
    main()
