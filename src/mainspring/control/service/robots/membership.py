"""What is known of rollouts beside the store: rings of their robots, and what their events came to.

A plan never changes and events are only ever added, so each is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from threading import Lock
from typing import final
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from mainspring.control.service.robots.news import events_of
from mainspring.control.service.robots.rings import RolloutFold
from mainspring.control.store.robots.tables import rollout_events, rollouts
from mainspring.control.store.rows import read_text
from mainspring.control.store.store import Store
from mainspring.domain.answers.policies.rollouts import LIVE_ROLLOUTS, RolloutEvent, RolloutPlan

LOOKED_MAX = 8  # Rollouts that are over and looked at for rings, newest first: of those before, nobody asks.
HISTORIES_MAX = 64  # Of rollouts that were asked for last; one of 10,000 robots takes some 2 MB.
NEWEST_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotRing:
    """Where a robot is: the number of a rollout, None for none, and a ring's name."""

    rollout: int | None = None
    ring: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHistory:
    """What became of a rollout.

    Args:
        fold: What its events come to; nobody changes it.
        newest: The last `NEWEST_MAX` of them, oldest first.
    """

    plan: RolloutPlan
    fold: RolloutFold
    newest: tuple[RolloutEvent, ...]
    count: int
    last: int


@final
class KnownRollouts:
    """Rings of robots, and histories, of the rollouts of one store. Used by many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rings: dict[int, Mapping[str, str]] = {}
        self._histories: dict[int, RolloutHistory] = {}

    def rings(self, connection: sa.Connection) -> Mapping[int, Mapping[str, str]]:
        """Returns rings by robot, by the number of a rollout, newest first: of all that go on, and the newest."""
        newest = sa.select(rollouts.c.number).order_by(rollouts.c.number.desc()).limit(LOOKED_MAX)
        live = sa.select(rollouts.c.number).where(rollouts.c.state.in_([state.value for state in LIVE_ROLLOUTS]))
        numbers = sorted({*connection.execute(newest).scalars(), *connection.execute(live).scalars()}, reverse=True)
        with self._lock:
            known = dict(self._rings)
        unread = [number for number in numbers if number not in known]
        query = sa.select(rollouts.c.number, rollouts.c.plan).where(rollouts.c.number.in_(unread))
        for row in connection.execute(query) if unread else ():
            plan = read_text(RolloutPlan, row.plan)
            known[row.number] = {intern(robot): ring.name for ring in plan.rings for robot in ring.robots}
        seen = {number: known[number] for number in numbers}
        with self._lock:
            self._rings = dict(seen)
        return seen

    def histories(
        self, connection: sa.Connection, rows: Sequence[sa.Row[tuple[object, ...]]]
    ) -> Mapping[int, RolloutHistory]:
        """Returns what became of rollouts, by number; only events that were not read before are.

        Args:
            connection: What one that writes sees is not remembered: it may be taken back.
            rows: Of rollouts.
        """
        numbers = [row.number for row in rows]
        counted = sa.select(rollout_events.c.rollout, sa.func.count()).where(rollout_events.c.rollout.in_(numbers))
        counts = {row[0]: row[1] for row in connection.execute(counted.group_by(rollout_events.c.rollout))}
        found = {}
        for row in rows:
            with self._lock:
                known = self._histories.get(row.number)
            found[row.number] = seen = _history(connection, row, known, counts.get(row.number, 0))
            if connection.get_execution_options().get("writes"):
                continue
            with self._lock:  # The one that was asked for last is the last to go.
                self._histories.pop(row.number, None)
                self._histories[row.number] = seen
                while len(self._histories) > HISTORIES_MAX:
                    del self._histories[next(iter(self._histories))]
        return found


def _history(
    connection: sa.Connection, row: sa.Row[tuple[object, ...]], known: RolloutHistory | None, count: int
) -> RolloutHistory:
    if known is not None and known.count == count:
        return known
    told = [] if known is None else events_of(connection, row.number, since=known.last)
    newest: tuple[RolloutEvent, ...] = ()
    if known is None or known.count + len(told) != count:  # One that drew its number earlier was kept later.
        plan = read_text(RolloutPlan, row.plan)
        told, fold = events_of(connection, row.number), RolloutFold(plan)
    else:
        plan, fold, newest = known.plan, known.fold.copy(), known.newest
    events = [event for _, event in told]
    for event in events:
        fold.apply(event)
    last = told[-1][0] if told else 0
    return RolloutHistory(plan=plan, fold=fold, newest=(*newest, *events)[-NEWEST_MAX:], count=count, last=last)


_OF_STORES: WeakKeyDictionary[Store, KnownRollouts] = WeakKeyDictionary()
_LOCK = Lock()


def known_rollouts(store: Store) -> KnownRollouts:
    """Returns what is known of the rollouts of a store."""
    with _LOCK:
        return _OF_STORES.setdefault(store, KnownRollouts())


def ring_of(rings: Mapping[int, Mapping[str, str]], robot: str) -> RobotRing:
    """Returns where a robot is.

    Args:
        rings: From `KnownRollouts.rings`.
    """
    found = next((number for number, by_robot in rings.items() if robot in by_robot), None)
    return RobotRing() if found is None else RobotRing(rollout=found, ring=rings[found][robot])
