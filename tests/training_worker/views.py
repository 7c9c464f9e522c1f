"""One look at a chain as tests make it: rounds, a run and a member."""

from __future__ import annotations

from contracts.bindings.types import Member, MemberState, RoundInfo, RoundState, RunInfo, RunParams, RunState
from training.worker.view import (
    ChainView,
)

ME = "0x" + "11" * 20


PARAMS = RunParams(
    num_fragments=4,
    overlap=1,
    local_steps=8,
    num_rounds=20,
    min_members=2,
    max_members=8,
    round_blocks=120,
    grace_blocks=10,
    reveal_blocks=10,
    attest_blocks=30,
    dispute_blocks=60,
    recover_blocks=200,
    lock_blocks=20,
    checkpoint_interval=8,
    num_checkpoint_parts=2,
    lease_blocks=2000,
    is_allow_listed=False,
    is_sealed=False,
    reward_per_update=0,
    member_bond=0,
)


def make_round(index: int, *, state: RoundState = RoundState.OPEN, base: int = 0, due: int = 1000) -> RoundInfo:
    return RoundInfo(
        round=index,
        state=state,
        fragment=index % 4,
        local_steps=8,
        rank=4,
        base_version=base,
        base_root=bytes(32),
        root=bytes(32),
        opened_height=1,
        closed_height=0,
        attest_height=0,
        settled_height=0,
        due_height=due,
        num_eligible=2,
        num_committed=0,
        num_accepted=0,
        num_votes=0,
        retries=0,
        storage_epoch=1,
        data_seed=bytes(32),
    )


def make_view(
    *rounds: RoundInfo,
    height: int = 100,
    settled: int = 0,
    certified: int = 0,
    run_state: RunState = RunState.RUNNING,
    member_state: MemberState = MemberState.ACTIVE,
    rejoin: int = 0,
    participants: tuple[str, ...] = (ME,),
) -> ChainView:
    run = RunInfo(
        run=1,
        owner=ME,
        state=run_state,
        recipe_digest=bytes(32),
        genesis_root=bytes(32),
        head_version=settled,
        head_root=bytes(32),
        num_opened=settled + len(rounds),
        num_settled=settled,
        num_rounds_total=24,
        num_members=2,
        num_eligible=1,
        voids_in_row=0,
        certified_version=certified,
        certified_root=bytes(32),
        escrow=0,
        paid_rewards=0,
        paid_storage=0,
        created_height=1,
        rank=4,
        local_steps=8,
        params=PARAMS,
    )
    member = Member(
        worker=ME,
        payout=ME,
        state=member_state,
        bond=0,
        joined_height=1,
        rejoin_height=rejoin,
        bond_unlock_height=0,
        missed=0,
        drops=0,
        accepted=0,
        refused=0,
        tokens=0,
        earned=0,
        last_round=0,
        client="",
    )
    return ChainView(
        height=height,
        run=run,
        member=member,
        rounds={info.round: info for info in rounds},
        participants={info.round: participants for info in rounds},
        seen_seconds=0.0,
    )
