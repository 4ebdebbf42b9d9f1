"""What of cores and memory can bind."""

from __future__ import annotations

from mainspring.domain.ids import ChipName
from mainspring.domain.job import Option
from mainspring.planner.facts.snapshot import UNCOUNTED
from mainspring.planner.place.ample import Ample

from .making import H100, Lab, cluster, grant, spec

FOUR_CORES = Option(chip=H100, cpus=4.0, memory_gib=32.0)


def ample(*options: Option, cpus: float = 32.0, held: int = 0) -> Ample:
    lab = Lab().clusters(cluster("alpha", nodes=2, cpus=cpus, memory_gib=1_024.0))
    for index, option in enumerate(options):
        lab.pend(f"job-{index}", spec(option))
    if held:
        lab.live("live", spec(options[0]), grant("alpha", {"n000": held}))
    return Ample(lab.snapshot())


def test_cores_that_all_chips_together_could_not_use_up_do_not_count() -> None:
    found = ample(FOUR_CORES)
    assert found.cpu_milli.tolist() == [UNCOUNTED] * 2
    assert found.memory_mib.tolist() == [UNCOUNTED] * 2


def test_cores_that_some_shape_could_use_up_count() -> None:
    greedy = Option(chip=H100, cpus=5.0)
    found = ample(FOUR_CORES, greedy)
    assert found.cpu_milli.tolist() == [32_000] * 2
    assert found.memory_mib.tolist() == [UNCOUNTED] * 2


def test_cores_live_attempts_hold_count_with_their_chips() -> None:
    assert ample(FOUR_CORES, held=7).cpu_milli.tolist() == [UNCOUNTED] * 2


def test_cores_count_where_jobs_without_chips_come() -> None:
    found = ample(FOUR_CORES, Option(chip=H100, chips=0, cpus=1.0))
    assert found.cpu_milli.tolist() == [32_000] * 2


def test_shares_of_a_chip_count_as_often_as_they_fit_on_it() -> None:
    assert ample(Option(chip=H100, chips=0.25, cpus=1.0)).cpu_milli.tolist() == [UNCOUNTED] * 2
    assert ample(Option(chip=H100, chips=0.25, cpus=1.1)).cpu_milli.tolist() == [32_000] * 2


def test_shapes_that_differ_only_in_what_is_ample_are_plainly_equal() -> None:
    lab = Lab().clusters(cluster("alpha", cpus=64.0, memory_gib=1_024.0), cluster("beta", chip="a100", cpus=1.0))
    lab.pend("one", spec(Option(chip=H100, cpus=2.0, memory_gib=8.0))).pend("two", spec(Option(chip=H100, cpus=3.0)))
    lab.pend("scarce", spec(Option(chip=ChipName("a100"), cpus=0.5)))
    snapshot = lab.snapshot()
    found = Ample(snapshot)
    plain = [found.plain(shape).roles[0].options[0] for shape in snapshot.shapes]
    assert plain[0] == plain[1] == Option(chip=H100)
    assert plain[2].cpus == 0.5


def test_job_that_needs_more_cores_than_a_node_has_still_waits() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2, cpus=32.0, memory_gib=64.0))
    lab.pend("wide", spec(Option(chip=H100, cpus=40.0))).pend("slim", spec(Option(chip=H100, cpus=1.0)), 1.0)
    answer = lab.plan()
    assert [start.job for start in answer.starts] == ["slim"]
