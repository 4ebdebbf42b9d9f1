"""Life cycles: the tables are whole, and only what they name may happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mainspring.domain.errors import IllegalTransition
from mainspring.domain.life import (
    ALLOCATION_MOVES,
    ATTEMPT_MOVES,
    JOB_MOVES,
    AllocationState,
    AttemptState,
    JobState,
    ended,
    moved,
)


def test_tables_name_every_state() -> None:
    assert set(JOB_MOVES) == set(JobState)
    assert set(ATTEMPT_MOVES) == set(AttemptState)
    assert set(ALLOCATION_MOVES) == set(AllocationState)


@pytest.mark.parametrize("table", [JOB_MOVES, ATTEMPT_MOVES, ALLOCATION_MOVES])
def test_every_state_can_reach_an_end(table: Mapping[Any, tuple[Any, ...]]) -> None:
    for start in table:
        reached, frontier = {start}, [start]
        while frontier:
            for after in table[frontier.pop()]:
                if after not in reached:
                    reached.add(after)
                    frontier.append(after)
        assert any(ended(state) for state in reached), start


def test_moves_outside_the_table_are_refused_saying_what_is_allowed() -> None:
    assert moved(JOB_MOVES, JobState.QUEUED, JobState.STARTING, "job-1") is JobState.STARTING
    with pytest.raises(IllegalTransition, match="move job-1; got succeeded -> running; wanted from succeeded: nothing"):
        moved(JOB_MOVES, JobState.SUCCEEDED, JobState.RUNNING, "job-1")
    with pytest.raises(IllegalTransition, match="from granted: running, stopping"):
        moved(ATTEMPT_MOVES, AttemptState.GRANTED, AttemptState.SUCCEEDED, "attempt-1")
