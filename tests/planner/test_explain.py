"""What would start a waiting job now: the cheapest single change, tried on a copy."""

from __future__ import annotations

import pytest

from mainspring.domain.errors import NotFound
from mainspring.domain.ids import ChipName, JobId, TeamName
from mainspring.domain.job import Option, Tier
from mainspring.domain.team import Team
from mainspring.planner import Budget, Change, ChangeKind, Policy
from mainspring.planner.explain import explain

from .making import H100, ONE, Lab, cluster, grant, spec


def changes(lab: Lab, job: str = "job") -> tuple[Change, ...]:
    return explain(lab.snapshot(), JobId(job), lab.policy, lab.now_s, Budget())


def by_kind(found: tuple[Change, ...]) -> dict[ChangeKind, Change]:
    return {change.kind: change for change in reversed(found)}


def test_job_that_waits_for_chips_is_told_the_other_chip_and_the_smaller_size() -> None:
    lab = Lab().clusters(cluster("alpha", foreign={0: 8_000, 1: 8_000}), cluster("beta", chip="a100", price=1.0))
    found = by_kind(changes(lab.pend("job", spec(Option(chip=H100, replicas=32)))))
    assert found[ChangeKind.CHIP].text == "accepts a100"
    assert found[ChangeKind.CHIP].start.grants[0].cluster == "beta"
    assert found[ChangeKind.CHIP].dollars_per_hour == 32.0
    assert (found[ChangeKind.SIZE].text, found[ChangeKind.SIZE].work) == ("16 instead of 32 h100", 0.5)


def test_gang_that_waits_for_one_rack_is_told_smaller_groups_first() -> None:
    lab = Lab().clusters(cluster("alpha", foreign={0: 4_000, 2: 4_000}))
    found = changes(lab.pend("job", spec(Option(chip=H100, replicas=16, within="rack"))))
    assert found[0].kind is ChangeKind.TOPOLOGY
    assert found[0].text == "2 x 8 in one rack each, instead of all in one"
    assert found[0].work == 1.0


def test_job_over_its_cap_is_told_the_cap_that_would_do_after_what_its_owner_can_change() -> None:
    lab = Lab().clusters(cluster("alpha")).teams(Team(name=TeamName("vision"), chips_max=8.0))
    lab.live("held", spec(ONE, team="vision"), grant("alpha", {"n000": 5}))
    found = changes(lab.pend("job", spec(Option(chip=H100, replicas=4), team="vision")))
    assert [change.kind for change in found] == [ChangeKind.SIZE, ChangeKind.QUOTA]
    assert found[0].text == "3 instead of 4 h100"
    assert found[1].text == "9 chips for team vision instead of 8"


def test_job_behind_less_urgent_work_is_told_the_tier_that_displaces_it() -> None:
    lab = Lab(policy=Policy(runtime_min_s=0.0, cooldown_s=0.0)).clusters(cluster("alpha", nodes=1))
    lab.live("first", spec(ONE, tier=Tier.CRITICAL), grant("alpha", {"n000": 7}))
    lab.pend("other", spec(ONE, tier=Tier.STANDARD), 1.0)
    lab.pend("job", spec(ONE, tier=Tier.OPPORTUNISTIC), 2.0)
    found = changes(lab)
    assert found[0].kind is ChangeKind.TIER
    assert found[0].text == "critical instead of opportunistic"


def test_job_that_starts_anyway_needs_no_change() -> None:
    assert changes(Lab().clusters(cluster("alpha")).pend("job", spec(ONE))) == ()


def test_job_nothing_can_start_has_no_change() -> None:
    assert changes(Lab().clusters(cluster("alpha"), silent=("alpha",)).pend("job", spec(ONE))) == ()


def test_job_that_is_not_pending_is_not_found() -> None:
    lab = Lab().clusters(cluster("alpha"))
    with pytest.raises(NotFound, match="nowhere"):
        changes(lab, "nowhere")


def test_unknown_chip_beside_a_known_one_is_no_hindrance() -> None:
    lab = Lab().clusters(cluster("alpha", foreign=dict.fromkeys(range(4), 8_000)), cluster("beta", chip="a100"))
    found = changes(lab.pend("job", spec(Option(chip=ChipName("tpu")), ONE)))
    assert [change.kind for change in found] == [ChangeKind.CHIP]
