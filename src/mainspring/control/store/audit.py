"""The audit log: who did what, from where, and what was refused. It only ever grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
_INSERT = sa.insert(audit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that was done.

    Args:
        caller: Who.
        action: What was done.
        target: To what.
        team: Whose that is.
    """

    caller: Caller
    action: str
    target: str
    team: str = ""


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
    deed = Deed(caller=caller, action=action, target=target, team=team)
    connection.execute(_INSERT, _line(deed, now_s) | {"outcome": outcome.value, "reason": reason[:_TEXT_MAX]})


def note_all(connection: sa.Connection, deeds: Sequence[Deed], now_s: float) -> None:
    """Adds a line for each thing that was done.

    Args:
        connection: From `Store.write`.
    """
    connection.execute(_INSERT, [_line(deed, now_s) for deed in deeds])


def _line(deed: Deed, now_s: float) -> dict[str, object]:
    return {
        "time_s": now_s,
        "holder": str(deed.caller)[:_TEXT_MAX],
        "token": deed.caller.token,
        "address": deed.caller.address[:_TEXT_MAX],
        "action": deed.action[:_TEXT_MAX],
        "target": deed.target[:_TEXT_MAX],
        "team": deed.team,
        "outcome": Outcome.DONE.value,
        "reason": "",
    }


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
