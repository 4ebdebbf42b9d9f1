"""Snapshot inventory: what agents hold in memory, and which step is whole there. Knows nothing of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from mainspring.domain.ids import RoleName
from mainspring.domain.wire import Holding

STEPS_KEPT = 2  # An agent's memory keeps the newest snapshot of a place and the one before; so it does for copies.
RESUMES_KEPT = 64  # Snapshots older than so many resumptions are nobody's any more.

_Holder: TypeAlias = tuple[int, bool, int]


@dataclass(frozen=True, slots=True, order=True)
class Taken:
    """One step's snapshots, by the generation they were taken in."""

    step: int
    generation: int


_NONE = Taken(-1, -1)


@dataclass(slots=True)
class _Parts:
    """Who holds what of one step: by role and role rank, then by agent, whether it is a copy, and place."""

    sizes: dict[RoleName, int] = field(default_factory=dict)
    held: dict[tuple[RoleName, int], dict[_Holder, Holding]] = field(default_factory=dict)
    own: int = 0  # How many role ranks' own agents hold their snapshots.


@final
class Holdings:
    """All that connected agents hold."""

    def __init__(self, roles: Sequence[RoleName]) -> None:
        self._roles = tuple(roles)
        self._steps: dict[Taken, _Parts] = {}
        self._of_agent: dict[int, dict[tuple[int, bool], list[Holding]]] = {}
        self._overtaken: dict[int, dict[tuple[int, bool], Taken]] = {}  # The last that agents gave up for newer ones.
        self._resumes: list[tuple[int, int]] = []  # (generation, step it resumed at): steps only ever grow in it.
        self._oldest = 0  # Snapshots of older generations than this are not known to belong to this course of events.
        self._unfit: set[Taken] = set()
        self._trusted: int | None = None  # The last step that is offered until a generation resumes; None for any.
        self._first: int | None = None  # The first generation that was told of here.

    # ------------------------------------------------------------ news

    def join(self, agent: int, holdings: Sequence[Holding]) -> None:
        """Takes all that an agent holds; what was known of it before counts no more."""
        self.drop(agent)
        for holding in sorted(holdings, key=lambda one: (one.generation, one.step)):
            self.add(agent, holding)

    def add(self, agent: int, holding: Holding) -> bool:
        """Takes one more thing an agent holds; returns whether its step is whole now.

        Args:
            holding: What it holds; one that contradicts itself or others, or that time has left behind, is ignored.
        """
        taken = Taken(holding.step, holding.generation)
        parts = self._steps.get(taken) or _Parts()
        size = parts.sizes.get(holding.role, holding.role_size)
        fits = holding.role in self._roles and size == holding.role_size and 0 <= holding.role_rank < size
        if not fits or holding.step < 0 or not self._current(taken):
            return False
        place = holding.rank, holding.copied
        overtaken = self._overtaken.setdefault(agent, {})
        if _age(taken) <= _age(overtaken.get(place, _NONE)):  # Said again, late: a newer one took its room.
            return False
        kept = self._of_agent.setdefault(agent, {}).setdefault(place, [])
        if holding in kept:
            return self._whole(taken)
        kept.append(holding)
        kept.sort(key=lambda one: (one.generation, one.step))
        self._steps[taken] = parts
        parts.sizes[holding.role] = size
        holders = parts.held.setdefault((holding.role, holding.role_rank), {})
        parts.own += not holding.copied and not _owned(holders)
        holders[agent, holding.copied, holding.rank] = holding
        for old in kept[:-STEPS_KEPT]:
            overtaken[place] = Taken(old.step, old.generation)
            self._remove(agent, old)
        return self._whole(taken)

    def drop(self, agent: int) -> None:
        """Forgets all that an agent holds."""
        for kept in list(self._of_agent.get(agent, {}).values()):
            for holding in list(kept):
                self._remove(agent, holding)
        self._of_agent.pop(agent, None)
        self._overtaken.pop(agent, None)

    def forget(self, agent: int, taken: Taken) -> None:
        """Forgets what an agent holds of one step: it turned out not to be so."""
        for kept in list(self._of_agent.get(agent, {}).values()):
            for holding in list(kept):
                if (holding.step, holding.generation) == (taken.step, taken.generation):
                    self._remove(agent, holding)

    def resumed(self, generation: int, step: int) -> None:
        """Forgets what came after the step that a generation resumes at; so do the agents.

        Args:
            step: The step, -1 for none.
        """
        while self._resumes and self._resumes[-1][1] >= step:
            self._resumes.pop()
        self._resumes.append((generation, step))
        self._first = generation if self._first is None else self._first
        self._trusted = None
        if len(self._resumes) > RESUMES_KEPT:
            self._oldest = self._resumes.pop(0)[0]
        self._unfit = {taken for taken in self._unfit if taken.step <= step}
        for taken in [taken for taken in self._steps if not self._current(taken)]:
            self._clear(taken)

    def pass_over(self, taken: Taken) -> None:
        """Never again offers a step: it could not be restored, time and again."""
        self._unfit.add(taken)
        self._clear(taken)

    def distrust(self, step: int) -> None:
        """Never again offers what came after a step, the last that is known to be right.

        It is kept until a generation resumes, for in agents' memory it takes the room of older ones.
        """
        self._trusted = step if self._trusted is None else min(step, self._trusted)

    # ------------------------------------------------------------ answers

    @property
    def distrusted(self) -> bool:
        """Returns whether what runs now, or ran last, is not to be trusted."""
        return self._trusted is not None

    def leads_on(self, step: int, generation: int) -> bool:
        """Returns whether what runs now may come of a step of a generation: none since has resumed before it, and it is
        not distrusted yet.
        """
        known = self._first is not None and self._first <= generation
        fresh = self._trusted is None or step <= self._trusted
        return known and fresh and self._current(Taken(step, generation))

    def overtaken(self, agent: int, rank: int, step: int) -> bool:
        """Returns whether an agent holds a newer snapshot of its own place than this step's."""
        return any(holding.step > step for holding in self._of_agent.get(agent, {}).get((rank, False), ()))

    def newest(self) -> Taken | None:
        """Returns the newest whole step, None when there is none."""
        return max((taken for taken in self._steps if self._whole(taken)), default=None)

    def newest_own(self) -> Taken | None:
        """Returns the newest step of which every rank's own agent holds the snapshot, None when there is none."""
        return max((taken for taken in self._steps if self._whole(taken) and self._all_own(taken)), default=None)

    def safe(self, holding: Holding, *, agents: int) -> bool:
        """Returns whether a holding's step stays whole whichever agent is lost, as far as there are others."""
        taken = Taken(holding.step, holding.generation)
        seats = self._steps[taken].held.values() if self._whole(taken) else ()
        return bool(seats) and all(len({agent for agent, _, _ in holders}) >= min(agents, 2) for holders in seats)

    def holders(self, taken: Taken) -> Mapping[int, tuple[Holding, ...]]:
        """Returns who holds what of a step, by agent: each rank's own snapshot, or its copies where that is gone."""
        found: dict[int, list[Holding]] = {}
        parts = self._steps.get(taken) or _Parts()
        for _, holders in sorted(parts.held.items()):
            own = [key for key in sorted(holders) if not key[1]]
            for key in own or sorted(holders):
                found.setdefault(key[0], []).append(holders[key])
        return {agent: tuple(found[agent]) for agent in sorted(found)}

    def places(self, taken: Taken) -> Mapping[int, int]:
        """Returns the role rank each place had when a step was taken."""
        parts = self._steps.get(taken) or _Parts()
        found = [holding for holders in parts.held.values() for holding in holders.values()]
        return {holding.rank: holding.role_rank for holding in found}

    def sizes(self, taken: Taken) -> Mapping[RoleName, int]:
        """Returns how many ranks each role had when a step was taken."""
        parts = self._steps.get(taken)
        return dict(parts.sizes) if parts is not None else {}

    # ------------------------------------------------------------ inside

    def _current(self, taken: Taken) -> bool:
        """Returns whether no later generation has resumed at an older step."""
        if taken.generation < self._oldest or taken in self._unfit:
            return False
        later = bisect_right(self._resumes, taken.generation, key=lambda resume: resume[0])
        return later == len(self._resumes) or taken.step <= self._resumes[later][1]

    def _whole(self, taken: Taken) -> bool:
        parts = self._steps.get(taken)
        if parts is None or (self._trusted is not None and taken.step > self._trusted):
            return False
        return len(parts.sizes) == len(self._roles) and len(parts.held) == sum(parts.sizes.values())

    def _all_own(self, taken: Taken) -> bool:
        return self._steps[taken].own == len(self._steps[taken].held)

    def _clear(self, taken: Taken) -> None:
        for holders in list(self._steps[taken].held.values() if taken in self._steps else ()):
            for (agent, _, _), holding in list(holders.items()):
                self._remove(agent, holding)

    def _remove(self, agent: int, holding: Holding) -> None:
        taken, seat = Taken(holding.step, holding.generation), (holding.role, holding.role_rank)
        self._of_agent[agent][holding.rank, holding.copied].remove(holding)
        parts = self._steps[taken]
        parts.held[seat].pop((agent, holding.copied, holding.rank), None)
        parts.own -= not holding.copied and not _owned(parts.held[seat])
        if not parts.held[seat]:
            del parts.held[seat]
        if not parts.held:
            del self._steps[taken]


def _age(taken: Taken) -> tuple[int, int]:
    return taken.generation, taken.step


def _owned(holders: Mapping[_Holder, Holding]) -> bool:
    return any(not copied for _, copied, _ in holders)
