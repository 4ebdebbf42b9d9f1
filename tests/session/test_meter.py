from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput
from mainspring.session import TimeUse
from mainspring.session.meter import MEASURED, Meter


class Watch:
    """A stopwatch that moves when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_meter_waiting_for_data_counts_and_work_does_not() -> None:
    watch = Watch()
    meter = Meter(watch)

    def batches() -> Iterator[int]:
        for batch in range(3):
            watch.now_s += 2.0
            yield batch

    for batch in meter.timed(batches()):
        watch.now_s += 100.0
        meter.report(batch, None)
    report = meter.take()
    assert report is not None
    assert report.seconds == {"data": 6.0}


def test_meter_takes_what_is_measured_inside_off_what_is_around_it() -> None:
    watch = Watch()
    meter = Meter(watch)
    with meter.measure(TimeUse.RESTORE):
        watch.now_s += 1.0
        with meter.measure(TimeUse.COMPILE):
            watch.now_s += 4.0
            meter.add(TimeUse.DATA, 1.0)
        watch.now_s += 1.0
    meter.report(1, None)
    report = meter.take()
    assert report is not None
    assert report.seconds == {"restore": 2.0, "compile": 3.0, "data": 1.0}


@given(st.recursive(st.floats(0, 10), lambda inner: st.tuples(st.sampled_from(MEASURED), st.lists(inner, max_size=4))))
def test_meter_seconds_never_exceed_the_time_that_passed(tree: object) -> None:
    watch = Watch()
    meter = Meter(watch)

    def walk(node: object) -> None:
        if isinstance(node, float):
            watch.now_s += node
        elif isinstance(node, tuple):
            with meter.measure(node[0]):
                for inner in node[1]:
                    walk(inner)

    walk(tree)
    meter.report(0, None)
    report = meter.take()
    assert report is not None
    assert sum(report.seconds.values()) <= watch.now_s * (1 + 1e-9) + 1e-9
    if isinstance(tree, tuple):
        assert sum(report.seconds.values()) == pytest.approx(watch.now_s)


def test_meter_says_each_thing_once_and_repeats_only_the_step() -> None:
    meter = Meter(Watch())
    assert meter.take(again=True, rest=True) is None
    meter.report(3, {"loss": 1.0})
    meter.add(TimeUse.DATA, 1.0)
    assert meter.take() == wire.StepReport(step=3, metrics={"loss": 1.0}, seconds={"data": 1.0})
    assert meter.take(rest=True) is None
    meter.add(TimeUse.SNAPSHOT, 2.0)
    assert meter.take() is None
    assert meter.take(again=True) == wire.StepReport(step=3)
    assert meter.take(rest=True) == wire.StepReport(step=3, seconds={"snapshot": 2.0})
    assert meter.take(rest=True) is None


@pytest.mark.parametrize(("use", "seconds"), [(TimeUse.HANG, 1.0), (TimeUse.DATA, -1.0), (TimeUse.DATA, float("nan"))])
def test_meter_refuses_what_a_rank_cannot_measure(use: TimeUse, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="compile, data, snapshot, restore"):
        Meter(Watch()).add(use, seconds)
