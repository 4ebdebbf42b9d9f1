"""In which ring each robot is: by the newest rollout that has it. A plan never changes, so each is read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from threading import Lock
from typing import final
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from mainspring.control.store.robots.tables import rollouts
from mainspring.control.store.rows import read_text
from mainspring.control.store.store import Store
from mainspring.domain.answers.policies.rollouts import RolloutPlan

LOOKED_MAX = 8  # Rollouts that are looked at, newest first: of what was rolled out before, nobody asks for rings.


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotRing:
    """Where a robot is: the number of a rollout, None for none, and a ring's name."""

    rollout: int | None = None
    ring: str = ""


@final
class Membership:
    """Rings of robots by robot, of the newest rollouts of one store. Used by many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rings: dict[int, Mapping[str, str]] = {}

    def look(self, connection: sa.Connection) -> Mapping[int, Mapping[str, str]]:
        """Returns rings by robot, by the number of a rollout, newest first."""
        newest = sa.select(rollouts.c.number).order_by(rollouts.c.number.desc()).limit(LOOKED_MAX)
        numbers = list(connection.execute(newest).scalars())
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


_OF_STORES: WeakKeyDictionary[Store, Membership] = WeakKeyDictionary()
_LOCK = Lock()


def membership_of(store: Store) -> Membership:
    """Returns what is known of the robots of a store."""
    with _LOCK:
        return _OF_STORES.setdefault(store, Membership())


def ring_of(rings: Mapping[int, Mapping[str, str]], robot: str) -> RobotRing:
    """Returns where a robot is.

    Args:
        rings: From `Membership.look`.
    """
    found = next((number for number, by_robot in rings.items() if robot in by_robot), None)
    return RobotRing() if found is None else RobotRing(rollout=found, ring=rings[found][robot])
