"""Services: what is decided for their replicas, how many there are to be, and what the controller makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mainspring.control.loop.services.deciding import (
    GATE_S,
    READY_S,
    ROOM_S,
    SILENT_S,
    Decision,
    ReplicaSeen,
    decide,
)
from mainspring.control.loop.services.load import DOWN_S, UP_S, Load
from mainspring.control.store.services.records import Service, Version
from mainspring.domain.answers import NewScale, NewService, NewVersion, ServicePhase, ServiceView
from mainspring.domain.errors import Conflict, ImpossibleJob, InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import JobId, NodeName, TeamName
from mainspring.domain.job import LAB, JobKind, JobSpec, Option, Role
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import Heartbeat, RankStatus, Serving
from mainspring.domain.wire.tickets import SERVICE_SECRET, TICKET_S, is_ticket

if TYPE_CHECKING:
    from tests.control.conftest import World

NOW_S = 10_000.0
SPEC = JobSpec(name="pick", kind=JobKind.SERVICE, roles=(Role(command=("serve",), options=(Option(chip="gpu"),)),))  # type: ignore[arg-type]


def _service(wanted: int = 2, *, version: int = 1, before: int | None = None) -> Service:
    """A service that wants so many replicas, perhaps in the middle of an update."""
    return Service(
        name="pick",
        team=LAB,
        owner="ada",
        made_s=0.0,
        scale=NewScale(replicas=wanted),
        wanted=wanted,
        version=Version(number=version, spec=SPEC, since_s=0.0),
        before=None if before is None else Version(number=before, spec=SPEC, since_s=0.0),
        versions=version,
    )


def _replica(job: str, version: int = 1, *, ready: bool = True, **facts: object) -> ReplicaSeen:
    """One that was placed long ago, and answers if `ready`."""
    known: dict[str, object] = {"state": JobState.RUNNING, "made_s": 0.0, "granted_s": NOW_S - 100.0}
    known |= {"ready_s": NOW_S - 50.0, "silent_s": 1.0} if ready else {}
    return ReplicaSeen(job=JobId(job), version=version, **known | facts)  # type: ignore[arg-type]


def _stopped(decided: Decision) -> list[str]:
    return [job for job, _ in decided.stop]


# ------------------------------------------------------------ what is decided


def test_replicas_of_a_service_are_made_one_after_the_other_has_its_place() -> None:
    assert decide(_service(), (), NOW_S).start
    waits = _replica("a", ready=False, state=JobState.QUEUED, granted_s=None)
    assert not decide(_service(), (waits,), NOW_S).start
    assert decide(_service(), (_replica("a", ready=False),), NOW_S).start
    assert decide(_service(), (_replica("a"), _replica("b")), NOW_S) == Decision(service=_service())
    assert decide(_service(3), (_replica("a"), _replica("b")), NOW_S).stop == ()


def test_replicas_beyond_those_wanted_end_the_unready_first_then_the_youngest() -> None:
    old, young = _replica("old"), _replica("young", made_s=10.0)
    warming = _replica("warming", ready=False, made_s=5.0)
    assert _stopped(decide(_service(2), (old, warming, young), NOW_S)) == ["warming"]
    assert _stopped(decide(_service(1), (old, warming, young), NOW_S)) == ["warming", "young"]


def test_a_replica_that_ends_is_replaced_later_and_later_unless_others_answer() -> None:
    ends = [_replica(f"r{at}", ready=False, state=JobState.FAILED, ended_s=NOW_S - 15.0) for at in range(2)]
    assert decide(_service(1), ends[:1], NOW_S).start
    assert not decide(_service(1), ends, NOW_S).start
    assert decide(_service(1), ends, NOW_S + 10.0).start
    assert decide(_service(2), [*ends, _replica("well")], NOW_S).start
    assert decide(_service(1), [replace(one, asked=True) for one in ends], NOW_S).start


def test_a_replica_that_hangs_or_never_answers_is_stopped() -> None:
    hung = _replica("hung", silent_s=SILENT_S + 1.0)
    never = _replica("never", ready=False, granted_s=NOW_S - READY_S - 1.0)
    assert _stopped(decide(_service(2), (hung, never), NOW_S)) == ["hung", "never"]


def test_an_update_replaces_one_replica_at_a_time_and_only_once_the_new_one_has_answered_for_a_while() -> None:
    service, old = _service(2, version=2, before=1), (_replica("a"), _replica("b"))
    decided = decide(service, old, NOW_S)
    assert (decided.start, decided.stop) == (True, ())
    fresh = _replica("c", 2, ready_s=NOW_S - GATE_S / 2)
    decided = decide(service, (*old, fresh), NOW_S)
    assert (decided.start, decided.stop) == (False, ())
    decided = decide(service, (*old, fresh), NOW_S + GATE_S)
    assert (decided.start, _stopped(decided)) == (True, ["a"])
    both = (_replica("c", 2), _replica("d", 2))
    decided = decide(service, (old[1], *both), NOW_S)
    assert (decided.start, _stopped(decided)) == (False, ["b"])
    done = decide(service, both, NOW_S).service
    assert (done.version.number, done.before) == (2, None)


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (_replica("c", 2, ready=False, state=JobState.FAILED, reason="no such checkpoint"), "no such checkpoint"),
        (_replica("c", 2, ready=False, granted_s=NOW_S - READY_S - 1.0), "does not answer"),
        (_replica("c", 2, silent_s=SILENT_S + 1.0), "does not answer"),
        (_replica("c", 2, answered=80, missed=20), "misses 20% of its deadlines, the version before 1%"),
    ],
)
def test_an_update_that_fails_goes_back_by_itself_and_says_why(fails: ReplicaSeen, words: str) -> None:
    service = _service(1, version=2, before=1)
    old = _replica("a", answered=990, missed=10)
    decided = decide(service, (old, fails), NOW_S)
    assert (decided.service.version.number, decided.service.before) == (1, None)
    assert words in decided.service.reason
    after = decide(decided.service, (old, fails), NOW_S)
    assert "a" not in _stopped(after)
    assert not after.start


def test_an_update_without_room_beside_makes_room_but_never_ends_the_last_replica() -> None:
    waits = _replica("c", 2, ready=False, state=JobState.QUEUED, granted_s=None, made_s=NOW_S - ROOM_S - 1.0)
    service = _service(2, version=2, before=1)
    assert _stopped(decide(service, (_replica("a"), _replica("b"), waits), NOW_S)) == ["a"]
    assert _stopped(decide(service, (_replica("a"), _replica("b", 2), waits), NOW_S)) == ["a"]
    assert _stopped(decide(replace(service, wanted=1), (_replica("b"), waits), NOW_S)) == []


# ------------------------------------------------------------ how many there are to be


def _loaded(load: Load, scale: NewScale, before: int, in_flight: int, since_s: float, for_s: float) -> int:
    for at in range(int(for_s) + 1):
        load.add(in_flight, since_s + at)
        before = load.wanted(scale, before, since_s + at)
    return before


def test_replicas_follow_the_load_up_in_seconds_and_down_slowly_within_their_bounds() -> None:
    scale, load = NewScale(replicas=2, replicas_max=8, requests_each=2.0), Load()
    assert _loaded(load, scale, 2, 0, 0.0, 10.0) == 2
    assert _loaded(load, scale, 2, 12, 11.0, UP_S) == 6
    assert _loaded(load, scale, 6, 100, 18.0, UP_S) == 8
    assert _loaded(load, scale, 8, 0, 25.0, DOWN_S - 10.0) == 8
    assert _loaded(load, scale, 8, 0, 25.0 + DOWN_S - 9.0, 20.0) == 2


def test_a_load_that_jumps_at_most_doubles_the_replicas_at_once_and_one_moment_moves_nothing() -> None:
    scale, load = NewScale(replicas=1, replicas_max=64, requests_each=1.0), Load()
    load.add(50, 0.0)
    assert load.wanted(scale, 10, 0.0) == 20
    calm = Load()
    assert _loaded(calm, scale, 4, 1, 0.0, 5.0) == 4
    calm.add(9, 6.0)
    assert calm.wanted(scale, 4, 6.0) == 4


def test_a_service_of_fixed_size_stays_at_it() -> None:
    scale, load = NewScale(replicas=3), Load()
    assert _loaded(load, scale, 1, 100, 0.0, 10.0) == 3


# ------------------------------------------------------------ the controller


class Replicas:
    """Leads of a service's replicas, as a test has them answer."""

    def __init__(self, world: World, name: str = "pick") -> None:
        self.world, self.name = world, name
        self.unready: set[JobId] = set()
        self.in_flight = 0

    @property
    def view(self) -> ServiceView:
        return self.world.control.services.service(self.name)

    def live(self) -> list[JobId]:
        """Those that have a place."""
        return [one.job for one in self.view.members if one.state in (JobState.STARTING, JobState.RUNNING)]

    def beat(self, job: JobId) -> None:
        attempt = self.world.job(job).attempts[-1]
        node = attempt.nodes[0]
        serving = Serving(address=f"ws://{node}:8000", ready=job not in self.unready, in_flight=self.in_flight)
        rank = RankStatus(rank=0, node=NodeName(node), pid=7, alive=True, step=-1, serving=serving)
        told = Heartbeat(attempt=attempt.id, epoch=1, generation=1, step=-1, metrics={}, ranks=(rank,), events=())
        self.world.send(job, told)

    def settle(self, ticks: int = 8) -> ServiceView:
        """Lets time pass while every replica registers and reports; those asked to end are gone soon after."""
        for _ in range(ticks):
            self.world.tick()
            for one in self.view.members:
                if one.state in (JobState.STARTING, JobState.RUNNING):
                    if one.state is JobState.STARTING:
                        self.world.register(one.job)
                    self.beat(one.job)
        return self.view


def _served(world: World, *, replicas: int = 2, replicas_max: int = 0) -> Replicas:
    spec = replace(world.spec("pick"), kind=JobKind.SERVICE)
    world.control.services.make(NewService(spec=spec, scale=NewScale(replicas=replicas, replicas_max=replicas_max)))
    return Replicas(world)


@pytest.mark.slow
def test_a_service_comes_up_on_nodes_of_its_own_and_tells_where_it_is_called(world: World) -> None:
    service = _served(world)
    assert service.view.phase is ServicePhase.STARTING
    view = service.settle()
    assert (view.phase, view.ready, view.wanted) == (ServicePhase.SERVING, 2, 2)
    assert len({one.node for one in view.members}) == 2
    assert [one.address for one in world.control.services.replicas("pick")] == [one.address for one in view.members]


@pytest.mark.slow
def test_each_replica_has_a_secret_of_its_own_and_who_may_call_it_gets_tickets_that_end(world: World) -> None:
    service = _served(world)
    service.settle()
    secrets = {}
    for job in service.live():
        (orders,) = world.register(job)
        (role,) = orders.roles
        assert role.secret_files == (SERVICE_SECRET,)
        assert orders.secrets[SERVICE_SECRET] not in repr(orders)
        secrets[job] = orders.secrets[SERVICE_SECRET]
    now_s = world.clock.now_s()
    told = world.control.services.replicas("pick")
    assert len(set(secrets.values())) == len(told) == 2
    for one in told:
        for job, secret in secrets.items():
            assert is_ticket(secret, one.ticket, now_s + TICKET_S - 2.0) is (job == one.job)
        assert not is_ticket(secrets[one.job], one.ticket, now_s + TICKET_S + 2.0)
        assert one.ticket not in repr(one)
    job = world.submit()
    world.tick(2)
    assert all((one.secrets, one.roles[0].secret_files) == ({}, ()) for one in world.register(job))


@pytest.mark.slow
def test_a_replica_whose_node_is_lost_is_replaced_while_the_other_serves(world: World) -> None:
    service = _served(world)
    first, second = service.settle().members
    world.end_agents(first.job, exit_code=1, reason="the node is gone")
    view = service.settle(12)
    assert view.ready == 2
    stayed = next(one for one in view.members if one.job == second.job)
    assert len(world.job(second.job).attempts) == 1
    assert stayed.ready
    assert len({one.node for one in view.members if one.ready}) == 2


@pytest.mark.slow
def test_a_service_is_scaled_by_hand_and_by_its_load(world: World) -> None:
    service = _served(world, replicas=1, replicas_max=3)
    assert service.settle().ready == 1
    service.in_flight = 5
    view = service.settle(12)
    assert (view.ready, len(view.members)) == (3, 3)
    service.in_flight = 0
    world.control.services.scale("pick", NewScale(replicas=1))
    view = service.settle()
    assert (view.wanted, view.ready) == (1, 1)
    with pytest.raises(InvalidInput, match="rising"):
        NewScale(replicas=3, replicas_max=2)


@pytest.mark.slow
def test_an_update_rolls_over_and_one_that_fails_goes_back_while_the_service_answers(world: World) -> None:
    service = _served(world)
    service.settle()
    spec = replace(service.view.spec, duration_s=60.0)
    world.control.services.update("pick", NewVersion(spec=spec, reason="better grasps"))
    assert service.view.phase is ServicePhase.UPDATING
    view = service.settle(40)
    assert (view.version, view.version_before, view.ready) == (2, None, 2)
    assert {one.version for one in view.members if one.ready} == {2}
    world.control.services.update("pick", NewVersion(spec=replace(spec, duration_s=70.0)))
    with pytest.raises(Conflict, match="version 3 on its way"):
        world.control.services.update("pick", NewVersion(spec=replace(spec, duration_s=80.0)))
    for _ in range(3):
        service.settle(1)
    (fresh,) = [one for one in service.view.members if one.version == 3]
    service.unready.add(fresh.job)
    world.beat(fresh.job, outcome=AttemptState.FAILED, reason="it does not load")
    for _ in range(12):
        service.settle(1)
        assert service.view.ready >= 2
    view = service.view
    assert (view.version, view.phase) == (2, ServicePhase.SERVING)
    assert "went back to version 2" in view.reason


@pytest.mark.slow
def test_a_server_that_was_away_does_not_hold_its_silence_against_replicas(world: World) -> None:
    service = _served(world)
    before = service.settle()
    world.loop.resign()
    world.control.store.close()
    world.clock.advance(10 * SILENT_S)
    world.restart()
    world.tick(2)
    view = service.settle()
    assert [one.job for one in view.members] == [one.job for one in before.members]
    assert view.ready == 2


@pytest.mark.slow
def test_a_service_that_is_stopped_ends_with_all_its_replicas_and_its_name_is_free(world: World) -> None:
    service = _served(world)
    jobs = [one.job for one in service.settle().members]
    with pytest.raises(Conflict, match="there already"):
        _served(world)
    world.control.services.stop("pick", reason="enough")
    for job in jobs:
        world.end_agents(job, exit_code=0)
    world.tick(4)
    assert [world.job(job).state for job in jobs] == [JobState.CANCELLED] * 2
    with pytest.raises(NotFound, match="ms service ls"):
        world.control.services.service("pick")
    _served(world)


def test_a_service_is_its_teams_alone_and_what_could_never_run_is_refused(world: World) -> None:
    world.tick()
    world.control.people.set_team(Team(name=LAB))
    world.control.people.set_team(Team(name=TeamName("arms"), parent=LAB))
    world.control.people.set_team(Team(name=TeamName("legs"), parent=LAB))
    spec = replace(world.spec("pick", team=TeamName("arms")), kind=JobKind.SERVICE)
    asked = NewService(spec=spec, scale=NewScale(replicas=1))
    stranger = world.control.people.caller(world.token(TeamRole.MEMBER, team="legs", holder="bo"))
    looker = world.control.people.caller(world.token(TeamRole.VIEWER, team="arms", holder="cy"))
    with pytest.raises(NotAllowed):
        world.control.services.make(asked, stranger)
    world.control.services.make(asked)
    assert world.control.services.replicas("pick", looker) == ()
    for call in (world.control.services.service, world.control.services.replicas):
        with pytest.raises(NotFound):
            call("pick", stranger)
    with pytest.raises(NotAllowed):
        world.control.services.scale("pick", NewScale(replicas=2), looker)
    huge = replace(
        spec,
        name="huge",
        roles=(replace(spec.roles[0], options=(Option(chip=spec.roles[0].options[0].chip, chips=64),)),),
    )
    with pytest.raises(ImpossibleJob):
        world.control.services.make(NewService(spec=huge, scale=NewScale(replicas=1)))
    with pytest.raises(InvalidInput, match="kind service"):
        NewService(spec=world.spec(), scale=NewScale(replicas=1))
