"""What people see: nothing cut, nothing taken for markup."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mainspring.app.output import CONSOLE, Listing, job_panel, jobs_table
from mainspring.app.sdk import job
from mainspring.domain.answers import AttemptView, JobView
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.life import AttemptState, JobState

JOB, ATTEMPT, NAME = JobId("job-x34am42h1s4q"), AttemptId("attempt-2zmtt1czx7ch"), "a-name-of-a-job-that-is-quite-long"


def _drawn(drawable: object, *, columns: int) -> str:
    file = io.StringIO()
    Console(file=file, width=columns, markup=False, emoji=False).print(drawable, crop=False)
    return file.getvalue()


def _view(reason: str) -> JobView:
    attempt = AttemptView(
        id=ATTEMPT,
        number=1,
        state=AttemptState.FAILED,
        cluster=ClusterName("alpha"),
        simulated=True,
        nodes=(NodeName("alpha-0"),),
        generation=3,
        granted_s=1.0,
        ended_s=2.0,
        reason=reason,
        ranks=(),
        dollars=0.1,
    )
    return JobView(
        id=JOB,
        spec=job(NAME, ["true"]),
        state=JobState.FAILED,
        submitted_s=0.0,
        ended_s=2.0,
        reason=reason,
        step=3,
        metrics={},
        result={"said": reason},
        attempts=(attempt,),
        goodput=None,
    )


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_jobs_and_attempts_on_a_screen_of_any_width_keep_ids_and_names_whole(columns: int) -> None:
    view = _view("rank 0 exited with 3, and said a great deal about it before it did so")
    listed = _drawn(jobs_table([view], now_s=60.0), columns=columns)
    assert JOB in listed
    assert NAME in listed
    assert "failed" in listed
    assert ATTEMPT in _drawn(job_panel(view, (), now_s=60.0), columns=columns)


def test_jobs_on_a_narrow_screen_leave_columns_out_and_keep_the_reason() -> None:
    view = _view("every rank ended well")
    wide, narrow = (_drawn(jobs_table([view], now_s=60.0), columns=columns) for columns in (200, 70))
    assert "alpha (simulated)" in wide
    assert "TEAM" not in narrow
    assert "ended" in narrow


def test_reasons_that_look_like_markup_are_shown_as_they_are() -> None:
    reason = "[/red] [bold]no[/nothing] :warning:"
    view = _view(reason)
    with CONSOLE.capture() as captured:
        CONSOLE.print(jobs_table([view], now_s=1.0), job_panel(view, (), now_s=1.0))
    assert captured.get().count("[/red]") == 4


@given(
    st.lists(st.tuples(st.text("ab[]/: é日", min_size=1), st.text("ab ")), min_size=1, max_size=4), st.integers(1, 90)
)
def test_a_listing_of_any_words_on_any_screen_shows_every_name_on_one_line(
    rows: list[tuple[str, str]], columns: int
) -> None:
    made = Listing("NAME", "?OPTIONAL", "~REASON")
    for name, reason in rows:
        made.add_row(name, "x" * 20, reason)
    lines = _drawn(made, columns=columns).splitlines()
    assert all(any(line.startswith(name.rstrip()) for line in lines) for name, _ in rows)
