"""What could never run, and what the error teaches."""

from __future__ import annotations

from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import ChipName
from mainspring.domain.job import Option
from mainspring.planner import SnapshotBuilder
from mainspring.planner.facts.snapshot import Snapshot
from mainspring.planner.feasible import feasible

from .making import H100, cluster, spec


def snapshot_of(*inventories: Inventory) -> Snapshot:
    builder = SnapshotBuilder()
    for inventory in inventories:
        builder.set_inventory(inventory, answering=False)
    return builder.build()


def test_gang_larger_than_every_cluster_names_the_most_that_fits() -> None:
    snapshot = snapshot_of(cluster("alpha", nodes=2), cluster("beta", nodes=1))
    error = feasible(snapshot, spec(Option(chip=H100, replicas=64)))
    assert error is not None
    assert (error.got, error.wanted) == ("64 h100", "the most that ever fits: 16 h100 on cluster alpha")


def test_gang_that_would_fit_once_everything_is_healthy_and_free_is_possible() -> None:
    sick = cluster("alpha", foreign={0: 8_000}, unready=(1, 2, 3))
    assert feasible(snapshot_of(sick), spec(Option(chip=H100, replicas=32))) is None


def test_unknown_chip_names_the_nearest_known() -> None:
    error = feasible(snapshot_of(cluster("alpha")), spec(Option(chip=ChipName("h10"))))
    assert error is not None
    assert "'h10'" in error.got
    assert error.wanted == "did you mean 'h100'?"


def test_one_known_option_is_enough() -> None:
    assert feasible(snapshot_of(cluster("alpha")), spec(Option(chip=ChipName("tpu")), Option(chip=H100))) is None


def test_unknown_level_is_named() -> None:
    error = feasible(snapshot_of(cluster("alpha")), spec(Option(chip=H100, within="pod")))
    assert error is not None
    assert "cluster alpha has no level 'pod'" in error.wanted


def test_gang_larger_than_a_rack_names_the_most_in_one() -> None:
    error = feasible(snapshot_of(cluster("alpha")), spec(Option(chip=H100, replicas=17, within="rack")))
    assert error is not None
    assert (error.got, error.wanted) == ("17 h100 in one rack", "the most that ever fits: 16 h100 on cluster alpha")


def test_replica_larger_than_a_cluster_says_what_there_is() -> None:
    error = feasible(snapshot_of(cluster("alpha")), spec(Option(chip=H100, chips=64)))
    assert error is not None
    assert error.wanted.endswith("no replica of that size, for cluster alpha has 32 such chips in all")


def test_roles_that_only_fit_alone_are_impossible() -> None:
    snapshot = snapshot_of(cluster("alpha"), cluster("beta"))
    job = spec(Option(chip=H100, replicas=20), others={"sampler": Option(chip=H100, replicas=20)})
    error = feasible(snapshot, job)
    assert error is not None
    assert "together" in error.got


def test_nothing_is_impossible_before_clusters_report() -> None:
    assert feasible(SnapshotBuilder().build(), spec(Option(chip=H100, replicas=64))) is None
