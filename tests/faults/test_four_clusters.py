"""Four clusters, one lab: two Kubernetes, one of them Kueue's, a Slurm, a pretended one; then a whole one is lost."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import JobView, Submit
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import JobState, ended
from mainspring.domain.plan import Limit
from mainspring.domain.routes import Calls
from mainspring.domain.wire.events.leads import GenerationResumedEvent
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.testing.kubernetes import PROGRAMS, KubernetesNodes, KubernetesServer, settings_on
from mainspring.testing.kubernetes_kueue import kueue_missing, make_queues, start_kueue
from mainspring.testing.kubernetes_pods import PodRunner
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing
from tests.app.conftest import until
from tests.faults.counted import expected
from tests.faults.slurm_rig import variables
from tests.faults.test_kills import check_ended_once, every_job, number_of, story

MISSING = kueue_missing() or slurm_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
ROOT = Path(__file__).parents[2]
TEAMS, EACH = ("arms", "legs", "eyes", "hands"), int(os.environ.get("JOBS_EACH", "50"))
STEPS, PAUSE_S = 60, 0.25
SPACE, CHIP = "lab", ChipName("h100")
FIRST = ClusterName("cloud-a")
NODES = 2  # Of each cluster; two cores run all that runs.
END_S_MAX = 1_500.0
SEEN = 10


class Cloud:
    """A Kubernetes whose pods run here."""

    def __init__(self, folder: Path, name: str, *, kueue: bool) -> None:
        nodes = KubernetesNodes(count=NODES, chips=1, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
        self.name = name
        self.queue = SPACE if kueue else ""
        self.server = KubernetesServer(folder, nodes=[nodes])
        self.server.start()
        self.server.make_space(SPACE)
        if kueue:
            start_kueue(self.server)
            make_queues(self.server, SPACE, flavors={"gpus": {}}, queues={SPACE: {"gpus": NODES}})
        self.pods = PodRunner(
            self.server, folder / "pods", space=SPACE, environment=dict(os.environ), clock=SystemClock()
        )
        self.pods.serve(*nodes.names)

    def settings(self, dollars: float) -> KubernetesCluster:
        return settings_on(
            self.server,
            name=ClusterName(self.name),
            namespace=SPACE,
            queue=self.queue,
            queued_nodes_max=0,
            dollars_per_chip_hour={CHIP: dollars},
        )

    def die(self) -> None:
        """Loses all of it at once: machines and control plane."""
        for program in reversed(PROGRAMS):
            self.server.kill(program)
        self.pods.close()


@pytest.fixture
def clouds(tmp_path: Path) -> Iterator[tuple[Cloud, Cloud]]:
    with ExitStack() as stack:
        made = []
        for name, kueue in (("cloud-a", False), ("cloud-b", True)):
            made.append(Cloud(tmp_path / name, name, kueue=kueue))
            stack.callback(made[-1].server.stop)
            stack.callback(made[-1].pods.close)
        yield made[0], made[1]


@pytest.fixture
def lab(tmp_path: Path, clouds: tuple[Cloud, Cloud]) -> Iterator[Lab]:
    (tmp_path / "shared").mkdir(mode=0o700)
    slurm = SlurmCluster(
        name=ClusterName("slurm"),
        partitions=("robots",),
        shared=str(tmp_path / "shared"),
        dollars_per_chip_hour={CHIP: 2.0},
        simulated=True,
    )
    local = LocalCluster(name=ClusterName("local"), chip=CHIP, chips_per_node=1, nodes=NODES, dollars_per_chip_hour=2.0)
    nodes = SlurmNodes(count=NODES, chip="h100", chips=1, cpus=16, memory_mib=64_000)
    partition = SlurmPartition(name="robots")
    # The first is the cheapest: it is full when it dies.
    clusters = (clouds[0].settings(1.0), clouds[1].settings(2.0), slurm, local)
    with (
        SlurmServer(tmp_path / "slurm", nodes=[nodes], partitions=[partition]) as server,
        variables(server.environment),
    ):
        made = Lab(tmp_path / "home")
        made.home.write_config(Config(clusters=clusters))
        made.up(port=0)
        try:
            until(lambda: all(view.inventory.nodes for view in made.fleet()) and len(made.fleet()) == 4, "clusters")
            yield made
        finally:
            made.down()


def submit(lab: Lab, folder: Path) -> None:
    for number, team in enumerate(TEAMS):
        lab.set_team(team)
        words = [sys.executable, "-m", "tests.faults.counted", str(number * EACH), str(STEPS), str(PAUSE_S)]
        spec = job(
            f"{team}-count",
            [*words, str(folder), "apart"],
            on=[CHIP],
            team=team,
            attempts_max=20,
            environment={"PYTHONPATH": str(ROOT)},
        )
        lab.call(Calls.submit, Submit(spec=spec, key=team, count=EACH))


def on_first(views: list[JobView]) -> list[JobView]:
    return [view for view in views if view.state is JobState.RUNNING and view.attempts[-1].cluster == FIRST]


@pytest.mark.soak  # A quarter of an hour: a silent cluster is given up after five minutes.
@pytest.mark.timeout(2_400)
def test_two_hundred_jobs_of_four_teams_outlive_the_loss_of_a_whole_cluster(
    lab: Lab, clouds: tuple[Cloud, Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(lab, tmp_path / "meet")
    until(lambda: sum(view.step > 10 for view in on_first(every_job(lab))) == NODES, "jobs on the first", wait_s=180)
    clouds[0].die()
    silent = "the first to be silent"
    until(lambda: not next(view for view in lab.fleet() if view.inventory.cluster == FIRST).answering, silent)
    struck = on_first(every_job(lab))  # On a slow machine some have ended there.
    assert struck
    waiting = [view for view in every_job(lab) if view.state is JobState.QUEUED]
    seen = [lab.why(view.id) for view in waiting[:: max(1, len(waiting) // SEEN)][:SEEN]]
    still = [why for why in seen if why.state is JobState.QUEUED]  # Others end meanwhile, and make room.
    assert len(still) > SEEN // 2, seen
    for why in still:
        assert why.limit in (Limit.CAPACITY, Limit.TIER), why
        told = {candidate.cluster: candidate for candidate in why.candidates}
        assert len(told) == 4, why
        assert not any(candidate.fits for candidate in why.candidates), why
    until(lambda: all(ended(view.state) for view in every_job(lab)), "all jobs to end", wait_s=END_S_MAX)
    views = every_job(lab)
    assert [number_of(view) for view in views] == list(range(len(TEAMS) * EACH))
    for view in views:
        check_ended_once(lab.events(view.id), view)
        assert view.result == expected(number_of(view), STEPS), story(lab, view)
    for view in struck:
        assert lab.status(view.id).attempts[-1].cluster != FIRST
        resumed = [event for event in lab.events(view.id) if event.kind == GenerationResumedEvent.kind]
        assert int(resumed[-1].detail["step"]) > 0, "it goes on from its checkpoint"
    where = Counter(view.attempts[-1].cluster for view in views)
    assert {*where} - {FIRST} == {"cloud-b", "slurm", "local"}, where
