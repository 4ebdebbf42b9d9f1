"""What watchers tell of faults, and when: as the probes of `node.probes`, leads and engines do, with what they miss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mainspring.control.store.settings import Settings
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import (
    QUIET,
    REPLICAS,
    SDC,
    STRAGGLER,
    HealthEvent,
    HealthSource,
    Repair,
    Scope,
    ScopeKind,
    Strategy,
)
from mainspring.domain.hardware.xids import xid_of
from mainspring.domain.ids import ClusterName, JobId, NodeName
from mainspring.node.lead.watch.hangs import DUMP_LIMIT_S, HANG_S_MIN
from mainspring.node.lead.watch.quiet import QUIET_LEASES
from mainspring.node.lead.watch.stragglers import WINDOW_S, WINDOWS_SLOW
from mainspring.simulator.health.faults import Fault, FaultKind, FaultModel
from mainspring.simulator.health.operation import flaps

CLUSTER = ClusterName("fleet")
# Until something is seen, at most or about, and what it takes from there into the fold.
LOOK_S = 1.0  # Kernel log, devices and counters are looked at once a second.
DOWN_S = 5.0  # A link that is back sooner has flapped.
TICK_S = 0.25  # Of a lead.
WORD_S = 1.0  # Agents tell of progress twice a second, leads of themselves once: what is missed first comes so soon.
STEPS_S = (1.0, 30.0)  # How long steps take, each order of magnitude as often. Ours; no source.
LEASE_S = Settings().lease_s
SAVE_S = 10.0  # Between two durable saves, at which replicas are compared.
CHECK_STEPS = 250  # Between two checks of neighbours: `guard.check_every` of a recipe.
TOLD_S = 3.0  # A batch, a transaction, a tick of the loop.
# What comes from programs, and what from a device that is of no use: see `domain.hardware.xids`.
_OF_PROGRAMS, _OF_DEVICES = (13, 31, 43, 45, 63, 92, 94), (48, 64, 74, 79, 95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is told, and how long after a fault begins it is in the fold."""

    after_s: float
    event: HealthEvent


def at(row: int) -> NodeRef:
    """Returns a node's name."""
    return NodeRef(cluster=CLUSTER, node=NodeName(f"n{row:05}"))


def told(fault: Fault, model: FaultModel, now_s: float, dice: np.random.Generator) -> Iterator[Told]:
    """Yields what is told of a fault, the first that is seen first; nothing where nobody watches.

    Args:
        now_s: When it begins.
    """
    blind, look_s, late_s = dice.random() < model.blind, dice.uniform(0.0, LOOK_S), dice.uniform(0.5, TOLD_S)
    if blind and fault.kind in (FaultKind.LINK, FaultKind.SWITCH, FaultKind.ALARM):
        return
    if fault.kind in (FaultKind.HOST, FaultKind.HANG, FaultKind.SLOW):
        look_s *= TICK_S / LOOK_S  # Leads look more often than watchers.
    seen = _seen(fault, model, dice)
    if blind and fault.kind is FaultKind.DEVICE:  # No watcher sees it, but ranks end there otherwise than well.
        seen = iter([(0.0, _event("runtime", _node(fault.row), "rank-exit", job=f"job-{fault.number}"))])
    for number, (after_s, event) in enumerate(seen):
        source = replace(event.source, session=f"f{fault.number}", sequence=number)
        made = replace(event, source=source, at_s=now_s + after_s + look_s)
        yield Told(after_s=after_s + look_s + late_s, event=made)


def well(event: HealthEvent, number: int, now_s: float) -> HealthEvent:
    """Returns by which a watcher takes back what it said."""
    source = replace(event.source, session="well", sequence=number)
    return replace(event, source=source, at_s=now_s, healthy=True, fatal=False, codes=(), repair=Repair.NONE)


def _seen(fault: Fault, model: FaultModel, dice: np.random.Generator) -> Iterator[tuple[float, HealthEvent]]:
    row = fault.row
    match fault.kind:
        case FaultKind.DEVICE:
            yield 0.0, _xid(row, fault.part, int(dice.choice(_OF_DEVICES)))
        case FaultKind.ALARM:
            yield 0.0, _xid(row, fault.part, int(dice.choice(_OF_PROGRAMS)), job=f"job-{fault.number}")
        case FaultKind.LINK if fault.times > 1:
            for after_s in flaps(fault, dice):
                yield after_s, _event("links", _link(row, fault.part), "link-flap")
        case FaultKind.LINK:
            yield DOWN_S, _event("links", _link(row, fault.part), "link-state", fatal=True)
        case FaultKind.SWITCH:
            for each in range(row, row + model.leaf_nodes):
                yield DOWN_S + dice.uniform(0.0, LOOK_S), _event("links", _link(each, 0), "link-state", fatal=True)
        case FaultKind.HOST:
            yield QUIET_LEASES * LEASE_S - dice.uniform(0.0, WORD_S), _event("runtime", _node(row), QUIET, job="job-1")
        case FaultKind.HANG:
            yield (
                HANG_S_MIN + dice.uniform(0.0, DUMP_LIMIT_S),
                _event("runtime", _node(row), "hang", job=f"job-{fault.number}"),
            )
        case FaultKind.SLOW:
            step_s = float(np.exp(dice.uniform(*np.log(STEPS_S))))
            yield (
                WINDOWS_SLOW * max(WINDOW_S, step_s),
                _event("runtime", _node(row), STRAGGLER, job=f"job-{fault.number}"),
            )
        case FaultKind.CORRUPTION if dice.random() < model.replicated:
            yield dice.uniform(1.0, 2.0) * SAVE_S, _event("runtime", _node(row), REPLICAS, fatal=True)
        case FaultKind.CORRUPTION if dice.random() < model.checked:
            step_s = float(np.exp(dice.uniform(*np.log(STEPS_S))))
            yield dice.uniform(0.0, 1.0) * CHECK_STEPS * step_s, _event("runtime", _node(row), SDC, fatal=True)
        case FaultKind.CORRUPTION:
            pass


def _xid(row: int, part: int, code: int, job: str = "") -> HealthEvent:
    known = xid_of(code)
    scope = Scope(kind=ScopeKind.DEVICE, cluster=CLUSTER, node=at(row).node, part=f"gpu-{part}")
    made = _event("kernel-log", scope, "xid", fatal=known.fatal, job=job)
    return replace(made, codes=(str(code),), repair=known.repair)


def _link(row: int, part: int) -> Scope:
    return Scope(kind=ScopeKind.LINK, cluster=CLUSTER, node=at(row).node, part=f"mlx5_{part}/1")


def _node(row: int) -> Scope:
    return Scope(kind=ScopeKind.NODE, cluster=CLUSTER, node=at(row).node)


def _event(name: str, scope: Scope, check: str, *, fatal: bool = False, job: str = "") -> HealthEvent:
    return HealthEvent(
        source=HealthSource(name=name, session="s", sequence=0),
        at_s=0.0,
        scope=scope,
        check=check,
        fatal=fatal,
        repair=Repair.CALL_PEOPLE if fatal else Repair.RESTART_RANKS,
        strategy=Strategy.ACT,
        job=JobId(job),
    )
