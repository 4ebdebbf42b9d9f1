"""Membership of agents: which there are, which can be counted on, and when one that is silent may be given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from mainspring.node.lead.effects import Joined

NAMES_MAX = 20  # Agents named in one reason; a thousand lost agents are one fact.


@dataclass(frozen=True, slots=True)
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
        busy: Whether ranks of an earlier lead may live there.
    """

    def __init__(self, agents: Collection[int], *, now_s: float, busy: bool) -> None:
        self._agents = {agent: AgentSeen(left_s=now_s, busy=busy) for agent in sorted(agents)}
        self.newest_generation = 0
        """The newest generation any agent knew when it joined."""

    def __getitem__(self, agent: int) -> AgentSeen:
        """Returns an agent."""
        return self._agents[agent]

    def __contains__(self, agent: int) -> bool:
        """Returns whether there is such an agent."""
        return agent in self._agents

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

    @property
    def all_drained(self) -> bool:
        """Returns whether every agent whose line is up has said good-bye."""
        return all(self._agents[agent].drained for agent in self.connected)

    def joined(self, news: Joined, now_s: float) -> bool:
        """Takes note that an agent's line is up; returns whether it is new here, or was given up."""
        before = self._agents.get(news.agent)
        fresh = before is None or before.lost
        self._agents[news.agent] = replace(
            before or AgentSeen(left_s=now_s),
            connected=True,
            gone=False,
            lost=False,
            drained=False,
            noticed_s=None,
            node=news.node,
            address=news.address,
            leaving_s=None if before is None or fresh else before.leaving_s,
        )
        self.newest_generation = max(self.newest_generation, news.generation)
        return fresh

    def left(self, agent: int, now_s: float) -> None:
        """Takes note that an agent's line is down."""
        self._agents[agent] = replace(self._agents[agent], connected=False, left_s=now_s)

    def leaving(self, agent: int, leaves_s: float) -> bool:
        """Takes note of when an agent's engine takes it away, the earliest counts; returns whether that is news."""
        before = self._agents[agent].leaving_s
        leaves_s = leaves_s if before is None else min(before, leaves_s)
        self._agents[agent] = replace(self._agents[agent], leaving_s=leaves_s)
        return before is None

    def prepared(self, agent: int, masters: Mapping[str, str]) -> None:
        """Takes note that no older ranks live on an agent, and where its roles' first ranks will listen."""
        self._agents[agent] = replace(self._agents[agent], busy=False, masters=masters)

    def started(self, agent: int) -> None:
        """Takes note that ranks live on an agent from now on."""
        self._agents[agent] = replace(self._agents[agent], busy=True)

    def drained(self, agent: int) -> None:
        """Takes note that an agent has said good-bye."""
        self._agents[agent] = replace(self._agents[agent], drained=True)

    def notice(self, now_s: float, patience_s: float, gone: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the agents of which it has just become known that they are gone, or silent for too long.

        Args:
            patience_s: How long one may be silent.
            gone: Those that an engine has seen end; of one whose line is up, the line knows better.
        """
        found = []
        for agent, seen in list(self._agents.items()):
            if seen.connected or seen.lost:
                continue
            is_gone = seen.gone or agent in gone
            noticed = seen.noticed_s is None and (is_gone or now_s - seen.left_s > patience_s)
            if noticed or is_gone != seen.gone:
                self._agents[agent] = replace(seen, gone=is_gone, noticed_s=now_s if noticed else seen.noticed_s)
            found += [agent] if noticed else []
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
        """Goes on without an agent."""
        self._agents[agent] = replace(self._agents[agent], lost=True, busy=False, noticed_s=None)


def names(agents: Sequence[int]) -> str:
    """Returns some agents for people."""
    return ", ".join(map(str, agents[:NAMES_MAX]))
