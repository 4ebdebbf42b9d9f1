"""How well the planner foretells when a job will start, against backfill that believes the limits users ask for.

Run as `python -m benchmarks.planner_eta [--quick] [--trace EVENTS]`. The trace is in the format of the Slurm simulator;
`../shared/traces/slurm/workload_5k.events` is 5,000 jobs of a university's cluster with their true runtimes.

The actual schedule is that of `plan`: one cluster of equal nodes whose cores are 1.1 x the mean demand, a team a user,
planned at events, at most once in 60 s of virtual time (600 s with `--quick`); nothing is preempted; a runtime is told
to nobody before the job has ended. Cores are chips of type "cpu", 40 a node: what teams share, and what reservations
and estimates count first, is chips. A job asks for as many replicas as it named nodes.

Two predictors look at this one schedule, both through `plan`, on the same facts. Ours has learned from the jobs that
ended before. The peer's builder is told the same but for what ended jobs teach, so that each job is expected to run for
the limit it asked for. Each predicts a job's start in the first plan after the job was submitted. Scored are jobs that
waited over 10 minutes; a job somebody cannot predict counts as infinitely wrong.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import statistics
import time
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobKind, JobSpec, Option, Role
from mainspring.domain.plan import Plan, Start
from mainspring.planner import Budget, LiveAttempt, PendingJob, Policy, SnapshotBuilder, plan

TRACE = Path("../shared/traces/slurm/workload_5k.events")
CPU = ChipName("cpu")
CORES_PER_NODE = 40  # The most tasks a node any job of the trace asks for.
HEADROOM = 1.1
SCORED_WAIT_S = 600.0
STEP_S = 60.0
QUICK_STEP_S = 600.0
POLICY = Policy(preempt=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of the trace."""

    id: JobId
    submitted_s: float
    runs_s: float
    cores: int
    spec: JobSpec


def read(trace: Path) -> list[Job]:
    """Returns the jobs of a trace.

    Args:
        trace: A file of Slurm simulator events.

    Raises:
        SystemExit: There is no such file.
    """
    if not trace.exists():
        raise SystemExit(f"no trace at {trace}; name one with --trace")
    return [_job(line) for line in trace.read_text().splitlines() if "submit_batch_job" in line]


def _job(line: str) -> Job:
    def value(flag: str) -> str:
        found = re.search(rf"{flag}[ =]\s*(\S+)", line)
        assert found, f"{flag} in {line!r}"
        return found.group(1)

    days, _, clock = value(" -t").rpartition("-")
    hours, minutes, seconds = (float(part) for part in clock.split(":"))
    cores, nodes = int(value(" -n")), int(value(" -N"))
    name = value(" -J")
    option = Option(chip=CPU, chips=float(ceil(cores / nodes)), replicas=nodes)
    return Job(
        id=JobId(name),
        submitted_s=float(value("-dt")),
        runs_s=float(value("-sim-walltime")),
        cores=cores,
        spec=JobSpec(
            name=name,
            team=TeamName(value("--uid")),
            kind=JobKind.BATCH,
            roles=(Role(command=("true",), options=(option,)),),
            duration_s=float(days or 0) * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds,
        ),
    )


@dataclass(slots=True, kw_only=True)
class World:
    """The facts as the two builders are told them, and what is still to happen to whom."""

    ours: SnapshotBuilder = field(default_factory=SnapshotBuilder)
    limits: SnapshotBuilder = field(default_factory=SnapshotBuilder)  # Never told how long jobs ran.
    running: list[tuple[float, int]] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    started_s: dict[int, float] = field(default_factory=dict)

    def submit(self, index: int, job: Job) -> None:
        """Adds a job to the queue."""
        self.waiting.add(index)
        for builder in (self.ours, self.limits):
            builder.add_pending(PendingJob(job=job.id, spec=job.spec, submitted_s=job.submitted_s))

    def start(self, index: int, job: Job, start: Start, now_s: float) -> None:
        """Lets a job run."""
        self.waiting.remove(index)
        self.started_s[index] = now_s
        heapq.heappush(self.running, (now_s + job.runs_s, index))
        attempt = LiveAttempt(
            attempt=AttemptId(job.id),
            job=job.id,
            spec=job.spec,
            grants=start.grants,
            submitted_s=job.submitted_s,
            granted_s=now_s,
        )
        for builder in (self.ours, self.limits):
            builder.remove_pending(job.id)
            builder.add_live(attempt)

    def end(self, job: Job) -> None:
        """Ends a job."""
        for builder in (self.ours, self.limits):
            builder.remove_live(AttemptId(job.id))
        self.ours.durations.observe(job.spec, job.runs_s)


def foretold(answer: Plan, now_s: float) -> dict[JobId, float]:
    """Returns when each job starts as a plan tells it, infinity where it cannot."""
    told = {start.job: now_s for start in answer.starts}
    for wait in answer.waits:
        for job, start_s in zip(wait.jobs, wait.start_s, strict=True):
            told[job] = inf if start_s is None else start_s
    return told


@dataclass(slots=True, kw_only=True)
class Run:
    """What happened, and what each predictor had said."""

    started_s: dict[int, float]
    ours_s: dict[int, float]
    limits_s: dict[int, float]
    plans: int


def run(jobs: list[Job], step_s: float) -> Run:
    """Returns the actual schedule of a trace and what was predicted for each job when it was submitted.

    Args:
        jobs: The trace.
        step_s: Plans are at least this far apart, in virtual seconds.
    """
    span_s = jobs[-1].submitted_s - jobs[0].submitted_s
    cores = HEADROOM * sum(job.cores * job.runs_s for job in jobs) / span_s
    nodes = round(cores / CORES_PER_NODE)
    print(f"{len(jobs)} jobs over {span_s / 3_600:.1f} h on {nodes} nodes of {CORES_PER_NODE} cores", flush=True)
    inventory = Inventory(
        cluster=ClusterName("hpc"),
        engine="slurm",
        simulated=True,
        nodes=tuple(Node(name=NodeName(f"n{row:04}"), chip=CPU, chips=CORES_PER_NODE) for row in range(nodes)),
    )
    world = World()
    for builder in (world.ours, world.limits):
        builder.set_inventory(inventory, answering=True)
    of_id = {job.id: index for index, job in enumerate(jobs)}
    result = Run(started_s=world.started_s, ours_s={}, limits_s={}, plans=0)
    arrived, now_s = 0, 0.0
    while arrived < len(jobs) or world.waiting:
        next_s = jobs[arrived].submitted_s if arrived < len(jobs) else inf
        next_s = min(next_s, world.running[0][0] if world.running else inf)
        now_s = max(now_s + step_s, ceil(next_s / step_s) * step_s)
        while world.running and world.running[0][0] <= now_s:
            world.end(jobs[heapq.heappop(world.running)[1]])
        new: list[int] = []
        while arrived < len(jobs) and jobs[arrived].submitted_s <= now_s:
            world.submit(arrived, jobs[arrived])
            new.append(arrived)
            arrived += 1
        if not world.waiting:
            continue
        result.plans += 1
        peer = plan(world.limits.build(now_s=now_s), POLICY, now_s, Budget()) if new else None
        answer = plan(world.ours.build(now_s=now_s), POLICY, now_s, Budget())
        for start in answer.starts:
            index = of_id[start.job]
            world.start(index, jobs[index], start, now_s)
        late = [index for index in new if index in world.waiting]
        if late and peer is not None:
            ours, limits = foretold(answer, now_s), foretold(peer, now_s)
            for index in late:
                result.ours_s[index], result.limits_s[index] = ours[jobs[index].id], limits[jobs[index].id]
        if result.plans % 250 == 0:
            print(f"{now_s / 3_600:6.1f} h: {len(world.waiting)} wait, {len(world.running)} run", flush=True)
    return result


def scored(jobs: list[Job], result: Run) -> dict[str, object]:
    """Returns the figures.

    Args:
        jobs: The trace.
        result: What happened to it.
    """
    late = [
        index for index in sorted(result.ours_s) if result.started_s[index] - jobs[index].submitted_s > SCORED_WAIT_S
    ]
    if not late:
        raise SystemExit("no job waited over 10 minutes: nothing to score")
    errors = {
        name: [abs(said[index] - result.started_s[index]) for index in late]
        for name, said in (("ours", result.ours_s), ("limits", result.limits_s))
    }
    half = len(late) // 2
    medians = {name: statistics.median(each) for name, each in errors.items()}
    halves = {
        name: [round(statistics.median(each[:half])), round(statistics.median(each[half:]))]
        for name, each in errors.items()
    }
    return {
        "ours_median_s": round(medians["ours"], 1),
        "limits_median_s": round(medians["limits"], 1),
        "ratio": round(medians["ours"] / medians["limits"], 4),
        "scored": len(late),
        "ours_mean_s": round(statistics.mean(errors["ours"]), 1),
        "limits_mean_s": round(statistics.mean(errors["limits"]), 1),
        "ours_halves_s": halves["ours"],
        "limits_halves_s": halves["limits"],
        "plans": result.plans,
    }


def main() -> None:
    """Prints the figures, as JSON in the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--quick", action="store_true", help=f"plan at most once in {QUICK_STEP_S:g} s")
    arguments = parser.parse_args()
    jobs = read(arguments.trace)
    begin_s = time.perf_counter()
    figures = scored(jobs, run(jobs, QUICK_STEP_S if arguments.quick else STEP_S))
    print(json.dumps({**figures, "wall_s": round(time.perf_counter() - begin_s, 1)}))


if __name__ == "__main__":
    main()
