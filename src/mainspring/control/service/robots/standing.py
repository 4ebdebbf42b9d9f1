"""Robots of a rollout one by one, as people see them: pure, of what was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mainspring.control.service.robots.rings import RolloutFold
from mainspring.domain.answers.policies.rollouts import RolloutPlan, RolloutRobot


def view_robots(
    plan: RolloutPlan,
    fold: RolloutFold,
    chosen: Collection[str],
    *,
    away: Collection[str],
    runs: Mapping[str, str],
    said: Mapping[str, str],
) -> tuple[RolloutRobot, ...]:
    """Returns robots of a rollout, in the order in which they were chosen.

    Args:
        away: Those that are not waited for.
        runs: What each runs, as "NAME@VERSION".
        said: What each last said of what it installs for this rollout.
    """
    failed = fold.failures
    rings = {robot: ring.name for ring in plan.rings for robot in ring.robots}
    return tuple(
        RolloutRobot(
            robot=robot,
            ring=rings[robot],
            standing=fold.standing[robot],
            away=robot in away,
            runs=runs.get(robot, ""),
            before=plan.before.get(robot, ""),
            says=said.get(robot, ""),
            failure=failed[robot].words or failed[robot].kind.value if robot in failed else "",
            failed_s=failed[robot].at_s if robot in failed else None,
        )
        for robot in chosen
    )
