"""The running generation: how far its ranks are, how they end, when they hang, where their time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Then
from mainspring.domain.wire.events import leads
from mainspring.node.lead.changes import Course, PlannedChange, step_to_leave_at
from mainspring.node.lead.members import Members
from mainspring.node.lead.outbox import Beginning, Ending, Outbox
from mainspring.node.lead.roster import Roster
from mainspring.node.lead.watch.failures import ODD_TOLD_MAX, Failure, Failures, exited, of_devices
from mainspring.node.lead.watch.hangs import AskStacks, Hang, Hangs
from mainspring.node.lead.watch.ledger import TimeLedger
from mainspring.node.lead.watch.pace import Pace
from mainspring.node.lead.watch.progress import Progress
from mainspring.node.lead.watch.ranks import RankTable
from mainspring.node.lead.watch.replicas import Divergence
from mainspring.node.lead.watch.stragglers import Stragglers

FAILURE_LENGTH_MAX = 1_000  # Of why there is no profile: a line or two.


@final
class RunningGeneration:
    """The ranks of one generation after the other. What follows from what they do, it answers; the lead sees to it.

    Args:
        orders: The attempt's orders.
        members: Who runs, to be read.
        roster: The agents, to be read.
        outbox: Where events and messages go.
    """

    def __init__(self, orders: wire.Orders, members: Members, roster: Roster, outbox: Outbox) -> None:
        nodes = len(roster.here)
        self._members = members
        self._roster = roster
        self._outbox = outbox
        self._ranks = RankTable(members.places)
        self._progress = Progress(reached=orders.furthest_step)
        self._pace = Pace(nodes=nodes, now_s=outbox.now_s)
        self._ledger = TimeLedger(nodes=nodes, now_s=outbox.now_s)
        self._failures = Failures(restarts_max=orders.restarts_max)
        self._hangs = Hangs(members.roles, fixed_s=orders.hang_s, stepped_before=orders.furthest_step >= 0)
        self._stragglers = Stragglers()
        self._change: PlannedChange | None = None
        self._generation = 0
        self._resumed = -1
        self._reporter, self._reported_s = -1, 0.0

    # ------------------------------------------------------------ generations

    def stop(self, use: TimeUse, closes: TimeUse | None = None) -> None:
        """Takes note that ranks run no more.

        Args:
            use: What the time from now on goes into.
            closes: What the time since the last step went into, where that is something else.
        """
        self._ledger.enter(use, self._outbox.now_s, closes=closes)
        self._change = None

    def end(self, *, well: bool) -> None:
        """Takes note that the attempt winds down, and whether ranks did what they were for."""
        self._ledger.end(self._outbox.now_s, well=well)
        self._change = None

    def have(self, nodes: int) -> None:
        """Takes note of how many nodes the attempt has from now on."""
        self._ledger.have(nodes, self._outbox.now_s)
        self._pace.have(nodes, self._outbox.now_s)

    def lost_node(self) -> None:
        """Counts a failure of nodes that makes ranks start again."""
        self._pace.failed()

    def assign(self) -> None:
        """Takes note that places were given role ranks anew: of their processes nothing is known yet."""
        self._ranks.assign(self._members.active)

    def run(self, generation: int, resumed: int, *, from_store: bool) -> None:
        """Takes note that the members' ranks run.

        Args:
            resumed: The step they resume at.
            from_store: Whether they read it from the object store.
        """
        now_s = self._outbox.now_s
        self._generation, self._resumed, self._reporter = generation, resumed, -1
        self._progress.new_generation()
        self._pace.begin(len(self._members.active))
        self._failures.begin()
        self._hangs.begin(now_s, from_store=from_store)
        self._stragglers.begin(now_s)
        self._ledger.run(resumed, self._progress.before, now_s)

    # ------------------------------------------------------------ what others read

    @property
    def step(self) -> int:
        """Returns the furthest step any rank has reported, -1 before the first."""
        return self._progress.furthest

    @property
    def course(self) -> Course:
        """Returns how far ranks are, and how fast."""
        here, step_s = self._progress.here, self._pace.step_s
        stop_at = step_to_leave_at(here, step_s, len(self._members.active))
        return Course(here=here, step_s=step_s, stop_at=stop_at, all_step=self._ranks.all_step)

    @property
    def all_step(self) -> bool:
        """Returns whether every rank has reported a step in this generation."""
        return self._ranks.all_step

    @property
    def change(self) -> PlannedChange | None:
        """Returns the planned change under way, None for none."""
        return self._change

    @property
    def snapshot_every(self) -> int:
        """Returns the steps between snapshots."""
        return self._pace.every

    @property
    def suspects(self) -> frozenset[int]:
        """Returns the agents whose places shall run only where others do not suffice."""
        return self._failures.suspects

    @property
    def blocked_s(self) -> float:
        """Returns for how long snapshots have blocked the lowest rank."""
        return self._progress.blocked_s

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the newest metrics of the lowest rank that reports any."""
        return self._ranks.metrics

    def seconds(self, now_s: float) -> Mapping[str, float]:
        """Returns the ledger: node-seconds since the lead began, by use."""
        return self._ledger.seconds(now_s)

    def at_risk(self, kept: int, durable: int) -> wire.AtRisk:
        """Returns the work that would be lost now.

        Args:
            kept: The newest step that is whole in memory or durable, -1 for none.
            durable: The newest durable step, -1 for none.
        """
        reached, step_s = max(self._progress.here, kept), self._pace.step_s or 0.0
        lost, all_lost = reached - max(0, kept), reached - max(0, durable)
        steps, durable_steps = max(0, lost), max(0, all_lost)
        return wire.AtRisk(
            steps=steps,
            seconds=steps * step_s,
            durable_steps=durable_steps,
            durable_seconds=durable_steps * step_s,
        )

    @property
    def status(self) -> tuple[wire.RankStatus, ...]:
        """Returns every place as last seen, but those whose nodes were taken away and that have left."""
        agents = self._roster
        return tuple(
            wire.RankStatus(
                rank=rank,
                node=NodeName(agents[place.agent].node),
                pid=self._ranks[rank].pid,
                alive=self._ranks.alive(rank),
                step=self._ranks[rank].step,
                serving=self._ranks.serving(rank, self._outbox.now_s),
            )
            for rank, place in self._members.places.items()
            if rank in self._ranks and (rank in self._members.active or agents[place.agent].leaving_s is None)
        )

    def runs(self, agent: int, rank: int) -> bool:
        """Returns whether a place runs in this generation, and is the agent's."""
        place = self._members.active.get(rank)
        return place is not None and place.agent == agent

    # ------------------------------------------------------------ what ranks do

    def noted(self, message: wire.RankStarted | wire.RankServing) -> None:
        """Takes note of a rank's process, or of what a rank that serves tells of itself."""
        match message:
            case wire.RankStarted():
                self._ranks.started(message.rank, message.pid)
            case wire.RankServing():
                self._ranks.serves(message.rank, message.serving, self._outbox.now_s)
                if message.rank == min(self._members.active):
                    self._ledger.served(self._outbox.now_s, ready=message.serving.ready)

    def told(self, message: wire.RankResult | wire.RankUpset | wire.ProfileKept) -> None:
        """Takes what a rank gave, or word of a step that went wrong; what is told again is ignored."""
        if isinstance(message, wire.ProfileKept):
            words = message.failure[:FAILURE_LENGTH_MAX]
            kept = leads.ProfileKeptEvent(
                id=message.id, rank=message.rank, size_bytes=message.size_bytes, failure=words
            )
            self._outbox.event(kept)
            return
        if not self._ranks.result(message.rank, message.sequence):
            return
        match message:
            case wire.RankResult():
                self._outbox.event(leads.ResultEvent(detail=dict(message.values)))
            case wire.RankUpset(report=told):
                self._outbox.event(
                    leads.StepUpsetEvent(
                        step=told.step, upset=told.upset, answer=told.answer, seen=told.words, to_step=told.to_step
                    )
                )

    def profile(self, asked: wire.ProfileAsked | None) -> None:
        """Has ranks profiled. It is said again while the wish is fresh; agents do it once, of this generation."""
        if asked is None:
            return
        order = wire.TakeProfile(generation=self._generation, id=asked.id, steps=asked.steps, ranks=asked.ranks)
        self._outbox.tell(self._members.active_agents, order)

    def reached_before(self, step: int) -> None:
        """Takes note of what an older generation reached just before it was ended."""
        self._progress.reached_before(step)

    def progressed(self, message: wire.RankProgress) -> None:
        """Takes a rank's step report, of this generation."""
        rank, now_s = message.rank, self._outbox.now_s
        before = self._ranks[rank].step
        if message.step <= before:
            return  # Told again, after a break of the line.
        steps = max(0, message.step - (before if before >= 0 else self._resumed))
        self._hangs.progressed(self._members.active[rank].role, rank, now_s)
        self._ranks.stepped(rank, message.step, message.metrics)
        self._stragglers.stepped(rank, steps=steps, seconds=message.seconds)
        if self._reporter < 0 or rank <= self._reporter:
            self._measured(message, steps, timed=rank == self._reporter)
        for event in self._progress.stepped(message.step):
            self._outbox.event(event(generation=self._generation, step=message.step))

    def _measured(self, message: wire.RankProgress, steps: int, *, timed: bool) -> None:
        """Books what the lowest rank that reports has measured; all ranks keep step with it."""
        now_s, seconds = self._outbox.now_s, message.seconds
        once_s = sum(seconds.get(use.value, 0.0) for use in (TimeUse.COMPILE, TimeUse.RESTORE))
        blocked_s = max(0.0, seconds.get(TimeUse.SNAPSHOT.value, 0.0))
        elapsed_s = max(0.0, now_s - self._reported_s - once_s) if timed else 0.0
        self._progress.blocked(blocked_s)
        self._pace.stepped(steps=steps, elapsed_s=elapsed_s, blocked_s=blocked_s)
        self._ledger.stepped(message.step, seconds, now_s)
        self._reporter, self._reported_s = message.rank, now_s

    def taken(self, agent: int, message: wire.SnapshotTaken, *, whole: bool, safe: bool) -> None:
        """Takes note of a snapshot in an agent's memory, and of what snapshots cost there."""
        holding = message.holding
        if self.runs(agent, self._reporter):
            self._pace.spent(message.cost_s)
        if holding.rank == self._reporter and not holding.copied:
            self._pace.snapshot()
        if whole and holding.generation == self._generation:
            self._pace.whole(holding.step, safe=safe)

    def exited(self, agent: int, message: wire.RankExited) -> Beginning | Ending | None:
        """Takes note that a rank's process ended on an agent; returns what follows at once."""
        seen, code = self._ranks[message.rank], message.exit_code
        if seen.exit_code is not None:
            return None
        self._ranks.exited(message.rank, code)
        asked = self._change is not None and code == wire.EXIT_PREEMPTED
        if code == 0 or asked or seen.left:
            return None
        self._outbox.event(
            leads.RankExitedEvent(
                generation=self._generation,
                rank=message.rank,
                exit_code=code,
                step=self._progress.furthest,
                last_words=message.last_words,
            )
        )
        return self._failed(exited(rank=message.rank, agent=agent, exit_code=code, words=message.last_words))

    def left(self, agent: int, message: wire.RankLeft) -> None:
        """Takes note that a rank that reconnects has left, on an agent; unless it was asked to, somebody failed."""
        if self._ranks[message.rank].gone:
            return
        self._ranks.left(message.rank)
        if self._change is not None and not message.words:
            return
        self._outbox.event(
            leads.RankLeftEvent(
                generation=self._generation,
                rank=message.rank,
                step=self._progress.furthest,
                words=message.words,
            )
        )
        failure = Failure(
            rank=message.rank,
            agents=(agent,) if self._in_touch else (),
            how="left its generation",
            kind="left",
            outside=True,
            words=message.words,
        )
        self._failures.blame(failure, self._outbox.now_s)

    def differ(self, step: int, found: Divergence) -> Beginning | Ending | None:
        """Takes note that ranks do not agree on a step; returns what follows."""
        agents = tuple(dict.fromkeys(self._members.places[rank].agent for rank in found.odd))
        self._outbox.event(
            leads.ReplicasDifferEvent(
                generation=self._generation,
                step=step,
                ranks=len(found.ranks),
                odd=", ".join(map(str, found.odd[:ODD_TOLD_MAX])),
                nodes=self._nodes(agents),
            )
        )
        failure = Failure(
            rank=(found.odd or found.ranks)[0],
            agents=agents,
            how=f"has other replicas than {len(found.ranks) - len(found.odd or found.ranks[:1])} others have",
            kind="replicas",
            outside=True,
            certain=bool(agents),
        )
        return self._failed(failure)

    def tried(self, message: wire.RankTried, *, late: bool) -> Failure | None:
        """Takes word of work that was done more than once; returns who failed, where that is certain.

        Args:
            late: Whether it is of a generation that is over. Who ran where is not known any more: nobody is blamed.
        """
        report, active = message.report, self._members.active
        if not self._ranks.result(message.rank, message.sequence) or report.equal:
            return None
        place = None if late else active.get(message.rank)
        alike = [(rank, one) for rank, one in active.items() if place is not None and one.role == place.role]
        odd = [rank for rank, one in alike if one.role_rank in report.ranks]
        agents = tuple(dict.fromkeys(active[rank].agent for rank in odd))
        self._outbox.event(
            leads.DevicesDifferEvent(
                generation=message.generation,
                step=report.step,
                ranks=", ".join(map(str, odd[:ODD_TOLD_MAX])),
                nodes=self._nodes(agents),
                device=report.device,
                certain=report.certain,
                again=report.again,
                agreed_step=report.agreed_step,
                given_up=report.given_up,
            )
        )
        return of_devices(odd or [message.rank], agents) if report.certain else None

    def _nodes(self, agents: Sequence[int]) -> str:
        """Returns where agents are, for an event: none twice, and not too many."""
        return ", ".join(list(dict.fromkeys(self._roster[agent].node for agent in agents))[:ODD_TOLD_MAX])

    def failed(self, failure: Failure) -> Beginning | Ending | None:
        """Takes note of a failure that was found elsewhere; returns what follows."""
        return self._failed(failure)

    def stacks(self, message: wire.StacksDumped) -> None:
        """Takes where a rank stands."""
        self._hangs.stacks(message)

    def ask_stacks(self, number: int) -> None:
        """Asks where ranks stand, where people have asked once more.

        Args:
            number: How often they have.
        """
        if self._ranks.any_live and self._hangs.look.ask(number, self._outbox.now_s):
            self._outbox.tell(self._members.active_agents, wire.DumpStacks(generation=self._generation))

    def leave(self, change: PlannedChange) -> None:
        """Asks all ranks to leave."""
        if self._change is not None and self._change.stop_at >= 0:
            change = replace(change, stop_at=self._change.stop_at)  # Some may have left there already.
        self._change = change
        self._outbox.tell(self._members.active_agents, change.message(self._generation, self._outbox.now_s))

    def _failed(self, failure: Failure) -> Beginning | Ending | None:
        if self._change is not None and self._change.then is Then.EXIT:
            return None  # All are leaving for good: what counts is what they saved.
        verdict = self._failures.another(failure, furthest=self._progress.furthest, now_s=self._outbox.now_s)
        self._pace.failed()
        if verdict.outcome is not None:
            return Ending(outcome=verdict.outcome, reason=verdict.reason)
        return Beginning(cause=verdict.reason)

    # ------------------------------------------------------------ what follows

    def gone(self) -> Beginning | Ending | None:
        """Returns what follows once no rank runs any more; None while one does."""
        if self._ranks.any_live:
            return None
        if self._ranks.all_succeeded:
            return Ending(outcome=AttemptState.SUCCEEDED, reason="every rank ended well")
        if self._change is None:
            return None  # Some left and nobody asked: whom to blame is still open.
        if self._change.outcome is not None:
            return Ending(outcome=self._change.outcome, reason=self._change.cause)
        return Beginning(cause=self._change.cause, use=TimeUse.RESIZE)

    def ending(self, cause: str) -> Ending | None:
        """Returns how the attempt ends where it was about to, now that there is cause to begin anew."""
        if self._change is None or self._change.outcome is None:
            return None
        return Ending(outcome=self._change.outcome, reason=f"{self._change.cause}; {cause}")

    @property
    def _in_touch(self) -> bool:
        """Returns whether every agent whose ranks run is connected; else silence and failures are likely its doing."""
        return all(self._roster[agent].connected for agent in self._members.active_agents)

    def look(self) -> Beginning | Ending | None:
        """Looks at what time has brought; returns what follows."""
        now_s = self._outbox.now_s
        living = [rank for rank in self._members.active if self._ranks.alive(rank)]
        for told in self._hangs.look.due(self._generation, living, now_s):
            self._outbox.event(told)
        unexplained = self._failures.unexplained(now_s)
        if unexplained is not None:
            return self._failed(unexplained)
        if self._change is not None:
            return self._overdue(self._change)
        for slow in self._stragglers.look(now_s, self._pace.step_s):
            node = self._roster[self._members.places[slow.rank].agent].node
            event = leads.RankEvenEvent if slow.ratio <= 1.0 else partial(leads.RankSlowEvent, ratio=slow.ratio)
            self._outbox.event(event(rank=slow.rank, node=node))
        if self._progress.stepping and self._pace.move(now_s, known_from=self.course.stop_at):
            self._outbox.tell(self._members.active_agents, wire.SnapshotPace(every=self._pace.every))
            self._outbox.event(
                leads.SnapshotPaceEvent(
                    every=self._pace.every,
                    interval_s=self._pace.interval_s(now_s) or 0.0,
                    cost_s=self._pace.cost_s or 0.0,
                    failures_per_day=self._pace.failures_per_day(now_s),
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
        """Returns what silence leads to."""
        now_s = self._outbox.now_s
        suspicion = self._hangs.suspicion(self._ranks.living_roles, now_s)
        positions = self._ranks.positions(suspicion.role) if suspicion is not None else {}
        match self._hangs.survey(suspicion, positions, self._progress.furthest, now_s):
            case AskStacks():
                self._outbox.tell(self._members.active_agents, wire.DumpStacks(generation=self._generation))
                return None
            case Hang() as hang:
                return self._hung(hang)
            case None:
                return None

    def _hung(self, hang: Hang) -> Beginning | Ending | None:
        suspicion, odd = hang.suspicion, hang.odd
        evidence = odd.evidence or "nothing tells the ranks apart"
        self._outbox.event(
            leads.HangEvent(
                generation=self._generation,
                step=self._progress.furthest,
                silent_s=suspicion.silent_s,
                odd=", ".join(map(str, odd.ranks[:ODD_TOLD_MAX])),
                evidence=evidence,
            )
        )
        first = odd.ranks[0] if odd.ranks else next(iter(self._members.active))
        agents = frozenset(self._members.active[rank].agent for rank in odd.ranks)
        how = f"hung with role {suspicion.role} for {suspicion.silent_s:.0f} s"
        blamed = (self._members.active[first].agent,) if odd.ranks else ()
        failure = Failure(rank=first, agents=blamed, how=how, kind="hang", outside=True, words=evidence)
        follows = self._failed(failure)
        if isinstance(follows, Beginning):
            return Beginning(cause=f"hang: {follows.cause}", closes=TimeUse.HANG, hasty=agents)
        return follows
