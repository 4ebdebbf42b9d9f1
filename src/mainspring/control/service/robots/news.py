"""What becomes of rollouts, as events in the store: in the transaction of what they tell of."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from mainspring.control.store.robots import records
from mainspring.control.store.robots.records import RobotActionRecord
from mainspring.control.store.robots.tables import rollout_events
from mainspring.control.store.rows import read_text, text_of
from mainspring.domain.answers import ActionState
from mainspring.domain.answers.policies.rollouts import WORDS_MAX, RolloutEvent, RolloutEventKind

TRIES_BACK_MAX = 5  # A robot that loses power as it goes back tries again; what fails so often wants a person.


def add_events(connection: sa.Connection, rollout: int, events: Iterable[RolloutEvent]) -> None:
    """Adds events to a rollout."""
    rows = [{"rollout": rollout, "event": text_of(event)} for event in events]
    if rows:
        connection.execute(sa.insert(rollout_events), rows)


def events_of(connection: sa.Connection, rollout: int, since: int = 0) -> list[tuple[int, RolloutEvent]]:
    """Returns events of a rollout with their sequence, oldest first.

    Args:
        since: Only what came after this one.
    """
    query = sa.select(rollout_events.c.sequence, rollout_events.c.event).where(
        rollout_events.c.rollout == rollout, rollout_events.c.sequence > since
    )
    found = connection.execute(query.order_by(rollout_events.c.sequence))
    return [(row.sequence, read_text(RolloutEvent, row.event)) for row in found]


def tell_rollout(
    connection: sa.Connection,
    action: RobotActionRecord,
    state: ActionState,
    words: str,
    now_s: float,
    *,
    unhealthy: bool = False,
) -> None:
    """Tells an action's rollout how it ended; nothing where it belongs to none. A robot that failed as it went back is
    asked again, `TRIES_BACK_MAX` times in all.

    Args:
        unhealthy: Whether the release did not prove healthy.
    """
    if action.rollout is None:
        return
    if action.back:
        kind = RolloutEventKind.RETURNED if state is ActionState.DONE else None
        if state is ActionState.FAILED and records.tries_back(connection, action) < TRIES_BACK_MAX:
            wanted = {action.robot: action.release}
            records.add_actions(connection, wanted, now_s=now_s, rollout=action.rollout, back=True)
    elif state is ActionState.DONE:
        kind = RolloutEventKind.COMMITTED
    else:
        kind = RolloutEventKind.UNHEALTHY if unhealthy else RolloutEventKind.FAILED
    if kind is not None:
        event = RolloutEvent(kind=kind, at_s=now_s, robot=action.robot, words=words[:WORDS_MAX])
        add_events(connection, action.rollout, [event])
