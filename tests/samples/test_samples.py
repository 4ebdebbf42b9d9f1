"""Samples from ranks' reports to curves: what is kept, within which bounds, and what is told of steps done again."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData
from mainspring.domain.ids import JobId, RoleName
from mainspring.domain.wire import RankPlace, RankProgress, StepSample
from mainspring.objects import open_store
from mainspring.samples import (
    PartName,
    Recorder,
    SamplePart,
    SampleReader,
    curve_of,
    heat_of,
    ideal_step_s,
    names_of,
    pack,
    part_key,
    samples_folder,
    unpack,
)
from mainspring.samples.parts import CELLS_MAX, NAMES_MAX
from mainspring.samples.reading import Stretch
from mainspring.samples.recorder import WINDOW_S, WINDOWS_WHOLE

JOB = JobId("job-1")
ROLE = RoleName("main")


def places(count: int, role: RoleName = ROLE) -> tuple[RankPlace, ...]:
    return tuple(
        RankPlace(rank=rank, role=role, role_rank=rank, role_size=count, agent=rank // 8) for rank in range(count)
    )


def told(
    step: int,
    time_s: float,
    *,
    rank: int = 0,
    generation: int = 1,
    loss: float | None = None,
    metrics: dict[str, float] | None = None,
) -> RankProgress:
    metrics = {"loss": loss} if loss is not None else metrics or {}
    sample = StepSample(step=step, time_s=time_s, metrics=metrics)
    samples = (sample,) if metrics else ()
    return RankProgress(generation=generation, rank=rank, step=step, time_s=time_s, samples=samples)


def stretches(*parts: SamplePart) -> list[Stretch]:
    return [Stretch(name=PartName(number=1, epoch=1, part=number), part=part) for number, part in enumerate(parts)]


def recorded(reports: Iterable[RankProgress], ranks: int = 1) -> Recorder:
    recorder = Recorder(places(ranks), now_s=0.0)
    for report in reports:
        recorder.note(report, report.time_s)
    return recorder


def test_steps_done_again_are_marked_and_the_newest_value_counts() -> None:
    before = [told(step, float(step), loss=10.0 - step) for step in range(1, 8)]
    after = [told(step, 10.0 + step, generation=2, loss=9.0 - step) for step in range(5, 10)]
    curve = curve_of(stretches(unpack(pack(recorded([*before, *after]).part()), on="x")), "loss", points=100)
    assert curve is not None
    assert curve.step.tolist() == [1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9]
    assert curve.lost.tolist() == [False] * 4 + [True] * 3 + [False] * 5
    assert (curve.least, curve.most, curve.last) == (0.0, 9.0, 0.0)


def test_reports_told_again_count_once_and_those_of_a_rank_nobody_placed_never() -> None:
    reports = [told(1, 1.0, loss=1.0), told(1, 1.0, loss=1.0), told(2, 2.0, loss=1.0), told(9, 9.0, rank=7, loss=5.0)]
    part = recorded(reports).part()
    assert part.step.tolist() == [1, 2]


def test_first_rank_that_reports_later_than_another_is_the_one_that_counts_also_at_another_place() -> None:
    recorder = Recorder(places(3), now_s=0.0)
    for generation, first in ((1, 0), (2, 2)):
        for step in (1, 2):
            beside = RankProgress(generation=generation, rank=1, step=step, time_s=1.0, metrics={"loss": 9.0})
            recorder.note(beside, 1.0)
            recorder.note(told(step, float(step), rank=first, generation=generation, loss=float(first)), 1.0)
    curve = curve_of(stretches(recorder.part()), "loss", points=10)
    assert curve is not None
    assert curve.value.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_time_of_a_step_leaves_out_what_is_beside_it() -> None:
    def report(step: int, time_s: float, **seconds: float) -> RankProgress:
        sample = StepSample(step=step, time_s=time_s, metrics={"loss": 1.0}, seconds=seconds)
        return RankProgress(generation=1, rank=0, step=step, time_s=time_s, seconds=seconds, samples=(sample,))

    recorder = recorded([report(1, 1.0, compile=30.0), report(2, 2.0), report(4, 9.0, snapshot=3.0, data=1.0)])
    found = stretches(recorder.part())
    for name, values in {"time/step": [1.0, 2.0], "time/data": [0.0, 0.5], "time/compile": [30.0]}.items():
        curve = curve_of(found, name, points=10)
        assert curve is not None
        assert curve.value.tolist() == values
    assert ideal_step_s(found) == pytest.approx(1.1)


def test_value_that_is_no_finite_number_is_told_by_its_step() -> None:
    broken = StepSample(step=2, time_s=2.0, metrics={"lr": 1.0}, not_finite=("loss",))
    report = RankProgress(generation=1, rank=0, step=2, time_s=2.0, samples=(broken,))
    found = stretches(recorded([told(1, 1.0, loss=1.0), report, told(3, 3.0, loss=3.0)]).part())
    curve = curve_of(found, "loss", points=10)
    assert curve is not None
    assert (curve.not_finite.tolist(), curve.step.tolist(), curve.most) == ([2], [1, 3], 3.0)


def test_metrics_are_those_of_the_lowest_rank_that_reports_any_role_by_role() -> None:
    two = (*places(2), RankPlace(rank=2, role=RoleName("sampler"), role_rank=0, role_size=1, agent=1))
    recorder = Recorder(two, now_s=0.0)
    for step in (1, 2):
        quiet = (StepSample(step=step, time_s=1.0),)
        recorder.note(RankProgress(generation=1, rank=0, step=step, time_s=float(step), samples=quiet), 1.0)
        metrics = {"loss": 1.0}
        recorder.note(RankProgress(generation=1, rank=1, step=step, time_s=float(step), metrics=metrics), 1.0)
        recorder.note(told(step, float(step), rank=2, metrics={"reward": 5.0}), 1.0)
    names = names_of(stretches(recorder.part()))
    assert names[:2] == ("main/loss", "sampler/reward")


@pytest.mark.slow
def test_an_attempt_of_any_length_is_kept_within_a_bound_and_rare_metrics_stay() -> None:
    recorder, steps, whole = Recorder(places(1), now_s=0.0, rows_whole=1_000), 31_000, 1_000
    for step in range(steps):
        metrics = {"loss": 1.0, "eval": 2.0} if step % 999 == 1 else {"loss": 1.0}
        recorder.note(told(step, 0.001 * step, metrics=metrics), 0.001 * step)
    part = recorder.part()
    assert 4.5 * whole < len(part.step) < 5.5 * whole  # 31 = 1 + 2 + 4 + 8 + 16: each doubling costs as much again.
    assert np.isfinite(part.values[:, part.names.index("eval")]).sum() == len(range(1, steps, 999))
    assert part.step[:whole].tolist() == list(range(whole))


@pytest.mark.slow
def test_store_that_is_away_for_long_costs_samples_and_no_more_memory() -> None:
    recorder = Recorder(places(1), now_s=0.0)
    for step in range(60_000):
        recorder.note(told(step, 0.001 * step, loss=1.0), 0.001 * step)
    assert recorder.full
    assert recorder.part().values.size <= 2 * CELLS_MAX + NAMES_MAX


def test_names_without_number_do_not_grow_a_part_beyond_its_bound() -> None:
    names = [[f"{step}-{at}" * 50 for at in range(200)] for step in range(9)]
    recorder = recorded(told(step, float(step), metrics=dict.fromkeys(names[step], 1.0)) for step in range(9))
    part = recorder.part()
    assert len(part.names) <= NAMES_MAX
    assert all(len(name) <= 128 for name in part.names)


def test_windows_show_the_rank_that_is_slow_and_the_one_that_waits() -> None:
    recorder = Recorder(places(4), now_s=0.0)
    for step in range(1, 61):
        for rank in range(4):
            slow_s = 1.0 if rank != 2 else 1.0 + step / 60
            report = told(step, step * slow_s, rank=rank)
            seconds = {"data": 0.5} if rank == 1 else {}
            recorder.note(RankProgress(generation=1, rank=rank, step=step, time_s=step * slow_s, seconds=seconds), step)
            assert report.rank == rank
    heat = heat_of(stretches(recorder.part()), columns=3, rows=64)
    assert heat is not None
    assert (heat.ranks, heat.first.tolist()) == (4, [0, 1, 2, 3])
    assert heat.step_s.shape == (3, 4)
    assert (heat.step_s[:, 2] > 1.05).all()
    assert heat.step_s[-1, 0] == pytest.approx(1.0)
    assert heat.data_share[-1, 1] == pytest.approx(0.5, abs=0.06)
    grouped = heat_of(stretches(recorder.part()), columns=100, rows=2)
    assert grouped is not None
    assert grouped.first.tolist() == [0, 2]
    assert (grouped.step_s[:, 1] > grouped.step_s[:, 0]).all()


@pytest.mark.slow
def test_window_without_a_step_says_so_after_a_while_and_windows_grow_with_their_number() -> None:
    recorder = recorded([told(step, step * 0.1, loss=1.0) for step in range(1, 30)])
    recorder.look(30.0)
    recorder.look(31.0 + 6 * WINDOW_S)
    part = recorder.part()
    assert np.isnan(part.step_s[-1]).all()
    for number in range(WINDOWS_WHOLE + 10):
        recorder.note(told(100 + number, 1_000.0 + number * WINDOW_S), 1_000.0 + number * WINDOW_S)
        if recorder.full:
            recorder.seal(recorder.part())
    widths = np.diff(recorder.part().from_s)
    assert widths[-1] == pytest.approx(2 * WINDOW_S)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(2, 50))
def test_curves_of_few_points_keep_the_least_and_the_most(values: list[float], points: int) -> None:
    count = len(values)
    part = SamplePart(
        names=("loss",),
        generation=np.ones(count, np.int32),
        step=np.arange(count),
        time_s=np.arange(count, dtype=float),
        values=np.array(values)[:, None],
        ranks=np.empty(0, np.int32),
        from_s=np.empty(0),
        until_s=np.empty(0),
        step_s=np.empty((0, 0), np.float32),
        data_share=np.empty((0, 0), np.float32),
    )
    curve = curve_of(stretches(part), "loss", points=points)
    assert curve is not None
    assert (curve.value.min(), curve.value.max()) == (min(values), max(values))
    assert (curve.value[0], curve.value[-1]) == (values[0], values[-1])
    assert (np.diff(curve.step) > 0).all()
    assert len(curve.step) <= points + 4


class _Planted:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('ran')",))


def _archive(arrays: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in arrays.items():
            packed.writestr(f"{name}.npy", data)
    return made.getvalue()


@pytest.mark.slow
def test_files_that_anybody_wrote_are_refused_and_nothing_in_them_runs(tmp_path: Path) -> None:
    good = pack(recorded([told(1, 1.0, loss=1.0)]).part())
    with zipfile.ZipFile(io.BytesIO(good)) as packed:
        arrays = {one.removesuffix(".npy"): packed.read(one) for one in packed.namelist()}
    pickled = io.BytesIO()
    np.save(pickled, np.array([_Planted()], object), allow_pickle=True)
    bad = {
        "nothing": b"",
        "text": b"no archive",
        "cut": good[: len(good) // 2],
        "pickle": _archive({**arrays, "step": pickled.getvalue()}),
        "raw pickle": _archive({**arrays, "step": pickle.dumps(_Planted())}),
        "bomb": _archive({**arrays, "values": b"\x00" * (64 << 20)}),
        "short": _archive({**arrays, "step": _saved(np.empty(0, np.int64))}),
        "kind": _archive({**arrays, "step": _saved(np.ones(1, np.float32))}),
        "names": _archive({**arrays, "names": _saved(np.frombuffer(b"[1]" * 1, np.uint8))}),
        "missing": _archive({name: data for name, data in arrays.items() if name != "ranks"}),
    }
    for data in bad.values():
        with pytest.raises(DamagedData):
            unpack(data, on="x")
    store = open_store(str(tmp_path))
    store.put(part_key(JOB, PartName(number=1, epoch=1, part=0)), good)
    store.put(part_key(JOB, PartName(number=1, epoch=1, part=1)), bad["pickle"])
    store.put(f"{samples_folder(JOB)}/other.txt", b"x")
    reader = SampleReader(store, kept_bytes=1)
    assert [one.part.step.tolist() for one in reader.read(JOB)] == [[1]]
    assert reader.read(JobId("job-2")) == []


def _saved(array: NDArray[Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


def test_part_that_has_grown_is_read_again(tmp_path: Path) -> None:
    store, recorder = open_store(str(tmp_path)), recorded([told(1, 1.0, loss=1.0)])
    key, reader = part_key(JOB, PartName(number=1, epoch=1, part=0)), SampleReader(store)
    store.put(key, pack(recorder.part()))
    assert len(reader.read(JOB)[0].part.step) == 1
    recorder.note(told(2, 2.0, loss=1.0), 2.0)
    store.put(key, pack(recorder.part()))
    assert len(reader.read(JOB)[0].part.step) == 2
    assert reader.read(JOB, attempt=2) == []
