"""Invariants: what may never be wrong, whatever fails; checked after every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import sqlalchemy as sa

from mainspring.control import Control
from mainspring.control.store.holdings import ALLOCATION_LIVE, grants, live_allocations_of, merged, parts
from mainspring.control.store.records import ATTEMPT_LIVE, events_since, tenants
from mainspring.control.store.schema import allocations, attempts, jobs
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import MILLI
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.wire.events import TOLD_BY_CONTROLLER
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.simulator.proof.gang import Gang

_EVENTS_MAX = 1_000_000
_STATES = sa.select(jobs.c.id, jobs.c.state).order_by(jobs.c.ordinal)
_LIVE_ATTEMPTS = sa.select(attempts.c.id, attempts.c.job_id, attempts.c.state, attempts.c.cluster).where(
    attempts.c.state.in_(ATTEMPT_LIVE)
)
_HELD = sa.select(
    attempts.c.job_id, sa.func.sum(allocations.c.nodes * (allocations.c.ended_s - allocations.c.granted_s))
).join(attempts, allocations.c.attempt_id == attempts.c.id)
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
            self._check_holdings(connection)

    def check_leads(self, gangs: Mapping[AttemptId, Gang]) -> None:
        """Checks that of the leads of one epoch only one was ever listened to.

        Args:
            gangs: Every attempt's agents.

        Raises:
            AssertionError: There were two.
        """
        for attempt, gang in gangs.items():
            for epoch, leads in gang.acknowledged.items():
                assert len(leads) == 1, f"epoch {epoch} of {attempt} was led by agents {sorted(leads)}"

    def check_ends(self, gangs: Mapping[AttemptId, Gang]) -> None:
        """Checks what holds once every job has ended: nothing runs, reports are kept once, time and money add up.

        Args:
            gangs: Every attempt's agents; the last that a lead told may never have arrived.

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
            for attempt, gang in gangs.items():
                of_attempt = [one for one in everything if one.attempt == attempt]
                kept = [(one.kind, one.detail) for one in of_attempt if one.kind not in TOLD_BY_CONTROLLER]
                for reports in gang.told:
                    wanted = [(one.kind, one.detail) for one in reports]
                    own = [one for one in kept if wanted and one[1]["epoch"] == wanted[0][1]["epoch"]]
                    assert own == wanted[: len(own)], f"of {len(wanted)} reports of {attempt}, {len(own)} are kept"
                epochs = [int(one[1]["epoch"]) for one in kept]
                assert epochs == sorted(epochs), f"{attempt} listened to a lead after its successor"
            held_s = {row[0]: row[1] for row in connection.execute(_HELD.group_by(attempts.c.job_id))}
        for job in self._submitted:
            _check_account(self._control, job, held_s.get(job, 0.0), now_s)

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
                held[TeamName(row.team)] = held.get(TeamName(row.team), 0) + sum(cluster.orders[allocation].chip_milli)
        tree = {team.name: team for team in tenants(connection)}
        for team in tree.values():
            own = [milli for other, milli in held.items() if team.name in (other, tree[other].parent)]
            if team.chips_max is not None:
                most = team.chips_max * MILLI
                assert sum(own) <= most, f"{team.name} may hold {team.chips_max} chips and holds {sum(own)}"

    def _check_holdings(self, connection: sa.Connection) -> None:
        """Checks that what attempts are said to hold is what their allocations do, and fits the nodes."""
        rows = connection.execute(_LIVE_ATTEMPTS).all()
        live = [AttemptId(row.id) for row in rows]
        granted = grants(connection, live)
        own: dict[AttemptId, list[AllocationId]] = {attempt: [] for attempt in live}
        for one in sorted(live_allocations_of(connection, live), key=lambda one: (one.attempt, one.place)):
            own[one.attempt].append(one.id)
        held = parts(connection, [allocation for some in own.values() for allocation in some])
        used: dict[tuple[ClusterName, NodeName], int] = {}
        for row in rows:
            of = merged(held[allocation] for allocation in own[row.id])
            settled = row.state == AttemptState.STOPPING.value or of == granted[row.id]
            assert settled, f"{row.id} is said to hold {granted[row.id]} and holds {of}"
            for grant in of:
                for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
                    key = (ClusterName(row.cluster), node)
                    used[key] = used.get(key, 0) + milli
        for (name, node), milli in used.items():
            chips = {each.name: each.chips * MILLI for each in self._clusters[name].inner.inventory().nodes}
            assert milli <= chips[node], f"{node} of {name} has {chips[node]} and is granted {milli} times"


def _states(connection: sa.Connection) -> Mapping[JobId, JobState]:
    return {JobId(row.id): JobState(row.state) for row in connection.execute(_STATES)}


def _check_account(control: Control, job: JobId, held_s: float, now_s: float) -> None:
    """Checks that an ended job's node-seconds and dollars add up."""
    view = control.job(job)
    told = view.goodput
    assert (told is None) == (not view.attempts), f"{job} has {len(view.attempts)} attempts and account {told}"
    if told is None:
        return
    parts_s = sum(told.seconds.values())
    assert abs(parts_s - told.allocated_s) < 1e-3, f"{job}: parts of {parts_s} s, allocated {told.allocated_s} s"
    assert min(told.seconds.values()) >= 0, f"{job}: {told.seconds}"
    assert abs(held_s - told.allocated_s) < 1e-3, f"{job}: held {held_s} s, allocated {told.allocated_s} s"
    assert told.waited_s >= 0, f"{job}: waited {told.waited_s} s"
    assert all(attempt.dollars >= 0 for attempt in view.attempts)
