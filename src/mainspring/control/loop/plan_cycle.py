"""When the loop plans anew, and where its newest plan is shown."""

from __future__ import annotations

from math import inf
from typing import final

from mainspring.control.state.active_state import ActiveState
from mainspring.control.state.latest_plan import LatestPlan, LatestPlans
from mainspring.domain.plan import Plan
from mainspring.planner import Budget, Policy, plan


@final
class PlanCycle:
    """Plans when something has changed, and every so often.

    Args:
        policy: What the lab decides about planning.
        pictures: Where the last plan is shown.
        plan_s: How long a plan stands while nothing changes.
    """

    def __init__(self, policy: Policy, pictures: LatestPlans, plan_s: float) -> None:
        self._policy = policy
        self._pictures = pictures
        self._plan_s = plan_s
        self.forget()

    def forget(self) -> None:
        """Forgets what was planned: the next plan is made anew."""
        self._version = -1
        self._at_s = -inf

    def follow(self, *, following: bool) -> None:
        """Shows no plan of this controller's: somebody else makes them, if anybody does.

        Args:
            following: Whether this controller knows what they are made from.
        """
        self._pictures.newest, self._pictures.following = None, following

    @property
    def wanted(self) -> bool:
        """Returns whether somebody asks a controller that makes no plans what one would be."""
        return self._pictures.wanted

    def show(self, mirror: ActiveState, now_s: float) -> None:
        """Makes the plan that would be made now, for whoever asks; nothing of it happens.

        Args:
            mirror: What has not ended, and the fleet.
        """
        snapshot = mirror.snapshot(now_s)
        decided = plan(snapshot, self._policy, now_s, Budget())
        self._pictures.answer(LatestPlan(snapshot=snapshot, policy=self._policy, now_s=now_s, plan=decided))

    def decide(self, mirror: ActiveState, now_s: float, *, monotonic_s: float) -> Plan | None:
        """Returns a plan, None while the last one stands.

        Args:
            mirror: What has not ended, and the fleet.
            monotonic_s: The time on the clock that never jumps.
        """
        if mirror.version == self._version and monotonic_s - self._at_s < self._plan_s:
            return None
        self._version, self._at_s = mirror.version, monotonic_s
        snapshot = mirror.snapshot(now_s)
        decided = plan(snapshot, self._policy, now_s, Budget())
        self._pictures.lead(LatestPlan(snapshot=snapshot, policy=self._policy, now_s=now_s, plan=decided))
        return decided
