"""What was seen of machines, as it was told: samples, each once, kept for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.store.rows import add_rows, read_text, text_of
from mainspring.control.store.schema import health_events
from mainspring.domain.answers import HealthEventView
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthEvent, HealthSource
from mainspring.domain.ids import ClusterName, NodeName

KEPT_S = 30 * 86_400.0  # Longer than any rule looks back.
KEPT_MAX = 20_000_000  # However many are told; the oldest go first.
FULL = 20_000  # Two seconds of the most that is told.
FRESH_MAX = FULL + 5_000  # With what calls under way bring; whatever else there is, the loop reads from its text.
ROOM_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A health event, and who told it: an attempt, somebody, or "" for the controller itself."""

    teller: str
    event: HealthEvent


@final
class FreshSamples:
    """What this server was told and its loop has not read: what came by a call, and was written, is not read again.

    An event's text takes longer to read than all else that is done with it; so who tells much waits for the loop, which
    would never come after them. Used by many threads.

    Args:
        room_s: How long somebody waits for the loop at the most.
    """

    def __init__(self, room_s: float = ROOM_S) -> None:
        self._room_s = room_s
        self._lock = Condition()
        self._old: dict[tuple[str, HealthSource], HealthEvent] = {}  # By teller and source; told before the last turn.
        self._new: dict[tuple[str, HealthSource], HealthEvent] = {}
        self._reads = False

    def turn(self, *, leads: bool) -> None:
        """Learns that the loop begins anew, and whether it leads: for one that does not nothing is kept."""
        with self._lock:
            self._reads = leads
            self._old = self._old | self._new if leads else {}
            self._new = {}
            self._lock.notify_all()

    def wait_for_room(self) -> None:
        """Returns once the loop has little to read, or after a while."""
        with self._lock:
            self._lock.wait_for(lambda: len(self._old) + len(self._new) < FULL, self._room_s)

    def put(self, told: Sequence[Told]) -> None:
        """Keeps events as they stand in the store, until they are taken or there are too many."""
        with self._lock:
            if self._reads and len(self._old) + len(self._new) < FRESH_MAX:
                self._new |= {(one.teller, one.event.source): one.event for one in told}

    def take(self, teller: str, source: HealthSource) -> HealthEvent | None:
        """Returns an event if it is kept, and keeps it no longer."""
        with self._lock:
            of = teller, source
            return self._old.pop(of, None) or self._new.pop(of, None)

    def done(self) -> None:
        """Learns that the loop has read all that was in the store when its turn began: it asks for none of it again."""
        with self._lock:
            self._old.clear()
            self._lock.notify_all()


def add_samples(connection: sa.Connection, told: Sequence[Told], now_s: float) -> int:
    """Adds what was told, but for what is there; returns how much was not.

    Args:
        connection: From `Store.write`.
    """
    rows = [
        {
            "told_s": now_s,
            "teller": one.teller,
            "source": one.event.source.name,
            "session": one.event.source.session,
            "sequence": one.event.source.sequence,
            "cluster": one.event.scope.cluster,
            "node": one.event.scope.node,
            "event": text_of(one.event),
        }
        for one in told
    ]
    return add_rows(connection, health_events, rows, unless_there=True) if rows else 0


def samples(
    connection: sa.Connection,
    *,
    after: int = 0,
    before: int | None = None,
    cluster: ClusterName | None = None,
    node: NodeName | None = None,
    newest: bool = False,
    limit: int,
    fresh: FreshSamples | None = None,
) -> tuple[HealthEventView, ...]:
    """Returns what was told, in the order it was, or the newest first.

    Args:
        after: Only what came after this number.
        before: Only what came before this number, unless None.
        cluster: Only of this cluster, unless None.
        node: Only of this node, unless None.
        newest: Whether to begin with the newest.
        limit: The most to return.
        fresh: Whence those are taken that are there.
    """
    query = sa.select(health_events).where(health_events.c.number > after)
    if before is not None:
        query = query.where(health_events.c.number < before)
    if cluster is not None:
        query = query.where(health_events.c.cluster == cluster)
    if node is not None:
        query = query.where(health_events.c.node == node)
    order = health_events.c.number.desc() if newest else health_events.c.number
    return tuple(_view(row, fresh) for row in connection.execute(query.order_by(order).limit(limit)))


def last_told_by(connection: sa.Connection, source: str) -> Iterator[HealthEvent]:
    """Yields the last that the controller itself told in each session of a source."""
    own = (health_events.c.teller == "", health_events.c.source == source)
    last = sa.select(sa.func.max(health_events.c.number)).where(*own).group_by(health_events.c.session)
    for row in connection.execute(sa.select(health_events.c.event).where(health_events.c.number.in_(last))):
        yield read_text(HealthEvent, row.event)


def told_nodes(connection: sa.Connection) -> tuple[NodeRef, ...]:
    """Returns the nodes of which anything is kept, in order."""
    query = sa.select(health_events.c.cluster, health_events.c.node).where(health_events.c.node != "").distinct()
    rows = connection.execute(query.order_by(health_events.c.cluster, health_events.c.node))
    return tuple(NodeRef(cluster=ClusterName(row.cluster), node=NodeName(row.node)) for row in rows)


def newest_sample(connection: sa.Connection) -> int:
    """Returns the number of the newest, 0 where there is none."""
    return connection.execute(sa.select(sa.func.max(health_events.c.number))).scalar() or 0


def old_samples(before_s: float, limit: int) -> sa.Select[Any]:
    """Returns a query of the oldest few, those told before a time, or beyond how many are kept."""
    newest = sa.select(sa.func.max(health_events.c.number)).scalar_subquery()
    oldest = (
        sa.select(health_events.c.number, health_events.c.told_s).order_by(health_events.c.number).limit(limit)
    ).subquery()
    return sa.select(oldest.c.number).where(sa.or_(oldest.c.told_s < before_s, oldest.c.number <= newest - KEPT_MAX))


def _view(row: Any, fresh: FreshSamples | None) -> HealthEventView:
    source = HealthSource(name=row.source, session=row.session, sequence=row.sequence)
    known = None if fresh is None else fresh.take(row.teller, source)
    event = read_text(HealthEvent, row.event) if known is None else known
    return HealthEventView(number=row.number, told_s=row.told_s, teller=row.teller, event=event)
