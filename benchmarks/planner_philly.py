"""109 days of Microsoft's Philly cluster through the planner: how long jobs take, and what teams get of their promise.

Run as `python -m benchmarks.planner_philly [--quick]`. Every job of the trace runs on 72 nodes of 8 chips. Virtual
clusters are teams with guarantees in proportion to the chip-hours they asked for; a team's own jobs are taken by least
chip-time had. The planner knows no duration and learns none. Plans are made at events, at most once in 300 s; who is
displaced pays 300 s and what it did since its last checkpoint, every 600 s.

The peers plan at every event and see one pool of chips, without nodes, teams or restarts, so nothing is held against
them: first come first served where what does not fit is skipped, and shortest job first by true durations.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from bisect import insort
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import ChipName, ClusterName, NodeName, TeamName
from mainspring.domain.plan import Plan
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner import Budget, Policy, Snapshot
from mainspring.planner.cycle import plan
from mainspring.simulator import Fleet, Outcome, ReplayOptions, TraceJob, Workload, load, measure, replay

TRACE = Path("../shared/traces/philly/philly_jobs.csv")
CHIP = ChipName("p100")
NODES, CHIPS = 72, 8
HOUR_S = 3_600.0


def guarantees(workload: Workload, chips: int) -> dict[TeamName, int]:
    """Returns whole chips by team, in proportion to the chip-hours asked for, not more than there are."""
    asked: dict[TeamName, float] = {}
    for job in workload.jobs:
        asked[job.spec.team] = asked.get(job.spec.team, 0.0) + job.chips * job.duration_s
    total = sum(asked.values())
    return {team: int(chips * asked[team] / total) for team in sorted(asked)}


def fleet() -> Fleet:
    nodes = tuple(Node(name=NodeName(f"n{row:03}"), chip=CHIP, chips=CHIPS) for row in range(NODES))
    inventory = Inventory(cluster=ClusterName("philly"), engine="local", simulated=True, nodes=nodes)
    return Fleet(name=f"{NODES}x{CHIPS}", inventories=(inventory,))


def in_order(jobs: tuple[TraceJob, ...], chips: int, key: Callable[[TraceJob], float]) -> float:
    """Returns the mean completion time when, at every event, jobs start in order of a key, those that fit.

    Jobs of one size wait in one line: only the heads of the lines need be looked at.
    """
    lines: dict[int, list[tuple[float, int]]] = {}
    ends: list[tuple[float, int]] = []
    free, at, total = chips, 0, 0.0
    while at < len(jobs) or ends:
        now_s = min(jobs[at].submit_s if at < len(jobs) else np.inf, ends[0][0] if ends else np.inf)
        while ends and ends[0][0] <= now_s:
            free += heappop(ends)[1]
        while at < len(jobs) and jobs[at].submit_s <= now_s:
            insort(lines.setdefault(int(jobs[at].chips), []), (key(jobs[at]), at))
            at += 1
        while fitting := [line[0] for size, line in lines.items() if line and size <= free]:
            job = jobs[min(fitting)[1]]
            size = int(job.chips)
            lines[size].pop(0)
            free -= size
            heappush(ends, (now_s + job.duration_s, size))
            total += now_s + job.duration_s - job.submit_s
    return total / len(jobs)


class Watch:
    """Times the planner and counts what it was asked."""

    def __init__(self) -> None:
        self.plan_s: list[float] = []

    def __call__(self, snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        begun_s = time.perf_counter()
        made = plan(snapshot, policy, now_s, budget)
        self.plan_s.append(time.perf_counter() - begun_s)
        return made


def ours(workload: Workload, promised: Mapping[TeamName, int], watch: Watch) -> Outcome:
    def progress(ended: int, now_s: float) -> None:
        print(f"  {ended} of {len(workload.jobs)} jobs ended by day {now_s / 86_400:.1f}", file=sys.stderr, flush=True)

    teams = [
        Team(name=team, guarantee={CHIP: float(chips)}, order=TeamOrder.ATTAINED) for team, chips in promised.items()
    ]
    options = ReplayOptions(plan_every_s=300.0, restart_s=300.0, checkpoint_s=600.0, learn=False)
    return replay(workload, fleet(), planner=watch, teams=teams, options=options, progress=progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first 8,000 jobs")
    parser.add_argument("--jobs", type=Path, default=TRACE, help="philly_jobs.csv")
    args = parser.parse_args()
    if not args.jobs.is_file():
        parser.error(f"there is no trace at {args.jobs}; name it with --jobs")
    workload = load(args.jobs, node_chips=CHIPS)
    if args.quick:
        workload = workload.first(8_000)
    chips = NODES * CHIPS
    fits = tuple(job for job in workload.jobs if job.chips <= chips)
    print(f"{len(workload.jobs) - len(fits)} jobs larger than {chips} chips are left out", flush=True)
    workload = Workload(name=workload.name, jobs=fits)
    promised = guarantees(workload, chips)
    fifo_skip_s = in_order(fits, chips, lambda job: job.submit_s)
    oracle_s = in_order(fits, chips, lambda job: job.duration_s)
    print(
        f"peers: first come first served with skipping {fifo_skip_s:.0f} s, shortest first {oracle_s:.0f} s", flush=True
    )
    watch = Watch()
    begun_s = time.perf_counter()
    outcome = ours(workload, promised, watch)
    replay_s = time.perf_counter() - begun_s
    jobs = outcome.jobs
    done = jobs.succeeded
    assert len(done) == len(fits), f"{len(fits) - len(done)} jobs did not end well"
    took_s = jobs.end_s - jobs.submit_s
    deficit_h = measure(outcome).fairness.deficit_h
    figures = {
        "jct_s": round(float(took_s.mean())),
        "fifo_skip_jct_s": round(fifo_skip_s),
        "oracle_jct_s": round(oracle_s),
        "replay_s": round(replay_s, 1),
        "preemptions": int(jobs.displaced.sum()),
        "deficit_chip_h": round(deficit_h, 1),
        "ratio": round(float(took_s.mean()) / fifo_skip_s, 4),
        "jobs": len(fits),
        "plans": outcome.counts.plans,
        "plan_ms_mean": round(1e3 * float(np.mean(watch.plan_s)), 3),
        "plan_ms_p99": round(1e3 * float(np.quantile(watch.plan_s, 0.99)), 3),
        "used_chip_h": round(sum(outcome.spent_s.values()) / HOUR_S),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
