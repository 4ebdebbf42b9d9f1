"""What people see: nothing cut, nothing taken for markup."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mainspring.app.render.events import event_words, events_table, notable
from mainspring.app.render.goodput import goodput_table, goodput_text, report_panel
from mainspring.app.render.jobs import job_panel, ranks_text
from mainspring.app.render.progress import Lines
from mainspring.app.render.tables import CONSOLE, Listing, framed, gist, jobs_table
from mainspring.app.sdk.lab import job
from mainspring.domain.answers import AttemptView, Event, GoodputReport, JobView
from mainspring.domain.goodput import Goodput, TimeUse
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire import AtRisk, Detail, RankStatus
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import (
    AttemptEndedEvent,
    AttemptGrantedEvent,
    AttemptResizedEvent,
    AttemptStoppingEvent,
    LeadNamedEvent,
)
from mainspring.domain.wire.events.jobs import JobMovedEvent
from mainspring.domain.wire.events.leads import (
    AgentLeavingEvent,
    CheckpointDurableEvent,
    CheckpointFailedEvent,
    GenerationResumedEvent,
    HangEvent,
    LeadEndedEvent,
    RankLeftEvent,
    ResultEvent,
    SnapshotPaceEvent,
)

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


@pytest.mark.parametrize(
    ("risk", "words"),
    [
        ((143, 0.93, 1_021, 6.64), "143 steps (0.93 s) if a rank dies, 1021 steps (6.6 s) if all nodes do"),
        ((1, 300.0, 13, 3_900.0), "1 step (5 min) if a rank dies, 13 steps (1.1 h) if all nodes do"),
        ((0, 0.0, 5, 0.0), "0 steps if a rank dies, 5 steps if all nodes do"),
    ],
)
def test_job_that_runs_says_what_would_be_lost_now(risk: tuple[int, float, int, float], words: str) -> None:
    steps, seconds, durable_steps, durable_seconds = risk
    told = AtRisk(steps=steps, seconds=seconds, durable_steps=durable_steps, durable_seconds=durable_seconds)
    rank = RankStatus(rank=0, node=NodeName("alpha-0"), pid=7, alive=True, step=3)
    view = _view("")
    live = replace(view.attempts[0], state=AttemptState.RUNNING, ranks=(rank,), at_risk=told)
    drawn = _drawn(job_panel(replace(view, state=JobState.RUNNING, attempts=(live,)), (), now_s=9.0), columns=200)
    assert f"at risk {words}" in re.sub(" +", " ", drawn)
    assert "at risk" not in _drawn(job_panel(view, (), now_s=9.0), columns=200)


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


# ---------------------------------------------------------------- events

DETAILS = st.dictionaries(
    st.sampled_from(["step", "rank", "reason", "words", "epoch", "agent", "odd", "silent_s", "exit_code", "every"]),
    st.one_of(st.text(max_size=20), st.integers(-9, 99), st.floats(0, 9), st.booleans()),
)


@given(st.sampled_from([event.kind for event in EVENTS]), DETAILS)
def test_an_event_of_any_kind_with_any_details_reads_as_one_short_line(kind: str, detail: Detail) -> None:
    words = event_words(Event(sequence=1, time_s=1.0, kind=kind, detail=detail))
    assert "\n" not in words
    assert len(words) <= 300
    assert words or kind == ResultEvent.kind


@pytest.mark.parametrize(
    ("kind", "detail", "words"),
    [
        (
            LeadNamedEvent.kind,
            {"epoch": 2, "agent": 3, "reason": "agent 0, which led, has not been heard of for 15 s"},
            "agent 3 leads from now on, the 2nd to: agent 0, which led, has not been heard of for 15 s",
        ),
        (
            HangEvent.kind,
            {"generation": 1, "step": 40, "silent_s": 12.5, "odd": "rank 2", "evidence": "stopped"},
            "no rank got past step 40 for 12.5 s; the odd ones: rank 2 (stopped)",
        ),
        (
            RankLeftEvent.kind,
            {"generation": 1, "rank": 2, "step": 7, "words": "connection closed by peer"},
            "rank 2 left at step 7 after an error: connection closed by peer; its process goes on, and joins again",
        ),
        (
            RankLeftEvent.kind,
            {"generation": 1, "rank": 2, "step": 7, "words": ""},
            "rank 2 left at step 7 as it was asked to; its process goes on, and joins again",
        ),
        (
            SnapshotPaceEvent.kind,
            {"every": 8, "interval_s": 4.25, "cost_s": 0.1, "failures_per_day": 0.016},
            "a snapshot every 8 steps, on the way to the best pace, one in 4.25 s: each costs 0.1 s, and 0.016 "
            "failures a day are expected",
        ),
        (
            AttemptGrantedEvent.kind,
            {"number": 1, "nodes": 1, "cluster": "local", "plan": 3, "step": -1},
            "attempt 1 is granted 1 node of local by plan 3",
        ),
        (
            GenerationResumedEvent.kind,
            {"generation": 2, "step": 256, "source": "arena", "ranks": 2},
            "generation 2 begins at step 256, from arena, 2 ranks",
        ),
        (
            AgentLeavingEvent.kind,
            {"agent": 1, "node": "alpha-1", "grace_s": 30.0},
            "alpha-1, with agent 1, is taken away in 30 s",
        ),
        (
            AttemptResizedEvent.kind,
            {"role": "main", "replicas": 2, "reason": "shrinks", "for_job": "job-7"},
            "goes on with 2 replicas of main: shrinks, for job-7",
        ),
    ],
)
def test_events_of_a_run_read_as_plain_words(kind: str, detail: Detail, words: str) -> None:
    assert event_words(Event(sequence=1, time_s=1.0, kind=kind, detail=detail)) == words


def test_events_shown_leave_out_all_but_the_newest_of_those_that_come_often() -> None:
    kinds = [CheckpointDurableEvent.kind, HangEvent.kind, CheckpointDurableEvent.kind]
    more: Detail = {"size_bytes": 1, "generation": 1, "silent_s": 1.0, "odd": "", "evidence": ""}
    events = [Event(sequence=n, time_s=float(n), kind=kind, detail={"step": n, **more}) for n, kind in enumerate(kinds)]
    shown = _drawn(events_table(events), columns=100)
    assert shown.count("checkpoint_durable") == 1
    assert "step 2 is durable" in shown
    assert [event.kind for event in notable(events)] == [HangEvent.kind]


def test_events_shown_tell_the_reason_of_one_failure_once_and_of_the_next_attempts_again() -> None:
    reason = "rank 0 exited with 1, after 8 restarts in place"
    again = f"attempt 1 was lost ({reason}); waiting to start again (loss 1 of 4)"
    failure: list[tuple[str, Detail]] = [
        (LeadEndedEvent.kind, {"outcome": "lost", "reason": reason, "step": 7}),
        (AttemptStoppingEvent.kind, {"cause": "outcome", "reason": reason}),
        (AttemptEndedEvent.kind, {"outcome": "lost", "reason": reason}),
        (JobMovedEvent.kind, {"before": "running", "after": "queued", "reason": again}),
        (CheckpointFailedEvent.kind, {"step": 7, "reason": "disk full"}),
        (CheckpointFailedEvent.kind, {"step": 8, "reason": "disk full"}),
    ]
    granted: tuple[str, Detail] = (AttemptGrantedEvent.kind, {"number": 2, "nodes": 1, "cluster": "local", "plan": 3})
    told = [*failure, granted, *failure]
    events = [Event(sequence=n, time_s=float(n), kind=kind, detail=detail) for n, (kind, detail) in enumerate(told)]
    lines = _drawn(events_table(events), columns=200).splitlines()[1:]
    said = [re.split(r"\s{2,}", line.strip())[-1] for line in lines]
    assert said[:4] == [
        f"its lead ended it at step 7: lost, {reason}",
        "the attempt is asked to end",
        "the attempt is over: lost",
        "running -> queued: attempt 1 was lost; waiting to start again (loss 1 of 4)",
    ]
    assert said[7:] == said[:6]
    assert said[5] == "step 8 could not be made durable: disk full"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("every rank ended well", "every rank ended well"),
        (
            'it said: Traceback (most recent call last):\n  File "a.py", line 1\n    f()\nKeyError: 1\n',
            "it said: KeyError: 1",
        ),
        ('Traceback (most recent call last):\n  File "a.py"', 'Traceback (most recent call last):\n  File "a.py"'),
    ],
)
def test_of_a_traceback_in_a_reason_the_error_alone_is_told(reason: str, words: str) -> None:
    assert gist(reason) == words


# ---------------------------------------------------------------- ranks and goodput


def test_ranks_that_are_gone_or_behind_are_named() -> None:
    ranks = [
        RankStatus(rank=rank, node=NodeName(f"n{rank}"), pid=rank, alive=rank != 1, step=step)
        for rank, step in enumerate([20, 20, 20, 12])
    ]
    attempt = replace(_view("").attempts[0], ranks=tuple(ranks))
    assert ranks_text(attempt) == (
        "3 of 4 alive in generation 3; rank 1 on n1 is gone; rank 3 on n3 is at step 12 of 20"
    )


@pytest.mark.parametrize(
    ("spares", "words"),
    [
        (1, "2 of 2 alive in generation 3, 1 standing by"),
        (0, "2 of 3 alive in generation 3; rank 2 on n2 is gone"),
    ],
)
def test_a_spare_that_never_ran_is_said_to_stand_by(spares: int, words: str) -> None:
    ranks = [
        RankStatus(rank=rank, node=NodeName(f"n{rank}"), pid=pid, alive=pid > 0, step=20 if pid else -1)
        for rank, pid in enumerate([7, 8, 0])
    ]
    attempt = replace(_view("").attempts[0], ranks=tuple(ranks))
    assert ranks_text(attempt, spares=spares) == words


SHARES = st.lists(st.floats(0, 1e6), min_size=len(TimeUse), max_size=len(TimeUse))


@given(SHARES)
def test_goodput_table_has_a_bar_for_each_use_and_states_the_law(shares: list[float]) -> None:
    seconds = dict(zip(TimeUse, shares, strict=True))
    told = Goodput(allocated_s=sum(shares), seconds=seconds, waited_s=90.0, preemptions=2)
    drawn = _drawn(goodput_table(told, title="job-1"), columns=120)
    lines = drawn.splitlines()
    assert sum(line.startswith("sum ") for line in lines) == 1
    assert "= allocated" in drawn
    assert "in the queue, preempted twice" in drawn
    for use, name in ((TimeUse.PRODUCTIVE, "productive"), (TimeUse.RECOVERY, "recovery")):
        (line,) = [line for line in lines if line.startswith(name)]
        share = seconds[use] / told.allocated_s if told.allocated_s else 0.0
        assert abs(line.count("█") - share * 30) <= 1


def test_goodput_on_one_line_names_the_largest_losses_first() -> None:
    told = Goodput(
        allocated_s=7_200.0,
        seconds={TimeUse.PRODUCTIVE: 6_480.0, TimeUse.STARTUP: 216.0, TimeUse.RECOVERY: 504.0},
    )
    assert goodput_text(told) == "90.0% of 2.0 node-h (recovery 7.0%, start-up 3.0%)"
    assert goodput_text(Goodput(allocated_s=0.0, seconds={})) == "nothing allocated yet"


def test_report_shows_a_row_for_each_team_and_cluster() -> None:
    told = Goodput(allocated_s=10.0, seconds={TimeUse.PRODUCTIVE: 10.0})
    report = GoodputReport(attempts=1, whole=told, teams={"vision": told}, clusters={"alpha": told}, complete=False)
    drawn = _drawn(report_panel(report, title="everything"), columns=120)
    assert "the newest 1 attempt; older ones are left out: goodput 100.0%" in drawn
    assert "vision" in drawn
    assert "alpha" in drawn


def _lines(steps: list[tuple[float, float]], *, total: float = 100) -> list[str]:
    """What a log file has of a job that was told of at these times (seconds, done)."""
    file, now = io.StringIO(), [0.0]
    with Lines(Console(file=file, width=30), now_s=lambda: now[0]) as bar:
        task = bar.add_task("ingest", total=total, note="")
        for at_s, done in steps:
            now[0] = at_s
            bar.update(task, completed=done, note="2 left out")
    return file.getvalue().splitlines()


def test_progress_in_a_file_is_a_line_for_each_tenth_or_ten_seconds_and_one_at_the_end() -> None:
    quick = _lines([(0.002 * done, done) for done in range(101)])
    assert quick == ["ingest: 100 of 100 (100 %), 0 s, 2 left out"]
    slow = _lines([(3.0 * done, done) for done in range(1, 101)])
    assert slow[0] == "ingest: 4 of 100 (4 %), 12 s, 5 min left, 2 left out"
    assert 12 <= len(slow) <= 31
    assert slow[-1] == "ingest: 100 of 100 (100 %), 300 s, 2 left out"


@pytest.mark.parametrize("columns", [80, 1_000])
def test_frame_in_a_file_is_as_wide_as_people_read(columns: int) -> None:
    lines = _drawn(framed("word " * 100, "title"), columns=columns).splitlines()
    assert {len(line) for line in lines} == {min(columns, 100)}
