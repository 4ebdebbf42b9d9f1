"""Robots and rollouts for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, facts_grid, framed
from mainspring.domain.answers import (
    RobotActionView,
    RobotStanding,
    RobotState,
    RobotToken,
    RobotView,
    RolloutRobot,
    RolloutState,
    RolloutView,
)

_COLOURS = {
    RolloutState.RUNNING: "cyan",
    RolloutState.PAUSED: "yellow",
    RolloutState.GOING_BACK: "red",
    RolloutState.WENT_BACK: "red",
    RolloutState.ABORTED: "dim",
    RolloutState.DONE: "green",
}
_STANDINGS = {
    RobotStanding.AHEAD: "dim",
    RobotStanding.OFFERED: "cyan",
    RobotStanding.COMMITTED: "green",
    RobotStanding.FAILED: "red",
    RobotStanding.UNHEALTHY: "red",
    RobotStanding.RETURNED: "yellow",
}
EVENTS_SHOWN = 12


def robots_table(found: Sequence[RobotView], *, now_s: float) -> RenderableType:
    """Returns one row a robot."""
    return Listing("ROBOT", "GROUP", "RUNS", "RING", "~INSTALLS", "HEALTH", ">CALLED", "~LABELS").add_rows(
        (
            robot.name,
            robot.group or "-",
            robot.runs or "-",
            robot.ring or "-",
            _installs(robot.action),
            _health(robot),
            _called(robot, now_s),
            ", ".join(f"{name}={value}" for name, value in sorted(robot.labels.items())) or "-",
        )
        for robot in found
    )


def robot_panel(robot: RobotView, actions: Sequence[RobotActionView], *, now_s: float) -> RenderableType:
    """Returns one robot."""
    report = robot.report
    facts: dict[str, str | Text] = {
        "state": robot.state.value,
        "group": robot.group,
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(robot.labels.items())),
        "enrolled": f"{ago(max(0.0, now_s - robot.made_s))} ago by {robot.maker}, for team {robot.team}",
        "key": f"{robot.key[:16]}..." if robot.key else "none: a plain client of DDI",
        "called": f"{_called(robot, now_s)} ago from {robot.address}" if robot.contact_s is not None else "never",
        "runs": robot.runs or "nothing",
        "ring": f"{robot.ring} of rollout {robot.rollout}" if robot.ring else "",
        "health": _health(robot),
    }
    if robot.clash_s is not None:
        words = f"two devices called by its key {ago(max(0.0, now_s - robot.clash_s))} ago: was its disk copied?"
        facts["watch out"] = Text(words, style="red")
    if report is not None:
        fits = report.fits
        facts["is"] = f"{len(fits.state)} state, {len(fits.action)} action, {len(fits.cameras)} cameras"
        facts["runtime"] = report.runtime
    facts |= {f"told {name}": value for name, value in sorted(robot.attributes.items())}
    grid = facts_grid({name: value for name, value in facts.items() if value})
    rows = Listing("ACTION", "RELEASE", "STATE", ">CHANGED", "~WORDS").add_rows(
        (str(one.number), one.release, one.state.value, ago(max(0.0, now_s - one.changed_s)), one.words or "-")
        for one in actions
    )
    tallies = () if report is None else report.tallies
    counted = Listing("COUNTED", ">EPISODES", ">SUCCESSES", ">LATE", ">STOPS").add_rows(
        (one.target, str(one.episodes), str(one.successes), str(one.missed_deadlines), str(one.safety_stops))
        for one in tallies
    )
    parts: list[RenderableType] = [grid, *(("", rows) if actions else ()), *(("", counted) if tallies else ())]
    return framed(Group(*parts), robot.name)


def token_text(made: RobotToken, *, url: str, plain: bool) -> str:
    """Returns what is told of a robot's token."""
    if plain:
        step = f"swupdate -u '-t lab -u {url} -i {made.robot} -k {made.secret}'"
        return f"{made.robot} enters by its TargetToken, told this once: {made.secret}\nFor example: {step}"
    return f"On the robot, once: ms-edge enrol {url} {made.secret}"


def rollouts_table(found: Sequence[RolloutView], *, now_s: float) -> RenderableType:
    """Returns one row a rollout."""
    return Listing(">ROLLOUT", "RELEASE", "STATE", "~RINGS", "~WAITS FOR", "BY", ">AGE").add_rows(
        (
            str(one.number),
            one.release,
            Text(one.state.value, style=_COLOURS[one.state]),
            ", ".join(f"{ring.name} {ring.committed}/{ring.robots}" for ring in one.rings),
            next((ring.waits for ring in one.rings if ring.waits), one.why) or "-",
            one.maker,
            ago(max(0.0, now_s - one.made_s)),
        )
        for one in found
    )


def rollout_panel(found: RolloutView, *, now_s: float) -> RenderableType:
    """Returns one rollout."""
    facts: dict[str, str | Text] = {
        "release": found.release,
        "state": Text(found.state.value, style=_COLOURS[found.state]).append(
            f": {found.why}" if found.why else "", style=""
        ),
        "begun": f"{ago(max(0.0, now_s - found.made_s))} ago by {found.maker}",
        "note": found.note,
        "before": f"{found.base_successes} of {found.base_episodes} episodes" if found.base_episodes else "not counted",
    }
    rings = Listing("RING", ">ROBOTS", ">RUN IT", ">FAILED", ">SICK", ">AWAY", ">BACK", "SUCCESS", "~WAITS FOR")
    rings.add_rows(
        (
            ring.name,
            *map(str, (ring.robots, ring.committed, ring.failed, ring.unhealthy, ring.offline, ring.returned)),
            f"{ring.successes}/{ring.episodes}" if ring.episodes else "-",
            ring.waits or ("-" if ring.opened_s is not None else "its turn"),
        )
        for ring in found.rings
    )
    events = Listing(">AGO", "WHAT", "~OF", "~WORDS").add_rows(
        (
            ago(max(0.0, now_s - event.at_s)),
            event.kind.value,
            event.robot or found.rings[event.ring].name,
            f"{event.words}{f' ({event.by})' if event.by else ''}" or "-",
        )
        for event in found.events[-EVENTS_SHOWN:]
    )
    grid = facts_grid({name: value for name, value in facts.items() if value})
    shown: list[RenderableType] = [grid, "", rings, *(("", events) if found.events else ())]
    return framed(Group(*shown), f"rollout {found.number}")


def rollout_robots_table(found: Sequence[RolloutRobot], *, now_s: float) -> RenderableType:
    """Returns one row a robot of a rollout."""
    return Listing("ROBOT", "RING", "STATE", "RUNS", "~SAYS", "~LAST FAILURE").add_rows(
        (
            one.robot,
            one.ring,
            Text(one.standing.value, style=_STANDINGS[one.standing]).append(", away" if one.away else "", style="dim"),
            one.runs or "-",
            one.says or "-",
            "-" if one.failed_s is None else f"{one.failure} ({ago(max(0.0, now_s - one.failed_s))} ago)",
        )
        for one in found
    )


def _called(robot: RobotView, now_s: float) -> str:
    return "never" if robot.contact_s is None else ago(max(0.0, now_s - robot.contact_s))


def _health(robot: RobotView) -> Text:
    tone = "green" if robot.report is not None and robot.report.healthy and robot.clash_s is None else "red"
    words = health_words(robot)
    return Text(words, style="dim" if robot.state is RobotState.REVOKED or words == "-" else tone)


def health_words(robot: RobotView) -> str:
    """Returns how a robot is, "-" where nothing is known."""
    if robot.state is RobotState.REVOKED:
        return "revoked"
    if robot.clash_s is not None:
        return "two devices"
    if robot.report is None:
        return "-"
    return "good" if robot.report.healthy else robot.report.why or "bad"


def _installs(action: RobotActionView | None) -> str:
    return "-" if action is None else installs_words(action)


def installs_words(action: RobotActionView) -> str:
    """Returns what a robot installs, and how far it is."""
    return f"{action.release}: {action.words or action.state.value}"
