"""A small world: two clusters, one controller, virtual time; agents speak only when a test says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from tests.control.calling import Api, Served
from tests.control.serving import Lab

from mainspring.control import LAB_ITSELF, AgentAccess, Control, Loop, Settings, Step, create_app, listen, open_store
from mainspring.control.api_metrics import Metrics
from mainspring.control.api_streams import Followers
from mainspring.control.store.databases.backups import Maker, back_up
from mainspring.control.store.databases.opening import parsed_url
from mainspring.control.store.restores.restoring import restore
from mainspring.domain.answers import JobView, NewToken, Submit
from mainspring.domain.fleet import Inventory, LaunchOrder, Node
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Role
from mainspring.domain.life import AttemptState
from mainspring.domain.team import NoticeRules, TeamRole
from mainspring.domain.wire import Heartbeat, HeartbeatReply, LeadEvent, Orders, Register
from mainspring.planner import Policy
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.testing import FakeClock, FakeEngine, SeededDice

GPU = ChipName("gpu")
ADMIN = LAB_ITSELF


def inventory(name: str, *, nodes: int, chips: int, dollars: float, delegated: bool = False) -> Inventory:
    return Inventory(
        cluster=ClusterName(name),
        engine="fake",
        simulated=True,
        dollars_per_chip_hour={GPU: dollars},
        nodes=tuple(Node(name=NodeName(f"{name}-{index}"), chip=GPU, chips=chips) for index in range(nodes)),
        delegated=delegated,
    )


class World:
    """Everything a test of the controller touches."""

    admin = ADMIN

    def __init__(self, folder: Path, *, delegated: bool = False, url: str = "") -> None:
        self.url = url or f"sqlite:///{folder / 'store.db'}"
        self.keys = folder / "secrets.key"
        self.objects = folder / "objects"
        self.clock = FakeClock()
        inventories = [
            inventory("east", nodes=2, chips=2, dollars=3.0),
            inventory("west", nodes=4, chips=1, dollars=1.0, delegated=delegated),
        ]
        self.clusters = {
            one.cluster: SimulatedCluster(FakeEngine(one, self.clock), SeededDice(1, one.cluster))
            for one in inventories
        }
        self.east, self.west = self.clusters[ClusterName("east")], self.clusters[ClusterName("west")]
        self.west.inner.queueing = delegated
        self.sequences: dict[AttemptId, int] = {}
        self.epochs: dict[AttemptId, int] = {}
        self.starts = 0
        self.restart()

    def restart(self, *, policy: Policy | None = None, settings: Settings | None = None) -> None:
        """A new controller process on the same store."""
        self.starts += 1
        self.control = Control(
            store=open_store(self.url),
            engines=dict(self.clusters),
            clock=self.clock,
            dice=SeededDice(self.starts, "control"),
            access=AgentAccess(
                controller_urls=("http://127.0.0.1:1",),
                objects_url=f"file://{self.objects}",
                key="a key",
                secret_keys=self.keys,
            ),
            settings=settings or Settings(notices=NoticeRules(hosts=("chat.lab",))),
            policy=policy,
        )
        self.loop: Loop = self.control.new_loop()

    def token(self, role: TeamRole, *, team: str = LAB, holder: str = "ada", days: float | None = None) -> str:
        """A new token's secret."""
        asked = NewToken(holder=holder, team=TeamName(team), role=role, days=days)
        return self.control.people.new_token(asked).secret

    def tick(self, count: int = 1, *, seconds: float = 1.0) -> Step:
        step = Step.FOLLOWING
        for _ in range(count):
            step = self.loop.tick()
            self.clock.advance(seconds)
        return step

    def spec(
        self,
        name: str = "job",
        *,
        replicas: int = 1,
        replicas_min: int = 0,
        roles: int = 1,
        attempts_max: int = 4,
        spares: int = 0,
        **fields: Any,
    ) -> JobSpec:
        option = Option(chip=GPU, replicas=replicas, replicas_min=replicas_min)
        return JobSpec(
            name=name,
            roles=tuple(
                Role(name=RoleName(f"role-{index}"), command=("train",), options=(option,), spares=spares)
                for index in range(roles)
            ),
            attempts_max=attempts_max,
            **fields,
        )

    def submit(self, spec: JobSpec | None = None, *, key: str = "", count: int = 1) -> JobId:
        self.clock.advance(0.01)  # Jobs queue in the order they came.
        return self.control.submit(Submit(spec=spec or self.spec(), key=key, count=count), ADMIN).id

    def newest(self) -> int:
        """The sequence of the newest event."""
        return self.control.events(limit=1, newest=True)[-1].sequence

    def job(self, job: JobId) -> JobView:
        return self.control.job(job)

    def orders_of(self, job: JobId) -> dict[AllocationId, LaunchOrder]:
        """The newest attempt's orders, as its cluster took them."""
        newest = self.job(job).attempts[-1]
        orders = self.clusters[newest.cluster].orders
        return {name: order for name, order in sorted(orders.items()) if order.attempt == newest.id}

    def register(self, job: JobId) -> list[Orders]:
        """Lets every agent of the newest attempt register, twice, as they do; returns their last orders."""
        answers: list[Orders] = []
        for _ in range(2):
            answers = [
                self.control.register(
                    Register(allocation=name, node=node, address=f"{node}:1"), self.control.people.caller(order.token)
                )
                for name, order in self.orders_of(job).items()
                for node in order.nodes
            ]
        return answers

    def beat(
        self,
        job: JobId,
        *kinds: tuple[str, dict[str, str | int | float | bool]],
        step: int = 0,
        generation: int = 1,
        outcome: AttemptState | None = None,
        reason: str = "",
        seconds: Mapping[str, float] | None = None,
    ) -> HeartbeatReply:
        """Lets the newest attempt's lead report, with events told for the first time."""
        attempt = self.job(job).attempts[-1]
        events = []
        for kind, detail in kinds:
            self.sequences[attempt.id] = self.sequences.get(attempt.id, 0) + 1
            number = self.sequences[attempt.id]
            events.append(LeadEvent(sequence=number, time_s=self.clock.now_s(), kind=kind, detail=detail))
        return self.send(
            job,
            Heartbeat(
                attempt=attempt.id,
                epoch=self.epochs.get(attempt.id, 1),
                generation=generation,
                step=step,
                metrics={"loss": 1.0},
                ranks=(),
                events=tuple(events),
                outcome=outcome,
                reason=reason,
                seconds=seconds or {},
            ),
        )

    def send(self, job: JobId, beat: Heartbeat) -> HeartbeatReply:
        self.last_beat = beat
        order = next(iter(self.orders_of(job).values()))
        return self.tell(beat, order)

    def tell(self, beat: Heartbeat, order: LaunchOrder) -> HeartbeatReply:
        """Lets the lead of an attempt report, as its agents' order has it."""
        return self.control.heartbeat(beat, self.control.entered(order.token, attempt=order.attempt))

    def run(self, job: JobId) -> None:
        """Brings a queued job to where its lead has reported."""
        self.tick(2)
        self.register(job)
        self.beat(job)

    def succeed(self, job: JobId) -> None:
        """Lets a running job's lead report success, and its agents end."""
        self.beat(job, outcome=AttemptState.SUCCEEDED)
        self.tick(3)

    def go_back(self, file: Path) -> None:
        """Puts a back-up in the place of the store, and starts a new controller on it."""
        self.loop.resign()
        self.control.store.close()
        restore(self.url, file, self.maker())
        self.restart()

    def back_up(self, file: Path) -> None:
        """Backs up the store."""
        back_up(parsed_url(self.url), file, self.maker())

    def maker(self) -> Maker:
        """Who backs up, and restores, now."""
        return Maker(release="0.2.0", key="", now_s=self.clock.now_s())

    def end_agents(self, job: JobId, *, exit_code: int, reason: str = "") -> None:
        cluster = self.clusters[self.job(job).attempts[-1].cluster]
        for name, order in self.orders_of(job).items():
            for index in range(len(order.nodes)):
                cluster.inner.end_agent(name, index, exit_code=exit_code, reason=reason)


# Whose tests run on PostgreSQL in `make test` too, as they ask the most of SQL; those of the others do in `make soak`.
ON_BOTH = {
    "databases",
    "migrations",
    "store",
    "loop",
    "queues",
    "people",
    "views",
    "batches",
    "rows",
    "long_history",
    "token_uses",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if "[postgresql" in item.name and item.path.parent == Path(__file__).parent and name not in ON_BOTH:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def world_type() -> type[World]:
    return World


@pytest.fixture(scope="session")
def _empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which all tables are made: to copy it takes a tenth of what they take."""
    path = tmp_path_factory.mktemp("empty") / "store.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, _empty_file: Path, tmp_path: Path) -> str:
    """Where a test's store is: the same test runs on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{shutil.copy(_empty_file, tmp_path / 'store.db')}"
    made: str = request.getfixturevalue("postgres_url")
    return made


@pytest.fixture
def world(tmp_path: Path, url: str) -> Iterator[World]:
    made = World(tmp_path, url=url)
    yield made
    made.control.store.close()


@pytest.fixture
def lab(world: World, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(world, tmp_path)
    yield made
    for server in made.servers:
        server.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    first = World(tmp_path_factory.mktemp("first"))
    app = create_app(first.control)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield Served(app=app, url=f"http://127.0.0.1:{listener.getsockname()[1]}")
    server.should_exit = True
    thread.join(120)
    first.control.store.close()


@pytest.fixture
def api(world: World, served: Served) -> Iterator[Api]:
    served.app.state.control = world.control
    served.app.state.metrics = Metrics(world.control)
    served.app.state.followers = Followers()  # The last world's newest event is none of this one's.
    made = Api(world, served.url)
    yield made
    made.http.close()
