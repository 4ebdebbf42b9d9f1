"""Robots: what each runs, in which ring it is, how it does, and what was installed on it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlencode

from mainspring.app.base.calls import PAGES
from mainspring.app.render.robots.fleet import health_words, installs_words
from mainspring.app.web import tables
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import ActionState, RobotActionView, RobotState, RobotTally, RobotView

ROWS = 200  # Of a page: a browser draws more only slowly.
_EVERY_S = 10  # Robots call once a minute, and what they tell is no event.
_ASKED = ("group", "label")
ACTION_TONES = {
    ActionState.UNCONFIRMED: "warn",
    ActionState.OPEN: "running",
    ActionState.CANCELLING: "warn",
    ActionState.DONE: "good",
    ActionState.FAILED: "bad",
    ActionState.CANCELLED: "cancelled",
}


async def view_robots(visit: Visit) -> Shown:
    """Returns robots in order of name, all or those that are asked for."""
    asked = {name: visit.asked(name) for name in _ASKED if visit.asked(name)}
    found = await visit.lab.robots(**asked, after=visit.asked("after") or None, limit=ROWS)
    more = f"{PAGES}/robots?{urlencode({**asked, 'after': found[-1].name})}" if len(found) == ROWS else ""
    headings = (
        Heading(key="robot", title="Robot"),
        Heading(key="state", title="State"),
        Heading(key="group", title="Group", spare=True),
        Heading(key="runs", title="Release"),
        Heading(key="ring", title="Ring"),
        Heading(key="installs", title="Installs", spare=True),
        Heading(key="health", title="Health"),
        Heading(key="called", title="Last contact"),
        Heading(key="labels", title="Labels", wide=True, spare=True),
    )
    rows = [_row(robot) for robot in found]
    empty = "None yet: ms robot enrol NAME." if not asked else "None of these."
    grid = Grid(name="robots", title="Robots", headings=headings, rows=rows, empty=empty, more=more)
    sick = sum(health(robot).tone == "bad" for robot in found)
    return Shown(
        template="robots",
        title="Robots",
        words={"count": len(found), "sick": sick, "more": bool(more), "group": visit.asked("group")},
        grids={grid.name: grid},
        every_s=_EVERY_S,
    )


def _row(robot: RobotView) -> tuple[Cell, ...]:
    action = robot.action
    return (
        tables.text(robot.name, link=robot_path(robot.name)),
        tables.text(robot.state.value, tone="good" if robot.state is RobotState.ACTIVE else "cancelled"),
        tables.text(robot.group or "-"),
        tables.text(robot.runs or "-"),
        tables.text(robot.ring, link=rollout_path(robot.rollout)) if robot.rollout else tables.text("-"),
        tables.text("-") if action is None else tables.text(installs_words(action)),
        health(robot),
        tables.moment(robot.contact_s, none="never"),
        tables.text(labels(robot) or "-"),
    )


async def view_robot(visit: Visit) -> Shown:
    """Returns one robot: what it is, runs and counted, and what was installed on it."""
    name = visit.request.path_params["robot"]
    robot = await visit.lab.robot(name)
    actions = await visit.lab.robot_actions(name, limit=50)
    report = robot.report
    cell = health(robot)
    grids = (_actions(actions), _tallies(report.tallies if report is not None else ()))
    words = {
        "robot": robot,
        "health": cell.text,
        "tone": cell.tone,
        "labels": labels(robot),
        "report": report,
        "rollout": rollout_path(robot.rollout) if robot.rollout else "",
        "installs": installs_words(robot.action) if robot.action is not None else "",
    }
    return Shown(
        template="robot",
        title=f"Robot {robot.name}",
        words=words,
        grids={grid.name: grid for grid in grids},
        every_s=_EVERY_S,
    )


def _actions(found: Sequence[RobotActionView]) -> Grid:
    headings = (
        Heading(key="action", title="Action", right=True),
        Heading(key="release", title="Release"),
        Heading(key="state", title="State"),
        Heading(key="rollout", title="Rollout", right=True, spare=True),
        Heading(key="asked", title="Asked for", spare=True),
        Heading(key="changed", title="Changed"),
        Heading(key="words", title="What it said last", wide=True),
    )
    rows = [
        (
            tables.number(one.number, "d"),
            tables.text(one.release),
            tables.text(one.state.value, tone=ACTION_TONES[one.state]),
            tables.text(str(one.rollout), link=rollout_path(one.rollout)) if one.rollout else tables.text("-"),
            tables.moment(one.made_s),
            tables.moment(one.changed_s),
            tables.text(one.words or "-"),
        )
        for one in found
    ]
    empty = "Nothing was installed on it yet: ms robot install, or ms rollout start."
    return Grid(name="actions", title="Installations", headings=headings, rows=rows, empty=empty)


def _tallies(found: Sequence[RobotTally]) -> Grid:
    headings = (
        Heading(key="target", title="Release"),
        Heading(key="episodes", title="Episodes", right=True),
        Heading(key="successes", title="Successes", right=True),
        Heading(key="success", title="Success"),
        Heading(key="late", title="Missed deadlines", right=True, spare=True),
        Heading(key="stops", title="Safety stops", right=True),
    )
    rows = [
        (
            tables.text(one.target),
            tables.number(one.episodes, ",d"),
            tables.number(one.successes, ",d"),
            tables.percent(one.successes / one.episodes if one.episodes else None),
            tables.number(one.missed_deadlines, ",d"),
            tables.number(one.safety_stops, ",d"),
        )
        for one in found
    ]
    return Grid(name="counted", title="What it counted", headings=headings, rows=rows, empty="It told of no episode.")


def health(robot: RobotView) -> Cell:
    """Returns how a robot is."""
    words = health_words(robot)
    tones = {"good": "good", "revoked": "cancelled", "-": ""}
    return tables.text(words, tone=tones.get(words, "bad"))


def labels(robot: RobotView) -> str:
    """Returns a robot's labels in one line."""
    return ", ".join(f"{name}={value}" for name, value in sorted(robot.labels.items()))


def robot_path(name: str) -> str:
    """Returns the address of a robot's page."""
    return f"{PAGES}/robots/{quote(name, safe='')}"


def rollout_path(number: int | None, **asked: str) -> str:
    """Returns the address of a rollout's page.

    Args:
        asked: What of it is to be shown.
    """
    return f"{PAGES}/rollouts/{number}" + (f"?{urlencode(asked)}" if asked else "")
