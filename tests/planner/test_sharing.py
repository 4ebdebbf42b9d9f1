"""Shares of chips beside whole ones, in time: when a shared chip is whole again, and who may share it meanwhile."""

from __future__ import annotations

from mainspring.domain.job import Option, Tier

from .making import H100, NOW_S, Lab, cluster, spec, started, why

SHARE = Option(chip=H100, chips=0.25)
WHOLE = Option(chip=H100, chips=1)


def test_chip_shared_by_jobs_started_together_is_whole_again_when_the_last_of_them_ends() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, chips=1))
    lab.pend("brief", spec(SHARE, tier=Tier.CRITICAL, duration_s=600.0), 1.0)
    lab.pend("long", spec(SHARE, tier=Tier.CRITICAL, duration_s=5_000.0), 2.0)
    lab.pend("whole", spec(WHOLE, duration_s=60.0), 3.0)
    answer = lab.plan()
    assert started(answer) == ["brief", "long"]
    wait = why(answer, "whole")
    assert (wait.start_s, wait.exact) == ((NOW_S + 5_000.0,), 1)
    assert why(lab.act(answer).plan(), "whole").start_s == wait.start_s


def test_newcomer_on_a_chip_shared_already_puts_off_when_it_is_whole() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, chips=1))
    lab.pend("long", spec(SHARE, duration_s=5_000.0))
    lab.act(lab.plan())
    lab.pend("longer", spec(SHARE, tier=Tier.CRITICAL, duration_s=9_000.0))
    lab.pend("whole", spec(WHOLE, duration_s=60.0))
    answer = lab.plan()
    assert started(answer) == ["longer"]
    assert why(answer, "whole").start_s == (NOW_S + 9_000.0,)


def test_shares_that_would_outlast_the_wait_stay_off_a_chip_kept_whole_for_a_job() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, chips=1))
    lab.pend("share-0", spec(SHARE, duration_s=600.0))
    lab.act(lab.plan())
    lab.pend("whole", spec(WHOLE, tier=Tier.STANDARD, duration_s=60.0), 1.0)
    lab.pend("share-1", spec(SHARE, tier=Tier.OPPORTUNISTIC, duration_s=6_000.0), 2.0)
    lab.pend("share-2", spec(SHARE, tier=Tier.OPPORTUNISTIC, duration_s=300.0), 3.0)
    answer = lab.plan()
    assert started(answer) == ["share-2"], "what ends before may share the chip, what does not would starve the job"
    assert why(answer, "whole").start_s == (NOW_S + 600.0,)


def test_chip_of_ours_is_shared_no_further_once_foreign_work_uses_the_whole_node() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, chips=2)).pend("ours", spec(SHARE))
    lab.act(lab.plan())
    lab.clusters(cluster("alpha", nodes=1, chips=2, foreign={0: 2_000}))
    assert not started(lab.pend("another", spec(SHARE)).plan())
