"""What a local cluster forgets of what ended long ago, or takes too much."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainspring.domain.errors import NotFound
from mainspring.domain.fleet import EndedBefore
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.engines.common.records import Claim, Ended, Records
from mainspring.engines.local.engine import LocalEngine
from tests.engines.test_local import DAY_S, NAME, Machine, order
from tests.engines.test_local import machine as machine


@pytest.fixture
def forgetful(machine: Machine) -> LocalEngine:
    """An engine with an allocation that runs, and the folders of others that ended twenty days ago, or lately."""
    engine = machine.engine()
    engine.launch(order())
    old_s, now_s = machine.clock.now_s() - 20 * DAY_S, machine.clock.now_s()
    records = Records(machine.root)
    for name, ended_s in (("first", old_s), ("kept", old_s), ("last", old_s), ("late", now_s)):
        records.claim(AllocationId(name), Claim(nodes=(NodeName("alpha-00"),)))
        (machine.root / name / "node-0").mkdir()
        (machine.root / name / "node-0" / "rank-0.log").write_text("words")
        records.write(machine.root / name / "ended.json", Ended(exit_code=0, reason="", ended_s=ended_s))
    records.claim(AllocationId("unheard"), Claim(nodes=(NodeName("alpha-00"),)))
    records.claim(AllocationId("never-launched"), Claim(nodes=()))
    (machine.root / "of-others").mkdir()
    for claim in machine.root.glob("*/claim.json"):
        os.utime(claim, (old_s - DAY_S, old_s - DAY_S))
    return engine


def test_allocations_that_ended_long_ago_are_forgotten_with_their_output(
    machine: Machine, forgetful: LocalEngine
) -> None:
    before_s, kept = machine.clock.now_s() - 10 * DAY_S, (AllocationId("kept"),)
    assert forgetful.forget_ended(EndedBefore(time_s=before_s, kept=kept, limit=0)) == 3
    assert forgetful.forget_ended(EndedBefore(time_s=before_s, kept=kept, limit=2)) == 3
    stays = {NAME, "kept", "last", "late", "of-others", "unheard"}
    assert {path.name for path in machine.root.iterdir() if not path.name.startswith(".")} >= stays - {"last"}
    assert forgetful.forget_ended(EndedBefore(time_s=before_s, kept=kept, limit=2)) == 1
    assert {path.name for path in machine.root.iterdir() if path.name != ".lock"} == stays - {"last"}
    assert forgetful.logs(AllocationId("kept"), rank=0, since=0, limit=9).data == b"words"
    with pytest.raises(NotFound):
        forgetful.logs(AllocationId("last"), rank=0, since=0, limit=9)


def test_allocation_whose_removal_was_cut_short_is_none_and_goes_with_the_next(
    machine: Machine, forgetful: LocalEngine, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_text("a lab's")
    (machine.root / "last" / "node-0" / "link").symlink_to(outside)
    (machine.root / "last").rename(machine.root / ".gone-last")
    (machine.root / ".gone-last" / "ended.json").unlink()
    assert "last" not in {one.allocation for one in forgetful.observe()}
    assert forgetful.forget_ended(EndedBefore(time_s=0.0, kept=(), limit=0)) == 0
    assert (machine.root / ".gone-last").exists()
    assert forgetful.forget_ended(EndedBefore(time_s=0.0, kept=(), limit=1)) == 0
    assert not (machine.root / ".gone-last").exists()
    assert (outside / "data").read_text() == "a lab's"


def test_what_ended_longest_ago_goes_where_all_takes_too_much_but_for_what_is_young_or_kept(
    machine: Machine, forgetful: LocalEngine
) -> None:
    now_s, kept = machine.clock.now_s(), (AllocationId("first"),)
    for name, days in (("first", 3.0), ("kept", 4.0), ("last", 2.0)):
        ended = Ended(exit_code=0, reason="", ended_s=now_s - days * DAY_S)
        Records(machine.root).write(machine.root / name / "ended.json", ended)
        (machine.root / name / "node-0" / "rank-0.log").write_bytes(b"x" * 1_000)
    (machine.root / "last" / "link").symlink_to("node-0/rank-0.log")

    def forget(bytes_max: int | None, *, limit: int = 9) -> int:
        return forgetful.forget_ended(
            EndedBefore(time_s=now_s - 15 * DAY_S, kept=kept, limit=limit, bytes_max=bytes_max, spared_s=now_s - DAY_S)
        )

    assert (forget(None, limit=0), forget(10_000, limit=0)) == (1, 1), "what was never launched, weeks ago"
    assert forget(3_000, limit=0) == 2
    assert forget(3_000, limit=9) == 2
    assert not (machine.root / "kept").exists()
    assert forget(3_000) == 0
    assert forget(0) == 1
    assert {path.name for path in machine.root.iterdir() if path.name != ".lock"} == {
        NAME,
        "first",
        "late",
        "of-others",
        "unheard",
    }
