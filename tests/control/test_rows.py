"""Rows of the store as values: each field is a column, and comes back as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
import sqlalchemy as sa

from mainspring.control import Store, open_store
from mainspring.control.store.holdings import ALLOCATION_ROWS, AllocationRecord
from mainspring.control.store.records import ATTEMPT_ROWS, JOB_ROWS, AttemptRecord, JobRecord
from mainspring.control.store.rows import COPIED_MIN, Prepared, RowMapping, add_rows, change_row
from mainspring.control.store.schema import allocations, attempts, events, jobs, leases
from mainspring.domain.codec import alike
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.life import AllocationState, AttemptState, JobState
from mainspring.domain.wire import ProfileAsked

READ_APART = {
    JobRecord: {"spec", "submit_key", "code"},
    AttemptRecord: {"ranks", "at_risk", "counted"},
    AllocationRecord: {"part", "chips", "released"},
}
MAPPED: list[tuple[type, RowMapping[Any], sa.Table]] = [
    (JobRecord, JOB_ROWS, jobs),
    (AttemptRecord, ATTEMPT_ROWS, attempts),
    (AllocationRecord, ALLOCATION_ROWS, allocations),
]
JOB = JobRecord(
    ordinal=7,
    id=JobId("job-1"),
    name="train",
    team=TeamName("vision"),
    state=JobState.RUNNING,
    submitted_s=1.5,
    ended_s=None,
    reason="why",
    step=11,
    metrics={"loss": 0.5},
    result={"kept": True, "path": "x"},
    array=JobId("job-1"),
    array_index=0,
    owner="ada",
    array_count=2,
)
ATTEMPT = AttemptRecord(
    id=AttemptId("attempt-1"),
    job=JOB.id,
    number=2,
    state=AttemptState.LOST,
    cluster=ClusterName("east"),
    simulated=True,
    plan=5,
    granted_s=2.5,
    ended_s=9.5,
    stop_cause="lost",
    outcome=AttemptState.FAILED,
    reason="gone",
    generation=3,
    step=12,
    events_seen=4,
    heard_s=8.5,
    epoch=1,
    lead=6,
    led_s=None,
    seconds={"productive": 4.0},
    seconds_before={},
    profile=ProfileAsked(id="profile-1", steps=5, ranks=(0,), asked_s=1.5),
)
ALLOCATION = AllocationRecord(
    id=AllocationId("allocation-1"),
    attempt=ATTEMPT.id,
    place=1,
    cluster=ClusterName("east"),
    state=AllocationState.LAUNCHED,
    launched_s=3.5,
    stopped_s=None,
    agent_first=8,
    rank_first=16,
    nodes=2,
    dollars_per_hour=4.5,
    granted_s=2.5,
    came_s=None,
    ended_s=None,
    lost=True,
    queued="",
    hosts=("a", "b"),
)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.mark.parametrize(("kind", "rows", "table"), MAPPED)
def test_columns_of_a_table_are_the_fields_of_its_record_and_those_that_are_read_apart(
    kind: type, rows: RowMapping[Any], table: sa.Table
) -> None:
    mapped = {column.name for column in rows.columns.values()}
    assert list(rows.columns) == [field.name for field in fields(kind)]
    assert {column.name for column in table.c} - mapped == READ_APART[kind]


@pytest.mark.parametrize(("kind", "rows", "table"), MAPPED)
def test_field_may_be_none_where_its_column_may(kind: type, rows: RowMapping[Any], table: sa.Table) -> None:
    hints = get_type_hints(kind)
    nullable = {name: bool(column.nullable) for name, column in rows.columns.items()}
    assert nullable == {name: NoneType in get_args(hint) for name, hint in hints.items()}


def test_records_written_are_read_as_they_were(store: Store) -> None:
    with store.write() as connection:
        connection.execute(sa.insert(jobs).values(spec="{}", **JOB_ROWS.row(alike(JobRecord, JOB))))
        connection.execute(sa.insert(attempts).values(**ATTEMPT_ROWS.row(alike(AttemptRecord, ATTEMPT))))
        place = ALLOCATION_ROWS.row(alike(AllocationRecord, ALLOCATION))
        connection.execute(sa.insert(allocations).values(part="{}", chips="{}", **place))
    with store.read() as connection:
        assert JOB_ROWS.read(connection, JOB_ROWS.select) == (JOB,)
        assert ATTEMPT_ROWS.read(connection, ATTEMPT_ROWS.select) == (ATTEMPT,)
        assert ALLOCATION_ROWS.read(connection, ALLOCATION_ROWS.select) == (ALLOCATION,)


def test_fields_that_may_be_none_are_read_as_none(store: Store) -> None:
    job = replace(JOB, array=None, array_index=None, array_count=None)
    with store.write() as connection:
        connection.execute(sa.insert(jobs).values(spec="{}", **JOB_ROWS.row(alike(JobRecord, job))))
    with store.read() as connection:
        assert JOB_ROWS.read(connection, JOB_ROWS.select) == (job,)


def test_statement_that_is_prepared_finds_what_it_finds_otherwise(store: Store) -> None:
    named = Prepared(ATTEMPT_ROWS.select.where(attempts.c.id == sa.bindparam("one"), attempts.c.simulated))
    others = [replace(ATTEMPT, id=AttemptId("attempt-2"), number=3), replace(ATTEMPT, number=4, simulated=False)]
    with store.write() as connection:
        connection.execute(sa.insert(jobs).values(spec="{}", **JOB_ROWS.row(alike(JobRecord, JOB))))
        for each in (ATTEMPT, others[0], replace(others[1], id=AttemptId("attempt-3"))):
            connection.execute(sa.insert(attempts).values(**ATTEMPT_ROWS.row(alike(AttemptRecord, each))))
    with store.read() as connection:
        (found,) = ATTEMPT_ROWS.read(connection, named, one="attempt-1")
        assert found == ATTEMPT
        assert found.simulated is True, "SQLite says 1"
        assert ATTEMPT_ROWS.read(connection, named, one="attempt-2") == (others[0],)
        assert ATTEMPT_ROWS.read(connection, named, one="attempt-3") == ()


def test_row_that_is_changed_keeps_its_other_columns_and_others_theirs(store: Store) -> None:
    other = replace(JOB, ordinal=8, id=JobId("job-2"), array=None, array_index=None, array_count=None)
    with store.write() as connection:
        for job in (JOB, other):
            connection.execute(sa.insert(jobs).values(spec="{}", **JOB_ROWS.row(alike(JobRecord, job))))
        change_row(connection, jobs, "job-1", {"step": 12, "reason": 'it\'s\n"so"', "ended_s": 3.5})
        change_row(connection, jobs, "job-1", {"reason": "%(own_row)s ? :x", "metrics": "{}"})
        change_row(connection, jobs, "job-9", {"step": 13})
        changed = replace(JOB, step=12, reason="%(own_row)s ? :x", ended_s=3.5, metrics={})
        assert JOB_ROWS.read(connection, JOB_ROWS.select.order_by(jobs.c.ordinal)) == (changed, other)


@pytest.mark.parametrize("count", [2, 2 * COPIED_MIN])
def test_rows_few_or_many_are_written_as_they_are(store: Store, count: int) -> None:
    awkward = 'a\tb\\n\n"c" {"d": [1]} \\N ü \x7f'
    rows = [
        {"time_s": at + 0.1, "kind": awkward if at % 2 else "", "job_id": None, "attempt_id": None, "detail": f"{at}"}
        for at in range(count)
    ]
    with store.write() as connection:
        assert add_rows(connection, events, rows) == count
        found = connection.execute(sa.select(events.c.time_s, events.c.kind, events.c.job_id, events.c.detail))
        assert [tuple(row) for row in found.fetchall()] == [
            (row["time_s"], row["kind"], None, row["detail"]) for row in rows
        ]


@pytest.mark.parametrize("count", [2, 2 * COPIED_MIN])
def test_rows_few_or_many_of_which_one_is_there_already_are_refused_as_a_whole(store: Store, count: int) -> None:
    rows = [{"name": f"{at}", "holder": "", "epoch": 0, "expires_s": 0.0} for at in range(count)]
    with pytest.raises(sa.exc.IntegrityError), store.write() as connection:
        add_rows(connection, leases, [*rows, rows[0]])
    with store.write() as connection:
        assert add_rows(connection, leases, rows) == count
