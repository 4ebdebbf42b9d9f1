"""Maps: clusters rack by rack, a letter a node."""

from __future__ import annotations

from collections import Counter, defaultdict

from mainspring.domain.answers import ClusterMap, ClusterView, NodeView, RackView
from mainspring.domain.fleet import Node, NodeCondition

ALONE_MAX = 64  # Nodes of a rack of a cluster that tells of none.
CLOSED_MAX = 1_000  # Told of one by one; a map of more is wrong as a whole.
_MILLI = 1_000
_CLOSED = {NodeCondition.DOWN: "d", NodeCondition.CORDONED: "c", NodeCondition.COMING: "n"}


def use_of(node: Node, used_milli: int, *, avoided: bool) -> str:
    """Returns what a node is, as a letter of `NODE_USES`.

    Args:
        used_milli: Thousandths of its chips that jobs of ours hold.
    """
    if node.condition in _CLOSED:
        return _CLOSED[node.condition]
    if used_milli:
        return "f" if used_milli >= node.chips * _MILLI else "p"
    if node.foreign_chip_milli >= node.chips * _MILLI > 0:
        return "o"
    return "a" if avoided else "i"


def map_of(view: ClusterView) -> ClusterMap:
    """Returns the map of a cluster."""
    inventory, avoided = view.inventory, {one.at.node: one for one in view.avoided}
    racks: dict[tuple[str, str], list[str]] = defaultdict(list)
    chips = healthy = held = 0.0
    closed: list[NodeView] = []
    for number, node in enumerate(inventory.nodes):
        used_milli = view.used_chip_milli.get(node.name, 0)
        use = use_of(node, used_milli, avoided=node.name in avoided)
        racks[_place(node, number)].append(use)
        if use != "n":
            chips += node.chips
            held += used_milli / _MILLI
            healthy += used_milli / _MILLI if use in "dc" else node.chips
        if use in "dcna" and len(closed) < CLOSED_MAX:
            closed.append(NodeView(node=node, used_chip_milli=used_milli, avoided=avoided.get(node.name)))
    return ClusterMap(
        cluster=inventory.cluster,
        engine=inventory.engine,
        simulated=inventory.simulated,
        answering=view.answering,
        seen_s=view.seen_s,
        nodes=dict(sorted(Counter(node.chip for node in inventory.nodes).items())),
        dollars_per_chip_hour=inventory.dollars_per_chip_hour,
        chips=chips,
        healthy=healthy,
        held=held,
        racks=tuple(
            RackView(block=block, rack=rack.partition(":")[2], uses="".join(uses))
            for (block, rack), uses in racks.items()
        ),
        closed=tuple(closed),
        hold=view.hold,
    )


def _place(node: Node, number: int) -> tuple[str, str]:
    """Returns the block and the rack of a node; where its cluster tells of none, a rack of so many."""
    if not node.domains:
        return "", f"{number // ALONE_MAX}:"
    block = node.domains[0][1] if len(node.domains) > 1 else ""
    return block, f":{node.domains[-1][1]}"
