"""Where time went: the parts of an attempt, a job, a team, a cluster add up to what was allocated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.living import SWIFT, ask, begin, come, live

from mainspring.control.state.history import Spending, usage
from mainspring.control.state.ledgers import DAY_S
from mainspring.control.store.schema import UNCOUNTED, accounts, attempts, charges
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import GoodputReport
from mainspring.domain.errors import Conflict, NotFound
from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.goodput import Goodput, TimeUse
from mainspring.domain.ids import AllocationId, ClusterName, JobId, TeamName
from mainspring.domain.job import LAB, Tier
from mainspring.domain.life import AttemptState
from mainspring.domain.team import Team

if TYPE_CHECKING:
    from pathlib import Path

    from tests.control.conftest import World

LEASE_S = Settings().lease_s


def _parts(told: Goodput) -> float:
    return sum(told.seconds.values())


def test_goodput_of_an_attempt_is_its_leads_ledger_with_what_came_before_and_after(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    submitted_s = world.clock.now_s()
    world.tick()
    granted_s = world.job(job).attempts[0].granted_s
    world.clock.advance(9.0)
    world.register(job)
    formed_s = world.clock.now_s()
    world.clock.advance(100.0)
    ledger = {"startup": 20.0, "productive": 160.0, "snapshot": 20.0}
    world.beat(job, step=9, seconds=ledger)
    told = world.control.accounts.of_job(job)
    assert told.allocated_s == pytest.approx(2 * (world.clock.now_s() - granted_s))
    assert told.seconds[TimeUse.PRODUCTIVE] == 160.0
    assert told.seconds[TimeUse.STARTUP] == pytest.approx(20.0 + 2 * (formed_s - granted_s))
    assert told.seconds[TimeUse.RECOVERY] == pytest.approx(0.0, abs=1e-6)
    assert told.waited_s == pytest.approx(granted_s - submitted_s, abs=0.1)
    world.beat(job, step=9, seconds=ledger, outcome=AttemptState.SUCCEEDED)
    world.tick(3)
    after = world.control.accounts.of_job(job)
    assert after.seconds[TimeUse.WINDDOWN] > 0
    assert world.job(job).goodput == after


def test_goodput_of_an_attempt_whose_lead_never_spoke_is_start_up(world: World) -> None:
    job = world.submit()
    world.tick(2)
    world.clock.advance(50.0)
    told = world.control.accounts.of_job(job)
    assert told.seconds[TimeUse.STARTUP] == pytest.approx(told.allocated_s)
    assert told.ratio == 0.0


def test_goodput_keeps_the_ledger_of_a_lead_that_was_lost_and_counts_the_silence_as_recovery(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    begin(world, job)
    world.clock.advance(50.0)
    world.beat(job, step=5, seconds={"productive": 100.0})
    world.clock.advance(LEASE_S + 5.0)
    (name, order) = next(iter(world.orders_of(job).items()))
    ask(world, name, order, order.nodes[1], lost_epoch=1)
    world.epochs[world.job(job).attempts[0].id] = 2
    world.clock.advance(10.0)
    world.beat(job, step=6, seconds={"recovery": 8.0, "productive": 12.0})
    told = world.control.accounts.of_job(job)
    assert told.seconds[TimeUse.PRODUCTIVE] == pytest.approx(112.0)
    assert told.seconds[TimeUse.RECOVERY] == pytest.approx(8.0 + 2 * (LEASE_S + 5.0))


def test_goodput_counts_evictions_and_the_wait_of_a_job_in_the_queue(world: World) -> None:
    world.restart(policy=SWIFT)
    meek = world.submit(world.spec("meek", replicas=4, tier=Tier.OPPORTUNISTIC))
    begin(world, meek)
    other = world.submit(world.spec("other", replicas=4, tier=Tier.CRITICAL))
    begin(world, other)
    world.tick(8)
    world.submit(world.spec("urgent", replicas=4, tier=Tier.CRITICAL))
    world.tick()
    world.beat(meek, outcome=AttemptState.CANCELLED)
    world.tick(3)
    before = world.control.accounts.of_job(meek)
    assert before.preemptions == 1
    world.clock.advance(100.0)
    after = world.control.accounts.of_job(meek)
    assert after.waited_s == pytest.approx(before.waited_s + 100.0)
    assert after.allocated_s == before.allocated_s


def test_report_counts_every_attempt_by_team_and_by_cluster(world: World) -> None:
    vision = TeamName("vision")
    world.control.people.set_team(Team(name=LAB), world.admin)
    world.control.people.set_team(Team(name=vision, parent=LAB), world.admin)
    first = world.submit(world.spec("first", replicas=4, team=vision))
    second = world.submit(world.spec("second", replicas=4))
    for job in (first, second):
        begin(world, job)
        world.clock.advance(10.0)
        world.beat(job, seconds={"productive": 40.0})
    whole = world.control.accounts.report()
    assert (whole.attempts, sorted(whole.teams), sorted(whole.clusters)) == (2, ["lab", "vision"], ["east", "west"])
    for split_up in (whole.teams, whole.clusters):
        assert sum(part.allocated_s for part in split_up.values()) == pytest.approx(whole.whole.allocated_s)
    assert world.control.accounts.report(team=LAB).attempts == 2, "with the teams below it"
    assert world.control.accounts.report(team=vision).attempts == 1
    where = world.job(first).attempts[0].cluster
    assert world.control.accounts.report(cluster=where).attempts == 1
    assert world.control.accounts.report(since_s=world.clock.now_s()).attempts == 0
    with pytest.raises(NotFound, match="vision"):
        world.control.accounts.report(team=TeamName("vison"))
    with pytest.raises(NotFound, match="west"):
        world.control.accounts.report(cluster=ClusterName("wets"))


@pytest.mark.slow
def test_accounts_say_what_looking_at_every_attempt_says(world: World) -> None:
    """Also of a part of a day; and what teams used and spent is the same."""
    world.clock.advance(DAY_S - world.clock.now_s() % DAY_S - 3_600.0)  # Late in the evening.
    begun_s = world.clock.now_s()
    budget = (Team(name=LAB, dollars_max=1e6),)
    world.control.people.set_team(budget[0])
    for name, wait_s in (("evening", 1_800.0), ("night", 7_200.0), ("morning", 7_200.0)):
        begin(world, job := world.submit(world.spec(name, replicas=4)))
        world.clock.advance(wait_s)
        world.beat(job, seconds={"productive": 40.0})
        world.succeed(job)
    begin(world, world.submit(world.spec("runs")))

    def seen() -> tuple[list[GoodputReport], Mapping[TeamName, float], Mapping[TeamName, float]]:
        now_s, spending = world.clock.now_s(), Spending()
        reports = [
            world.control.accounts.report(since_s=since_s, cluster=ClusterName("west"))
            for since_s in (0.0, begun_s, begun_s + 60.0, begun_s + DAY_S)
        ]
        with world.control.store.read() as connection:
            spending.reach(connection, budget, now_s)
            return reports, usage(connection, now_s), spending.totals(budget, (), now_s)

    reports, used, spent = seen()
    with world.control.store.write() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(attempts).where(UNCOUNTED)).scalar_one() == 1
        for table in (accounts, charges):
            connection.execute(sa.delete(table))
        connection.execute(sa.update(attempts).values(counted=False))
    again, used_again, spent_again = seen()
    assert [report.attempts for report in reports] == [4, 4, 3, 0]
    for one, other in zip(reports, again, strict=True):
        assert (one.attempts, sorted(one.teams)) == (other.attempts, sorted(other.teams))
        assert one.whole.seconds == pytest.approx(other.whole.seconds)
        assert one.whole.waited_s == pytest.approx(other.whole.waited_s)
    assert used == pytest.approx(used_again)
    assert spent == pytest.approx(spent_again)
    assert spent[LAB] > 0.0


HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), st.dictionaries(st.sampled_from([use.value for use in TimeUse]), st.floats(0, 1e4))),
        st.tuples(st.just("wait"), st.floats(0, 100)),
        st.tuples(st.just("jump"), st.floats(-100, 100)),
        st.tuples(st.just("tick"), st.integers(1, 4)),
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.tuples(st.just("lead"), st.integers(0, 3)),
        st.tuples(st.just("crowd"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.sampled_from([AttemptState.SUCCEEDED, AttemptState.LOST])),
        st.tuples(st.just("stop"), st.none()),
    ),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 4)
@given(happenings=HAPPENINGS)
def test_goodput_adds_up_to_the_time_allocated_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, world_type: type[World], happenings: list[tuple[str, object]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("world")
    world = world_type(folder)
    try:
        world.restart(policy=SWIFT)
        job = world.submit(world.spec("wide", replicas=4, replicas_min=2, tier=Tier.OPPORTUNISTIC))
        world.tick(2)
        for what, how in happenings:
            _happen(world, job, what, how)
            _check_law(world, job)
        world.tick(3)
        _check_law(world, job)
    finally:
        world.control.store.close()


def _happen(world: World, job: JobId, what: str, how: object) -> None:
    match what, how:
        case "wait", float():
            world.clock.advance(how)
        case "jump", float():
            world.clock.jump(how)
        case "tick", int():
            world.tick(how)
        case "crowd", int():
            world.submit(world.spec("crowd", replicas=how, tier=Tier.CRITICAL))
        case "stop", None:
            world.control.steering.stop(job, world.admin)
        case _ if world.job(job).attempts and (alive := live(world, job)):
            with suppress(Conflict):
                _happen_to_agents(world, job, alive, what, how)
        case _:
            pass


def _happen_to_agents(world: World, job: JobId, alive: dict[AllocationId, LaunchOrder], what: str, how: object) -> None:
    attempt = world.job(job).attempts[-1]
    match what, how:
        case "beat", dict():
            come(world, job)
            world.beat(job, seconds=how)
        case "lose", int():
            world.clusters[attempt.cluster].inner.end_agent(sorted(alive)[how % len(alive)], 0, exit_code=-9)
        case "lead", int():
            name = sorted(alive)[how % len(alive)]
            world.clock.advance(LEASE_S)
            epoch = world.epochs.get(attempt.id, 1)
            orders = ask(world, name, alive[name], alive[name].nodes[0], lost_epoch=epoch)
            world.epochs[attempt.id] = max(1, orders.epoch)
        case "end", AttemptState():
            world.beat(job, outcome=how)
        case _:
            raise AssertionError(what)


def _check_law(world: World, job: JobId) -> None:
    told = world.control.accounts.of_job(job)
    view, now_s = world.job(job), world.clock.now_s()
    assert _parts(told) == pytest.approx(told.allocated_s, rel=1e-6, abs=1e-6)
    assert min(told.seconds.values(), default=0.0) >= 0
    longest_s = sum(4 * max(0.0, (attempt.ended_s or now_s) - attempt.granted_s) for attempt in view.attempts)
    assert told.allocated_s <= longest_s + 1e-6 or any(attempt.ended_s is None for attempt in view.attempts)
    report = world.control.accounts.report()
    assert _parts(report.whole) == pytest.approx(report.whole.allocated_s, rel=1e-6, abs=1e-6)
    assert report.whole.allocated_s >= told.allocated_s - 1e-6
