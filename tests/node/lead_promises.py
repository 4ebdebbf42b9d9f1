"""The lead's promise of where it resumes, checked against the plainest account of what it was told."""

from __future__ import annotations

from mainspring.domain import wire
from mainspring.node.lead.effects import Joined, Left, News, Said


class Promises:
    """Keeps what the lead has been told of memory and store, and checks each choice it makes."""

    def __init__(self) -> None:
        self.known: dict[int, list[wire.Holding]] = {}
        self.durable_known: set[int] = set()
        self.unfit: set[tuple[int, int]] = set()
        self.chosen = 0
        self._newest_order: wire.PrepareGeneration | None = None
        self.resumes: list[tuple[int, int]] = []

    def learn(self, news: News) -> None:
        """Keeps, in the plainest way, what the lead has been told of memory."""
        match news:
            case Joined():
                self.known[news.agent] = list(news.holdings)
            case Left():
                self.known[news.agent] = []
            case Said(agent=agent, message=wire.SnapshotTaken(holding=holding)) if self._current(holding):
                if holding not in self.known.setdefault(agent, []):
                    self.known[agent].append(holding)
                alike = [one for one in self.known[agent] if (one.rank, one.copied) == (holding.rank, holding.copied)]
                for old in sorted(alike, key=lambda one: (one.generation, one.step))[:-2]:
                    self.known[agent].remove(old)
            case Said(message=wire.GenerationPrepared(ready=False) | wire.RestoreFailed()):
                order = self._newest_order
                if order is not None:
                    self.unfit.add((order.step, order.taken_in))
            case Said(agent=agent, message=wire.AgentDrained()):
                self.known[agent] = []
            case _:
                pass

    def _current(self, holding: wire.Holding) -> bool:
        """Returns whether no later generation resumed before the step: else the agent has dropped it since."""
        return all(holding.step <= step for generation, step in self.resumes if generation > holding.generation)

    def _whole(self) -> set[tuple[int, int]]:
        seats: dict[tuple[int, int], set[int]] = {}
        sizes: dict[tuple[int, int], int] = {}
        for held in self.known.values():
            for one in held:
                seats.setdefault((one.step, one.generation), set()).add(one.role_rank)
                sizes[one.step, one.generation] = one.role_size
        return {
            (step, taken_in)
            for (step, taken_in), ranks in seats.items()
            if len(ranks) == sizes[step, taken_in]
            and all(step <= resumed for generation, resumed in self.resumes[:-1] if generation > taken_in)
        }

    def check_choice(self, order: wire.PrepareGeneration) -> None:
        """A generation resumes at the newest step known to be whole, and never at one that is not."""
        if order.generation <= self.chosen:
            return
        self.chosen, self._newest_order = order.generation, order
        self.resumes.append((order.generation, order.step))
        whole = self._whole()
        if order.source == "arena":
            assert (order.step, order.taken_in) in whole, f"{order.step} is not whole: {sorted(whole)}"
        elif order.source == "store" and not order.begins_from:
            assert order.step in self.durable_known
        newest = max((step for step, taken_in in whole - self.unfit), default=-1)
        assert order.step >= max(newest, max(self.durable_known, default=-1)), (order.step, newest)
        for agent, held in self.known.items():
            self.known[agent] = [one for one in held if one.step <= order.step]
