"""Which robots are in which ring: decided once, when a rollout begins, and for the same release always alike."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.control.store.robots.records import RobotRecord
from mainspring.domain.answers.policies.rollouts import RingPlan
from mainspring.domain.errors import InvalidInput, NotFound, nearest

ALL = "all"
_RING = re.compile(r"(?:([a-z0-9][a-z0-9._-]{0,62}):)?([0-9]{1,3}(?:\.[0-9]{1,3})?)%|([a-z0-9][a-z0-9._-]{0,62})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSpec:
    """A ring as it is written.

    Args:
        name: What it is called, and the group that is in it, or first.
        share: Of all robots, 0 to 1, None for all of a group.
        whole: Whether the share counts rings before it: "10%" is as many as make a tenth of all.
    """

    name: str
    share: float | None
    whole: bool = False

    @classmethod
    def read(cls, text: str) -> RingSpec:
        """Returns a ring as it is written: "lab", "canary:5%", "10%" or "all".

        Raises:
            InvalidInput: It is none.
        """
        found = _RING.fullmatch(text)
        if found is None or (found[2] is not None and not 0 < float(found[2]) <= 100):
            raise InvalidInput("read a ring", got=repr(text[:80]), wanted="GROUP, NAME:5%, 10% or all")
        if found[3] is not None:
            return cls(name=found[3], share=1.0 if found[3] == ALL else None, whole=found[3] == ALL)
        return cls(name=found[1] or text, share=float(found[2]) / 100, whole=found[1] is None)


def planned_rings(texts: Sequence[str], fleet: Sequence[RobotRecord], release: str) -> tuple[RingPlan, ...]:
    """Returns the robots of each ring; each robot is in one at most, the first that takes it.

    Args:
        fleet: All that may get the release.
        release: By it the order is drawn in which shares are filled, so that not the same robots are first always.

    Raises:
        InvalidInput: A ring is none, or named twice.
        NotFound: A group that nobody is in.
    """
    specs = [RingSpec.read(text) for text in texts]
    if len({spec.name for spec in specs}) != len(specs):
        raise InvalidInput("plan rings", got=", ".join(texts), wanted="each once")
    groups = {robot.group for robot in fleet if robot.group}
    drawn = sorted(fleet, key=lambda robot: hashlib.sha256(f"{release} {robot.name}".encode()).digest())
    taken: set[str] = set()
    rings = []
    for spec in specs:
        if spec.share is None and spec.name not in groups:
            step = "ms robot label NAME --group GROUP"
            raise NotFound("plan rings", on=spec.name, wanted=nearest(spec.name, groups), next_step=step)
        free = [robot for robot in drawn if robot.name not in taken]
        if spec.share is None:
            chosen = [robot.name for robot in free if robot.group == spec.name]
        else:
            most = part_of(spec.share, len(fleet)) - (len(taken) if spec.whole else 0)
            first = [robot.name for robot in free if robot.group == spec.name]
            others = [robot.name for robot in free if robot.group != spec.name]
            chosen = [*first, *others][: max(0, most)]
        taken |= set(chosen)
        rings.append(RingPlan(name=spec.name, robots=tuple(sorted(chosen))))
    return tuple(rings)


def part_of(share: float, count: int) -> int:
    """Returns how many of some robots a share is, rounded up.

    Args:
        share: 0 to 1. Seven percent is no number that floats have: 7 % of 100 are 7 all the same.
    """
    return math.ceil(round(share * count, 6))
