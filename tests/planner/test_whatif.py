"""Changes tried on a copy: the same as if they had been so from the beginning, and nothing given is changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.answers import AddNodes, Submit, WhatIf
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import LAB, MAIN, JobSpec, Option, Role
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team
from mainspring.planner import Budget, LiveAttempt, PendingJob, Policy, Snapshot, SnapshotBuilder, plan
from mainspring.planner.whatif import changed, compare

GPU = ChipName("gpu")
VISION = TeamName("vision")
NOW_S = 1_000.0


def _spec(name: str, *, replicas: int = 1, team: TeamName = LAB, within: str | None = None) -> JobSpec:
    option = Option(chip=GPU, replicas=replicas, chips=2.0, within=within)
    return JobSpec(name=name, team=team, roles=(Role(command=("x",), options=(option,)),), duration_s=600.0)


def _inventory(name: str, nodes: int) -> Inventory:
    made = tuple(
        Node(name=NodeName(f"n{index:02}"), chip=GPU, chips=4, domains=(("rack", f"r{index // 2}"),), cpus=8.0)
        for index in range(nodes)
    )
    return Inventory(
        cluster=ClusterName(name), engine="fake", simulated=True, nodes=made, dollars_per_chip_hour={GPU: 1.0}
    )


def _builder(clusters: dict[str, int], *, limit: float | None = None) -> SnapshotBuilder:
    builder = SnapshotBuilder()
    builder.set_teams([Team(name=LAB), Team(name=VISION, parent=LAB, chips_max=limit)])
    for name, nodes in clusters.items():
        builder.set_inventory(_inventory(name, nodes), answering=True)
    return builder


def _run(builder: SnapshotBuilder, job: str, cluster: str, node: int, *, team: TeamName = LAB) -> None:
    grant = Grant(
        role=MAIN,
        option=0,
        cluster=ClusterName(cluster),
        nodes=(NodeName(f"n{node:02}"),),
        chip_milli=(2_000,),
        ranks=(1,),
    )
    builder.add_live(
        LiveAttempt(
            attempt=AttemptId(f"attempt-{job}"),
            job=JobId(job),
            spec=_spec(job, team=team),
            grants=(grant,),
            submitted_s=1.0,
            granted_s=2.0,
        )
    )


def _wait(builder: SnapshotBuilder, job: str, spec: JobSpec, submitted_s: float = 5.0) -> None:
    builder.add_pending(PendingJob(job=JobId(job), spec=spec, submitted_s=submitted_s))


def _bytes(table: Any) -> dict[str, Any]:
    """Returns a table's columns, arrays as bytes, so that two can be compared."""
    return {
        field.name: column.tobytes() if isinstance(column := getattr(table, field.name), np.ndarray) else column
        for field in fields(table)
    }


def _decided(snapshot: Snapshot) -> tuple[Any, ...]:
    made = plan(snapshot, Policy(), NOW_S, Budget())
    starts = tuple(
        (start.job, tuple((grant.cluster, len(grant.nodes)) for grant in start.grants)) for start in made.starts
    )
    return starts, tuple((wait.jobs, wait.limit) for wait in made.waits)


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(1, 7), st.lists(st.integers(1, 14), max_size=5), st.booleans())
def test_added_nodes_take_as_many_jobs_as_if_they_had_always_been_there(
    before: int, more: int, asks: list[int], racked: bool
) -> None:
    some, all_along = _builder({"a": before, "b": 1}), _builder({"a": before + more, "b": 1})
    for builder in (some, all_along):
        _run(builder, "job-run", "b", 0)
        for index, replicas in enumerate(asks):
            _wait(builder, f"job-{index}", _spec(f"j{index}", replicas=replicas), float(index))
    tried = changed(some.build(now_s=NOW_S), WhatIf(add_nodes=(AddNodes(cluster=ClusterName("a"), nodes=more),)), NOW_S)
    same = all_along.build(now_s=NOW_S)
    assert len(tried.nodes.names) == len(same.nodes.names)
    assert list(tried.nodes.names[: before + more]) == sorted(tried.nodes.names[: before + more])
    for column in ("whole", "cpu_milli", "chips", "cluster"):
        assert sorted(getattr(tried.nodes, column).tolist()) == sorted(getattr(same.nodes, column).tolist())
    starts, waits = _decided(tried)
    assert [job for job, _ in starts] == [job for job, _ in _decided(same)[0]]
    assert [jobs for jobs, _ in waits] == [jobs for jobs, _ in _decided(same)[1]]


def test_added_nodes_stand_in_racks_of_their_own_shaped_like_those_there_are() -> None:
    builder = _builder({"a": 4})
    _wait(builder, "job-0", _spec("wide", replicas=4, within="rack"))
    _wait(builder, "job-1", _spec("wide", replicas=4, within="rack"))
    _wait(builder, "job-2", _spec("wide", replicas=4, within="rack"))
    snapshot = builder.build(now_s=NOW_S)
    assert len(_decided(snapshot)[0]) == 2
    for nodes, started in ((1, 2), (2, 3), (4, 3)):
        tried = changed(snapshot, WhatIf(add_nodes=(AddNodes(cluster=ClusterName("a"), nodes=nodes),)), NOW_S)
        assert len(_decided(tried)[0]) == started


def test_jobs_of_a_removed_cluster_wait_again_and_the_rest_is_as_without_it() -> None:
    both, only = _builder({"a": 2, "b": 2, "c": 1}), _builder({"a": 2, "c": 1})
    _run(both, "job-gone", "b", 1, team=VISION)
    for builder in (both, only):
        _run(builder, "job-stays", "c", 0)
        _wait(builder, "job-wide", _spec("wide", replicas=6))
    tried = changed(both.build(now_s=NOW_S), WhatIf(remove_clusters=(ClusterName("b"),)), NOW_S)
    assert tried.pending.jobs == ("job-gone", "job-wide")
    assert tried.live.jobs == ("job-stays",)
    same = only.build(now_s=NOW_S)
    assert tried.nodes.names == same.nodes.names
    assert tried.nodes.whole.tolist() == same.nodes.whole.tolist()
    assert tried.live.held_node.tolist() == same.live.held_node.tolist()
    assert tried.teams.names[int(tried.pending.team[0])] == VISION
    made = plan(tried, Policy(), NOW_S, Budget())
    assert [start.job for start in made.starts] == ["job-gone"]
    assert made.starts[0].grants[0].cluster in ("a", "c")


@given(st.sampled_from(["aaa", "vision", "zzz"]), st.integers(0, 8))
def test_team_tried_limits_as_one_that_was_set(name: str, limit: int) -> None:
    team = Team(name=TeamName(name), parent=LAB, chips_max=float(limit), guarantee={GPU: 1.0})
    plain, told = _builder({"a": 4}), _builder({"a": 4})
    told.set_teams([Team(name=LAB), *([] if name == VISION else [Team(name=VISION, parent=LAB)]), team])
    for builder in (plain, told):
        _run(builder, "job-run", "a", 0, team=VISION)
        for index in range(3):
            _wait(builder, f"job-{index}", _spec("x", team=VISION), float(index))
    snapshot = plain.build(now_s=NOW_S)
    tried, same = changed(snapshot, WhatIf(teams=(team,)), NOW_S), told.build(now_s=NOW_S)
    assert _bytes(tried.teams) == _bytes(same.teams)
    assert _decided(tried) == _decided(same)


@given(st.integers(1, 5), st.integers(1, 3))
def test_jobs_tried_come_after_all_others_and_are_planned_like_them(count: int, replicas: int) -> None:
    builder = _builder({"a": 2})
    _wait(builder, "job-0", _spec("first", replicas=2), submitted_s=NOW_S + 50.0)
    snapshot = builder.build(now_s=NOW_S)
    submit = Submit(spec=_spec("tried", replicas=replicas), count=count)
    tried = changed(snapshot, WhatIf(submits=(submit,)), NOW_S)
    assert tried.pending.jobs[0] == "job-0"
    assert len(tried.pending.jobs) == 1 + count
    started = [job for job, _ in _decided(tried)[0]]
    assert started[0] == "job-0"
    assert len(started) == 1 + min(count, 2 // replicas)


def test_snapshot_given_is_never_changed() -> None:
    builder = _builder({"a": 2, "b": 2})
    _run(builder, "job-run", "b", 0)
    _wait(builder, "job-0", _spec("first"))
    snapshot = builder.build(now_s=NOW_S)
    tables = (snapshot.nodes, snapshot.live, snapshot.pending, snapshot.teams)
    before = [_bytes(table) for table in tables]
    changes = WhatIf(
        add_nodes=(AddNodes(cluster=ClusterName("a"), nodes=3),),
        remove_clusters=(ClusterName("b"),),
        teams=(Team(name=TeamName("new"), parent=LAB),),
        submits=(Submit(spec=_spec("tried"), count=2),),
    )
    changed(snapshot, changes, NOW_S)
    assert [_bytes(table) for table in tables] == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (WhatIf(remove_clusters=(ClusterName("ab"),)), "'a'"),
        (WhatIf(add_nodes=(AddNodes(cluster=ClusterName("a"), nodes=1, chip="gpv"),)), "gpu"),
        (
            WhatIf(remove_clusters=(ClusterName("a"),), add_nodes=(AddNodes(cluster=ClusterName("a"), nodes=1),)),
            "without nodes",
        ),
        (WhatIf(teams=(Team(name=TeamName("x"), parent=TeamName("labb")),)), "lab"),
        (WhatIf(submits=(Submit(spec=_spec("x", team=TeamName("visoin"))),)), "vision"),
    ],
)
def test_change_of_what_is_not_known_is_refused_by_name(changes: WhatIf, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        changed(_builder({"a": 1}).build(now_s=NOW_S), changes, NOW_S)


def test_team_tried_above_itself_and_no_nodes_at_all_are_refused() -> None:
    snapshot = _builder({"a": 1}).build(now_s=NOW_S)
    for changes in (
        WhatIf(teams=(Team(name=LAB, parent=VISION),)),
        WhatIf(add_nodes=(AddNodes(cluster=ClusterName("a"), nodes=0),)),
    ):
        with pytest.raises(InvalidInput):
            changed(snapshot, changes, NOW_S)


def test_comparison_tells_who_starts_who_waits_and_who_moves() -> None:
    builder = _builder({"a": 1, "b": 2})
    _run(builder, "job-run", "a", 0)
    _wait(builder, "job-0", _spec("wide", replicas=6))
    snapshot = builder.build(now_s=NOW_S)
    before = plan(snapshot, Policy(), NOW_S, Budget())
    gone = plan(changed(snapshot, WhatIf(remove_clusters=(ClusterName("a"),)), NOW_S), Policy(), NOW_S, Budget())
    found = compare(before, gone, running=snapshot.live.jobs, now_s=NOW_S, shifts_max=9)
    assert (found.restart, found.stranded, found.start) == (("job-run",), (), ())
    more = changed(snapshot, WhatIf(add_nodes=(AddNodes(cluster=ClusterName("b"), nodes=1),)), NOW_S)
    after = plan(more, Policy(), NOW_S, Budget())
    found = compare(before, after, running=snapshot.live.jobs, now_s=NOW_S, shifts_max=9)
    assert (found.start, found.sooner, found.later) == (("job-0",), 1, 0)
    back = compare(after, before, running=snapshot.live.jobs, now_s=NOW_S, shifts_max=9)
    assert (back.wait, back.later, back.sooner) == (("job-0",), 1, 0)
    assert compare(before, replace(before, number=9), running=(), now_s=NOW_S, shifts_max=9).shifts == ()
