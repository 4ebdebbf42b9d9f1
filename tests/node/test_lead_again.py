"""Devices that compute otherwise than others: who is left, what is gone back to, and that nothing wrong stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.checkpoint import (
    KEEP_STEPS,
    Manifest,
    commit,
    durable_steps,
    manifest_key,
    prune,
    withdraw,
)
from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, DevicesDifferEvent, GenerationResumedEvent
from mainspring.node.lead.effects import Said, WriteManifest
from mainspring.node.lead.watch.failures import ODD_TOLD_MAX
from mainspring.node.snapshots.arena import Arena
from mainspring.node.supervise.rank_server import RESULTS_KEPT_MAX, RankSlot
from mainspring.objects import open_store
from mainspring.simulator.nodes.leading import SLOW_STORE_S_MAX
from tests.node.lead_agents import orders
from tests.node.lead_cluster import Cluster
from tests.node.program import AGREE, DIFFER
from tests.node.rig import ATTEMPT, Rig

JOB = JobId("job-1")


def tried(cluster: Cluster, report: wire.StepTried, sequence: int, *, generation: int = 0) -> None:
    """Tells the lead what rank 0 found, as its agent does."""
    now = generation or cluster.lead.generation
    cluster.feed(Said(agent=0, message=wire.RankTried(generation=now, rank=0, report=report, sequence=sequence)))


def agreed(cluster: Cluster, sequence: int) -> int:
    """Has all agree on a step now; returns the newest whose state came of such work."""
    step = cluster.lead.step
    tried(cluster, wire.StepTried(step=step + 1, equal=True, agreed_step=step), sequence)
    return step


def stands_alone(cluster: Cluster, *ranks: int, since: int = -1) -> wire.StepTried:
    return wire.StepTried(
        step=cluster.lead.step + 1, equal=False, ranks=ranks, device="device 0", certain=True, agreed_step=since
    )


def being_written(cluster: Cluster) -> list[int]:
    """Returns the steps whose manifests the lead wants and that are not durable yet."""
    wanted = [effect.step for effect in cluster.leads[-1].effects if isinstance(effect, WriteManifest)]
    return [step for step in wanted if step > max(cluster.store.steps, default=-1)]


def durable(cluster: Cluster, count: int) -> list[int]:
    """Lets so many more steps become durable; returns those there are."""
    told = len(cluster.of_kind(CheckpointDurableEvent.kind))
    cluster.until(CheckpointDurableEvent.kind, 600.0, told + count)
    return list(cluster.store.steps)


def test_node_whose_device_stands_alone_is_left_and_what_came_after_all_agreed_is_gone() -> None:
    cluster = Cluster(1, orders(4, spares=1))
    durable(cluster, 1)
    trusted = agreed(cluster, 1)
    since = durable(cluster, KEEP_STEPS + 2)
    kept = min(since)
    assert kept <= trusted < sorted(since)[1], "the last that is trusted stays however many come"
    tried(cluster, stands_alone(cluster, 2, since=trusted), 2)
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    (told,) = cluster.of_kind(DevicesDifferEvent.kind)
    assert (told["ranks"], told["nodes"], told["device"], told["certain"]) == ("2", "n2", "device 0", True)
    step, source, ranks = cluster.resumed[-1]
    assert (step, source, ranks) == (kept, "store", 3)
    durable(cluster, 2)
    assert {agent.number for agent, _ in cluster.living} == {0, 1, 3}, "the spare has its place"
    generations = {manifest.step: manifest.generation for manifest in cluster.manifests}
    assert all(generations[each] == 2 for each in cluster.store.steps if each > kept), "all else was computed anew"


@pytest.mark.parametrize("seed", range(4))
def test_step_whose_manifest_is_under_way_when_devices_differ_is_withdrawn_too(seed: int) -> None:
    cluster = Cluster(seed, orders(4, spares=1))
    kept = max(durable(cluster, 1))
    trusted = agreed(cluster, 1)
    assert trusted >= kept
    assert cluster.run(120.0, until=lambda: any(step > trusted for step in being_written(cluster)))
    tried(cluster, stands_alone(cluster, 1, since=trusted), 2)
    cluster.until(GenerationResumedEvent.kind, 2 * SLOW_STORE_S_MAX, 2)
    assert max(cluster.store.steps) <= max(kept, trusted)
    assert int(str(cluster.resumed[-1][0])) <= trusted


def test_where_nothing_as_old_is_kept_the_oldest_there_is_has_to_do() -> None:
    cluster = Cluster(3, orders(4, spares=1))
    oldest = min(durable(cluster, KEEP_STEPS))
    tried(cluster, stands_alone(cluster, 1), 1)
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    assert cluster.resumed[-1][:2] == (oldest, "store")


def test_oldest_step_that_goes_while_the_verdict_comes_leaves_the_next_to_do() -> None:
    cluster = Cluster(3, orders(4, spares=1))
    cluster.store.slow = 1.0
    oldest, second = durable(cluster, KEEP_STEPS)[:2]
    assert cluster.run(120.0, until=lambda: bool(being_written(cluster)))
    tried(cluster, stands_alone(cluster, 1), 1)
    cluster.until(GenerationResumedEvent.kind, 120.0, 2)
    assert oldest not in cluster.store.steps
    assert cluster.resumed[-1][:2] == (second, "store"), "weeks of work would be gone"


def test_what_was_found_counts_of_a_place_of_its_own_alone() -> None:
    cluster = Cluster(5, orders(2))
    cluster.until_step(3)
    report = wire.StepTried(step=3, equal=False, ranks=(0, 1))
    strange = wire.RankTried(generation=cluster.lead.generation, rank=1, report=report, sequence=99)
    cluster.feed(Said(agent=0, message=strange))
    own = wire.RankTried(generation=cluster.lead.generation, rank=1, report=report, sequence=1)
    cluster.feed(Said(agent=1, message=own))
    cluster.run(1.0)
    assert len(cluster.of_kind(DevicesDifferEvent.kind)) == 1


def test_suspicions_and_word_of_older_generations_change_nothing() -> None:
    cluster = Cluster(4, orders(2))
    cluster.until_step(3)
    unclear = wire.StepTried(step=3, equal=False, ranks=(0, 1))
    again = wire.StepTried(step=4, equal=False, again=True, ranks=(1,), device="device 3")
    tried(cluster, unclear, 1)
    tried(cluster, again, 2)
    tried(cluster, again, 2)
    tried(cluster, stands_alone(cluster, 1), 3, generation=9)
    cluster.run(30.0)
    told = [(one["certain"], one["again"], one["nodes"]) for one in cluster.of_kind(DevicesDifferEvent.kind)]
    assert told == [(False, False, "n0, n1"), (False, True, "n1")]
    assert len(cluster.resumed) == 1


def test_nodes_whose_devices_stand_alone_together_are_all_left_for_others() -> None:
    cluster = Cluster(6, orders(6, spares=2))
    durable(cluster, 1)
    tried(cluster, stands_alone(cluster, 1, 2), 1)
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    (told,) = cluster.of_kind(DevicesDifferEvent.kind)
    assert (told["ranks"], told["nodes"]) == ("1, 2", "n1, n2")
    durable(cluster, 1)
    assert {agent.number for agent, _ in cluster.living} == {0, 3, 4, 5}


def test_event_names_few_of_many_nodes() -> None:
    cluster = Cluster(7, orders(20))
    cluster.until_step(3)
    tried(cluster, wire.StepTried(step=3, equal=False, ranks=tuple(range(20))), 1)
    (told,) = cluster.of_kind(DevicesDifferEvent.kind)
    assert len(str(told["nodes"]).split(", ")) == len(str(told["ranks"]).split(", ")) == ODD_TOLD_MAX


def test_node_that_stands_alone_again_where_no_other_is_left_ends_the_attempt_for_another_place() -> None:
    cluster = Cluster(5, orders(3))
    durable(cluster, 1)
    tried(cluster, stands_alone(cluster, 2), 1)
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    cluster.until_step(int(str(cluster.resumed[-1][0])) + 2)
    tried(cluster, stands_alone(cluster, 2), 1 + 1)
    assert cluster.run(600.0, until=lambda: cluster.done), "\n".join(cluster.trace[-20:])
    assert cluster.lead.outcome is AttemptState.LOST
    assert "computes otherwise than two that agree" in cluster.lead.reason
    assert "again on agent 2" in cluster.lead.reason


@pytest.mark.slow
@pytest.mark.soak
def test_attempt_with_a_device_that_stands_alone_goes_on_on_a_spare_node_from_before_all_agreed(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(steps=100_000, agents=4, spares=1)
    folder = tmp_path / f"meeting-{ATTEMPT}"
    first = int(rig.wait_event(CheckpointDurableEvent.kind)["step"])
    (folder / AGREE).touch()
    rig.wait((folder / "agreed").exists, "word that all agree")
    agreed = int((folder / "agreed").read_text())
    rig.wait_event(CheckpointDurableEvent.kind, 2)
    wrong = [int(one["step"]) for one in rig.of_kind(CheckpointDurableEvent.kind) if int(one["step"]) > agreed]
    (folder / DIFFER).touch()
    told = rig.wait_event(DevicesDifferEvent.kind)
    assert (told["ranks"], told["nodes"], told["device"], told["agreed_step"]) == ("1", "n1", "device 0", agreed)
    resumed = rig.wait_resumed(ranks=3, after=told)
    assert resumed["source"] == "store"
    assert first <= int(resumed["step"]) <= agreed
    assert not [step for step in wrong if step <= int(resumed["step"])]
    rig.wait_stepping(2)
    others = {"n0", "n2", "n3"}
    rig.wait(lambda: {one.node for one in rig.heartbeats[-1].ranks if one.alive} == others, "ranks on other nodes")


def test_trusted_step_outlives_newer_ones_and_withdrawn_ones_are_gone(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for step in range(1, 8):
        manifest = Manifest(job=JOB, attempt=AttemptId("attempt-1"), step=step, created_s=1.0, shares=())
        commit(store, manifest, replace=False)
        prune(store, JOB, trusted=(2,))
    assert durable_steps(store, JOB) == (7, 6, 5, 2)
    assert withdraw(store, JOB, 5) == (7, 6)
    assert durable_steps(store, JOB) == (5, 2)
    assert store.size(manifest_key(JOB, 6)) is None


def test_event_says_who_stands_alone_or_that_nobody_knows() -> None:
    alone = DevicesDifferEvent(
        generation=1, step=500, ranks="2", nodes="n2", device="device 3 of rank 2", certain=True, agreed_step=249
    )
    assert str(alone) == (
        "device 3 of rank 2 on n2 computes otherwise than two that agree at step 500; what was made since step 249 is "
        "not trusted"
    )
    again = DevicesDifferEvent(generation=1, step=7, ranks="0", nodes="n0", again=True)
    assert str(again) == "rank 0 on n0 did not come to the same when step 7 was done again"
    unclear = DevicesDifferEvent(generation=1, step=7, ranks="", nodes="")
    assert "nobody knows which" in str(unclear)
    assert str(unclear).endswith("devices do not agree on step 7, and nothing tells which are right")


def test_words_that_all_is_well_push_nothing_out_of_what_is_told_again(tmp_path: Path) -> None:
    desk = RankSlot(rank=0, arena=Arena(tmp_path))
    desk.keep_result({"success": 0.5})
    desk.keep_upset(wire.UpsetReport(step=3, upset="spike", answer="skip"))
    desk.keep_tried(wire.StepTried(step=4, equal=False, ranks=(1,)), 1)
    for step in range(2 * RESULTS_KEPT_MAX):
        desk.keep_tried(wire.StepTried(step=step, equal=True, agreed_step=step - 1), 1)
    *others, newest = desk.results
    assert [type(one) for one in others] == [wire.RankResult, wire.RankUpset, wire.RankTried]
    assert newest == wire.RankTried(
        generation=1,
        rank=0,
        report=wire.StepTried(step=2 * RESULTS_KEPT_MAX - 1, equal=True, agreed_step=2 * RESULTS_KEPT_MAX - 2),
        sequence=3 + 2 * RESULTS_KEPT_MAX,
    )
    desk.arena.close()
