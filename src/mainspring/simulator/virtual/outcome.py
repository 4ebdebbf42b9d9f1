"""Outcome of a replay, in columns: each job, and every change of what was there, used and wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import ChipName, TeamName
from mainspring.domain.life import JobState
from mainspring.domain.team import Team
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.snapshot import Floats, Integers, sealed
from mainspring.simulator.inputs.workload import Workload
from mainspring.simulator.virtual.attempts import JobRun
from mainspring.simulator.virtual.machines import MachinePool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Changes in order of time, in columns.

    Args:
        columns: By name; "time_s" is always one.
    """

    columns: Mapping[str, Floats]

    @staticmethod
    def of(rows: Sequence[tuple[float, ...]], *names: str) -> Changes:
        """Returns rows as columns.

        Args:
            rows: In order of time.
        """
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
        return Changes(columns={name: sealed(table[:, place].copy()) for place, name in enumerate(names)})

    @property
    def time_s(self) -> Floats:
        """Returns when each took place."""
        return self.columns["time_s"]

    def __getitem__(self, name: str) -> Floats:
        """Returns one column."""
        return self.columns[name]

    def whole(self, name: str) -> Integers:
        """Returns one column of whole numbers."""
        return self.columns[name].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobColumns:
    """What became of each job, in the order of the workload.

    Args:
        state: Its last state.
        team: Index of its team.
        size: Chips it asks for, or cores where the workload asks for no chip.
        submit_s: When it was submitted.
        start_s: When it first started, infinity for never.
        end_s: When it ended, infinity for never.
        duration_s: How long it takes without a break.
        attempts: How many there were.
        displaced: How many were displaced.
        lost: How many were lost.
    """

    state: tuple[JobState, ...]
    team: Integers
    size: Floats
    submit_s: Floats
    start_s: Floats
    end_s: Floats
    duration_s: Floats
    attempts: Integers
    displaced: Integers
    lost: Integers
    dollars: Floats

    @property
    def succeeded(self) -> Integers:
        """Returns the rows of the jobs that succeeded."""
        return np.flatnonzero([state is JobState.SUCCEEDED for state in self.state])


def job_columns(jobs: Sequence[JobRun]) -> JobColumns:
    """Returns what became of jobs.

    Args:
        jobs: In the order of the workload.
    """
    return JobColumns(
        state=tuple(job.state for job in jobs),
        team=_whole([job.team for job in jobs]),
        size=_real([job.size for job in jobs]),
        submit_s=_real([job.trace.submit_s for job in jobs]),
        start_s=_real([job.start_s for job in jobs]),
        end_s=_real([job.end_s for job in jobs]),
        duration_s=_real([job.trace.duration_s for job in jobs]),
        attempts=_whole([job.attempts for job in jobs]),
        displaced=_whole([job.displaced for job in jobs]),
        lost=_whole([job.lost for job in jobs]),
        dollars=_real([job.dollars for job in jobs]),
    )


def _whole(values: list[int]) -> Integers:
    return sealed(np.array(values, dtype=np.int64))


def _real(values: list[float]) -> Floats:
    return sealed(np.array(values, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often what happened.

    Args:
        plans_incomplete: Those whose work budget ran out.
        evicts: Attempts displaced, by the limit that called for it.
        lost: Attempts lost with a node.
        outages: Nodes or groups of nodes that went away.
        resizes: Elastic attempts that grew or shrank.
        refused: Jobs that no machine could ever run.
        moved_gib: How much that was.
        nodes_bought: Nodes ordered from offers.
    """

    plans: int
    plans_incomplete: int
    evicts: Mapping[str, int] = field(default_factory=dict)
    lost: int = 0
    outages: int = 0
    resizes: int = 0
    refused: int = 0
    moves: int = 0
    moved_gib: float = 0.0
    moved_dollars: float = 0.0
    nodes_bought: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a replay came to. `measures.measure` puts it in figures, `plots` draws it.

    Args:
        fleet: Name of the fleet.
        policy: What the lab decided about planning.
        unit: What sizes and amounts count: "chip", or "core" where the workload asks for no chip.
        teams: Every team, by name.
        chips: Chip types asked for first, by name.
        pools: Chip types of clusters.
        start_s: When the replay began.
        jobs: What became of each job.
        room: Changes of what was there: (time_s, pool, amount, dollars_per_hour).
        use: Changes of what was used: (time_s, pool, team, amount).
        want: Changes of what waited for room: (time_s, team, chip, size, count).
        spent_s: Where allocated chip-seconds went.
        counts: How often what happened.
    """

    workload: Workload
    fleet: str
    policy: Policy
    unit: str
    tree: tuple[Team, ...]
    teams: tuple[TeamName, ...]
    chips: tuple[ChipName, ...]
    pools: tuple[MachinePool, ...]
    start_s: float
    end_s: float
    jobs: JobColumns
    room: Changes
    use: Changes
    want: Changes
    spent_s: Mapping[TimeUse, float]
    counts: Counts
