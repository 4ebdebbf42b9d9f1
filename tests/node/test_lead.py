"""The lead's mind, without a process in sight: a small world obeys its effects and tells it what happens."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId, NodeName, RoleName
from mainspring.domain.job import Code
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EventKind
from mainspring.node.effects import (
    CoordinatorsUp,
    DurableSeen,
    Effect,
    FindDurable,
    Instant,
    Joined,
    Left,
    ManifestWritten,
    News,
    Said,
    StartCoordinators,
    StopAsked,
    Tell,
    Tick,
    WriteManifest,
)
from mainspring.node.lead import Lead, Phase

MAIN = RoleName("main")
NOTHING: Mapping[str, tuple[int, ...]] = {}


def orders(agents: int, restarts_max: int = 8, furthest_step: int = -1) -> wire.Orders:
    return wire.Orders(
        ready=True,
        attempt=AttemptId("attempt-1"),
        job=JobId("job-1"),
        epoch=1,
        agent=0,
        agents=agents,
        lead=True,
        lead_address="127.0.0.1:1",
        ranks=tuple(
            wire.RankPlace(rank=rank, role=MAIN, role_rank=rank, role_size=agents, agent=rank) for rank in range(agents)
        ),
        roles=(wire.RoleOrders(role=MAIN, command=("true",), environment={}),),
        code=Code(),
        objects_url="",
        restarts_max=restarts_max,
        lease_s=10.0,
        heartbeat_s=1.0,
        furthest_step=furthest_step,
    )


class World:
    """One rank an agent; obeys every effect at once and keeps what was told."""

    def __init__(
        self, agents: int = 2, *, durable: tuple[int, ...] = (), restarts_max: int = 8, furthest_step: int = -1
    ) -> None:
        self.now_s = 100.0
        self.lead = Lead(orders(agents, restarts_max, furthest_step), self.now())
        self.masters: dict[int, dict[str, str]] = {}
        self.agents = agents
        self.durable: tuple[int, ...] | None = durable
        self.bad: dict[tuple[int, int], bool] = {}  # (agent, step) -> corrupt
        self.told: list[Tell] = []
        self.started: list[int] = []
        self.prepared: dict[int, set[int]] = {}
        self.manifests: list[WriteManifest] = []
        self.arena: dict[int, set[int]] = {agent: set() for agent in range(agents)}
        self.line_down: set[int] = set()
        self.store_answers = True

    def now(self) -> Instant:
        return Instant(now_s=1e9 + self.now_s, monotonic_s=self.now_s)

    def tell(self, news: News) -> None:
        pending: list[News] = [news]
        while pending:
            for effect in self.lead.handle(pending.pop(0), self.now()):
                pending += self.obey(effect)

    def obey(self, effect: Effect) -> list[News]:
        match effect:
            case FindDurable():
                return [DurableSeen(steps=self.durable, reason="away")]
            case StartCoordinators(generation=generation):
                return [CoordinatorsUp(generation=generation, addresses={})]
            case WriteManifest():
                self.manifests.append(effect)
                return [ManifestWritten(step=effect.step, size_bytes=1)]
            case Tell(agent=agent, message=message):
                if agent in self.line_down:
                    return []
                self.told.append(effect)
                return [Said(agent=agent, message=answer) for answer in self.agent_answers(agent, message)]

    def agent_answers(self, agent: int, message: object) -> list[object]:
        match message:
            case wire.PrepareGeneration():
                self.arena[agent] = {step for step in self.arena[agent] if step <= message.step}
                corrupt = self.bad.get((agent, message.step))
                if corrupt is None:
                    self.prepared.setdefault(message.generation, set()).add(agent)
                return [
                    wire.GenerationPrepared(
                        generation=message.generation,
                        agent=agent,
                        ready=corrupt is None,
                        reason="" if corrupt is None else "bad bytes",
                        corrupt=bool(corrupt),
                        masters=self.masters.get(agent, {}),
                    )
                ]
            case wire.StartRanks():
                assert self.prepared[message.generation] == set(range(self.agents)), "ranks start when all are ready"
                self.started.append(message.generation)
                return [wire.RankStarted(generation=message.generation, rank=agent, pid=1000 + agent)]
            case wire.StoreStep():
                if message.step not in self.arena[agent]:
                    return [wire.StoreFailed(rank=agent, step=message.step, reason="gone")]
                if not self.store_answers:
                    return [wire.StoreFailed(rank=agent, step=message.step, reason="disk full")]
                return [wire.ShardsStored(rank=agent, step=message.step, shards=(), state={"from": agent})]
            case wire.EndAgent():
                return [wire.AgentDrained(agent=agent)]
            case _:
                return []

    def join_all(self) -> None:
        for agent in range(self.agents):
            self.join(agent)

    def join(self, agent: int) -> None:
        self.line_down.discard(agent)
        steps = {agent: tuple(sorted(self.arena[agent]))}
        self.tell(Joined(agent=agent, node=NodeName(f"n{agent}"), arena_steps=steps))

    def say(self, agent: int, message: object) -> None:
        self.tell(Said(agent=agent, message=message))

    def step_all(self, step: int) -> None:
        for rank in range(self.agents):
            self.say(rank, wire.RankProgress(generation=self.lead.generation, rank=rank, step=step, time_s=0.0))

    def snapshot(self, rank: int, step: int) -> None:
        self.arena[rank] = set(sorted({*self.arena[rank], step})[-2:])
        self.say(rank, wire.SnapshotTaken(rank=rank, step=step))

    def snapshot_all(self, step: int) -> None:
        for rank in range(self.agents):
            self.snapshot(rank, step)

    def exit(self, rank: int, code: int, words: str = "") -> None:
        self.say(rank, wire.RankExited(generation=self.lead.generation, rank=rank, exit_code=code, last_words=words))

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(Tick())

    def of_kind(self, kind: EventKind) -> list[wire.Detail]:
        return [event.detail for event in self.lead.events if event.kind is kind]

    def outcome(self) -> AttemptState | None:
        return self.lead.outcome

    def resumed(self) -> list[tuple[object, object]]:
        return [(detail["step"], detail["source"]) for detail in self.of_kind(EventKind.GENERATION_RESUMED)]


def test_lead_whose_ranks_all_end_well_succeeds() -> None:
    world = World()
    world.join_all()
    world.step_all(1)
    world.exit(0, 0)
    assert world.outcome() is None
    world.exit(1, 0)
    assert world.lead.outcome is AttemptState.SUCCEEDED
    assert world.lead.over
    assert world.of_kind(EventKind.LEAD_ENDED)[0]["outcome"] == "succeeded"


def test_lead_with_an_agent_missing_starts_nothing_and_gives_up_in_the_end() -> None:
    world = World()
    world.join(0)
    assert world.told == []
    world.pass_s(601)
    assert world.lead.outcome is AttemptState.LOST
    assert "agents 1 never joined" in world.lead.reason


def test_lead_resumes_at_the_newest_step_every_arena_holds() -> None:
    world = World()
    world.join_all()
    world.step_all(12)
    world.snapshot_all(10)
    world.snapshot(0, 12)
    world.exit(1, -9)
    assert world.resumed() == [(-1, ""), (10, "arena")]
    assert world.of_kind(EventKind.RANK_EXITED)[0]["step"] == 12


def test_lead_of_a_new_attempt_resumes_at_the_newest_durable_step() -> None:
    world = World(durable=(20, 40))
    world.join_all()
    assert world.resumed() == [(40, "store")]


def test_lead_told_of_a_damaged_durable_step_passes_over_it_and_says_so() -> None:
    world = World(durable=(20, 40))
    world.bad[1, 40] = True
    world.join_all()
    assert world.resumed() == [(20, "store")]
    assert [detail["step"] for detail in world.of_kind(EventKind.CHECKPOINT_CORRUPT)] == [40]


def test_lead_with_every_durable_step_damaged_starts_fresh() -> None:
    world = World(durable=(20,))
    world.bad[0, 20] = True
    world.join_all()
    assert world.resumed() == [(-1, "")]


def test_lead_that_saves_a_step_anew_after_it_was_damaged_replaces_the_manifest() -> None:
    world = World(durable=(20, 40))
    world.bad[1, 40] = True
    world.join_all()
    world.snapshot_all(40)
    assert [(manifest.step, manifest.replace) for manifest in world.manifests] == [(40, True)]


def test_lead_whose_store_does_not_answer_never_starts_fresh() -> None:
    world = World()
    world.durable = None
    world.join_all()
    for _ in range(20):
        world.pass_s(61)
    assert world.started == []
    assert world.lead.outcome is AttemptState.LOST
    assert "does not answer" in world.lead.reason


def test_lead_whose_store_answers_late_resumes_from_it() -> None:
    world = World()
    world.durable = None
    world.join_all()
    world.durable = (30,)
    world.pass_s(2)
    assert world.resumed() == [(30, "store")]


def test_lead_with_a_step_that_cannot_be_fetched_now_tries_it_again() -> None:
    world = World(durable=(20, 40))
    world.bad[1, 40] = False
    world.join_all()
    del world.bad[1, 40]
    world.pass_s(2)
    assert world.resumed() == [(40, "store")]


def test_lead_of_a_program_that_fails_alike_three_times_quotes_the_first_error() -> None:
    world = World()
    world.join_all()
    for words in ("KeyError: 'gripper'", "later words", "last words"):
        world.exit(0, 1, words)
    assert world.lead.outcome is AttemptState.FAILED
    assert "KeyError: 'gripper'" in world.lead.reason


def test_lead_of_a_program_that_makes_progress_between_failures_goes_on_to_the_limit() -> None:
    world = World(restarts_max=4)
    world.join_all()
    for step in range(4):
        world.step_all(step)
        world.exit(0, -9)
        assert world.outcome() is None
    world.step_all(10)
    world.exit(0, -9)
    assert world.lead.outcome is AttemptState.LOST


def test_lead_that_loses_an_agent_longer_than_its_lease_is_lost() -> None:
    world = World()
    world.join_all()
    world.line_down.add(1)
    world.tell(Left(agent=1))
    world.pass_s(14)
    assert world.outcome() is None
    world.pass_s(2)
    assert world.lead.outcome is AttemptState.LOST
    assert world.of_kind(EventKind.AGENT_LOST) == [{"agent": 1, "node": "n1"}]


def test_lead_whose_agent_comes_back_in_time_goes_on() -> None:
    world = World()
    world.join_all()
    world.line_down.add(1)
    world.tell(Left(agent=1))
    world.pass_s(5)
    world.join(1)
    world.pass_s(60)
    world.exit(0, 0)
    world.exit(1, 0)
    assert world.lead.outcome is AttemptState.SUCCEEDED
    assert world.of_kind(EventKind.GENERATION_PREPARING) == [{"generation": 1, "cause": "the first"}]


def test_lead_told_to_stop_waits_for_its_ranks_and_saves_their_last_step() -> None:
    world = World()
    world.join_all()
    world.tell(StopAsked(grace_s=20.0))
    world.snapshot_all(33)
    world.exit(0, wire.EXIT_PREEMPTED)
    world.exit(1, wire.EXIT_PREEMPTED)
    assert world.lead.outcome is AttemptState.CANCELLED
    assert [manifest.step for manifest in world.manifests] == [33]
    assert world.lead.over


def test_lead_told_to_stop_ends_ranks_that_outlive_the_grace() -> None:
    world = World()
    world.join_all()
    world.tell(StopAsked(grace_s=20.0))
    world.pass_s(21)
    assert world.lead.outcome is AttemptState.CANCELLED


def test_lead_with_a_store_that_is_full_says_so_and_trains_on() -> None:
    world = World()
    world.join_all()
    world.store_answers = False
    world.snapshot_all(10)
    world.pass_s(11)
    assert world.of_kind(EventKind.CHECKPOINT_FAILED) == [{"step": 10, "reason": "disk full"}]
    world.store_answers = True
    world.snapshot_all(20)
    world.pass_s(11)
    assert [detail["step"] for detail in world.of_kind(EventKind.CHECKPOINT_DURABLE)] == [20]
    assert world.manifests[0].state == {"from": 0}


@pytest.mark.parametrize("comes_back", [True, False])
def test_lead_whose_store_is_away_at_the_end_tries_the_last_save_again_for_a_while(*, comes_back: bool) -> None:
    world = World()
    world.join_all()
    world.store_answers = False
    world.snapshot_all(10)
    for rank in range(2):
        world.exit(rank, 0)
    world.pass_s(20)
    assert world.lead.phase is Phase.STORING
    world.store_answers = comes_back
    for _ in range(8):
        world.pass_s(61)
    assert [manifest.step for manifest in world.manifests] == [10] * comes_back
    assert (world.lead.over, len(world.of_kind(EventKind.CHECKPOINT_FAILED))) == (True, 1)


def test_lead_whose_kept_steps_are_all_damaged_does_not_try_those_long_deleted() -> None:
    world = World()
    world.join_all()
    for step in range(10, 60, 10):
        world.pass_s(11)
        world.snapshot_all(step)
    world.arena = {agent: set() for agent in range(2)}
    world.bad = {(0, step): True for step in range(10, 60, 10)}
    world.exit(0, -9)
    assert [detail["step"] for detail in world.of_kind(EventKind.CHECKPOINT_CORRUPT)] == [50, 50, 40, 40, 30]
    assert world.resumed()[-1] == (-1, "")


def test_lead_of_a_later_attempt_has_caught_up_once_it_passes_the_furthest_step_of_the_earlier_ones() -> None:
    world = World(durable=(20,), furthest_step=30)
    world.join_all()
    world.step_all(21)
    assert world.lead.step == 21
    world.step_all(30)
    assert world.of_kind(EventKind.CAUGHT_UP) == []
    world.step_all(31)
    assert world.of_kind(EventKind.CAUGHT_UP) == [{"generation": 1, "step": 31}]


def test_lead_told_a_result_again_keeps_it_once() -> None:
    world = World()
    world.join_all()
    for sequence, value in ((1, "first"), (2, "second"), (1, "first"), (2, "second")):
        world.say(0, wire.RankResult(rank=0, values={"x": value}, sequence=sequence))
    assert world.of_kind(EventKind.RESULT) == [{"x": "first"}, {"x": "second"}]


def test_lead_tells_all_ranks_where_each_roles_first_rank_lives() -> None:
    world = World()
    world.masters = {1: {"sampler": "10.0.0.2:99"}}
    world.join_all()
    starts = [tell.message for tell in world.told if isinstance(tell.message, wire.StartRanks)]
    assert [start.masters for start in starts] == [{"sampler": "10.0.0.2:99"}] * 2


def test_lead_told_of_an_arena_without_room_says_so_once_a_step() -> None:
    world = World()
    world.join_all()
    for rank in range(2):
        world.say(rank, wire.StoreFailed(rank=rank, step=5, reason="no room"))
    assert world.of_kind(EventKind.CHECKPOINT_FAILED) == [{"step": 5, "reason": "no room"}]


def test_lead_saves_durably_no_more_often_than_its_pace_and_always_the_last() -> None:
    world = World()
    world.join_all()
    for step in range(1, 6):
        world.snapshot_all(step)
    assert [manifest.step for manifest in world.manifests] == [1]
    world.exit(0, 0)
    world.exit(1, 0)
    assert [manifest.step for manifest in world.manifests] == [1, 5]


def test_lead_ignores_shares_of_a_course_of_events_it_has_left() -> None:
    world = World()
    world.join_all()
    world.snapshot_all(10)
    world.pass_s(11)
    world.line_down = {0, 1}  # Nobody answers the next preparation: it stays open.
    world.snapshot(0, 12)
    world.exit(1, -9)
    world.say(1, wire.SnapshotTaken(rank=1, step=12))
    world.line_down = set()
    world.join_all()
    assert world.resumed()[-1] == (10, "arena")


FAULTS = st.lists(
    st.one_of(
        st.tuples(st.just("kill"), st.integers(0, 2)),
        st.tuples(st.just("drop"), st.integers(0, 2)),
        st.tuples(st.just("step"), st.integers(1, 3)),
        st.tuples(st.just("save"), st.integers(0, 2)),
        st.tuples(st.just("save all"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 12)),
        st.tuples(st.just("damage"), st.integers(0, 2)),
        st.tuples(st.just("store"), st.integers(0, 1)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(faults=FAULTS)
def test_lead_through_any_faults_numbers_its_events_resumes_what_exists_and_ends_well(
    faults: list[tuple[str, int]],
) -> None:
    world = World(agents=3, restarts_max=1_000)
    world.join_all()
    step = 0
    for what, which in faults:
        if world.lead.outcome is not None:
            break
        if what == "kill":
            world.step_all(step := step + 1)  # Progress between failures: no diagnosis of a hopeless program.
            world.exit(which, -9)
        elif what == "drop":
            world.line_down.add(which)
            world.tell(Left(agent=which))
            world.join(which)
        elif what == "step":
            world.step_all(step := step + which)
        elif what == "save":
            world.snapshot(which, step)
        elif what == "save all":
            world.snapshot_all(step)
        elif what == "wait":
            world.pass_s(float(which))
        elif what == "damage":
            world.bad = {(which, max(world.arena[which], default=0)): True}
        else:
            world.store_answers = bool(which)
        world.bad = {} if what == "kill" else world.bad
    world.store_answers, world.bad = True, {}
    for rank in range(3):
        world.exit(rank, 0)
    for _ in range(8):  # A save that failed is tried again after a while, and given up in the end.
        world.pass_s(61)
    assert world.lead.outcome is AttemptState.SUCCEEDED
    assert world.lead.over
    assert [event.sequence for event in world.lead.events] == list(range(1, len(world.lead.events) + 1))
    saved = {manifest.step for manifest in world.manifests}
    for resumed_step, source in world.resumed():
        assert source in ("", "arena") or resumed_step in saved
    assert world.lead.events[-1].kind is EventKind.LEAD_ENDED
