"""What limits bar, what guarantees cover, and who had the least."""

from __future__ import annotations

from itertools import combinations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.tenants import B200, H100, Job, Tenants, holds, snapshot, team, tenants, wants

from mainspring.domain.ids import ChipName, TeamName
from mainspring.domain.job import MILLI, Tier
from mainspring.domain.plan import Limit
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner import Policy, SnapshotBuilder
from mainspring.planner.facts.snapshot import NO_LIMIT, NONE
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.limits import Charge
from mainspring.planner.quota.precedence import BORROWED

property_of = settings(max_examples=60)


def world(teams: list[Team], jobs: dict[str, Job] | None = None, *, h100s: int = 32, down: int = 0) -> Tenants:
    return tenants(snapshot(teams, jobs, h100s=h100s, down=down))


# -------------------------------------------------------------------- caps, borrowing, budgets


def test_cap_binds_a_team_and_says_by_how_much() -> None:
    made = world([team("lab"), team("vision", "lab", chips_max=8)], {"live": holds("vision", 5)})
    bar = made.entitlement.bar(made.row("vision"), wants("vision", 4).charge)
    assert bar is not None
    assert (bar.limit, bar.where, bar.short_by) == (Limit.QUOTA, "vision", 1.0)
    assert bar.text == "team vision may hold 8 chips and holds 5; 4 more are 1 too many"
    assert made.bar(wants("vision", 3)) is None


def test_cap_of_a_parent_binds_its_children_together() -> None:
    made = world([team("lab", chips_max=3), team("a", "lab"), team("b", "lab")])
    made.charge(wants("a", 2))
    assert made.bar(wants("b", 2)) == "team lab may hold 3 chips and holds 2; 2 more are 1 too many"
    assert made.bar(wants("b", 1)) is None


def test_cap_counts_chips_of_every_type_and_those_on_nodes_nobody_lists() -> None:
    jobs = {"gone": holds("lab", 2, listed=False), "other": Job(chips={B200: 3}, granted_s=0.0)}
    made = world([team("lab", chips_max=6)], jobs)
    assert made.bar(wants("lab", 2)) == "team lab may hold 6 chips and holds 5; 2 more are 1 too many"


def test_borrow_limit_binds_what_is_beyond_the_guarantee() -> None:
    made = world([team("vision", guarantee=8, borrow_max=4)], {"live": holds("vision", 11)})
    text = "team vision may borrow 4 h100 beyond its 8 and holds 11; 2 more are 1 too many"
    assert made.bar(wants("vision", 2)) == text
    assert made.bar(wants("vision", 1)) is None
    assert made.bar(Job(team="vision", chips={B200: 30})) is None, "b200 is not named"


def test_borrow_limit_of_a_parent_leaves_its_childrens_guarantees_alone() -> None:
    made = world([team("lab", borrow_max=1), team("a", "lab", guarantee=8), team("b", "lab")])
    assert made.bar(wants("a", 8)) is None
    made.charge(wants("b", 8))
    assert made.bar(wants("b", 1)) is None
    assert made.bar(wants("b", 2)) == "team lab may borrow 1 h100 beyond its 8 and holds 8; 2 more are 1 too many"


def test_budget_binds_all_above_and_counts_what_starts_in_this_plan() -> None:
    teams = [team("lab", dollars_max=100), team("vision", "lab")]
    made = tenants(snapshot(teams, dollars={"lab": 60.0}))
    hours = Charge(chips=((1, MILLI),), dollars_per_hour=10.0, duration_s=2 * 3_600.0)
    vision = made.row("vision")
    assert made.entitlement.bar(vision, hours) is None
    made.entitlement.charge(vision, hours)
    made.entitlement.charge(vision, hours)
    bar = made.entitlement.bar(vision, hours)
    assert bar is not None
    assert (bar.limit, bar.where, bar.short_by) == (Limit.BUDGET, "lab", 0.0)
    assert bar.text == "team lab may spend 100.00 dollars and spent 100.00; 20.00 more are 20.00 too many"
    free = Charge(chips=((1, MILLI),), dollars_per_hour=0.0, duration_s=inf)
    assert made.entitlement.bar(vision, free) is None, "what costs nothing breaks no budget"


def test_budget_takes_a_job_of_unknown_duration_to_run_an_hour() -> None:
    made = tenants(snapshot([team("lab", dollars_max=15)]))
    unknown = Charge(chips=((1, MILLI),), dollars_per_hour=10.0, duration_s=inf)
    assert made.entitlement.bar(0, unknown) is None
    made.entitlement.charge(0, unknown)
    assert made.entitlement.bar(0, unknown) is not None


# -------------------------------------------------------------------- lending


def test_lending_keeps_idle_guarantee_from_borrowers() -> None:
    made = world([team("a", guarantee=16, lend_max=4), team("b")])
    assert made.bar(wants("b", 20)) is None, "16 nobody is guaranteed, and 4 that are lent"
    bar = made.entitlement.bar(made.row("b"), wants("b", 21).charge)
    assert bar is not None
    assert (bar.limit, bar.where, bar.short_by) == (Limit.QUOTA, "a", 1.0)
    assert bar.text == "of 32 free h100 teams do not lend 12, a among them; 21 are 1 too many"


def test_lending_does_not_keep_a_guarantee_from_its_own_team_and_those_below() -> None:
    teams = [team("lab", guarantee=16, lend_max=0), team("a", "lab", guarantee=8, lend_max=0), team("b")]
    assert world(teams).bar(wants("a", 32)) is None
    assert world(teams).bar(wants("lab", 24)) is None
    assert world(teams).bar(wants("lab", 25)) is not None, "a is not the lab, but below it"


def test_lending_says_no_more_are_too_many_than_were_asked() -> None:
    made = world([team("a", guarantee=16, lend_max=0), team("b")], {"live": holds("b", 32)})
    assert made.bar(wants("b", 2)) == "of 0 free h100 teams do not lend 16, a among them; 2 are 2 too many"


def test_lending_counts_only_chips_that_work() -> None:
    made = world([team("a", guarantee=16, lend_max=0), team("b")], h100s=20, down=12)
    assert made.bar(wants("b", 4)) is None
    assert made.bar(wants("b", 5)) is not None


def test_lending_does_not_bind_what_a_guarantee_covers() -> None:
    teams = [team("a", guarantee=16, lend_max=0), team("b", guarantee=16), team("c")]
    made = world(teams, {"borrower": holds("c", 16)})
    assert made.bar(wants("b", 16)) is None, "the borrower has to give way, not the owner of a guarantee"
    assert made.bar(wants("c", 1)) is not None


def test_lending_of_used_guarantee_frees_the_rest() -> None:
    made = world([team("a", guarantee=16, lend_max=4), team("b")], {"live": holds("a", 10)})
    assert made.bar(wants("b", 20)) is None, "22 are free, 2 of them kept"
    assert made.bar(wants("b", 21)) is not None


def test_nested_guarantee_is_kept_once() -> None:
    teams = [team("lab", guarantee=16, lend_max=4), team("a", "lab", guarantee=8, lend_max=0), team("b")]
    assert world(teams).bar(wants("b", 20)) is None, "the 8 a keeps are among the 12 lab keeps"
    used = world([*teams, team("c", "lab")], {"live": holds("c", 10)})
    assert used.bar(wants("b", 14)) is None
    assert used.bar(wants("b", 15)) is not None, "lab keeps 2, but a still keeps its 8"


def test_guarantee_of_a_parent_covers_a_child_beside_what_its_siblings_keep() -> None:
    made = world([team("lab", guarantee=16), team("a", "lab", guarantee=8, lend_max=0), team("b", "lab")])
    assert made.standing(wants("b", 8)) == 1
    assert made.standing(wants("b", 9)) == BORROWED
    assert made.standing(wants("lab", 9)) == BORROWED, "the team above is another too"
    made.charge(wants("a", 8))
    assert made.standing(wants("b", 8)) == 1


# -------------------------------------------------------------------- standing


def test_standing_is_the_distance_to_the_guarantee_that_covers_it() -> None:
    teams = [team("lab", guarantee=16), team("vision", "lab"), team("pose", "vision", guarantee=4), team("stray")]
    made = world(teams, {"live": holds("pose", 2)})
    assert made.standing(wants("pose", 2)) == 0
    assert made.standing(wants("pose", 3)) == 2
    assert made.standing(wants("vision", 14)) == 1
    assert made.standing(wants("vision", 15)) == BORROWED
    assert made.standing(wants("stray", 1)) == BORROWED


def test_standing_needs_every_chip_asked_to_be_covered() -> None:
    made = world([team("a", guarantee={H100: 8, B200: 2})])
    assert made.standing(Job(team="a", chips={H100: 8, B200: 2})) == 0
    assert made.standing(Job(team="a", chips={H100: 1, B200: 3})) == BORROWED


def test_standing_of_a_job_without_chips_is_borrowed() -> None:
    made = world([team("a", guarantee=8)], {"cores": Job(team="a", chips={}, granted_s=0.0)})
    assert made.standing(Job(team="a", chips={})) == BORROWED
    assert made.standings() == {"cores": BORROWED}


def test_standing_of_an_urgent_job_counts_only_what_comes_before_it_in_its_team() -> None:
    made = world([team("a", guarantee=8)], {"live": holds("a", 8)})
    assert made.standing(wants("a", 8)) == BORROWED
    assert made.standing(wants("a", 8, tier=Tier.CRITICAL)) == 0, "it takes the place of what comes after it"
    made.charge(wants("a", 8, tier=Tier.CRITICAL))
    assert made.standing(wants("a", 1, tier=Tier.CRITICAL)) == BORROWED


def test_standing_of_a_job_that_had_little_counts_only_those_that_had_as_little() -> None:
    teams = [team("a", guarantee=8, order=TeamOrder.ATTAINED)]
    made = world(teams, {"live": holds("a", 8, attained_chip_s=1e9)})
    assert made.precedences() == {"live": (0, Tier.STANDARD.rank, 2)}
    charge = wants("a", 8).charge
    levels = [made.entitlement.standing(0, charge, tier=Tier.STANDARD.rank, level=level) for level in range(3)]
    assert levels == [0, 0, BORROWED]


def test_standing_in_a_parents_guarantee_counts_what_children_are_guaranteed_first() -> None:
    teams = [team("lab", guarantee=8), team("a", "lab", guarantee=8), team("b", "lab")]
    made = world(teams, {"live": holds("a", 8, tier=Tier.OPPORTUNISTIC)})
    assert made.standing(wants("b", 1, tier=Tier.CRITICAL)) == BORROWED


def test_release_frees_a_guarantee_and_no_limit_before_the_attempt_has_ended() -> None:
    live = holds("a", 8)
    made = world([team("a", guarantee=8, chips_max=8)], {"live": live})
    made.release("live", live)
    assert made.standing(wants("a", 8)) == 0
    assert made.bar(wants("a", 1)) is not None


def test_release_of_what_a_lower_guarantee_covered_frees_those_above_for_every_tier() -> None:
    live = holds("a", 4, tier=Tier.OPPORTUNISTIC)
    made = world([team("lab", guarantee=4), team("a", "lab", guarantee=4), team("b", "lab")], {"live": live})
    assert made.standing(wants("b", 4, tier=Tier.CRITICAL)) == BORROWED
    made.release("live", live)
    assert made.standing(wants("b", 4, tier=Tier.CRITICAL)) == 1


# -------------------------------------------------------------------- live attempts


def test_live_attempts_fill_a_guarantee_by_tier_then_age() -> None:
    jobs = {
        "young": holds("a", 4, granted_s=3.0),
        "old": holds("a", 4, granted_s=1.0),
        "urgent": holds("a", 4, granted_s=5.0, tier=Tier.CRITICAL),
    }
    standings = world([team("a", guarantee=8)], jobs).standings()
    assert standings == {"urgent": 0, "old": 0, "young": BORROWED}


def test_live_attempt_that_does_not_fit_leaves_its_place_to_the_next() -> None:
    jobs = {"large": holds("a", 6, granted_s=1.0), "small": holds("a", 2, granted_s=2.0)}
    assert world([team("a", guarantee=4)], jobs).standings() == {"large": BORROWED, "small": 0}


def test_live_attempts_of_teams_below_fill_what_is_left_above() -> None:
    teams = [team("lab", guarantee=8), team("a", "lab", guarantee=4), team("b", "lab")]
    jobs = {
        "own": holds("lab", 4, granted_s=0.0),
        "a1": holds("a", 4, granted_s=3.0),
        "b1": holds("b", 2, granted_s=1.0),
        "b2": holds("b", 2, granted_s=2.0, tier=Tier.OPPORTUNISTIC),
    }
    assert world(teams, jobs).standings() == {"a1": 0, "own": 0, "b1": BORROWED, "b2": BORROWED}
    jobs["own"] = holds("lab", 2, granted_s=0.0)
    assert world(teams, jobs).standings() == {"a1": 0, "own": 0, "b1": 1, "b2": BORROWED}


def test_live_attempt_of_several_chips_is_covered_whole_or_not_at_all() -> None:
    jobs = {
        "both": Job(team="a", chips={H100: 4, B200: 4}, granted_s=1.0),
        "one": Job(team="a", chips={B200: 4}, granted_s=2.0),
    }
    assert world([team("a", guarantee={H100: 2, B200: 4})], jobs).standings() == {"both": BORROWED, "one": 0}


def test_live_attempt_that_stops_is_charged_but_fills_no_guarantee() -> None:
    jobs = {"ending": holds("a", 8, stopping=True), "staying": holds("a", 8, granted_s=1.0)}
    made = world([team("a", guarantee=8, chips_max=20)], jobs)
    assert made.standings() == {"ending": BORROWED, "staying": 0}
    assert made.bar(wants("a", 5)) == "team a may hold 20 chips and holds 16; 5 more are 1 too many"


def test_live_attempts_drop_levels_only_where_the_team_takes_them_by_chip_time_had() -> None:
    teams = [team("a", order=TeamOrder.ATTAINED), team("b")]
    jobs = {
        "a0": holds("a", 1, granted_s=99_000.0),
        "a2": holds("a", 1, granted_s=99_000.0, attained_chip_s=50_000.0),
        "b0": holds("b", 1, attained_chip_s=50_000.0),
    }
    made = tenants(snapshot(teams, jobs), Policy(attained_levels_chip_s=(10_000.0, 20_000.0)))
    assert {name: level for name, (_, _, level) in made.precedences().items()} == {"a0": 0, "a2": 2, "b0": 0}


# -------------------------------------------------------------------- share


def test_share_is_the_dominant_one_over_the_weight() -> None:
    jobs = {"a1": Job(team="a", chips={H100: 8, B200: 4}, granted_s=0.0), "b1": holds("b", 4)}
    made = world([team("a", weight=2.0), team("b")], jobs)
    assert made.entitlement.shares.of(made.row("a")) == pytest.approx((8 / 32 / 2, 0.0))
    assert made.entitlement.shares.of(made.row("b")) == pytest.approx((4 / 32, 0.0))
    made.charge(Job(team="a", chips={B200: 12}))
    assert made.entitlement.shares.of(made.row("a")) == pytest.approx((16 / 32 / 2, 0.0))


def test_share_counts_only_what_is_borrowed_of_what_can_be() -> None:
    made = world([team("a", guarantee=8, lend_max=0), team("b", guarantee=8)], {"live": holds("a", 12)})
    assert made.entitlement.shares.of(made.row("a"))[0] == pytest.approx(4 / 24)
    assert made.entitlement.shares.of(made.row("b"))[0] == 0.0


def test_share_leaves_a_single_team_at_the_top_out() -> None:
    jobs = {"own": holds("lab", 4), "a1": holds("a", 2), "p1": holds("pose", 1)}
    made = world([team("lab"), team("a", "lab"), team("vision", "lab"), team("pose", "vision")], jobs)
    assert made.entitlement.shares.of(made.row("a")) == pytest.approx((2 / 32, 0.0))
    assert made.entitlement.shares.of(made.row("pose")) == pytest.approx((1 / 32, 0.0, 1 / 32, 0.0))
    assert made.entitlement.shares.of(made.row("lab")) == pytest.approx((4 / 32, 0.0)), (
        "as if it were one of its children"
    )


def test_share_falls_as_use_decays() -> None:
    builder = SnapshotBuilder(usage_half_life_s=100.0)
    builder.set_teams([team("a"), team("b")])
    builder.set_usage({TeamName("a"): 8.0}, at_s=0.0)
    shares = [Entitlement(builder.build(now_s=at_s), Policy(), at_s).shares.of(0)[1] for at_s in (0.0, 100.0, 300.0)]
    assert shares == pytest.approx([8.0, 4.0, 1.0])


def test_share_rolls_use_up_the_tree() -> None:
    teams = [team("vision", weight=2.0), team("pose", "vision"), team("other")]
    made = tenants(snapshot(teams, usage={"pose": 6.0, "vision": 2.0}))
    assert made.entitlement.shares.of(made.row("pose")) == pytest.approx((0.0, 4.0, 0.0, 6.0))
    assert made.entitlement.shares.of(made.row("vision")) == pytest.approx((0.0, 4.0, 0.0, 2.0))


# -------------------------------------------------------------------- properties

TREE = {"lab": None, "vision": "lab", "pose": "vision", "depth": "vision", "control": "lab", "stray": None}
LEAVES_FIRST = ("pose", "depth", "vision", "control", "lab", "stray")
JOBS = st.builds(
    Job,
    team=st.sampled_from(sorted(TREE)),
    chips=st.dictionaries(st.sampled_from((H100, B200)), st.integers(1, 6), min_size=1),
    tier=st.sampled_from(Tier),
)


@st.composite
def trees(draw: st.DrawFn) -> list[Team]:
    """Draws limits; a team above is promised at least what those below it are, or nothing at all; 32 chips in all."""
    few = st.integers(0, 4)
    guarantee: dict[str, int] = {}
    for name in LEAVES_FIRST:
        below = sum(guarantee[child] for child, parent in TREE.items() if parent == name)
        top_up = draw(st.integers(0, 4))
        guarantee[name] = max(0, below + top_up) if name != "lab" or draw(st.booleans()) else 0
    made = []
    for name, parent in TREE.items():
        made.append(
            team(
                name,
                parent,
                guarantee=guarantee[name],
                chips_max=draw(st.none() | st.integers(0, 20)),
                borrow_max=draw(st.none() | few),
                lend_max=draw(st.none() | few),
            )
        )
    return made


def used_milli(held: list[Job], name: str, chip: ChipName) -> int:
    """Returns what a team and those below it hold."""

    def under(team: str | None) -> bool:
        return team is not None and (team == name or under(TREE[team]))

    return sum(job.chips.get(chip, 0) * MILLI for job in held if under(job.team))


def path_of(name: str) -> list[str]:
    parent = TREE[name]
    return [name] if parent is None else [name, *path_of(parent)]


def kept_milli(made: Tenants, held: list[Job], name: str, chip: ChipName) -> int:
    """Returns the most that disjoint parts of the tree without this team keep by limits of their own."""
    teams, column = made.snapshot.teams, made.snapshot.chips.index(chip)
    kept = {}
    for other in sorted(set(TREE) - set(path_of(name))):
        row = made.row(other)
        lend_max = int(teams.lend_max_milli[row, column])
        unlent = 0 if lend_max == NO_LIMIT else int(teams.guarantee_milli[row, column]) - lend_max
        kept[other] = max(0, unlent - used_milli(held, other, chip))
    disjoint = [
        group
        for size in range(len(kept) + 1)
        for group in combinations(kept, size)
        if not any(one in path_of(two) or two in path_of(one) for one, two in combinations(group, 2))
    ]
    return max(sum(kept[other] for other in group) for group in disjoint)


@property_of
@given(teams=trees(), asked=st.lists(JOBS, max_size=14))
@pytest.mark.slow
def test_limits_hold_at_every_level_after_all_that_is_allowed(teams: list[Team], asked: list[Job]) -> None:
    made = tenants(snapshot(teams))
    held: list[Job] = []
    for job in asked:
        covered = made.standing(job) != BORROWED
        if made.bar(job) is not None:
            continue
        made.charge(job)
        held.append(job)
        for chip in job.chips:
            free = 32 * MILLI - sum(each.chips.get(chip, 0) * MILLI for each in held)
            kept = kept_milli(made, held, job.team, chip)
            assert covered or not kept or free >= kept
    table = made.snapshot.teams
    for row, name in enumerate(table.names):
        used = {chip: used_milli(held, name, chip) for chip in (B200, H100)}
        assert table.milli_max[row] == NO_LIMIT or sum(used.values()) <= table.milli_max[row]
        for column, chip in enumerate(made.snapshot.chips):
            below = [child for child, parent in TREE.items() if parent == name]
            promised = max(
                int(table.guarantee_milli[row, column]),
                sum(int(table.guarantee_milli[made.row(child), column]) for child in below),
            )
            borrow_max = int(table.borrow_max_milli[row, column])
            assert borrow_max == NO_LIMIT or used[chip] <= promised + borrow_max


@property_of
@given(teams=trees(), live=st.lists(JOBS, max_size=10), job=JOBS)
@pytest.mark.slow
def test_job_stands_at_least_as_well_once_it_is_live(teams: list[Team], live: list[Job], job: Job) -> None:
    jobs = {
        f"live-{index}": Job(team=each.team, chips=each.chips, tier=each.tier, granted_s=float(index))
        for index, each in enumerate(live)
    }
    before = tenants(snapshot(teams, jobs, h100s=100, b200s=100)).standing(job)
    started = Job(team=job.team, chips=job.chips, tier=job.tier, granted_s=1_000.0)
    after = tenants(snapshot(teams, {**jobs, "started": started}, h100s=100, b200s=100)).standings()
    assert after["started"] <= before


@property_of
@given(teams=trees(), live=st.lists(JOBS, max_size=12))
@pytest.mark.slow
def test_guarantees_cover_no_more_than_they_are(teams: list[Team], live: list[Job]) -> None:
    jobs = {
        f"live-{index:02}": Job(team=each.team, chips=each.chips, tier=each.tier, granted_s=float(index))
        for index, each in enumerate(live)
    }
    made = tenants(snapshot(teams, jobs, h100s=100, b200s=100))
    standings = made.standings()
    table = made.snapshot.teams
    for name in TREE:
        for column, chip in enumerate(made.snapshot.chips):
            covered = [
                job.chips.get(chip, 0) * MILLI
                for key, job in jobs.items()
                if standings[key] != BORROWED and path_of(job.team)[standings[key]] == name
            ]
            assert sum(covered) <= table.guarantee_milli[made.row(name), column]


@property_of
@given(teams=trees(), live=st.lists(JOBS, min_size=1, max_size=8), asked=st.lists(JOBS, max_size=5))
@pytest.mark.slow
def test_releasing_what_is_live_leaves_guarantees_and_shares_as_if_it_had_never_been(
    teams: list[Team], live: list[Job], asked: list[Job]
) -> None:
    jobs = {
        f"live-{index}": Job(team=each.team, chips=each.chips, tier=each.tier, granted_s=float(index))
        for index, each in enumerate(live)
    }
    # Enough of each chip is idle either way, so that what can be borrowed is the same.
    made = tenants(snapshot(teams, jobs, h100s=100, b200s=100))
    for name, job in jobs.items():
        made.release(name, job)
    fresh = tenants(snapshot(teams, h100s=100, b200s=100))
    for job in asked:
        assert made.standing(job) == fresh.standing(job)
        made.charge(job)
        fresh.charge(job)
    for name in TREE:
        row = made.row(name)
        assert made.entitlement.shares.of(row) == pytest.approx(fresh.entitlement.shares.of(row))


def test_teams_and_chips_nobody_knows_bar_nothing() -> None:
    made = tenants(snapshot([], {"job": wants("stray", 4), "another": wants("other", 4)}))
    unknown = Charge(chips=((NONE, 4 * MILLI),), dollars_per_hour=1.0, duration_s=inf)
    assert made.entitlement.bar(made.row("stray"), unknown) is None
    made.entitlement.charge(made.row("stray"), unknown)
    assert made.entitlement.shares.of(made.row("stray")) == (0.0, 0.0)
