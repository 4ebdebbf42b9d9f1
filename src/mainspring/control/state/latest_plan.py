"""The last plan and the facts it was made from, for everybody who asks about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from threading import Condition, Lock
from typing import TypeVar, final

from mainspring.domain.plan import Plan
from mainspring.planner import Policy, Snapshot

COPY_S = 5.0  # How old a follower's picture may be: half of how long a leader's stands while nothing changes.
ANSWER_S = 30.0  # A tick under way and a plan of a large lab take seconds.
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatestPlan:
    """One plan and what it was made from; nothing in it ever changes.

    Args:
        policy: What the lab decides.
    """

    snapshot: Snapshot
    policy: Policy
    now_s: float
    plan: Plan


def once(make: Callable[[LatestPlan], Value]) -> Callable[[LatestPlan], Value]:
    """Returns what looks something up once for each picture, while others who ask wait for it: of a hundred thousand
    jobs that takes a while, and a new picture is asked about by many at one time.

    Args:
        make: Looks it up.
    """
    turn, kept = Lock(), list[tuple[LatestPlan, Value]]()

    @wraps(make)
    def looked_up(picture: LatestPlan) -> Value:
        with turn:
            if not kept or kept[0][0] is not picture:
                kept[:] = [(picture, make(picture))]
            return kept[0][1]

    return looked_up


@final
class LatestPlans:
    """The newest picture; of a controller that follows another, one of its own where somebody asks. Used by many
    threads.

    `newest` is None while this controller does not lead or has not planned.
    """

    def __init__(self) -> None:
        self.newest: LatestPlan | None = None
        self.following = False
        """Whether another controller makes the plans, and this one knows what they are made from."""
        self._copy: LatestPlan | None = None
        self._asked = 0
        self._answered = 0
        self._changed = Condition()

    @property
    def wanted(self) -> bool:
        """Returns whether somebody waits for a picture of this controller's own."""
        return self._asked > self._answered

    def lead(self, picture: LatestPlan) -> None:
        """Shows a picture of this controller, which leads; to those too who asked while it did not."""
        self.newest, self.following = picture, False
        if self.wanted:
            self.answer(picture)

    def answer(self, copy: LatestPlan) -> None:
        """Shows a picture to those who asked this controller while it follows another."""
        with self._changed:
            self._copy, self._answered = copy, self._asked
            self._changed.notify_all()

    def shown(self, now_s: float, wake: Callable[[], None]) -> LatestPlan | None:
        """Returns the newest picture; while another controller leads, what this one makes of the same facts, which
        takes a tick unless others have just asked. None where nobody makes one.

        Args:
            wake: Wakes the loop.
        """
        if self.newest is not None or not self.following:
            return self.newest
        with self._changed:
            if self._copy is not None and 0.0 <= now_s - self._copy.now_s < COPY_S:
                return self._copy
            self._asked += 1
            mine = self._asked
            wake()
            self._changed.wait_for(lambda: self._answered >= mine, ANSWER_S)
            return self._copy if self._answered >= mine else None
