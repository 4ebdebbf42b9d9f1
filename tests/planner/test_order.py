"""Who goes first, what quotas stop, what the work budget leaves undone, and what the builder refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobSpec, Option, Tier
from mainspring.domain.plan import Limit
from mainspring.planner import Budget, Policy, SnapshotBuilder, TeamQuota, plan
from mainspring.planner.snapshot import Clusters, Live, Nodes, Shape, Teams

MakeInventory = Callable[..., Inventory]
MakeSpec = Callable[..., JobSpec]
ONE = Option(chip=ChipName("h100"))


def quota(name: str, parent: str | None = None, chips_max: float | None = None) -> TeamQuota:
    return TeamQuota(name=TeamName(name), parent=None if parent is None else TeamName(parent), chips_max=chips_max)


@pytest.fixture
def builder(inventory: MakeInventory) -> SnapshotBuilder:
    """A builder that knows one cluster of 32 chips."""
    made = SnapshotBuilder()
    made.set_inventory(inventory("alpha"), answering=True)
    return made


def started(builder: SnapshotBuilder) -> list[str]:
    return [start.job for start in plan(builder.build(), Policy(), 100.0, Budget()).starts]


def add_live(builder: SnapshotBuilder, team: str, chips: int) -> None:
    builder.add_live(
        AttemptId(f"attempt-{team}"),
        JobId(f"live-{team}"),
        team=TeamName(team),
        tier=Tier.STANDARD,
        submitted_s=0.0,
        cluster=ClusterName("alpha"),
        chip_milli={NodeName("n000"): chips * 1_000},
    )


def test_order_is_tier_then_team_use_then_age(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    add_live(builder, "busy", 3)
    builder.add_pending(JobId("d"), spec(ONE, team="busy"), 1.0)
    builder.add_pending(JobId("c"), spec(ONE, team="idle"), 3.0)
    builder.add_pending(JobId("b"), spec(ONE, team="idle"), 2.0)
    builder.add_pending(JobId("a"), spec(ONE, team="busy", tier=Tier.CRITICAL), 4.0)
    assert started(builder) == ["a", "b", "c", "d"]


def test_teams_take_turns_as_their_use_grows(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    for index in range(3):
        builder.add_pending(JobId(f"x{index}"), spec(ONE, team="x"), float(index))
        builder.add_pending(JobId(f"y{index}"), spec(ONE, team="y"), 10.0 + index)
    assert started(builder) == ["x0", "y0", "x1", "y1", "x2", "y2"]


def test_job_from_the_future_counts_as_submitted_now(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    builder.add_pending(JobId("late"), spec(ONE), 1e12)
    builder.add_pending(JobId("now"), spec(Option(chip=ONE.chip, replicas=2)), 100.0)
    assert started(builder) == ["late", "now"], "both count as 100 s, so the id decides"


def test_job_over_its_teams_quota_waits_and_says_by_how_much(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    builder.set_teams([quota("lab"), quota("vision", "lab", 8.0)])
    add_live(builder, "vision", 5)
    builder.add_pending(JobId("job"), spec(Option(chip=ONE.chip, replicas=4), team="vision"), 1.0)
    wait = plan(builder.build(), Policy(), 100.0, Budget()).waits[0]
    assert (wait.limit, wait.where, wait.short_by) == (Limit.QUOTA, "vision", 1.0)
    assert wait.reason == "team vision may hold 8 chips and holds 5; 4 more are 1 too many"
    assert not wait.considered[0].fits


def test_quota_of_a_parent_binds_its_children_together(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    builder.set_teams([quota("lab", chips_max=3.0), quota("a", "lab"), quota("b", "lab")])
    for index, team in enumerate(("a", "b", "a", "b")):
        builder.add_pending(JobId(f"job-{index}"), spec(ONE, team=team), float(index))
    answer = plan(builder.build(), Policy(), 100.0, Budget())
    assert len(answer.starts) == 3
    assert (answer.waits[0].where, answer.waits[0].limit) == ("lab", Limit.QUOTA)


def test_job_over_quota_holds_no_nodes(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    builder.set_teams([quota("vision", chips_max=8.0)])
    builder.add_pending(JobId("gang"), spec(Option(chip=ONE.chip, replicas=32), team="vision"), 1.0)
    builder.add_pending(JobId("small"), spec(ONE, team="other"), 2.0)
    assert started(builder) == ["small"]


def test_work_budget_that_runs_out_leaves_the_rest_waiting_for_it(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    for index in range(5):
        builder.add_pending(JobId(f"job-{index}"), spec(ONE), float(index))
    answer = plan(builder.build(), Policy(), 100.0, Budget(placements_max=2))
    assert [start.job for start in answer.starts] == ["job-0", "job-1"]
    assert [wait.job for wait in answer.waits] == ["job-2", "job-3", "job-4"]
    assert {wait.limit for wait in answer.waits} == {Limit.BUDGET}


def test_removed_jobs_and_attempts_are_forgotten(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    add_live(builder, "lab", 8)
    builder.add_pending(JobId("gone"), spec(ONE), 1.0)
    builder.add_pending(JobId("all"), spec(Option(chip=ONE.chip, replicas=32)), 2.0)
    builder.remove_pending(JobId("gone"))
    builder.remove_pending(JobId("never-known"))
    assert started(builder) == []
    builder.remove_live(AttemptId("attempt-lab"))
    assert started(builder) == ["all"]


def test_live_attempt_on_a_node_that_vanished_is_still_charged(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    builder.set_teams([quota("lab", chips_max=1.0)])
    builder.add_live(
        AttemptId("attempt"),
        JobId("live"),
        team=TeamName("lab"),
        tier=Tier.STANDARD,
        submitted_s=0.0,
        cluster=ClusterName("alpha"),
        chip_milli={NodeName("vanished"): 1_000},
    )
    builder.add_pending(JobId("job"), spec(ONE), 1.0)
    assert plan(builder.build(), Policy(), 100.0, Budget()).waits[0].limit is Limit.QUOTA


@pytest.mark.parametrize(
    "quotas",
    [[quota("a"), quota("a")], [quota("a", "nowhere")], [quota("a", "b"), quota("b", "a")]],
    ids=["twice", "unknown parent", "circle"],
)
def test_tenant_tree_that_is_no_tree_is_refused(quotas: list[TeamQuota]) -> None:
    with pytest.raises(InvalidInput):
        SnapshotBuilder().set_teams(quotas)


def test_columns_of_a_snapshot_cannot_be_written_to(builder: SnapshotBuilder, spec: MakeSpec) -> None:
    add_live(builder, "lab", 1)
    builder.add_pending(JobId("job"), spec(ONE), 1.0)
    snapshot = builder.build()
    tables: list[Nodes | Clusters | Teams | Live | Shape] = [snapshot.nodes, snapshot.clusters, snapshot.teams]
    tables += [snapshot.live, *snapshot.pending]
    columns = [getattr(table, field.name) for table in tables for field in fields(table)]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    assert len(arrays) == 19
    assert not any(array.flags.writeable for array in arrays)
    plan(snapshot, Policy(), 100.0, Budget())
    assert snapshot.nodes.free_milli.tolist() == [7_000, 8_000, 8_000, 8_000], "planning changes no snapshot"
