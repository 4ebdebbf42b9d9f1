"""Spares: how many nodes are gone at once, for as long as it takes to have one back. Pure.

Whoever keeps as many in hand as the 99th percentile of the nodes that were lost within the median time of a repair
goes without one in a hundredth of the time. Repairs that are under way are not over: they count as longer than they
took so far. Source: Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mainspring.domain.ids import NodeName

PERCENTILE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node that nobody could have.

    Args:
        from_s: Since when.
        until_s: Until when, None while it lasts.
    """

    node: NodeName
    from_s: float
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTime:
    """How long it takes to have a node back.

    Args:
        median_s: Half of them are back by then; None where none was lost.
        at_least: Whether it is longer than that, for more than half are not back yet.
    """

    median_s: float | None
    at_least: bool = False


def merged(outages: Iterable[Outage]) -> tuple[Outage, ...]:
    """Returns outages of which none of one node overlap, by node and time: several say the same at once."""
    found: list[Outage] = []
    for one in sorted(outages, key=lambda each: (each.node, each.from_s)):
        last = found[-1] if found and found[-1].node == one.node else None
        if last is None or (last.until_s is not None and one.from_s > last.until_s):
            found.append(one)
        elif last.until_s is not None:
            until_s = None if one.until_s is None else max(last.until_s, one.until_s)
            found[-1] = Outage(node=one.node, from_s=last.from_s, until_s=until_s)
    return tuple(found)


def repair_time(outages: Collection[Outage], now_s: float) -> RepairTime:
    """Returns the median length of outages, of which those that last are longer than they took so far.

    Args:
        outages: From `merged`.
    """
    took = [(now_s if one.until_s is None else one.until_s) - one.from_s for one in outages]
    if not took:
        return RepairTime(median_s=None)
    ended = Counter(length for length, one in zip(took, outages, strict=True) if one.until_s is not None)
    left, at_risk = 1.0, len(took)
    for length, count in sorted(Counter(took).items()):
        left *= 1.0 - ended[length] / at_risk  # Who is back and who is not at one length: the others are at risk still.
        at_risk -= count
        if left <= 0.5:
            return RepairTime(median_s=length)
    return RepairTime(median_s=max(took), at_least=True)


def lost_at_once(outages: Iterable[Outage], within_s: float, from_s: float, now_s: float) -> int:
    """Returns how many nodes had been lost within a time, at most, in 99 of 100 moments.

    Args:
        outages: Of all nodes that are counted together.
        within_s: The time.
        from_s: The first moment.
        now_s: The last.
    """
    counted: dict[NodeName, list[tuple[float, float]]] = defaultdict(list)
    for one in sorted(outages, key=lambda each: each.from_s):
        begins, ends = max(one.from_s, from_s), min(one.from_s + within_s, now_s)
        own = counted[one.node]
        if begins < ends and own and begins <= own[-1][1]:
            own[-1] = (own[-1][0], max(own[-1][1], ends))
        elif begins < ends:
            own.append((begins, ends))
    spans = [span for own in counted.values() for span in own]
    changes = sorted([*((begins, 1) for begins, _ in spans), *((ends, -1) for _, ends in spans)])
    lasted_s, last_s, count = defaultdict[int, float](float), from_s, 0
    for at_s, step in changes:
        lasted_s[count] += at_s - last_s
        last_s, count = at_s, count + step
    lasted_s[count] += now_s - last_s
    return _percentile(lasted_s)


def _percentile(lasted_s: Mapping[int, float]) -> int:
    """Returns the least number that was not passed for so large a part of the time."""
    total_s, below_s = sum(lasted_s.values()), 0.0
    counts: Sequence[int] = sorted(lasted_s)
    for count in counts:
        below_s += lasted_s[count]
        if below_s >= PERCENTILE * total_s:
            return count
    return counts[-1]
