"""Event texts: each in plain words, for people who never saw a list of kinds; and alerts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import RenderableType

from mainspring.app.render.tables import Listing, ago, facts_grid, gist
from mainspring.domain.answers import Event
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent

if TYPE_CHECKING:
    from mainspring.control.service.alerts.values import Alert

SHOWN_MAX = 30
NOTED_MAX = 5
_NOTABLE = {event.kind for event in EVENTS if event.notable}
_FREQUENT = {event.kind for event in EVENTS if event.frequent}
_PASS_ON = {event.kind for event in EVENTS if event.passes_on}
_WORDS_MAX = 300


def event_words(event: Event) -> str:
    """Returns what an event says, in plain words on one line."""
    short = {name: gist(fact) if isinstance(fact, str) else fact for name, fact in event.detail.items()}
    return " ".join(str(replace(event, detail=short).told).split())[:_WORDS_MAX]


def event_line(event: Event) -> str:
    """Returns an event on one line: its number, the time here, whose it is, what happened."""
    clock = time.strftime("%m-%d %H:%M:%S", time.localtime(event.time_s))
    return f"{event.sequence:>7} {clock} {event.job or '-':<16} {event.kind}: {event_words(event)}"


def events_table(events: Sequence[Event], *, most: int = SHOWN_MAX) -> Listing:
    """Returns the newest events; of durable checkpoints and paces the newest alone, and each reason once.

    Args:
        events: Oldest first.
        most: How many to show.
    """
    start_s = events[0].time_s if events else 0.0
    newest = {kind: event for event in events if (kind := event.kind) in _FREQUENT}
    shown = [event for event in events if event.kind not in _FREQUENT or newest[event.kind] is event]
    return Listing(">AT", "EVENT", "~WHAT").add_rows(
        (f"+{event.time_s - start_s:.1f} s", event.kind, event_words(event))
        for event in _each_reason_once(shown[-most:])
    )


def _each_reason_once(events: Sequence[Event]) -> Iterator[Event]:
    """Yields events, ends without the reason that an earlier one of the same attempt has told."""
    said: dict[str, None] = {}
    for event in events:
        if event.kind == AttemptGrantedEvent.kind:
            said = {}
        if event.kind not in _PASS_ON:
            yield event
            continue
        reason = str(event.detail.get("reason", ""))
        left = "" if reason in said else reason
        for known in said:
            left = left.replace(f" ({known})", "")
        said[reason] = None
        yield replace(event, detail={**event.detail, "reason": left})


def notable(events: Sequence[Event]) -> list[Event]:
    """Returns the newest events that say how a run fares.

    Args:
        events: Oldest first.
    """
    return [event for event in events if event.kind in _NOTABLE][-NOTED_MAX:]


def alerts_table(alerts: Sequence[Alert]) -> RenderableType:
    """Returns one row an alert."""
    made = Listing("ALERT", "TELLS", ">AFTER", "~SAYS")
    return made.add_rows((one.name, one.severity.value, _after(one), one.summary) for one in alerts)


def alert_panel(alert: Alert) -> RenderableType:
    """Returns all there is to say of an alert."""
    facts = {
        "alert": alert.name,
        "tells": alert.severity.value,
        "after": _after(alert),
        "says": alert.summary,
        "holds": alert.expr,
        "runbook": f"docs/runbooks/{alert.runbook}.md",
    }
    return facts_grid(facts)


def _after(alert: Alert) -> str:
    return ago(alert.for_s) if alert.for_s else "at once"
