"""Our own event log as a workload: what was submitted, and how long it truly ran by the accounting's own fold.

Lines are events as the API lists them and replays write them, or jobs as the API shows them. An event of a live lab
does not tell what its job asks for: put the jobs of `ms ps --json` into the same file, or use that alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from mainspring.control.state.accounting import spent
from mainspring.domain.answers import Event, JobView
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.goodput import Goodput, TimeUse
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.job import JobSpec, Role, Tier
from mainspring.domain.life import AttemptState, ended
from mainspring.domain.wire.events import EVENTS, read_event
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent
from mainspring.domain.wire.events.leads import LeadEndedEvent
from mainspring.simulator.inputs.files import TABLE_BYTES_MAX, read_text
from mainspring.simulator.inputs.workload import TraceJob, Workload

_OF_STEPS = (TimeUse.PRODUCTIVE, TimeUse.DATA, TimeUse.SNAPSHOT, TimeUse.STRAGGLER)
_KINDS = {event.kind for event in EVENTS}
_ACCOUNTED = {event.kind for event in EVENTS if event.accounted}
_READ = (JobSubmittedEvent.kind, JobMovedEvent.kind, LeadEndedEvent.kind)
_KEPT = {*_READ, *_ACCOUNTED}


@dataclass(slots=True)
class _Told:
    spec: JobSpec | None = None
    submit_s: float | None = None
    end_s: float | None = None
    work_s: float | None = None
    events: list[Event] = field(default_factory=list)
    view: JobView | None = None


def event_log(path: Path) -> Workload:
    """Returns the workload that a log tells of, from its first submission on.

    Jobs that never started, or had not ended, are left out.

    Args:
        path: JSON lines of events and jobs in any mixture, or one JSON list of jobs.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: A line of it cannot be read, or nothing tells what a job asks for.
    """
    told: dict[JobId, _Told] = {}
    roles: dict[str, tuple[Role, ...]] = {}
    for where, plain in _entries(path, read_text(path, "an event log", bytes_max=TABLE_BYTES_MAX)):
        try:
            if "spec" in plain:
                view = from_plain(JobView, plain)
                job = told.setdefault(view.id, _Told())
                job.view, job.spec, job.submit_s, job.end_s = view, view.spec, view.submitted_s, view.ended_s
            else:
                _fold(told, _event(plain), roles)
        except MainspringError as error:
            raise InvalidInput(
                "read an event log",
                on=f"{where}: {error.on}" if error.on else where,
                got=error.got,
                wanted=error.wanted,
            ) from error
    jobs: list[TraceJob] = []
    left_out: dict[str, int] = {}
    for name, each in told.items():
        found = _job(path, name, each)
        if isinstance(found, str):
            left_out[found] = left_out.get(found, 0) + 1
        else:
            jobs.append(found)
    if not jobs:
        raise InvalidInput(
            "read an event log",
            on=str(path),
            got=", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "nothing",
            wanted="at least one job that ended",
        )
    first_s = min(job.submit_s for job in jobs)
    begun = (replace(job, submit_s=job.submit_s - first_s) for job in jobs)
    kept = tuple(sorted(begun, key=lambda job: (job.submit_s, job.job)))
    return Workload(name=path.stem, jobs=tuple(_without_strangers(kept)), left_out=left_out)


def _entries(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yields where each entry stands, and the entry."""
    if text.lstrip().startswith("["):
        listed = _parsed(text, str(path))
        if not isinstance(listed, list):
            raise InvalidInput("read an event log", on=str(path), got=type(listed).__name__, wanted="a list of jobs")
        entries = ((f"{path}, entry {place}", entry) for place, entry in enumerate(listed, start=1))
    else:
        lines = enumerate(text.split("\n"), start=1)
        entries = ((f"{path}, line {n}", _parsed(line, f"{path}, line {n}")) for n, line in lines if line.strip())
    for where, entry in entries:
        if not isinstance(entry, dict):
            raise InvalidInput("read an event log", on=where, got=repr(entry)[:80], wanted="an event or a job")
        yield where, entry


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("read an event log", on=where, got=repr(text[:80]), wanted="JSON") from error


def _event(plain: Mapping[str, object]) -> Event:
    """Returns an event; checked by hand, for a log may hold a million."""
    sequence, time_s, kind = plain.get("sequence"), plain.get("time_s"), plain.get("kind")
    job, attempt, detail = plain.get("job"), plain.get("attempt"), plain.get("detail", {})
    if not (isinstance(sequence, int) and isinstance(time_s, (int, float)) and isfinite(time_s)):
        raise InvalidInput("read an event", got=f"sequence {sequence!r}, time_s {time_s!r}"[:160], wanted="numbers")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput("read an event", on="field 'kind'", got=repr(kind)[:80], wanted="a kind of event")
    if not isinstance(detail, dict) or not all(isinstance(fact, (str, int, float)) for fact in detail.values()):
        raise InvalidInput("read an event", on="field 'detail'", got=repr(detail)[:80], wanted="facts by name")
    if not all(name is None or isinstance(name, str) for name in (job, attempt)):
        raise InvalidInput("read an event", on="field 'job'", got=repr((job, attempt))[:80], wanted="ids")
    return Event(
        sequence=sequence,
        time_s=float(time_s),
        kind=kind,
        job=None if job is None else JobId(str(job)),
        attempt=None if attempt is None else AttemptId(str(attempt)),
        detail=detail,
    )


def _fold(told: dict[JobId, _Told], event: Event, roles: dict[str, tuple[Role, ...]]) -> None:
    if event.job is None or event.kind not in _KEPT:
        return
    job = told.setdefault(event.job, _Told())
    if event.kind in _ACCOUNTED:
        job.events.append(event)
    if event.kind not in _READ:
        return
    match read_event(event.kind, event.detail) if "roles" in event.detail else event.told:
        case JobSubmittedEvent() as asked:
            job.submit_s = event.time_s
            if asked.roles is not None:
                job.spec = _spec(asked, asked.roles, roles)
        case JobMovedEvent(after=after):
            if ended(after):
                job.end_s = event.time_s
        case LeadEndedEvent(outcome=AttemptState.SUCCEEDED, work_s=work_s):
            # What a replay says of a job that came to its end: its work at full size, on whatever it ran.
            job.work_s = work_s if work_s is not None and work_s >= 0 else None
        case _:
            pass


def _spec(asked: JobSubmittedEvent, text: str, roles: dict[str, tuple[Role, ...]]) -> JobSpec:
    if text not in roles:
        roles[text] = tuple(from_plain(tuple[Role, ...], _parsed(text, "field 'roles'")))
    return JobSpec(
        name=asked.name,
        team=asked.team,
        tier=asked.tier or Tier.STANDARD,
        roles=roles[text],
        duration_s=asked.duration_s or 0.0,
        attempts_max=4 if asked.attempts_max is None else asked.attempts_max,
        inputs=tuple((asked.inputs or "").split()),
        after=tuple(JobId(name) for name in (asked.after or "").split()),
    )


def _job(path: Path, name: JobId, told: _Told) -> TraceJob | str:
    if told.submit_s is None:
        return "submitted before the log begins"
    if told.end_s is None:
        return "had not ended"
    if told.view is not None:
        lasted_s = [max(0.0, (each.ended_s or told.end_s) - each.granted_s) for each in told.view.attempts]
        useful_s = sum(lasted_s) * _useful(told.view.goodput)
    else:
        granted = [event.time_s for event in told.events if event.kind == AttemptGrantedEvent.kind]
        lasted_s = [max(0.0, told.end_s - granted_s) for granted_s in granted]
        folded = spent(told.events, told.end_s)
        useful_s = sum(folded.seconds[use] for use in _OF_STEPS) if folded is not None else 0.0
    if not lasted_s:
        return "never started"
    if told.spec is None:
        raise InvalidInput(
            "read an event log",
            on=f"{path}, job {name}",
            got="no word on what it asks for",
            wanted="its job among the lines too (`ms ps --json`), or roles in its job_submitted event",
        )
    # How long it runs without a break: its useful time, or what its last attempt took to its end.
    return TraceJob(
        job=name,
        spec=told.spec,
        submit_s=told.submit_s,
        duration_s=(useful_s or lasted_s[-1]) if told.work_s is None else told.work_s,
    )


def _useful(ledger: Goodput | None) -> float:
    """Returns the part of a job's time that it would take again, were it to run without a break."""
    if ledger is None or ledger.allocated_s <= 0:
        return 0.0
    return sum(ledger.seconds.get(use, 0.0) for use in _OF_STEPS) / ledger.allocated_s


def _without_strangers(jobs: tuple[TraceJob, ...]) -> Iterator[TraceJob]:
    """Yields jobs that come after none but jobs of the log: others are done with."""
    known = {job.job for job in jobs}
    for job in jobs:
        if known.issuperset(job.spec.after):
            yield job
        else:
            yield replace(job, spec=replace(job.spec, after=tuple(name for name in job.spec.after if name in known)))
