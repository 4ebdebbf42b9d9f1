"""Rank assignment: who runs and who stands by in a generation. Decides nothing about time or state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from mainspring.domain.ids import RoleName
from mainspring.domain.wire import RankPlace, RoleOrders


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Places with their role ranks in one generation.

    Args:
        places: The places that run, by number.
        lacking: What is missing for a generation to run at all, "" when nothing is; then `places` is empty.
    """

    places: tuple[RankPlace, ...] = ()
    lacking: str = ""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Returns how many ranks each role has."""
        return {str(place.role): place.role_size for place in self.places}


@final
class Members:
    """Every place of the attempt, and which of them run in the present generation.

    Args:
        roles: What each role may do with fewer places than it has.
        places: The places granted, numbered as if none stood by.
    """

    def __init__(self, roles: Sequence[RoleOrders], places: Sequence[RankPlace]) -> None:
        self.active: Mapping[int, RankPlace] = {}
        self.places = {place.rank: place for place in sorted(places, key=lambda place: place.rank)}
        self._roles = {role.role: role for role in sorted(roles, key=lambda role: role.role)}
        self._by_agent: dict[int, tuple[RankPlace, ...]] = {}
        counts = {role: sum(place.role == role for place in self.places.values()) for role in self._roles}
        self._full = {role: max(1, counts[role] - self._roles[role].spares) for role in self._roles}

    @property
    def roles(self) -> tuple[RoleName, ...]:
        """Returns every role, one whose agents have all ended too: nothing runs or is whole without it."""
        return tuple(self._full)

    def add(self, agent: int, places: Sequence[RankPlace]) -> None:
        """Takes note of an agent's places; what contradicts those known is ignored."""
        for place in places:
            if place.agent == agent and place.role in self._full:
                self.places.setdefault(place.rank, place)

    def of(self, agent: int, rank: int) -> bool:
        """Returns whether a place is the agent's."""
        place = self.places.get(rank)
        return place is not None and place.agent == agent

    def active_of(self, agent: int) -> tuple[RankPlace, ...]:
        """Returns the agent's places that run in this generation."""
        return self._by_agent.get(agent, ())

    @property
    def active_agents(self) -> tuple[int, ...]:
        """Returns the agents whose places run, by number."""
        return tuple(sorted(self._by_agent))

    def propose(
        self, agents: Collection[int], *, last: Collection[int] = (), before: Mapping[int, int] | None = None
    ) -> Membership:
        """Returns who would run if these agents were all there are.

        Places that run keep their role ranks where these still exist; holes are filled by places that stand by, then
        by those whose role ranks went. What is left over stands by.

        Args:
            agents: Agents that can be counted on.
            last: Agents whose places run only where others do not suffice.
            before: Role ranks by place to keep where nothing runs yet; those of the generation, otherwise.
        """
        held = {rank: place.role_rank for rank, place in self.active.items()} or dict(before or {})
        chosen: list[RankPlace] = []
        for role in self._full:
            live = [place for place in self.places.values() if place.role == role and place.agent in agents]
            size = self._roles[role].size(len(live), full=self._full[role])
            if size == 0:
                needs = self._roles[role].ranks_min or self._full[role]
                return Membership(lacking=f"role {role} has {len(live)} places left and needs {needs}")
            chosen += _assigned(live, size, held, last)
        return Membership(places=tuple(sorted(chosen, key=lambda place: place.rank)))

    def adopt(self, membership: Membership) -> None:
        """Makes a membership the present one."""
        self.active = {place.rank: place for place in membership.places}
        self._by_agent = {}
        for place in membership.places:
            self._by_agent[place.agent] = (*self._by_agent.get(place.agent, ()), place)
            self._full[place.role] = max(self._full[place.role], place.role_size)


def _assigned(
    live: Sequence[RankPlace], size: int, held: Mapping[int, int], last: Collection[int]
) -> tuple[RankPlace, ...]:
    """Returns `size` of the places with role ranks 0 to `size`, each given once."""

    def order(place: RankPlace) -> tuple[bool, bool, int]:
        return (place.agent in last, place.rank not in held, held.get(place.rank, place.rank))

    chosen = sorted(live, key=order)[:size]
    seats: dict[int, RankPlace] = {}
    movers: list[RankPlace] = []
    for place in chosen:
        wanted = held.get(place.rank, -1)
        if 0 <= wanted < size and wanted not in seats:
            seats[wanted] = place
        else:
            movers.append(place)
    holes = [role_rank for role_rank in range(size) if role_rank not in seats]
    seats.update(zip(holes, movers, strict=True))
    return tuple(replace(place, role_rank=role_rank, role_size=size) for role_rank, place in sorted(seats.items()))
