"""A planner small enough to see through: oldest first, first nodes that fit, who finds no room is passed over."""

from __future__ import annotations

from mainspring.domain.ids import ClusterName
from mainspring.domain.job import ANY_CHIP, MILLI, Option
from mainspring.domain.plan import Grant, Limit, Plan, Start, Wait
from mainspring.planner import Budget, Policy, Snapshot


def first_fit(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
    """Returns a plan that starts what fits and says of everything else that it waits for room."""
    nodes = snapshot.nodes
    free = (nodes.whole * nodes.ready).tolist()
    cores = (nodes.cpu_milli * nodes.ready).tolist()
    starts: list[Start] = []
    waits: list[int] = []
    closed: set[int] = set()
    pending = snapshot.pending
    for row, (shape, blocked) in enumerate(zip(pending.shape.tolist(), pending.blocked.tolist(), strict=True)):
        grant = None
        if shape not in closed and not blocked:
            role = snapshot.shapes[shape].roles[0]
            for index, option in enumerate(role.options):
                grant = grant or _grant(snapshot, option, index, free, cores)
        if grant is None:
            closed.add(shape)
            waits.append(row)
        else:
            starts.append(Start(job=pending.jobs[row], grants=(grant,), considered=()))
    wait = Wait(
        jobs=tuple(pending.jobs[row] for row in waits), start_s=(None,) * len(waits), exact=0, limit=Limit.CAPACITY,
        where="", short_by=1.0, reason="no room", considered=(),
    ) if waits else None  # fmt: skip
    return Plan(number=snapshot.number, starts=tuple(starts), waits=(wait,) if wait else ())


def _grant(snapshot: Snapshot, option: Option, index: int, free: list[int], cores: list[int]) -> Grant | None:
    nodes = snapshot.nodes
    found: list[tuple[int, int]] = []
    missing = option.replicas
    cluster = -1
    for row, (whole, cpu) in enumerate(zip(free, cores, strict=True)):
        known = option.chip in (ANY_CHIP, snapshot.chips[int(nodes.chip[row])])
        fits = min(
            whole // option.chips if option.chips else missing, cpu // option.cpu_milli if option.cpus else missing
        )
        if known and fits >= 1 and cluster in (-1, int(nodes.cluster[row])):
            cluster = int(nodes.cluster[row])
            found.append((row, min(missing, int(fits))))
            missing -= found[-1][1]
        if not missing:
            break
    if missing:
        return None
    for row, replicas in found:
        free[row] -= int(replicas * option.chips)
        cores[row] -= replicas * option.cpu_milli
    return Grant(
        role=snapshot.shapes[0].roles[0].name,
        option=index,
        cluster=ClusterName(snapshot.clusters.names[cluster]),
        nodes=tuple(nodes.names[row] for row, _ in found),
        chip_milli=tuple(int(replicas * option.chips) * MILLI for _, replicas in found),
        ranks=tuple(replicas for _, replicas in found),
    )
