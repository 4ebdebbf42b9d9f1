"""One plan over a large lab: 12,500 nodes in 5 clusters, 100,000 pending jobs of 1,000 distinct shapes, 500 teams.

Run as `python -m benchmarks.planner_scale [--quick]`. First mix: 60 % of the jobs ask for 1 chip, 15 % for 2, 10 % for
4, 10 % for 8, 4 % for 16 to 64, 1 % for 128 to 1,024 in one block. Shapes differ in chips, cores and memory, every job
draws its team by itself, so there are tens of thousands of (team, shape) pairs. Times are of the snapshot and the plan
together: `cold_s` for an empty fleet, `warm_s` for the cycle after 100 changes (50 arrivals, 50 ends). Second mix: all
jobs ask for 1 or 2 chips; `admissions_per_s` is its starts over the time of its cold cycle.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobSpec, Option, Role, Tier
from mainspring.domain.plan import Plan
from mainspring.domain.team import Team
from mainspring.planner import Budget, LiveAttempt, PendingJob, Policy, SnapshotBuilder, plan

CLUSTERS = 5
CHIPS_PER_NODE = 8
NODES_PER_RACK = 16
RACKS_PER_BLOCK = 32
NOW_S = 1_700_000_000.0
H100 = ChipName("h100")
SECOND_MIX = ((0.5, 1, 1), (0.5, 2, 2))
FIRST_MIX = ((0.6, 1, 1), (0.15, 2, 2), (0.1, 4, 4), (0.1, 8, 8), (0.04, 16, 64), (0.01, 128, 1_024))


@dataclass(frozen=True, kw_only=True)
class World:
    builder: SnapshotBuilder
    specs: dict[JobId, JobSpec]
    submitted_s: dict[JobId, float]


def inventory(index: int, nodes: int) -> Inventory:
    rows = tuple(
        Node(
            name=NodeName(f"node-{row:05}"),
            chip=H100,
            chips=CHIPS_PER_NODE,
            cpus=128.0,
            memory_gib=2_048.0,
            domains=(
                ("block", f"b{row // (NODES_PER_RACK * RACKS_PER_BLOCK)}"),
                ("rack", f"r{row // NODES_PER_RACK}"),
            ),
        )
        for row in range(nodes)
    )
    return Inventory(
        cluster=ClusterName(f"cluster-{index}"),
        engine="local",
        simulated=True,
        dollars_per_chip_hour={H100: 2.1},
        nodes=rows,
    )


def option(chips: int, cpus: float, memory_gib: float) -> Option:
    """One chip to eight on one node; more as whole nodes; 128 and more in one block."""
    replicas = max(1, chips // CHIPS_PER_NODE)
    each = min(chips, CHIPS_PER_NODE)
    within = "block" if chips >= 128 else None
    return Option(
        chip=H100, chips=each, cpus=cpus * each, memory_gib=memory_gib * each, replicas=replicas, within=within
    )


def shapes(mix: tuple[tuple[float, int, int], ...], count: int, generator: np.random.Generator) -> list[Option]:
    found: dict[Option, None] = {}
    for share, least, most in mix:
        target = len(found) + round(share * count)
        while len(found) < target:
            chips = least if least == most else int(generator.integers(least, most + 1)) // 8 * 8
            cpus = 4.0 + 0.5 * float(generator.integers(20))
            memory_gib = 32.0 + 6.0 * float(generator.integers(34))
            found[option(chips, cpus, memory_gib)] = None
    return list(found)


def world(mix: tuple[tuple[float, int, int], ...], *, nodes: int, jobs: int, teams: int, shape_count: int) -> World:
    generator = np.random.default_rng(7)
    builder = SnapshotBuilder()
    builder.set_teams(
        [Team(name=TeamName("lab"))]
        + [
            Team(
                name=TeamName(f"team-{row}"),
                parent=TeamName("lab"),
                guarantee={H100: float(nodes * CHIPS_PER_NODE // (2 * teams))},
            )
            for row in range(teams)
        ]
    )
    for index in range(CLUSTERS):
        builder.set_inventory(inventory(index, nodes // CLUSTERS), answering=True)
    roles = [(Role(command=("true",), options=(each,)),) for each in shapes(mix, shape_count, generator)]
    tiers = list(Tier)
    specs: dict[JobId, JobSpec] = {}
    submitted_s: dict[JobId, float] = {}
    for row in range(jobs):
        job = JobId(f"job-{row:06}")
        specs[job] = JobSpec(
            name="benchmark",
            team=TeamName(f"team-{generator.integers(teams)}"),
            tier=tiers[int(generator.integers(3))],
            roles=roles[int(generator.integers(len(roles)))],
            duration_s=3_600.0 * float(generator.integers(1, 48)),
        )
        submitted_s[job] = NOW_S - 86_400.0 * float(generator.random())
        builder.add_pending(PendingJob(job=job, spec=specs[job], submitted_s=submitted_s[job]))
    return World(builder=builder, specs=specs, submitted_s=submitted_s)


def cycle(lab: World, *, number: int, now_s: float) -> tuple[Plan, float]:
    began_s = time.perf_counter()
    made = plan(lab.builder.build(number=number, now_s=now_s), Policy(), now_s, Budget())
    return made, time.perf_counter() - began_s


def act(lab: World, made: Plan, now_s: float) -> None:
    for start in made.starts:
        lab.builder.remove_pending(start.job)
        lab.builder.add_live(
            LiveAttempt(
                attempt=AttemptId(f"attempt-{start.job}"),
                job=start.job,
                spec=lab.specs[start.job],
                grants=start.grants,
                submitted_s=lab.submitted_s[start.job],
                granted_s=now_s,
            )
        )


def change(lab: World, made: Plan, now_s: float, *, count: int) -> None:
    """Ends some of what started, and lets as many jobs arrive."""
    for start in made.starts[:: max(1, len(made.starts) // count)][:count]:
        lab.builder.remove_live(AttemptId(f"attempt-{start.job}"))
        job = JobId(f"late-{start.job}")
        lab.specs[job] = lab.specs[start.job]
        lab.submitted_s[job] = now_s
        lab.builder.add_pending(PendingJob(job=job, spec=lab.specs[job], submitted_s=now_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    scale = 10 if parser.parse_args().quick else 1
    size = {"nodes": 12_500 // scale, "jobs": 100_000 // scale, "teams": 500 // scale, "shape_count": 1_000 // scale}
    cold: list[float] = []
    warm: list[float] = []
    second: list[float] = []
    starts = second_starts = 0
    for _ in range(3):
        lab = world(FIRST_MIX, **size)
        made, spent_s = cycle(lab, number=1, now_s=NOW_S)
        cold.append(spent_s)
        starts = len(made.starts)
        act(lab, made, NOW_S)
        settled, _ = cycle(lab, number=2, now_s=NOW_S + 1.0)
        act(lab, settled, NOW_S + 1.0)
        change(lab, made, NOW_S + 2.0, count=50)
        after, spent_s = cycle(lab, number=3, now_s=NOW_S + 2.0)
        warm.append(spent_s)
        waits: Counter[str] = Counter()
        for wait in after.waits:
            waits[wait.limit.value] += len(wait.jobs)
        print(f"cold {cold[-1]:.2f} s, {starts} starts, complete {made.complete}; warm {warm[-1]:.2f} s,", end=" ")
        print(f"{len(after.starts)} starts, {len(after.evicts)} evicted; wait: {dict(waits)}", flush=True)
        lab = world(SECOND_MIX, **size)
        made, spent_s = cycle(lab, number=1, now_s=NOW_S)
        second.append(len(made.starts) / spent_s)
        second_starts = len(made.starts)
        print(f"second mix: {second_starts} starts, {second[-1]:.0f} a second", flush=True)
    figures = {
        "cold_s": round(statistics.median(cold), 3),
        "warm_s": round(statistics.median(warm), 3),
        "rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 3),
        "starts": starts,
        "admissions_per_s": round(statistics.median(second)),
        "second_starts": second_starts,
        **size,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
