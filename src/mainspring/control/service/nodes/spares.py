"""How many spares clusters want, by what they lost in the last weeks: see `health/spares.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import final

import sqlalchemy as sa

from mainspring.control.health.spares import Outage, RepairTime, lost_at_once, merged, repair_time
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.schema import closures, node_states
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import ClosureKind, SparesView
from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.ports import Clock

DAY_S = 86_400.0
LOOKED_BACK_S = 28 * DAY_S  # Four weeks, as lemons are found by: most of what a fleet does is in it.
OUTAGES_MAX = 100_000  # Of a cluster, and of a kind; 2,048 nodes have some 2,000 in four weeks. The newest count.


@final
class SpareCounts:
    """What may be asked of spares at one controller. Used by many threads.

    Args:
        fleet: What the engines said.
    """

    def __init__(self, store: Store, fleet: FleetView, clock: Clock) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock

    def wanted(self, caller: Caller = LAB_ITSELF, *, cluster: str | None = None) -> tuple[SparesView, ...]:
        """Returns what each cluster wants, and of it each block; none of those that choose nodes by themselves.

        Args:
            cluster: Only of this cluster, unless None.

        Raises:
            NotFound: There is no such cluster.
        """
        del caller  # Anybody may know.
        seen, now_s = self._fleet.seen(), self._clock.now_s()
        if cluster is not None and cluster not in seen:
            raise NotFound("count spares", on=f"cluster {cluster[:80]!r}", wanted=nearest(cluster, sorted(seen)))
        found: list[SparesView] = []
        with self._store.read() as connection:
            for name in sorted(seen):
                inventory = seen[name].inventory
                if cluster in (None, name) and not inventory.delegated:
                    from_s = max(now_s - LOOKED_BACK_S, _known_since_s(connection, name, now_s))
                    outages = merged(_outages(connection, name, from_s))
                    found += _of_cluster(inventory, outages, from_s, now_s)
        return tuple(found)


def _known_since_s(connection: sa.Connection, cluster: ClusterName, now_s: float) -> float:
    """Returns since when anything is known of a cluster's nodes."""
    query = sa.select(sa.func.min(node_states.c.since_s)).where(node_states.c.cluster == cluster)
    since_s = connection.execute(query).scalar()
    return now_s if since_s is None else float(since_s)


def _outages(connection: sa.Connection, cluster: ClusterName, from_s: float) -> Iterator[Outage]:
    """Yields what took nodes away: quarantines, and engines that had them down. People's cordons are planned."""
    quarantined = (closures.c.cluster == cluster, closures.c.kind == ClosureKind.QUARANTINE.value)
    closed = sa.select(closures.c.node, closures.c.from_s.label("from_s"), closures.c.ended_s.label("until_s")).where(
        *quarantined, sa.or_(closures.c.ended_s.is_(None), closures.c.ended_s > from_s)
    )
    was_down = (node_states.c.cluster == cluster, node_states.c.condition == NodeCondition.DOWN.value)
    down = sa.select(node_states.c.node, node_states.c.since_s.label("from_s"), node_states.c.until_s).where(
        *was_down, sa.or_(node_states.c.until_s.is_(None), node_states.c.until_s > from_s)
    )
    for query in (closed.order_by(closures.c.number.desc()), down.order_by(node_states.c.ordinal.desc())):
        for row in connection.execute(query.limit(OUTAGES_MAX)):
            yield Outage(node=NodeName(row.node), from_s=row.from_s, until_s=row.until_s)


def _of_cluster(inventory: Inventory, outages: tuple[Outage, ...], from_s: float, now_s: float) -> Iterator[SparesView]:
    time = repair_time(outages, now_s)
    blocks: dict[str, list[Node]] = defaultdict(list)
    for node in inventory.nodes:
        if len(node.domains) > 1:
            blocks[node.domains[0][1]].append(node)
    yield _view(inventory, "", inventory.nodes, outages, time, from_s, now_s)
    for block in sorted(blocks):
        names = {node.name for node in blocks[block]}
        own = [one for one in outages if one.node in names]
        yield _view(inventory, block, blocks[block], own, time, from_s, now_s)


def _view(
    inventory: Inventory,
    block: str,
    nodes: Iterable[Node],
    outages: Iterable[Outage],
    time: RepairTime,
    from_s: float,
    now_s: float,
) -> SparesView:
    """Returns what some nodes want, where a repair takes as long as in all of their cluster."""
    nodes, outages = tuple(nodes), tuple(outages)
    spares = 0 if time.median_s is None else lost_at_once(outages, time.median_s, from_s, now_s)
    prices = inventory.dollars_per_chip_hour
    each = sum(node.chips * prices.get(node.chip, 0.0) for node in nodes) / max(1, len(nodes))
    return SparesView(
        cluster=inventory.cluster,
        block=block,
        nodes=len(nodes),
        lost=sum(one.from_s > from_s for one in outages),
        repair_median_s=time.median_s,
        repair_at_least=time.at_least,
        spares=spares,
        dollars_per_hour=spares * each,
        since_s=from_s,
    )
