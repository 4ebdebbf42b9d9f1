"""A job's life as spans: a pure fold over its events, so that every server, at any time, tells the same ones.

    job                     from its submit to its end
      queued                each wait in line, until a plan starts it
      attempt               from its grant until all it held is given back
        launch              until its lead prepares the first generation
        generation          one membership of its ranks; what was lost in it, and how it came back, are its events

A span is told once it is over: the event that ends it is its `closed_by`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mainspring.control.store.records import AttemptRecord, JobRecord
from mainspring.domain.answers import Event
from mainspring.domain.job import JobSpec
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent
from mainspring.domain.wire.events.leads import (
    AgentLostEvent,
    CheckpointDurableEvent,
    GenerationPreparingEvent,
    HangEvent,
    LeadEndedEvent,
    RankExitedEvent,
    RankLeftEvent,
    ResultEvent,
    SnapshotPaceEvent,
)
from mainspring.domain.wire.telemetry import SpanPlace, place_of, place_of_attempt

Fact = str | int | float | bool
ENDING = (JobMovedEvent, AttemptEndedEvent, GenerationPreparingEvent, LeadEndedEvent)  # What may end a span.
UNTOLD = (CheckpointDurableEvent, SnapshotPaceEvent, ResultEvent)  # Frequent, or the program's own.
EVENTS_MAX = 128  # Of one span, the newest: as many as OpenTelemetry's own SDKs keep.
LINKS_MAX = 128  # The same of links.
TEXT_LENGTH_MAX = 1_000
PREFIX = "mainspring."
_LOSSES = (RankExitedEvent, RankLeftEvent, HangEvent, AgentLostEvent)
_BAD = (AttemptState.FAILED, AttemptState.LOST)
# Where the field has a name for it. Source: OpenTelemetry semantic conventions 1.40.
_NAMES = {"exit_code": "process.exit.code", "node": "host.name", "owner": "user.name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanMark:
    """Something that happened in a span."""

    name: str
    time_s: float
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLink:
    """Another span that one leans on, and how."""

    place: SpanPlace
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpan:
    """One span that is over.

    Args:
        parent: None for one that nothing is above.
        closed_by: Sequence of the event that ended it.
        well: Whether it came to a good end, None where that is not the question.
        words: What was wrong, of one that did not.
    """

    name: str
    place: SpanPlace
    parent: SpanPlace | None
    begun_s: float
    ended_s: float
    closed_by: int
    facts: Mapping[str, Fact]
    marks: Sequence[SpanMark] = ()
    links: Sequence[SpanLink] = ()
    well: bool | None = None
    words: str = ""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A span that is not over yet."""

    name: str
    place: SpanPlace
    parent: SpanPlace | None
    begun_s: float
    facts: dict[str, Fact]
    marks: list[SpanMark] = field(default_factory=list)
    lost: bool = False

    def closed(self, by: Event, *, well: bool | None = None, words: str = "") -> JobSpan:
        left_out = len(self.marks) - EVENTS_MAX
        if left_out > 0:
            self.facts["events_left_out"] = left_out
        if well is False:
            self.facts["error.type"] = str(self.facts.get("outcome") or self.facts.get("job.state") or "lost")
        return JobSpan(
            name=self.name,
            place=self.place,
            parent=self.parent,
            begun_s=self.begun_s,
            ended_s=max(self.begun_s, by.time_s),  # Some times are by a lead's clock.
            closed_by=by.sequence,
            facts=_named(self.facts),
            marks=tuple(self.marks[-EVENTS_MAX:]),
            well=well,
            words=words[:TEXT_LENGTH_MAX],
        )


def spans_of_job(
    job: JobRecord, spec: JobSpec, told: Iterable[Event], parent: SpanPlace | None, links: Sequence[SpanLink] = ()
) -> tuple[JobSpan, ...]:
    """Returns a job's own spans that are over: its waits in line, and the whole of it.

    Args:
        told: Its events that are of no attempt, in order.
        parent: What it was submitted under.
        links: What it leans on.
    """
    place = place_of(job.id, parent=parent)
    whole = _Open(name="job", place=place, parent=parent, begun_s=job.submitted_s, facts=_facts_of_job(job, spec))
    waits, over = 0, []
    wait: _Open | None = _wait(job, 0, whole, job.submitted_s)
    for event in told:
        what = event.told
        if not isinstance(what, JobMovedEvent):
            if not isinstance(what, JobSubmittedEvent):
                (wait or whole).marks.append(_mark(event))
            continue
        if wait is not None:
            wait.facts["reason"] = what.reason
            over.append(wait.closed(event))
            wait = None
        if what.after is JobState.QUEUED:
            waits += 1
            wait = _wait(job, waits, whole, event.time_s)
        whole.marks.append(_mark(event))
        if ended(what.after):
            whole.facts |= {"job.state": what.after.value, "reason": what.reason}
            well = {JobState.SUCCEEDED: True, JobState.FAILED: False}.get(what.after)
            last = whole.closed(event, well=well, words=what.reason)
            over.append(replace(last, links=tuple(links[:LINKS_MAX])))
    return tuple(over)


def _wait(job: JobRecord, number: int, whole: _Open, begun_s: float) -> _Open:
    below = place_of(job.id, "queued", str(number), parent=whole.place)
    facts: dict[str, Fact] = {"job.id": job.id, "team": job.team, "wait": number + 1}
    return _Open(name="queued", place=below, parent=whole.place, begun_s=begun_s, facts=facts)


def _facts_of_job(job: JobRecord, spec: JobSpec) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "job.id": job.id,
        "job.name": job.name,
        "job.kind": spec.kind.value,
        "team": job.team,
        "tier": spec.with_overrides(job.overrides).tier.value,
        "owner": job.owner,
        "step": job.step,
    }
    if job.array is not None:
        facts |= {"array.id": job.array, "array.index": job.array_index or 0}
    return facts


def spans_of_attempt(
    attempt: AttemptRecord, told: Iterable[Event], parent: SpanPlace | None, *, team: str
) -> tuple[JobSpan, ...]:
    """Returns an attempt's spans that are over: its launch, its generations, and the whole of it.

    Args:
        told: Its events, in order.
        parent: What its job was submitted under.
    """
    about: dict[str, Fact] = {"job.id": attempt.job, "attempt.id": attempt.id, "attempt.number": attempt.number}
    about |= {"team": team, "cluster": attempt.cluster}
    place = place_of_attempt(attempt.job, attempt.id, parent=parent)
    facts = about | {"plan": attempt.plan, "simulated": attempt.simulated}
    above = place_of(attempt.job, parent=parent)
    whole = _Open(name="attempt", place=place, parent=above, begun_s=attempt.granted_s, facts=facts)
    below = place_of(attempt.job, "launch", attempt.id, parent=place)
    inner: _Open | None = _Open(name="launch", place=below, parent=place, begun_s=attempt.granted_s, facts=dict(about))
    over = []
    for event in told:
        what = event.told
        match what:
            case GenerationPreparingEvent():
                number = str(what.generation)
                if inner is not None and inner.facts.get("generation") == what.generation:
                    inner.marks.append(_mark(event))  # Prepared anew.
                    continue
                if inner is not None:
                    over.append(inner.closed(event, well=False if inner.lost else None, words=what.cause))
                below = place_of(attempt.job, "generation", attempt.id, number, parent=place)
                facts = about | {"generation": what.generation, "cause": what.cause}
                inner = _Open(name="generation", place=below, parent=place, begun_s=event.time_s, facts=facts)
            case LeadEndedEvent() | AttemptEndedEvent():
                if inner is not None:
                    over.append(_last(inner, event, what))
                    inner = None
                if isinstance(what, AttemptEndedEvent):
                    whole.facts |= {"outcome": what.outcome.value, "step": attempt.step, "reason": what.reason}
                    whole.facts |= {"stop_cause": attempt.stop_cause}
                    over.append(whole.closed(event, well=_well(what.outcome), words=what.reason))
                else:
                    whole.marks.append(_mark(event))
            case AttemptGrantedEvent():
                whole.facts["nodes"] = what.nodes
            case _:
                at = inner or whole
                at.lost = at.lost or isinstance(what, _LOSSES)
                at.marks.append(_mark(event))
    return tuple(over)


def _last(inner: _Open, event: Event, what: LeadEndedEvent | AttemptEndedEvent) -> JobSpan:
    """Returns the launch, or the generation, with which an attempt ends."""
    inner.facts |= {"outcome": what.outcome.value}
    return inner.closed(event, well=_well(what.outcome), words=what.reason)


def _well(outcome: AttemptState) -> bool | None:
    return True if outcome is AttemptState.SUCCEEDED else False if outcome in _BAD else None


def _mark(event: Event) -> SpanMark:
    """Returns an event as one of a span: its facts, and what it says to people."""
    return SpanMark(name=event.kind, time_s=event.time_s, facts=_named({**event.detail, "said": str(event.told)}))


def _named(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Returns facts under the names that the field has for them, and under ours what it has none for."""
    return {
        _NAMES.get(name) or (name if name == "error.type" else PREFIX + name): fact[:TEXT_LENGTH_MAX]
        if isinstance(fact, str)
        else fact
        for name, fact in facts.items()
        if fact != ""
    }
