"""What attempts may do with the object store, and the credentials that they get for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from mainspring.checkpoint import job_folder
from mainspring.control.service.stored.owners import DatasetOwners, member_of
from mainspring.control.store.records import AttemptRecord, JobRecord, jobs_by_id, removed_jobs, specs
from mainspring.control.store.restores.postings import posting
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import Caller, covered, sight
from mainspring.data.views.places import golden_folder, view_key
from mainspring.domain.answers.policies.releases import ARTIFACTS
from mainspring.domain.errors import NotAllowed, NotFound
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import JobSpec, checkpoint_named
from mainspring.domain.life import ended
from mainspring.domain.wire import CredentialsWanted, StoreCredentials, ViewCredentialsWanted
from mainspring.objects import BLOBS, Access, Grants

VIEWS_OPENED_MAX = 2  # Beside checkpoints in one session; see `READS_MAX`. An evaluation reads one.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked for, and the views that are to be read besides, as far as whoever asks may.

    Args:
        team: Whose job it is.
        needed: Whether each view is, so that one that may not be read is refused.
    """

    access: Access
    holder: str
    team: TeamName
    views: Sequence[str] = ()
    needed: bool = True


def granted(
    store: Store,
    call: CredentialsWanted | ViewCredentialsWanted,
    caller: Caller,
    *,
    grants: Grants | None,
    owners: DatasetOwners,
) -> StoreCredentials:
    """Returns credentials for an attempt's part of the object store, for a view that its job names, or for all that
    its ranks are to read of checkpoints and releases.

    Args:
        grants: Gives them, None for a server that gives none.
        owners: Whose the data is: of a view that is another team's by now nobody gets any.

    Raises:
        NotFound: No such allocation or view, the job names nothing to be read, or the server gives none.
        NotAllowed: The token is not the attempt's, the attempt is over, the job's team may not read what is named,
            that is more than one session can be for, or the store refuses.
        Unavailable: The store does not answer.
    """
    tried = "get credentials of the object store"
    with store.read() as connection:
        attempt = posting(connection, call.allocation, caller).attempt
        caller.require_attempt(attempt.id, tried)
        if grants is None:
            raise NotFound(tried, got="a server without objects_role")
        if ended(attempt.state):  # One that is stopping saves its last step still.
            raise NotAllowed(tried, on=attempt.id, got=f"an attempt that is {attempt.state.value}", wanted="a live one")
        asked = _asked(connection, attempt, call)
    views = asked.views
    if asked.needed:
        for view in views:
            owners.require_view(view, asked.team)
    else:
        views = owners.readable_views(views, asked.team, most=VIEWS_OPENED_MAX)
    return grants.grant(_with_views(asked.access, views), holder=asked.holder)


def _asked(
    connection: sa.Connection, attempt: AttemptRecord, call: CredentialsWanted | ViewCredentialsWanted
) -> _Asked:
    spec, job = specs(connection, [attempt.job])[attempt.job], jobs_by_id(connection, [attempt.job])[attempt.job]
    team, begun = job.team, _begun(connection, spec, job)
    if isinstance(call, CredentialsWanted):
        code = (spec.code.key,) if spec.code.key else ()
        access = Access(writes=(job_folder(attempt.job),), reads=begun, objects=code)
        return _Asked(access=access, holder=attempt.id, team=team)
    if not call.view:
        access, views = _named(connection, spec, begun), _views_opened(connection, spec)
        return _Asked(access=access, holder=f"{attempt.id}.reads", team=team, views=views, needed=False)
    if call.view not in spec.views:
        raise NotFound(
            "read a view",
            on=call.view[:80],
            got=f"a job that names {len(spec.views)} others" if spec.views else "a job that names none",
            wanted="one that its spec names under 'views'",
            next_step="ms run --view VIEW",
        )
    return _Asked(access=Access(reads=begun), holder=f"{attempt.id}.{call.view}", team=team, views=(call.view,))


def _begun(connection: sa.Connection, spec: JobSpec, job: JobRecord) -> tuple[str, ...]:
    """Returns the folder of what a job begins from; none for one that has begun, where its team may read that no more.

    Raises:
        NotAllowed: Its team may not, and it has not begun.
    """
    source = _source(spec)
    try:
        _require_readable(connection, spec.team, source, "begin from a checkpoint")
    except NotAllowed:
        if job.step < 0:
            raise
        return ()  # It is to save still, and goes on from what it saved.
    return tuple(map(job_folder, source))


def _named(connection: sa.Connection, spec: JobSpec, begun: tuple[str, ...]) -> Access:
    """Returns what ranks may do with the checkpoints and releases that their spec names: read, and of the step that
    they evaluate keep reports, where their team may add to its job.

    Raises:
        NotFound: It names none.
        NotAllowed: The job's team may not read them.
    """
    if not spec.reads and not spec.evaluates:
        raise NotFound(
            "read a checkpoint",
            got="a job that names none",
            wanted="one that its spec names under 'reads' or 'evaluates'",
            next_step="credentials of its own, as secrets of its team",
        )
    _require_readable(connection, spec.team, spec.jobs_read, "read a checkpoint")
    job, step = checkpoint_named(spec.evaluates)
    keeps = bool(job) and _may_add(connection, spec.team, JobId(job))
    return Access(
        writes=(f"{job_folder(JobId(job))}/evaluations/{step}",) if keeps else (),
        reads=tuple(dict.fromkeys((*map(job_folder, spec.jobs_read), *begun))),
        named=(ARTIFACTS,) if spec.reads_releases else (),
    )


def require_jobs_read(
    connection: sa.Connection, spec: JobSpec, attempted: str, *, grants: Grants | None = None
) -> None:
    """Returns if people of a spec's team may read the jobs that it reads and begins from, and one session may be for
    all that it reads.

    What no job made is an import: they are everybody's.

    Args:
        grants: Gives sessions, None for a server that gives none.

    Raises:
        NotAllowed: They may not, or it is too much.
    """
    _require_readable(connection, spec.team, (*spec.jobs_read, *_source(spec)), attempted)
    if grants is not None and (spec.reads or spec.evaluates):
        access = _named(connection, spec, tuple(map(job_folder, _source(spec))))
        grants.check(_with_views(access, _views_opened(connection, spec)[:VIEWS_OPENED_MAX]))


def _require_readable(connection: sa.Connection, team: TeamName, jobs: Sequence[JobId], attempted: str) -> None:
    readable = sight(connection, member_of(team)) if jobs else None
    if readable is None:
        return
    for job, theirs in _teams_of(connection, jobs).items():
        if theirs not in readable:
            raise NotAllowed(
                attempted,
                on=f"job {job}",
                got=f"one that people of team {team!r} may not read",
                wanted="one of the team, or of one below",
                next_step="run it for a team that may: --team TEAM",
            )


def _may_add(connection: sa.Connection, team: TeamName, job: JobId) -> bool:
    """Returns whether people of a team may keep something with a job."""
    own = covered(connection, member_of(team))
    return own is None or all(theirs in own for theirs in _teams_of(connection, [job]).values())


def _teams_of(connection: sa.Connection, jobs: Iterable[JobId]) -> Mapping[JobId, TeamName]:
    """Returns the team of each of some jobs that there is, or was."""
    known = {job: one.team for job, one in removed_jobs(connection, jobs).items()}
    return known | {job: one.team for job, one in jobs_by_id(connection, jobs).items()}


def _source(spec: JobSpec) -> tuple[JobId, ...]:
    return (JobId(checkpoint_named(spec.begins_from)[0]),) if spec.begins_from else ()


def _views_opened(connection: sa.Connection, spec: JobSpec) -> tuple[str, ...]:
    """Returns the views that a spec names, else those that the job of what it evaluates does, while that is known."""
    if spec.views or not spec.evaluates:
        return spec.views
    job = JobId(checkpoint_named(spec.evaluates)[0])
    found = specs(connection, [job]) if job in jobs_by_id(connection, [job]) else {}
    return found[job].views if found else ()


def _with_views(access: Access, views: Sequence[str]) -> Access:
    if not views:
        return access
    return replace(
        access,
        reads=(*access.reads, *map(golden_folder, views)),
        objects=(*access.objects, *map(view_key, views)),
        named=(*access.named, BLOBS),
    )
