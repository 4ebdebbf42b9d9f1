"""Faults of a fleet, drawn from a seed: what fails where and when, how long it stays, and what only looks like it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

DAY_S = 86_400.0
THOUSAND = 1_000.0
DEVICES = 8


class FaultKind(str, Enum):
    """What fails."""

    DEVICE = "device"
    HOST = "host"
    LINK = "link"
    HANG = "hang"
    SLOW = "slow"
    CORRUPTION = "corruption"
    SWITCH = "switch"
    ALARM = "alarm"  # Nothing does: somebody's program, or a look that was wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultModel:
    """How a fleet fails. Rates are of 1,000 node-days.

    Args:
        nodes: How many, of eight devices each; `leaf_nodes` of them hang on one switch.
        gangs: How many jobs of how many nodes there are at every time; what is left of the fleet are spares.
        failures: Failures that end a job's ranks. Source: RSC-1 in Kokolis et al., "Revisiting Reliability in
            Large-Scale Machine Learning Research Clusters" (2024).
        kinds: Their kinds, by weight. Source: near enough the table of interruptions in "The Llama 3 Herd of Models"
            (2024): of unexpected ones some 59 in a hundred were the GPU's, 10 the network's.
        transient: The part of them that is gone once ranks, the device or the node start again; the others stay
            until somebody repairs the node. Source: as of `failures`.
        lemons: The part of nodes that fail `lemon_times` as often, again and again at one place, and are well after
            each restart. Source: as of `failures` (1 to 2 in a hundred).
        corruptions: Devices that begin to compute wrongly, and say nothing.
        switches: Switches that take their leaf's links with them, of 1,000 switch-days.
        alarms: What looks like a fault and is none.
        flaps: The part of the links' faults that are many short ones, by which ranks do not die but wait.
        repair_median_s, repair_mean_s: How long a repair takes, lognormal. Source: as of `failures`.
        unsaved_s: Work of a gang that is lost with its ranks: half of what lies between two snapshots.
        restart_s, restart_node_s: How long ranks take to go on: of any gang, and more for each of its nodes, which
            makes some 200 s of 2,048 nodes. Source: cold restarts at 16k GPUs.
        slow_factor: How fast a gang is in which one node is slow.
        noticed_s: After how long on average a person sees without help that a node has failed, and has it repaired.
            Ours; no source. Its influence is told by the benchmark.
        corruption_noticed_s: The same of a loss that has gone wrong.
        blind: The part of nodes whose watchers see nothing.
        replicated: The part of corruptions that show in state that other ranks have too. Ours; no source.
        checked: The part of the others that a check of neighbours sees: those of jobs whose devices hold the whole
            state. Here all but the largest's, three nodes of four: pi0 with AdamW takes 38.9 GB of a device, and what
            wants so many nodes that it does not fit shares it. Ours; no source.
    """

    nodes: int = 2_048
    leaf_nodes: int = 32
    days: float = 28.0
    gangs: tuple[tuple[int, int], ...] = ((1, 512), (4, 128), (16, 32), (63, 8), (1, 4))
    failures: float = 6.5
    kinds: tuple[tuple[FaultKind, float], ...] = (
        (FaultKind.DEVICE, 0.60),
        (FaultKind.HOST, 0.12),
        (FaultKind.LINK, 0.12),
        (FaultKind.HANG, 0.10),
        (FaultKind.SLOW, 0.06),
    )
    transient: float = 0.73
    lemons: float = 0.015
    lemon_times: float = 20.0
    corruptions: float = 0.1
    switches: float = 2.0
    alarms: float = 20.0
    flaps: float = 0.3
    repair_median_s: float = 54 * 60.0
    repair_mean_s: float = 355 * 60.0
    unsaved_s: float = 30.0
    restart_s: float = 30.0
    restart_node_s: float = 0.09
    slow_factor: float = 0.7
    noticed_s: float = 8 * 3_600.0
    corruption_noticed_s: float = 24 * 3_600.0
    blind: float = 0.01
    replicated: float = 0.5
    checked: float = 0.75

    @property
    def spares(self) -> int:
        """Returns how many nodes no gang asks for."""
        return self.nodes - sum(count * size for count, size in self.gangs)

    def repair_s(self, dice: np.random.Generator) -> float:
        """Returns how long one repair takes."""
        spread = np.sqrt(2.0 * np.log(self.repair_mean_s / self.repair_median_s))
        return float(self.repair_median_s * np.exp(spread * dice.standard_normal()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Args:
        number: Counts them.
        row: Which node; of a switch, the first of its leaf.
        part: Which device or link of it.
        stays: Whether it is there until somebody repairs it.
        lasts_s: How long it is there by itself, of one that does not stay.
        times: How often it comes within `lasts_s`, more than once of a link that flaps.
        lemon: Whether it is one of a lemon's.
    """

    number: int = -1
    kind: FaultKind
    row: int
    at_s: float
    part: int = 0
    stays: bool = False
    lasts_s: float = 0.0
    times: int = 1
    lemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A fleet's faults, in order of time, and which nodes are its lemons."""

    faults: tuple[Fault, ...]
    lemons: frozenset[int]


def draw_faults(model: FaultModel, seed: int) -> Drawn:
    """Returns all faults of a fleet within `model.days`; the same for the same seed."""
    dice = np.random.default_rng(seed)
    lemons = frozenset(dice.choice(model.nodes, round(model.lemons * model.nodes), replace=False).tolist())
    found = [
        *_failures(model, dice),
        *(one for row in sorted(lemons) for one in _of_lemon(model, dice, row)),
        *_corruptions(model, dice),
        *_switches(model, dice),
        *_alarms(model, dice),
    ]
    ordered = sorted(found, key=lambda each: (each.at_s, each.row, each.kind))
    faults = tuple(replace(each, number=number) for number, each in enumerate(ordered))
    return Drawn(faults=faults, lemons=lemons)


def _times(dice: np.random.Generator, rate: float, span_s: float) -> list[float]:
    """Returns when something happens that comes `rate` times in 1,000 days, on average."""
    count = int(dice.poisson(rate / THOUSAND * span_s / DAY_S))
    return [float(at_s) for at_s in np.sort(dice.uniform(0.0, span_s, count))]


def _failures(model: FaultModel, dice: np.random.Generator) -> Iterator[Fault]:
    kinds, weights = [kind for kind, _ in model.kinds], np.array([weight for _, weight in model.kinds])
    for at_s in _times(dice, model.failures * model.nodes, model.days * DAY_S):
        kind = kinds[int(dice.choice(len(kinds), p=weights / weights.sum()))]
        row, part, stays = (
            int(dice.integers(model.nodes)),
            int(dice.integers(DEVICES)),
            dice.random() >= model.transient,
        )
        if kind is FaultKind.LINK and dice.random() < model.flaps:
            times, lasts_s = int(dice.integers(3, 12)), float(dice.uniform(300.0, 3_600.0))
            yield Fault(kind=kind, row=row, at_s=at_s, part=part, times=times, lasts_s=lasts_s)
        elif kind is FaultKind.SLOW:  # Nothing starts anew, so nothing is cured by it.
            lasts_s = float(dice.exponential(3_600.0))
            yield Fault(kind=kind, row=row, at_s=at_s, part=part, stays=stays, lasts_s=lasts_s)
        else:
            yield Fault(kind=kind, row=row, at_s=at_s, part=part, stays=stays)


def _of_lemon(model: FaultModel, dice: np.random.Generator, row: int) -> Iterator[Fault]:
    kind, part = (FaultKind.LINK if dice.random() < 0.2 else FaultKind.DEVICE), int(dice.integers(DEVICES))
    for at_s in _times(dice, model.failures * (model.lemon_times - 1.0), model.days * DAY_S):
        yield Fault(kind=kind, row=row, at_s=at_s, part=part, lemon=True)


def _corruptions(model: FaultModel, dice: np.random.Generator) -> Iterator[Fault]:
    for at_s in _times(dice, model.corruptions * model.nodes, model.days * DAY_S):
        row, part = int(dice.integers(model.nodes)), int(dice.integers(DEVICES))
        yield Fault(kind=FaultKind.CORRUPTION, row=row, at_s=at_s, part=part, stays=True)


def _switches(model: FaultModel, dice: np.random.Generator) -> Iterator[Fault]:
    leaves = model.nodes // model.leaf_nodes
    for at_s in _times(dice, model.switches * leaves, model.days * DAY_S):
        row, lasts_s = int(dice.integers(leaves)) * model.leaf_nodes, min(model.repair_s(dice), DAY_S)
        yield Fault(kind=FaultKind.SWITCH, row=row, at_s=at_s, lasts_s=lasts_s)


def _alarms(model: FaultModel, dice: np.random.Generator) -> Iterator[Fault]:
    for at_s in _times(dice, model.alarms * model.nodes, model.days * DAY_S):
        row, part = int(dice.integers(model.nodes)), int(dice.integers(DEVICES))
        yield Fault(kind=FaultKind.ALARM, row=row, at_s=at_s, part=part)
