"""Rollouts: how far each ring is, what it waits for, which robots failed, and what people have one do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.app.web import tables
from mainspring.app.web.inside import Inside
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.views.robots.robots import ROWS, robot_path, rollout_path
from mainspring.app.web.visit import Visit, reason_in
from mainspring.domain.answers import (
    RobotStanding,
    RolloutEvent,
    RolloutRobot,
    RolloutState,
    RolloutView,
    RolloutWord,
)
from mainspring.domain.answers.policies.rollouts import LIVE_ROLLOUTS, ROLLOUT_ACTS, RingView
from mainspring.domain.errors import InvalidInput
from mainspring.domain.team import Right

_EVERY_S = 5
_LISTED_MAX = 50  # Of those before nobody asks here: ms rollout show NUMBER, and its page.
_TONES = {
    RolloutState.RUNNING: "running",
    RolloutState.PAUSED: "warn",
    RolloutState.GOING_BACK: "bad",
    RolloutState.WENT_BACK: "bad",
    RolloutState.ABORTED: "cancelled",
    RolloutState.DONE: "good",
}
_STANDINGS = {
    RobotStanding.AHEAD: "queued",
    RobotStanding.OFFERED: "starting",
    RobotStanding.COMMITTED: "good",
    RobotStanding.FAILED: "bad",
    RobotStanding.UNHEALTHY: "bad",
    RobotStanding.RETURNED: "warn",
}
# What each act is called on its button, and what becomes of the rollout.
ACTS = {
    "approve": ("Approve", "The ring that is open passes after its hours, whatever was counted."),
    "pause": ("Pause", "No robot begins until it is resumed; those that install go on."),
    "resume": ("Resume", "It goes on where it was."),
    "abort": ("Abort", "It ends where it is: robots keep what they run."),
    "rollback": ("Roll back", "Every robot of it runs again what it ran before."),
}
DONE = {
    "approve": "approved",
    "pause": "paused",
    "resume": "resumed",
    "abort": "ended where it was",
    "rollback": "asked to go back",
}


async def view_rollouts(visit: Visit) -> Shown:
    """Returns rollouts, newest first."""
    found = await visit.lab.rollouts(limit=_LISTED_MAX)
    headings = (
        Heading(key="rollout", title="Rollout", right=True),
        Heading(key="release", title="Release"),
        Heading(key="state", title="State"),
        Heading(key="rings", title="Rings", wide=True),
        Heading(key="waits", title="Waits for", wide=True, spare=True),
        Heading(key="begun", title="Begun"),
        Heading(key="by", title="By", spare=True),
    )
    rows = [
        (
            Cell(text=str(one.number), value=one.number, link=rollout_path(one.number)),
            tables.text(one.release),
            tables.text(one.state.value, tone=_TONES[one.state]),
            tables.text(", ".join(f"{ring.name} {ring.committed}/{ring.robots}" for ring in one.rings)),
            tables.text(next((ring.waits for ring in one.rings if ring.waits), one.why) or "-"),
            tables.moment(one.made_s),
            tables.text(one.maker),
        )
        for one in found
    ]
    empty = "None yet: ms rollout start NAME --rings lab,all."
    grid = Grid(name="rollouts", title="Rollouts", headings=headings, rows=rows, empty=empty)
    live = sum(one.state in LIVE_ROLLOUTS for one in found)
    words = {"count": len(found), "live": live, "newest": len(found) == _LISTED_MAX}
    return Shown(template="rollouts", title="Rollouts", words=words, grids={grid.name: grid}, every_s=_EVERY_S)


async def view_rollout(visit: Visit) -> Shown:
    """Returns one rollout with its rings, its robots and what became of it."""
    name = visit.request.path_params["rollout"]
    rollout = await visit.lab.rollout(name)
    asked = {key: visit.asked(key) for key in ("ring", "standing") if visit.asked(key)}
    robots = await visit.lab.rollout_robots(
        name,
        ring=asked.get("ring"),
        standing=_standing(asked["standing"]) if "standing" in asked else None,
        after=visit.asked("after") or None,
        limit=ROWS,
    )
    more = rollout_path(rollout.number, **asked, after=robots[-1].robot) if len(robots) == ROWS else ""
    grids = (_rings(rollout), _robots(robots, more), _events(rollout))
    acts = [act for act, states in ROLLOUT_ACTS.items() if rollout.state in states]
    words = {
        "rollout": rollout,
        "tone": _TONES[rollout.state],
        "path": rollout_path(rollout.number),
        "acts": [(act, *ACTS[act]) for act in acts] if visit.may(Right.ROLL_OUT) else [],
        "asked": asked,
        "standings": [
            (one.value, rollout_path(rollout.number, **(asked | {"standing": one.value}))) for one in RobotStanding
        ],
        "done": DONE.get(visit.asked("done"), ""),
    }
    return Shown(
        template="rollout",
        title=f"Rollout {rollout.number} {rollout.state.value}",
        words=words,
        grids={grid.name: grid for grid in grids},
        every_s=_EVERY_S,
    )


def _standing(text: str) -> RobotStanding:
    try:
        return RobotStanding(text)
    except ValueError as error:
        wanted = ", ".join(one.value for one in RobotStanding)
        raise InvalidInput("list robots of a rollout", got=repr(text[:40]), wanted=wanted) from error


def _rings(rollout: RolloutView) -> Grid:
    headings = (
        Heading(key="ring", title="Ring"),
        Heading(key="opened", title="Opened"),
        Heading(key="robots", title="Robots", right=True),
        Heading(key="committed", title="Run it", right=True),
        Heading(key="failed", title="Failed", right=True),
        Heading(key="unhealthy", title="Not healthy", right=True),
        Heading(key="offline", title="Away", right=True, spare=True),
        Heading(key="returned", title="Went back", right=True, spare=True),
        Heading(key="success", title="Success", spare=True),
        Heading(key="waits", title="Waits for", wide=True),
    )
    rows = [_ring(rollout, ring) for ring in rollout.rings]
    return Grid(name="rings", title="Rings", headings=headings, rows=rows)


def _ring(rollout: RolloutView, ring: RingView) -> tuple[Cell, ...]:
    counts = (ring.robots, ring.committed, ring.failed, ring.unhealthy, ring.offline, ring.returned)
    return (
        tables.text(ring.name, link=rollout_path(rollout.number, ring=ring.name)),
        tables.moment(ring.opened_s, none="not yet"),
        *(tables.number(count, ",d") for count in counts),
        tables.percent(ring.successes / ring.episodes if ring.episodes else None),
        tables.text(ring.waits or ("-" if ring.opened_s is not None else "its turn")),
    )


def _robots(found: Sequence[RolloutRobot], more: str) -> Grid:
    headings = (
        Heading(key="robot", title="Robot"),
        Heading(key="ring", title="Ring"),
        Heading(key="standing", title="Stands"),
        Heading(key="away", title="Away", spare=True),
        Heading(key="runs", title="Runs"),
        Heading(key="before", title="Ran before", spare=True),
        Heading(key="says", title="Says", wide=True, spare=True),
        Heading(key="failure", title="Last failure", wide=True),
        Heading(key="failed", title="When", spare=True),
    )
    rows = [
        (
            tables.text(one.robot, link=robot_path(one.robot)),
            tables.text(one.ring),
            tables.text(one.standing.value, tone=_STANDINGS[one.standing]),
            tables.text("away" if one.away else "-", tone="warn" if one.away else ""),
            tables.text(one.runs or "-"),
            tables.text(one.before or "-"),
            tables.text(one.says or "-"),
            tables.text(one.failure or "-"),
            tables.moment(one.failed_s),
        )
        for one in found
    ]
    return Grid(name="robots", title="Robots", headings=headings, rows=rows, empty="None stands so.", more=more)


def _events(rollout: RolloutView) -> Grid:
    headings = (
        Heading(key="time", title="When"),
        Heading(key="what", title="What"),
        Heading(key="of", title="Of"),
        Heading(key="words", title="Words", wide=True),
        Heading(key="by", title="By", spare=True),
    )
    rows = [_event(rollout, one) for one in reversed(rollout.events)]
    return Grid(name="events", title="What became of it", headings=headings, rows=rows)


def _event(rollout: RolloutView, one: RolloutEvent) -> tuple[Cell, ...]:
    of_robot = tables.text(one.robot, link=robot_path(one.robot)) if one.robot else None
    return (
        tables.moment(one.at_s),
        tables.text(one.kind.value),
        of_robot or tables.text(rollout.rings[one.ring].name),
        tables.text(one.words or "-"),
        tables.text(one.by or "the server"),
    )


async def act_on_rollout(lab: Inside, rollout: str, what: str, fields: Mapping[str, str]) -> None:
    """Has a rollout do something.

    Args:
        what: One of `ROLLOUT_ACTS`.
        fields: Of the form.

    Raises:
        InvalidInput: That is nothing one can do, or no reason was given.
        Refusal: The API refused it.
    """
    calls = {
        "approve": lab.approve_rollout,
        "pause": lab.pause_rollout,
        "resume": lab.resume_rollout,
        "abort": lab.abort_rollout,
        "rollback": lab.take_back_rollout,
    }
    if what not in calls:
        raise InvalidInput("have a rollout do something", got=repr(what[:40]), wanted=", ".join(calls))
    reason = reason_in(fields, "" if what == "resume" else f"{what} a rollout")
    await calls[what](rollout, RolloutWord(reason=reason))
