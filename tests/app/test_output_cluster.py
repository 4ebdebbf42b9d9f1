"""How clusters look to people."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console, RenderableType

from mainspring.app.render.clusters import cluster_panel, clusters_table, finding_lines, past_fleet_panel
from mainspring.app.sdk.clusters import ClusterShown
from mainspring.domain.answers import ClosedNode, ClusterView, PastAttempt, PastCluster, PastFleet
from mainspring.domain.fleet import AvoidedNode, Inventory, Node, NodeCondition, NodeRef, Offer
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import Hold
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.slurm.cluster.config import SlurmCluster

NOW_S = 1_700_000_000.0
HALL, H100 = ClusterName("hall"), ChipName("h100")


def _drawn(what: RenderableType, *, columns: int = 140) -> list[str]:
    out = StringIO()
    Console(file=out, width=columns, color_system=None).print(what)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def _node(number: int, **fields: object) -> Node:
    return Node(name=NodeName(f"n{number:04}"), chip=H100, chips=8, **fields)  # type: ignore[arg-type]


def _shown(nodes: list[Node], *, used: dict[str, int] | None = None, answering: bool = True) -> ClusterShown:
    prices = {H100: 2.4}
    inventory = Inventory(
        cluster=HALL, engine="slurm", simulated=False, nodes=tuple(nodes), dollars_per_chip_hour=prices
    )
    settings = SlurmCluster(
        name=HALL, partitions=("robots", "more"), shared="/shared", qos={"critical": "high"}, simulated=True
    )
    view = ClusterView(inventory=inventory, used_chip_milli=used or {}, answering=answering, seen_s=NOW_S - 120)
    return ClusterShown(name=HALL, engine="slurm", settings=settings, asked=True, view=view)


def test_nodes_that_are_alike_share_a_row_however_many_there_are() -> None:
    drained = {"condition": NodeCondition.CORDONED, "condition_owner": "slurm", "condition_reason": "fan 3"}
    nodes = [_node(number) for number in range(1, 5_000)] + [_node(5_000, **drained)]
    lines = _drawn(cluster_panel(_shown(nodes, used={"n0002": 3_000}), now_s=NOW_S))
    rows = [line.split() for line in lines if line.startswith("n")]
    assert [row[:2] for row in rows] == [["n[0001,0003-4999]", "4998"], ["n0002", "1"], ["n5000", "1"]]
    assert rows[0][4:7] == ["39984", "of", "39984"]
    assert "3 ours" in " ".join(rows[1])
    assert "5 of 8" in " ".join(rows[1])
    assert "0 of 8 cordoned by slurm" in " ".join(rows[2])
    assert "fan 3" in " ".join(rows[2])


def test_a_cluster_tells_which_nodes_it_could_get_or_why_none_for_now() -> None:
    offer = Offer(name="a3", chip=H100, chips=8, nodes_max=4, lead_time_s=600.0, dollars_per_chip_hour=2.4, spot=True)
    dry = replace(offer, name="dry", nodes_max=0, spot=False, withheld="no such machines in this zone")
    shown = _shown([_node(1)])
    assert shown.view is not None
    view = replace(shown.view, inventory=replace(shown.view.inventory, offers=(offer, dry)))
    text = "\n".join(_drawn(cluster_panel(replace(shown, view=view), now_s=NOW_S)))
    assert "up to 4 more; 8 h100 each, $2.4 a chip-hour, spot, there in 10 min" in text
    assert "none for now: no such machines in this zone; 8 h100 each, $2.4 a chip-hour" in text


def test_a_cluster_tells_its_settings_prices_and_silence() -> None:
    text = "\n".join(_drawn(cluster_panel(_shown([_node(1)], answering=False), now_s=NOW_S)))
    for words in ("hall (simulated)", "robots, more", "critical = high", "h100 $2.40", "no, for 2 min", "pinned"):
        assert words in text
    silent = ClusterShown(name=HALL, engine="slurm", settings=None, asked=False, view=None)
    assert "ms up" in "\n".join(_drawn(clusters_table([silent], now_s=NOW_S)))


def test_a_node_that_all_jobs_avoid_says_until_when_and_why() -> None:
    shown = _shown([_node(1), _node(2)])
    assert shown.view is not None
    at = NodeRef(cluster=HALL, node=NodeName("n0002"))
    one = AvoidedNode(at=at, until_s=NOW_S + 600.0, again_s=NOW_S + 600.0, reason="2 jobs were lost there")
    lines = _drawn(cluster_panel(replace(shown, view=replace(shown.view, avoided=(one,))), now_s=NOW_S))
    rows = [" ".join(line.split()) for line in lines if line.startswith("n0")]
    assert "avoided" not in rows[0]
    assert "avoided until" in rows[1]
    assert "2 jobs were lost there" in rows[1]


def test_what_others_use_is_not_free() -> None:
    (row,) = _drawn(clusters_table([_shown([_node(1, foreign_chip_milli=2_000)])], now_s=NOW_S))[1:]
    assert row.split()[-5:] == ["h100", "6", "h100", "$2.40", "yes"]


def test_a_finding_that_wants_something_says_it_below() -> None:
    wrong = Finding(name="clocks", standing=CheckResult.FAILED, found="9 s apart", fix="run NTP")
    first, second = _drawn(finding_lines(wrong))
    assert first.split() == ["failed", "clocks", "9", "s", "apart"]
    assert second.split() == ["->", "run", "NTP"]


def test_past_fleet_panel_names_what_was_closed_together_and_what_is_not_known() -> None:
    closed = [
        ClosedNode(node=NodeName(f"n{number}"), condition=NodeCondition.DOWN, since_s=NOW_S, reason="no power")
        for number in (1, 2, 3)
    ]
    hold = Hold(by="", since_s=0.0, cluster=HALL)
    hall = PastCluster(cluster=HALL, nodes=9, used=2, closed=3, closed_nodes=tuple(closed), hold=hold)
    cloud = PastCluster(cluster=ClusterName("cloud"), nodes=None, used=0, closed=0, closed_nodes=())
    ran = PastAttempt(
        job=JobId("job-1"),
        name="sweep",
        team=TeamName("arms"),
        number=2,
        cluster=HALL,
        nodes=(NodeName("n4"), NodeName("n5")),
        granted_s=NOW_S - 7_200,
    )
    past = PastFleet(at_s=NOW_S, clusters=(cloud, hall), running=1, waiting=4, attempts=(ran,), unread=5)
    drawn = _drawn(past_fleet_panel(past))
    assert any("1 on nodes, 4 waiting" in line for line in drawn)
    assert any("5 more jobs of the archive" in line for line in drawn)
    rows = [line.split() for line in drawn]
    assert ["cloud", "not", "known", "0", "0"] in rows
    assert ["hall", "9", "2", "3", *["paused", "by", "somebody;", "n[1-3]", "down:", "no", "power"]] in rows
    assert ["job-1", "sweep", "arms", "2", "hall", "2.0", "h", "n[4-5]"] in rows
