"""A large lab for pages to show: 12,500 nodes of five clusters, more jobs than they hold, forty teams, trouble here and
there. The controller, its store and its planner are real; clusters answer from memory, and no agent ever comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from mainspring.app.base.client import Client
from mainspring.app.base.system import SystemClock, SystemDice
from mainspring.app.web.serving import add_pages
from mainspring.control import AgentAccess, Control, Settings, open_store
from mainspring.control.connections import listen
from mainspring.control.server import Server
from mainspring.domain.answers import ClosureKind, NewClosure, NewToken, Submit, SubmitBatch
from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import ChipName, ClusterName, NodeName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Role, Tier
from mainspring.domain.team import Team, TeamRole, WaitingLimits
from mainspring.testing.fake_engine import FakeEngine

CLUSTERS, NODES, TEAMS, CHIPS = 5, 2_500, 40, 8
RACK, BLOCK = 16, 512
REASON = "fans <img src=x onerror=alert(1)> \u202e"


def _inventory(index: int) -> Inventory:
    chip = ChipName("h100" if index < 4 else "b200")
    rows = []
    for row in range(NODES):
        down = (row * 7_919 + index) % 293 == 0
        rows.append(
            Node(
                name=NodeName(f"node-{row:05}"),
                chip=chip,
                chips=CHIPS,
                domains=(("block", f"b{row // BLOCK}"), ("rack", f"r{row // RACK}")),
                condition=NodeCondition.DOWN if down else NodeCondition.READY,
                condition_reason=REASON if down else "",
            )
        )
    name = ClusterName(f"cluster-{index}")
    return Inventory(cluster=name, engine="local", simulated=True, dollars_per_chip_hour={chip: 2.1}, nodes=tuple(rows))


def _submit(number: int, dice: Random) -> Submit:
    replicas = dice.choice((1, 1, 1, 2, 2, 4, 8, 16, 32, 64))
    option = Option(chip=ChipName("h100"), chips=CHIPS, replicas=replicas, within="block" if replicas > 16 else None)
    spec = JobSpec(
        name=f"run-{number}",
        team=TeamName(f"team-{dice.randrange(TEAMS)}"),
        tier=dice.choice((Tier.CRITICAL, Tier.STANDARD, Tier.STANDARD, Tier.OPPORTUNISTIC)),
        roles=(Role(command=("train",), options=(option,)),),
        duration_s=dice.choice((0.0, 3_600.0, 86_400.0)),
    )
    return Submit(spec=spec, key=f"key-{number}")


@contextmanager
def large_lab(folder: Path, jobs: int) -> Iterator[Client]:
    """Serves it, and yields a client of its administrator.

    Args:
        jobs: How many to submit; some 1,000 find room.
    """
    clock = SystemClock()
    control = Control(
        store=open_store(f"sqlite:///{folder / 'state.db'}"),
        engines={one.cluster: FakeEngine(one, clock) for one in map(_inventory, range(CLUSTERS))},
        clock=clock,
        dice=SystemDice(),
        access=AgentAccess(controller_urls=("http://127.0.0.1:1",), objects_url=f"file://{folder}", key="k" * 32),
        settings=Settings(limits=WaitingLimits(person_jobs=1_000_000, team_jobs=1_000_000)),
    )
    control.people.set_team(Team(name=LAB))
    for number in range(TEAMS):
        guarantee = {ChipName("h100"): 800.0} if number % 3 else {}
        name, most = TeamName(f"team-{number}"), 1e5 if number % 4 == 0 else None
        control.people.set_team(Team(name=name, parent=LAB, guarantee=guarantee, dollars_max=most))
    dice = Random(1)
    control.submit_batch(SubmitBatch(submits=tuple(_submit(number, dice) for number in range(jobs))))
    token = control.people.new_token(NewToken(holder="ada", team=LAB, role=TeamRole.ADMIN)).secret
    listener = listen("127.0.0.1", 0)
    server = Server(control, listener)
    add_pages(server)
    server.start()
    try:
        with Client("http://{}:{}".format(*listener.getsockname()), token) as client:
            for number in range(0, 200, 10):
                closure = NewClosure(kind=ClosureKind.CORDON, reason=REASON)
                client.close_node("cluster-1", f"node-{number:05}", closure)
            yield client
    finally:
        server.stop()
        control.store.close()
