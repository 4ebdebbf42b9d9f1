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


def begin_life(connection: sa.Connection, cause: str, now_s: float, *, events_seen: int = 0) -> Life:
    """Returns a new life, in which numbers of events, audit lines and plans are higher than any before.

    Args:
        connection: Of the store, in a transaction.
        cause: Why, for people.
        events_seen: The newest event of which anybody knows.
    """
    newest = current_life(connection)
    for table, counter in ((events, events.c.sequence), (audit, audit.c.sequence)):
        seen = events_seen if table is events else 0
        count_on(connection, counter, max(seen, last_of(connection, counter)) + LEAP)
    number = (connection.execute(sa.select(sa.func.max(plans.c.number))).scalar() or 0) + LEAP
    connection.execute(sa.insert(plans).values(number=number, made_s=now_s, starts=0, evicts=0, waits=0))
    timeline = connection.exec_driver_sql(_TIMELINE).scalar_one() if connection.dialect.name == "postgresql" else 0
    made = Life(number=1 if newest is None else newest.number + 1, began_s=now_s, cause=cause, timeline=timeline)
    return _begin(connection, made)


def _begin(connection: sa.Connection, life: Life) -> Life:
    columns = {"number": life.number, "began_s": life.began_s, "cause": life.cause, "timeline": life.timeline}
    connection.execute(sa.insert(lives).values(columns))
    return life
