"""Lemons: nodes that fail again and again, each time of something that a reset or a restart seems to cure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mainspring.domain.hardware.health import CONDITIONS, HealthEvent, Repair, Scope

LEMON_WINDOW_S = 28 * 86_400.0
EPISODE_S = (
    3_600.0  # One fault is told many times: by each program that dies of it, and by each look until it is cured.
)
# Of sound nodes that fail 6.5 times in 1,000 node-days, one in 1,100 has three fatal episodes within the window by
# chance, and about as many have two at one of a node's twenty places; of all nodes one or two in a hundred are lemons.
# Source: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (2024).
LEMON_SCORE = 3.0
_NOT_FATAL = 0.25  # What a fault counts that a device outlived, though more than a restart of programs was asked for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What was seen of one check at one place within `EPISODE_S`.

    Args:
        at_s: When it began.
        weight: 1 for a fatal one, less for others, 0 for what programs may have done by themselves.
    """

    scope: Scope
    check: str
    at_s: float
    weight: float


def episodes(events: Iterable[HealthEvent]) -> tuple[Episode, ...]:
    """Returns the episodes that events make up, in order of when they began.

    Args:
        events: In any order; those that say that all is well count for nothing.
    """
    found: list[Episode] = []
    last: dict[tuple[Scope, str], int] = {}
    for event in sorted((each for each in events if not each.healthy), key=lambda each: each.order):
        of = event.scope, event.check
        index = last.get(of)
        if index is not None and event.at_s < found[index].at_s + EPISODE_S:
            known = found[index]
            weight = max(known.weight, _weight(event))
            found[index] = Episode(scope=event.scope, check=event.check, at_s=known.at_s, weight=weight)
        else:
            last[of] = len(found)
            found.append(Episode(scope=event.scope, check=event.check, at_s=event.at_s, weight=_weight(event)))
    return tuple(found)


def lemon_score(events: Sequence[HealthEvent]) -> float:
    """Returns how often a node has failed: the number of fatal episodes, where those that came back at one place count
    twice, and little more. It counts all events that it is given.

    Chance spreads faults over a node's devices and links; what a restart seems to cure comes back where it was.

    Args:
        events: Of one node, within `LEMON_WINDOW_S`.
    """
    found = episodes(events)
    fatal = Counter((each.scope, each.check) for each in found if each.weight == 1.0)
    return sum(each.weight for each in found) + sum(count - 1 for count in fatal.values())


def _weight(event: HealthEvent) -> float:
    if event.source.name == CONDITIONS:
        return 0.0  # Others say once more, of the node as a whole, what watchers see of its parts.
    if event.fatal:
        return 1.0
    return _NOT_FATAL if event.repair.rank >= Repair.RESET_DEVICE.rank else 0.0
