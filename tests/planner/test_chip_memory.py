"""Memory of a chip as a need: which nodes are candidates, what is told of the others, what could never run."""

from __future__ import annotations

from dataclasses import replace

from mainspring.domain.answers import AddNodes, WhatIf
from mainspring.domain.fleet import Offer
from mainspring.domain.ids import ChipName
from mainspring.domain.job import ANY_CHIP, Option, Tier
from mainspring.domain.plan import Limit
from mainspring.planner import plan
from mainspring.planner.explain import ChangeKind, explain
from mainspring.planner.facts.policy import Budget
from mainspring.planner.feasible import feasible
from mainspring.planner.whatif import changed

from .making import H100, NOW_S, Lab, cluster, grant, only_start, only_wait, spec, started, why

A100 = ChipName("a100")


def big(replicas: int = 1, *, chips: float = 1.0, chip_memory_gib: float = 60.0) -> Option:
    return Option(chip=A100, chips=chips, replicas=replicas, chip_memory_gib=chip_memory_gib)


def nodes_of(lab: Lab) -> list[str]:
    return sorted(node for start in lab.plan().starts for part in start.grants for node in part.nodes)


def test_gang_stands_on_nodes_whose_chips_have_enough_memory_alone() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", chip_memory_gib=(39.5, 79.6)))
    lab.pend("job", spec(big(2, chips=8)))
    assert nodes_of(lab) == ["n001", "n003"]


def test_chip_that_has_exactly_as_much_as_is_asked_has_enough() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", nodes=2, chip_memory_gib=(59.999, 60.0)))
    lab.pend("job", spec(big(chips=8)))
    assert nodes_of(lab) == ["n001"]


def test_part_of_a_chip_is_of_one_that_has_enough_memory() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", nodes=2, chip_memory_gib=(39.5, 79.6)))
    lab.pend("job", spec(big(3, chips=0.5)))
    assert nodes_of(lab) == ["n001"]


def test_job_that_may_run_on_any_chip_is_on_none_of_too_little_memory_nor_on_cores() -> None:
    lab = Lab().clusters(
        cluster("cores", chip="cpu", price=0.1),
        cluster("small", chip="l4", price=0.2),
        cluster("large", chip="h100", price=9.0),
    )
    lab.pend("job", spec(Option(chip=ANY_CHIP, chip_memory_gib=40.0)))
    assert only_start(lab.plan()).grants[0].cluster == "large"


def test_nodes_that_do_not_say_have_what_is_published_of_their_chip() -> None:
    lab = Lab().clusters(cluster("alpha", chip="h100"), cluster("beta", chip="h200", price=4.0))
    lab.pend("job", spec(*(Option(chip=ChipName(chip), chip_memory_gib=100.0) for chip in ("h100", "h200"))))
    assert only_start(lab.plan()).grants[0].cluster == "beta"


def test_chips_that_nobody_knows_count_as_enough_and_the_words_say_so() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2, chips=1, chip="gaudi", chip_memory_gib=(None, 32.0)))
    lab.pend("first", spec(Option(chip=ChipName("gaudi"), chip_memory_gib=64.0)))
    assert nodes_of(lab) == ["n000"]
    lab.act(lab.plan())
    lab.pend("second", spec(Option(chip=ChipName("gaudi"), chip_memory_gib=64.0)))
    assert only_wait(lab.plan()).reason == (
        "alpha: needs 1 gaudi of 64 GiB or more, 0 free of 1; 1 of 2 nodes with gaudi have 64 GiB a chip, "
        "the others 32 GiB at most; nobody has said how much a chip of 1 of 2 nodes with gaudi has"
    )


def test_job_whose_chips_are_busy_is_told_how_many_nodes_have_the_memory() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", nodes=3, chip_memory_gib=(39.5, 39.5, 79.6)))
    lab.live("holder", spec(Option(chip=A100, replicas=8)), grant("alpha", {"n002": 8}))
    lab.pend("job", spec(big(4)))
    wait = only_wait(lab.plan())
    assert (wait.limit, wait.short_by) == (Limit.CAPACITY, 4.0)
    assert wait.reason == (
        "alpha: needs 4 a100 of 60 GiB or more, 0 free of 8; 1 of 3 nodes with a100 have 60 GiB a chip, "
        "the others 39.5 GiB at most"
    )


def test_need_that_every_node_meets_adds_no_words_but_what_is_asked() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1))
    lab.live("holder", spec(Option(chip=H100, replicas=8)), grant("alpha", {"n000": 8}))
    lab.pend("job", spec(Option(chip=H100, replicas=4, chip_memory_gib=80.0)))
    assert only_wait(lab.plan()).reason == "alpha: needs 4 h100 of 80 GiB or more, 0 free of 8"


def test_job_displaces_none_from_chips_that_are_too_small_for_it() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", nodes=2, chip_memory_gib=(39.5, 79.6)))
    for name, node in (("on-small", "n000"), ("on-large", "n001")):
        held = spec(Option(chip=A100, replicas=8), tier=Tier.OPPORTUNISTIC)
        lab.live(name, held, grant("alpha", {node: 8}), durable_s=NOW_S - 1.0)
    lab.pend("job", spec(big(8), tier=Tier.CRITICAL))
    answer = lab.plan()
    assert [evict.job for evict in answer.evicts] == ["on-large"]
    lab.act(answer)
    assert nodes_of(lab) == ["n001"]


def test_reservation_is_for_chips_that_have_enough_memory() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", nodes=2, chip_memory_gib=(39.5, 79.6)))
    for name, node, duration_s in (("on-small", "n000", 60.0), ("on-large", "n001", 5_000.0)):
        held = spec(Option(chip=A100, replicas=8), duration_s=duration_s)
        lab.live(name, held, grant("alpha", {node: 8}), granted_s=NOW_S)
    lab.pend("job", spec(big(8), duration_s=60.0))
    assert only_wait(lab.plan()).start_s == (NOW_S + 5_000.0,)


def test_job_that_no_chip_has_the_memory_for_could_never_run_and_is_told_what_there_is() -> None:
    lab = Lab().clusters(
        cluster("alpha", chip="a100", chip_memory_gib=(39.5,)),
        cluster("beta", chip="h100"),
        cluster("gamma", chip="a100", chip_memory_gib=(20.0,)),
    )
    error = feasible(lab.snapshot(), spec(big(8)))
    assert error is not None
    told = "its a100 have 39.5 GiB a chip at most, and 60 GiB are needed"
    assert error.got == "8 a100 of 60 GiB or more"
    assert error.wanted == f"the most that ever fits: nothing: on cluster alpha {told}"
    lab.pend("job", spec(big()))
    wait = only_wait(lab.plan())
    assert wait.limit is Limit.IMPOSSIBLE
    verdicts = {each.cluster: each.verdict for each in wait.considered}
    assert verdicts == {"alpha": told, "beta": "has no a100", "gamma": told.replace("39.5", "20")}


def test_job_that_another_option_can_run_is_possible() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", chip_memory_gib=(39.5,)), cluster("beta", chip="h100"))
    assert feasible(lab.snapshot(), spec(big(), Option(chip=H100, chip_memory_gib=60.0))) is None


def test_gang_larger_than_the_nodes_with_the_memory_is_told_how_many_they_are() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", chip_memory_gib=(39.5, 39.5, 79.6)))
    error = feasible(lab.snapshot(), spec(big(16)))
    assert error is not None
    assert error.wanted == "the most that ever fits: 8 a100 of 60 GiB or more on cluster alpha"
    lab.pend("job", spec(big(16)))
    assert why(lab.plan(), "job").reason == (
        "alpha: needs 16 a100 of 60 GiB or more, at most 8 could ever fit; 1 of 4 nodes with a100 have 60 GiB a chip, "
        "the others 39.5 GiB at most"
    )


def test_nodes_with_too_little_memory_are_not_ordered() -> None:
    small = Offer(name="small", chip=A100, chips=8, nodes_max=9, lead_time_s=60.0, dollars_per_chip_hour=1.0)
    large = replace(small, name="large", dollars_per_chip_hour=2.0, chip_memory_gib=80.0)
    lab = Lab().clusters(replace(cluster("cloud", chip="h100", nodes=1), offers=(large, small)))
    lab.pend("job", spec(big(chips=8)))
    assert [each.offer for each in lab.plan().provisions] == ["large"]
    assert feasible(lab.snapshot(), spec(big(chip_memory_gib=100.0))) is not None
    assert feasible(lab.snapshot(), spec(big(chip_memory_gib=80.0))) is None


def test_waiting_job_is_told_of_another_chip_only_where_that_has_the_memory() -> None:
    lab = Lab().clusters(
        cluster("alpha", chip="h100", nodes=1), cluster("beta", chip="l4"), cluster("gamma", chip="h200")
    )
    lab.live("holder", spec(Option(chip=H100, replicas=8)), grant("alpha", {"n000": 8}))
    lab.pend("job", spec(Option(chip=H100, replicas=4, chip_memory_gib=64.0)))
    found = explain(lab.snapshot(), lab.snapshot().pending.jobs[0], lab.policy, NOW_S, Budget())
    assert [each.text for each in found if each.kind is ChangeKind.CHIP] == ["accepts h200"]


def test_nodes_that_are_added_in_a_what_if_have_chips_like_those_there_are() -> None:
    lab = Lab().clusters(cluster("alpha", chip="a100", nodes=2, chip_memory_gib=(39.5, 79.6)))
    lab.pend("job", spec(big(2, chips=8)))
    assert only_wait(lab.plan()).limit is Limit.IMPOSSIBLE
    more = WhatIf(add_nodes=(AddNodes(cluster=lab.snapshot().clusters.names[0], nodes=2),))
    made = plan(changed(lab.snapshot(), more, NOW_S), lab.policy, NOW_S, Budget())
    assert started(made) == ["job"]
