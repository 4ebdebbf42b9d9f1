"""Which agents there are, which can be counted on, and when one that is silent may be given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import final

from mainspring.node.lead.effects import Joined


@dataclass(slots=True)
class AgentSeen:
    """One agent as the lead last saw it.

    Args:
        left_s: When its line went, while it is down.
        busy: Whether ranks may live there that the lead has not seen end.
        gone: Whether its engine has seen it end since its line went: nothing of it lives.
        noticed_s: When it was noticed to be gone, or silent for too long, None while it is not.
        lost: Whether the lead goes on without it.
        leaving_s: When its engine takes it away, None while that is not announced.
    """

    left_s: float
    busy: bool = False
    node: str = ""
    address: str = ""
    connected: bool = False
    gone: bool = False
    noticed_s: float | None = None
    lost: bool = False
    leaving_s: float | None = None
    drained: bool = False
    masters: Mapping[str, str] = field(default_factory=dict)


@final
class Roster:
    """All agents by number.

    Args:
        agents: Those expected from the start.
        now_s: When that is.
        busy: Whether ranks of an earlier lead may live there.
    """

    def __init__(self, agents: Collection[int], *, now_s: float, busy: bool) -> None:
        self._agents = {agent: AgentSeen(left_s=now_s, busy=busy) for agent in sorted(agents)}

    def __getitem__(self, agent: int) -> AgentSeen:
        """Returns an agent.

        Args:
            agent: Its number.
        """
        return self._agents[agent]

    def __contains__(self, agent: int) -> bool:
        """Returns whether there is such an agent.

        Args:
            agent: Its number.
        """
        return agent in self._agents

    @property
    def known(self) -> tuple[int, ...]:
        """Returns every agent there ever was, by number."""
        return tuple(self._agents)

    @property
    def connected(self) -> tuple[int, ...]:
        """Returns the agents of the attempt whose lines are up."""
        return tuple(agent for agent, seen in self._agents.items() if seen.connected and not seen.lost)

    @property
    def here(self) -> tuple[int, ...]:
        """Returns the agents not lost, whose nodes are the attempt's."""
        return tuple(agent for agent, seen in self._agents.items() if not seen.lost)

    @property
    def lasting(self) -> tuple[int, ...]:
        """Returns the agents a generation may count on: neither lost nor leaving."""
        return tuple(agent for agent, seen in self._agents.items() if not seen.lost and seen.leaving_s is None)

    @property
    def present(self) -> tuple[int, ...]:
        """Returns the lasting agents whose lines are up: the others are perhaps gone, and time will tell."""
        return tuple(agent for agent in self.lasting if self._agents[agent].connected)

    @property
    def settled(self) -> bool:
        """Returns whether every lasting agent is present: whoever was away has come back, or is lost."""
        return len(self.present) == len(self.lasting)

    @property
    def doubtful(self) -> tuple[int, ...]:
        """Returns the agents noticed to be silent, which the controller has not answered for."""
        return tuple(agent for agent, seen in self._agents.items() if seen.noticed_s is not None and not seen.lost)

    def joined(self, news: Joined, now_s: float) -> bool:
        """Takes note that an agent's line is up; returns whether it is new here, or was given up.

        Args:
            news: What it said.
            now_s: The time.
        """
        fresh = news.agent not in self._agents or self._agents[news.agent].lost
        seen = self._agents.setdefault(news.agent, AgentSeen(left_s=now_s))
        seen.connected, seen.gone, seen.lost, seen.drained, seen.noticed_s = True, False, False, False, None
        seen.node, seen.address = news.node, news.address
        if fresh:
            seen.leaving_s = None
        return fresh

    def left(self, agent: int, now_s: float) -> None:
        """Takes note that an agent's line is down.

        Args:
            agent: The agent.
            now_s: The time.
        """
        self._agents[agent].connected, self._agents[agent].left_s = False, now_s

    def notice(self, now_s: float, patience_s: float, gone: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the agents of which it has just become known that they are gone, or silent for too long.

        Args:
            now_s: The time.
            patience_s: How long one may be silent.
            gone: Those that an engine has seen end; of one whose line is up, the line knows better.
        """
        found = []
        for agent, seen in self._agents.items():
            if seen.connected or seen.lost:
                continue
            seen.gone = seen.gone or agent in gone
            if seen.noticed_s is None and (seen.gone or now_s - seen.left_s > patience_s):
                seen.noticed_s = now_s
                found.append(agent)
        return tuple(found)

    def acknowledged(self, sent_s: float) -> tuple[int, ...]:
        """Returns the agents the lead may go on without now: the controller, heard after, still holds with this lead.

        Of one that is gone it has said so in that very answer.

        Args:
            sent_s: When the heartbeat was sent that the controller answered.
        """
        seen = self._agents
        found = [agent for agent in self.doubtful if seen[agent].gone or (seen[agent].noticed_s or 0.0) <= sent_s]
        for agent in found:
            self.lose(agent)
        return tuple(found)

    def lose(self, agent: int) -> None:
        """Goes on without an agent.

        Args:
            agent: The agent.
        """
        seen = self._agents[agent]
        seen.lost, seen.busy, seen.noticed_s = True, False, None
