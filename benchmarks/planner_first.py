"""How long one plan takes over a full queue: nodes x pending jobs of 50 shapes, four clusters, two kinds of chip.

Run as `python -m benchmarks.planner_first [--quick]`. `cold_s` is the first plan from the first snapshot; `build_s` the
snapshot itself; `next_s` the plan of the following tick, after everything that started has become live.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobSpec, Option, Role, Tier
from mainspring.domain.plan import Plan
from mainspring.planner import Budget, Policy, SnapshotBuilder, TeamQuota, plan

CHIPS_PER_NODE = 8
CLUSTERS = (("alpha", "h100", 2.1), ("beta", "h100", 2.1), ("gamma", "b200", 4.4), ("delta", "b200", 4.0))
SHAPES = 50
NOW_S = 1_700_000_000.0


def inventory(index: int, node_count: int) -> Inventory:
    name, chip, price = CLUSTERS[index]
    nodes = tuple(
        Node(
            name=NodeName(f"node-{row:05}"),
            chip=ChipName(chip),
            chips=CHIPS_PER_NODE,
            domains=(("block", f"b{row // 128}"), ("rack", f"r{row // 16}")),
        )
        for row in range(node_count)
    )
    return Inventory(
        cluster=ClusterName(name),
        engine="local",
        simulated=True,
        dollars_per_chip_hour={ChipName(chip): price},
        nodes=nodes,
    )


def spec(shape: int) -> JobSpec:
    """One of 50 shapes: 1 to 128 replicas, of a share of a chip to 4 whole nodes, some inside one rack or block."""
    chips = (0.25, 1.0, 1.0, 8.0, 2.0, 1.0, 4.0, 32.0, 1.0, 8.0)[shape % 10]
    replicas = (1, 1, 8, 4, 16, 64, 2, 2, 128, 16)[shape % 10]
    within = ("rack", None, None, "block", None)[shape % 5] if chips * replicas <= 64 else None
    options = tuple(
        Option(chip=ChipName(chip), chips=chips, replicas=replicas, within=within, speed=speed)
        for chip, speed in (("h100", 1.0), ("b200", 2.0))
    )
    return JobSpec(
        name="benchmark",
        team=TeamName(f"team{shape % 7}"),
        tier=(Tier.CRITICAL, Tier.STANDARD, Tier.OPPORTUNISTIC)[shape % 3],
        roles=(Role(command=("true",), options=options),),
    )


def fill(builder: SnapshotBuilder, *, node_count: int, job_count: int) -> None:
    builder.set_teams(TeamQuota(name=TeamName(f"team{row}"), chips_max=2.0 * node_count) for row in range(7))
    for index in range(len(CLUSTERS)):
        builder.set_inventory(inventory(index, node_count // len(CLUSTERS)), answering=True)
    specs = [spec(shape) for shape in range(SHAPES)]
    for job in range(job_count):
        builder.add_pending(JobId(f"job-{job:06}"), specs[job % SHAPES], NOW_S - job_count + job)


def act(builder: SnapshotBuilder, made: Plan) -> None:
    specs = [spec(shape) for shape in range(SHAPES)]
    for start in made.starts:
        of = specs[int(start.job.removeprefix("job-")) % SHAPES]
        builder.remove_pending(start.job)
        builder.add_live(
            AttemptId(start.job),
            start.job,
            team=of.team,
            tier=of.tier,
            submitted_s=NOW_S,
            cluster=start.grants[0].cluster,
            chip_milli=dict(zip(start.grants[0].nodes, start.grants[0].chip_milli, strict=True)),
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """One run: seconds for the snapshot, the first plan, and the next tick; what the plan said."""

    build_s: float
    cold_s: float
    next_s: float
    first: Plan


def measure(node_count: int, job_count: int) -> Round:
    builder = SnapshotBuilder()
    fill(builder, node_count=node_count, job_count=job_count)
    times_s = [time.perf_counter()]
    snapshot = builder.build()
    times_s.append(time.perf_counter())
    first = plan(snapshot, Policy(), NOW_S, Budget())
    times_s.append(time.perf_counter())
    act(builder, first)
    times_s.append(time.perf_counter())
    plan(builder.build(number=2), Policy(), NOW_S, Budget())
    times_s.append(time.perf_counter())
    build_s, cold_s, _, next_s = (after - before for before, after in pairwise(times_s))
    return Round(build_s=build_s, cold_s=cold_s, next_s=next_s, first=first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 nodes and 5,000 jobs; else 12,000 and 100,000 too")
    sizes = {"": (2_000, 5_000), "large_": (12_000, 100_000)}
    if parser.parse_args().quick:
        del sizes["large_"]
    figures: dict[str, float | int] = {}
    for prefix, (node_count, job_count) in sizes.items():
        rounds = [measure(node_count, job_count) for _ in range(3)]
        first = rounds[0].first
        print(f"{node_count} nodes, {job_count} jobs:", Counter(wait.limit.value for wait in first.waits), "wait")
        figures |= {
            f"{prefix}nodes": node_count,
            f"{prefix}jobs": job_count,
            f"{prefix}starts": len(first.starts),
            f"{prefix}waits": len(first.waits),
            f"{prefix}build_s": round(statistics.median(each.build_s for each in rounds), 4),
            f"{prefix}cold_s": round(statistics.median(each.cold_s for each in rounds), 4),
            f"{prefix}next_s": round(statistics.median(each.next_s for each in rounds), 4),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
