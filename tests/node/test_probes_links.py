"""Ports of adapters, as recorded trees show them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import SAID_AGAIN_S, Teller
from mainspring.node.probes.watchers.counters import COUNTERS
from mainspring.node.probes.watchers.links import GONE_S, LISTED_S, SETTLED_S, Links
from mainspring.testing.time_and_chance import FakeClock, SeededDice

from .recorded import GREW_FROM, Recorded

FOUR = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


class Watched:
    """A node whose links are looked at every second, and what became of that."""

    def __init__(self, root: Path, adapters: Sequence[str] = FOUR) -> None:
        self.node = Recorded(root)
        for adapter in adapters:
            self.node.adapter(adapter)
        self.links = Links(NodeFiles(str(root)))
        self.teller = Teller(ClusterName("hall"), NodeName("n1"), SeededDice(1, "probes"))
        self.clock = FakeClock()

    def faults(self, seconds: int = 1) -> list[HealthEvent]:
        return [event for event in self.told(seconds) if not event.healthy]

    def told(self, seconds: int = 1) -> list[HealthEvent]:
        found: list[HealthEvent] = []
        for _ in range(seconds):
            now_s = self.clock.now_s()
            found += self.teller.tell(self.links.name, self.links.look(now_s), now_s)
            self.clock.advance(1)
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.links.close()


def test_links_that_are_all_well_say_so_once(watched: Watched) -> None:
    first = watched.told()
    assert {event.scope.part for event in first} == {f"{adapter}/1" for adapter in FOUR}
    assert all(event.healthy for event in first)
    rates = {rule.check for rule in COUNTERS if rule.window_s}
    assert all(event.healthy and event.check in rates for event in watched.told(120))


def test_a_node_without_adapters_has_nothing_to_tell(tmp_path: Path) -> None:
    links = Links(NodeFiles(str(tmp_path)))
    assert list(links.look(1.0)) == []


def test_each_time_that_a_link_went_down_is_told(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_2", "counters/link_downed", 4)
    (event,) = watched.faults()
    assert (event.check, event.scope.part, event.codes) == ("link-flap", "mlx5_2/1", ("link_downed",))
    assert "grew by 1 to 4" in event.message
    assert watched.faults(5) == []
    watched.node.counter("mlx5_2", "counters/link_downed", 6)
    assert len(watched.faults(5)) == 1


def test_errors_count_only_past_their_rate_and_are_over_after_a_quiet_window(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_0", "counters/symbol_error", GREW_FROM + 120)
    assert watched.faults(5) == []
    watched.node.counter("mlx5_0", "counters/symbol_error", GREW_FROM + 121)
    (event,) = watched.faults(5)
    assert event.check == "link-symbols"
    over = [each for each in watched.told(3_700) if each.check == "link-symbols" and each.scope.part == "mlx5_0/1"]
    assert [each.healthy for each in over] == [True]


def test_a_counter_that_somebody_set_back_is_no_fault(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_0", "counters/link_downed", 0)
    assert watched.faults(3) == []
    watched.node.counter("mlx5_0", "counters/link_downed", 1)
    assert len(watched.faults(3)) == 1


def test_a_counter_that_cannot_be_read_for_a_while_is_no_fault(watched: Watched) -> None:
    watched.told(3)
    for told in ("", "N/A (no PMA)", "3"):
        watched.node.counter("mlx5_0", "counters/link_downed", told)
        assert watched.faults(2) == []


def test_a_port_that_stays_down_is_told_by_what_its_like_do(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_1", "state", "1: DOWN")
    assert watched.faults(int(SETTLED_S)) == []
    (event,) = watched.faults(5)
    assert (event.check, event.scope.part, event.fatal) == ("link-state", "mlx5_1/1", True)
    assert "3 of 4" in event.message
    watched.node.counter("mlx5_1", "state", "4: ACTIVE")
    assert [(each.check, each.healthy) for each in watched.told(5)] == [("link-state", True)]


def test_a_port_that_comes_back_at_once_is_not_down(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_1", "state", "1: DOWN")
    watched.told(2)
    watched.node.counter("mlx5_1", "state", "4: ACTIVE")
    assert watched.faults(20) == []


def test_ports_that_were_never_connected_are_no_fault(tmp_path: Path) -> None:
    watched = Watched(tmp_path, adapters=())
    for adapter in FOUR:
        watched.node.adapter(adapter, state="4: ACTIVE" if adapter == "mlx5_0" else "1: DOWN")
    assert watched.faults(30) == []


def test_a_port_that_is_down_from_the_start_among_many_that_are_up_is_a_fault(tmp_path: Path) -> None:
    watched = Watched(tmp_path, adapters=FOUR[:3])
    watched.node.adapter("mlx5_3", state="1: DOWN")
    assert [event.scope.part for event in watched.faults(30)] == ["mlx5_3/1"]


def test_a_port_slower_than_its_like_is_told_and_taken_back(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_3", "rate", "100 Gb/sec (1X NDR)")
    (event,) = watched.faults(3)
    assert (event.check, event.scope.part, event.codes) == ("link-speed", "mlx5_3/1", ("100",))
    watched.node.counter("mlx5_3", "rate", "400 Gb/sec (4X NDR)")
    assert [(each.check, each.healthy) for each in watched.told(3)] == [("link-speed", True)]


def test_what_stands_is_said_again_every_hour(watched: Watched) -> None:
    watched.told(3)
    watched.node.counter("mlx5_3", "rate", "100 Gb/sec (1X NDR)")
    assert len(watched.faults(int(2.5 * SAID_AGAIN_S))) == 3


def test_an_adapter_that_vanishes_is_told_and_taken_back_when_it_returns(watched: Watched) -> None:
    watched.told(3)
    kept = watched.node.root / "sys/class/infiniband/mlx5_0"
    shutil.move(kept, watched.node.root / "kept")
    assert [event.check for event in watched.faults(int(GONE_S + 2 * LISTED_S))] == ["link-gone"]
    shutil.move(watched.node.root / "kept", kept)
    assert ("link-gone", True) in [(each.check, each.healthy) for each in watched.told(int(2 * LISTED_S))]
    watched.node.counter("mlx5_0", "counters/link_downed", 9)
    assert [event.check for event in watched.faults(3)] == ["link-flap"]


def test_an_adapter_whose_driver_is_loaded_anew_is_read_anew(watched: Watched) -> None:
    watched.told(3)
    adapter = watched.node.root / "sys/class/infiniband/mlx5_0"
    watched.node.put("sys/class/infiniband/mlx5_0/ports/1/state", "")  # What is read of a file that was taken away.
    watched.told(1)
    shutil.rmtree(adapter)
    watched.node.adapter("mlx5_0")
    assert watched.faults(int(2 * LISTED_S)) == []
    watched.node.counter("mlx5_0", "counters/link_downed", 9)
    assert [event.check for event in watched.faults(3)] == ["link-flap"]


def test_a_port_that_stays_down_after_its_adapter_was_reset_is_told_though_none_is_like_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path, adapters=["mlx5_0"])
    watched.told(3)
    watched.node.put("sys/class/infiniband/mlx5_0/ports/1/state", "")
    watched.told(1)
    shutil.rmtree(tmp_path / "sys/class/infiniband/mlx5_0")
    watched.node.adapter("mlx5_0", state="1: DOWN")
    assert [event.check for event in watched.faults(int(2 * LISTED_S))] == ["link-state"]
    watched.links.close()


def test_of_two_ports_that_differ_nobody_knows_which_is_right(tmp_path: Path) -> None:
    watched = Watched(tmp_path, adapters=["mlx5_0"])
    watched.node.adapter("mlx5_1", rate="100 Gb/sec (1X NDR)")
    assert watched.faults(30) == []
    watched.links.close()


def test_an_efa_adapter_is_as_its_network_interface_is(tmp_path: Path) -> None:
    watched = Watched(tmp_path, adapters=())
    for index in range(4):
        watched.node.adapter(f"rdmap{index}", driver="efa", rate="100 Gb/sec (4X EDR)")
    assert watched.faults(10) == []
    (state,) = watched.node.root.glob("sys/devices/pci*/*/0000:02:*/net/*/operstate")
    state.write_text("down\n")
    (event,) = watched.faults(10)
    assert (event.check, event.scope.part) == ("link-state", "rdmap2/1")


def test_virtual_functions_are_passed_over(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.node.adapter("mlx5_9", state="1: DOWN")
    (watched.node.root / "sys/class/infiniband/mlx5_9/device/physfn").mkdir()
    assert watched.faults(30) == []


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(0, 1 << 64), max_size=12))
def test_flaps_told_are_those_counted_however_the_counter_moves(
    values: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    watched = Watched(tmp_path_factory.mktemp("node"), adapters=("mlx5_0",))
    watched.told()
    last, grown = 3, 0
    for value in values:
        watched.node.counter("mlx5_0", "counters/link_downed", value)
        events = [event for event in watched.faults() if event.check == "link-flap"]
        assert len(events) == (value > last)
        grown, last = grown + max(0, value - last), value
    watched.links.close()


@settings(max_examples=60, deadline=None)
@given(garbage=st.text(alphabet=st.characters(codec="utf-8"), max_size=80), file=st.sampled_from([
    "state", "rate", "link_layer", "counters/link_downed", "counters/symbol_error"]))  # fmt: skip
def test_garbage_in_a_file_of_the_kernel_breaks_nothing(
    garbage: str, file: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    watched = Watched(tmp_path_factory.mktemp("node"))
    watched.told(2)
    watched.node.counter("mlx5_0", file, garbage)
    watched.told(20)
    watched.links.close()
