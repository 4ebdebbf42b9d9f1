"""One month of a fleet with health at work and without, and what is to be said of the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mainspring.simulator.health.care import HealthAtWork, HealthRecord
from mainspring.simulator.health.faults import THOUSAND, Drawn, Fault, FaultKind, FaultModel, draw_faults
from mainspring.simulator.health.operation import Nobody, Operation

# Within which a fault must be known of. Source: what others reach: hosts and GPUs 10 s, adapters 30 s, switches 60 s,
# hangs 15 s (Mycroft), slow nodes three steps (Greyhound), of which one may take half a minute.
TARGETS_S: Mapping[FaultKind, float] = {
    FaultKind.DEVICE: 10.0,
    FaultKind.HOST: 10.0,
    FaultKind.LINK: 30.0,
    FaultKind.SWITCH: 60.0,
    FaultKind.HANG: 15.0,
    FaultKind.SLOW: 90.0,
    FaultKind.CORRUPTION: 3_600.0,
}
LEMON_S = 7 * 86_400.0  # From the first fault of a lemon.


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """What came of one month.

    Args:
        faults: How many there were, lemons counted once more each.
        missed: How many of them were known of later than `TARGETS_S`, or never; by kind, and "lemon".
        closings: How many nodes were closed, and how many of those for nothing.
        lemons: How many nodes were said to be lemons, were it, and were both.
        cured: How many lemons were replaced for one of their faults before they were said to be any: not in `lemons`.
        tellable: How many of the others failed twice or more: with less a lemon is like any node that failed.
        badput: The part of node-time that was lost with health at work, and without.
    """

    faults: int
    missed: Mapping[str, int]
    closings: tuple[int, int]
    lemons: tuple[int, int, int]
    cured: int
    tellable: int
    badput: tuple[float, float]


def month(model: FaultModel, seed: int) -> Month:
    """Returns what comes of a month: the same for the same seed."""
    drawn, health = draw_faults(model, seed), HealthAtWork(model)
    without = Operation(model, drawn, Nobody(), seed).run()
    badput = Operation(model, drawn, health, seed).run()
    record = health.record
    happened = [one for one in drawn.faults if one.number in record.begun_s and one.kind is not FaultKind.ALARM]
    missed: dict[str, int] = {}
    for fault in happened:
        if record.seen_s.get(fault.number, float("inf")) > TARGETS_S[fault.kind]:
            missed[fault.kind.value] = missed.get(fault.kind.value, 0) + 1
    cured = {row for row in drawn.lemons if row in record.replaced and row not in record.lemons}
    times = Counter(one.row for one in happened if one.lemon)
    missed["lemon"] = sum(_is_late(row, drawn, record) for row in drawn.lemons)
    return Month(
        faults=len(happened) + len(drawn.lemons),
        missed=missed,
        closings=(record.closings, record.false_closings),
        lemons=(len(record.lemons), len(drawn.lemons - cured), len(drawn.lemons & record.lemons.keys())),
        cured=len(cured),
        tellable=sum(times[row] > 1 for row in drawn.lemons - cured),
        badput=(badput, without),
    )


def figures(model: FaultModel, months: Iterable[Month]) -> Mapping[str, float]:
    """Returns what benchmarks ask of several months together."""
    every = tuple(months)
    said, there, right = (sum(one.lemons[place] for one in every) for place in range(3))
    return {
        "detect_miss": sum(sum(one.missed.values()) for one in every) / sum(one.faults for one in every),
        "false_per_1000_node_days": sum(one.closings[1] for one in every)
        / (len(every) * model.nodes * model.days / THOUSAND),
        "lemon_precision": right / max(1, said),
        "lemon_recall": right / max(1, there),
        "lemon_recall_most": sum(one.tellable for one in every) / max(1, there),
        "lemon_recall_of_all": right / max(1, there + sum(one.cured for one in every)),
        "badput_ratio": sum(one.badput[0] for one in every) / sum(one.badput[1] for one in every),
        "badput_with": sum(one.badput[0] for one in every) / len(every),
        "badput_without": sum(one.badput[1] for one in every) / len(every),
    }


def _is_late(row: int, drawn: Drawn, health: HealthRecord) -> bool:
    first: Fault | None = next((one for one in drawn.faults if one.lemon and one.row == row), None)
    if first is None:
        return False  # It has not failed yet.
    known_s = min(health.lemons.get(row, float("inf")), health.replaced.get(row, float("inf")))
    return known_s > first.at_s + LEMON_S
