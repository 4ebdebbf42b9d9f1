"""Silent corruption: replicas that are not equal any more, who is blamed, and that no wrong step is kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Shard, ShareStored
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, GenerationResumedEvent, ReplicasDifferEvent
from mainspring.node.lead.watch.replicas import AGREED_MIN, TOLD_MAX, Divergence, Replicas
from mainspring.node.snapshots.replicas import SUMS, replica_sums
from tests.node.lead_agents import orders
from tests.node.lead_cluster import Cluster

OF = 7


def shares(*sums: Sequence[int], of: int = OF) -> list[ShareStored]:
    return [ShareStored(rank=rank, step=1, replicas_of=of, replicas=tuple(own)) for rank, own in enumerate(sums)]


def agreed(replicas: Replicas, ranks: int, times: int = AGREED_MIN) -> None:
    for number in range(times):
        assert replicas.compare(shares(*([(number, 0)] * ranks))) is None


# ---------------------------------------------------------------- verdicts


def test_the_rank_that_stands_alone_is_the_odd_one() -> None:
    replicas = Replicas()
    agreed(replicas, 4)
    assert replicas.compare(shares((5, 0), (5, 0), (6, 0), (5, 0))) == Divergence(ranks=(0, 1, 2, 3), odd=(2,))


@pytest.mark.parametrize("sums", [((5, 0), (6, 0)), ((5, 0), (5, 0), (6, 0), (6, 0)), ((1, 0), (2, 0), (3, 0))])
def test_nobody_is_odd_where_no_more_than_half_agree(sums: Sequence[Sequence[int]]) -> None:
    replicas = Replicas()
    agreed(replicas, len(sums))
    assert replicas.compare(shares(*sums)) == Divergence(ranks=tuple(range(len(sums))))


def test_what_was_not_equal_before_says_nothing_and_spoils_nothing_else() -> None:
    replicas = Replicas()
    for number in range(10):
        assert replicas.compare(shares((number, 1), (-number, 1), (number, 1))) is None, "each rank's own statistics"
    assert replicas.compare(shares((1, 1), (2, 3), (1, 1))) == Divergence(ranks=(0, 1, 2), odd=(1,))


def test_what_was_equal_once_only_says_nothing() -> None:
    replicas = Replicas()
    agreed(replicas, 3, AGREED_MIN - 1)
    assert replicas.compare(shares((5, 0), (6, 0), (5, 0))) is None


def test_what_differs_again_and_again_is_no_fault_of_a_machine() -> None:
    replicas = Replicas()
    found = []
    for _ in range(TOLD_MAX + 2):
        agreed(replicas, 3)
        found.append(replicas.compare(shares((5, 0), (6, 0), (5, 0))))
    assert [one is not None for one in found] == [True] * TOLD_MAX + [False] * 2


def test_ranks_that_have_other_things_are_not_compared() -> None:
    replicas = Replicas()
    for number in range(5):
        mixed = [*shares((number, 0), (number, 0)), *shares((-number, 0), (-number, 0), of=8)]
        assert replicas.compare(mixed) is None
        assert replicas.compare(shares((number, 1), of=9)) is None, "nobody else has it"
        assert replicas.compare([ShareStored(rank=0, step=1), ShareStored(rank=1, step=1)]) is None


# ---------------------------------------------------------------- sums


def shard(path: str, crc: int, *, once: bool = True, elsewhere: bool = True, start: int = 0) -> Shard:
    return Shard(
        path=path,
        dtype="float32",
        global_shape=(8,),
        start=(start,),
        shape=(4,),
        offset=0,
        size_bytes=16,
        crc32c=crc,
        once=once,
        elsewhere=elsewhere,
    )


def test_sums_are_of_what_others_have_too_whoever_stores_it_and_wherever_it_lies() -> None:
    one = [shard("w", 5), shard("b", 6, once=False)]
    other = [shard("b", 6, elsewhere=False, once=False), shard("w", 5, once=False), shard("own", 9, elsewhere=False)]
    assert replica_sums(one) == replica_sums(other)
    assert len(replica_sums(one)[1]) == SUMS
    assert replica_sums([shard("own", 9, elsewhere=False)]) == (0, ())


def test_another_byte_changes_one_sum_and_another_block_what_they_are_of() -> None:
    names, sums = replica_sums([shard("w", 5), shard("b", 6)])
    same, others = replica_sums([shard("w", 4), shard("b", 6)])
    assert same == names
    assert sum(one != other for one, other in zip(sums, others, strict=True)) == 1
    assert replica_sums([shard("w", 5, start=4), shard("b", 6)])[0] != names
    assert replica_sums([shard("w", 5)])[0] != names


# ---------------------------------------------------------------- the lead


def saved(cluster: Cluster, count: int) -> int:
    """Lets so many steps become durable, and returns the newest."""
    cluster.until(CheckpointDurableEvent.kind, 300.0, count)
    return int(cluster.of_kind(CheckpointDurableEvent.kind)[-1]["step"])


def wrong(cluster: Cluster, *agents: int) -> None:
    cluster.attempt.programs.wrong = dict.fromkeys(agents, cluster.lead.step)


def test_node_that_computes_wrongly_is_left_and_the_attempt_goes_back_to_the_last_step_that_was_right() -> None:
    cluster = Cluster(1, orders(4, spares=1))
    last = saved(cluster, AGREED_MIN)
    wrong(cluster, 2)
    cluster.until(ReplicasDifferEvent.kind, 60.0)
    (told,) = cluster.of_kind(ReplicasDifferEvent.kind)
    assert (told["ranks"], told["odd"], told["nodes"]) == (3, "2", "n2")
    assert int(told["step"]) > last
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    step, source, ranks = cluster.resumed[-1]
    assert (step, source, ranks) == (last, "store", 3)
    assert saved(cluster, AGREED_MIN + 2) > int(told["step"])
    assert {agent.number for agent, _ in cluster.living} == {0, 1, 3}, "the spare has its place"
    assert len(cluster.of_kind(ReplicasDifferEvent.kind)) == 1


def test_step_on_which_ranks_do_not_agree_never_becomes_durable() -> None:
    cluster = Cluster(2, orders(4, spares=1))
    saved(cluster, AGREED_MIN)
    wrong(cluster, 1)
    cluster.until(ReplicasDifferEvent.kind, 60.0)
    saved(cluster, AGREED_MIN + 3)
    odd = int(cluster.of_kind(ReplicasDifferEvent.kind)[0]["step"])
    generations = {manifest.step: manifest.generation for manifest in cluster.manifests}
    assert generations.get(odd, 2) == 2, "it was computed anew"


def test_of_two_ranks_nobody_is_blamed_and_both_go_back() -> None:
    cluster = Cluster(3, orders(2))
    last = saved(cluster, AGREED_MIN)
    wrong(cluster, 1)
    cluster.until(ReplicasDifferEvent.kind, 60.0)
    (told,) = cluster.of_kind(ReplicasDifferEvent.kind)
    assert (told["odd"], told["nodes"]) == ("", "")
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    assert cluster.resumed[-1] == (last, "store", 2)
    saved(cluster, 3 * AGREED_MIN + TOLD_MAX)
    assert len(cluster.of_kind(ReplicasDifferEvent.kind)) <= TOLD_MAX, "in the end it is taken for the program's own"


def test_node_that_is_wrong_again_where_no_other_is_left_ends_the_attempt_for_another_place() -> None:
    cluster = Cluster(4, orders(3))
    saved(cluster, AGREED_MIN)
    wrong(cluster, 2)
    assert cluster.run(600.0, until=lambda: cluster.done), "\n".join(cluster.trace[-20:])
    assert cluster.lead.outcome is AttemptState.LOST
    assert "rank 2 has other replicas than 2 others have" in cluster.lead.reason
    assert "again on agent 2" in cluster.lead.reason


def test_program_whose_replicas_were_never_equal_is_let_be() -> None:
    cluster = Cluster(5, orders(3))
    cluster.attempt.programs.wrong = {1: 0}
    saved(cluster, 3 * AGREED_MIN)
    assert cluster.of_kind(ReplicasDifferEvent.kind) == []
    assert len(cluster.resumed) == 1


def test_event_says_who_stands_alone_or_that_nobody_knows() -> None:
    known = ReplicasDifferEvent(generation=2, step=40, ranks=3, odd="2", nodes="n2")
    assert str(known) == "the replicas of 3 ranks are not equal at step 40: those of rank 2 on n2 stand alone"
    unknown = ReplicasDifferEvent(generation=2, step=40, ranks=2, odd="", nodes="")
    assert str(unknown) == "the replicas of 2 ranks are not equal at step 40, and nothing tells which are right"
