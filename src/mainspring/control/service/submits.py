"""Admission: what a request for jobs must meet before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.service.limits import require_room_for_jobs
from mainspring.control.service.machines import KnownMachines
from mainspring.control.service.stored.access import require_jobs_read
from mainspring.control.service.stored.owners import DatasetOwners
from mainspring.control.store.audit import Deed, note_all
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.records import (
    FreshJob,
    FreshWrites,
    JobRecord,
    RemovedJob,
    chunks,
    jobs_by_id,
    member_name,
    read_text,
    removed_jobs,
    tenants,
    text_of,
)
from mainspring.control.store.schema import KEY_LENGTH_MAX, jobs
from mainspring.control.store.secrets import SecretKeys, values_for
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Store, Together
from mainspring.control.store.tallies import Tally
from mainspring.control.store.tokens import Caller, sight
from mainspring.domain.answers import ArrayView, JobView, Submit
from mainspring.domain.codec import alike, encode_each
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, NotAllowed, NotFound, nearest
from mainspring.domain.ids import JobId, TeamName, checked_name, draw_id
from mainspring.domain.job import LAB, JobSpec, checkpoint_named
from mainspring.domain.life import JobState
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.team import Right, user_of, with_those_above
from mainspring.objects import Grants

SPEC_BYTES_MAX = 1 << 20
_NEW: dict[str, Any] = {
    "state": JobState.QUEUED,
    "ended_s": None,
    "reason": "",
    "step": -1,
    "metrics": {},
    "result": {},
    "array": None,
    "array_index": None,
    "array_count": None,
}  # Of a job that is in no array.
_ORDINAL = sa.select(jobs.c.ordinal).where(jobs.c.id == sa.bindparam("job"))
_MADE = (jobs.c.id, jobs.c.submit_key, jobs.c.spec, jobs.c.array_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMade:
    """A job that stands for a submit.

    Args:
        id: Its id; of an array, the first job's.
        submit: What it is made of.
        is_new: Whether it was made just now, and not under the same key before; what follows is told of new ones only.
        submitted_s: When.
        owner: Who submitted it.
        ordinal: The row it was written to.
    """

    id: JobId
    submit: Submit
    is_new: bool = True
    submitted_s: float = 0.0
    owner: str = ""
    ordinal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What one caller asks for.

    Args:
        texts: Of its specs.
        impossible: Why no cluster could ever run each, None where one could.
        refused: Why its data cannot be read, None where it can: that is held against new jobs alone, for who repeats
            a call after its answer was lost is to hear of what it made.
    """

    submits: Sequence[Submit]
    texts: Sequence[str]
    caller: Caller
    impossible: Sequence[MainspringError | None]
    refused: MainspringError | None

    @property
    def teams(self) -> Iterable[TeamName]:
        return dict.fromkeys(submit.spec.team for submit in self.submits)


@dataclass(frozen=True, slots=True)
class SubmitChecks:
    """What requests for jobs are held against, beside the jobs and teams that there are.

    Args:
        machines: What clusters have.
        keys: What secrets are kept under: a job that names one that cannot be read is refused.
        owners: Whose the lab's data is: nor may a job name what its submitter may not read.
        grants: Gives sessions of the object store, None for a server that gives none.
    """

    machines: KnownMachines
    keys: SecretKeys
    owners: DatasetOwners
    grants: Grants | None = None


@final
class Submits:
    """Takes jobs: checks every part of a request, then writes all of it or nothing. Used by many threads.

    Args:
        checks: What they are held against.
        dice: Draws ids.
        wake: Told that there is something to plan.
        settings: The users that jobs run as, by team, and what may wait.
    """

    def __init__(
        self,
        store: Store,
        checks: SubmitChecks,
        clock: Clock,
        dice: Dice,
        wake: Callable[[], None],
        *,
        settings: Settings,
    ) -> None:
        self._run_as = settings.run_as
        self._limits = settings.limits
        self._keys = checks.keys
        self.owners = checks.owners
        self._grants = checks.grants
        self._together = Together(store, self._write)
        self.machines = checks.machines
        self.fresh = FreshWrites()
        self._clock = clock
        self._dice = dice
        self._wake = wake

    def submit(self, submits: Sequence[Submit], caller: Caller) -> Sequence[JobMade]:
        """Returns the job that each request made, now or when its key was first used; of an array, the first.

        Args:
            caller: A member of every spec's team.

        Raises:
            NotAllowed: The caller is not, or there is no user that a team's jobs run as.
            NotFound: There is no such team, a job one comes after is not known, or a secret that one names; or the
                caller may not read a dataset or view that one names.
            ImpossibleJob: No cluster could ever run one.
            Unavailable: A secret that one names cannot be read.
            Conflict: A key made a job of another spec, or stands here twice.
            InvalidInput: A key, a spec or an array's name is too long, or a key not printable.
            LimitReached: Too many jobs would wait: of the caller, of a team, or of all.
        """
        (made,) = self.submit_each([(submits, caller)])
        if isinstance(made, Exception):
            raise made
        return made

    def submit_each(self, calls: Iterable[tuple[Sequence[Submit], Caller]]) -> Sequence[Sequence[JobMade] | Exception]:
        """Returns what each of several calls made at one time, or why it made nothing: see `submit`."""
        asked = [self._asked(submits, caller) for submits, caller in calls]
        told = iter(self._together.ask_each(one for one in asked if isinstance(one, _Asked)))
        made = [next(told) if isinstance(one, _Asked) else one for one in asked]
        self._wake()
        return made

    def require(self, connection: sa.Connection, spec: JobSpec, caller: Caller) -> None:
        """Returns if somebody may submit a spec, of which jobs are to be made later; writes nothing.

        Args:
            connection: From `Store.write`.

        Raises:
            MainspringError: See `submit`.
        """
        _require_short(Submit(spec=spec), len(text_of(spec).encode()))
        _require_known(connection, spec.team)
        caller.require(connection, Right.SUBMIT_JOBS, spec.team)
        self._require_user(connection, spec.team)
        if (error := self.machines.impossible(spec)) is not None:
            raise error
        self._require_named(connection, [Submit(spec=spec)], caller)

    def require_data(self, spec: JobSpec, caller: Caller) -> None:
        """Returns if somebody may have jobs read the data that a spec names; asks the object store.

        Raises:
            MainspringError: See `submit`.
        """
        self.owners.require_named([spec], caller)

    def _asked(self, submits: Sequence[Submit], caller: Caller) -> _Asked | MainspringError:
        texts = encode_each(submit.spec for submit in submits)
        try:
            for submit, text in zip(submits, texts, strict=True):
                _require_short(submit, len(text) if text.isascii() else len(text.encode()))
        except MainspringError as error:
            return error
        refused = None
        try:
            self.owners.require_named((one.spec for one in submits), caller)
        except MainspringError as error:
            if not any(one.key for one in submits):
                return error
            refused = error  # Unless they were made before, under their keys.
        impossible = self.machines.impossible_each([one.spec for one in submits])
        return _Asked(submits=submits, texts=texts, caller=caller, impossible=impossible, refused=refused)

    def _write(self, connection: sa.Connection, several: Sequence[_Asked]) -> Sequence[Sequence[JobMade]]:
        """Writes what several callers ask for at one time."""
        every = [submit for one in several for submit in one.submits]
        for caller, team in dict.fromkeys((one.caller, team) for one in several for team in one.teams):
            _require_known(connection, team)
            caller.require(connection, Right.SUBMIT_JOBS, team)
            self._require_user(connection, team)
        before = _made_before(connection, every)
        made = {at: JobMade(id=job, submit=every[at], is_new=False) for at, job in before.items()}
        fresh = [at for at in range(len(every)) if at not in made]
        texts = [text for one in several for text in one.texts]
        refusals = [(one.refused, error) for one in several for error in one.impossible]
        for at in fresh:
            for error in refusals[at]:
                if error is not None:
                    raise error
        if fresh:
            now_s = self._clock.now_s()
            for caller, own in _by_caller(several, made).items():
                self._require_named(connection, list(own.values()), caller)
                new = [(submit, texts[at], self._draw(submit.count)) for at, submit in own.items()]
                require_room_for_jobs(connection, self._limits, caller, _tallied(new))
                StateWriter(connection, now_s).submit(new, owner=caller.holder)
                # Of those that one writer writes together they follow each other.
                ordinal = connection.execute(_ORDINAL, {"job": new[0][2][0]}).scalar_one()
                for at, (submit, _, ids) in zip(own, new, strict=True):
                    made[at] = JobMade(
                        id=ids[0], submit=submit, submitted_s=now_s, owner=caller.holder, ordinal=ordinal
                    )
                    ordinal += len(ids)
            # Before they are in the store: at that moment the loop may look. What never comes there nobody asks for.
            self.fresh.jobs.put({made[at].id: _fresh(made[at]) for at in fresh})
        told = iter([made[at] for at in range(len(every))])
        answers = [tuple(islice(told, len(one.submits))) for one in several]
        deeds = [deed for one, jobs in zip(several, answers, strict=True) for deed in _deeds(one.caller, jobs)]
        if deeds:
            note_all(connection, deeds, self._clock.now_s())
        return answers

    def _require_named(self, connection: sa.Connection, fresh: Sequence[Submit], caller: Caller) -> None:
        """Refuses jobs to come after, checkpoints and secrets that are not there for the caller."""
        if any(one.spec.after or one.spec.begins_from or one.spec.jobs_read for one in fresh):
            _require_jobs(connection, [one.spec for one in fresh], sight(connection, caller))
        named = attrgetter("team", "reads", "evaluates", "begins_from", "views")
        for spec in {named(one.spec): one.spec for one in fresh}.values():
            require_jobs_read(connection, spec, "submit a job", grants=self._grants)
        for team, names in dict.fromkeys((one.spec.team, one.spec.secrets) for one in fresh):
            if names:
                caller.require(connection, Right.USE_SECRETS, team)
                values_for(connection, self._keys, team, names)

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


def _require_short(submit: Submit, size: int) -> None:
    """Refuses names beyond their bounds, and a spec that nobody wrote by hand: every look at a job reads it."""
    spec = submit.spec
    if len(submit.key) > KEY_LENGTH_MAX or not submit.key.isprintable():
        got, wanted = repr(submit.key[:80]), f"at most {KEY_LENGTH_MAX} printable letters"
        raise InvalidInput("submit a job", on="field 'key'", got=got, wanted=wanted)
    if submit.count > 1:
        checked_name(member_name(spec.name, submit.count - 1), "the last job of an array")
    if size > SPEC_BYTES_MAX:
        raise InvalidInput(
            "submit a job",
            on=f"job {spec.name}",
            got=f"a spec of {size} bytes",
            wanted=f"at most {SPEC_BYTES_MAX}",
            next_step="put what is long into a file of the code or a dataset",
        )


def _by_caller(several: Sequence[_Asked], made: Collection[int]) -> Mapping[Caller, Mapping[int, Submit]]:
    """Returns what each caller asks for, by place, but for what was made before."""
    found: dict[Caller, dict[int, Submit]] = {}
    first = 0
    for one in several:
        own = {at: submit for at, submit in enumerate(one.submits, first) if at not in made}
        first += len(one.submits)
        if own:
            found.setdefault(one.caller, {}).update(own)
    return found


def _tallied(fresh: Iterable[tuple[Submit, str, Sequence[JobId]]]) -> Mapping[TeamName, Tally]:
    """Returns how much is to come, by team."""
    counts: Counter[TeamName] = Counter()
    letters: Counter[TeamName] = Counter()
    for submit, text, ids in fresh:
        counts[submit.spec.team] += len(ids)
        letters[submit.spec.team] += len(text)
    return {team: Tally(jobs=count, letters=letters[team]) for team, count in counts.items()}


def _deeds(caller: Caller, made: Sequence[JobMade]) -> list[Deed]:
    """Returns what the audit log says of the jobs that one call made: a line for each team."""
    firsts: dict[TeamName, list[JobId]] = {}
    for one in made:
        if one.is_new:
            firsts.setdefault(one.submit.spec.team, []).append(one.id)
    return [
        Deed(
            caller=caller,
            action="submit a job" if len(own) == 1 else f"submit {len(own)} jobs",
            target=own[0],
            team=team,
        )
        for team, own in firsts.items()
    ]


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


def _require_jobs(connection: sa.Connection, fresh: Sequence[JobSpec], seen: frozenset[TeamName] | None) -> None:
    """Refuses jobs to come after that nobody submitted, for the job would wait for ever, and checkpoints of jobs that
    the caller may not read. What no job made is an import: they are everybody's.

    Args:
        seen: The teams whose jobs the caller may read, None for all.

    Raises:
        NotFound: One of them is not there for the caller.
    """
    after = dict.fromkeys(job for spec in fresh for job in spec.after)
    sources = dict.fromkeys(JobId(checkpoint_named(spec.begins_from)[0]) for spec in fresh if spec.begins_from)
    evaluated = dict.fromkeys(JobId(checkpoint_named(spec.evaluates)[0]) for spec in fresh if spec.evaluates)
    read = dict.fromkeys(job for spec in fresh for job in spec.jobs_read if job not in evaluated)
    named = [*after, *sources, *evaluated, *read]
    known: dict[JobId, JobRecord | RemovedJob] = {**removed_jobs(connection, named)}
    known |= jobs_by_id(connection, named)
    hidden = {job for job, found in known.items() if seen is not None and found.team not in seen}
    for job in after:
        if job not in known or job in hidden:
            raise NotFound("submit a job", on="field 'after'", got=f"no job {job[:80]!r}", next_step="ms ps")
    for field, wanted in (("begins_from", sources), ("evaluates", evaluated), ("reads", read)):
        for job in wanted:
            if job in hidden:
                told = f"no checkpoint of {job[:80]!r}"
                raise NotFound("submit a job", on=f"field {field!r}", got=told, next_step="ms checkpoint ls")


def _fresh(made: JobMade) -> FreshJob:
    """Returns a job that was made just now, as the store has it."""
    spec, record = made.submit.spec, None
    if made.submit.count == 1:
        record = JobRecord(**alike(JobRecord, spec, made), **_NEW)
    return FreshJob(spec=spec, record=record)


def view_new(made: JobMade) -> JobView:
    """Returns a job that was made just now, as a look at it would."""
    assert made.is_new
    spec, count, place = made.submit.spec, made.submit.count, None
    if count > 1:
        spec = replace(spec, name=member_name(spec.name, 0))
        place = ArrayView(first=made.id, index=0, count=count, states={JobState.QUEUED.value: count})
    return JobView(
        id=made.id,
        spec=spec,
        state=JobState.QUEUED,
        submitted_s=made.submitted_s,
        ended_s=None,
        reason="",
        step=-1,
        metrics={},
        result={},
        attempts=(),
        goodput=None,
        array=place,
        owner=made.owner,
    )


def array_of(job: JobRecord) -> JobId:
    """Returns the first job of a job's array.

    Raises:
        NotFound: It belongs to no array.
    """
    if job.array is None:
        raise NotFound("find an array", on=job.id, got="a job that belongs to none")
    return job.array
