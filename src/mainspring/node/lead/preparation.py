"""Preparation of a generation: what each agent is told of it, and whose answers it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from mainspring.domain.wire import Holder, PrepareGeneration, StartRanks
from mainspring.node.lead.changes import Course
from mainspring.node.lead.holdings import Holdings
from mainspring.node.lead.members import Members
from mainspring.node.lead.resume import ResumeSource
from mainspring.node.lead.roster import Roster

HOLDINGS_TOLD_MAX = 256  # About 30 kB a message. Each agent reads its own at 30 us a holding; the lead sends all.
RECONNECT_S_MIN = 5.0  # A rank learns within 40 ms that a peer's process is gone, once it next speaks to it;
RECONNECT_STEPS = 2.0  # which it does in every step.
RECONNECT_S_MAX = 60.0  # Starting a process anew takes about as long, compilation included.


@final
class Preparation:
    """One generation from its declaration on: who holds its step, whom snapshots go to, who has yet to be ready.

    Args:
        members: Who runs in it, to be read.
        roster: All agents, to be read.
        holdings: What is in memory, to be read.
        course: How far and how fast the generation before was.
        hasty: Agents whose ranks that reconnect are not waited for.
    """

    def __init__(
        self,
        generation: int,
        source: ResumeSource,
        members: Members,
        roster: Roster,
        holdings: Holdings,
        *,
        course: Course,
        hasty: frozenset[int],
    ) -> None:
        self._generation = generation
        self.source = source
        self._members = members
        self._roster = roster
        self._reconnect_s = min(max(RECONNECT_S_MIN, RECONNECT_STEPS * (course.step_s or 0.0)), RECONNECT_S_MAX)
        self._hasty = hasty
        self._addresses: Mapping[str, str] | None = None
        self._unready = {agent for agent in roster.here if members.active_of(agent) or roster[agent].busy}
        held = holdings.holders(source.taken) if source.taken is not None else {}
        self._holders = {
            agent: Holder(agent=agent, address=roster[agent].address, holdings=own) for agent, own in held.items()
        }
        self._all = tuple(self._holders.values())  # One tuple for all, so that it is encoded once.
        self._served: frozenset[int] = frozenset()
        active = members.active.values()
        sizes = {place.role: place.role_size for place in active}
        large = sum(len(own) for own in held.values()) > HOLDINGS_TOLD_MAX
        # Agents whose ranks all have their own snapshot need no list of who holds the others, where steps ran before.
        if course.all_step and large and source.taken is not None and holdings.sizes(source.taken) == sizes:
            own = {(one.rank, one.role_rank) for mine in held.values() for one in mine if not one.copied}
            lacking = {place.agent for place in active if (place.rank, place.role_rank) not in own}
            self._served = frozenset(held) - lacking
        self._peers = _peers(sorted({place.agent for place in active}), roster)

    @property
    def ready(self) -> bool:
        """Returns whether nothing is waited for any more."""
        return not self._unready and self._addresses is not None

    def order(self, agent: int) -> PrepareGeneration:
        """Returns what an agent is told; the same whenever it is told again."""
        return PrepareGeneration(
            generation=self._generation,
            step=self.source.step,
            source=self.source.name,
            taken_in=self.source.taken.generation if self.source.taken is not None else 0,
            reconnect_s=0.0 if agent in self._hasty else self._reconnect_s,
            places=self._members.active_of(agent),
            holders=(self._holders[agent],) if agent in self._served else self._all,
            peer=self._peers.get(agent, ""),
            begins_from=self.source.begins_from,
        )

    def start(self, snapshot_every: int) -> StartRanks:
        """Returns what agents are told once all is ready."""
        seen = [self._roster[agent] for agent in self._members.active_agents]
        return StartRanks(
            generation=self._generation,
            coordinators=self._addresses or {},
            masters={role: place for agent in seen for role, place in agent.masters.items()},
            snapshot_every=snapshot_every,
        )

    def coordinated(self, addresses: Mapping[str, str]) -> None:
        """Takes the coordination services' addresses, by role."""
        self._addresses = addresses

    def answered(self, agents: Sequence[int]) -> None:
        """Takes note of agents that are ready, or lost."""
        self._unready.difference_update(agents)


def _peers(agents: Sequence[int], roster: Roster) -> Mapping[int, str]:
    """Returns the peer of each agent whose ranks run: half way round, as neighbours often share a rack."""
    ring = [agent for agent in agents if roster[agent].connected and roster[agent].address]
    if len(ring) == 1:  # An agent that stands by has memory to lend.
        idle = [agent for agent in roster.lasting if agent not in ring and roster[agent].connected]
        return {ring[0]: next((roster[agent].address for agent in idle if roster[agent].address), "")}
    half = max(1, len(ring) // 2)
    return {agent: roster[ring[(at + half) % len(ring)]].address for at, agent in enumerate(ring)}
