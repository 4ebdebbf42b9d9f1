"""What a trace comes to: shares that add up, own times, gaps; and a real one, taken as the session takes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from threading import Event

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import DamagedData
from mainspring.domain.wire import ProfileWanted
from mainspring.session.profiling.profiler import Profiler
from mainspring.session.profiling.recording import ABOUT, TRACE, XPLANE
from mainspring.train.profile.summary import difference, kind_of, summarise
from mainspring.train.profile.trace import Operation, StepSpan, Trace, length, read_trace, self_times, shared, union

H100 = "NVIDIA H100 80GB HBM3"


def op(name: str, begun_s: float, ended_s: float, *, lane: str = "stream", run: str = "1") -> Operation:
    return Operation(name=name, lane=lane, begun_s=begun_s, ended_s=ended_s, module="jit_update", run=run)


def trace(*operations: Operation, seconds: float = 1.0, kind: str = "cpu", flops: float = 0.0) -> Trace:
    return Trace(
        device="/device:GPU:0",
        operations=operations,
        steps=(StepSpan(step=1, begun_s=0.0, ended_s=seconds),),
        about={
            "device_kind": kind,
            "steps": [{"step": 1, "begun_s": 0.0}, {"step": 2, "begun_s": seconds}],
            "modules": {"jit_update": {"flops": flops, "bytes": 1e9}} if flops else {},
        },
    )


def test_step_is_shared_out_between_computing_what_nothing_hides_and_nothing() -> None:
    found = summarise(trace(op("fusion.1", 0.0, 0.4), op("all-reduce.2", 0.3, 0.7, lane="other")))
    assert (found.compute, found.communication, found.idle) == pytest.approx((0.4, 0.3, 0.3))
    assert found.overlap == pytest.approx(0.25)
    assert [(gap.at_s, gap.seconds) for gap in found.gaps] == [pytest.approx((0.7, 0.3))]


def test_what_ran_inside_a_loop_is_not_the_loops_own_time() -> None:
    found = summarise(trace(op("while.1", 0.0, 0.9), op("dot.2", 0.1, 0.4), op("dot.2", 0.5, 0.8)))
    assert [(each.name, each.count) for each in found.top] == [("dot.2", 2), ("while.1", 1)]
    assert [each.seconds for each in found.top] == pytest.approx([0.6, 0.3])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from("ab")), max_size=12))
def test_own_times_and_unions_never_make_time(spans: list[tuple[float, float, str]]) -> None:
    operations = [op("x", min(one, other), max(one, other), lane=lane) for one, other, lane in spans]
    joined = union((each.begun_s, each.ended_s) for each in operations)
    assert length(joined) <= 1 + 1e-9
    assert shared(joined, joined) == pytest.approx(length(joined))
    assert len(self_times(operations)) == len(operations)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all-reduce.3", "communication"),
        ("ppermute.1", "communication"),
        ("ncclDevKernel_AllGather", "communication"),
        ("MemcpyH2D", "transfer"),
        ("copy.4", "transfer"),
        ("loop_multiply_fusion", "compute"),
        ("descend_fusion", "compute"),
    ],
)
def test_operations_are_told_apart_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_program_below_the_ridge_is_bound_by_memory_and_told_so() -> None:
    found = summarise(trace(op("dot", 0.0, 1.0), kind=H100, flops=1e11))
    assert found.roofline is not None
    assert found.roofline.intensity == pytest.approx(100)
    assert found.roofline.ridge == pytest.approx(295, rel=0.02)  # 989 TFLOP/s and 3.35 TB/s, as NVIDIA publishes.
    assert found.roofline.share == pytest.approx(1e11 / (100 * 3.35e12), rel=0.02)
    assert any("memory binds" in words for words in found.advice)


def test_idle_device_comes_first_of_what_to_try() -> None:
    assert "idle for 80%" in summarise(trace(op("dot", 0.0, 0.2))).advice[0]
    assert "nothing stands out" in summarise(trace(*(op(f"f{n}", n / 10, (n + 1) / 10) for n in range(10)))).advice[0]


def test_difference_begins_with_what_changed_most() -> None:
    before, after = (summarise(trace(op("a", 0.0, long), op("b", 0.9, 1.0))) for long in (0.5, 0.1))
    assert difference(before, after).operations[0].name == "a"


def test_bytes_that_are_no_trace_are_refused() -> None:
    with pytest.raises(DamagedData, match="read a profile"):
        read_trace(b"nonsense", b"{}")
    with pytest.raises(DamagedData, match="read a profile"):
        read_trace(b"", b"no json")


# ---------------------------------------------------------------- a real one


class Kept:
    """What a profiler handed over."""

    def __init__(self) -> None:
        self.came = Event()
        self.files: dict[str, bytes] = {}
        self.failure = ""

    def __call__(self, id: str, files: Mapping[str, Path], failure: str) -> None:
        self.files = {name: path.read_bytes() for name, path in files.items()}
        self.failure = failure
        self.came.set()


@pytest.mark.slow
def test_profile_of_a_program_that_runs_has_its_operations_its_memory_and_its_place_under_the_roofline() -> None:
    @jax.jit
    def update(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    w = jnp.ones((256, 256))
    x = update(w, w)
    kept = Kept()
    profiler = Profiler(kept, time.monotonic)
    for step in count(1):
        if step == 3:
            profiler.want(ProfileWanted(id="profile-1", steps=4))
        profiler.want(ProfileWanted(id="profile-1", steps=4) if step > 3 else None)  # Told again and again.
        profiler.boundary(step)
        x = update(x, w).block_until_ready()
        if step > 20:
            break
    assert kept.came.wait(60)
    assert kept.failure == ""
    assert {XPLANE, TRACE, ABOUT} <= set(kept.files)
    found = summarise(read_trace(kept.files[XPLANE], kept.files[ABOUT]))
    assert found.steps == 4
    assert found.compute + found.communication + found.idle == pytest.approx(1.0, abs=0.01)
    assert any(each.module == "jit_update" and each.count == 4 for each in found.top)
    assert found.host_bytes_most > 10 << 20
    assert found.roofline is not None
    assert found.roofline.flops_per_s * found.seconds == pytest.approx(4 * 2 * 256**3, rel=0.3)


@pytest.mark.slow
def test_profile_that_a_loop_ends_in_the_middle_of_has_what_there_was() -> None:
    kept = Kept()
    profiler = Profiler(kept, time.monotonic)
    profiler.want(ProfileWanted(id="profile-2", steps=100))
    profiler.boundary(1)
    jax.jit(jnp.sin)(jnp.ones(8)).block_until_ready()
    profiler.close()
    assert kept.came.wait(60)
    assert summarise(read_trace(kept.files[XPLANE], kept.files[ABOUT])).steps == 1
