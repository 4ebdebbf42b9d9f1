"""Admission: what a request for jobs must meet before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.service.machines import KnownMachines
from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter, member_name
from mainspring.control.store.records import (
    ACTIVE_MAX,
    JOB_LIVE,
    JobRecord,
    chunks,
    jobs_by_id,
    read_text,
    tenants,
    text_of,
)
from mainspring.control.store.schema import KEY_LENGTH_MAX, jobs
from mainspring.control.store.secrets import SecretKeys, values_for
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import Caller, sight
from mainspring.domain.answers import Submit
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound, nearest
from mainspring.domain.ids import JobId, TeamName, checked_name, draw_id
from mainspring.domain.job import LAB, JobSpec
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.team import Right, user_of, with_those_above

SPEC_BYTES_MAX = 1 << 20
_COUNT_S = 1.0  # Counting 100,000 jobs takes some milliseconds.
_MADE = (jobs.c.id, jobs.c.submit_key, jobs.c.spec, jobs.c.array_count)


@final
class Submits:
    """Takes jobs: checks every part of a request, then writes all of it or nothing. Used by many threads.

    Args:
        machines: What clusters have.
        dice: Draws ids.
        keys: What secrets are kept under: a job that names one that cannot be read is refused.
        wake: Told that there is something to plan.
        run_as: The users that jobs run as, by team; none where all run under one account.
    """

    def __init__(
        self,
        store: Store,
        machines: KnownMachines,
        clock: Clock,
        dice: Dice,
        keys: SecretKeys,
        wake: Callable[[], None],
        *,
        run_as: Mapping[str, str],
    ) -> None:
        self._run_as = run_as
        self._keys = keys
        self._store = store
        self._machines = machines
        self._clock = clock
        self._dice = dice
        self._wake = wake
        self._live = 0
        self._counted_s = -inf

    def submit(self, submits: Sequence[Submit], caller: Caller) -> Sequence[JobId]:
        """Returns the job that each request made, now or when its key was first used; of an array, the first.

        Args:
            caller: A member of every spec's team.

        Raises:
            NotAllowed: The caller is not, or there is no user that a team's jobs run as.
            NotFound: There is no such team, a job one comes after is not known, or a secret that one names.
            ImpossibleJob: No cluster could ever run one.
            Unavailable: A secret that one names cannot be read.
            Conflict: A key made a job of another spec, or stands here twice.
            InvalidInput: A key, a spec or an array's name is too long, or too many jobs wait.
        """
        for submit in submits:
            _require_short(submit)
        with self._store.read() as connection:
            for team in dict.fromkeys(submit.spec.team for submit in submits):
                _require_known(connection, team)
                caller.require(connection, Right.SUBMIT_JOBS, team)
                self._require_user(connection, team)
        impossible = {at: error for at, one in enumerate(submits) if (error := self._machines.impossible(one.spec))}

        def write(connection: sa.Connection) -> dict[int, JobId]:
            made = _made_before(connection, submits)
            for at, error in impossible.items():
                if at not in made:
                    raise error
            return made | self._write(connection, {at: one for at, one in enumerate(submits) if at not in made}, caller)

        made = self._store.write_together(write)
        self._wake()
        return [made[at] for at in range(len(submits))]

    def _write(self, connection: sa.Connection, fresh: Mapping[int, Submit], caller: Caller) -> dict[int, JobId]:
        if not fresh:
            return {}
        self._require_room(connection, sum(submit.count for submit in fresh.values()))
        after = dict.fromkeys(job for submit in fresh.values() for job in submit.spec.after)
        _require_jobs(connection, list(after), sight(connection, caller))
        for team, names in dict.fromkeys((one.spec.team, one.spec.secrets) for one in fresh.values()):
            if names:
                caller.require(connection, Right.USE_SECRETS, team)
                values_for(connection, self._keys, team, names)
        new = {at: (submit, self._draw(submit.count)) for at, submit in fresh.items()}
        now_s = self._clock.now_s()
        StateWriter(connection, now_s).submit(list(new.values()), owner=caller.holder)
        for team in dict.fromkeys(submit.spec.team for submit in fresh.values()):
            own = [ids[0] for submit, ids in new.values() if submit.spec.team == team]
            words = "submit a job" if len(own) == 1 else f"submit {len(own)} jobs"
            note(connection, caller, words, own[0], team=team, now_s=now_s)
        return {at: ids[0] for at, (_, ids) in new.items()}

    def _require_room(self, connection: sa.Connection, more: int) -> None:
        """Refuses jobs beyond what one loop looks at; they are counted now and then, and what came since is added.

        Args:
            more: How many are to come.

        Raises:
            InvalidInput: There would be too many.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_s >= _COUNT_S or self._live + more > ACTIVE_MAX:
            live = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state.in_(JOB_LIVE))
            self._live, self._counted_s = connection.execute(live).scalar_one(), now_s
        if self._live + more > ACTIVE_MAX:
            got = f"{self._live} jobs that have not ended"
            raise InvalidInput("submit a job", got=got, wanted=f"at most {ACTIVE_MAX}")
        self._live += more

    def _require_user(self, connection: sa.Connection, team: TeamName) -> None:
        if self._run_as and not user_of(self._run_as, with_those_above(tenants(connection), team)):
            raise NotAllowed(
                "submit a job",
                on=f"team {team!r}",
                got="no user of the machine to run its jobs as",
                wanted="one for the team, for one above it, or for all",
                next_step="name it under run_as in the server's config.yaml, and start the server again",
            )

    def _draw(self, count: int) -> Sequence[JobId]:
        drawn, width = draw_id("job", self._dice), len(str(count - 1))
        return [JobId(f"{drawn}-{index:0{width}}") for index in range(count)] if count > 1 else [JobId(drawn)]


def _require_known(connection: sa.Connection, team: TeamName) -> None:
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


def _require_short(submit: Submit) -> None:
    """Refuses names beyond their bounds, and a spec that nobody wrote by hand: every look at a job reads it."""
    spec = submit.spec
    if len(submit.key) > KEY_LENGTH_MAX:
        raise InvalidInput("submit a job", on="field 'key'", wanted=f"at most {KEY_LENGTH_MAX} letters")
    if submit.count > 1:
        checked_name(member_name(spec.name, submit.count - 1), "the last job of an array")
    size = len(text_of(spec).encode())
    if size > SPEC_BYTES_MAX:
        raise InvalidInput(
            "submit a job",
            on=f"job {spec.name}",
            got=f"a spec of {size} bytes",
            wanted=f"at most {SPEC_BYTES_MAX}",
            next_step="put what is long into a file of the code or a dataset",
        )


def _made_before(connection: sa.Connection, submits: Sequence[Submit]) -> dict[int, JobId]:
    """Returns the jobs that requests' keys made before, by place."""
    at_key: dict[tuple[TeamName, str], int] = {}
    for at, submit in enumerate(submits):
        if submit.key and at_key.setdefault((submit.spec.team, submit.key), at) != at:
            raise Conflict("submit jobs", on=f"key {submit.key!r}", got="two submits under it", wanted="one")
    found = {}
    for some in chunks(list(at_key)):
        for team in dict.fromkeys(team for team, _ in some):
            own = (jobs.c.team == team, jobs.c.submit_key.in_([key for of, key in some if of == team]))
            for row in connection.execute(sa.select(*_MADE).where(*own)):
                at = at_key[team, row.submit_key]
                _require_same(row, submits[at])
                found[at] = JobId(row.id)
    return found


def _require_same(made: Any, submit: Submit) -> None:
    # Texts differ for equal specs when one was written by a version with other fields.
    same = made.spec == text_of(submit.spec) or read_text(JobSpec, made.spec) == submit.spec
    if not same or (made.array_count or 1) != submit.count:
        raise Conflict(
            "submit a job",
            on=f"key {submit.key!r}",
            got=f"another spec than the one that made {made.id}",
            next_step="submit it under a key of its own",
        )


def _require_jobs(connection: sa.Connection, after: Sequence[JobId], seen: frozenset[TeamName] | None) -> None:
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
