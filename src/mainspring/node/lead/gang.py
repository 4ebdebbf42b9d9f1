"""The ranks of a generation while they run: how far they are, how they end, when they hang, where their time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import NodeName, RoleName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Then
from mainspring.domain.wire.events.leads import (
    HangEvent,
    RankExitedEvent,
    RankLeftEvent,
    RankSlowEvent,
    ResultEvent,
    SnapshotPaceEvent,
)
from mainspring.node.lead.changes import PlannedChange, step_to_leave_at
from mainspring.node.lead.members import Members
from mainspring.node.lead.outbox import Beginning, Ending, Outbox
from mainspring.node.lead.roster import Roster
from mainspring.node.lead.watch.failures import Failure, Failures, exited
from mainspring.node.lead.watch.hangs import Hangs, Oddness, RankPosition, Suspicion, odd_ones
from mainspring.node.lead.watch.ledger import TimeLedger
from mainspring.node.lead.watch.pace import Pace
from mainspring.node.lead.watch.progress import Progress, RankSeen
from mainspring.node.lead.watch.stragglers import Stragglers

BLAME_S = 0.25  # A dead rank's agent tells of it in milliseconds; survivors' own errors only say that it is gone.
DUMP_LIMIT_S = 3.0  # Dumping stacks takes milliseconds; a process that cannot answer in seconds is odd itself.


@dataclass(slots=True)
class _Dump:
    """A look at where ranks stand: why, until when answers count, and those that came."""

    suspicion: Suspicion
    until_s: float
    stacks: dict[int, wire.StacksDumped] = field(default_factory=dict)


@final
class RunningGeneration:
    """The ranks of one generation after the other.

    Args:
        orders: The attempt's orders.
        members: Who runs.
        roster: The agents.
        outbox: Where events and messages go.
    """

    def __init__(self, orders: wire.Orders, members: Members, roster: Roster, outbox: Outbox) -> None:
        nodes = len(roster.here)
        self.ranks: dict[int, RankSeen] = {rank: RankSeen() for rank in members.places}
        self.progress = Progress(reached=orders.furthest_step)
        self.pace = Pace(nodes=nodes, now_s=outbox.now_s)
        self.ledger = TimeLedger(nodes=nodes, now_s=outbox.now_s)
        self.failures = Failures(restarts_max=orders.restarts_max)
        self.change: PlannedChange | None = None
        self._members = members
        self._roster = roster
        self._outbox = outbox
        self._hangs = Hangs(members.roles, fixed_s=orders.hang_s, stepped_before=orders.furthest_step >= 0)
        self._stragglers = Stragglers()
        self._generation = 0
        self._resumed = -1
        self._living: dict[RoleName, int] = {}
        self._unstepped: set[int] = set()
        self._reporter, self._reported_s = -1, 0.0
        self._dump: _Dump | None = None
        self._blamed: Failure | None = None
        self._blame_s = 0.0

    # ------------------------------------------------------------ generations

    def stop(self, use: TimeUse, closes: TimeUse | None = None) -> None:
        """Takes note that ranks run no more.

        Args:
            use: What the time from now on goes into.
            closes: What the time since the last step went into, where that is something else.
        """
        self.ledger.enter(use, self._outbox.now_s, closes=closes)
        self.change = self._dump = self._blamed = None

    def end(self, *, well: bool) -> None:
        """Takes note that the attempt winds down.

        Args:
            well: Whether ranks did what they were for.
        """
        self.ledger.end(self._outbox.now_s, well=well)
        self.change = self._dump = self._blamed = None

    def have(self, nodes: int) -> None:
        """Takes note of how many nodes the attempt has from now on.

        Args:
            nodes: How many.
        """
        self.ledger.have(nodes, self._outbox.now_s)
        self.pace.have(nodes, self._outbox.now_s)

    def seat(self) -> None:
        """Takes note that places were given role ranks anew: of their processes nothing is known yet."""
        for rank in self._members.active:
            before = self.ranks.get(rank, RankSeen())
            self.ranks[rank] = RankSeen(metrics=before.metrics, results=before.results)
        self._unstepped = set(self._members.active)

    def run(self, generation: int, resumed: int, *, from_store: bool) -> None:
        """Takes note that the members' ranks run.

        Args:
            generation: The generation.
            resumed: The step they resume at.
            from_store: Whether they read it from the object store.
        """
        now_s = self._outbox.now_s
        self._generation, self._resumed, self._reporter = generation, resumed, -1
        self._living = {}
        for place in self._members.active.values():
            self._living[place.role] = self._living.get(place.role, 0) + 1
        self.progress.new_generation()
        self.pace.unsettle()
        self._hangs.begin(now_s, from_store=from_store)
        self._stragglers.begin(now_s)
        self.ledger.run(resumed, self.progress.before, now_s)

    @property
    def stop_at(self) -> int:
        """Returns the first step by which word sent now has reached all ranks."""
        return step_to_leave_at(self.progress.here, self.pace.step_s, len(self._members.active))

    @property
    def all_step(self) -> bool:
        """Returns whether every rank has reported a step in this generation."""
        return not self._unstepped

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the newest metrics of the lowest rank that reports any."""
        return next((self.ranks[rank].metrics for rank in self._members.active if self.ranks[rank].metrics), {})

    @property
    def status(self) -> tuple[wire.RankStatus, ...]:
        """Returns every place as last seen, but those whose nodes were taken away and that have left."""
        agents = self._roster
        return tuple(
            wire.RankStatus(
                rank=rank,
                node=NodeName(agents[place.agent].node),
                pid=self.ranks[rank].pid,
                alive=rank in self._members.active and self.ranks[rank].pid > 0 and self.ranks[rank].exit_code is None,
                step=self.ranks[rank].step,
            )
            for rank, place in self._members.places.items()
            if rank in self.ranks and (rank in self._members.active or agents[place.agent].leaving_s is None)
        )

    def runs(self, agent: int, rank: int) -> bool:
        """Returns whether a place runs in this generation, and is the agent's.

        Args:
            agent: The agent.
            rank: The place.
        """
        place = self._members.active.get(rank)
        return place is not None and place.agent == agent

    # ------------------------------------------------------------ what ranks do

    def result(self, message: wire.RankResult) -> None:
        """Takes a rank's result; one told again is ignored.

        Args:
            message: The result.
        """
        seen = self.ranks.setdefault(message.rank, RankSeen())
        if message.sequence > seen.results:
            seen.results = message.sequence
            self._outbox.event(ResultEvent(detail=dict(message.values)))

    def progressed(self, message: wire.RankProgress) -> None:
        """Takes a rank's step report.

        Args:
            message: The report, of this generation.
        """
        rank, now_s = message.rank, self._outbox.now_s
        seen = self.ranks[rank]
        steps = max(0, message.step - (seen.step if seen.step >= 0 else self._resumed))
        if message.step > seen.step:
            self._hangs.progressed(self._members.active[rank].role, rank, now_s)
        seen.step = max(seen.step, message.step)
        seen.metrics = message.metrics or seen.metrics
        self._unstepped.discard(rank)
        self._stragglers.stepped(rank, steps=steps, seconds=message.seconds)
        if self._reporter < 0 or rank <= self._reporter:
            self._measured(message, steps, timed=rank == self._reporter)
        for event in self.progress.stepped(message.step):
            self._outbox.event(event(generation=self._generation, step=message.step))

    def _measured(self, message: wire.RankProgress, steps: int, *, timed: bool) -> None:
        """Books what the lowest rank that reports has measured; all ranks keep step with it."""
        now_s, seconds = self._outbox.now_s, message.seconds
        once_s = sum(seconds.get(use.value, 0.0) for use in (TimeUse.COMPILE, TimeUse.RESTORE))
        blocked_s = max(0.0, seconds.get(TimeUse.SNAPSHOT.value, 0.0))
        elapsed_s = max(0.0, now_s - self._reported_s - once_s) if timed else 0.0
        self.progress.blocked_s += blocked_s
        self.pace.stepped(steps=steps, elapsed_s=elapsed_s, blocked_s=blocked_s)
        self.ledger.stepped(message.step, seconds, now_s)
        self._reporter, self._reported_s = message.rank, now_s

    def taken(self, holding: wire.Holding, *, whole: bool, safe: bool) -> None:
        """Takes note of a snapshot.

        Args:
            holding: What was taken.
            whole: Whether its step is whole now.
            safe: Whether it stays whole whichever agent is lost.
        """
        if holding.rank == self._reporter and not holding.copied:
            self.pace.snapshot()
        if whole and holding.generation == self._generation:
            self.pace.whole(holding.step, safe=safe)

    def exited(self, agent: int, message: wire.RankExited) -> Beginning | Ending | None:
        """Takes note that a rank's process ended; returns what follows at once.

        Args:
            agent: Where.
            message: How.
        """
        seen, code = self.ranks[message.rank], message.exit_code
        if seen.exit_code is not None:
            return None
        if not seen.left:
            self._living[self._members.active[message.rank].role] -= 1
        seen.exit_code = code
        asked = self.change is not None and code == wire.EXIT_PREEMPTED
        if code == 0 or asked or seen.left:
            return None
        self._outbox.event(
            RankExitedEvent(
                generation=self._generation,
                rank=message.rank,
                exit_code=code,
                step=self.progress.furthest,
                last_words=message.last_words,
            )
        )
        return self._failed(exited(rank=message.rank, agent=agent, exit_code=code, words=message.last_words))

    def left(self, agent: int, message: wire.RankLeft) -> None:
        """Takes note that a rank that reconnects has left; unless it was asked to, somebody failed.

        Args:
            agent: Where.
            message: Its words.
        """
        seen = self.ranks[message.rank]
        if seen.gone:
            return
        seen.left = True
        self._living[self._members.active[message.rank].role] -= 1
        if self.change is not None and not message.words:
            return
        self._outbox.event(
            RankLeftEvent(
                generation=self._generation,
                rank=message.rank,
                step=self.progress.furthest,
                words=message.words,
            )
        )
        if self._blamed is None:
            self._blame_s = self._outbox.now_s + BLAME_S
            self._blamed = Failure(
                rank=message.rank,
                agent=agent if self._in_touch else -1,
                how="left its generation",
                kind="left",
                outside=True,
                words=message.words,
            )

    def stacks(self, message: wire.StacksDumped) -> None:
        """Takes where a rank stands.

        Args:
            message: What its agent found.
        """
        if self._dump is not None:
            self._dump.stacks[message.rank] = message

    def _failed(self, failure: Failure) -> Beginning | Ending | None:
        if self.change is not None and self.change.then is Then.EXIT:
            return None  # All are leaving for good: what counts is what they saved.
        verdict = self.failures.another(failure, furthest=self.progress.furthest, now_s=self._outbox.now_s)
        self.pace.failed()
        if verdict.outcome is not None:
            return Ending(outcome=verdict.outcome, reason=verdict.reason)
        return Beginning(cause=verdict.reason)

    # ------------------------------------------------------------ what follows

    def gone(self) -> Beginning | Ending | None:
        """Returns what follows once no rank runs any more; None while one does."""
        if any(self._living.values()):
            return None
        if all(self.ranks[rank].exit_code == 0 for rank in self._members.active):
            return Ending(outcome=AttemptState.SUCCEEDED, reason="every rank ended well")
        if self.change is None:
            return None  # Some left and nobody asked: whom to blame is still open.
        if self.change.outcome is not None:
            return Ending(outcome=self.change.outcome, reason=self.change.cause)
        return Beginning(cause=self.change.cause, use=TimeUse.RESIZE)

    @property
    def _in_touch(self) -> bool:
        """Returns whether every agent whose ranks run is connected; else silence and failures are likely its doing."""
        return all(self._roster[agent].connected for agent in self._members.active_agents)

    def look(self) -> Beginning | Ending | None:
        """Looks at what time has brought; returns what follows."""
        now_s = self._outbox.now_s
        if self._blamed is not None and now_s >= self._blame_s:
            blamed, self._blamed = self._blamed, None
            return self._failed(blamed)
        if self.change is not None:
            return self._overdue(self.change)
        for slow in self._stragglers.look(now_s, self.pace.step_s):
            node = self._roster[self._members.places[slow.rank].agent].node
            self._outbox.event(RankSlowEvent(rank=slow.rank, node=node, ratio=slow.ratio))
        if self.progress.stepping and self.pace.move(now_s, known_from=self.stop_at):
            self._outbox.tell(self._members.active_agents, wire.SnapshotPace(every=self.pace.every))
            self._outbox.event(
                SnapshotPaceEvent(
                    every=self.pace.every,
                    interval_s=self.pace.interval_s(now_s) or 0.0,
                    cost_s=self.pace.cost_s or 0.0,
                    failures_per_day=self.pace.failures_per_day(now_s),
                )
            )
        return self._listen() if self._in_touch else None

    def _overdue(self, change: PlannedChange) -> Beginning | Ending | None:
        if self._outbox.now_s < change.deadline_s:
            return None
        late = f"{change.cause}; ranks outlived the grace"
        if change.outcome is not None:
            return Ending(outcome=change.outcome, reason=late)
        return Beginning(cause=late, use=TimeUse.RESIZE)

    def _listen(self) -> Beginning | Ending | None:
        """Returns what a hang leads to; first asks where ranks stand, and judges when they have said so."""
        now_s = self._outbox.now_s
        roles = tuple(role for role, living in sorted(self._living.items()) if living)
        suspicion = self._hangs.suspicion(roles, now_s)
        if suspicion is None:
            self._dump = None
        elif self._dump is None or self._dump.suspicion.role != suspicion.role:
            self._dump = _Dump(suspicion=suspicion, until_s=now_s + DUMP_LIMIT_S)
            self._outbox.tell(self._members.active_agents, wire.DumpStacks(generation=self._generation))
        else:
            standings = {
                rank: RankPosition(step=self.ranks[rank].step, ended=self.ranks[rank].gone)
                for rank, place in self._members.active.items()
                if place.role == suspicion.role
            }
            answered = all(standing.ended or rank in self._dump.stacks for rank, standing in standings.items())
            if answered or now_s >= self._dump.until_s:
                return self._judge(suspicion, odd_ones(standings, self._dump.stacks))
        return None

    def _judge(self, suspicion: Suspicion, odd: Oddness) -> Beginning | Ending | None:
        self._dump = None
        if not (odd.certain or suspicion.stage == 2 or (suspicion.stage == 1 and odd.ranks)):
            self._hangs.spared()
            return None
        self._hangs.declared(self.progress.furthest)
        evidence = odd.evidence or "nothing tells the ranks apart"
        self._outbox.event(
            HangEvent(
                generation=self._generation,
                step=self.progress.furthest,
                silent_s=suspicion.silent_s,
                odd=", ".join(map(str, odd.ranks[:16])),
                evidence=evidence,
            )
        )
        first = odd.ranks[0] if odd.ranks else next(iter(self._members.active))
        agents = frozenset(self._members.active[rank].agent for rank in odd.ranks)
        how = f"hung with role {suspicion.role} for {suspicion.silent_s:.0f} s"
        agent = self._members.active[first].agent if odd.ranks else -1
        failure = Failure(rank=first, agent=agent, how=how, kind="hang", outside=True, words=evidence)
        follows = self._failed(failure)
        if isinstance(follows, Beginning):
            return Beginning(cause=f"hang: {follows.cause}", closes=TimeUse.HANG, hasty=agents)
        return follows
