"""The audit log: who did what, from where, and what was refused. It only ever grows."""

from __future__ import annotations

from enum import Enum

import sqlalchemy as sa

from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import audit
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import AuditLine
from mainspring.domain.ids import TeamName

_TEXT_MAX = 255


class Outcome(str, Enum):
    """What became of it."""

    DONE = "done"
    REFUSED = "refused"


AUDIT_ROWS = RowMapping(AuditLine, audit)


def note(
    connection: sa.Connection,
    caller: Caller,
    action: str,
    target: str,
    *,
    now_s: float,
    team: str = "",
    outcome: Outcome = Outcome.DONE,
    reason: str = "",
) -> None:
    """Adds a line: in the transaction of what was done, so that neither is without the other.

    Args:
        connection: From `Store.write`.
        caller: Who.
        action: What was done.
        target: To what.
        team: Whose that is.
        reason: Why it was refused.
    """
    line = {
        "time_s": now_s,
        "holder": str(caller)[:_TEXT_MAX],
        "token": caller.token,
        "address": caller.address[:_TEXT_MAX],
        "action": action,
        "target": target[:_TEXT_MAX],
        "team": team,
        "outcome": outcome.value,
        "reason": reason[:_TEXT_MAX],
    }
    connection.execute(sa.insert(audit), line)


def audit_since(
    connection: sa.Connection, *, since: int, limit: int, seen: frozenset[TeamName] | None, newest: bool = False
) -> tuple[AuditLine, ...]:
    """Returns lines after a sequence number, oldest first.

    Args:
        since: The last sequence the caller has seen; 0 for all.
        limit: The most to return.
        seen: Only what is of these teams, unless None.
        newest: Whether to leave out the oldest where there are more, and not the newest.
    """
    order = audit.c.sequence.desc() if newest else audit.c.sequence
    query = AUDIT_ROWS.select.where(audit.c.sequence > since).order_by(order).limit(limit)
    if seen is not None:
        query = query.where(audit.c.team.in_(sorted(seen)))
    return AUDIT_ROWS.read(connection, query)[:: -1 if newest else 1]
