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

    def hide(self) -> None:
        """Shows no plan: somebody else makes them."""
        self._pictures.newest = None

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
        self._pictures.newest = LatestPlan(snapshot=snapshot, policy=self._policy, now_s=now_s, plan=decided)
        return decided
