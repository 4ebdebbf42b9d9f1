"""What placements break: where jobs go so that those who usually come still find room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.ids import ChipName, JobId
from mainspring.domain.job import ANY_CHIP, Option
from mainspring.planner import PendingJob, Snapshot, SnapshotBuilder
from mainspring.planner.facts.snapshot import UNCOUNTED
from mainspring.planner.place.fragmentation import Fragmentation, Need, State
from mainspring.planner.place.kinds import capacity

from .making import H100, cluster, spec

A100 = ChipName("a100")
H100_ROW = 1  # Chips are in name order.


def snapshot(*options: Option) -> Snapshot:
    """Returns two idle clusters, of a100 and of h100, to which one job of each option has come."""
    builder = SnapshotBuilder()
    builder.set_inventory(cluster("alpha", chip="a100", cpus=96, memory_gib=1_024), answering=True)
    builder.set_inventory(cluster("beta", chip="h100", cpus=96, memory_gib=1_024), answering=True)
    for index, option in enumerate(options):
        builder.add_pending(PendingJob(job=JobId(f"job-{index}"), spec=spec(option), submitted_s=0.0))
    return builder.build()


def free(
    whole: int, *shares: int, cores: float | None = None, gib: float | None = None, chip: int = H100_ROW, chips: int = 8
) -> State:
    """Returns what is free on a node."""
    return State(
        chip=chip,
        chips=chips,
        whole=whole,
        shares=tuple(sorted(shares)),
        cpu_milli=UNCOUNTED if cores is None else round(1_000 * cores),
        memory_mib=UNCOUNTED if gib is None else round(1_024 * gib),
    )


def best(fragmentation: Fragmentation, need: Need, *states: State) -> State:
    """Returns the state on which a unit costs least."""
    return states[int(fragmentation.scores(states, need).argmin())]


needs = st.one_of(
    st.builds(Need, whole=st.integers(0, 4), cpu_milli=st.integers(0, 20_000), memory_mib=st.integers(0, 9_000)),
    st.builds(Need, share_milli=st.integers(1, 999), cpu_milli=st.integers(0, 20_000)),
).filter(lambda need: bool(need.whole or need.share_milli or need.cpu_milli))
states = st.builds(
    State,
    chip=st.integers(0, 1),
    chips=st.just(8),
    whole=st.integers(0, 4),
    shares=st.lists(st.integers(1, 999), max_size=4).map(lambda shares: tuple(sorted(shares))),
    cpu_milli=st.one_of(st.just(UNCOUNTED), st.integers(0, 96_000)),
    memory_mib=st.one_of(st.just(UNCOUNTED), st.integers(0, 40_000)),
)
mixes = st.lists(
    st.sampled_from(
        [
            Option(chip=H100, chips=8),
            Option(chip=H100, chips=1, cpus=12, memory_gib=4),
            Option(chip=ANY_CHIP, chips=0.3, cpus=2),
            Option(chip=A100, chips=0.47),
            Option(chip=ANY_CHIP, chips=64, replicas=4),
            Option(chip=ANY_CHIP, chips=0, cpus=8),
        ]
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(mixes, st.lists(states, max_size=6), needs)
def test_scores_are_finite_exactly_where_a_unit_has_room(mix: list[Option], nodes: list[State], need: Need) -> None:
    scores = Fragmentation(snapshot(*mix)).scores(nodes, need)
    assert np.isfinite(scores).tolist() == [capacity(state, need) > 0 for state in nodes]
    assert not np.isnan(scores).any()


@settings(max_examples=40)
@given(mixes, st.lists(states, max_size=6), needs)
def test_scores_of_a_state_do_not_depend_on_the_others(mix: list[Option], nodes: list[State], need: Need) -> None:
    fragmentation = Fragmentation(snapshot(*mix))
    assert fragmentation.scores(nodes, need).tolist() == [fragmentation.scores([state], need).item() for state in nodes]


@settings(max_examples=60)
@given(mixes, states, needs, st.integers(1, 3))
def test_after_takes_exactly_what_the_units_need(mix: list[Option], state: State, need: Need, units: int) -> None:
    if capacity(state, need) < units:
        return
    taken = Fragmentation(snapshot(*mix)).after(state, need, units)
    left = taken.state
    used = 1_000 * (state.whole - left.whole) + sum(state.shares) - sum(left.shares)
    assert used == units * (1_000 * need.whole + need.share_milli)
    assert list(left.shares) == sorted(left.shares)
    assert left.cpu_milli == (UNCOUNTED if state.cpu_milli == UNCOUNTED else state.cpu_milli - units * need.cpu_milli)
    assert len(taken.opened) == (units if need.share_milli else 0)
    assert all(milli >= need.share_milli for milli in taken.opened)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_scores_without_a_known_mix_are_best_fit(one: int, other: int, whole: int) -> None:
    fragmentation = Fragmentation(snapshot())
    scores = fragmentation.scores([free(one), free(other)], Need(whole=whole))
    if min(one, other) >= whole:
        assert (scores[0] < scores[1]) == (one < other)


def test_share_goes_to_the_chip_whose_remainder_others_can_use() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, chips=0.3), Option(chip=H100, chips=0.5)))
    # The tightest chip would be left with 200 thousandths that nobody asks for.
    assert fragmentation.after(free(1, 500, 600), Need(share_milli=300)).opened == (600,)
    assert best(fragmentation, Need(share_milli=300), free(0, 500), free(0, 600)) == free(0, 600)


def test_share_breaks_a_whole_chip_only_when_the_pieces_fit_better() -> None:
    fragmentation = Fragmentation(snapshot(*[Option(chip=H100)] * 3, Option(chip=H100, chips=0.4)))
    assert fragmentation.after(free(4, 400), Need(share_milli=400)).opened == (400,)
    assert fragmentation.after(free(4), Need(share_milli=400), units=2).opened == (1_000, 600)


def test_job_with_few_cores_goes_where_cores_are_short() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, cpus=4), Option(chip=H100, cpus=20)))
    rich, poor = free(4, cores=90), free(4, cores=30)
    assert best(fragmentation, Need(whole=1, cpu_milli=4_000), rich, poor) == poor
    assert best(fragmentation, Need(whole=1, cpu_milli=20_000), rich, poor) == rich


def test_job_with_little_memory_goes_where_memory_is_short() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, memory_gib=40), Option(chip=H100, memory_gib=200)))
    rich, poor = free(4, gib=900), free(4, gib=300)
    assert best(fragmentation, Need(whole=1, memory_mib=40 * 1_024), rich, poor) == poor
    assert best(fragmentation, Need(whole=1, memory_mib=200 * 1_024), rich, poor) == rich


def test_cores_are_missed_long_before_a_job_no_longer_fits() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, cpus=10)))
    need = Need(cpu_milli=30_000)
    # After it seven chips have 66 cores, where each comes with ten: any one job would still fit.
    cost = fragmentation.scores([free(7, cores=96)], need).item()
    assert cost > 0.1
    assert fragmentation.scores([free(2, cores=96)], need).item() < 0.01


def test_job_without_chips_goes_where_no_chip_needs_the_cores() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, cpus=12)))
    full, idle = free(0, cores=60), free(8, cores=96)
    assert best(fragmentation, Need(cpu_milli=8_000), idle, full) == full


def test_uncounted_cores_count_as_plenty() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, cpus=12, memory_gib=64)))
    need = Need(whole=1, cpu_milli=12_000, memory_mib=64 * 1_024)
    uncounted, plenty = fragmentation.scores([free(4), free(4, cores=1e6, gib=1e6)], need).tolist()
    assert uncounted == pytest.approx(plenty, abs=1e-6)


def test_single_chip_goes_to_a_node_broken_already() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, chips=8), Option(chip=H100, chips=1)))
    assert best(fragmentation, Need(whole=1), free(8), free(7)) == free(7)
    # Where fours come, a pair keeps a node's four together.
    fours = Fragmentation(snapshot(Option(chip=H100, chips=4), Option(chip=H100, chips=1)))
    assert best(fours, Need(whole=2), free(4), free(6)) == free(6)


def test_job_that_takes_any_chip_leaves_the_wanted_type_alone() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, chips=2)))
    assert best(fragmentation, Need(whole=1), free(1), free(8, chip=0)) == free(8, chip=0)


def test_replica_larger_than_a_node_counts_as_whole_nodes() -> None:
    fragmentation = Fragmentation(snapshot(Option(chip=H100, chips=64), Option(chip=H100)))
    assert best(fragmentation, Need(whole=1), free(8), free(7)) == free(7)


def test_mix_follows_what_comes_most() -> None:
    thirds = [Option(chip=H100, chips=0.33)] * 30
    fragmentation = Fragmentation(snapshot(*thirds, Option(chip=H100, chips=0.5)))
    # Two thirds of a chip are worth more there than a half: the half goes where it breaks no third.
    assert fragmentation.after(free(0, 660, 830), Need(share_milli=500)).opened == (830,)


def test_cores_that_lack_anyway_are_taken_where_the_lack_is_least_deep() -> None:
    # Half the chips come with 2 cores, half with 22: where half the cores lack, most jobs that ask for 2 still fit.
    fragmentation = Fragmentation(snapshot(Option(chip=H100, cpus=2), Option(chip=H100, cpus=22)))
    shallow, deep = fragmentation.scores([free(8, cores=64), free(8, cores=8)], Need(cpu_milli=4_000)).tolist()
    assert shallow < 0.3 * deep
