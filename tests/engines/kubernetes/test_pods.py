"""What a pod's object says of it, and what those of an allocation mean together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring.domain.fleet import AllocationPhase
from mainspring.domain.ids import AllocationId, JobId, NodeName
from mainspring.engines.kubernetes.jobs.manifests import Claimed
from mainspring.engines.kubernetes.jobs.pods import PodStage, read_pod
from mainspring.engines.kubernetes.jobs.seeing import ends_by_itself, is_fenced, outcome, outlives, places_due
from mainspring.engines.kubernetes.jobs.watch import AskedToStop, ClaimSeen, EndedSeen, Found, JobSeen, read_claim

NAME = AllocationId("allocation-1")
NODES = (NodeName("n1"), NodeName("n2"))
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
WELL = {"terminated": {"exitCode": 0, "reason": "Completed", "message": '{"exit_code": 0, "reason": "all done"}'}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def pod(
    index: int,
    state: dict[str, Any] | None = None,
    *,
    phase: str = "Running",
    spec: Any = (),
    meta: Any = (),
    **status: Any,
) -> dict[str, Any]:
    containers = [{"name": "agent", "state": state}] if state is not None else []
    return {
        "metadata": {
            "name": f"{NAME}-{index}-x",
            "uid": str(index),
            "labels": {"mainspring/allocation": NAME},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            **dict(meta),
        },
        "spec": dict(spec),
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def found(*pods: dict[str, Any], stop: AskedToStop | None = None, job: JobSeen | None = JobSeen()) -> Found:  # noqa: B008
    claimed = Claimed(nodes=NODES, theirs=("N1", "N2"), chip_milli=(1_000, 1_000), job_id=JobId("job-1"))
    seen = [one for one in map(read_pod, pods) if one is not None]
    claim = ClaimSeen(claimed=claimed, uid="u", stop=stop)
    return Found(allocation=NAME, claim=claim, job=job, pods={one.index: one for one in seen})


GATED = pod(0, phase="Pending", spec={"schedulingGates": [{"name": "mainspring/place"}]})
UNBOUND: Any = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
}
OPEN: Any = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}]
}
THEIR_GATE = {"schedulingGates": [{"name": "theirs"}]}
PULLING = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(
    ("said", "stage", "words", "stuck", "code"),
    [
        (GATED, PodStage.GATED, "place", True, None),
        (pod(0, phase="Pending", **UNBOUND), PodStage.WAITING, "0/3 nodes", True, None),
        (
            pod(0, phase="Pending", spec={"schedulerName": "x"}, **OPEN),
            PodStage.WAITING,
            "scheduler x has",
            False,
            None,
        ),
        (pod(0, phase="Pending", spec=THEIR_GATE, **OPEN), PodStage.WAITING, "gates", False, None),
        (pod(0, phase="Pending", spec={"nodeName": "n1"}), PodStage.WAITING, "its kubelet has said", False, None),
        (pod(0, PULLING, phase="Pending"), PodStage.WAITING, "ImagePullBackOff: no such image", True, None),
        (pod(0, CREATING, phase="Pending"), PodStage.WAITING, "ContainerCreating", False, None),
        (pod(0, RUNNING), PodStage.RUNNING, "", False, None),
        (pod(0, WELL, phase="Succeeded"), PodStage.OVER, "all done", False, 0),
        (pod(0, KILLED, phase="Failed"), PodStage.OVER, "OOMKilled, by code 137", False, 137),
        (
            pod(0, phase="Failed", reason="Evicted", message="low on memory"),
            PodStage.OVER,
            "low on memory",
            False,
            None,
        ),
    ],
)
def test_pod_is_read_as_far_as_it_has_come(
    said: dict[str, Any], stage: PodStage, words: str, stuck: bool, code: int | None
) -> None:
    read = read_pod(said)
    assert read is not None
    assert (read.stage, read.stuck, read.exit_code) == (stage, stuck, code)
    assert words in read.words


@pytest.mark.parametrize(
    ("first", "phase", "stage", "words", "stuck"),
    [
        (PULLING, "Pending", PodStage.WAITING, "bundle ImagePullBackOff: no such image", True),
        ({"running": {}}, "Pending", PodStage.WAITING, "PodInitializing", False),
        ({"terminated": {"exitCode": 0, "reason": "Completed"}}, "Pending", PodStage.WAITING, "PodInitializing", False),
        (
            {"terminated": {"exitCode": 1, "reason": "Error", "message": "disk full"}},
            "Failed",
            PodStage.OVER,
            "its container bundle failed: disk full",
            False,
        ),
    ],
)
def test_pod_whose_bundle_is_copied_first_says_how_that_goes(
    first: dict[str, Any], phase: str, stage: PodStage, words: str, stuck: bool
) -> None:
    coming = {"waiting": {"reason": "PodInitializing"}}
    read = read_pod(pod(0, coming, phase=phase, initContainerStatuses=[{"name": "bundle", "state": first}]))
    assert read is not None
    assert (read.stage, read.words, read.stuck, read.exit_code) == (stage, words, stuck, None)


def test_pod_that_others_put_a_container_beside_is_as_its_agent_is() -> None:
    said = pod(0, RUNNING)
    said["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": KILLED})
    read = read_pod(said)
    assert read is not None
    assert read.stage is PodStage.RUNNING


def test_pod_that_the_cluster_takes_away_says_so_in_its_words() -> None:
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}
    gone = {"deletionTimestamp": "2026-01-01T00:00:30Z"}
    read = read_pod(pod(0, RUNNING, meta=gone, conditions=[taken]))
    assert read is not None
    assert (read.taken, read.words, read.going_s) == (True, "preempted", 1_767_225_630.0)


def test_pod_of_our_label_that_is_part_of_no_job_is_none_of_ours() -> None:
    said = pod(0, RUNNING)
    said["metadata"]["annotations"] = {}
    assert read_pod(said) is None


@pytest.mark.parametrize(
    ("pods", "phase", "code", "lost"),
    [
        ((), AllocationPhase.PENDING, None, ()),
        ((GATED, pod(1, RUNNING)), AllocationPhase.PENDING, None, ()),
        ((pod(0, RUNNING), pod(1, RUNNING)), AllocationPhase.RUNNING, None, ()),
        ((pod(0, RUNNING), pod(1, KILLED)), AllocationPhase.RUNNING, None, ("n2",)),
        ((pod(0, RUNNING), pod(1, WELL)), AllocationPhase.RUNNING, None, ()),
        ((pod(0, WELL), pod(1, WELL)), AllocationPhase.ENDED, 0, ()),
        ((pod(0, WELL), pod(1, KILLED)), AllocationPhase.ENDED, 137, ("n2",)),
    ],
)
def test_allocation_is_what_its_pods_are(
    pods: tuple[dict[str, Any], ...], phase: AllocationPhase, code: int | None, lost: tuple[str, ...]
) -> None:
    seen = outcome(found(*pods), launching=False, now_s=9.0)
    assert (seen.seen.phase, seen.seen.exit_code, seen.seen.lost_nodes) == (phase, code, lost)
    assert seen.seen.agent_lost is bool(lost)
    assert (seen.ended is not None) is (phase is AllocationPhase.ENDED)


def test_allocation_that_somebody_stops_is_stopping_until_every_pod_is_over() -> None:
    asked = AskedToStop(at_s=1.0, grace_s=30.0)
    assert outcome(found(pod(0, RUNNING), pod(1, WELL), stop=asked), launching=False, now_s=9.0).seen.phase is (
        AllocationPhase.STOPPING
    )
    over = outcome(found(pod(0, WELL), pod(1, WELL), stop=asked), launching=False, now_s=9.0)
    assert over.ended == EndedSeen(ended_s=9.0, exit_code=0, reason="all done")


def going(index: int, at_s: int) -> dict[str, Any]:
    """A pod that runs, and is ended by force at a time."""
    return pod(index, RUNNING, meta={"deletionTimestamp": datetime.fromtimestamp(at_s, UTC).isoformat()})


@pytest.mark.parametrize(
    ("pods", "waits"),
    [
        ((pod(0, RUNNING), pod(1, RUNNING)), True),
        ((pod(0, RUNNING), pod(1, WELL)), True),
        ((pod(0, RUNNING), pod(1, CREATING, phase="Pending")), False),
        ((pod(0, RUNNING), going(1, 1_020)), True),  # Others end that one in time.
        ((pod(0, RUNNING), going(1, 1_600)), False),
        ((going(0, 1_600), going(1, 1_600)), False),
        ((going(0, 1_020), going(1, 1_020)), False),
        ((), False),
    ],
)
def test_stop_lets_agents_end_by_themselves_first_unless_others_end_them_later(
    pods: tuple[dict[str, Any], ...], waits: bool
) -> None:
    asked = AskedToStop(at_s=1_000.0, grace_s=30.0)
    assert ends_by_itself(found(*pods), asked, 1_001.0) is waits
    assert not ends_by_itself(found(*pods), asked, 1_003.0)
    assert not ends_by_itself(found(*pods), replace(asked, words="put out"), 1_001.0)


def test_pod_that_others_end_later_than_asked_outlives_the_stop_and_is_ended_again() -> None:
    asked = AskedToStop(at_s=1_000.0, grace_s=30.0)
    ends = [found(one).living[0] for one in (pod(0, RUNNING), going(0, 1_600), going(0, 1_031))]
    assert [outlives(one, asked, 1_001.0) for one in ends] == [True, True, False]
    assert not outlives(ends[1], asked, 1_600.0)  # Its time has come anyway.


def test_pod_is_taken_for_dead_long_after_the_later_of_its_own_end_and_the_stops() -> None:
    (one,) = found(going(0, 1_000)).living
    asked = AskedToStop(at_s=1_500.0, grace_s=30.0)  # The API counts the shorter grace from the first deletion on.
    assert [is_fenced(one, None, now_s) for now_s in (1_119.0, 1_121.0)] == [False, True]
    assert [is_fenced(one, asked, now_s) for now_s in (1_501.0, 1_649.0, 1_651.0)] == [False, False, True]
    assert not is_fenced(found(pod(0, RUNNING)).living[0], asked, 9_999.0)


def test_allocation_all_of_whose_pods_the_cluster_takes_is_taken() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:30Z"}
    taken = [{"type": "DisruptionTarget", "status": "True", "message": "node is drained"}]
    pods = [pod(index, RUNNING, meta=going, conditions=taken) for index in range(2)]
    seen = outcome(found(*pods), launching=False, now_s=9.0).seen
    assert (seen.phase, seen.taken, seen.reason) == (AllocationPhase.STOPPING, True, "node is drained")
    ended = [pod(index, KILLED, meta=going, conditions=taken) for index in range(2)]
    over = outcome(found(*ended), launching=False, now_s=9.0).ended
    assert over is not None
    assert (over.taken, over.reason) == (True, "node is drained")


def test_pods_that_nobody_sees_are_what_their_job_says_of_them() -> None:
    job = JobSeen(completed=frozenset({0}), failed=frozenset({1}), over=True)
    over = outcome(found(job=job), launching=False, now_s=9.0).ended
    assert over is not None
    assert (over.exit_code, over.lost_nodes) == (None, ("n2",))


def test_launch_without_a_job_is_waited_for_and_then_was_cut_short() -> None:
    assert outcome(found(job=None), launching=True, now_s=9.0).seen.phase is AllocationPhase.PENDING
    over = outcome(found(job=None), launching=False, now_s=9.0).ended
    assert over is not None
    assert "cut short" in over.reason


def test_pods_go_to_their_nodes_once_all_are_made_and_nobody_stops_them() -> None:
    second = GATED | {"metadata": pod(1)["metadata"]}
    assert places_due(found(GATED)) == {}
    assert places_due(found(GATED, second)) == {f"{NAME}-0-x": "N1", f"{NAME}-1-x": "N2"}
    assert places_due(found(GATED, second, stop=AskedToStop(at_s=1.0, grace_s=1.0))) == {}
    assert places_due(found(pod(0, RUNNING), second)) == {f"{NAME}-1-x": "N2"}


def test_claim_that_says_nothing_readable_is_an_error() -> None:
    with pytest.raises(KeyError):
        read_claim({"metadata": {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}, "data": {}})
