"""A stand-in for the controller of one attempt: orders, leads, heartbeats; as `control.service.agents` for real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

from mainspring.domain import wire
from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.life import AttemptState
from mainspring.simulator.nodes.agenda import Agenda
from mainspring.simulator.nodes.attempt import Controller
from tests.node.lead_agents import places


@final
class StandInController(Controller):
    """Names leads and hears them. Agents' nodes are called after their numbers; an agent's token is its node.

    Args:
        told: The first lead's orders.
        gone: Returns the agents that an engine has seen end.
    """

    def __init__(self, told: wire.Orders, agenda: Agenda, gone: Callable[[], tuple[int, ...]]) -> None:
        self.up = True
        self.cut_until_s: dict[str, float] = {}  # By token: whom calls do not reach it from.
        self.heard: dict[int, list[wire.LeadEvent]] = {}  # By epoch, once each.
        self.outcome: AttemptState | None = None
        self._told = told
        self._agenda = agenda
        self._gone = gone
        self._addresses: dict[int, str] = {}
        self._epoch = self._lead = 0
        self._heard_s = 0.0
        self._leads_since_s: dict[int, float] = {}  # By epoch.
        self._step = -1

    def register(self, call: wire.Register, token: str) -> wire.Orders:
        """Returns an agent's orders, ready once all have come; names another lead when this one is not heard of."""
        now_s = self._arrive("register", token)
        if self.outcome is not None:
            raise Conflict("register an agent", got="an attempt that has ended")
        number = int(token.removeprefix("n"))
        self._addresses[number] = call.address
        if not self._epoch and len(self._addresses) < self._told.agents:
            return replace(self._told, ready=False)
        if not self._epoch:
            self._epoch, self._heard_s = self._told.epoch, now_s
        elif call.lost_epoch == self._epoch and now_s - self._heard_s >= self._told.lease_s:
            self._epoch, self._lead, self._heard_s = self._epoch + 1, number, now_s
        return self._orders(number, now_s)

    def _orders(self, number: int, now_s: float) -> wire.Orders:
        told, leads, agents = self._told, number == self._lead, max(self._addresses) + 1
        if leads:
            self._leads_since_s.setdefault(self._epoch, now_s)
        each = len(told.ranks) // told.agents
        listed = range(agents) if leads else (number,)
        return replace(
            told,
            epoch=self._epoch,
            agent=number,
            agents=agents,
            lead=leads,
            lead_address=self._addresses[self._lead],
            ranks=tuple(place for agent in listed for place in places(agent, each, agents * each)),
            furthest_step=max(told.furthest_step, self._step) if self._epoch > told.epoch else told.furthest_step,
        )

    def heartbeat(self, beat: wire.Heartbeat, token: str, *, newer: bool) -> wire.HeartbeatReply:
        """Takes a report of the lead it has named; fences any other.

        Raises:
            AssertionError: The lead's ledger books more than its nodes' time.
        """
        now_s = self._arrive("heartbeat", token)
        if beat.epoch != self._epoch or self.outcome is not None:
            return wire.HeartbeatReply(acknowledged=0, fenced=True)
        self._heard_s, self._step = now_s, max(self._step, beat.step)
        node_s = (now_s - self._leads_since_s[beat.epoch]) * (max(self._addresses) + 1)
        assert sum(beat.seconds.values()) <= node_s * (1 + 1e-9), "the ledger never books too much"
        heard = self.heard.setdefault(beat.epoch, [])
        heard += [event for event in beat.events if event.sequence > len(heard)]
        assert not isinstance(beat.outcome, wire.Unknown), "the lead is of this release"
        self.outcome = beat.outcome
        return wire.HeartbeatReply(acknowledged=len(heard), gone=self._gone())

    def _arrive(self, call: str, token: str) -> float:
        now_s = self._agenda.now_s
        if not self.up or now_s < self.cut_until_s.get(token, 0.0):
            raise Unavailable(call, got="no answer")
        return now_s
