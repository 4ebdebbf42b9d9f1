"""Where a generation resumes: the newest step that is whole, in memory or in the object store, and who holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from mainspring.checkpoint import KEEP_STEPS
from mainspring.domain.wire import Holder, PrepareGeneration
from mainspring.node.lead.holdings import Holdings, Taken
from mainspring.node.lead.members import Members
from mainspring.node.lead.roster import Roster

RESTORE_TRIES_MAX = 3  # Of one step in memory: a peer that does not answer once may be busy; thrice, it is of no use.
HOLDINGS_TOLD_MAX = 256  # About 30 kB a message. Each agent reads its own at 30 us a holding; the lead sends all.


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSource:
    """Where a generation's state is.

    Args:
        step: The step, -1 for none of the job's own.
        name: "arena", "store", or "" for none.
        taken: What it is in memory, None where it is not.
        begins_from: The checkpoint of another name that ranks are given in place of a step of the job's own, or "".
    """

    step: int = -1
    name: str = ""
    taken: Taken | None = None
    begins_from: str = ""

    @property
    def words(self) -> str:
        """Returns what it is, for people."""
        return f"{self.begins_from}, from which the job begins," if self.begins_from else f"step {self.step}"


@final
class Resumption:
    """What is known of durable steps, and which steps failed to be restored."""

    def __init__(self) -> None:
        self._durable: list[int] | None = None  # As many as the store keeps.
        self._begins_from = ""
        self._damaged: set[int] = set()
        self._tries: dict[Taken, int] = {}

    @property
    def known(self) -> bool:
        """Returns whether the store has answered: before, nobody may start fresh."""
        return self._durable is not None

    def found(self, steps: Sequence[int], begins_from: str) -> None:
        """Takes what the store holds.

        Args:
            steps: Steps with a manifest.
            begins_from: The checkpoint to begin from without any, "" to start fresh then.
        """
        self._durable, self._begins_from = sorted(steps), begins_from

    def stored(self, step: int) -> None:
        """Takes note that a step has become durable.

        Args:
            step: The step.
        """
        self._durable = sorted({*(self._durable or ()), step})[-KEEP_STEPS:]
        self._damaged.discard(step)

    def damaged(self, step: int) -> bool:
        """Returns whether a durable step is known not to hold together.

        Args:
            step: The step.
        """
        return step in self._damaged

    def choose(self, holdings: Holdings) -> ResumeSource:
        """Returns where to resume: at the newest whole step there is.

        Args:
            holdings: What is in memory.
        """
        taken = holdings.newest()
        stored = max(set(self._durable or ()) - self._damaged, default=-1)
        if taken is not None and taken.step >= stored:
            return ResumeSource(step=taken.step, name="arena", taken=taken)
        if stored < 0 and not self._begins_from:
            return ResumeSource()
        return ResumeSource(step=stored, name="store", begins_from=self._begins_from if stored < 0 else "")

    def failed(self, source: ResumeSource, agent: int, holdings: Holdings, *, corrupt: bool) -> bool:
        """Takes note that a source could not be restored; returns whether the next try is better put off a little.

        Args:
            source: The source.
            agent: The agent that could not.
            holdings: What is in memory.
            corrupt: Whether its bytes are not what they were; else it did not answer.
        """
        if source.taken is not None:
            tries = self._tries[source.taken] = self._tries.get(source.taken, 0) + 1
            if corrupt:
                holdings.forget(agent, source.taken)  # Its copies, and replicas elsewhere, may be sound.
            if tries >= RESTORE_TRIES_MAX:
                holdings.pass_over(source.taken)
        elif corrupt:
            self._damaged.add(source.step)
        return not corrupt


@final
class Briefing:
    """What each agent is told of a generation's state: who holds the step, and whom its own snapshots go to.

    Args:
        generation: The generation.
        source: Where it resumes.
        members: Who runs in it.
        roster: All agents.
        holdings: What is in memory.
        sparing: Whether agents whose ranks all hold their own snapshot need no list of who holds the others.
        reconnect_s: How long ranks that reconnect are waited for.
        hasty: Agents whose ranks are not.
    """

    def __init__(
        self,
        *,
        generation: int,
        source: ResumeSource,
        members: Members,
        roster: Roster,
        holdings: Holdings,
        sparing: bool,
        reconnect_s: float,
        hasty: frozenset[int],
    ) -> None:
        self._generation = generation
        self._source = source
        self._members = members
        self._reconnect_s = reconnect_s
        self._hasty = hasty
        active = members.active
        self._holders: dict[int, Holder] = {}
        self._served: frozenset[int] = frozenset()
        if source.taken is not None:
            held = holdings.holders(source.taken)
            self._holders = {
                agent: Holder(agent=agent, address=roster[agent].address, holdings=own) for agent, own in held.items()
            }
            sizes = {place.role: place.role_size for place in active.values()}
            large = sum(len(own) for own in held.values()) > HOLDINGS_TOLD_MAX
            if sparing and large and holdings.sizes(source.taken) == sizes:
                seats = {(own.rank, own.role_rank) for mine in held.values() for own in mine if not own.copied}
                lacking = {p.agent for p in active.values() if (p.rank, p.role_rank) not in seats}
                self._served = frozenset(held) - lacking
        self._all = tuple(self._holders.values())  # One tuple for all, so that it is encoded once.
        self._peers = _peers(sorted({place.agent for place in active.values()}), roster)

    def order(self, agent: int) -> PrepareGeneration:
        """Returns what an agent is told; the same whenever it is told again.

        Args:
            agent: The agent.
        """
        return PrepareGeneration(
            generation=self._generation,
            step=self._source.step,
            source=self._source.name,
            taken_in=self._source.taken.generation if self._source.taken is not None else 0,
            reconnect_s=0.0 if agent in self._hasty else self._reconnect_s,
            places=self._members.active_of(agent),
            holders=(self._holders[agent],) if agent in self._served else self._all,
            peer=self._peers.get(agent, ""),
            begins_from=self._source.begins_from,
        )


def _peers(agents: Sequence[int], roster: Roster) -> Mapping[int, str]:
    """Returns the peer of each agent whose ranks run: half way round, as neighbours often share a rack."""
    ring = [agent for agent in agents if roster[agent].connected and roster[agent].address]
    if len(ring) == 1:  # An agent that stands by has memory to lend.
        idle = [agent for agent in roster.lasting if agent not in ring and roster[agent].connected]
        return {ring[0]: next((roster[agent].address for agent in idle if roster[agent].address), "")}
    half = max(1, len(ring) // 2)
    return {agent: roster[ring[(at + half) % len(ring)]].address for at, agent in enumerate(ring)}
