"""Ranks of an attempt on virtual time: they keep step, take snapshots, copy them to peers, leave, fail and hang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, final

from mainspring.domain import wire
from mainspring.simulator.nodes.agenda import chance, within
from mainspring.simulator.nodes.object_store import Content, branch_of
from mainspring.simulator.nodes.parts import Agent, Rank, RunKey, StateSnapshot, keep

if TYPE_CHECKING:
    from mainspring.simulator.nodes.attempt import SimulatedAttempt

NOTICE_S = 0.04  # Until a rank hears that a peer's process is gone.
START_S = 1.5
COPY_S_MAX = 0.3
SLOW_COPY_S_MAX = 5.0
BLOCKED_S = 0.002  # By one snapshot.


@final
class Ranks:
    """The processes of one attempt's program, wherever they live.

    One takes a step when all of its generation live and move. At its last step each ends well.

    Args:
        last: The step the program ends at.
        reconnects: Whether the program goes on in the next generation by itself.
    """

    def __init__(self, attempt: SimulatedAttempt, *, last: int, reconnects: bool, step_s: float) -> None:
        self.last = last
        self.reconnects = reconnects
        self.slow_copies = 0.0  # How often the way to a peer is busy for seconds.
        self.ended: dict[RunKey, Content] = {}  # In which state programs came to their ends.
        self.cost_s = 0.0  # What a snapshot and its copy each cost their node, beside what blocks ranks.
        self._attempt = attempt
        self._failing: set[RunKey] = set()
        attempt.agenda.every(step_s, self._step)

    @property
    def living(self) -> list[tuple[Agent, Rank]]:
        """Returns every rank that lives, with its agent."""
        return [(agent, rank) for agent in self._attempt.living for _, rank in sorted(agent.ranks.items())]

    def start(self, agent: Agent, order: wire.PrepareGeneration, state: Content, every: int) -> None:
        """Starts an agent's ranks of a generation."""
        run = RunKey(self._attempt.epoch_of(agent), order.generation)
        for place in order.places:
            rank = Rank(place=place, run=run, state=state, every=every, told=state.step)
            agent.ranks[place.rank] = rank
            self._attempt.say(agent, wire.RankStarted(generation=order.generation, rank=place.rank, pid=1))
            self._attempt.agenda.after(START_S + within(self._attempt.luck, 0.0, 0.2), partial(_come_up, rank))
        self._check(run)

    def _check(self, run: RunKey) -> None:
        """Checks that no role rank lives twice, and that ranks of one lead's older generations are gone."""
        living = [rank for _, rank in self.living]
        own = [(rank.place.role, rank.place.role_rank) for rank in living if rank.run == run]
        assert len(own) == len(set(own)), f"two places hold one role rank in generation {run}: {own}"
        older = {rank.run for rank in living if rank.run.epoch == run.epoch and rank.run != run}
        assert not older, f"ranks of generations {sorted(older)} live beside those of {run}"

    def _step(self) -> bool:
        runs: dict[RunKey, list[tuple[Agent, Rank]]] = {}
        for agent, rank in self.living:
            runs.setdefault(rank.run, []).append((agent, rank))
        for run, gang in sorted(runs.items()):
            if run in self._failing:
                continue
            if len(gang) < self._attempt.size(run):
                if all(rank.stepping for _, rank in gang):
                    self._failing.add(run)
                    self._attempt.agenda.after(NOTICE_S, partial(self._bereft, run))
            elif all(rank.stepping and not rank.stopped for _, rank in gang):
                branch = branch_of(self._attempt.claim_of(gang[0][0]), run.generation)
                agreed = self._attempt.checks.before_step(run, gang, branch)
                for agent, rank in gang:
                    delay_s = within(self._attempt.luck, 0.0, 0.05)
                    self._attempt.agenda.after(delay_s, partial(self._advance, agent, rank, agreed))
        return self._attempt.goes_on

    def _advance(self, agent: Agent, rank: Rank, agreed: int | None) -> None:
        if agent.ranks.get(rank.place.rank) is not rank or rank.stopped:
            return
        leave = _leaves(rank)
        if not self.is_last(rank):
            branch = branch_of(self._attempt.claim_of(agent), rank.run.generation)
            rank.state = Content(branch, rank.step + 1, rank.state.agreed if agreed is None else agreed)
            leave = rank.leave_at is not None and rank.step >= rank.leave_at
        done = rank.step >= self.last
        if leave or done or rank.step % rank.every == 0:
            self._snapshot(agent, rank)
        if leave or done:
            self.report(agent, rank)
            if done:
                self.ended[rank.run], number = rank.state, rank.place.rank
                sequence = self._attempt.checks.sequence(agent, number)
                self._attempt.say(agent, wire.RankResult(rank=number, values={"success": 1.0}, sequence=sequence))
            goes_on = rank.then is wire.Then.REJOIN and self.reconnects and leave
            self.leave(agent, rank, "", None if goes_on else 0 if done else wire.EXIT_PREEMPTED)

    def is_last(self, rank: Rank) -> bool:
        """Returns whether a rank takes no step any more."""
        return _leaves(rank) or rank.step >= self.last

    def _bereft(self, run: RunKey) -> None:
        """A peer is gone: those left fail in the collective they wait in, but where no word of it arrives."""
        for agent, rank in self.living:
            if rank.run == run and not rank.stopped and agent.cut_until_s <= self._attempt.agenda.now_s:
                self.leave(agent, rank, "a peer has closed its connection", None if self.reconnects else 1)
        self._failing.discard(run)

    def leave(self, agent: Agent, rank: Rank, words: str, exit_code: int | None) -> None:
        """Ends a rank: its process where there is an exit code, else only its part in the generation."""
        number = rank.place.rank
        if agent.ranks.get(number) is not rank:
            return
        del agent.ranks[number]
        generation = rank.run.generation
        left: wire.RankExited | wire.RankLeft = wire.RankLeft(generation=generation, rank=number, words=words)
        if exit_code is not None:
            left = wire.RankExited(generation=generation, rank=number, exit_code=exit_code, last_words=words)
        if generation == agent.generation:
            agent.exits[number] = left
            self._attempt.say(agent, left)

    def finish(self) -> None:
        """Has the program, if it runs, end at the step after the furthest it has come to."""
        if self.living:
            self.last = min(self.last, 1 + max(rank.step for _, rank in self.living))

    def report(self, agent: Agent, rank: Rank) -> None:
        """Tells the lead how far a rank is."""
        if rank.step > rank.told and rank.step >= 0:  # Also in a pause: a program reports from a thread of its own.
            rank.told, rank.reported = rank.step, True
            blocked_s, rank.blocked_s = rank.blocked_s, 0.0
            self.tell(agent, rank, {"snapshot": blocked_s, "data": 0.01})

    def tell(self, agent: Agent, rank: Rank, seconds: Mapping[str, float]) -> None:
        """Tells the lead, perhaps again, of the last step that it was to know of.

        Args:
            seconds: Where the rank's time went since what it was told before.
        """
        progress = wire.RankProgress(
            generation=rank.run.generation,
            rank=rank.place.rank,
            step=rank.told,
            time_s=self._attempt.instant_at(agent).now_s,
            metrics={"loss": 1.0},
            seconds=seconds,
        )
        self._attempt.say(agent, progress)

    # ------------------------------------------------------------ memory

    def _snapshot(self, agent: Agent, rank: Rank) -> None:
        place = rank.place
        rank.blocked_s += BLOCKED_S
        holding = wire.Holding(
            step=rank.step,
            generation=rank.run.generation,
            rank=place.rank,
            role=place.role,
            role_rank=place.role_rank,
            role_size=place.role_size,
        )
        keep(agent.own.setdefault(place.rank, []), StateSnapshot(holding, rank.state))
        self._attempt.say(agent, wire.SnapshotTaken(holding=holding, cost_s=self.cost_s))
        peer = self._attempt.at_address(agent.order.peer) if agent.order is not None else None
        if peer is not None and peer is not agent:
            taken, run = StateSnapshot(holding, rank.state), rank.run
            luck = self._attempt.luck
            delay_s = within(luck, 0.0, SLOW_COPY_S_MAX if chance(luck, self.slow_copies) else COPY_S_MAX)
            self._attempt.agenda.after(delay_s, lambda: self._copy(agent, peer, taken, run))

    def _copy(self, agent: Agent, peer: Agent, taken: StateSnapshot, run: RunKey) -> None:
        own = agent.generation == run.generation and self._attempt.epoch_of(agent) == run.epoch
        late = peer.generation > run.generation or self._attempt.epoch_of(peer) != run.epoch
        if self._attempt.reach(agent, peer) and own and not late:
            copy = replace(taken, holding=replace(taken.holding, copied=True))
            keep(peer.copies.setdefault(copy.holding.rank, []), copy)
            self._attempt.say(peer, wire.SnapshotTaken(holding=copy.holding, cost_s=self.cost_s))

    def restored(self, agent: Agent, order: wire.PrepareGeneration) -> Content | str:
        """Returns the state a generation resumes from as an agent finds it in memory, or why it cannot be had.

        Raises:
            AssertionError: What is there is not of one state, or not of the step it is called.
        """
        found: dict[tuple[str, int], set[Content]] = {}
        sizes: dict[str, int] = {}
        for holder in order.holders:
            other = self._attempt.of_number(agent, holder.agent)
            there = {} if other is None else {one.holding: one for one in other.snapshots}
            for holding in holder.holdings:
                sizes[holding.role] = holding.role_size
                one = there.get(holding)
                if other is not None and one is not None and self._attempt.reach(agent, other):
                    if one.damaged:
                        return "damaged"
                    found.setdefault((holding.role, holding.role_rank), set()).add(one.content)
        if len(found) < sum(sizes.values()):
            return "a peer does not answer"
        contents = {content for each in found.values() for content in each}
        assert len(contents) == 1, f"generation {order.generation} would be mixed from {contents}"
        content = contents.pop()
        assert content.step == order.step, f"{content} is called step {order.step}"
        return content


def _leaves(rank: Rank) -> bool:
    return rank.leave_at is not None and rank.step >= max(0, rank.leave_at)


def _come_up(rank: Rank) -> None:
    rank.stepping = True
