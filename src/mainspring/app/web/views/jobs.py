"""Lists of jobs: all that one may read, and one's own with what needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from mainspring.app.base.calls import PAGES
from mainspring.app.render.tables import asks, gist, where
from mainspring.app.web import tables
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import JobView
from mainspring.domain.ids import TeamName
from mainspring.domain.life import JobState, ended
from mainspring.domain.plan import Limit

SHOWN = 100  # Jobs of one list at a time: four screens, and half of what a page of them takes to be made is its rows.
OWN_MAX = 500  # Of one's own, looked through for those that need one.
VERDICTS_MAX = 200  # Looked through for what nobody could run.
NEEDS_S = 2 * 86_400.0  # For so long what failed is still worth somebody's look: over a weekend's end.
_HEADINGS = (
    Heading(key="name", title="Name"),
    Heading(key="job", title="Job", spare=True),
    Heading(key="team", title="Team", spare=True),
    Heading(key="tier", title="Tier", spare=True),
    Heading(key="state", title="State"),
    Heading(key="asks", title="Asks for", spare=True),
    Heading(key="where", title="Where", spare=True),
    Heading(key="nodes", title="Nodes", right=True, spare=True),
    Heading(key="step", title="Step", right=True, spare=True),
    Heading(key="submitted", title="Submitted", spare=True),
    Heading(key="starts", title="Starts"),
    Heading(key="reason", title="Why", wide=True),
)


def jobs_grid(jobs: Sequence[JobView], *, name: str, title: str, empty: str, more: str = "") -> Grid:
    """Returns one row a job; an array is one row, that of its newest job."""
    return Grid(name=name, title=title, headings=_HEADINGS, rows=[_row(job) for job in jobs], empty=empty, more=more)


def _row(job: JobView) -> tuple[Cell, ...]:
    spec = job.spec.with_overrides(job.overrides)
    attempt = job.attempts[-1] if job.attempts else None
    named, state = tables.job_link(job.id, spec.name), tables.state(job.state.value)
    if job.array is not None:
        title = f"{spec.name.removesuffix(f'-{job.array.index}')}-[0..{job.array.count - 1}]"
        address = f"{PAGES}/jobs?{urlencode({'array': job.array.first})}"
        named = Cell(text=title, link=address)
        if job.array.states:
            counts = ", ".join(f"{count:,} {word}" for word, count in job.array.states.items())
            state = Cell(text=counts, tone=job.state.value)
    return (
        named,
        tables.job_link(job.id),
        tables.text(spec.team, link=f"{PAGES}/jobs?{urlencode({'team': spec.team})}"),
        tables.text(spec.tier.value),
        state,
        tables.text(asks(spec)),
        tables.text(where(attempt) if attempt else "-"),
        tables.number(len(attempt.nodes) if attempt and attempt.ended_s is None else None, ",d"),
        tables.number(job.step if job.step >= 0 else None, ",d"),
        tables.moment(job.submitted_s),
        tables.expected(job.start_s, exact=job.exact) if job.state is JobState.QUEUED else tables.text("-"),
        Cell(text=gist(job.reason)[:300] or "-", value=job.reason),
    )


def counts_of(states: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns how many jobs are in each state, in the order of a job's life."""
    order = [state.value for state in JobState]
    return sorted(states.items(), key=lambda one: order.index(one[0]) if one[0] in order else len(order))


async def view_jobs(visit: Visit) -> Shown:
    """Returns the list of the newest jobs, of a state, a team, a person or an array."""
    since = await visit.newest()
    asked = {name: visit.asked(name)[:80] for name in ("state", "team", "owner", "array") if visit.asked(name)}
    state = next((one for one in JobState if one.value == asked.get("state")), None)
    team = TeamName(asked["team"]) if "team" in asked else None
    after = visit.asked("after") or None
    found = await visit.lab.ps(
        state=state, team=team, owner=asked.get("owner"), array=asked.get("array"), after=after, limit=SHOWN
    )
    counts = await visit.lab.job_counts(team=team, owner=asked.get("owner"))
    more = f"{PAGES}/jobs?{urlencode({**asked, 'after': found[-1].id})}" if len(found) == SHOWN else ""
    empty = "No job is like that." if asked else "Nobody has submitted a job yet: ms run -- python train.py"
    others = {name: value for name, value in asked.items() if name != "state"}
    grid = jobs_grid(found, name="jobs", title="Jobs", empty=empty, more=more)
    words = {
        "asked": {name: asked.get(name, "") for name in ("state", "team", "owner", "array")},
        "counts": [(word, count, urlencode({**others, "state": word})) for word, count in counts_of(counts.states)],
        "others": urlencode(others),
        "after": after,
    }
    return Shown(template="jobs", title="Jobs", words=words, grids={"jobs": grid}, follow="/v1/events", since=since)


async def view_mine(visit: Visit) -> Shown:
    """Returns one's own jobs, and those of them that need one."""
    since = await visit.newest()
    me = visit.person.holder or None
    found = await visit.lab.ps(owner=me, limit=OWN_MAX)
    counts = dict((await visit.lab.job_counts(owner=me)).states)
    lost_s = visit.now_s - NEEDS_S
    verdicts = {one.reason for one in await visit.lab.verdicts(limit=VERDICTS_MAX) if one.limit is Limit.IMPOSSIBLE}
    needs = [
        job
        for job in found
        if (job.state is JobState.FAILED and (job.ended_s or 0.0) > lost_s)
        or (not ended(job.state) and job.hold is not None)
        or (job.state is JobState.QUEUED and job.reason in verdicts)
    ]
    live = [job for job in found if not ended(job.state)]
    over = [job for job in found if ended(job.state)]

    def more(of: Sequence[JobView]) -> str:
        """Returns where the list goes on: among all of one's jobs, after the last that is shown."""
        whose = {"owner": me} if me else {}
        if len(of) > SHOWN:
            return f"{PAGES}/jobs?{urlencode({**whose, 'after': of[SHOWN - 1].id})}"
        return f"{PAGES}/jobs?{urlencode({**whose, 'after': found[-1].id})}" if of and len(found) == OWN_MAX else ""

    grids = (
        jobs_grid(
            needs[:SHOWN],
            name="needs",
            title="Needs you",
            empty="Nothing: no job of yours failed lately, is paused, or cannot run.",
            more=more(needs),
        ),
        jobs_grid(
            live[:SHOWN],
            name="live",
            title="Running and waiting",
            empty="None. Submit one: ms run --on h100 -- python train.py",
            more=more(live),
        ),
        jobs_grid(over[:SHOWN], name="over", title="Over", empty="None has ended yet.", more=more(over)),
    )
    live_count = sum(counts.get(state.value, 0) for state in JobState if not ended(state))
    words = {
        "counts": [
            (word, count, urlencode({"state": word, **({"owner": me} if me else {})}))
            for word, count in counts_of(counts)
        ],
        "live": live_count,
        "needs": len(needs),
        "waiting": visit.person.waiting,
    }
    return Shown(
        template="mine",
        title="Mine",
        words=words,
        grids={grid.name: grid for grid in grids},
        follow="/v1/events",
        since=since,
    )
