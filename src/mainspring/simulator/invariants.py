"""What may never be wrong, whatever fails; checked after every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import sqlalchemy as sa

from mainspring.control import Control
from mainspring.control.accounting import goodput
from mainspring.control.records import ALLOCATION_LIVE, ATTEMPT_LIVE, events_since, tenants
from mainspring.control.schema import allocations, attempts, jobs
from mainspring.domain.answers import Event
from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.job import MILLI
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire import EventKind, LeadEvent
from mainspring.simulator.cluster import SimulatedCluster

_EVENTS_MAX = 1_000_000
_LEAD = (
    EventKind.GENERATION_PREPARING,
    EventKind.GENERATION_RESUMED,
    EventKind.GENERATION_STEPPING,
    EventKind.CAUGHT_UP,
    EventKind.RANK_EXITED,
    EventKind.CHECKPOINT_DURABLE,
    EventKind.RESULT,
    EventKind.LEAD_ENDED,
)  # Events that leads tell.

_STATES = sa.select(jobs.c.id, jobs.c.state).order_by(jobs.c.ordinal)
_LIVE_ATTEMPTS = sa.select(attempts.c.id, attempts.c.job_id).where(attempts.c.state.in_(ATTEMPT_LIVE))
_LIVE_ALLOCATIONS = (
    sa.select(
        allocations.c.id,
        attempts.c.id.label("attempt"),
        attempts.c.state.label("attempt_state"),
        jobs.c.id.label("job"),
        jobs.c.team,
    )
    .join(attempts, allocations.c.attempt_id == attempts.c.id)
    .join(jobs, attempts.c.job_id == jobs.c.id)
    .where(allocations.c.state.in_(ALLOCATION_LIVE))
)


@final
class Invariants:
    """The laws of one world.

    Args:
        control: The controller, whose store is looked at.
        clusters: The clusters, looked at past their faults.
        silences: Whether anything here can make a cluster silent: only then may one be given up.
    """

    def __init__(self, control: Control, clusters: Mapping[ClusterName, SimulatedCluster], *, silences: bool) -> None:
        self._control = control
        self._clusters = clusters
        self._silences = silences
        self._submitted: list[JobId] = []
        self._after: dict[JobId, tuple[JobId, ...]] = {}
        self._ended: dict[JobId, JobState] = {}

    def submitted(self, job: JobId, *, after: tuple[JobId, ...] = ()) -> None:
        """Notes a job that must never be lost.

        Args:
            job: The job.
            after: Jobs that must succeed before it starts.
        """
        self._submitted.append(job)
        self._after[job] = after

    def states(self) -> Mapping[JobId, JobState]:
        """Returns every job's state."""
        with self._control.store.read() as connection:
            return _states(connection)

    def check(self) -> None:
        """Checks every law that holds at every instant.

        Raises:
            AssertionError: One is broken; says which.
        """
        with self._control.store.read() as connection:
            states = _states(connection)
            self._check_jobs(states)
            self._check_attempts(connection, states)
            self._check_engines(connection)

    def check_ends(self, told: Mapping[AttemptId, Sequence[LeadEvent]]) -> None:
        """Checks what holds once every job has ended: nothing runs, reports are kept once, time and money add up.

        Args:
            told: What each attempt's lead told, in order; the last of it may never have arrived.

        Raises:
            AssertionError: Something does not.
        """
        for name, cluster in self._clusters.items():
            assert not cluster.running(), f"{name} runs {sorted(cluster.running())} for nobody"
        now_s = self._control.clock.now_s()
        with self._control.store.read() as connection:
            everything = events_since(connection, since=0, limit=_EVENTS_MAX)
            sequences = [event.sequence for event in everything]
            assert sequences == sorted(set(sequences)), "events are out of order"
            for attempt, reports in told.items():
                kept = [(one.kind, one.detail) for one in everything if one.attempt == attempt and one.kind in _LEAD]
                wanted = [(one.kind, one.detail) for one in reports]
                assert kept == wanted[: len(kept)], f"of {len(wanted)} reports of {attempt}, {len(kept)} are kept"
            for job in self._submitted:
                _check_account(self._control, job, [event for event in everything if event.job == job], now_s)

    def _check_jobs(self, states: Mapping[JobId, JobState]) -> None:
        assert sorted(states) == sorted(self._submitted), "jobs were lost, or came from nowhere"
        for job, before in self._ended.items():
            assert states[job] is before, f"{job} was {before.value} and is {states[job].value}"
        self._ended = {job: state for job, state in states.items() if ended(state)}

    def _check_attempts(self, connection: sa.Connection, states: Mapping[JobId, JobState]) -> None:
        live: dict[str, list[str]] = {}
        for row in connection.execute(_LIVE_ATTEMPTS):
            live.setdefault(row.job_id, []).append(row.id)
        for job, state in states.items():
            wanted = 0 if state is JobState.QUEUED or ended(state) else 1
            assert len(live.get(job, [])) == wanted, f"{job} is {state.value} with live attempts {live.get(job, [])}"
            early = [other for other in self._after[job] if states[other] is not JobState.SUCCEEDED]
            assert not (wanted and early), f"{job} is {state.value} before {early}, which it comes after"

    def _check_engines(self, connection: sa.Connection) -> None:
        known = {row.id: row for row in connection.execute(_LIVE_ALLOCATIONS)}
        held: dict[TeamName, int] = {}
        attempt_of: dict[JobId, AttemptId] = {}
        for name, cluster in self._clusters.items():
            chips = {node.name: node.chips * MILLI for node in cluster.inner.inventory().nodes}
            for node, milli in cluster.inner.used_chip_milli().items():
                assert milli <= chips[node], f"{node} of {name} has {chips[node]} and {milli} are in use"
            for allocation in cluster.running():
                assert allocation in known, f"{allocation} runs on {name} and the store thinks it gone"
                row = known[allocation]
                if row.attempt_state not in ATTEMPT_LIVE:
                    # Given up with its cluster: it may run on unseen, and nothing it says counts any more.
                    assert self._silences, f"{allocation} runs on {name}, and its attempt is {row.attempt_state}"
                    continue
                other = attempt_of.setdefault(JobId(row.job), AttemptId(row.attempt))
                assert other == row.attempt, f"{row.job} has two live attempts, {other} and {row.attempt}"
                held[TeamName(row.team)] = held.get(TeamName(row.team), 0) + _milli(cluster.orders, allocation)
        tree = {team.name: team for team in tenants(connection)}
        for team in tree.values():
            own = [milli for other, milli in held.items() if team.name in (other, tree[other].parent)]
            if team.chips_max is not None:
                most = team.chips_max * MILLI
                assert sum(own) <= most, f"{team.name} may hold {team.chips_max} chips and holds {sum(own)}"


def _states(connection: sa.Connection) -> Mapping[JobId, JobState]:
    return {JobId(row.id): JobState(row.state) for row in connection.execute(_STATES)}


def _milli(orders: Mapping[AllocationId, LaunchOrder], allocation: AllocationId) -> int:
    return sum(orders[allocation].chip_milli)


def _check_account(control: Control, job: JobId, own: list[Event], now_s: float) -> None:
    """Checks that an ended job's seconds and dollars add up, and that no report was written twice."""
    view = control.job(job)
    spent = goodput(own, now_s)
    assert (spent is None) == (not view.attempts), f"{job} has {len(view.attempts)} attempts and account {spent}"
    if spent is None:
        return
    parts = (
        spent.startup_s
        + spent.productive_s
        + spent.checkpoint_s
        + spent.repeated_s
        + spent.recovery_s
        + spent.wind_down_s
    )
    assert parts == spent.allocated_s, f"{job}: parts of {parts} s, allocated {spent.allocated_s} s"
    lives = sum(max(0.0, (attempt.ended_s or now_s) - attempt.granted_s) for attempt in view.attempts)
    assert abs(lives - spent.allocated_s) < 1e-3, f"{job}: attempts of {lives} s, allocated {spent.allocated_s} s"
    assert all(attempt.dollars >= 0 for attempt in view.attempts)
