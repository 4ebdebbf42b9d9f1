"""Faults that are drawn: how often, for how long, and always the same for one seed."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from mainspring.domain.ids import ClusterName, NodeName
from mainspring.simulator import Outage, ReplayOptions
from mainspring.simulator.virtual.faults import Faults

from .replaying import fleet

EAST = ClusterName("east")


def _drawn(options: ReplayOptions, *, seed: int = 1, losses: float = 0.0, count: int = 20_000) -> list[Outage]:
    faults = Faults(fleet(losses_per_node_hour=losses).inventories, options, seed)
    drawn = [faults.next(EAST, NodeName("n-000000"), 0.0) for _ in range(count)]
    return [outage for outage in drawn if outage is not None]


def test_no_node_fails_unless_asked() -> None:
    assert _drawn(ReplayOptions()) == []


def test_faults_come_as_often_and_last_as_long_as_told() -> None:
    drawn = _drawn(ReplayOptions(faults_per_1000_node_days=6.5))
    lasting = np.array([outage.until_s - outage.from_s for outage in drawn if outage.until_s > outage.from_s])

    assert np.mean([outage.from_s for outage in drawn]) == pytest.approx(1_000 / 6.5 * 86_400.0, rel=0.03)
    assert 1.0 - len(lasting) / len(drawn) == pytest.approx(0.73, abs=0.01)
    assert np.median(lasting) == pytest.approx(54 * 60.0, rel=0.1)
    sigma = float(np.std(np.log(lasting)))
    assert 54 * 60.0 * exp(sigma**2 / 2) == pytest.approx(355 * 60.0, rel=0.15)
    assert sigma == pytest.approx((2 * log(355 / 54)) ** 0.5, rel=0.05)


def test_spot_nodes_are_taken_back_after_a_notice_and_replaced() -> None:
    drawn = _drawn(ReplayOptions(), losses=0.1)

    assert np.mean([outage.from_s for outage in drawn]) == pytest.approx(36_000.0, rel=0.03)
    assert {(outage.notice_s, round(outage.until_s - outage.from_s)) for outage in drawn} == {(120.0, 600)}


def test_faults_of_one_seed_repeat_and_those_of_another_differ() -> None:
    options = ReplayOptions(faults_per_1000_node_days=6.5)

    assert _drawn(options, count=50) == _drawn(options, count=50)
    assert _drawn(options, count=50) != _drawn(options, count=50, seed=2)
