"""A lead's promise of where it resumes, checked against the plainest account of what it was told."""

from __future__ import annotations

from typing import final

from mainspring.checkpoint import KEEP_STEPS
from mainspring.domain import wire
from mainspring.domain.ids import RoleName
from mainspring.node.lead.effects import DurableSeen, Joined, Left, ManifestWritten, News, Said
from mainspring.simulator.nodes.parts import SNAPSHOTS_KEPT


@final
class Promises:
    """Keeps what one lead has been told of memory and store, and checks each choice it makes."""

    def __init__(self, roles: int) -> None:
        self._roles = roles
        self._known: dict[int, list[wire.Holding]] = {}
        self._overtaken: dict[tuple[int, int, bool], tuple[int, int]] = {}  # The last that gave way to newer ones.
        self._durable: set[int] = set()
        self._unfit: set[tuple[int, int]] = set()
        self._doubted = False
        self._order: wire.PrepareGeneration | None = None
        self._resumes: list[tuple[int, int]] = []
        self._trusted = self._started = self._leaving = -1

    def learn(self, news: News) -> None:
        """Keeps, in the plainest way, what the lead is told of memory and store."""
        match news:
            case Joined():
                self._forget(news.agent)
                self._known[news.agent] = list(news.holdings)
            case Left():
                self._forget(news.agent)
            case Said(agent=agent, message=wire.SnapshotTaken(holding=holding)) if self._current(agent, holding):
                held = self._known.setdefault(agent, [])
                if holding not in held:
                    held.append(holding)
                alike = [one for one in held if (one.rank, one.copied) == (holding.rank, holding.copied)]
                for old in sorted(alike, key=_age)[:-SNAPSHOTS_KEPT]:
                    self._overtaken[agent, old.rank, old.copied] = _age(old)
                    held.remove(old)
            case Said(message=wire.GenerationPrepared(ready=False) | wire.RestoreFailed()):
                if self._order is not None:
                    self._unfit.add((self._order.step, self._order.taken_in))
            case Said(agent=agent, message=wire.AgentDrained()):
                self._forget(agent)
            case DurableSeen(steps=steps) if steps is not None:
                self._durable = set(steps)
            case ManifestWritten(failure="", step=step):
                durable = sorted({*self._durable, step})
                self._durable = {*durable[-KEEP_STEPS:], *({self._trusted} & set(durable))}
            case _:
                pass

    def distrust(self) -> None:
        """Takes note that ranks did not agree: what came after the newest durable step is of no use."""
        newest = max(self._durable, default=-1)
        self._unfit |= {
            (one.step, one.generation) for held in self._known.values() for one in held if one.step > newest
        }

    def distrust_all(self) -> None:
        """Takes note that devices did not agree: what is in memory when the next choice is made is of no use."""
        self._doubted = True

    def trusts(self, step: int) -> None:
        """Takes note of the durable step that stays however old it is, -1 for none."""
        self._trusted = step

    def starts(self, generation: int) -> bool:
        """Takes note that ranks are let start; returns whether it is the first time in their generation."""
        news, self._started = generation > self._started, max(generation, self._started)
        return news

    def leaves(self, order: wire.LeaveAt) -> None:
        """Takes note that ranks are to leave."""
        self._leaving = order.generation if order.then is wire.Then.EXIT else self._leaving

    def check_followed(self, doubted: int, *, here: int, ends: bool) -> None:
        """Checks that ranks do not go on with a device that is told to be wrong.

        Args:
            doubted: The generation in which it is.
            here: The generation that the lead is at now.
            ends: Whether the attempt does.

        Raises:
            AssertionError: They go on.
        """
        follows = here > doubted or ends or self._leaving == doubted
        assert follows, f"a device of generation {doubted} is told to be wrong, and nothing follows"

    def _forget(self, agent: int) -> None:
        self._known[agent] = []
        self._overtaken = {place: age for place, age in self._overtaken.items() if place[0] != agent}

    def _current(self, agent: int, holding: wire.Holding) -> bool:
        """Returns whether the agent may still hold it: no newer ones took its room, and no later generation resumed
        before its step.
        """
        if _age(holding) <= self._overtaken.get((agent, holding.rank, holding.copied), (-1, -1)):
            return False
        return all(holding.step <= step for generation, step in self._resumes if generation > holding.generation)

    def _whole(self) -> set[tuple[int, int]]:
        found: dict[tuple[int, int], set[tuple[RoleName, int]]] = {}
        sizes: dict[tuple[int, int], dict[RoleName, int]] = {}
        for held in self._known.values():
            for one in held:
                found.setdefault((one.step, one.generation), set()).add((one.role, one.role_rank))
                sizes.setdefault((one.step, one.generation), {})[one.role] = one.role_size
        return {
            (step, taken_in)
            for (step, taken_in), ranks in found.items()
            if len(sizes[step, taken_in]) == self._roles
            and len(ranks) == sum(sizes[step, taken_in].values())
            and all(step <= resumed for generation, resumed in self._resumes[:-1] if generation > taken_in)
        }

    def check_choice(self, order: wire.PrepareGeneration) -> None:
        """Checks that a generation resumes at the newest step known to be whole, and never at one that is not.

        Raises:
            AssertionError: It does not.
        """
        if self._order is not None and order.generation <= self._order.generation:
            return
        self._order = order
        self._resumes.append((order.generation, order.step))
        whole = self._whole()
        if self._doubted:
            self._unfit |= whole
            self._doubted = False
        if order.source == "arena":
            assert (order.step, order.taken_in) in whole, f"{order.step} is not whole: {sorted(whole)}"
        elif order.source == "store" and not order.begins_from:
            assert order.step in self._durable, f"{order.step} is not durable: {sorted(self._durable)}"
        newest = max((step for step, taken_in in whole - self._unfit), default=-1)
        durable = max((step for step in self._durable if (step, 0) not in self._unfit), default=-1)
        assert order.step >= max(newest, durable), f"resumes at {order.step}, {newest} is whole, {durable} durable"
        for agent, held in self._known.items():
            self._known[agent] = [one for one in held if one.step <= order.step]


def _age(holding: wire.Holding) -> tuple[int, int]:
    return holding.generation, holding.step
