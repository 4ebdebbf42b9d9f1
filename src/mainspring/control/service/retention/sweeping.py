"""Sweeps: what is older than it is kept is archived, then removed, in transactions of a few rows each.

A job is removed only once a file of the archive has it and the store says which; whoever dies in between leaves a job
in both, which the next sweep removes, or a file that nothing speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.service.retention.archive import Archive
from mainspring.control.service.retention.past_fleet import (
    LIVES_MAX,
    archived_at,
    clusters_at,
    holds_at,
    nodes_at,
    require_known,
    stored_at,
    with_archived,
)
from mainspring.control.service.retention.past_jobs import (
    beyond,
    life_of,
    not_archived,
    note_archived,
    old_but_wanted,
    over_jobs,
    place_of,
    remove_jobs,
)
from mainspring.control.service.retention.snapshots import CodeSnapshot, old_snapshots, unnamed
from mainspring.control.service.views import find_job
from mainspring.control.store.audit import note
from mainspring.control.store.nodes.samples import KEPT_S, old_samples
from mainspring.control.store.nodes.tables import maintenance, node_repairs, rule_cases
from mainspring.control.store.records import chunks, jobs_by_id
from mainspring.control.store.schema import (
    archives,
    closures,
    events,
    health_events,
    node_states,
    plans,
    tokens,
)
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, sight
from mainspring.domain.answers import JobHistory, PastFleet, Sweep
from mainspring.domain.errors import Conflict, MainspringError, NotFound
from mainspring.domain.fleet import EndedBefore
from mainspring.domain.ids import ClusterName, JobId
from mainspring.domain.job import LAB
from mainspring.domain.life import DAYS_MIN
from mainspring.domain.ports import Clock, Engine, Forgetting
from mainspring.domain.team import Right
from mainspring.objects import open_store
from mainspring.samples import samples_folder

FILE_JOBS = 500  # Of one file: a megabyte or so; 10,000 files hold five million jobs.
TOLD_MAX = 100_000  # Jobs that a dry run counts.
SNAPSHOTS_AT_ONCE = 100  # Removed of one listing, within a few seconds of it.
SHOWN_MAX = 1_000  # Snapshots that a dry run names.
_DAY_S = 86_400.0
_SPARED_S = _DAY_S  # What is younger goes for no bound of bytes: people are looking at it.
_GIB = 1 << 30
FORGOTTEN_AT_ONCE = 50  # Allocations of one cluster; each may have gigabytes of output.
_FILES_S = 3_600.0  # Between two looks at all snapshots of code, and at all that engines remember.
_READ_AT_ONCE = 25  # Jobs whose lives are read at one instant, or removed in one transaction: some milliseconds.
_ROWS_AT_ONCE = 500
_SAMPLES_AT_ONCE = 20_000  # Of health events, which are many and small.
_open = lru_cache(maxsize=4)(open_store)


def _go_on() -> None:
    """Waits for nothing."""


@final
class Keeping:
    """What one controller keeps of what is over. Used by many threads.

    Args:
        objects_url: Where the archive is.
        engines: The clusters, by name.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        objects_url: str,
        settings: Settings,
        engines: Mapping[ClusterName, Engine],
    ) -> None:
        self._store = store
        self._clock = clock
        self._objects_url = objects_url
        self._keep = settings.keep
        self._lease_s = settings.lease_s
        self._engines = engines
        self._files_s = 0.0  # When what lies outside the store is looked at again.

    def history(self, reference: str, caller: Caller = LAB_ITSELF) -> JobHistory:
        """Returns a job's whole life, from the store or from the archive.

        Args:
            reference: Its id, or a name; of several with one name, the newest.
            caller: Who asks: somebody else's job is not found.

        Raises:
            NotFound: No such job.
            DamagedData: What the archive has of it is damaged.
            Unavailable: The archive does not answer.
        """
        with self._store.read() as connection:
            try:
                job = find_job(connection, reference, caller)
                return life_of(connection, job, now_s=self._clock.now_s(), lease_s=self._lease_s)
            except NotFound:
                place = place_of(connection, reference, sight(connection, caller))
                if place is None:
                    raise
        return self._archive.read(place.number, place.frame)

    def fleet_at(self, caller: Caller = LAB_ITSELF, *, at_s: float, limit: int) -> PastFleet:
        """Returns the fleet at a time, from the store, and of jobs that left it from the archive.

        Args:
            caller: Who asks: of jobs that it may not read only their number is told.
            at_s: The time.
            limit: The most attempts to return, and closed nodes of a cluster.

        Raises:
            NotFound: Nothing is known of so long ago, or the time has not come.
            Unavailable: The archive does not answer.
        """
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            require_known(connection, at_s, now_s=now_s)
            seen = sight(connection, caller)
            nodes = nodes_at(connection, at_s, known_s=now_s - self._keep.days * _DAY_S)
            held, stored = holds_at(connection, at_s), stored_at(connection, at_s)
            places = archived_at(connection, at_s)
        lives = self._archive.read_each(places[:LIVES_MAX]) if places else ()
        jobs = with_archived(stored, lives, at_s)
        return PastFleet(
            at_s=at_s,
            clusters=clusters_at(nodes, held, jobs.attempts, limit=limit),
            running=jobs.running,
            waiting=jobs.waiting,
            attempts=tuple(one for one in jobs.attempts if seen is None or one.team in seen)[:limit],
            unread=len(places) - len(lives),
        )

    def collect(self, caller: Caller = LAB_ITSELF, *, dry_run: bool = False) -> Sweep:
        """Archives and removes a part of what is older than it is kept; returns what, nothing once all is done.

        Args:
            dry_run: Only tell how much there is, at most `TOLD_MAX` jobs.

        Raises:
            NotAllowed: The caller does not operate the lab.
            MainspringError: The archive cannot be written; what was to go stays.
        """
        with self._store.read() as connection:
            caller.require(connection, Right.KEEP_STORE, LAB)
        if dry_run:
            return self._told(self._clock.now_s())
        done = self.sweep(at_once=True)
        if replace(done, silent=()) != Sweep():
            with self._store.write() as connection:
                note(connection, caller, "sweep", f"{done.jobs} jobs", team=LAB, now_s=self._clock.now_s())
        return done

    def sweep(self, *, at_once: bool = False, pause: Callable[[], object] = _go_on) -> Sweep:
        """Archives and removes some of what is older than it is kept: up to `FILE_JOBS` jobs, and a few of all else.

        Args:
            at_once: Whether to write a file of few jobs too, and not to wait until a day's are there.
            pause: Called between two transactions.

        Raises:
            MainspringError: As `collect`.
        """
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            over = self._over(connection, now_s, FILE_JOBS)
            fresh = not_archived(connection, over)
            first_s = min((job.ended_s or 0.0 for job in jobs_by_id(connection, fresh).values()), default=now_s)
        if len(fresh) < FILE_JOBS and not at_once and first_s > now_s - (self._keep.days + 1) * _DAY_S:
            over = [job for job in over if job not in set(fresh)]
            fresh = []
        self._put_away(fresh, now_s, pause)
        samples = 0
        for some in chunks(over, _READ_AT_ONCE):
            gone = False
            samples += self._drop_samples(some)
            while not gone:
                pause()
                with self._store.write() as connection:
                    gone = remove_jobs(connection, some)
        rows: dict[str, Any] = {}
        for name, old in _old_rows(now_s - self._keep.days * _DAY_S, now_s - KEPT_S).items():
            pause()
            with self._store.write() as connection:
                rows[name] = connection.execute(sa.delete(old.column.table).where(old.column.in_(old.query))).rowcount
        if at_once or now_s >= self._files_s:
            code, ended = self._sweep_code(now_s, pause), self._forget(now_s, limit=FORGOTTEN_AT_ONCE)
            if code < SNAPSHOTS_AT_ONCE and not ended.left:
                self._files_s = now_s + _FILES_S
            rows |= {"snapshots": code, "allocations": ended.allocations, "silent": ended.silent}
        return Sweep(**rows, archived=len(fresh), jobs=len(over), samples=samples)

    def _drop_samples(self, of: Sequence[JobId]) -> int:
        """Removes what ranks of some jobs reported; returns how many files that were."""
        objects = _open(self._objects_url)
        keys = [seen.key for job in of for seen in objects.list(samples_folder(job))]
        for key in keys:
            objects.delete(key)
        return len(keys)

    @property
    def _archive(self) -> Archive:
        return Archive(_open(self._objects_url))

    def _over(self, connection: sa.Connection, now_s: float, limit: int) -> Sequence[JobId]:
        """Returns jobs that are to leave: for their age, or because there are too many."""
        aged = over_jobs(connection, before_s=now_s - self._keep.days * _DAY_S, limit=limit)
        many = min(limit, beyond(connection, self._keep.jobs))
        if len(aged) >= many:
            return aged
        return over_jobs(connection, before_s=now_s - DAYS_MIN * _DAY_S, limit=many)

    def _put_away(self, fresh: Sequence[JobId], now_s: float, pause: Callable[[], object]) -> None:
        """Writes a file of jobs to the archive, and where they are in it to the store."""
        lives, newest = list[JobHistory](), 0
        for some in chunks(fresh, _READ_AT_ONCE):
            pause()
            with self._store.read() as connection:
                found = jobs_by_id(connection, some)
                lives += [life_of(connection, found[job], now_s=now_s, lease_s=self._lease_s) for job in some]
                newest = connection.execute(sa.select(sa.func.max(archives.c.number))).scalar_one() or 0
        if lives:
            file = self._archive.write([replace(life, archived=True) for life in lives], number=newest + 1)
            with self._store.write() as connection:
                if not_archived(connection, fresh) != fresh:
                    raise Conflict("archive jobs", got="another sweep, which has some of them", next_step="try again")
                note_archived(connection, lives, file, now_s)

    def _sweep_code(self, now_s: float, pause: Callable[[], object]) -> int:
        """Removes some snapshots of code that no job names; returns how many.

        Few of one listing, right after it: what is submitted meanwhile is seen by the next.
        """
        objects, old = _open(self._objects_url), self._old_snapshots(now_s)
        with self._store.read() as connection:
            found = unnamed(connection, old)[:SNAPSHOTS_AT_ONCE]
        for one in found:
            pause()
            with self._store.read() as connection:
                keys = one.keys if unnamed(connection, [one]) else ()
            for key in keys:
                objects.delete(key)
        return len(found)

    def _forget(self, now_s: float, *, limit: int) -> _Forgotten:
        """Has engines remove what is left of allocations that ended long ago, but for those of attempts that live.

        Args:
            limit: The most of each cluster; 0 to count them alone.
        """
        before_s, spared_s = now_s - self._keep.log_days * _DAY_S, now_s - _SPARED_S
        bytes_max = None if self._keep.log_gib is None else int(self._keep.log_gib * _GIB)
        with self._store.read() as connection:
            kept = old_but_wanted(connection, before_s=before_s if bytes_max is None else spared_s)
        due = EndedBefore(time_s=before_s, kept=kept, limit=limit, bytes_max=bytes_max, spared_s=spared_s)
        done, left, silent = 0, 0, list[ClusterName]()
        for name, engine in self._engines.items():
            if isinstance(engine, Forgetting):
                try:
                    count = engine.forget_ended(due)
                except MainspringError:  # A cluster that is away, or of a release that cannot do this.
                    silent.append(name)
                else:
                    done, left = done + min(count, limit), left + max(0, count - limit)
        return _Forgotten(allocations=done, left=left, silent=tuple(silent))

    def _old_snapshots(self, now_s: float) -> Sequence[CodeSnapshot]:
        keep = self._keep
        return old_snapshots(
            _open(self._objects_url),
            before_s=now_s - keep.code_days * _DAY_S,
            bytes_max=inf if keep.code_gib is None else keep.code_gib * _GIB,
            spared_s=now_s - _SPARED_S,
        )

    def _told(self, now_s: float) -> Sweep:
        """Returns what is to go."""
        snapshots, ended = self._old_snapshots(now_s), self._forget(now_s, limit=0)
        with self._store.read() as connection:
            over, code = self._over(connection, now_s, TOLD_MAX), unnamed(connection, snapshots)
            rows: dict[str, Any] = {
                name: len(connection.execute(old.query).all())
                for name, old in _old_rows(now_s - self._keep.days * _DAY_S, now_s - KEPT_S).items()
            }
            rows |= {
                "allocations": ended.left,
                "silent": ended.silent,
                "jobs": len(over),
                "archived": len(not_archived(connection, over)),
            }
        keys = tuple(one.keys[0] for one in code[:SHOWN_MAX])
        return Sweep(**rows, dry_run=True, snapshots=len(code), snapshot_keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forgotten:
    """How many allocations engines let go of, how many more there are, and which clusters could not be asked."""

    allocations: int
    left: int
    silent: tuple[ClusterName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OldRows:
    """A query of some rows of a table that are to go, by a column that names each."""

    column: sa.Column[Any]
    query: sa.Select[Any]


def _old_rows(before_s: float, samples_s: float) -> dict[str, _OldRows]:
    """Returns rows that belong to no job and are from before a time: of each table, of its oldest few.

    Args:
        samples_s: The same, for samples.
    """
    told = sa.select(events.c.sequence, events.c.time_s).where(events.c.job_id.is_(None)).order_by(events.c.sequence)
    made = sa.select(plans.c.number, plans.c.made_s).order_by(plans.c.number)
    oldest, first = told.limit(_ROWS_AT_ONCE).subquery(), made.limit(_ROWS_AT_ONCE).subquery()
    newest = sa.select(sa.func.max(plans.c.number)).scalar_subquery()  # Plans go on being numbered from there.
    of_people = (tokens.c.attempt_id.is_(None), tokens.c.expires_s < before_s)
    queries = {
        "events": (events.c.sequence, sa.select(oldest.c.sequence).where(oldest.c.time_s < before_s)),
        "node_states": (
            node_states.c.ordinal,
            sa.select(node_states.c.ordinal).where(node_states.c.until_s < before_s).limit(_ROWS_AT_ONCE),
        ),
        "plans": (plans.c.number, sa.select(first.c.number).where(first.c.made_s < before_s, first.c.number < newest)),
        "health_events": (health_events.c.number, old_samples(samples_s, _SAMPLES_AT_ONCE)),
        "closures": (
            closures.c.number,
            sa.select(closures.c.number)
            .where(closures.c.ended_s < before_s, sa.not_(closures.c.on_engine))
            .limit(_ROWS_AT_ONCE),
        ),
        "node_repairs": (
            node_repairs.c.number,
            sa.select(node_repairs.c.number).where(node_repairs.c.ended_s < before_s).limit(_ROWS_AT_ONCE),
        ),
        "rule_cases": (
            rule_cases.c.number,
            sa.select(rule_cases.c.number).where(rule_cases.c.until_s < before_s).limit(_ROWS_AT_ONCE),
        ),
        "maintenance": (
            maintenance.c.number,
            sa.select(maintenance.c.number).where(maintenance.c.until_s < before_s).limit(_ROWS_AT_ONCE),
        ),
        "tokens": (tokens.c.sha256, sa.select(tokens.c.sha256).where(*of_people).limit(_ROWS_AT_ONCE)),
    }
    return {name: _OldRows(column=column, query=query) for name, (column, query) in queries.items()}
