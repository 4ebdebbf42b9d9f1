"""What watchers tell of nodes, made for tests."""

from __future__ import annotations

from itertools import count

from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName, NodeName

_numbers = count()


def fault(
    node: str,
    *,
    cluster: str = "east",
    at_s: float = 0.0,
    check: str = "xid",
    fatal: bool = True,
    healthy: bool = False,
    part: str = "",
    kind: ScopeKind = ScopeKind.NODE,
    repair: Repair = Repair.RESTART_NODE,
    strategy: Strategy = Strategy.ACT,
    number: int | None = None,
) -> HealthEvent:
    """What a watcher tells of a node: a fatal fault, unless said otherwise. Each has a number of its own."""
    return HealthEvent(
        source=HealthSource(name="watcher", session="s1", sequence=next(_numbers) if number is None else number),
        at_s=at_s,
        scope=Scope(kind=kind, cluster=ClusterName(cluster), node=NodeName(node), part=part),
        check=check,
        healthy=healthy,
        codes=() if healthy else ("79",),
        fatal=fatal and not healthy,
        message="" if healthy else "GPU has fallen off the bus",
        repair=Repair.NONE if healthy else repair,
        strategy=strategy,
    )


def well(node: str, *, cluster: str = "east", at_s: float = 0.0, check: str = "xid", part: str = "") -> HealthEvent:
    """That what was wrong with a node is well again."""
    return fault(node, cluster=cluster, at_s=at_s, check=check, healthy=True, part=part)
