"""Spares: how long repairs take, how many nodes are gone at once, and what a cluster is told to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mainspring.control.health.spares import Outage, RepairTime, lost_at_once, merged, repair_time
from mainspring.domain.answers import ClosureKind, NewClosure
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import NodeName

if TYPE_CHECKING:
    from tests.control.conftest import World

HOUR_S, DAY_S = 3_600.0, 86_400.0
NOW_S = 10_000.0


def out(node: str, from_s: float, until_s: float | None) -> Outage:
    return Outage(node=NodeName(node), from_s=from_s, until_s=until_s)


def lasting(*lengths_s: float, open_s: tuple[float, ...] = ()) -> list[Outage]:
    """Returns outages that took so long, and others that have lasted so long by now."""
    over = [out(f"a{at}", 0.0, length_s) for at, length_s in enumerate(lengths_s)]
    return over + [out(f"b{at}", NOW_S - length_s, None) for at, length_s in enumerate(open_s)]


def test_what_several_say_of_one_node_at_once_is_one_outage() -> None:
    said = [out("n1", 5.0, 9.0), out("n0", 1.0, 4.0), out("n0", 3.0, 6.0), out("n0", 6.5, None), out("n0", 8.0, 9.0)]
    assert merged(said) == (out("n0", 1.0, 6.0), out("n0", 6.5, None), out("n1", 5.0, 9.0))
    assert merged([out("n0", 1.0, 9.0), out("n0", 2.0, 3.0)]) == (out("n0", 1.0, 9.0),)


def test_time_of_a_repair_is_the_median_of_those_that_are_over() -> None:
    assert repair_time(lasting(1.0, 2.0, 3.0), NOW_S) == RepairTime(median_s=2.0)
    assert repair_time([], NOW_S) == RepairTime(median_s=None)


def test_repairs_that_are_not_over_make_the_median_longer() -> None:
    """Of 1, 2+, 3, 4+, 5 the parts left are 4/5, 8/15 and 0 (Kaplan and Meier): without the open ones it were 3."""
    assert repair_time(lasting(1.0, 3.0, 5.0, open_s=(2.0, 4.0)), NOW_S) == RepairTime(median_s=5.0)
    assert repair_time(lasting(1.0, open_s=(2.0, 9.0, 9.0)), NOW_S) == RepairTime(median_s=9.0, at_least=True)
    assert repair_time(lasting(2.0, open_s=(2.0,)), NOW_S) == RepairTime(median_s=2.0), "as long is at risk still"


@pytest.mark.parametrize("seed", range(5))
def test_nodes_lost_at_once_are_not_more_in_99_of_100_moments(seed: int) -> None:
    dice = np.random.default_rng(seed)
    outages = [out(f"n{dice.integers(12)}", float(at_s), None) for at_s in dice.uniform(0.0, NOW_S, 40)]
    within_s = float(dice.uniform(50.0, 600.0))
    moments = np.linspace(0.0, NOW_S, 20_001)[:-1] + 0.25
    counts = [len({one.node for one in outages if one.from_s <= at_s < one.from_s + within_s}) for at_s in moments]
    told = lost_at_once(outages, within_s, 0.0, NOW_S)
    assert np.mean(np.asarray(counts) <= told) >= 0.99 - 1e-3
    assert np.mean(np.asarray(counts) <= told - 1) < 0.99 + 1e-3


def test_nothing_lost_wants_nothing_and_all_at_once_wants_all() -> None:
    assert lost_at_once([], 60.0, 0.0, NOW_S) == 0
    together = [out(f"n{number}", 100.0, None) for number in range(7)]
    assert lost_at_once(together, 0.02 * NOW_S, 0.0, NOW_S) == 7
    assert lost_at_once(together, 0.005 * NOW_S, 0.0, NOW_S) == 0, "half a hundredth of the time"


def test_cluster_is_told_what_it_lost_how_long_repairs_take_and_the_price(world: World) -> None:
    world.tick()
    (first,) = (one for one in world.control.care.spares.wanted(cluster="west") if not one.block)
    assert (first.lost, first.spares, first.repair_median_s, first.dollars_per_hour) == (0, 0, None, 0.0)
    care = world.control.care
    world.tick(2, seconds=HOUR_S)
    for node in ("west-0", "west-1"):
        care.close("west", node, NewClosure(kind=ClosureKind.QUARANTINE, reason="it fell off the bus"))
    care.close("west", "west-2", NewClosure(kind=ClosureKind.CORDON, reason="a new fan"))
    world.tick(2, seconds=HOUR_S)
    care.open("west", "west-0", reason="repaired")
    world.tick(2)
    (seen,) = (one for one in care.spares.wanted(cluster="west") if not one.block)
    assert (seen.lost, seen.spares) == (2, 2), "people's cordons are planned"
    assert seen.repair_median_s is not None
    assert seen.repair_median_s == pytest.approx(2 * HOUR_S, rel=0.1)
    prices = world.control.fleet.seen()[seen.cluster].inventory
    price = prices.nodes[0].chips * prices.dollars_per_chip_hour[prices.nodes[0].chip]
    assert seen.dollars_per_hour == pytest.approx(2 * price)
    with pytest.raises(NotFound, match="west"):
        care.spares.wanted(cluster="wset")
