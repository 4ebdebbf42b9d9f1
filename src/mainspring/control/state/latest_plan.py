"""The last plan and the facts it was made from, for everybody who asks about them."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.domain.plan import Plan
from mainspring.planner import Policy, Snapshot


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


class LatestPlans:
    """The newest picture, None while this controller does not lead or has not planned. Used by many threads."""

    def __init__(self) -> None:
        self.newest: LatestPlan | None = None
