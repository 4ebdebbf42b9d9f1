"""Reports to the controller: which events it has yet to acknowledge, and what its answers mean."""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice
from typing import final

from mainspring.domain import wire
from mainspring.node.lead.effects import Instant
from mainspring.node.lead.lead import Lead

HEARTBEAT_EVENTS_MAX = 1_000  # About half a megabyte.
EVENTS_KEPT_MAX = 100_000  # Two weeks of a busy attempt whose controller is away; then the oldest are lost.


class Answered(Enum):
    """What an answer to a heartbeat means for a lead."""

    FENCED = "fenced"  # Another lead goes on with the attempt, or another attempt with the job.
    DONE = "done"  # The outcome is known, and every event.
    MORE = "more"  # There is more to tell, at once.
    HEARD = "heard"


@final
class Reports:
    """What one lead tells the controller. Calls alternate: `heartbeat`, and `answered` where an answer came."""

    def __init__(self, orders: wire.Orders, lead: Lead) -> None:
        self._orders = orders
        self._lead = lead
        self._unacknowledged: deque[wire.LeadEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        self._told_all = self._final = False

    def collect(self) -> bool:
        """Takes the lead's new events; returns whether there are any."""
        fresh = bool(self._lead.events)
        self._unacknowledged.extend(self._lead.events)
        self._lead.events.clear()
        return fresh

    def heartbeat(self, now: Instant) -> wire.Heartbeat:
        """Returns the report of this moment. It tells the outcome once it brings the last events too."""
        lead, events = self._lead, tuple(islice(self._unacknowledged, HEARTBEAT_EVENTS_MAX))
        self._told_all = len(events) == len(self._unacknowledged)
        self._final = lead.over and self._told_all
        return wire.Heartbeat(
            attempt=self._orders.attempt,
            epoch=self._orders.epoch,
            generation=lead.generation,
            step=lead.step,
            metrics=lead.metrics,
            ranks=lead.rank_status,
            events=events,
            outcome=lead.outcome if self._final else None,
            reason=lead.reason if self._final else "",
            seconds=lead.seconds(now),
            at_risk=lead.at_risk,
            agent=self._orders.agent,
            address=self._orders.lead_address,
        )

    def answered(self, reply: wire.HeartbeatReply) -> Answered:
        """Returns what the answer to the last heartbeat means; what it acknowledges is not told again."""
        while self._unacknowledged and self._unacknowledged[0].sequence <= reply.acknowledged:
            self._unacknowledged.popleft()
        if reply.fenced:
            return Answered.FENCED
        if self._final and not self._unacknowledged:
            return Answered.DONE
        return Answered.HEARD if self._told_all and not self._lead.over else Answered.MORE
