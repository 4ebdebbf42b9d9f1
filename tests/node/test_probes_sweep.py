"""Sweeps: what is said of nodes that worked, the meeting of those who work, and a real one over processes of JAX."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import Unavailable
from mainspring.node.probes.sightings import Sighting
from mainspring.node.probes.sweep.meeting import (
    SweepLead,
    SweepPlan,
    SweepReport,
    SweepTask,
    Swept,
    Work,
    be_member,
    child_work,
)
from mainspring.node.probes.sweep.pairing import Isolated
from mainspring.node.probes.sweep.verdicts import Alone, Measure, judged, merged, rates_of

FAST = Measure(chip="h100", flops=(9e14, 8e14), bytes_s=(3e12, 2.9e12), seconds=0.01)
NOBODY = Isolated(well=(), bad=(), undecided=(), ways=())
LIMIT_S = 120.0


def _faults(
    measures: Sequence[Measure | None],
    groups: Isolated = NOBODY,
    history: Mapping[int, Mapping[str, Sequence[float]]] | None = None,
) -> list[tuple[int, str, bool]]:
    alone = {number: Alone(measure=each, said="it broke") for number, each in enumerate(measures)}
    found = judged(alone, groups, history or {})
    return [(number, seen.check, seen.fatal) for number, each in found.items() for seen in each if not seen.healthy]


# ---------------------------------------------------------------- verdicts


def test_nodes_alike_are_well() -> None:
    assert _faults([FAST] * 4, Isolated(well=(0, 1, 2, 3), bad=(), undecided=(), ways=())) == []


def test_a_node_is_as_fast_as_its_slowest_device_and_measured_by_its_like() -> None:
    slow = Measure(chip="h100", flops=(9e14, 5e14), bytes_s=(3e12, 1e12), seconds=0.05)
    assert _faults([FAST, FAST, slow, FAST]) == [
        (2, "sweep-matmul", False), (2, "sweep-memory", False), (2, "sweep-loopback", False)
    ]  # fmt: skip
    other = Measure(chip="l4", flops=(1e13,), bytes_s=(3e11,))
    assert _faults([FAST, FAST, FAST, other]) == []
    past = {3: {check: [10 * rate] * 5 for check, rate in rates_of(other).items()}}
    assert _faults([FAST, FAST, FAST, other], history=past) == [(3, "sweep-matmul", False), (3, "sweep-memory", False)]


def test_wrong_results_and_bad_groups_are_fatal() -> None:
    liar = Measure(chip="h100", wrong=(1,), flops=FAST.flops, bytes_s=FAST.bytes_s)
    groups = Isolated(well=(0, 2, 3), bad=(4,), undecided=(5,), ways=((2, 3),))
    assert _faults([FAST, liar, FAST, FAST, FAST, FAST], groups) == [
        (1, "sweep-bits", True), (2, "sweep-way", False), (3, "sweep-way", False), (4, "sweep-group", True),
        (5, "sweep-group", False),
    ]  # fmt: skip


def test_work_that_one_node_fails_at_is_its_fault_and_work_that_most_fail_at_is_not() -> None:
    assert _faults([FAST, FAST, None]) == [(2, "sweep-alone", True)]
    assert _faults([None, None, FAST]) == [(0, "sweep-alone", False), (1, "sweep-alone", False)]


def test_one_fault_in_many_sweeps_is_enough() -> None:
    bad = Sighting(check="sweep-bits", fatal=True)
    fine = Sighting(check="sweep-bits", healthy=True)
    assert merged([{0: (fine,)}, {0: (bad,)}, {0: (fine,)}]) == {0: (bad,)}


# ---------------------------------------------------------------- the truth of a product


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_every_wrong_element_of_a_product_is_found(side: int, data: st.DataObject) -> None:
    pytest.importorskip("jax", reason="the train extra is not installed")
    from mainspring.node.probes.sweep.measures import is_product

    dice = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    one, other = (dice.integers(-7, 8, (side, side)).astype(np.int8) for _ in range(2))
    product = (one.astype(np.int64) @ other.astype(np.int64)).astype(np.float32)
    assert is_product(product, one, other)
    row, column = data.draw(st.integers(0, side - 1)), data.draw(st.integers(0, side - 1))
    product[row, column] += data.draw(st.sampled_from([1.0, -1.0, 2.0**-10, 1e30, float("nan"), float("inf")]))
    assert not is_product(product, one, other)


# ---------------------------------------------------------------- the meeting

Stopped = Callable[[float], bool]


def _meet(
    works: Sequence[Work | None], *, limit_s: float = LIMIT_S, meet_s: float = LIMIT_S, slow_ratio: float = 2.0
) -> Swept:
    """Returns what a sweep saw of members that work so; None for one that does not come."""
    clock = SystemClock()
    plan = SweepPlan(count=len(works), seconds=0.1, limit_s=limit_s, meet_s=meet_s, slow_ratio=slow_ratio)

    def member(rank: int, work: Work) -> None:
        with suppress(Unavailable):
            be_member(lead, rank, f"n{rank}", work, clock=clock, meet_s=LIMIT_S, pause=Event().wait)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        lead = listener.getsockname()
        members = [Thread(target=member, args=(rank, work)) for rank, work in enumerate(works) if work is not None]
        for thread in members:
            thread.start()
        leading = SweepLead(listener, plan, clock)
        leading.meet()
        swept = leading.sweep()
        leading.end()
    for thread in members:
        thread.join(LIMIT_S)
    return swept


def _well(task: SweepTask, stopped: Stopped) -> SweepReport:
    return SweepReport(measure=Measure(chip="c", flops=(1.0,), bytes_s=(1.0,), seconds=0.01), port=1)


def test_a_member_that_fails_in_groups_is_isolated_and_one_that_does_not_come_is_missing() -> None:
    def failing(task: SweepTask, stopped: Stopped) -> SweepReport:
        if task.coordinator:
            return SweepReport(measure=None, said="broken", port=9)
        return _well(task, stopped)

    swept = _meet([_well, _well, _well, failing, _well, _well, None], meet_s=3.0)
    assert swept.missing == (6,)
    assert swept.groups.bad == (3,)
    assert swept.groups.undecided == ()
    assert swept.nodes[3] == "n3"


def test_of_a_group_one_that_fails_stops_the_others() -> None:
    def failing(task: SweepTask, stopped: Stopped) -> SweepReport:
        return SweepReport(measure=None, port=9) if task.coordinator else _well(task, stopped)

    def hanging(task: SweepTask, stopped: Stopped) -> SweepReport:
        if task.coordinator:
            assert stopped(LIMIT_S)
            return SweepReport(measure=None, port=9)
        return _well(task, stopped)

    swept = _meet([failing, hanging])
    assert swept.groups.undecided == (0, 1)


def test_who_is_wrong_alone_works_in_no_group() -> None:
    def lying(task: SweepTask, stopped: Stopped) -> SweepReport:
        assert not task.coordinator
        return SweepReport(measure=Measure(chip="c", wrong=(0,)), port=1)

    swept = _meet([_well, lying, _well])
    assert swept.groups.well == (0, 2)
    assert swept.alone[1].measure is not None


def test_strangers_who_call_are_hung_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plan = SweepPlan(count=1, seconds=0.1, limit_s=1.0, meet_s=2.0)
        leading = SweepLead(listener, plan, SystemClock())
        lines = [b"GET / HTTP/1.1\r\n\r\n", b'{"rank": 99, "node": "x", "host": "h", "port": 1}\n', b"\x00" * 70_000]
        lines.append(b'{"rank": 0, "node": "../../etc/cron.d/x", "host": "h", "port": 1}\n')
        callers = [socket.create_connection(listener.getsockname()) for _ in lines]
        for caller, line in zip(callers, lines, strict=True):
            caller.sendall(line)
            caller.shutdown(socket.SHUT_WR)
        leading.meet()
        assert leading.sweep().missing == (0,)
        for caller in callers:
            caller.close()


def test_a_lead_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(Unavailable, match="join a sweep"):
        be_member(("127.0.0.1", 9), 1, "n1", _well, clock=SystemClock(), meet_s=0.0, pause=Event().wait)


def _waits(seconds: float) -> bool:
    return Event().wait(seconds)


def test_a_child_that_is_not_wanted_any_more_is_ended() -> None:
    report = child_work((sys.executable, "-S", "-c", "import signal; signal.pause()"))(
        SweepTask(seconds=0.1, limit_s=LIMIT_S), lambda seconds: True
    )
    assert report.said == "another of its group failed"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('no chip here')", "no chip here"),
        ("print('hello')", "could not read a message"),
        ("", "could not read a message"),
        ("import signal; signal.pause()", "no end in"),
    ],
)
def test_a_child_that_crashes_babbles_or_hangs_has_failed_and_says_how(program: str, said: str) -> None:
    work = child_work((sys.executable, "-S", "-c", program))
    report = work(SweepTask(seconds=0.1, limit_s=3.0), _waits)
    assert report.measure is None
    assert said in report.said


# ---------------------------------------------------------------- for real

MEASURE = (sys.executable, "-m", "mainspring", "probes", "measure")
# Runs a child for a moment in every few hundred, as a node does that is throttled.
SLOWLY = """
import signal, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:])
wait = threading.Event().wait
while child.poll() is None:
    child.send_signal(signal.SIGSTOP)
    wait(0.2)
    child.send_signal(signal.SIGCONT)
    wait(0.01)
sys.exit(child.returncode)
"""


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="the train extra is not installed")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("NPROC", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_of_real_nodes_one_that_breaks_in_groups_is_found(tmp_path: Path) -> None:
    broken = (
        f"import sys, subprocess\nsys.exit(3 if len(sys.argv) > 2 else subprocess.call([*{MEASURE!r}, *sys.argv[1:]]))"
    )
    works = [child_work(MEASURE)] * 4
    works[2] = child_work((sys.executable, "-c", broken))
    swept = _meet(works, slow_ratio=1_000.0)  # A machine that does much else is slow by chance.
    assert {rank: each.said for rank, each in swept.alone.items() if each.measure is None} == {}
    assert all(each.measure is not None and not each.measure.wrong for each in swept.alone.values())
    assert swept.groups == Isolated(well=(0, 1, 3), bad=(2,), undecided=(), ways=())


@pytest.mark.soak  # All of its own Python is as slow, too.
@pytest.mark.usefixtures("on_cpu")
def test_of_real_nodes_one_that_is_slow_in_groups_is_found(tmp_path: Path) -> None:
    slowly = f"import sys, os\nslow = [sys.executable, '-c', {SLOWLY!r}] if len(sys.argv) > 2 else []\n"
    slowly += f"words = [*slow, *{MEASURE!r}, *sys.argv[1:]]\nos.execv(words[0], words)"
    works = [child_work(MEASURE)] * 4
    works[1] = child_work((sys.executable, "-c", slowly))
    swept = _meet(works, limit_s=LIMIT_S, slow_ratio=5.0)
    assert swept.groups == Isolated(well=(0, 2, 3), bad=(1,), undecided=(), ways=())
