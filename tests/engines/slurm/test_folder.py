"""The folder shared with the nodes, without a Slurm beside it."""

from __future__ import annotations

import os
from pathlib import Path

from mainspring.domain.fleet import EndedBefore
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.engines.common.records import Claim
from mainspring.engines.slurm.jobs.folder import Folder, Over


def test_folders_of_allocations_that_were_put_away_long_ago_are_forgotten_and_no_others(tmp_path: Path) -> None:
    folder, ids = Folder(tmp_path), [AllocationId(name) for name in ("away", "kept", "queued")]
    for allocation in ids:
        assert folder.claim(allocation, Claim(nodes=(NodeName("n1"),)))
        over = Over(ended_s=1_000.0, exit_code=0, reason="", agent_lost=False)
        folder.records.write(folder.place(allocation).path / "ended.json", over)
        os.utime(folder.place(allocation).path / "claim.json", (500.0, 500.0))
    for allocation in ids[:2]:
        folder.put_away(allocation)
    assert folder.forget_ended(EndedBefore(time_s=1_000.0, kept=(ids[1],), limit=5)) == 0
    assert folder.forget_ended(EndedBefore(time_s=1_001.0, kept=(ids[1],), limit=5)) == 1
    assert [folder.place(allocation).path.exists() for allocation in ids] == [False, True, True]
