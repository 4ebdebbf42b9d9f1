"""Room while a plan is made: places found, taken, kept and given back, on fleets of every kind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import ChipName, ClusterName, NodeName
from mainspring.domain.job import ANY_CHIP, Option
from mainspring.planner import Snapshot, SnapshotBuilder
from mainspring.planner.facts.snapshot import UNCOUNTED
from mainspring.planner.place.free_capacity import FreeCapacity, Picked, Pool

H100 = ChipName("h100")


def node(
    index: int,
    *,
    chip: str = "h100",
    chips: int = 8,
    rack: int | None = 0,
    block: int = 0,
    foreign_chip_milli: int = 0,
    cpus: float | None = None,
    memory_gib: float | None = None,
    taints: tuple[str, ...] = (),
    slice_shape: str = "",
    slice_name: str = "",
    ready: bool = True,
    leaves_s: float | None = None,
) -> Node:
    domains = [("block", f"b{block}")]
    domains += [("rack", f"r{rack}")] if rack is not None else []
    domains += [("slice", slice_name)] if slice_name else []
    return Node(
        name=NodeName(f"n{index:03}"),
        chip=ChipName(chip),
        chips=chips,
        domains=tuple(domains),
        foreign_chip_milli=foreign_chip_milli,
        cpus=cpus,
        memory_gib=memory_gib,
        taints=taints,
        slice=slice_shape,
        condition=NodeCondition.READY if ready else NodeCondition.DOWN,
        leaves_s=leaves_s,
    )


def snapshot_of(*nodes: Node, delegated: bool = False, answering: bool = True) -> Snapshot:
    builder = SnapshotBuilder()
    inventory = Inventory(
        cluster=ClusterName("alpha"),
        engine="local",
        simulated=True,
        dollars_per_chip_hour={H100: 2.0, ChipName("a100"): 1.0},
        nodes=nodes,
        delegated=delegated,
    )
    builder.set_inventory(inventory, answering=answering)
    return builder.build()


def pool_of(room: FreeCapacity, option: Option) -> Pool:
    pool = room.pool(0, option)
    assert pool is not None
    return pool


def start(room: FreeCapacity, option: Option, *, replicas: int | None = None) -> Picked | None:
    pool = pool_of(room, option)
    picked = room.stand(pool, replicas or option.replicas)
    if picked is not None:
        room.take(pool, picked)
    return picked


def rows_of(picked: Picked | None) -> list[int]:
    assert picked is not None
    rows: list[int] = picked.rows.tolist()
    return rows


# -------------------------------------------------------------------- properties


@dataclass
class Machine:
    """A node as the test keeps books on it."""

    whole: int
    cpu_milli: int
    memory_mib: int
    shared: dict[int, int]

    def room_for(self, option: Option) -> int:
        rooms = []
        if option.chips >= 1:
            rooms.append(self.whole // int(option.chips))
        elif option.chips:
            each = option.chip_milli
            rooms.append(self.whole * (1_000 // each) + sum(free // each for free in self.shared.values()))
        if option.cpus:
            rooms.append(self.cpu_milli // option.cpu_milli)
        if option.memory_gib:
            rooms.append(self.memory_mib // option.memory_mib)
        return min(rooms)

    def take(self, option: Option, units: int, chips: Sequence[int]) -> None:
        self.cpu_milli -= units * option.cpu_milli
        self.memory_mib -= units * option.memory_mib
        if option.chips >= 1:
            self.whole -= units * int(option.chips)
        for chip in chips:
            if chip not in self.shared:
                self.whole -= 1
                self.shared[chip] = 1_000
            self.shared[chip] -= option.chip_milli
        assert min(self.whole, self.cpu_milli, self.memory_mib, *self.shared.values(), 0) == 0, "over the node"


def machines(snapshot: Snapshot) -> list[Machine]:
    nodes = snapshot.nodes
    books = [
        Machine(whole=whole, cpu_milli=cpu, memory_mib=memory, shared={}) if ready else Machine(0, 0, 0, {})
        for whole, cpu, memory, ready in zip(
            nodes.whole.tolist(), nodes.cpu_milli.tolist(), nodes.memory_mib.tolist(), nodes.ready.tolist(), strict=True
        )
    ]
    for row, chip, free in zip(
        nodes.share_node.tolist(), nodes.share_chip.tolist(), nodes.share_milli.tolist(), strict=True
    ):
        if nodes.ready[row]:
            books[row].shared[chip] = free
    return books


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    """Draws up to ten nodes of one cluster, some partly used, some down, some counting cores and memory."""
    counted = draw(st.booleans())
    nodes = []
    for index in range(draw(st.integers(1, 10))):
        chips = draw(st.sampled_from([1, 4, 8]))
        foreign = draw(st.sampled_from([0, 0, 300, 1_000, 1_500, 4_000]))
        nodes.append(
            node(
                index,
                chips=chips,
                rack=index // 2,
                block=index // 4,
                foreign_chip_milli=min(foreign, chips * 1_000),
                cpus=draw(st.sampled_from([8.0, 16.0])) if counted else None,
                memory_gib=draw(st.sampled_from([32.0, 64.0])) if counted else None,
                ready=draw(st.integers(0, 5)) > 0,
            )
        )
    return snapshot_of(*nodes)


@st.composite
def options(draw: st.DrawFn) -> Option:
    """Draws options whose replicas fit on a node of eight chips."""
    group = draw(st.sampled_from([0, 0, 2]))
    chips = draw(st.sampled_from([0.0, 0.25, 0.3, 1.0, 2.0, 4.0, 8.0]))
    return Option(
        chip=draw(st.sampled_from([H100, ANY_CHIP])),
        chips=chips,
        cpus=draw(st.sampled_from([0.0, 2.0])) if chips else 2.0,
        memory_gib=draw(st.sampled_from([0.0, 8.0])),
        replicas=draw(st.integers(1, 6)) * max(group, 1),
        within=draw(st.sampled_from([None, "node", "rack", "block"])),
        prefer=draw(st.sampled_from([None, "rack"])),
        group=group,
        group_within=draw(st.sampled_from(["node", "rack"])) if group else None,
    )


def by_hand(snapshot: Snapshot, books: list[Machine], option: Option) -> int:
    """Returns the most replicas together, by looking at every domain."""

    def domain(level: str | None) -> list[int]:
        if level is None:
            return [0] * len(books)
        if level == "node":
            return list(range(len(books)))
        own: list[int] = snapshot.nodes.domain[:, snapshot.levels.index(level)].tolist()
        return own

    outer, inner = domain(option.within), domain(option.group_within)
    best = 0
    for name in set(outer):
        rooms: dict[int, int] = {}
        for row, book in enumerate(books):
            if outer[row] == name:
                rooms[inner[row]] = rooms.get(inner[row], 0) + book.room_for(option)
        each = option.group or 1
        best = max(best, sum(room // each * each for room in rooms.values()))
    return best


@settings(max_examples=150)
@given(fleets(), st.lists(options(), min_size=1, max_size=6))
def test_placements_never_exceed_a_node_and_fits_equals_a_look_at_every_domain(
    snapshot: Snapshot, asked: list[Option]
) -> None:
    room, books = FreeCapacity(snapshot), machines(snapshot)
    for option in asked:
        if option.chips > int(snapshot.nodes.chips.max()):
            continue  # Replicas larger than every node have a test of their own.
        pool = pool_of(room, option)
        most = by_hand(snapshot, books, option)
        assert room.fits(pool, 1_000_000) == min(most, 1_000_000 - 1_000_000 % max(option.group, 1))
        picked = room.stand(pool, option.replicas)
        assert (picked is not None) == (most >= option.replicas)
        assert (picked is None) == (room.shortfall(pool, option.replicas) is not None)
        if picked is None:
            continue
        assert room.stand(pool, option.replicas) is picked, "asking takes nothing"
        shared = room.take(pool, picked)
        assert int(picked.units.sum()) == option.replicas
        for place, (row, units) in enumerate(zip(picked.rows.tolist(), picked.units.tolist(), strict=True)):
            chips = shared[place] if shared else ()
            assert len(chips) == (units if 0 < option.chips < 1 else 0)
            books[row].take(option, units, chips)
            counted = books[row].cpu_milli < UNCOUNTED - 1_000_000
            assert int(room.whole[row]) == books[row].whole
            assert int(room.cpu[row]) == (books[row].cpu_milli if counted else UNCOUNTED)
            assert int(room.memory[row]) == (books[row].memory_mib if counted else UNCOUNTED)


@settings(max_examples=80)
@given(fleets(), st.lists(options(), min_size=1, max_size=4), st.lists(options(), min_size=1, max_size=5), st.data())
def test_after_a_rollback_everything_is_as_if_nothing_had_been_tried(
    snapshot: Snapshot, tried: list[Option], asked: list[Option], data: st.DataObject
) -> None:
    room, fresh = FreeCapacity(snapshot), FreeCapacity(snapshot)
    for option in asked[:1]:
        start(room, option)
        start(fresh, option)
    mark = room.mark()
    before = [column.copy() for column in (room.whole, room.cpu, room.memory, room.hold)]
    for option in tried:
        start(room, option)
        room.keep(np.array([data.draw(st.integers(0, len(snapshot.nodes.names) - 1))]), 0)
        start(room, option)
    room.rollback(mark)
    for column, known in zip((room.whole, room.cpu, room.memory, room.hold), before, strict=True):
        assert (column == known).all()
    for option in asked:
        picked, expected = (each.stand(pool_of(each, option), option.replicas) for each in (room, fresh))
        assert (picked is None) == (expected is None)
        if picked is not None and expected is not None:
            assert picked.rows.tolist() == expected.rows.tolist()
            assert picked.units.tolist() == expected.units.tolist()
            assert room.cost(pool_of(room, option), picked) == fresh.cost(pool_of(fresh, option), expected)
            assert room.take(pool_of(room, option), picked) == fresh.take(pool_of(fresh, option), expected)


@pytest.mark.slow
def test_places_are_the_same_whatever_the_hash_seed() -> None:
    program = (
        "from tests.planner.test_free_capacity import *\n"
        "nodes = [node(i, chips=(8, 4)[i % 2], rack=i // 4, block=i // 8, cpus=64.0 + i % 3, memory_gib=256.0,\n"
        "              foreign_chip_milli=300 * (i % 3), taints=('spot',) * (i % 2)) for i in range(32)]\n"
        "room = FreeCapacity(snapshot_of(*nodes))\n"
        "for i in range(60):\n"
        "    option = Option(chip=ANY_CHIP, chips=(0.3, 1.0, 2.0)[i % 3], cpus=1.0 + i % 5, replicas=1 + i % 4,\n"
        "                    tolerates=('spot', 'other')[: i % 3])\n"
        "    picked = start(room, option)\n"
        "    print(picked and (picked.rows.tolist(), picked.units.tolist()))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(answers) == 1
    assert len(answers.pop().splitlines()) == 60


# -------------------------------------------------------------------- one node


def test_job_goes_to_the_node_it_fills_not_to_an_idle_one() -> None:
    room = FreeCapacity(snapshot_of(node(0), node(1, foreign_chip_milli=5_000), node(2, foreign_chip_milli=3_000)))
    assert rows_of(start(room, Option(chip=H100, chips=3.0))) == [1]


def test_equal_nodes_are_taken_from_the_most_used_rack_and_rack_by_rack() -> None:
    nodes = [node(index, rack=index // 3) for index in range(9)]
    nodes[7] = node(7, rack=2, foreign_chip_milli=8_000)
    room = FreeCapacity(snapshot_of(*nodes))
    taken = [rows_of(start(room, Option(chip=H100, chips=8.0)))[0] for _ in range(4)]
    assert [row // 3 for row in taken] == [2, 2, 0, 0]


def test_several_replicas_that_fit_on_one_node_share_it() -> None:
    room = FreeCapacity(snapshot_of(node(0), node(1), node(2, foreign_chip_milli=2_000)))
    picked = start(room, Option(chip=H100, chips=2.0, replicas=3))
    assert picked is not None
    assert (picked.rows.tolist(), picked.units.tolist()) == ([2], [3])


def test_shares_fill_a_chip_in_use_before_they_open_another() -> None:
    room = FreeCapacity(snapshot_of(node(0, chips=2)))
    pool = pool_of(room, Option(chip=H100, chips=0.4))
    chips = []
    for _ in range(4):
        picked = room.stand(pool, 1)
        assert picked is not None
        chips.append(room.take(pool, picked)[0][0])
    assert chips == [0, 0, 1, 1]
    assert room.stand(pool, 1) is None


def test_share_of_foreign_work_keeps_its_chip_and_the_rest_of_it_is_used() -> None:
    room = FreeCapacity(snapshot_of(node(0, chips=2, foreign_chip_milli=1_500)))
    pool = pool_of(room, Option(chip=H100, chips=0.5))
    picked = room.stand(pool, 1)
    assert picked is not None
    assert room.take(pool, picked) == ((1,),)
    assert room.stand(pool, 1) is None


def test_cores_alone_may_go_to_any_node_and_cores_nobody_counts_never_run_out() -> None:
    room = FreeCapacity(snapshot_of(node(0, chips=1, foreign_chip_milli=1_000), node(1, chip="cpu", chips=0)))
    assert len(rows_of(start(room, Option(chip=ANY_CHIP, chips=0.0, cpus=4.0, replicas=500)))) == 1
    assert pool_of(room, Option(chip=ANY_CHIP, chips=0.0, cpus=4.0)).charge_milli(500) == 0
    assert int(room.cpu.min()) == UNCOUNTED


# -------------------------------------------------------------------- pools


def test_pool_leaves_out_taints_not_tolerated_slices_and_other_chips() -> None:
    sliced = node(3, slice_shape="2x2", slice_name="s0")
    room = FreeCapacity(snapshot_of(node(0), node(1, taints=("spot",)), node(2, chip="a100"), sliced))
    assert pool_of(room, Option(chip=H100)).rows.tolist() == [0]
    assert pool_of(room, Option(chip=H100, tolerates=("spot",))).rows.tolist() == [0, 1]
    any_chip = pool_of(room, Option(chip=ANY_CHIP))
    assert any_chip.rows.tolist() == [0, 2]
    assert any_chip.dollars_per_chip_hour == 2.0
    assert room.pool(0, Option(chip=ChipName("b200"))) is None
    assert room.pool(0, Option(chip=H100, slice="4x4")) is None
    assert pool_of(room, Option(chip=H100)) is pool_of(room, Option(chip=H100, replicas=9, speed=2.0))


def test_level_that_does_not_exist_here_is_known_as_such() -> None:
    room = FreeCapacity(snapshot_of(node(0), node(1, rack=None)))
    assert not pool_of(room, Option(chip=H100, within="pod")).level_known
    assert room.stand(pool_of(room, Option(chip=H100, within="pod")), 1) is None
    assert pool_of(room, Option(chip=H100, within="rack")).rows.tolist() == [0]
    assert pool_of(room, Option(chip=H100, prefer="pod")).level_known


def test_nodes_down_or_leaving_get_no_new_work_but_count_for_ever() -> None:
    room = FreeCapacity(snapshot_of(node(0, ready=False), node(1, leaves_s=1e12), node(2)))
    pool = pool_of(room, Option(chip=H100, chips=8.0))
    assert rows_of(start(room, Option(chip=H100, chips=8.0))) == [2]
    assert room.stand(pool, 1) is None
    assert (pool.room_usable, pool.room_ever) == (1, 3)
    silent = FreeCapacity(snapshot_of(node(0), answering=False))
    assert silent.stand(pool_of(silent, Option(chip=H100)), 1) is None


def test_room_ever_ignores_foreign_use_and_keeps_groups_and_domains() -> None:
    room = FreeCapacity(snapshot_of(*(node(index, rack=index // 3, foreign_chip_milli=8_000) for index in range(6))))
    assert pool_of(room, Option(chip=H100)).room_ever == 48
    assert pool_of(room, Option(chip=H100, within="rack")).room_usable == 24
    pairs = Option(chip=H100, chips=8.0, replicas=2, group=2, group_within="rack")
    assert pool_of(room, pairs).room_ever == 4


def test_most_that_fits_is_a_multiple_of_the_group() -> None:
    room = FreeCapacity(snapshot_of(*(node(index) for index in range(6))))
    pairs = Option(chip=H100, chips=8.0, replicas=2, group=2, group_within="rack")
    assert room.fits(pool_of(room, pairs), 5) == 4
    assert room.stand(pool_of(room, pairs), 5) is None


# -------------------------------------------------------------------- gangs


def test_replica_larger_than_every_node_takes_whole_nodes_one_rank_each() -> None:
    room = FreeCapacity(snapshot_of(*(node(index, cpus=64.0) for index in range(4)), node(4, foreign_chip_milli=1_000)))
    option = Option(chip=H100, chips=12.0, cpus=12.0, replicas=2)
    pool = pool_of(room, option)
    assert (pool.units_per_replica, pool.charge_milli(2), room.fits(pool, 9)) == (2, 32_000, 2)
    picked = start(room, option)
    assert picked is not None
    assert (picked.rows.tolist(), picked.units.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 1])
    assert room.whole[:4].tolist() == [0] * 4
    assert room.cpu[:4].tolist() == [56_000] * 4


def test_replica_larger_than_every_node_uses_the_size_of_node_that_holds_most_replicas() -> None:
    room = FreeCapacity(snapshot_of(node(0), node(1), *(node(index, chips=4) for index in range(2, 10))))
    pool = pool_of(room, Option(chip=H100, chips=12.0))
    assert (pool.need.whole, pool.units_per_replica, pool.room_ever) == (4, 3, 2)
    assert rows_of(room.stand(pool, 2)) == [2, 3, 4, 5, 6, 7]


def test_tpu_slices_are_taken_whole_and_each_group_is_one_slice() -> None:
    hosts = [
        node(index, chip="v5p", chips=4, rack=None, slice_shape="2x2x2", slice_name=f"s{index // 2}")
        for index in range(8)
    ]
    hosts[3] = node(3, chip="v5p", chips=4, rack=None, slice_shape="2x2x2", slice_name="s1", foreign_chip_milli=1_000)
    room = FreeCapacity(snapshot_of(*hosts))
    option = Option(chip=ChipName("v5p"), chips=4.0, replicas=4, slice="2x2x2")
    pool = pool_of(room, option)
    assert rows_of(room.stand(pool, 4)) == [0, 1, 4, 5]
    assert room.stand(pool, 3) is None
    assert (room.fits(pool, 7), pool.room_ever) == (6, 8)
    assert pool_of(room, Option(chip=ChipName("v5p"), chips=1.0, slice="2x2x2")).together == 8
    assert room.stand(pool, 8) is None
    short = room.shortfall(pool, 8)
    assert short is not None
    assert short.text == "the cluster has 3 of the 4 whole slices of 2"


def test_buckets_of_a_delegated_cluster_hold_many_replicas() -> None:
    room = FreeCapacity(snapshot_of(node(0, chips=256), node(1, chips=256), delegated=True))
    picked = start(room, Option(chip=H100, chips=8.0, replicas=40))
    assert picked is not None
    assert picked.units.tolist() == [32, 8]


# -------------------------------------------------------------------- holds


def test_fleet_where_every_node_is_of_its_own_kind_is_filled_to_the_last_chip() -> None:
    room = FreeCapacity(snapshot_of(*(node(index, chips=2, memory_gib=100.0 + index) for index in range(300))))
    option = Option(chip=H100, chips=2.0, memory_gib=200.0)
    assert sum(start(room, option) is not None for _ in range(300)) == 200


def test_node_that_goes_through_hundreds_of_states_is_always_known_as_it_is() -> None:
    room = FreeCapacity(snapshot_of(node(0, chips=400, memory_gib=100_000.0), node(1, memory_gib=0.0)))
    left_mib = 100_000 * 1_024
    for step in range(300):
        memory_gib = 1.0 + step
        if memory_gib * 1_024 > left_mib:
            break
        option = Option(chip=H100, memory_gib=memory_gib)
        assert rows_of(start(room, option)) == [0]
        left_mib -= option.memory_mib
        assert int(room.memory[0]) == left_mib
    assert int(room.whole[0]) == 100


def test_equal_nodes_kept_together_are_held_and_given_back_together() -> None:
    room = FreeCapacity(snapshot_of(*(node(index) for index in range(4))))
    pool = pool_of(room, Option(chip=H100, chips=8.0))
    room.keep(np.array([3, 1, 2]), 0)
    assert room.hold.tolist() == [0, 1, 1, 1]
    assert room.fits(pool, 9) == 1
    picked = room.stand(pool, 3, np.array([True]))
    assert picked is not None
    room.take(pool, picked)
    assert room.hold.tolist() == [0, 1, 1, 1]
    room.rollback(0)
    assert room.hold.tolist() == [0] * 4
    assert room.fits(pool, 9) == 4


def test_kept_nodes_are_used_only_by_whom_their_reservation_allows() -> None:
    room = FreeCapacity(snapshot_of(*(node(index) for index in range(3))))
    pool, gang = pool_of(room, Option(chip=H100, chips=8.0)), pool_of(room, Option(chip=H100, chips=8.0, prefer="rack"))
    room.keep(np.array([0]), 0)
    room.keep(np.array([0, 1]), 1)
    assert room.hold.tolist() == [1, 2, 0]
    assert rows_of(room.stand(pool, 1)) == [2]
    assert room.stand(gang, 2) is None
    assert rows_of(room.stand(gang, 2, np.array([False, True]))) == [1, 2]
    assert room.fits(pool, 9, np.array([True, False])) == 2
    assert rows_of(room.stand(gang, 3, np.array([True, True]))) == [0, 1, 2]
    room.rollback(0)
    assert room.hold.tolist() == [0, 0, 0]
    assert room.fits(pool, 9) == 3
