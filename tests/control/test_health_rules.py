"""Health of nodes: what rules find, how often a node failed, and that the fold is a fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.health.lemons import LEMON_SCORE, episodes, lemon_score
from mainspring.control.health.nodes import (
    EVENTS_MAX,
    REMEMBERED_S,
    REPEATED_S,
    REPEATS_FIRST,
    REPEATS_MAX,
    HealthFold,
    NodeHealth,
)
from mainspring.control.health.rules import RULES, acting
from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import (
    STRAGGLER,
    HealthEvent,
    HealthSource,
    HealthState,
    Repair,
    Scope,
    ScopeKind,
    Strategy,
)
from mainspring.domain.hardware.xids import xid_of
from mainspring.domain.ids import ClusterName, JobId, NodeName

HALL = ClusterName("hall")
AT = NodeRef(cluster=HALL, node=NodeName("n1"))
NODE = Scope(kind=ScopeKind.NODE, cluster=HALL, node=AT.node)
GPU = Scope(kind=ScopeKind.DEVICE, cluster=HALL, node=AT.node, part="gpu-0")
LINK = Scope(kind=ScopeKind.LINK, cluster=HALL, node=AT.node, part="mlx5_0")
HOUR_S, DAY_S = 3_600.0, 86_400.0
NOW_S = 1_000 * DAY_S


def xid(number: int, code: int, at_s: float, *, scope: Scope = GPU, job: str = "") -> HealthEvent:
    """An Xid as a watcher of the kernel's log tells it, by what the catalogue says."""
    known = xid_of(code)
    return HealthEvent(
        source=HealthSource(name="kernel-log", session="s1", sequence=number),
        at_s=at_s,
        scope=scope,
        check="xid",
        codes=(str(code),),
        fatal=known.fatal,
        repair=known.repair,
        message=known.words,
        strategy=Strategy.ACT,
        job=JobId(job),
    )


def well(number: int, at_s: float, *, scope: Scope = GPU, session: str = "s2", name: str = "kernel-log") -> HealthEvent:
    source = HealthSource(name=name, session=session, sequence=number)
    return HealthEvent(source=source, at_s=at_s, scope=scope, check="xid", healthy=True)


def told(events: Sequence[HealthEvent]) -> HealthFold:
    fold = HealthFold()
    for event in events:
        fold.add(event)
    return fold


def health(*events: HealthEvent, now_s: float = NOW_S) -> NodeHealth:
    return told(events).of(AT, now_s)


def names(found: NodeHealth) -> list[str]:
    return [each.rule for each in found.findings]


# ---------------------------------------------------------------- rules


def test_node_of_which_nothing_was_said_is_sound() -> None:
    assert health() == NodeHealth(at=AT)
    assert health().state is HealthState.SOUND


def test_fatal_fault_fails_its_node_and_asks_for_what_the_catalogue_says() -> None:
    found = health(xid(1, 79, NOW_S - HOUR_S))
    assert (names(found), found.state, found.repair) == (["fatal"], HealthState.FAILED, Repair.RESTART_NODE)
    (finding,) = found.findings
    assert finding.words == "of no use until something is done: xid 79 on gpu-0: it has fallen off the bus"
    assert finding.evidence == (HealthSource(name="kernel-log", session="s1", sequence=1),)


def test_fault_that_its_watcher_takes_back_is_over_also_in_another_life_of_the_watcher() -> None:
    fault = xid(1, 79, NOW_S - HOUR_S)
    assert health(fault, well(1, NOW_S - 60.0)).state is HealthState.SOUND
    assert health(well(1, NOW_S - 2 * HOUR_S), fault).state is HealthState.FAILED, "what came after is not taken back"


@pytest.mark.parametrize(
    "other",
    [
        well(1, NOW_S - 60.0, name="agent"),
        well(1, NOW_S - 60.0, scope=replace(GPU, part="gpu-1")),
        replace(well(1, NOW_S - 60.0), check="nvlink"),
    ],
)
def test_fault_is_not_taken_back_by_another_watcher_nor_for_another_device_or_check(other: HealthEvent) -> None:
    assert health(xid(1, 79, NOW_S - HOUR_S), other).state is HealthState.FAILED


@pytest.mark.parametrize(
    ("age_s", "state"),
    [(DAY_S - 1.0, HealthState.FAILED), (DAY_S, HealthState.SOUND), (-1.0, HealthState.SOUND)],
)
def test_fatal_fault_counts_within_its_window_and_not_before_it_has_come(age_s: float, state: HealthState) -> None:
    assert health(xid(1, 79, NOW_S - age_s)).state is state


def test_program_that_faults_says_nothing_against_its_node() -> None:
    faults = [xid(number, code, NOW_S - 60.0, job="job-1") for number, code in enumerate((13, 31, 43, 45, 94))]
    found = health(*faults)
    assert (found.state, found.lemon_score) == (HealthState.SOUND, 0.0)


def test_fault_that_stays_with_a_device_under_several_jobs_makes_its_node_suspect() -> None:
    faults = [xid(number, 31, NOW_S - HOUR_S * number, job=f"job-{number}") for number in range(3)]
    found = health(*faults)
    assert (names(found), found.state, found.repair) == (
        ["faults-of-many-jobs"],
        HealthState.SUSPECT,
        Repair.RESET_DEVICE,
    )
    assert health(*(replace(each, job=JobId("job-0")) for each in faults)).state is HealthState.SOUND
    spread = [replace(each, scope=replace(GPU, part=each.job)) for each in faults]
    assert health(*spread).state is HealthState.SOUND, "not the same device"
    assert health(*faults[:2]).state is HealthState.SOUND


def test_reset_that_cured_nothing_asks_for_people() -> None:
    faults = [xid(1, 64, NOW_S - 2 * DAY_S), well(1, NOW_S - 1.9 * DAY_S), xid(2, 64, NOW_S - 60.0)]
    found = health(*faults)
    assert names(found) == ["reset-in-vain", "fatal", "lemon"]
    assert (found.state, found.repair) == (HealthState.FAILED, Repair.CALL_PEOPLE)
    cured = health(*faults, well(2, NOW_S - 30.0))
    assert names(cured) == ["reset-in-vain", "lemon"], "it was cured once before"
    assert names(health(*faults[:2])) == []


def test_fault_that_is_told_many_times_at_once_is_one_that_was_reset_once() -> None:
    assert names(health(*(xid(number, 64, NOW_S - 60.0 + number) for number in range(20)))) == ["fatal"]


def test_link_that_flaps_fails_its_node_though_it_is_up_again() -> None:
    faults: list[HealthEvent] = []
    for number in range(3):
        at_s = NOW_S - 600.0 * (number + 1)
        down = replace(xid(number, 43, at_s, scope=LINK), check="port", codes=(), message="down")
        faults += [down, replace(well(number, at_s + 10.0, scope=LINK), check="port")]
    found = health(*faults)
    assert (names(found), found.state) == (["flapping-link"], HealthState.FAILED)
    assert health(*faults[:4]).state is HealthState.SOUND
    assert health(*faults, now_s=NOW_S + 2_400.0).state is HealthState.SOUND, "the first was more than an hour ago"


def test_fault_that_asks_for_more_than_a_restart_makes_its_node_suspect_until_it_is_taken_back() -> None:
    fault = xid(1, 144, NOW_S - 60.0)
    assert (names(health(fault)), health(fault).repair) == (["asks-for-more"], Repair.CALL_PEOPLE)
    assert health(fault, well(1, NOW_S - 30.0)).state is HealthState.SOUND


def test_node_that_fails_three_times_in_four_weeks_is_a_lemon_however_well_it_is_now() -> None:
    scopes = (GPU, replace(GPU, part="gpu-1"), NODE)
    faults = [xid(number, 79, NOW_S - 8 * DAY_S * (number + 1), scope=scopes[number]) for number in range(3)]
    found = health(*faults, *(well(number, NOW_S - 60.0, scope=scope) for number, scope in enumerate(scopes)))
    assert (names(found), found.state, found.lemon_score) == (["lemon"], HealthState.SUSPECT, 3.0)
    assert health(*faults, now_s=NOW_S + 4 * DAY_S).lemon_score == 2.0
    assert health(*faults[:2]).state is HealthState.SOUND


# ---------------------------------------------------------------- shadow


def test_every_rule_starts_in_shadow() -> None:
    assert {rule.strategy for rule in RULES} == {Strategy.SHADOW}
    found = health(xid(1, 79, NOW_S - 60.0))
    assert (found.state, found.acting) == (HealthState.FAILED, ())


def test_rule_acts_only_where_it_holds_by_what_may_be_acted_on_alone() -> None:
    fold = HealthFold(acting(RULES, ["fatal"]))
    fold.add(xid(1, 79, NOW_S - 60.0))
    assert [each.rule for each in fold.of(AT, NOW_S).acting] == ["fatal"]
    fold.add(replace(xid(2, 79, NOW_S - 50.0), strategy=Strategy.SHADOW))
    assert [each.evidence[0].sequence for each in fold.of(AT, NOW_S).acting] == [1], "nobody's shadow takes it back"
    fold = HealthFold(acting(RULES, ["fatal"]))
    fold.add(replace(xid(2, 79, NOW_S - 50.0), strategy=Strategy.SHADOW))
    assert (names(fold.of(AT, NOW_S)), fold.of(AT, NOW_S).acting) == (["fatal"], ())


def test_what_is_said_again_within_three_minutes_counts_once_and_stands_all_the_same() -> None:
    def down(number: int, at_s: float) -> HealthEvent:
        return replace(xid(number, 43, at_s, scope=LINK), check="port", codes=("down",))

    each_minute = [down(number, NOW_S - 170.0 + 50.0 * number) for number in range(4)]
    assert health(*each_minute).findings == ()
    spread = [down(number, NOW_S - 900.0 + 200.0 * number) for number in range(4)]
    assert names(health(*spread)) == ["flapping-link"]
    between = [
        replace(well(9 + number, each.at_s + 1.0, scope=LINK), check="port") for number, each in enumerate(each_minute)
    ]
    assert names(health(*each_minute, *between)) == ["flapping-link"], "it was up in between"
    assert names(health(*(xid(number, 79, NOW_S - 60.0 + number) for number in range(3)))) == ["fatal"]


def test_what_somebody_has_looked_at_is_held_against_a_node_no_more_but_for_its_score() -> None:
    fold = HealthFold()
    fold.add(xid(1, 79, NOW_S - 60.0))
    fold.clear(AT, NOW_S - 50.0)
    fold.clear(AT, NOW_S - 55.0)
    assert (fold.of(AT, NOW_S).state, fold.of(AT, NOW_S).lemon_score) == (HealthState.SOUND, 1.0)
    fold.add(xid(2, 79, NOW_S - 55.0))
    assert fold.of(AT, NOW_S).state is HealthState.SOUND, "told late, of before"
    fold.add(xid(3, 79, NOW_S - 40.0))
    assert fold.of(AT, NOW_S).state is HealthState.FAILED


def test_rule_that_does_not_exist_cannot_act() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'fatal'"):
        acting(RULES, ["fatl"])


def test_node_that_everybody_waits_for_is_slow_until_it_is_taken_back() -> None:
    fault = replace(xid(1, 43, NOW_S - 60.0, scope=NODE), check=STRAGGLER, codes=())
    assert (names(health(fault)), health(fault).repair) == (["slow"], Repair.RESTART_NODE)
    assert health(fault, replace(well(1, NOW_S - 30.0, scope=NODE), check=STRAGGLER)).state is HealthState.SOUND


# ---------------------------------------------------------------- lemons


def test_what_comes_back_at_one_place_makes_a_lemon_sooner_though_somebody_has_looked_in_between() -> None:
    twice = [xid(1, 79, NOW_S - 9 * DAY_S), xid(2, 79, NOW_S - DAY_S)]
    fold = told([*twice, well(1, NOW_S - 60.0)])
    fold.clear(AT, NOW_S - 30.0)
    found = fold.of(AT, NOW_S)
    assert (names(found), found.lemon_score) == (["lemon"], 3.0)
    elsewhere = [twice[0], replace(twice[1], scope=replace(GPU, part="gpu-1"))]
    assert health(*elsewhere, well(1, NOW_S - 60.0)).lemon_score == 2.0


def test_episodes_are_what_was_seen_of_one_check_at_one_place_within_an_hour_of_its_begin() -> None:
    events = [xid(number, 79, NOW_S + 1_500.0 * number) for number in range(4)]
    assert [each.at_s - NOW_S for each in episodes(events)] == [0.0, 4_500.0]
    assert episodes(events[::-1]) == episodes(events)
    assert len(episodes([*events, xid(9, 79, NOW_S, scope=NODE)])) == 3


def test_score_of_an_episode_is_that_of_the_worst_of_it() -> None:
    assert lemon_score([xid(1, 144, NOW_S)]) == 0.25
    assert lemon_score([xid(1, 144, NOW_S), xid(2, 79, NOW_S + 60.0)]) == 1.0
    assert lemon_score([xid(1, 31, NOW_S), well(1, NOW_S + 1.0)]) == 0.0


def test_one_sound_node_in_a_thousand_at_most_has_the_score_of_a_lemon_by_chance() -> None:
    dice = Random(4)
    lemons = sum(sum(dice.random() < 0.0065 for _ in range(28)) >= LEMON_SCORE for _ in range(20_000))
    assert 5 <= lemons <= 30, "about 17 are expected of 20,000 nodes that fail 6.5 times in 1,000 node-days"


# ---------------------------------------------------------------- the fold


@st.composite
def histories(draw: st.DrawFn) -> list[HealthEvent]:
    codes = st.sampled_from((13, 31, 48, 64, 74, 79, 144))
    scopes = st.sampled_from((GPU, LINK, NODE, replace(GPU, part="gpu-1"), replace(GPU, node=NodeName("n2"))))
    events: list[HealthEvent] = []
    for number in range(draw(st.integers(0, 24))):
        at_s = NOW_S - draw(st.sampled_from((1.0, 600.0, HOUR_S, 5 * HOUR_S, 2 * DAY_S, 10 * DAY_S, 29 * DAY_S)))
        if draw(st.integers(0, 3)) == 0:
            events.append(well(number, at_s, scope=draw(scopes)))
        else:
            job = draw(st.sampled_from(("", "job-1", "job-2", "job-3")))
            events.append(xid(number, draw(codes), at_s, scope=draw(scopes), job=job))
    return events


@given(histories(), st.randoms(use_true_random=False))
def test_health_is_the_same_whatever_order_events_came_in_and_however_often(
    events: list[HealthEvent], dice: Random
) -> None:
    again = [*events, *events]
    dice.shuffle(again)
    one, other = told(events), told(again)
    assert one.nodes() == other.nodes()
    assert [one.of(at, NOW_S) for at in one.nodes()] == [other.of(at, NOW_S) for at in other.nodes()]


@given(histories(), st.floats(0.0, 40 * DAY_S))
def test_health_is_the_same_after_what_no_rule_looks_at_is_forgotten(events: list[HealthEvent], later_s: float) -> None:
    whole, less = told(events), told(events)
    less.forget(NOW_S + later_s)
    for at in whole.nodes():
        assert less.of(at, NOW_S + later_s) == whole.of(at, NOW_S + later_s)
    less.forget(NOW_S + REMEMBERED_S)
    assert less.nodes() == ()


@given(histories())
def test_findings_stand_on_faults_that_were_told_of_the_node(events: list[HealthEvent]) -> None:
    fold = told(events)
    for at in fold.nodes():
        own = {each.source for each in events if each.scope.node == at.node and not each.healthy}
        for finding in fold.of(at, NOW_S).findings:
            assert finding.evidence
            assert set(finding.evidence) <= own


@given(histories(), histories())
def test_more_faults_never_make_a_node_look_better(events: list[HealthEvent], more: list[HealthEvent]) -> None:
    session = [replace(each, source=replace(each.source, session="s3")) for each in more if not each.healthy]
    fold, worse = told(events), told([*events, *session])
    for at in fold.nodes():
        assert worse.of(at, NOW_S).state.rank >= fold.of(at, NOW_S).state.rank
        assert worse.of(at, NOW_S).lemon_score >= fold.of(at, NOW_S).lemon_score - 2.0, "two episodes may become one"


def test_event_is_told_once_and_of_nodes_alone() -> None:
    fold = HealthFold()
    fault = xid(1, 79, NOW_S)
    assert (fold.add(fault), fold.add(fault)) == (True, False)
    assert not fold.add(xid(2, 79, NOW_S, scope=Scope(kind=ScopeKind.DOMAIN, cluster=HALL, part="rack/r1")))
    assert fold.nodes() == (AT,)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_what_is_said_again_and_again_takes_little_and_gives_the_same_in_whatever_order(
    said: list[tuple[int, bool]], dice: Random
) -> None:
    events = [
        well(number, NOW_S - at_s, scope=LINK) if is_well else xid(number, 144, NOW_S - at_s, scope=LINK)
        for number, (at_s, is_well) in enumerate(said)
    ]
    one, again = told(events), [*events, *events]
    dice.shuffle(again)
    assert told(again).of(AT, NOW_S) == one.of(AT, NOW_S)
    assert one.size(AT) <= 2 * 3 * REPEATS_MAX, "of two kinds within three times three minutes"


def test_evidence_of_what_is_said_again_and_again_shows_the_newest() -> None:
    (found,) = health(*(xid(number, 79, NOW_S - 100.0 + number) for number in range(50))).findings
    assert [each.sequence for each in found.evidence] == [*range(REPEATS_FIRST), 49]


def test_fold_keeps_the_newest_events_of_a_node_that_says_too_much() -> None:
    fold = HealthFold()
    for number in range(EVENTS_MAX):
        fold.add(xid(number, 31, NOW_S - REPEATED_S * (EVENTS_MAX - number)))
    assert not fold.add(xid(EVENTS_MAX, 79, NOW_S - 2 * REPEATED_S * EVENTS_MAX)), "older than all that is kept"
    assert fold.add(xid(EVENTS_MAX + 1, 79, NOW_S))
    assert fold.of(AT, NOW_S).state is HealthState.FAILED
