"""Admission: what a request for jobs must meet before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from mainspring.control.store.records import ACTIVE_MAX, JOB_LIVE, JobRecord, jobs_by_id, read_text, tenants, text_of
from mainspring.control.store.schema import jobs
from mainspring.domain.answers import Submit
from mainspring.domain.errors import Conflict, InvalidInput, NotFound, nearest
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB, JobSpec

SPEC_BYTES_MAX = 1 << 20


def require_known(connection: sa.Connection, team: TeamName) -> None:
    """Refuses a team that nobody placed in the tree: most likely a slip of the pen, which no quota would bind.

    Args:
        team: The team of a spec.

    Raises:
        NotFound: Nobody has.
    """
    known = {LAB, *(team.name for team in tenants(connection))}
    if team not in known:
        raise NotFound(
            "submit a job", on=f"team {team!r}", wanted=nearest(team, known), next_step=f"ms team set {team}"
        )


def require_small(spec: JobSpec) -> None:
    """Refuses a spec that nobody wrote by hand: every look at a job reads it.

    Raises:
        InvalidInput: It is too long.
    """
    size = len(text_of(spec).encode())
    if size > SPEC_BYTES_MAX:
        raise InvalidInput(
            "submit a job",
            on=f"job {spec.name}",
            got=f"a spec of {size} bytes",
            wanted=f"at most {SPEC_BYTES_MAX}",
            next_step="put what is long into a file of the code or a dataset",
        )


def made_before(connection: sa.Connection, submit: Submit) -> JobId | None:
    """Returns the job that a request's key made before, None for none.

    Raises:
        Conflict: It was made of another spec.
    """
    if not submit.key:
        return None
    own = (jobs.c.team == submit.spec.team, jobs.c.submit_key == submit.key)
    made = connection.execute(sa.select(jobs.c.id, jobs.c.spec, jobs.c.array_count).where(*own)).one_or_none()
    if made is None:
        return None
    # Texts differ for equal specs when one was written by a version with other fields.
    same = made.spec == text_of(submit.spec) or read_text(JobSpec, made.spec) == submit.spec
    if not same or (made.array_count or 1) != submit.count:
        raise Conflict(
            "submit a job",
            on=f"key {submit.key!r}",
            got=f"another spec than the one that made {made.id}",
            next_step="submit it under a key of its own",
        )
    return JobId(made.id)


def require_room(connection: sa.Connection, more: int) -> None:
    """Refuses jobs beyond what one loop looks at.

    Args:
        more: How many are to come.

    Raises:
        InvalidInput: There would be too many.
    """
    live = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state.in_(JOB_LIVE))
    count = connection.execute(live).scalar_one()
    if count + more > ACTIVE_MAX:
        raise InvalidInput("submit a job", got=f"{count} jobs that have not ended", wanted=f"at most {ACTIVE_MAX}")


def require_jobs(connection: sa.Connection, after: Sequence[JobId], seen: frozenset[TeamName] | None) -> None:
    """Refuses jobs to come after that nobody submitted: the job would wait for ever.

    Args:
        seen: The teams whose jobs the caller may read, None for all.

    Raises:
        NotFound: One of them is not known.
    """
    known = jobs_by_id(connection, after)
    unknown = [job for job in after if job not in known or (seen is not None and known[job].team not in seen)]
    if unknown:
        raise NotFound("submit a job", on="field 'after'", got=f"no job {unknown[0][:80]!r}", next_step="ms ps")


def array_of(job: JobRecord) -> JobId:
    """Returns the first job of a job's array.

    Raises:
        NotFound: It belongs to no array.
    """
    if job.array is None:
        raise NotFound("find an array", on=job.id, got="a job that belongs to none")
    return job.array
