"""Every kind of event: its name on the wire and in the store, its facts, how it reads, and what it means to whom.

To add one: a class in the file it belongs to, in that file's union, and the place that tells it. `kind` and the names
of the fields are what stores and peers hold: neither ever changes, and a field that comes later has a default. Who
reads which kinds follows from the marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final, get_args

from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.wire.events.attempts import OfAttempts
from mainspring.domain.wire.events.jobs import OfJobs
from mainspring.domain.wire.events.leads import OfLeads, ResultEvent
from mainspring.domain.wire.events.marks import listed
from mainspring.domain.wire.events.nodes import OfNodes
from mainspring.domain.wire.facts import Detail

KIND_LENGTH_MAX = 32  # What a column of a store holds.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """An event of a newer release, or whose facts are not those of its kind: kept and shown as it came."""

    kind: str
    detail: Detail

    def __str__(self) -> str:
        return listed(self.detail) or self.kind.replace("_", " ")


KnownEvent: TypeAlias = OfJobs | OfAttempts | OfLeads | OfNodes
AnyEvent: TypeAlias = KnownEvent | UnknownEvent
EVENTS: tuple[type[KnownEvent], ...] = get_args(KnownEvent)
TOLD_BY_LEADS = frozenset(event.kind for event in get_args(OfLeads))
TOLD_BY_CONTROLLER = frozenset(event.kind for event in get_args(OfJobs | OfAttempts | OfNodes))
_BY_KIND = {event.kind: event for event in EVENTS}


def read_event(kind: str, detail: Detail) -> AnyEvent:
    """Returns an event as it was told; facts that its kind does not know are left out.

    Args:
        kind: Its kind; one of a newer release is an `UnknownEvent`.
        detail: Its facts.

    Raises:
        InvalidMessage: A fact is missing, or not of the type it has in this kind.
    """
    known = _BY_KIND.get(kind)
    if known is None:
        return UnknownEvent(kind=kind, detail=detail)
    return ResultEvent(detail=detail) if known is ResultEvent else from_plain(known, detail)


def told_event(kind: str, detail: Detail) -> AnyEvent:
    """Returns an event as it was told; one whose facts are not those of its kind is an `UnknownEvent` too.

    Args:
        kind: Its kind.
        detail: Its facts.
    """
    try:
        return read_event(kind, detail)
    except InvalidMessage:
        return UnknownEvent(kind=kind, detail=detail)
