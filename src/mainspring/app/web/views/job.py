"""The page of one job: how it fares in a sentence, and everything that the sentence rests on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mainspring.app.render.events import event_words, notable
from mainspring.app.render.goodput import goodput_text
from mainspring.app.render.jobs import at_risk_text, ranks_text, verdict_text
from mainspring.app.render.tables import asked, asks, gist, hold_text, where
from mainspring.app.web import charts, tables
from mainspring.app.web.inside import NOT_FOUND, Refusal
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.views.acts import DONE
from mainspring.app.web.views.samples import measured, stacks_of
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import Event, JobView, QueuePlace, Why
from mainspring.domain.job import JobSpec, Tier
from mainspring.domain.life import JobState, ended
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import Right
from mainspring.domain.wire.events.leads import CheckpointDurableEvent

RANKS_MAX = 2_000  # A browser draws more only slowly; those that are not like the rest come first.
_ID = re.compile("job-[a-z0-9]{12}")
_EVERY_S = 5  # A job that runs tells its steps without any event.
_FIRST_ERROR = ("rank_exited", "hang", "agent_lost", "checkpoint_failed")


async def view_job(visit: Visit) -> Shown:
    """Returns the page of a job."""
    name = visit.request.path_params["job"]
    try:
        known = name if _ID.fullmatch(name) else (await visit.lab.status(name)).id
        events = await visit.lab.job_events(known, newest=True, limit=LIST_MAX)
        job = await visit.lab.status(known)  # Read after its events: what is followed comes after both.
        why = await visit.lab.why(job.id, remedies=visit.asked("remedies") == "1")
    except Refusal as refusal:
        if refusal.status != NOT_FOUND:
            raise
        past = await visit.lab.history(name)  # It may be in the archive.
        job, events = past.job, past.events[-LIST_MAX:]
        why = Why(job=job.id, state=job.state, plan=0, summary=job.reason, limit=None, candidates=())
    live = not ended(job.state)
    seen = await measured(visit, job)
    attempt = job.attempts[-1] if job.attempts else None
    spares = sum(role.spares for role in job.spec.roles)
    words = {
        "job": job,
        "spec": job.spec.with_overrides(job.overrides),
        "verdict": verdict_text(job, why),
        "why": why,
        "asks": asks(job.spec.with_overrides(job.overrides)),
        "where": where(attempt) if attempt else "",
        "hold": hold_text(job.hold, now_s=visit.now_s) if job.hold else "",
        "attempt": attempt,
        "live": live,
        "waits": job.state is JobState.QUEUED,
        "ranks": ranks_text(attempt, spares=spares) if attempt and attempt.ranks and attempt.ended_s is None else "",
        "at_risk": at_risk_text(attempt.at_risk) if attempt and attempt.at_risk and attempt.ended_s is None else "",
        "durable": next((event for event in reversed(events) if event.kind == CheckpointDurableEvent.kind), None),
        "dollars": sum(each.dollars for each in job.attempts),
        "goodput": goodput_text(job.goodput) if job.goodput else "",
        "waterfall": charts.waterfall(job.goodput) if job.goodput else (),
        "timeline": charts.timeline(job, events, now_s=visit.now_s),
        "progress": charts.progress(job, events, now_s=visit.now_s),
        "measured": seen,
        "beside": visit.asked("beside"),
        "stacks": stacks_of(events),
        "first_error": _first_error(job, events),
        "notable": [(event.time_s, event_words(event)) for event in notable(events)],
        "remedied": visit.asked("remedies") == "1",
        "tiers": [tier.value for tier in Tier],
        "places": [place.value for place in QueuePlace],
        "may_stop": live and visit.may(Right.STOP_JOBS, owner=job.owner),
        "may_steer": live and visit.may(Right.STEER_JOBS, owner=job.owner),
        "may_rank": live and visit.may(Right.RANK_JOBS),
        "done": DONE.get(visit.asked("done"), ""),
    }
    grids = (
        *seen.grids,
        _attempts(job, visit.now_s),
        _ranks(job),
        _candidates(why, job.spec),
        _checkpoints(events),
        _events(events),
    )
    return Shown(
        template="job",
        title=f"{job.spec.name} {job.state.value}",
        words=words,
        grids={grid.name: grid for grid in grids},
        follow=f"/v1/jobs/{job.id}/events" if live else "",
        since=events[-1].sequence if events else 0,
        every_s=_EVERY_S if live and job.state is not JobState.QUEUED else 0,
    )


def _first_error(job: JobView, events: Sequence[Event]) -> str:
    """Returns what went wrong first of all that is known of, whole, or ""."""
    failed = job.state is JobState.FAILED
    for event in events:
        said = str(event.detail.get("last_words", ""))
        if event.kind in _FIRST_ERROR and said:
            return f"{event_words(event).partition(':')[0]}:\n{said}"
    return job.reason if failed else ""


def _attempts(job: JobView, now_s: float) -> Grid:
    rows = []
    for one in job.attempts:
        nodes = [one.hosts.get(node, node) for node in one.nodes]
        alive = f"{sum(rank.alive for rank in one.ranks)}/{len(one.ranks)}" if one.ranks else "-"
        ran_s = (one.ended_s if one.ended_s is not None else now_s) - one.granted_s
        named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
        rows.append(
            (
                tables.number(one.number, "d"),
                tables.state(one.state.value),
                tables.text(where(one)),
                tables.number(one.generation, "d"),
                tables.text(alive),
                Cell(text=named, value=" ".join(nodes)),
                tables.moment(one.granted_s),
                tables.span(ran_s),
                tables.dollars(one.dollars),
                Cell(text=gist(one.reason) or "-", value=one.reason),
            )
        )
    headings = (
        Heading(key="attempt", title="Attempt", right=True),
        Heading(key="state", title="State"),
        Heading(key="cluster", title="Cluster"),
        Heading(key="generation", title="Generation", right=True, spare=True),
        Heading(key="ranks", title="Ranks alive", right=True, spare=True),
        Heading(key="nodes", title="Nodes", spare=True),
        Heading(key="granted", title="Granted", spare=True),
        Heading(key="ran_s", title="Ran", right=True),
        Heading(key="dollars", title="Spent", right=True),
        Heading(key="reason", title="How it ended", wide=True),
    )
    return Grid(name="attempts", title="Attempts", headings=headings, rows=rows, empty="It has not been placed yet.")


def _ranks(job: JobView) -> Grid:
    attempt = job.attempts[-1] if job.attempts and job.attempts[-1].ended_s is None else None
    every = attempt.ranks if attempt else ()
    furthest = max((rank.step for rank in every if rank.alive), default=-1)
    ranks = every if len(every) <= RANKS_MAX else sorted(every, key=lambda one: (one.alive, one.step))[:RANKS_MAX]
    rows = [
        (
            tables.number(rank.rank, "d"),
            tables.state("alive" if rank.alive else "gone" if rank.pid or rank.step >= 0 else "not started"),
            tables.text(rank.node),
            tables.number(rank.step if rank.step >= 0 else None, ",d"),
            tables.number(furthest - rank.step if rank.alive and rank.step >= 0 else None, ",d"),
            tables.number(rank.pid or None, "d"),
        )
        for rank in ranks
    ]
    headings = (
        Heading(key="rank", title="Rank", right=True),
        Heading(key="state", title="State"),
        Heading(key="node", title="Node"),
        Heading(key="step", title="Step", right=True),
        Heading(key="behind", title="Behind", right=True),
        Heading(key="pid", title="Process", right=True, spare=True),
    )
    return Grid(name="ranks", title="Ranks", headings=headings, rows=rows, empty="No ranks run now.")


def _candidates(why: Why, spec: JobSpec) -> Grid:
    roles = {role.name: role for role in spec.roles}
    rows = []
    for one in why.candidates:
        role = f" for {one.role}" if len(roles) > 1 else ""
        rows.append(
            (
                tables.text(f"{one.cluster} (simulated)" if one.simulated else one.cluster),
                tables.text(asked(roles[one.role].options[one.option]) + role),
                tables.text("fits", tone="good") if one.fits else tables.text("does not fit", tone="warn"),
                tables.dollars(one.dollars_per_hour or None),
                tables.dollars(one.dollars_per_work or None),
                tables.moment(one.start_s),
                tables.text(one.verdict),
            )
        )
    headings = (
        Heading(key="cluster", title="Cluster"),
        Heading(key="option", title="Option"),
        Heading(key="fits", title="Now"),
        Heading(key="dollars_per_hour", title="An hour", right=True),
        Heading(key="dollars_per_work", title="A useful chip-hour", right=True, spare=True),
        Heading(key="starts", title="Could start", spare=True),
        Heading(key="verdict", title="Verdict", wide=True),
    )
    empty = "Nothing was weighed yet: the next plan will."
    return Grid(name="candidates", title="What was weighed", headings=headings, rows=rows, empty=empty)


def _checkpoints(events: Sequence[Event]) -> Grid:
    durable = [event for event in events if event.kind == CheckpointDurableEvent.kind]
    rows = [
        (
            tables.number(float(event.detail.get("step", -1)), ",.0f"),
            tables.moment(event.time_s),
            tables.size(float(event.detail.get("size_bytes", 0))),
            tables.text(str(event.attempt or "-")),
        )
        for event in reversed(durable)
    ]
    headings = (
        Heading(key="step", title="Step", right=True),
        Heading(key="durable", title="Durable since"),
        Heading(key="bytes", title="Size", right=True),
        Heading(key="attempt", title="Saved by", spare=True),
    )
    empty = "None is durable yet: should its nodes be lost now, the job would begin anew."
    return Grid(name="checkpoints", title="Durable checkpoints", headings=headings, rows=rows, empty=empty)


def _events(events: Sequence[Event]) -> Grid:
    rows = [
        (
            tables.number(event.sequence, "d"),
            tables.moment(event.time_s),
            tables.text(event.kind),
            tables.text(event_words(event)),
        )
        for event in reversed(events)
    ]
    headings = (
        Heading(key="sequence", title="Number", right=True, spare=True),
        Heading(key="time", title="When"),
        Heading(key="kind", title="Event"),
        Heading(key="words", title="What happened", wide=True),
    )
    return Grid(name="events", title="Events", headings=headings, rows=rows)
