"""What a plan says in words is true, and reads as people write."""

from __future__ import annotations

from dataclasses import replace

from mainspring.domain.fleet import NodeCondition, Replica
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import ANY_CHIP, Option, Tier
from mainspring.domain.plan import Limit
from mainspring.planner import Policy

from .making import H100, NOW_S, Lab, cluster, grant, only_wait, spec


def test_job_whose_input_lies_on_no_known_cluster_waits_for_data_and_orders_no_move() -> None:
    lab = Lab().clusters(cluster("alpha"))
    lab.builder.set_replicas([Replica(name="corpus", cluster=ClusterName("gone"), size_bytes=10**9)])
    lab.pend("job", spec(Option(chip=H100), inputs=("corpus",)))
    answer = lab.plan()
    wait = only_wait(answer)
    assert (answer.moves, wait.limit, wait.start_s) == ((), Limit.DATA, (None,))
    assert wait.reason == "no cluster known has corpus, which it reads"


def test_data_are_moved_from_a_cluster_that_answers() -> None:
    lab = Lab().clusters(cluster("alpha"), cluster("beta"), cluster("gamma", price=1.0), silent=("alpha",))
    lab.builder.set_replicas(
        Replica(name="corpus", cluster=ClusterName(name), size_bytes=10**9) for name in ("alpha", "beta")
    )
    lab.pend("job", spec(Option(chip=H100), inputs=("corpus",)))
    assert [(move.source, move.target) for move in lab.plan().moves] == [("beta", "gamma")]


def test_jobs_ahead_hold_no_more_than_there_is_where_a_job_may_go() -> None:
    inventory = cluster("alpha", nodes=3, chips=8)
    nodes = tuple(replace(node, taints=("lent",) if index else ()) for index, node in enumerate(inventory.nodes))
    lab = Lab().clusters(replace(inventory, nodes=nodes))
    lent = spec(Option(chip=H100, tolerates=("lent",), replicas=8), tier=Tier.CRITICAL)
    lab.live("elsewhere", lent, grant("alpha", {"n001": 8}))
    lab.live("here", spec(Option(chip=H100, replicas=4), tier=Tier.CRITICAL), grant("alpha", {"n000": 4}))
    lab.pend("job", spec(Option(chip=H100, replicas=8)))
    assert only_wait(lab.plan()).reason == "alpha: needs 8 h100; jobs that come before it hold 4 of 8"


def test_job_that_waits_for_cores_is_told_of_cores() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, chips=0, chip="cpu", cpus=8.0))
    half = Option(chip=ANY_CHIP, chips=0.0, cpus=6.0)
    lab.pend("first", spec(half))
    lab.act(lab.plan())
    lab.pend("second", spec(half))
    reason = only_wait(lab.plan()).reason
    assert reason == "alpha: needs 1 x 6 cores, 2 free of 8; the cluster has room for 0 of 1"


def test_why_nodes_take_nothing_is_told_in_the_words_of_most_of_them() -> None:
    inventory = cluster("alpha", nodes=4)
    cordoned = replace(inventory.nodes[0], condition=NodeCondition.CORDONED)
    words = ("no rdma/hca", "no rdma/hca", "hot", "")
    nodes = tuple(
        replace(cordoned, name=node.name, condition_reason=said)
        for node, said in zip(inventory.nodes, words, strict=True)
    )
    lab = Lab().clusters(replace(inventory, nodes=nodes)).pend("job", spec(Option(chip=H100, replicas=8)))
    assert only_wait(lab.plan()).reason.endswith("4 of 4 nodes with h100 are not ready or about to leave: no rdma/hca")


def test_node_that_leaves_is_counted_where_too_few_nodes_stay() -> None:
    inventory = cluster("alpha", nodes=2)
    nodes = (replace(inventory.nodes[0], leaves_s=NOW_S + 9_000.0), inventory.nodes[1])
    lab = Lab().clusters(replace(inventory, nodes=nodes)).pend("job", spec(Option(chip=H100, replicas=16)))
    reason = only_wait(lab.plan()).reason
    assert reason == "alpha: needs 16 h100, but 1 of 2 nodes with h100 is not ready or about to leave"


def test_job_of_one_role_that_waits_for_room_promised_to_another_is_told_of_that() -> None:
    lab = Lab(policy=Policy(preempt=False)).clusters(cluster("alpha", nodes=1))
    half = Option(chip=H100, chips=4)
    lab.live("runs", spec(half, duration_s=7_200.0), grant("alpha", {"n000": 4}), granted_s=NOW_S - 3_600.0)
    lab.pend("first", spec(Option(chip=H100, chips=8), duration_s=3_600.0), 1.0)
    lab.pend("second", spec(half, duration_s=36_000.0), 2.0)
    answer = lab.plan()
    assert [reservation.job for reservation in answer.reservations] == ["first", "second"]
    wait = next(wait for wait in answer.waits if wait.jobs == ("second",))
    assert wait.reason == "alpha: needs 1 x 4 h100, 4 free of 8 (4 kept for jobs before it)"
    assert [(each.fits, each.verdict) for each in wait.considered] == [(False, wait.reason.removeprefix("alpha: "))]
