"""Rollouts as one store keeps them: begun, steered by people, and moved on by the server that leads.

What follows from what is `rings.py`; this reads what that needs, and does what it says, each in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from functools import reduce
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.service.releases.keeping import PolicyReleases
from mainspring.control.service.robots.enrolling import has_label, require_published, unfitness
from mainspring.control.service.robots.membership import NEWEST_MAX, known_rollouts
from mainspring.control.service.robots.news import add_events, events_of
from mainspring.control.service.robots.planning import planned_rings
from mainspring.control.service.robots.rings import RolloutFold, RolloutSeen, decide, folded, view_rings
from mainspring.control.service.robots.standing import view_robots
from mainspring.control.store.audit import note
from mainspring.control.store.robots import records
from mainspring.control.store.robots.records import RobotRecord
from mainspring.control.store.robots.tables import robots, rollouts
from mainspring.control.store.rows import read_text, text_of
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import RobotState, RobotTally
from mainspring.domain.answers.policies.releases import reference_of
from mainspring.domain.answers.policies.robots import POLL_S
from mainspring.domain.answers.policies.rollouts import (
    LIVE_ROLLOUTS,
    ROLLOUT_ACTS,
    NewRollout,
    RobotStanding,
    RolloutEvent,
    RolloutEventKind,
    RolloutPlan,
    RolloutRobot,
    RolloutState,
    RolloutView,
    RolloutWord,
)
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right

POLLS_MISSED = 3  # Who misses so many calls is away.
_STEPS_MAX = 64  # Of one rollout at one look: each ring may open at once where nobody is in it.
_LIVE = tuple(state.value for state in LIVE_ROLLOUTS)


@final
class Rollouts:
    """The rollouts of one controller. Used by many threads.

    Args:
        write: A transaction in which nothing is written once another server leads; for `step` alone.
        poll_s: How often robots call.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        releases: PolicyReleases,
        write: Callable[[], AbstractContextManager[sa.Connection]] | None = None,
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._releases = releases
        self._write = write or store.write
        self._poll_s = poll_s
        self._known = known_rollouts(store)

    # ---------------------------------------------------------------- people

    def ls(self, caller: Caller = LAB_ITSELF, *, limit: int = 50) -> tuple[RolloutView, ...]:
        """Returns rollouts, newest first, without their events."""
        with self._store.read() as connection:
            rows = connection.execute(sa.select(rollouts).order_by(rollouts.c.number.desc()).limit(limit)).all()
            return self._views(connection, rows, events=0)

    def show(self, rollout: str, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Returns one rollout with its newest events.

        Raises:
            NotFound: There is none of that number.
        """
        with self._store.read() as connection:
            (view,) = self._views(connection, [_row(connection, rollout)], events=NEWEST_MAX)
            return view

    def robots(
        self,
        rollout: str,
        caller: Caller = LAB_ITSELF,
        *,
        ring: str | None = None,
        standing: RobotStanding | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[RolloutRobot, ...]:
        """Returns robots of a rollout, ring by ring, in order of name.

        Args:
            ring: Only those of this ring, unless None.
            standing: Only those that stand so, unless None.
            after: The last one seen, None to begin.

        Raises:
            NotFound: There is no such rollout, or no such ring or robot in it.
        """
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            row = _row(connection, rollout)
            history = self._known.histories(connection, [row])[row.number]
            plan, fold = history.plan, history.fold
            chosen = [
                robot
                for each in plan.rings_from(ring, after)
                for robot in each.robots
                if standing in (None, fold.standing[robot])
            ][:limit]
            seen = _seen(connection, row.number, plan, now_s, _contacts(connection))
            said = {action.robot: action.words for action in records.live_actions(connection, row.number)}
            known = records.robots_named(connection, chosen)
            runs = {name: _runs(connection, robot) for name, robot in known.items()}
        return view_robots(plan, fold, chosen, away=seen.offline, runs=runs, said=said)

    def start(self, asked: NewRollout, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Begins a rollout, and returns it.

        Raises:
            NotFound: There is no such release, or a ring names a group that nobody is in.
            NotAllowed: The caller may not roll releases out.
            Conflict: The release is not published, or a robot is in another rollout.
            InvalidInput: No robot is left, some do not fit the release, or robots that call seldom would count as away.
        """
        self._require_patient(asked)
        view, now_s = self._releases.show(asked.release), self._clock.now_s()
        release = view.release.reference
        with self._store.write() as connection:
            team = view.release.content.team
            caller.require(connection, Right.ROLL_OUT, team)
            require_published(view)
            fleet = [robot for robot in active_robots(connection) if has_label(robot.labels, asked.where or None)]
            rings = planned_rings(asked.rings, fleet, release)
            named = {robot for ring in rings for robot in ring.robots}
            chosen = [robot for robot in fleet if robot.name in named]
            for each in sorted({robot.team for robot in chosen}):
                caller.require(connection, Right.ROLL_OUT, each)
            if not chosen:
                raise InvalidInput("roll a release out", on=release, got="no robot", next_step="ms robot ls")
            unfit = [(robot.name, why) for robot in chosen if (why := unfitness(view, robot)) is not None]
            if unfit:
                got = f"{len(unfit)} robots that it does not fit, such as {unfit[0][0]}: {unfit[0][1]}"
                step = "leave them out: --where LABEL=VALUE"
                raise InvalidInput("roll a release out", on=release, got=got[:600], next_step=step)
            self._require_free(connection, release, named)
            before = {robot.name: _runs(connection, robot) for robot in chosen}
            plan = RolloutPlan(release=release, rings=rings, before=before, rules=asked.rules, note=asked.note)
            number = connection.execute(
                sa.insert(rollouts)
                .values(
                    team=team,
                    release=release,
                    state=RolloutState.RUNNING.value,
                    plan=text_of(plan),
                    maker=str(caller),
                    made_s=now_s,
                )
                .returning(rollouts.c.number)
            ).scalar_one()
            note(connection, caller, "roll a release out", f"{release} to {len(chosen)} robots", team=team, now_s=now_s)
        return self.show(str(number))

    def _require_patient(self, asked: NewRollout) -> None:
        """Raises InvalidInput if a ring would pass without robots that only have not called yet."""
        wanted_s = POLLS_MISSED * self._poll_s
        if asked.rules.offline_s < wanted_s:
            got = f"robots that are away after {asked.rules.offline_s:g} s, and call every {self._poll_s:g} s"
            step = f"--offline {wanted_s:g}, or a smaller robot_poll_s"
            wanted = f"{wanted_s:g} s or more"
            raise InvalidInput("roll a release out", on=asked.release, got=got, wanted=wanted, next_step=step)

    def _require_free(self, connection: sa.Connection, release: str, named: Set[str]) -> None:
        for row in connection.execute(sa.select(rollouts).where(rollouts.c.state.in_(_LIVE))).all():
            both = sorted(named & {robot for ring in _plan(row).rings for robot in ring.robots})
            if both:
                got = f"{len(both)} robots, such as {both[0]}, that rollout {row.number} of {row.release} has"
                step = f"ms rollout abort {row.number}, or leave them out"
                raise Conflict("roll a release out", on=release, got=got, next_step=step)

    def pause(self, rollout: str, word: RolloutWord, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Lets no robot begin until it is resumed; raises as `abort`."""
        return self._say(rollout, RolloutEventKind.PAUSED, ROLLOUT_ACTS["pause"], word.reason, caller)

    def resume(self, rollout: str, word: RolloutWord, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Lets a paused rollout go on; raises as `abort`."""
        return self._say(rollout, RolloutEventKind.RESUMED, ROLLOUT_ACTS["resume"], word.reason, caller)

    def abort(self, rollout: str, word: RolloutWord, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Ends a rollout where it is: robots keep what they run.

        Raises:
            NotFound: There is none of that number.
            NotAllowed: The caller may not roll releases out.
            Conflict: It is over already, or in another state than this is for.
        """
        return self._say(rollout, RolloutEventKind.ABORTED, ROLLOUT_ACTS["abort"], word.reason, caller)

    def roll_back(self, rollout: str, word: RolloutWord, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Has every robot of a rollout run again what it ran before; also of one that is done or aborted."""
        return self._say(rollout, RolloutEventKind.ROLLED_BACK, ROLLOUT_ACTS["rollback"], word.reason, caller)

    def approve(self, rollout: str, word: RolloutWord, caller: Caller = LAB_ITSELF) -> RolloutView:
        """Says yes to the ring that is open: it passes after the stated hours, whatever was counted."""
        return self._say(rollout, RolloutEventKind.APPROVED, ROLLOUT_ACTS["approve"], word.reason, caller)

    def _say(
        self,
        rollout: str,
        kind: RolloutEventKind,
        states: Sequence[RolloutState],
        reason: str,
        caller: Caller,
    ) -> RolloutView:
        now_s, verb = self._clock.now_s(), kind.value
        with self._store.write() as connection:
            row = _row(connection, rollout)
            caller.require(connection, Right.ROLL_OUT, row.team)
            plan, fold = _plan(row), _folded(connection, row)
            if fold.state not in states:
                got, wanted = f"one that is {fold.state.value}", " or ".join(state.value for state in states)
                raise Conflict(f"have a rollout {verb}", on=str(row.number), got=got, wanted=wanted)
            ring = max(0, len(fold.opened_s) - 1)
            event = RolloutEvent(kind=kind, at_s=now_s, ring=ring, words=reason or verb, by=str(caller))
            self._apply(connection, row.number, plan, fold, event)
            note(connection, caller, f"have a rollout {verb}", str(row.number), team=row.team, now_s=now_s)
        return self.show(rollout)

    # ---------------------------------------------------------------- the server that leads

    def step(self) -> bool:
        """Moves every live rollout on as far as it goes now; returns whether anything moved."""
        with self._store.read() as connection:
            numbers = connection.execute(sa.select(rollouts.c.number).where(rollouts.c.state.in_(_LIVE))).scalars()
            waiting = [number for number in numbers if self._due(connection, number)]
        for number in waiting:
            with self._write() as connection:
                self._move(connection, number)
        return bool(waiting)

    def _due(self, connection: sa.Connection, number: int) -> bool:
        row = _row(connection, str(number))
        plan, now_s = _plan(row), self._clock.now_s()
        fold, seen = _folded(connection, row), _seen(connection, number, plan, now_s, _contacts(connection))
        return bool(decide(plan, fold, seen, now_s)) or bool(_left_out(connection, plan, fold, seen.busy))

    def _move(self, connection: sa.Connection, number: int) -> None:
        row, now_s = _row(connection, str(number)), self._clock.now_s()
        plan, fold = _plan(row), _folded(connection, row)
        contacts = _contacts(connection)
        for _ in range(_STEPS_MAX):
            events = decide(plan, fold, _seen(connection, number, plan, now_s, contacts), now_s)
            if not events:
                break
            for event in events:
                self._apply(connection, number, plan, fold, event)
        self._offer(connection, number, plan, fold, now_s)

    def _apply(
        self, connection: sa.Connection, number: int, plan: RolloutPlan, fold: RolloutFold, event: RolloutEvent
    ) -> None:
        """Writes an event, and does what follows of it."""
        add_events(connection, number, [event])
        fold.apply(event)
        own = rollouts.c.number == number
        connection.execute(sa.update(rollouts).where(own).values(state=fold.state.value))
        match event.kind:
            case RolloutEventKind.OPENED | RolloutEventKind.RESUMED:
                self._offer(connection, number, plan, fold, event.at_s)
            case RolloutEventKind.PAUSED:
                for action in records.live_actions(connection, number):
                    if not action.seen and not action.back:
                        records.cancel_action(connection, action, event.at_s)
            case RolloutEventKind.FAILED | RolloutEventKind.ABORTED:
                for action in records.live_actions(connection, number):
                    if event.robot in ("", action.robot):
                        records.cancel_action(connection, action, event.at_s)
            case RolloutEventKind.ROLLED_BACK:
                self._take_back(connection, number, plan, fold, event.at_s)
            case _:
                pass

    def _offer(
        self, connection: sa.Connection, number: int, plan: RolloutPlan, fold: RolloutFold, now_s: float
    ) -> None:
        """Offers the release to robots of open rings that have it not, and nothing else to do."""
        offered = dict.fromkeys(_left_out(connection, plan, fold), plan.release)
        asked = sorted(offered) if plan.rules.confirm else []
        known = records.robots_named(connection, asked)
        unconfirmed = [robot for robot in asked if robot in known and not known[robot].auto_confirm]
        records.add_actions(connection, offered, now_s=now_s, rollout=number, unconfirmed=unconfirmed)

    def _take_back(
        self, connection: sa.Connection, number: int, plan: RolloutPlan, fold: RolloutFold, now_s: float
    ) -> None:
        """Cancels what goes on, and has robots that may run the release run what they ran before."""
        untouched = set()
        for action in records.live_actions(connection, number):
            if not action.seen:
                untouched.add(action.robot)
            records.cancel_action(connection, action, now_s)
        wanted = {
            robot: plan.before[robot]
            for robot, standing in sorted(fold.standing.items())
            if standing is not RobotStanding.AHEAD and robot not in untouched and plan.before[robot]
        }
        revoked = {robot.name for robot in records.robots_named(connection, wanted).values() if not _is_active(robot)}
        kept = {robot: release for robot, release in wanted.items() if robot not in revoked}
        records.add_actions(connection, kept, now_s=now_s, rollout=number, back=True)

    # ---------------------------------------------------------------- views

    def _views(
        self, connection: sa.Connection, rows: Sequence[sa.Row[tuple[object, ...]]], *, events: int
    ) -> tuple[RolloutView, ...]:
        now_s, contacts = self._clock.now_s(), _contacts(connection)
        histories = self._known.histories(connection, rows)
        views = []
        for row in rows:
            history = histories[row.number]
            plan, fold = history.plan, history.fold
            seen = _seen(connection, row.number, plan, now_s, contacts)
            views.append(
                RolloutView(
                    number=row.number,
                    team=row.team,
                    release=row.release,
                    state=fold.state,
                    maker=row.maker,
                    made_s=row.made_s,
                    rings=view_rings(plan, fold, seen, now_s),
                    why=fold.why,
                    note=plan.note,
                    base_episodes=seen.base.episodes,
                    base_successes=seen.base.successes,
                    events=history.newest[-events:] if events else (),
                )
            )
        return tuple(views)


def _row(connection: sa.Connection, rollout: str) -> sa.Row[tuple[object, ...]]:
    number = int(rollout) if rollout.isascii() and rollout.isdigit() and len(rollout) <= 18 else -1
    row = connection.execute(sa.select(rollouts).where(rollouts.c.number == number)).first()
    if row is None:
        raise NotFound("find a rollout", on=repr(rollout[:80]), wanted="a number", next_step="ms rollout ls")
    return row


def _plan(row: sa.Row[tuple[object, ...]]) -> RolloutPlan:
    return read_text(RolloutPlan, row.plan)


def _folded(connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> RolloutFold:
    return folded(_plan(row), (event for _, event in events_of(connection, row.number)))


def _left_out(
    connection: sa.Connection, plan: RolloutPlan, fold: RolloutFold, own: Set[str] = frozenset()
) -> Sequence[str]:
    """Returns robots of open rings that are to have the release and have nothing to do: those that installed something
    else when their ring opened, once that is over.

    Args:
        own: Robots that are known to be busy with this rollout.
    """
    if fold.state is not RolloutState.RUNNING:
        return ()
    opened = {robot for ring in plan.rings[: len(fold.opened_s)] for robot in ring.robots}
    waiting = {robot for robot in opened - own if fold.standing[robot] is RobotStanding.OFFERED}
    return sorted(waiting - records.busy_robots(connection)) if waiting else ()


def active_robots(connection: sa.Connection) -> Sequence[RobotRecord]:
    """Returns robots that may call, in order of name."""
    active = robots.c.state == RobotState.ACTIVE.value
    return records.ROBOT_ROWS.read(connection, records.ROBOT_ROWS.select.where(active).order_by(robots.c.name))


def _is_active(robot: RobotRecord) -> bool:
    return robot.state is RobotState.ACTIVE


def _runs(connection: sa.Connection, robot: RobotRecord) -> str:
    """Returns what a robot runs, as it told; of a plain client what it installed last."""
    if robot.key:
        return reference_of(robot.report.runs) if robot.report is not None else ""
    done = records.last_done(connection, robot.name)
    return "" if done is None else done.release


def _contacts(connection: sa.Connection) -> Sequence[sa.Row[Any, Any, Any]]:
    """Returns when each robot last called, and whether it may."""
    return connection.execute(sa.select(robots.c.name, robots.c.contact_s, robots.c.state)).all()


def _seen(
    connection: sa.Connection,
    number: int,
    plan: RolloutPlan,
    now_s: float,
    contacts: Sequence[sa.Row[Any, Any, Any]],
) -> RolloutSeen:
    names = {robot for ring in plan.rings for robot in ring.robots}
    away = frozenset(
        row.name
        for row in contacts
        if row.name in names
        and (
            row.contact_s is None
            or now_s - row.contact_s > plan.rules.offline_s
            or row.state != RobotState.ACTIVE.value
        )
    )
    live = records.live_actions(connection, number)
    before = {release for release in plan.before.values() if release and release != plan.release}
    tallies, base = {}, []
    for robot, release, tally in records.tallies_of(connection, {plan.release, *before}):
        if release == plan.release and robot in names:
            tallies[robot] = tally
        elif plan.before.get(robot) == release:
            base.append(tally)
    return RolloutSeen(
        tallies=tallies,
        base=reduce(RobotTally.plus, base, RobotTally(target="")),
        offline=away,
        asked_s={action.robot: action.changed_s for action in live if action.seen and not action.back},
        busy=frozenset(action.robot for action in live),
    )
