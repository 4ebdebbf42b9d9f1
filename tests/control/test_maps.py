"""Maps of clusters: every node once, as it is, and chips that add up."""

from __future__ import annotations

from collections import Counter

from mainspring.control.service.nodes.maps import ALONE_MAX, map_of
from mainspring.domain.answers import NODE_USES, ClusterView
from mainspring.domain.fleet import AvoidedNode, Inventory, Node, NodeCondition, NodeRef
from mainspring.domain.ids import ChipName, ClusterName, NodeName

ALPHA = ClusterName("alpha")


def node(name: str, rack: str = "", *, condition: NodeCondition = NodeCondition.READY, foreign: int = 0) -> Node:
    return Node(
        name=NodeName(name),
        chip=ChipName("h100"),
        chips=8,
        domains=(("block", "b0"), ("rack", rack)) if rack else (),
        condition=condition,
        foreign_chip_milli=foreign,
    )


def view(*nodes: Node, used: dict[str, int] | None = None, avoided: str = "") -> ClusterView:
    inventory = Inventory(cluster=ALPHA, engine="local", simulated=True, nodes=nodes)
    kept = AvoidedNode(at=NodeRef(cluster=ALPHA, node=NodeName(avoided)), until_s=9.0, again_s=9.0, reason="lost")
    return ClusterView(
        inventory=inventory,
        used_chip_milli=used or {},
        answering=True,
        seen_s=1.0,
        avoided=(kept,) if avoided else (),
    )


def test_map_tells_each_use_of_nodes_rack_by_rack() -> None:
    nodes = (
        node("n0", "r0"),
        node("n1", "r0"),
        node("n2", "r0", foreign=8_000),
        node("n3", "r0"),
        node("n4", "r1", condition=NodeCondition.CORDONED),
        node("n5", "r1", condition=NodeCondition.DOWN),
        node("n6", "r1", condition=NodeCondition.COMING),
        node("n7", "r1"),
    )
    drawn = map_of(view(*nodes, used={"n0": 8_000, "n1": 500, "n4": 8_000}, avoided="n7"))
    assert [(rack.block, rack.rack, rack.uses) for rack in drawn.racks] == [("b0", "r0", "fpoi"), ("b0", "r1", "cdna")]
    assert {use for rack in drawn.racks for use in rack.uses} == NODE_USES.keys()
    assert [one.node.name for one in drawn.closed] == ["n4", "n5", "n6", "n7"]


def test_chips_of_a_map_are_those_there_those_that_could_work_and_those_held() -> None:
    nodes = (
        node("n0", "r0"),
        node("n1", "r0", condition=NodeCondition.CORDONED),
        node("n2", "r0", condition=NodeCondition.DOWN),
        node("n3", "r0", condition=NodeCondition.COMING),
    )
    drawn = map_of(view(*nodes, used={"n0": 4_000, "n1": 2_000}))
    assert (drawn.chips, drawn.healthy, drawn.held) == (24.0, 10.0, 6.0)


def test_nodes_of_a_cluster_without_racks_stand_together_in_order() -> None:
    drawn = map_of(view(*(node(f"n{number:03}") for number in range(2 * ALONE_MAX + 1))))
    assert Counter(len(rack.uses) for rack in drawn.racks) == {ALONE_MAX: 2, 1: 1}
    assert {(rack.block, rack.rack) for rack in drawn.racks} == {("", "")}
