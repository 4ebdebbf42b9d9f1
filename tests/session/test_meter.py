from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput
from mainspring.session import TimeUse
from mainspring.session.meter import MEASURED, WAIT_NOTED_S, Meter


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


@pytest.mark.parametrize("wait_s", [1e-5, 4e-4, 3e-3])
def test_meter_waits_too_short_to_note_add_up(wait_s: float) -> None:
    watch = Watch()
    meter = Meter(watch)
    found = 0.0

    def batches() -> Iterator[int]:
        for batch in range(1000):
            watch.now_s += wait_s
            yield batch

    for batch in meter.timed(batches()):
        meter.report(batch, None)
        if batch % 7 == 0:
            report = meter.take()
            assert report is not None
            found += report.seconds.get("data", 0.0)
            assert found <= watch.now_s + 1e-9
            assert watch.now_s - found <= WAIT_NOTED_S + 7 * wait_s + 1e-9
    rest = meter.take(rest=True)
    assert rest is not None
    assert found + rest.seconds["data"] == pytest.approx(1000 * wait_s)


def test_meter_of_steps_that_come_while_it_is_read_loses_no_metric() -> None:
    meter = Meter(Watch())
    found: dict[str, float] = {}
    steps = 20_000

    def train() -> None:
        for step in range(steps):
            meter.report(step, {"loss": float(step), f"every-{step % 50}": float(step)})

    trainer = threading.Thread(target=train)
    trainer.start()
    while trainer.is_alive():
        if (report := meter.take()) is not None:
            assert all(value >= found.get(name, 0.0) for name, value in report.metrics.items())
            found.update(report.metrics)
    trainer.join()
    if (report := meter.take()) is not None:
        found.update(report.metrics)
    assert found == {"loss": steps - 1.0, **{f"every-{step % 50}": float(step) for step in range(steps - 50, steps)}}


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


def test_meter_tells_when_the_newest_step_was_finished_and_what_was_no_number() -> None:
    watch = Watch()
    meter = Meter(watch)
    meter.report(1, {"loss": float("nan"), "lr": 1.0, "grad": float("-inf")})
    watch.now_s += 2.0
    meter.report(1, {"late": 3.0})
    watch.now_s += 1.0
    report = meter.take()
    assert report is not None
    assert (report.ago_s, report.not_finite) == (3.0, ("grad", "loss"))
    assert report.metrics == {"lr": 1.0, "late": 3.0}
    meter.report(2, {"loss": 1.0})
    report = meter.take()
    assert report is not None
    assert (report.ago_s, report.not_finite) == (0.0, ())


def test_meter_cuts_names_that_nobody_reads_to_their_end() -> None:
    meter = Meter(Watch())
    meter.report(1, {"x" * 10_000: 1.0, "y" * 10_000: float("nan")})
    report = meter.take()
    assert report is not None
    assert [len(name) for name in (*report.metrics, *report.not_finite)] == [128, 128]
