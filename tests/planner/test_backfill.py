"""The future of free room: when gangs will stand, what is kept for them, and who may use it until then."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isinf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.planner.making import H100, NOW_S, ONE, Lab, cluster, grant, spec

from mainspring.domain.job import JobSpec, Option
from mainspring.planner.facts.policy import Budget, Policy
from mainspring.planner.facts.snapshot import RoleShape, Shape, Snapshot
from mainspring.planner.future.backfill import STOPPING_S, Profile, Reserved
from mainspring.planner.place.candidates import CandidatePlacement, menu
from mainspring.planner.place.free_capacity import FreeCapacity

NODE = Option(chip=H100, chips=8)


class Future:
    """A room and its profile for the facts of a lab."""

    def __init__(self, lab: Lab, budget: Budget | None = None) -> None:
        self.snapshot: Snapshot = lab.snapshot()
        self.room = FreeCapacity(self.snapshot)
        self.profile = Profile(self.room, lab.now_s, budget or Budget())
        self.reservations = 0

    def site(self, of: JobSpec) -> CandidatePlacement:
        """Returns the best site of a spec."""
        return self.sites(of)[0]

    def sites(self, of: JobSpec) -> tuple[CandidatePlacement, ...]:
        """Returns the sites of a spec, none when it can never run."""
        roles = tuple(RoleShape(name=role.name, options=role.options) for role in of.roles)
        return menu(self.room, Policy(), Shape(roles=roles)).sites

    def earliest(self, *options: Option) -> Reserved | None:
        """Returns when a job of one role stands."""
        return self.profile.earliest(self.site(spec(*options)))

    def start_s(self, *options: Option) -> float | None:
        """Returns how long after now a job of one role stands."""
        found = self.earliest(*options)
        return None if found is None else found.start_s - NOW_S

    def nodes(self, reserved: Reserved | None) -> list[str]:
        """Returns the nodes of a reservation, by role."""
        assert reserved is not None
        return [self.snapshot.nodes.names[row] for picked in reserved.picked for row in picked.rows.tolist()]

    def reserve(self, option: Option, duration_s: float) -> Reserved:
        """Reserves the earliest start, or the nodes that drain soonest, for a job of one role."""
        site = self.site(spec(option))
        found = self.profile.earliest(site) or self.profile.soonest(site)
        assert found is not None
        self.profile.reserve(site, found, duration_s, self.reservations)
        self.reservations += 1
        return found

    def kept(self) -> list[str]:
        """Returns the nodes kept for reservations."""
        return [self.snapshot.nodes.names[row] for row in np.flatnonzero(self.room.hold).tolist()]

    def estimates(self, *specs: JobSpec) -> list[float]:
        """Returns how long after now the pending jobs of a lab start, by the order they were submitted in."""
        rows = np.arange(len(self.snapshot.pending.jobs))
        found = self.profile.estimates(rows, [self.site(each) for each in specs])
        return [start_s - NOW_S for start_s in found.tolist()]


def busy(ends_s: dict[str, float], *, chips: int = 8, nodes: int = 4, rack_size: int = 2) -> Lab:
    """Returns a lab with a job on each node named, which ends so many seconds after now; 0 when nobody knows."""
    lab = Lab().clusters(cluster("alpha", nodes=nodes, rack_size=rack_size))
    for node, left_s in ends_s.items():
        of = spec(Option(chip=H100, chips=chips), duration_s=left_s)
        lab.live(f"on-{node}", of, grant("alpha", {node: chips}), granted_s=NOW_S)
    return lab


FULL = {"n000": 400.0, "n001": 100.0, "n002": 300.0, "n003": 200.0}


def test_earliest_gang_stands_when_enough_nodes_have_come_free() -> None:
    future = Future(busy(FULL))
    assert future.start_s(NODE) == 100.0
    assert future.start_s(Option(chip=H100, chips=8, replicas=3)) == 300.0
    assert sorted(future.nodes(future.earliest(Option(chip=H100, chips=8, replicas=3)))) == ["n001", "n002", "n003"]


def test_earliest_gang_in_one_rack_waits_for_the_rack() -> None:
    future = Future(busy(FULL))
    assert future.start_s(Option(chip=H100, chips=8, replicas=2)) == 200.0
    found = future.earliest(Option(chip=H100, chips=8, replicas=2, within="rack"))
    assert found is not None
    assert (found.start_s - NOW_S, future.nodes(found)) == (300.0, ["n002", "n003"])


def test_earliest_job_of_two_roles_stands_when_both_do() -> None:
    future = Future(busy(FULL))
    found = future.profile.earliest(future.site(spec(NODE, others={"sampler": Option(chip=H100, chips=4, replicas=3)})))
    assert found is not None
    assert found.start_s - NOW_S == 300.0
    assert len(set(future.nodes(found))) == 3


def test_earliest_counts_cores_and_memory_that_come_free() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, cpus=16, memory_gib=64))
    lab.live("cores", spec(Option(chip=H100, cpus=12), duration_s=50.0), grant("alpha", {"n000": 1}), granted_s=NOW_S)
    lab.live(
        "memory", spec(Option(chip=H100, memory_gib=60), duration_s=70.0), grant("alpha", {"n000": 1}), granted_s=NOW_S
    )
    future = Future(lab)
    assert future.start_s(Option(chip=H100, cpus=8)) == 50.0
    assert future.start_s(Option(chip=H100, cpus=8, memory_gib=32)) == 70.0


def test_earliest_shared_chip_is_whole_when_the_last_share_ends() -> None:
    half = Option(chip=H100, chips=0.5)
    lab = Lab().clusters(cluster("alpha", nodes=1, chips=1))
    for job, left_s in (("one", 50.0), ("two", 90.0)):
        own = grant("alpha", {"n000": 1})
        shared = type(own)(
            role=own.role, option=0, cluster=own.cluster, nodes=own.nodes, chip_milli=(500,), ranks=(1,), shared=((0,),)
        )
        lab.live(job, spec(half, duration_s=left_s), shared, granted_s=NOW_S)
    assert Future(lab).start_s(ONE) == 90.0


def test_earliest_with_unknown_ends_is_none_and_costs_no_probe() -> None:
    future = Future(busy(dict.fromkeys(FULL, 0.0)), Budget(probes_max=0))
    assert future.start_s(NODE) is None
    assert not future.profile.spent


def test_earliest_leaves_nodes_of_unknown_ends_out() -> None:
    future = Future(busy({**FULL, "n001": 0.0}))
    assert future.start_s(NODE) == 200.0
    assert future.start_s(Option(chip=H100, chips=8, replicas=4)) is None


def test_earliest_counts_what_stops_as_free_after_the_grace() -> None:
    lab = busy(FULL)
    lab.live("stopping", spec(NODE), grant("alpha", {"n000": 8}), stopping=True)
    lab.builder.remove_live(lab.snapshot().live.attempts[0])
    assert Future(lab).start_s(NODE) == STOPPING_S


def test_earliest_leaves_nodes_that_are_not_ready_out() -> None:
    lab = busy(FULL)
    lab.clusters(cluster("alpha", unready=(1,)))
    assert Future(lab).start_s(NODE) == 200.0


def test_earliest_counts_jobs_that_started_in_this_plan() -> None:
    future = Future(busy({"n000": 400.0}, nodes=2))
    choice = future.site(spec(NODE)).choices[0]
    assert choice.pool is not None
    picked = future.room.stand(choice.pool, 1)
    assert picked is not None
    future.room.take(choice.pool, picked)
    future.profile.started(choice.pool, picked, NOW_S + 70.0)
    assert future.start_s(NODE) == 70.0


def test_earliest_without_probes_says_that_they_ran_out() -> None:
    future = Future(busy(FULL), Budget(probes_max=1))
    assert future.start_s(NODE) is None
    assert future.profile.spent


def test_earliest_not_before_a_time_starts_no_sooner() -> None:
    future = Future(busy(FULL))
    found = future.profile.earliest(future.site(spec(NODE)), not_before_s=NOW_S + 150.0)
    assert found is not None
    assert found.start_s == NOW_S + 150.0


def test_second_reservation_starts_when_the_first_has_run() -> None:
    future = Future(busy({"n000": 100.0}, nodes=1))
    assert future.reserve(NODE, 50.0).start_s == NOW_S + 100.0
    assert future.reserve(NODE, 70.0).start_s == NOW_S + 150.0
    assert future.reserve(NODE, inf).start_s == NOW_S + 220.0
    assert future.earliest(NODE) is None


def test_second_reservation_shares_a_node_that_has_room_for_both() -> None:
    future = Future(busy({"n000": 100.0}, nodes=1))
    half = Option(chip=H100, chips=4)
    starts_s = [future.reserve(half, 50.0).start_s - NOW_S for _ in range(3)]
    assert starts_s == [100.0, 100.0, 150.0]


def test_reservation_keeps_its_node_but_for_jobs_that_end_before() -> None:
    future = Future(busy({"n000": 100.0}, chips=4, nodes=1))
    choice = future.site(spec(ONE)).choices[0]
    assert choice.pool is not None
    future.reserve(NODE, 50.0)
    assert future.kept() == ["n000"]
    assert future.profile.holds_open(100.5) is None
    assert future.profile.holds_open(inf) is None
    assert future.room.stand(choice.pool, 1) is None
    opened = future.profile.holds_open(100.0)
    assert future.room.stand(choice.pool, 1, opened) is not None


def test_reservation_that_leaves_enough_keeps_no_node() -> None:
    # Four chips are free, four more come free: a job of four is not in the way of a long one that starts now.
    future = Future(busy({"n000": 100.0}, chips=4, nodes=1))
    site = future.site(spec(Option(chip=H100, chips=4)))
    found = future.profile.earliest(site, not_before_s=NOW_S + 100.0)
    assert found is not None
    future.profile.reserve(site, found, 50.0, 0)
    assert future.kept() == []
    assert future.start_s(Option(chip=H100, chips=4)) == 0.0
    assert future.start_s(Option(chip=H100, chips=5)) == 150.0


def test_reservations_on_one_node_open_it_to_what_ends_before_both() -> None:
    future = Future(busy({"n000": 100.0}, chips=4, nodes=1))
    small = future.site(spec(Option(chip=H100, chips=4)))
    future.reserve(NODE, 50.0)
    later = future.profile.earliest(small, not_before_s=NOW_S + 150.0)
    assert later is not None
    future.profile.reserve(small, Reserved(start_s=NOW_S + 60.0, picked=later.picked), 10.0, 1)
    assert future.profile.holds_open(60.0) is not None
    assert future.profile.holds_open(61.0) is None


def test_no_job_is_given_room_that_later_reservations_need_together() -> None:
    future = Future(busy({"n000": 0.0}, chips=4, nodes=1))
    pair = Option(chip=H100, chips=2)
    site = future.site(spec(pair))
    choice = site.choices[0]
    assert choice.pool is not None
    picked = future.room.stand(choice.pool, 1)
    assert picked is not None
    for reservation, (start_s, duration_s) in enumerate([(20.0, 130.0), (40.0, 110.0)]):
        reserved = Reserved(start_s=NOW_S + start_s, picked=(picked,))
        future.profile.reserve(site, reserved, duration_s, reservation)
    assert future.start_s(pair) == 150.0


def test_soonest_keeps_the_nodes_that_are_most_free() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=4, rack_size=2))
    for node, chips in {"n000": 1, "n001": 7, "n002": 3, "n003": 2}.items():
        lab.live(node, spec(Option(chip=H100, chips=chips)), grant("alpha", {node: chips}))
    future = Future(lab)
    pair = Option(chip=H100, chips=8, replicas=2)
    found = future.profile.soonest(future.site(spec(pair)))
    assert found is not None
    assert isinf(found.start_s)
    assert sorted(future.nodes(found)) == ["n000", "n003"]
    together = future.site(spec(Option(chip=H100, chips=8, replicas=2, within="rack")))
    assert sorted(future.nodes(future.profile.soonest(together))) == ["n002", "n003"]


def test_soonest_leaves_kept_nodes_to_others_and_nobody_uses_its_own() -> None:
    future = Future(busy(dict.fromkeys(FULL, 0.0), chips=4))
    future.reserve(Option(chip=H100, chips=8, replicas=3), inf)
    assert len(future.kept()) == 3
    assert future.profile.holds_open(1.0) is None
    found = future.profile.soonest(future.site(spec(NODE)))
    assert set(future.nodes(found)).isdisjoint(future.kept())
    assert future.profile.soonest(future.site(spec(Option(chip=H100, chips=8, replicas=2)))) is None


def test_soonest_counts_what_others_use_as_busy() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2, foreign={0: 5_000}))
    lab.live("busy", spec(Option(chip=H100, chips=4)), grant("alpha", {"n001": 4}))
    future = Future(lab)
    assert future.nodes(future.profile.soonest(future.site(spec(NODE)))) == ["n001"]


# ---------------------------------------------------------------- estimates


def pending(lab: Lab, *specs: JobSpec) -> Lab:
    """Adds jobs that wait, in this order."""
    for index, each in enumerate(specs):
        lab.pend(f"job-{index:06}", each, submitted_s=float(index))
    return lab


def asking(chips: int, duration_s: float) -> JobSpec:
    """Returns the spec of a job that takes chips for a while."""
    return spec(Option(chip=H100, replicas=chips), duration_s=duration_s)


def test_estimates_take_turns_as_chips_come_free() -> None:
    jobs = (asking(16, 50.0), asking(8, 10.0), asking(8, 300.0), asking(8, 200.0))
    assert Future(pending(busy(FULL), *jobs)).estimates(*jobs) == [200.0, 100.0, 250.0, 250.0]


def test_estimates_stand_behind_reservations() -> None:
    jobs = (asking(8, 50.0), asking(8, 10.0))
    future = Future(pending(busy({"n000": 100.0}, nodes=1), *jobs))
    future.reserve(NODE, 1_000.0)
    assert future.estimates(*jobs) == [1_100.0, 1_150.0]


def test_estimates_are_unknown_when_ends_are() -> None:
    jobs = (asking(8, 0.0), asking(8, 10.0))
    assert Future(pending(busy(dict.fromkeys(FULL, 0.0)), *jobs)).estimates(*jobs) == [inf, inf]
    assert Future(pending(busy({"n000": 100.0}, nodes=1), *jobs)).estimates(*jobs) == [100.0, inf]


def test_estimates_of_jobs_without_a_site_are_unknown() -> None:
    future = Future(pending(busy(FULL), asking(8, 10.0)))
    assert isinf(future.profile.estimates(np.array([0]), [None])[0])


def test_estimates_of_cores_alone_count_cores() -> None:
    cores = Option(chip=H100, chips=0, cpus=8)
    lab = Lab().clusters(cluster("alpha", nodes=1, cpus=16))
    lab.live("busy", spec(Option(chip=H100, cpus=16), duration_s=80.0), grant("alpha", {"n000": 1}), granted_s=NOW_S)
    jobs = tuple(spec(cores, duration_s=10.0) for _ in range(3))
    assert Future(pending(lab, *jobs)).estimates(*jobs) == [80.0, 80.0, 90.0]


def test_estimates_of_whole_nodes_wait_until_nodes_are_whole() -> None:
    # Half of every node comes free at once: eight chips, but no node.
    lab = Lab().clusters(cluster("alpha", nodes=2))
    for node in ("n000", "n001"):
        for half, left_s in enumerate((50.0, 500.0)):
            of = spec(Option(chip=H100, chips=4), duration_s=left_s)
            lab.live(f"{node}-{half}", of, grant("alpha", {node: 4}), granted_s=NOW_S)
    whole, quarter = spec(NODE, duration_s=100.0), asking(2, 100.0)
    assert Future(pending(lab, whole, whole, whole)).estimates(whole, whole, whole) == [500.0, 500.0, 600.0]
    jobs = (quarter, whole, quarter)
    assert Future(pending(lab, *jobs)).estimates(*jobs) == [50.0, 500.0, 50.0]


def test_estimates_let_small_jobs_use_up_what_is_left_of_broken_nodes_first() -> None:
    lab = busy({"n000": 50.0, "n001": 50.0}, nodes=3)
    lab.live("broken", spec(Option(chip=H100, chips=4), duration_s=50.0), grant("alpha", {"n002": 4}), granted_s=NOW_S)
    lab.live("stays", spec(Option(chip=H100, chips=4)), grant("alpha", {"n002": 4}), granted_s=NOW_S)
    small, whole = asking(4, 100.0), spec(NODE, duration_s=100.0)
    for jobs, starts_s in (((small, whole, whole), [50.0] * 3), ((small, small, whole, whole), [50.0] * 3 + [150.0])):
        assert Future(pending(lab, *jobs)).estimates(*jobs) == starts_s


def test_estimates_let_equal_jobs_that_started_together_end_one_after_the_other() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=8))
    past = spec(NODE)
    for ran_s in (100.0, 200.0, 300.0, 400.0, 500.0):
        lab.builder.durations.observe(past, ran_s)
    for row in range(8):
        lab.live(f"on-{row}", past, grant("alpha", {f"n{row:03}": 8}), granted_s=NOW_S)
    jobs = (spec(NODE, duration_s=1_000.0),) * 8
    found = Future(pending(lab, *jobs)).estimates(*jobs)
    assert found == sorted(set(found))
    assert 100.0 < found[0] < 250.0 < found[4] < 350.0 < found[7] < 700.0


@pytest.mark.slow
def test_estimates_far_back_follow_the_rate_at_which_the_queue_drains() -> None:
    # 3,000 jobs of alternating length, so that no two in a row are alike; 32 chips do 32 chip-seconds in a second.
    jobs = tuple(asking(8, 100.0 if index % 2 else 300.0) for index in range(3_000))
    found = Future(pending(busy(FULL), *jobs)).estimates(*jobs)
    assert all(earlier <= later for earlier, later in pairwise(found[1_000:]))
    assert found[-1] == pytest.approx(3_000 * 200.0 / 4, rel=0.05)


def _listed(free: dict[float, int], jobs: list[tuple[int, float]]) -> list[float]:
    """Returns starts of a plain list scheduler: each job at the first time after 0 with chips for all its run."""
    starts: list[float] = []
    for chips, duration_s in jobs:
        start = next(
            (
                time
                for time in sorted(free)
                if time > 0
                and all(at <= time or at >= time + duration_s or left >= chips for at, left in free.items())
                and free[time] >= chips
            ),
            inf,
        )
        starts.append(start)
        if start < inf:
            before = max(time for time in free if time <= start + duration_s)
            free.setdefault(start + duration_s, free[before])
            for time in free:
                if start <= time < start + duration_s:
                    free[time] -= chips
    return starts


@pytest.mark.slow
@given(
    ends_s=st.lists(st.integers(1, 9).map(lambda tens: tens * 10.0), min_size=1, max_size=4),
    jobs=st.lists(st.tuples(st.integers(1, 32), st.integers(1, 30).map(float)), min_size=1, max_size=12),
)
@settings(max_examples=60)
def test_estimates_of_a_small_queue_are_those_of_a_list_scheduler(
    ends_s: list[float], jobs: list[tuple[int, float]]
) -> None:
    lab = busy({f"n{row:03}": left_s for row, left_s in enumerate(ends_s)}, nodes=len(ends_s))
    free = {0.0: 0, **{time: 8 * sum(end <= time for end in ends_s) for time in ends_s}}
    specs = tuple(asking(chips, duration_s) for chips, duration_s in jobs if chips <= 8 * len(ends_s))
    known = [(chips, duration_s) for chips, duration_s in jobs if chips <= 8 * len(ends_s)]
    assert Future(pending(lab, *specs)).estimates(*specs) == _listed(free, known)


# ---------------------------------------------------------------- properties

_ENDS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), min_size=2, max_size=6)
_GANGS = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.sampled_from([None, "rack"]), st.integers(1, 50)),
    min_size=1,
    max_size=6,
)


def _partly(ends: list[tuple[int, int]]) -> Lab:
    """Returns a lab with a job on each node, of so many chips, that ends after so many minutes; 0 for unknown."""
    lab = Lab().clusters(cluster("alpha", nodes=len(ends)))
    for row, (chips, minutes) in enumerate(ends):
        of = spec(Option(chip=H100, chips=chips), duration_s=60.0 * minutes)
        lab.live(f"on-{row}", of, grant("alpha", {f"n{row:03}": chips}), granted_s=NOW_S)
    return lab


@pytest.mark.slow
@given(ends=_ENDS, gangs=_GANGS)
@settings(max_examples=80)
def test_reservations_never_use_more_of_a_node_than_it_has(
    ends: list[tuple[int, int]], gangs: list[tuple[int, int, str | None, int]]
) -> None:
    future = Future(_partly(ends))
    uses = [
        (row, chips, NOW_S, NOW_S + 60.0 * minutes if minutes else inf) for row, (chips, minutes) in enumerate(ends)
    ]
    for chips, replicas, within, duration_s in gangs:
        sites = future.sites(spec(Option(chip=H100, chips=chips, replicas=replicas, within=within)))
        found = future.profile.earliest(sites[0]) if sites else None
        if found is None:
            continue
        site = sites[0]
        future.profile.reserve(site, found, float(duration_s), future.reservations)
        future.reservations += 1
        (picked,) = found.picked
        assert int(picked.units.sum()) == replicas
        if within:
            assert len(set((picked.rows // 2).tolist())) == 1
        end_s = found.start_s + duration_s
        uses += [
            (row, units * chips, found.start_s, end_s)
            for row, units in zip(picked.rows.tolist(), picked.units.tolist(), strict=True)
        ]
    for _, _, time, _ in uses:
        for row in range(len(ends)):
            assert sum(used for own, used, begin, end in uses if own == row and begin <= time < end) <= 8


@pytest.mark.slow
@given(ends=_ENDS, gang=_GANGS.map(lambda gangs: gangs[0]))
@settings(max_examples=80)
def test_earliest_is_the_first_time_at_which_a_gang_stands(
    ends: list[tuple[int, int]], gang: tuple[int, int, str | None, int]
) -> None:
    chips, replicas, within, _ = gang
    assume(chips * replicas <= 8 * (2 if within else len(ends)))
    future = Future(_partly(ends))
    found = future.start_s(Option(chip=H100, chips=chips, replicas=replicas, within=within))

    def stands(time: float) -> bool:
        caps = [(8 if minutes and 60.0 * minutes <= time else 8 - used) // chips for used, minutes in ends]
        racks = [sum(caps[row : row + 2]) for row in range(0, len(caps), 2)]
        return max(racks) >= replicas if within else sum(caps) >= replicas

    times = [0.0, *sorted(60.0 * minutes for _, minutes in ends if minutes)]
    first = next((time for time in times if stands(time)), None)
    assert found == (first if any(minutes for _, minutes in ends) else None)
