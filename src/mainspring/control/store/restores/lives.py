"""Lives of a store: each time that it was found to have gone back in time another begins, and numbers leap ahead.

A restore begins one. So does a change of PostgreSQL's timeline, as when a standby is promoted: one that was behind has
forgotten the newest that others were told of. One that was not has forgotten nothing, and nothing is held for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.databases.copying import count_on, last_of
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import audit, events, lives, plans

# Numbers given out in the time that a store forgot are never given out again: of events, a busy lab's of a week.
LEAP = 10_000_000
ATTEMPTS_LEAP = 1_000  # Of one job: far more than `attempts_max` lets it lose, and plans evict.


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The last numbers that a store gave out: of events, audit lines, plans and lives."""

    event: int = 0
    audit: int = 0
    plan: int = 0
    life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """From when on a store knows all that it says.

    Args:
        cause: Why it began, for people.
        timeline: PostgreSQL's then, 0 elsewhere.
    """

    number: int
    began_s: float
    cause: str
    timeline: int


_ROWS = RowMapping(Life, lives)
_NEWEST = _ROWS.select.order_by(lives.c.number.desc()).limit(1)
# The file that is written to now is named by the timeline first, in hexadecimal; the control file tells of it later.
_TIMELINE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint"


def current_life(connection: sa.Connection) -> Life | None:
    """Returns the newest life, None for a store that never went back."""
    return next(iter(_ROWS.read(connection, _NEWEST)), None)


def first_attempt(life: Life | None, submitted_s: float) -> int:
    """Returns the lowest number that the next attempt of a job may have; claims on its checkpoints compare by it.

    Args:
        life: The store's newest.
        submitted_s: When the job was.
    """
    return 1 if life is None or submitted_s > life.began_s else 1 + life.number * ATTEMPTS_LEAP


def given_out(connection: sa.Connection) -> Numbers:
    """Returns the last numbers that a store gave out; 0 of those for which it has no table."""
    there = sa.inspect(connection).get_table_names()

    def last(counter: sa.Column[int]) -> int:
        if counter.table.name not in there:
            return 0
        highest = connection.execute(sa.select(sa.func.max(counter))).scalar() or 0
        return max(highest, last_of(connection, counter))  # The database itself numbers only events and audit lines.

    return Numbers(
        event=last(events.c.sequence),
        audit=last(audit.c.sequence),
        plan=last(plans.c.number),
        life=last(lives.c.number),
    )


def follow_timeline(connection: sa.Connection, now_s: float) -> Life | None:
    """Returns the newest life, begun now where PostgreSQL's timeline is another than before.

    Args:
        connection: From `Store.write`.
    """
    newest = current_life(connection)
    if connection.dialect.name != "postgresql":
        return newest
    timeline = connection.exec_driver_sql(_TIMELINE).scalar_one()
    if newest is None:
        return _begin(connection, Life(number=0, began_s=0.0, cause="", timeline=timeline))
    if newest.timeline != timeline:
        return begin_life(connection, f"PostgreSQL went from timeline {newest.timeline} to {timeline}", now_s)
    return newest


def begin_life(connection: sa.Connection, cause: str, now_s: float, *, seen: Numbers | None = None) -> Life:
    """Returns a new life, in which all numbers are higher than any before.

    Args:
        connection: Of the store, in a transaction.
        cause: Why, for people.
        seen: The last that were given out as far as anybody knows; None for those of this store.
    """
    own, seen = given_out(connection), seen or Numbers()
    count_on(connection, events.c.sequence, max(own.event, seen.event) + LEAP)
    count_on(connection, audit.c.sequence, max(own.audit, seen.audit) + LEAP)
    number = max(own.plan, seen.plan) + LEAP
    connection.execute(sa.insert(plans).values(number=number, made_s=now_s, starts=0, evicts=0, waits=0))
    timeline = connection.exec_driver_sql(_TIMELINE).scalar_one() if connection.dialect.name == "postgresql" else 0
    return _begin(connection, Life(number=max(own.life, seen.life) + 1, began_s=now_s, cause=cause, timeline=timeline))


def _begin(connection: sa.Connection, life: Life) -> Life:
    columns = {"number": life.number, "began_s": life.began_s, "cause": life.cause, "timeline": life.timeline}
    connection.execute(sa.insert(lives).values(columns))
    return life
