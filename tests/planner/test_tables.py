"""Tables of a snapshot: every column is of its declared type, sealed, and as long as the others of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
from tests.planner.making import NOW_S, ONE, Lab, cluster, grant, spec

from mainspring.domain.answers import AddNodes, Submit, WhatIf
from mainspring.domain.ids import ClusterName, JobId, TeamName
from mainspring.domain.team import Team
from mainspring.planner import Snapshot
from mainspring.planner.facts.snapshot import Column, Flags, Floats, Integers
from mainspring.planner.facts.tables import GrowableTable, columns, filled, table_of, taken
from mainspring.planner.whatif import changed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Some:
    """A table with rows of two kinds."""

    names: tuple[str, ...]
    count: Integers
    since_s: Annotated[Floats, Column(fill=-1.0)]
    marked: Flags
    part_of: Annotated[Integers, Column(of="part")]


def _some() -> Some:
    return table_of(Some, names=("a", "b"), count=[3, 4], since_s=[1, 2], marked=[1, 0], part_of=[0, 0, 1])


def test_columns_are_of_the_types_they_are_declared_with_and_sealed() -> None:
    some = _some()
    assert {name: column.dtype for name, column in columns(Some).items()} == {
        "count": np.int64,
        "since_s": np.float64,
        "marked": np.bool_,
        "part_of": np.int64,
    }
    assert [str(each.dtype) for each in (some.count, some.since_s, some.marked)] == ["int64", "float64", "bool"]
    with pytest.raises(ValueError, match="read-only"):
        some.count[0] = 1


def test_rows_taken_of_one_kind_leave_the_others() -> None:
    second = taken(_some(), np.array([1]))
    assert (second.names, second.count.tolist(), second.part_of.tolist()) == (("b",), [4], [0, 0, 1])
    parts = taken(_some(), np.array([2]), "part")
    assert (parts.names, parts.count.tolist(), parts.part_of.tolist()) == (("a", "b"), [3, 4], [1])


def test_columns_of_which_nobody_says_anything_are_filled() -> None:
    rows = filled(Some, 2, {"count": 7})
    assert {name: column.tolist() for name, column in rows.items()} == {
        "count": [7, 7],
        "since_s": [-1.0, -1.0],
        "marked": [False, False],
    }
    grown = GrowableTable(columns(Some, ""))
    for index in range(100):
        grown.put(f"row-{index:03}", 0.0, {"count": index})
    grown.drop("row-001")
    grown.put("again", 0.0, {"marked": True})
    rows_at = grown.rows()
    assert grown.column("count", rows_at).tolist() == [0, 0, *range(2, 100)]
    assert set(grown.column("since_s", rows_at).tolist()) == {-1.0}
    assert grown.column("marked", rows_at).tolist() == [True, *[False] * 99]


def _checked(snapshot: Snapshot) -> None:
    for table in (snapshot.nodes, snapshot.clusters, snapshot.teams, snapshot.live, snapshot.pending, snapshot.data):
        kind: type = type(table)
        for of in {column.of: None for column in columns(kind).values()}:
            own = {name: getattr(table, name) for name in columns(kind, of)}
            assert len({len(column) for column in own.values()}) == 1, (kind, of)
            for name, column in own.items():
                assert column.dtype == columns(kind)[name].dtype, name
                assert not column.flags.writeable, name


def test_snapshots_and_what_is_tried_on_them_have_whole_tables() -> None:
    lab = Lab().clusters(cluster("a", foreign={1: 1_500}), cluster("b", nodes=2))
    lab.live("job-a", spec(ONE), grant("a", {"n000": 2})).live("job-b", spec(ONE), grant("b", {"n001": 1}))
    lab.pend("job-c", spec(ONE))
    snapshot = lab.snapshot()
    _checked(snapshot)
    east = ClusterName("a")
    tries = WhatIf(
        add_nodes=(AddNodes(cluster=east, nodes=2),),
        teams=(Team(name=TeamName("new")),),
        submits=(Submit(spec=spec(ONE), count=3),),
    )
    _checked(changed(snapshot, tries, NOW_S))
    tried = changed(snapshot, WhatIf(remove_clusters=(east,)), NOW_S)
    _checked(tried)
    assert tried.pending.jobs == (JobId("job-a"), JobId("job-c"))
    assert tried.live.jobs == (JobId("job-b"),)
