"""The parts of the lead by themselves: roster, membership, holdings, hangs, failures, stragglers, saves."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.ids import NodeName, RoleName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Holding, RankPlace, RoleOrders, StacksDumped
from mainspring.node.lead.changes import reserve_s, step_to_leave_at
from mainspring.node.lead.effects import Joined
from mainspring.node.lead.holdings import Holdings, Taken
from mainspring.node.lead.members import Members, Membership
from mainspring.node.lead.roster import Roster
from mainspring.node.lead.watch.failures import FORGIVEN_S, Failures, exited, of_devices
from mainspring.node.lead.watch.hangs import (
    ANYHOW_S,
    HANG_S_MIN,
    LIKELY_S_MIN,
    STARTUP_S,
    Hangs,
    RankPosition,
    odd_ones,
)
from mainspring.node.lead.watch.stragglers import WINDOW_S, WINDOWS_SLOW, Slow, Stragglers

MAIN, OTHER = RoleName("main"), RoleName("sampler")


# ------------------------------------------------------------ roster


def _roster(*agents: int) -> Roster:
    """Returns the roster of agents whose lines are up."""
    roster = Roster(agents, now_s=0.0, busy=False)
    for agent in agents:
        roster.joined(Joined(agent=agent, node=NodeName("n")), 0.0)
    return roster


def test_agent_that_is_silent_is_lost_once_the_controller_answers_what_was_sent_after_it_was_noticed() -> None:
    roster = _roster(0, 1)
    roster.left(1, 10.0)
    assert (roster.notice(25.0, 15.0), roster.notice(25.5, 15.0)) == ((), (1,))
    assert roster.acknowledged(25.4) == (), "by then another lead may have been named there"
    assert (roster.acknowledged(25.5), roster.here) == ((1,), (0,))


def test_agent_that_its_engine_has_seen_end_is_lost_by_the_answer_that_says_so() -> None:
    roster = _roster(0, 1)
    roster.left(1, 10.0)
    assert roster.notice(11.0, 15.0, gone=(1,)) == (1,)
    assert roster.acknowledged(10.5) == (1,)


def test_agent_whose_line_is_up_is_not_gone_whatever_its_engine_sees() -> None:
    roster = _roster(0, 1)
    assert roster.notice(1_000.0, 15.0, gone=(1,)) == ()
    assert (roster.doubtful, roster.here) == ((), (0, 1))


# ------------------------------------------------------------ members


def _place(rank: int, agent: int, role: RoleName = MAIN, size: int = 0) -> RankPlace:
    return RankPlace(rank=rank, role=role, role_rank=rank, role_size=size, agent=agent)


def _members(agents: int, per_agent: int = 1, *, spares: int = 0, ranks_min: int = 0, group: int = 0) -> Members:
    role = RoleOrders(role=MAIN, command=(), environment={}, spares=spares, ranks_min=ranks_min, group=group)
    return Members([role], [_place(rank, rank // per_agent) for rank in range(agents * per_agent)])


def _seats(membership: Membership) -> dict[int, int]:
    return {place.rank: place.role_rank for place in membership.places}


def test_members_with_a_spare_leave_the_last_places_standing_by() -> None:
    assert _seats(_members(4, spares=1).propose(range(4))) == {0: 0, 1: 1, 2: 2}


def test_members_that_lose_one_keep_their_role_ranks_and_a_spare_fills_the_hole() -> None:
    members = _members(4, spares=1)
    members.adopt(members.propose(range(4)))
    assert _seats(members.propose({0, 2, 3})) == {0: 0, 2: 2, 3: 1}


def test_members_without_a_spare_shrink_and_the_highest_rank_fills_the_hole() -> None:
    members = _members(4, ranks_min=2)
    members.adopt(members.propose(range(4)))
    assert _seats(members.propose({0, 2, 3})) == {0: 0, 2: 2, 3: 1}


def test_members_below_their_least_say_what_is_lacking() -> None:
    assert _members(4, ranks_min=3).propose({0, 1}).lacking == "role main has 2 places left and needs 3"
    assert _members(2).propose({0}).lacking == "role main has 1 places left and needs 2"


def test_members_of_a_new_lead_lack_a_role_whose_agents_have_all_ended() -> None:
    roles = [RoleOrders(role=role, command=(), environment={}, spares=0) for role in (MAIN, OTHER)]
    members = Members(roles, [_place(0, 0)])
    assert members.roles == tuple(sorted((MAIN, OTHER)))
    assert members.propose({0}).lacking == f"role {OTHER} has 0 places left and needs 1"


def test_members_shrink_in_whole_groups() -> None:
    members = _members(4, per_agent=2, ranks_min=2, group=4)
    assert len(members.propose({0, 1, 2}).places) == 4


def test_members_that_must_be_whole_grow_no_larger_because_an_agent_too_many_came() -> None:
    members = _members(2)
    members.adopt(members.propose(range(2)))
    members.add(2, [_place(2, 2)])
    assert _seats(members.propose(range(3))) == {0: 0, 1: 1}
    assert _seats(members.propose({0, 2})) == {0: 0, 2: 1}


def test_members_that_had_spares_get_a_spare_back_before_they_grow() -> None:
    members = _members(3, spares=1, ranks_min=1)
    members.adopt(members.propose(range(3)))
    members.adopt(members.propose({0, 2}))
    members.add(3, [_place(3, 3)])
    assert _seats(members.propose({0, 2, 3})) == {0: 0, 2: 1}


def test_members_use_a_suspect_agent_last() -> None:
    members = _members(3, spares=1)
    members.adopt(members.propose(range(3)))
    assert _seats(members.propose(range(3), last={0})) == {1: 1, 2: 0}


def test_members_of_a_new_lead_take_the_role_ranks_their_snapshots_have() -> None:
    assert _seats(_members(3, spares=1).propose({1, 2}, before={2: 0, 1: 1})) == {1: 1, 2: 0}


@given(
    agents=st.integers(1, 8),
    per_agent=st.integers(1, 4),
    spares=st.integers(0, 3),
    ranks_min=st.integers(0, 8),
    group=st.integers(0, 4),
    lives=st.lists(st.sets(st.integers(0, 9)), max_size=8),
)
def test_members_whoever_lives_give_each_role_rank_once_and_only_to_the_living(
    agents: int, per_agent: int, spares: int, ranks_min: int, group: int, lives: list[Collection[int]]
) -> None:
    members = _members(agents, per_agent, spares=spares, ranks_min=ranks_min, group=group)
    for live in lives:
        for agent in live:
            members.add(agent, [_place(agent * per_agent + n, agent) for n in range(per_agent)])
        before = {rank: place.role_rank for rank, place in members.active.items()}
        proposed = members.propose(live, last={0})
        if proposed.lacking:
            assert not proposed.places
            continue
        size = len(proposed.places)
        assert sorted(place.role_rank for place in proposed.places) == list(range(size))
        assert {place.role_size for place in proposed.places} == {size}
        assert all(place.agent in live for place in proposed.places)
        assert size >= max(1, ranks_min)
        assert not (group and ranks_min) or size % group == 0
        for place in proposed.places:
            if before.get(place.rank, size) < size:
                assert place.role_rank == before[place.rank]
        members.adopt(proposed)


# ------------------------------------------------------------ holdings


def _holding(step: int, rank: int, *, generation: int = 1, size: int = 2, copied: bool = False) -> Holding:
    return Holding(
        step=step, generation=generation, rank=rank, role=MAIN, role_rank=rank, role_size=size, copied=copied
    )


def test_holdings_of_every_rank_make_a_step_whole_and_a_copy_counts() -> None:
    holdings = Holdings([MAIN])
    assert not holdings.add(0, _holding(5, 0))
    assert holdings.add(0, _holding(5, 1, copied=True))
    assert (holdings.newest(), holdings.newest_own()) == (Taken(5, 1), None)
    holdings.add(1, _holding(5, 1))
    assert holdings.newest_own() == Taken(5, 1)


def test_holdings_of_a_lost_agent_count_no_more() -> None:
    holdings = Holdings([MAIN])
    for rank in range(2):
        holdings.add(rank, _holding(5, rank))
    holdings.drop(1)
    assert holdings.newest() is None


def test_holdings_of_one_step_taken_in_two_generations_are_never_mixed() -> None:
    holdings = Holdings([MAIN])
    holdings.add(0, _holding(5, 0, generation=1))
    holdings.add(1, _holding(5, 1, generation=2))
    assert holdings.newest() is None


def test_holdings_beyond_the_step_resumed_at_are_gone_even_if_told_late() -> None:
    holdings = Holdings([MAIN])
    for step in (5, 6):
        for rank in range(2):
            holdings.add(rank, _holding(step, rank))
    holdings.resumed(2, 5)
    for rank in range(2):
        assert not holdings.add(rank, _holding(6, rank))
    assert holdings.newest() == Taken(5, 1)
    for rank in range(2):
        holdings.add(rank, _holding(6, rank, generation=2))
    assert holdings.newest() == Taken(6, 2)


def test_holdings_that_gave_way_to_newer_ones_do_not_come_back_when_told_late() -> None:
    holdings = Holdings([MAIN])
    for step in (4, 5, 6):
        holdings.add(0, _holding(step, 0, size=1))
    holdings.forget(0, Taken(6, 1))
    assert not holdings.add(0, _holding(4, 0, size=1))
    holdings.forget(0, Taken(5, 1))
    assert holdings.newest() is None
    holdings.drop(0)
    assert holdings.add(0, _holding(4, 0, size=1))  # An agent that comes back says what it has.


def test_holdings_list_copies_only_where_the_rank_itself_is_gone() -> None:
    holdings = Holdings([MAIN])
    for rank in range(2):
        holdings.add(rank, _holding(5, rank))
        holdings.add(1 - rank, _holding(5, rank, copied=True))
    holdings.drop(1)
    holders = holdings.holders(Taken(5, 1))
    assert [(one.rank, one.copied) for one in holders[0]] == [(0, False), (1, True)]


def test_holdings_of_two_roles_are_whole_only_with_both() -> None:
    holdings = Holdings([MAIN, OTHER])
    holdings.add(0, Holding(step=1, generation=1, rank=0, role=MAIN, role_rank=0, role_size=1))
    assert holdings.newest() is None
    holdings.add(1, Holding(step=1, generation=1, rank=1, role=OTHER, role_rank=0, role_size=1))
    assert holdings.newest() == Taken(1, 1)


HELD = st.builds(
    Holding,
    step=st.integers(0, 4),
    generation=st.integers(1, 3),
    rank=st.integers(0, 2),
    role=st.just(MAIN),
    role_rank=st.integers(0, 2),
    role_size=st.just(3),
    copied=st.booleans(),
)
HELD_NEWS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3), HELD),
    st.tuples(st.just("drop"), st.integers(0, 3), st.none()),
    st.tuples(st.just("join"), st.integers(0, 3), st.lists(HELD, max_size=4)),
)


@given(news=st.lists(HELD_NEWS, max_size=40))
def test_holdings_in_any_order_tell_whole_what_a_plain_count_tells_whole(
    news: list[tuple[str, int, object]],
) -> None:
    holdings = Holdings([MAIN])
    plain: dict[tuple[int, int, bool], list[Holding]] = {}

    def keep(agent: int, one: Holding) -> None:
        kept = plain.setdefault((agent, one.rank, one.copied), [])
        if one not in kept:
            kept.append(one)
            kept.sort(key=lambda held: (held.generation, held.step))
            del kept[:-2]

    for what, agent, value in news:
        if what != "add":
            for key in [key for key in plain if key[0] == agent]:
                del plain[key]
        if what == "add" and isinstance(value, Holding):
            holdings.add(agent, value)
            keep(agent, value)
        elif what == "join" and isinstance(value, list):
            holdings.join(agent, value)
            for one in sorted(value, key=lambda held: (held.generation, held.step)):
                keep(agent, one)
        else:
            holdings.drop(agent)
        everything = [one for kept in plain.values() for one in kept]
        for own_only, answer in ((False, holdings.newest()), (True, holdings.newest_own())):
            seats: dict[Taken, set[int]] = {}
            for one in everything:
                if not (own_only and one.copied):
                    seats.setdefault(Taken(one.step, one.generation), set()).add(one.role_rank)
            assert answer == max((taken for taken, ranks in seats.items() if len(ranks) == 3), default=None)


# ------------------------------------------------------------ hangs


def _stacks(**states: str) -> dict[int, StacksDumped]:
    """Returns stacks by rank from words such as r0="S wait"."""
    return {
        int(name[1:]): StacksDumped(
            generation=1, rank=int(name[1:]), process_state=words.partition(" ")[0], top=words.partition(" ")[2]
        )
        for name, words in states.items()
    }


def _standings(*steps: int, ended: Collection[int] = ()) -> dict[int, RankPosition]:
    return {rank: RankPosition(step=step, ended=rank in ended) for rank, step in enumerate(steps)}


def test_odd_one_that_is_stopped_is_certain() -> None:
    odd = odd_ones(_standings(5, 5, 5), _stacks(r0="S wait", r1="T wait", r2="S wait"))
    assert (odd.ranks, odd.certain) == ((1,), True)


def test_odd_one_whose_stack_differs_from_most_is_likely() -> None:
    odd = odd_ones(_standings(5, 5, 5), _stacks(r0="S wait", r1="S wait", r2="R load"))
    assert (odd.ranks, odd.certain) == ((2,), False)
    assert "load" in odd.evidence


def test_odd_one_that_ended_while_others_wait_is_likely() -> None:
    odd = odd_ones(_standings(5, 5, ended=[0]), _stacks(r1="S wait"))
    assert (odd.ranks, odd.certain) == ((0,), False)


def test_odd_one_behind_in_steps_is_named_when_stacks_tell_nothing() -> None:
    assert odd_ones(_standings(5, 4, 5), _stacks(r0="S", r1="S", r2="S")).ranks == (1,)


def test_odd_ones_are_none_where_all_stand_alike() -> None:
    assert odd_ones(_standings(5, 5), _stacks(r0="S wait", r1="S wait")).ranks == ()


def _paced(hangs: Hangs, gap_s: float, count: int = 50) -> float:
    hangs.begin(0.0, from_store=False)
    for number in range(count):
        hangs.progressed(MAIN, 0, 5.0 + gap_s * number)
    return 5.0 + gap_s * (count - 1)


@pytest.mark.parametrize(("gap_s", "bound_s"), [(0.5, HANG_S_MIN), (10.0, 80.0)])
def test_hang_of_a_paced_program_is_suspected_after_a_bound_learned_from_its_pace(gap_s: float, bound_s: float) -> None:
    hangs = Hangs((MAIN,), fixed_s=0.0, stepped_before=False)
    last_s = _paced(hangs, gap_s)
    assert hangs.suspicion((MAIN,), last_s + bound_s - 0.1) is None
    suspicion = hangs.suspicion((MAIN,), last_s + bound_s + 0.1)
    assert suspicion is not None
    assert suspicion.stage == 0


def test_hang_of_a_program_that_once_paused_for_longer_waits_as_long_again() -> None:
    hangs = Hangs((MAIN,), fixed_s=0.0, stepped_before=False)
    last_s = _paced(hangs, 0.5)
    hangs.progressed(MAIN, 0, last_s + 60.0)
    assert hangs.suspicion((MAIN,), last_s + 60.0 + 150.0) is None


def test_hang_that_may_be_a_pause_is_looked_at_again_after_a_far_longer_silence() -> None:
    hangs = Hangs((MAIN,), fixed_s=0.0, stepped_before=False)
    last_s = _paced(hangs, 0.5)
    for bound_s in (HANG_S_MIN, LIKELY_S_MIN, ANYHOW_S):
        assert hangs.suspicion((MAIN,), last_s + bound_s - 0.1) is None
        assert hangs.suspicion((MAIN,), last_s + bound_s + 0.1) is not None
        hangs.spared()


def test_hang_of_a_program_that_never_reported_a_step_is_none() -> None:
    hangs = Hangs((MAIN,), fixed_s=0.0, stepped_before=False)
    hangs.begin(0.0, from_store=False)
    assert hangs.suspicion((MAIN,), 1e9) is None


def test_hang_before_the_first_step_is_suspected_where_earlier_attempts_stepped() -> None:
    hangs = Hangs((MAIN,), fixed_s=0.0, stepped_before=True)
    hangs.begin(0.0, from_store=True)
    assert hangs.suspicion((MAIN,), STARTUP_S - 1) is None
    assert hangs.suspicion((MAIN,), STARTUP_S + 1) is not None


def test_hang_limit_that_the_job_gives_is_kept_to() -> None:
    hangs = Hangs((MAIN,), fixed_s=3.0, stepped_before=False)
    last_s = _paced(hangs, 0.5)
    suspicion = hangs.suspicion((MAIN,), last_s + 3.1)
    assert suspicion is not None
    assert suspicion.stage == 2


def test_hang_declared_twice_at_one_step_must_last_twice_as_long() -> None:
    hangs = Hangs((MAIN,), fixed_s=0.0, stepped_before=False)
    last_s = _paced(hangs, 0.5)
    hangs.declared(7)
    hangs.declared(7)
    assert hangs.suspicion((MAIN,), last_s + 1.9 * HANG_S_MIN) is None


# ------------------------------------------------------------ failures


def _fail(
    failures: Failures, code: int, *, furthest: int = 5, agent: int = 0, words: str = "", now_s: float = 0.0
) -> AttemptState | None:
    failure = exited(rank=3, agent=agent, exit_code=code, words=words)
    return failures.another(failure, furthest=furthest, now_s=now_s).outcome


def test_failures_alike_three_times_without_a_step_quote_the_first_words() -> None:
    failures = Failures(restarts_max=8)
    assert _fail(failures, 1, words="KeyError: 'gripper'") is None
    assert _fail(failures, 1, words="later") is None
    verdict = failures.another(exited(rank=3, agent=0, exit_code=1, words="last"), furthest=5, now_s=0.0)
    assert verdict.outcome is AttemptState.FAILED
    assert "KeyError: 'gripper'" in verdict.reason


def test_failures_alike_from_outside_end_the_attempt_and_not_the_job() -> None:
    failures = Failures(restarts_max=8)
    assert [_fail(failures, -9), _fail(failures, -9), _fail(failures, -9)] == [None, None, AttemptState.LOST]


def test_failures_that_are_followed_by_a_restart_say_which_rung_of_the_ladder_it_is() -> None:
    failures = Failures(restarts_max=8)
    told = [
        failures.another(exited(rank=3, agent=4, exit_code=code, words=""), furthest=5, now_s=0.0).reason
        for code in (-9, -11)
    ]
    assert told == [
        "rank 3 was killed by signal 9 at step 5 (restart 1 of 8)",
        "rank 3 was killed by signal 11 at step 5 (restart 2 of 8, on agent 4 only where others do not suffice)",
    ]


def test_failures_with_progress_between_go_on_to_the_limit() -> None:
    failures = Failures(restarts_max=4)
    assert [_fail(failures, -9, furthest=step) for step in range(5)] == [None] * 4 + [AttemptState.LOST]


def test_failures_long_ago_are_forgiven() -> None:
    failures = Failures(restarts_max=1)
    assert [_fail(failures, -9, furthest=n, now_s=n * (FORGIVEN_S + 1)) for n in range(6)] == [None] * 6


def test_failures_on_one_agent_without_progress_make_it_suspect() -> None:
    failures = Failures(restarts_max=8)
    _fail(failures, 1, agent=4, furthest=1)
    _fail(failures, 1, agent=4, furthest=2)
    assert failures.suspects == set()
    _fail(failures, -6, agent=4, furthest=2)
    assert failures.suspects == {4}


def test_devices_on_several_agents_that_stand_alone_make_all_of_these_suspect_at_once() -> None:
    failures = Failures(restarts_max=8)
    told = failures.another(of_devices([3, 9], [1, 4]), furthest=5, now_s=0.0)
    assert failures.suspects == {1, 4}
    assert (told.outcome, told.reason.partition("(")[2]) == (
        None,
        "restart 1 of 8, on agents 1, 4 only where others do not suffice)",
    )
    told = failures.another(of_devices([2], [4]), furthest=9, now_s=1.0)
    assert told.outcome is AttemptState.LOST
    assert "again on agent 4" in told.reason


# ------------------------------------------------------------ the rest


def test_straggler_that_waits_for_data_window_after_window_is_named_once() -> None:
    stragglers, now_s = Stragglers(), 0.0
    found: list[Slow] = []
    stragglers.begin(now_s)
    for _ in range(WINDOWS_SLOW + 3):
        now_s += WINDOW_S + 1
        for rank in range(5):
            stragglers.stepped(rank, steps=10, seconds={"data": 5.0 if rank == 2 else 0.1})
        found += stragglers.look(now_s, step_s=1.0)
    assert [slow.rank for slow in found] == [2]
    assert 1.5 < found[0].ratio < 2.5


def test_step_to_leave_at_is_late_enough_for_word_to_arrive_and_unknown_before_the_first_step() -> None:
    assert step_to_leave_at(-1, 0.1, 8) == -1
    assert step_to_leave_at(10, None, 8) == 12
    assert 10 + 1.2 / 0.1 <= step_to_leave_at(10, 0.1, 8) <= 10 + 2.0 / 0.1
    assert step_to_leave_at(10, 0.1, 16_384) > step_to_leave_at(10, 0.1, 8)
    assert reserve_s(5.0) == 1.0
