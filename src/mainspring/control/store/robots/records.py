"""Robots in the store, what they enter by, and what is installed on them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

import sqlalchemy as sa

from mainspring.control.store.robots.tables import robot_actions, robot_tallies, robot_tokens, robots
from mainspring.control.store.rows import RowMapping, read_text, text_of
from mainspring.domain.answers import (
    ActionState,
    NewRobot,
    RobotActionView,
    RobotReport,
    RobotState,
    RobotTally,
    RobotView,
)
from mainspring.domain.answers.policies.releases import reference_of
from mainspring.domain.answers.policies.robots import LIVE_ACTIONS
from mainspring.domain.codec import alike
from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.ids import TeamName

_LIVE = tuple(state.value for state in LIVE_ACTIONS)
_NEAR_MAX = 1_000  # Names among which the nearest to a wrong one is looked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotRecord:
    """A robot.

    Args:
        sha256: Of its TargetToken, "" for none.
        boots: What its agent drew at its last starts, newest last.
        auto_confirm: Whether nobody at it is asked before something is installed.
    """

    name: str
    team: TeamName
    group: str
    labels: Mapping[str, str]
    state: RobotState
    key: str
    sha256: str
    maker: str
    made_s: float
    contact_s: float | None = None
    address: str = ""
    boots: tuple[str, ...] = ()
    clash_s: float | None = None
    report: RobotReport | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    auto_confirm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotActionRecord:
    """One installation on one robot; see `RobotActionView`.

    Args:
        back: Whether it takes back what a rollout brought.
        said: How often the robot said anything of it.
    """

    number: int
    robot: str
    release: str
    rollout: int | None
    back: bool
    state: ActionState
    seen: bool
    made_s: float
    changed_s: float
    said: int
    words: str

    @property
    def is_live(self) -> bool:
        """Returns whether something is still to come of it."""
        return self.state in LIVE_ACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotTokenRecord:
    """A one-time token, or that of gateways.

    Args:
        robot: Whom it enrols, "" for gateways.
        asked: What the robot is to be.
        key: Whose it was when it was used, "" before.
    """

    sha256: str
    robot: str
    asked: NewRobot
    maker: str
    made_s: float
    expires_s: float | None
    key: str = ""


ROBOT_ROWS = RowMapping(RobotRecord, robots)
ACTION_ROWS = RowMapping(RobotActionRecord, robot_actions)
_TOKEN_ROWS = RowMapping(RobotTokenRecord, robot_tokens)
_BY_NAME = ROBOT_ROWS.select.where(robots.c.name == sa.bindparam("name"))  # Made once: every call of a robot asks it.
_LIVE_OF = (
    ACTION_ROWS.select.where(robot_actions.c.robot == sa.bindparam("robot"), robot_actions.c.state.in_(_LIVE))
    .order_by(robot_actions.c.number)
    .limit(1)
)


def secret_hash(secret: str) -> str:
    """Returns the hash by which a secret is kept."""
    return hashlib.sha256(secret.encode()).hexdigest()


# ---------------------------------------------------------------- robots


def find_robot(connection: sa.Connection, name: str) -> RobotRecord | None:
    """Returns a robot, None where there is none of that name."""
    return next(iter(ROBOT_ROWS.read(connection, _BY_NAME, name=name)), None)


def robot_of(connection: sa.Connection, name: str) -> RobotRecord:
    """Returns a robot.

    Raises:
        NotFound: There is none of that name.
    """
    if (found := find_robot(connection, name)) is not None:
        return found
    names = connection.execute(sa.select(robots.c.name).order_by(robots.c.name).limit(_NEAR_MAX)).scalars()
    raise NotFound("find a robot", on=repr(name[:80]), wanted=nearest(name[:80], tuple(names)))


def save_robot(connection: sa.Connection, robot: RobotRecord) -> None:
    """Adds a robot, or writes it anew."""
    row = ROBOT_ROWS.row(alike(RobotRecord, robot))
    changed = connection.execute(sa.update(robots).where(robots.c.name == robot.name).values(row))
    if not changed.rowcount:
        connection.execute(sa.insert(robots).values(row))


def change_robot(connection: sa.Connection, name: str, **fields: object) -> None:
    """Writes some fields of a robot."""
    connection.execute(sa.update(robots).where(robots.c.name == name).values(ROBOT_ROWS.row(fields)))


def robots_named(connection: sa.Connection, names: Collection[str]) -> Mapping[str, RobotRecord]:
    """Returns robots by name."""
    found: dict[str, RobotRecord] = {}
    ordered = sorted(names)
    for start in range(0, len(ordered), _NEAR_MAX):
        query = ROBOT_ROWS.select.where(robots.c.name.in_(ordered[start : start + _NEAR_MAX]))
        found |= {robot.name: robot for robot in ROBOT_ROWS.read(connection, query)}
    return found


# ---------------------------------------------------------------- what they enter by


def save_robot_token(connection: sa.Connection, token: RobotTokenRecord) -> None:
    """Adds a token; what was to enrol the same robot enrols nobody any more."""
    forget_robot_tokens(connection, token.robot)
    connection.execute(sa.insert(robot_tokens).values(_TOKEN_ROWS.row(alike(RobotTokenRecord, token))))


def forget_robot_tokens(connection: sa.Connection, robot: str) -> None:
    """Has a robot be enrolled by no token that was made for it so far, nor enter again by one that it used."""
    connection.execute(sa.delete(robot_tokens).where(robot_tokens.c.robot == robot))


def find_robot_token(connection: sa.Connection, secret: str) -> RobotTokenRecord | None:
    """Returns what a secret is, or None."""
    query = _TOKEN_ROWS.select.where(robot_tokens.c.sha256 == secret_hash(secret))
    return next(iter(_TOKEN_ROWS.read(connection, query)), None)


def use_robot_token(connection: sa.Connection, token: RobotTokenRecord, key: str) -> None:
    """Writes by whose key a token was used."""
    connection.execute(sa.update(robot_tokens).where(robot_tokens.c.sha256 == token.sha256).values(key=key))


# ---------------------------------------------------------------- what is installed on them


def live_action(connection: sa.Connection, robot: str) -> RobotActionRecord | None:
    """Returns what a robot has to do next, None for nothing."""
    return next(iter(ACTION_ROWS.read(connection, _LIVE_OF, robot=robot)), None)


def live_actions(connection: sa.Connection, rollout: int) -> tuple[RobotActionRecord, ...]:
    """Returns what is still to come of a rollout."""
    query = ACTION_ROWS.select.where(robot_actions.c.rollout == rollout, robot_actions.c.state.in_(_LIVE))
    return ACTION_ROWS.read(connection, query.order_by(robot_actions.c.number))


def busy_robots(connection: sa.Connection) -> Set[str]:
    """Returns all robots that have something to do."""
    query = sa.select(robot_actions.c.robot).where(robot_actions.c.state.in_(_LIVE))
    return set(connection.execute(query).scalars())


def action_of(connection: sa.Connection, robot: str, number: int) -> RobotActionRecord:
    """Returns an action of a robot.

    Raises:
        NotFound: It has none of that number.
    """
    query = ACTION_ROWS.select.where(robot_actions.c.number == number, robot_actions.c.robot == robot)
    found = next(iter(ACTION_ROWS.read(connection, query)), None)
    if found is None:
        raise NotFound("find an action", on=f"robot {robot}", got=str(number), wanted="one of this robot")
    return found


def actions_of(connection: sa.Connection, robot: str, limit: int) -> tuple[RobotActionRecord, ...]:
    """Returns what was installed on a robot, newest first."""
    query = ACTION_ROWS.select.where(robot_actions.c.robot == robot)
    return ACTION_ROWS.read(connection, query.order_by(robot_actions.c.number.desc()).limit(limit))


def last_done(connection: sa.Connection, robot: str) -> RobotActionRecord | None:
    """Returns what a robot installed last, None for nothing."""
    own = (robot_actions.c.robot == robot, robot_actions.c.state == ActionState.DONE.value)
    query = ACTION_ROWS.select.where(*own).order_by(robot_actions.c.number.desc()).limit(1)
    return next(iter(ACTION_ROWS.read(connection, query)), None)


def add_actions(
    connection: sa.Connection,
    wanted: Mapping[str, str],
    *,
    now_s: float,
    rollout: int | None = None,
    back: bool = False,
    unconfirmed: Collection[str] = (),
) -> None:
    """Has robots install releases.

    Args:
        wanted: "NAME@VERSION" by robot.
        unconfirmed: Robots at which somebody is to confirm it first.
    """
    rows = [
        {
            "robot": robot,
            "release": release,
            "rollout": rollout,
            "back": back,
            "state": (ActionState.UNCONFIRMED if robot in unconfirmed else ActionState.OPEN).value,
            "seen": False,
            "made_s": now_s,
            "changed_s": now_s,
            "said": 0,
            "words": "",
        }
        for robot, release in sorted(wanted.items())
    ]
    if rows:
        connection.execute(sa.insert(robot_actions), rows)


def tries_back(connection: sa.Connection, action: RobotActionRecord) -> int:
    """Returns how often an action's rollout has had its robot go back."""
    own = (robot_actions.c.rollout == action.rollout, robot_actions.c.robot == action.robot, robot_actions.c.back)
    return connection.execute(sa.select(sa.func.count()).select_from(robot_actions).where(*own)).scalar_one()


def change_action(connection: sa.Connection, number: int, **fields: object) -> None:
    """Writes some fields of an action."""
    own = robot_actions.c.number == number
    connection.execute(sa.update(robot_actions).where(own).values(ACTION_ROWS.row(fields)))


def cancel_action(connection: sa.Connection, action: RobotActionRecord, now_s: float) -> ActionState:
    """Has a robot give up an action, and returns its state: one that it has not seen is over at once."""
    state = ActionState.CANCELLING if action.seen else ActionState.CANCELLED
    change_action(connection, action.number, state=state, changed_s=now_s)
    return state


# ---------------------------------------------------------------- what they counted


def save_tally(connection: sa.Connection, robot: str, release: str, tally: RobotTally) -> None:
    """Keeps what a robot counted of a release, in place of what it counted before."""
    own = (robot_tallies.c.robot == robot, robot_tallies.c.release == release)
    changed = connection.execute(sa.update(robot_tallies).where(*own).values(tally=text_of(tally)))
    if not changed.rowcount:
        connection.execute(sa.insert(robot_tallies).values(robot=robot, release=release, tally=text_of(tally)))


def tallies_of(connection: sa.Connection, releases: Collection[str]) -> Sequence[tuple[str, str, RobotTally]]:
    """Returns robot, release and tally of some releases, wherever they ran."""
    query = sa.select(robot_tallies).where(robot_tallies.c.release.in_(sorted(releases)))
    return [(row.robot, row.release, read_text(RobotTally, row.tally)) for row in connection.execute(query)]


# ---------------------------------------------------------------- views


def view_action(action: RobotActionRecord) -> RobotActionView:
    """Returns an action as people see it."""
    return RobotActionView(**alike(RobotActionView, action))


def view_robot(robot: RobotRecord, action: RobotActionRecord | None, installed: str) -> RobotView:
    """Returns a robot as people see it.

    Args:
        installed: What it installed last, by what it said of actions.
    """
    runs = reference_of(robot.report.runs) if robot.report is not None and robot.report.runs else installed
    shown = None if action is None else view_action(action)
    return RobotView(**alike(RobotView, robot), runs=runs, action=shown)
