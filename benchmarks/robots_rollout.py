"""A thousand robots through three rollouts, the last of them of a bad release: nobody is bricked, all come back.

Run as `python -m benchmarks.robots_rollout [--quick] [--seed N]`. Robots are the shipping agent, with its own client
of DDI and TUF, on a simulated disk that loses unsynced writes, a virtual clock and a simulated line; they call the
server's own code on SQLite, each once in 60 s. 5 % of installations lose power at a random write; 2 % of robots have
a line on which every second call fails; 1 % are away for an hour. The first release goes to all; the second through
the rings sim, lab, canary:5%, 10%, all, as episodes are counted; the third is bad: from the fourth ring on it sickens
its robot two minutes after it was committed.

`bricked`: robots no slot of which can run. `wrong`: robots that run another release than their rollout left them, those
that are away apart. `rollback_s`: from the third robot's report that it is not healthy to the last robot's return.
`visit_ms`: CPU time of one call of a robot, both ends. `--quick` is 40 robots.

Besides, 20 real agents, processes with folders of their own and a server on a socket, install a release and are killed
(`kill -9`) before and after states of their journal are written, each three or four times, every state among them; of
`--quick` it is one a state, each killed once. `real_bricked`: those that had no slot which runs, after any kill.
`real_wrong`: those that do not run the new release in the end, with the old one in the other slot.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import sqlalchemy as sa
from tests.robots.agents_world import Served, again_and_again, each_state, lives
from tests.robots.edge_world import PowerLoss
from tests.robots.fleet_world import EdgeRobot, FleetWorld, Wire

from mainspring.control import Control
from mainspring.control.service.robots.news import events_of
from mainspring.control.service.robots.planning import planned_rings
from mainspring.control.service.robots.rollouts import Rollouts, active_robots
from mainspring.control.store.robots.tables import rollouts
from mainspring.control.store.rows import read_text
from mainspring.domain.answers import NewRobot, NewRollout, RobotTally, RolloutRules, RolloutState, RolloutWord
from mainspring.domain.answers.policies.releases import reference_of
from mainspring.domain.answers.policies.robots import RobotReport
from mainspring.domain.answers.policies.rollouts import RolloutEventKind, RolloutPlan
from mainspring.domain.errors import Unavailable
from mainspring.robots.edge.machine import Phase
from mainspring.robots.edge.ports import EdgeAnswer
from mainspring.testing import SeededDice

ROBOTS, QUICK_ROBOTS = 1_000, 40
REAL_ROBOTS = 20
POLL_S, STEP_S, LOOK_S, BOOT_S = 60.0, 2.0, 5.0, 30.0
HOURS_MAX = 12.0  # Of virtual time, of one rollout.
POWER_LOSS, BAD_LINE, AWAY = 0.05, 0.02, 0.01
AWAY_S, SICKENS_S = 3_600.0, 120.0
EPISODES_A_VISIT, SUCCESS = 10, 0.9  # Arms that try once in six seconds.
WRITES = 120  # Of one installation, about.
RINGS = ("sim", "lab", "canary:5%", "10%", "all")
LUCKY = ("sim", "lab", "canary")  # Rings whose robots the bad release does not harm.


class Line(Wire):
    """A robot's line, of which every second call may fail, as it happens."""

    def __init__(self, control: Control, dice: SeededDice) -> None:
        super().__init__(control)
        self.dice, self.bad = dice, False

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> EdgeAnswer:
        if self.bad and self.dice.bits(1):
            raise Unavailable("call the server", got="a bad line")
        return super().call(method, path, headers, body)


class Arm(EdgeRobot):
    """One robot, with what may befall it."""

    def __init__(self, fleet: Fleet, name: str, token: str, number: int) -> None:
        self.dice = SeededDice(fleet.seed, f"robot {number}")
        self.fleet, self.harmed, self.since_s, self.asked = fleet, False, 0.0, ""
        self.dark = False  # Without power.
        self.line = Line(fleet.control, self.dice)
        super().__init__(self.line, fleet.world.clock, name, token, seed=number)
        self.line.bad = self.chance(BAD_LINE)
        self.next_visit_s = 0.0

    def chance(self, share: float) -> bool:
        return self.dice.bits(32) < share * 2**32

    def report(self) -> RobotReport:
        """Counts episodes of what runs, and whether that has sickened."""
        if self.target:
            known = {each.target: each for each in self.tallies}
            solved = sum(self.chance(SUCCESS) for _ in range(EPISODES_A_VISIT))
            one = RobotTally(target=self.target, episodes=EPISODES_A_VISIT, successes=solved)
            known[self.target] = known.get(self.target, RobotTally(target=self.target)).plus(one)
            if self.target != self.fleet.first or known[self.target].episodes <= 5 * EPISODES_A_VISIT:
                self.tallies = tuple(known.values())[-3:]
        late = self.clock.now_s() - self.since_s > SICKENS_S
        self.sick = self.harmed and self.target == self.fleet.bad and late
        return super().report()

    def wake(self) -> float:
        """Does what is due, and returns in how many seconds to wake again."""
        try:
            if self.dark:
                self.boot()
                self.dark = False
            return self._wake()
        except PowerLoss:
            self.dark = True
            return BOOT_S

    def _wake(self) -> float:
        now_s, before = self.clock.now_s(), self.target
        if now_s >= self.next_visit_s or self.agent.journal.phase is Phase.IDLE:
            sleep_s = self.visits.visit()
            self.fleet.visits += 1
            self.next_visit_s = now_s + sleep_s * (0.9 + 0.2 * self.dice.bits(16) / 2**16)
        journal = self.agent.journal
        if journal.phase is Phase.IDLE:
            return self.next_visit_s - now_s
        if journal.action != self.asked:
            self.asked = journal.action
            if self.chance(POWER_LOSS):
                self.disk.lose_at = self.disk.calls + 1 + self.dice.bits(16) % WRITES
        self.agent.step()
        if self.target != before:
            self.since_s = now_s
        if self.agent.journal.phase is Phase.IDLE:  # Its end is told at once.
            self.next_visit_s = now_s
            return 0.1
        return STEP_S

    @property
    def runnable(self) -> bool:
        """Whether a slot is whole, after one more power loss."""
        self.disk.lose_at = None
        self.disk.lose()
        self.boot()
        slots = [slot for slot, target in self.agent.journal.slots.items() if target]
        return any(
            all(self.disk.sha256(f"file-{file.sha256}") == file.sha256 for file in self.agent.files(slot))
            for slot in slots
        )


class Fleet(FleetWorld):
    """All robots, in the order in which they wake."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        super().__init__(folder)
        self.seed, self.visits, self.first, self.bad = seed, 0, "releases/arm.1.json", "releases/arm.3.json"
        self.arms: dict[str, Arm] = {}
        self.heap: list[tuple[float, int, str]] = []
        self.number = 0
        few = max(2, count // 100)
        for number in range(count):
            group = "sim" if number < few else "lab" if number < 2 * few else ""
            name = f"arm-{number:04}"
            token = self.control.robots.invite(NewRobot(name=name, group=group)).secret
            self.arms[name] = Arm(self, name, token, number)
            self.wake_at(name, self.world.clock.now_s() + POLL_S * number / count)

    def wake_at(self, name: str, at_s: float) -> None:
        self.number += 1
        heapq.heappush(self.heap, (at_s, self.number, name))

    def until(self, at_s: float) -> None:
        """Lets all robots live until a time."""
        clock = self.world.clock
        while self.heap and self.heap[0][0] <= at_s:
            due_s, _, name = heapq.heappop(self.heap)
            clock.advance(max(0.0, due_s - clock.now_s()))
            self.wake_at(name, clock.now_s() + self.arms[name].wake())
        clock.advance(max(0.0, at_s - clock.now_s()))

    def roll(self, rings: tuple[str, ...], *, approve: bool = False) -> str:
        """Rolls the newest release out until that is over; returns its number."""
        service: Rollouts = self.control.rollouts
        rules = RolloutRules(hours=0.0 if approve else 24.0, offline_s=600.0, watch_s=900.0)
        number = str(service.start(NewRollout(release="arm", rings=rings, rules=rules)).number)
        ends_s = self.world.clock.now_s() + 3_600 * HOURS_MAX
        service.step()
        if approve:
            service.approve(number, RolloutWord())
        while self.world.clock.now_s() < ends_s:
            self.until(self.world.clock.now_s() + LOOK_S)
            service.step()
            if service.ls(limit=1)[0].state not in (RolloutState.RUNNING, RolloutState.GOING_BACK):
                break
        view = service.show(number)
        print(f"{view.release}: {view.state.value}: {view.why}", file=sys.stderr)
        for ring in view.rings:
            told = (ring.committed, ring.failed, ring.unhealthy, ring.returned, ring.offline, ring.waits)
            print(f"  {ring.name}: {ring.robots} robots, {told}", file=sys.stderr)
        return number

    def before(self, number: str) -> Mapping[str, str]:
        """What each robot ran before a rollout, so what it is to run once that was taken back."""
        with self.control.store.read() as connection:
            plan = connection.execute(sa.select(rollouts.c.plan).where(rollouts.c.number == int(number))).scalar_one()
        return read_text(RolloutPlan, plan).before

    def events(self, number: str) -> Iterator[tuple[RolloutEventKind, float]]:
        with self.control.store.read() as connection:
            for _, event in events_of(connection, int(number)):
                yield event.kind, event.at_s


def measure(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Lives through it, and returns the figures."""
    begun_s = time.process_time()
    fleet = Fleet(folder, count, seed)
    fleet.until(fleet.world.clock.now_s() + 2 * POLL_S)
    fleet.publish(b"base" * 500, b"adapter one")
    fleet.roll(("all",), approve=True)
    fleet.until(fleet.world.clock.now_s() + 6 * POLL_S)  # What is counted of it is the base.
    dice = SeededDice(seed, "away")
    for arm in fleet.arms.values():
        arm.line.away = dice.bits(32) < AWAY * 2**32
    fleet.publish(b"base" * 500, b"adapter two")
    fleet.roll(RINGS)
    for arm in fleet.arms.values():
        arm.line.away = False
    fleet.until(fleet.world.clock.now_s() + 15 * POLL_S)  # Those that were away get it, too.
    fleet.publish(b"base" * 500, b"adapter three")
    lucky = _lucky(fleet)
    for arm in fleet.arms.values():
        arm.harmed = arm.name not in lucky
    bad = fleet.roll(RINGS)
    sick = [at_s for kind, at_s in fleet.events(bad) if kind is RolloutEventKind.UNHEALTHY]
    back = [at_s for kind, at_s in fleet.events(bad) if kind is RolloutEventKind.RETURNED]
    fleet.until(fleet.world.clock.now_s() + 10 * POLL_S)
    left = fleet.before(bad)
    wrong = [name for name, arm in fleet.arms.items() if reference_of(arm.target) != left[name]]
    losses = sum(arm.starts - 1 for arm in fleet.arms.values())
    cpu_s = time.process_time() - begun_s
    return {
        "robots": count,
        "bricked": sum(not arm.runnable for arm in fleet.arms.values()),
        "wrong": len(wrong),
        "rollback_s": round(max(back) - sorted(sick)[2], 1) if len(sick) > 2 and back else -1.0,
        "returned": len(back),
        "power_losses": losses,
        "visits": fleet.visits,
        "visit_ms": round(1e3 * cpu_s / max(1, fleet.visits), 2),
        "hours": round((fleet.world.clock.now_s() - 1.7e9) / 3_600, 2),
    }


def measure_real(folder: Path, *, quick: bool) -> dict[str, float]:
    """Kills real agents, and returns the figures."""
    begun_s = time.perf_counter()
    served = Served(folder / "server")
    try:
        lived = lives(served, folder, each_state() if quick else again_and_again(REAL_ROBOTS))
    finally:
        served.close()
    for trouble in (*lived.bricked, *lived.wrong):
        print(trouble, file=sys.stderr)
    return {
        "real": lived.agents,
        "real_kills": lived.kills,
        "real_bricked": len(lived.bricked),
        "real_wrong": len(lived.wrong),
        "real_s": round(time.perf_counter() - begun_s, 1),
    }


def _lucky(fleet: Fleet) -> set[str]:
    """Robots of the rings that the bad release does not harm: a plan is the same for the same release."""
    with fleet.control.store.read() as connection:
        rings = planned_rings(RINGS, active_robots(connection), "arm@3")
    return {robot for ring in rings if ring.name in LUCKY for robot in ring.robots}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="robots-rollout-") as folder:
        figures = measure(Path(folder) / "simulated", QUICK_ROBOTS if words.quick else ROBOTS, words.seed)
        figures |= measure_real(Path(folder) / "real", quick=words.quick)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
