"""The ladder of repairs: what is done next to a node in quarantine, after what was done already. Pure.

restart its programs -> reset -> reboot -> replace -> the vendor, beginning with what its rule asks for. Rungs without a
hook are passed over; one whose hook fails, takes too long or does not help leads to the next. Where a burn-in is wanted
a node comes back only by one that it passed. A node that the last rung did not help stays closed, for people.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from mainspring.domain.answers import NodeRepair, RepairOutcome
from mainspring.domain.hardware.care import BURN_IN, FIRST_RUNGS, CareRules, Rung
from mainspring.domain.hardware.health import Repair

TRIES_MAX = 20  # Steps of one quarantine: a ladder climbed four times over.


class Otherwise(str, Enum):
    """What is done next, beside a rung or a burn-in."""

    WAIT = "wait"
    OPEN = "open"
    STUCK = "stuck"  # Nothing is left to try: it stays closed for people.


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A node in quarantine, as far as the next step depends on it.

    Args:
        asked: What its rule asks for.
        found: Whether rules find it to have failed still.
        over: Whether its time is over.
        busy: Whether anything of ours runs there still.
        new: Whether it is closed for being new alone: nothing of it is to be repaired.
        steps: What was done of it, oldest first.
    """

    asked: Repair
    found: bool
    over: bool
    busy: bool
    new: bool = False
    steps: Sequence[NodeRepair] = ()


def next_step(patient: Patient, rules: CareRules, now_s: float) -> Rung | str | Otherwise:
    """Returns what is done next: a rung, `BURN_IN`, or one of `Otherwise`."""
    last = patient.steps[-1] if patient.steps else None
    if patient.busy or (last is not None and last.ended_s is None):
        return Otherwise.WAIT
    if len(patient.steps) >= TRIES_MAX:
        return Otherwise.STUCK
    if last is None:
        if patient.new:
            return BURN_IN if rules.burn_in is not None else Otherwise.OPEN
        first = _from(FIRST_RUNGS[patient.asked], rules.repairs)
        if first is not None:
            return first
        # Without a hook its watchers' word, or its time, says when it is worth a try.
        return _try(rules) if not patient.found or patient.over else Otherwise.WAIT
    done = last.outcome is RepairOutcome.DONE
    if last.step == BURN_IN:
        return Otherwise.OPEN if done else _above(patient.steps, rules.repairs)
    if not done:
        return _above(patient.steps, rules.repairs)
    if rules.burn_in is not None:
        return BURN_IN
    if not patient.found:
        return Otherwise.OPEN
    hook, ended_s = rules.repairs.get(Rung(last.step)), last.ended_s or 0.0
    settled = hook is None or now_s - ended_s >= hook.settle_s
    return _above(patient.steps, rules.repairs) if settled else Otherwise.WAIT


def _try(rules: CareRules) -> str | Otherwise:
    return BURN_IN if rules.burn_in is not None else Otherwise.OPEN


def _above(steps: Sequence[NodeRepair], hooks: Collection[Rung]) -> Rung | Otherwise:
    """Returns the first rung above all that were tried."""
    tried = [list(Rung).index(Rung(each.step)) for each in steps if each.step != BURN_IN]
    above = list(Rung)[max(tried, default=-1) + 1 :]
    return next((rung for rung in above if rung in hooks), Otherwise.STUCK)


def _from(first: Rung, hooks: Collection[Rung]) -> Rung | None:
    rungs = list(Rung)
    return next((rung for rung in rungs[rungs.index(first) :] if rung in hooks), None)
