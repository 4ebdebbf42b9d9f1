"""Has nodes in quarantine repaired, as a site's hooks do it, and let back by a burn-in that they passed.

What is under way is in the store, written by the leader alone before it begins, so that another one goes on: a hook
that was called when a leader died counts as late at its limit, and the ladder goes on. A burn-in is a job like any
other, but that it alone may run on its node.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, final

import sqlalchemy as sa

from mainspring.control.health.breaker import Breaker
from mainspring.control.health.ladder import Otherwise, Patient, next_step
from mainspring.control.health.quarantines import NEW_RULE, OWNER, QUARANTINE_S
from mainspring.control.state.fleet import FleetView, trial_taint
from mainspring.control.store.audit import note
from mainspring.control.store.holdings import live_allocations, parts
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.nodes.cases import Case, judge_case
from mainspring.control.store.nodes.closures import add_closure, change_closures, open_closures
from mainspring.control.store.nodes.repairs import NEW, begin_repair, end_repair, repairs_of, under_way
from mainspring.control.store.nodes.settings import breaker_texts, healths
from mainspring.control.store.records import JobRecord, attempts_of, jobs_by_id
from mainspring.control.store.rows import read_text, text_of
from mainspring.control.store.schema import closures, node_states
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF
from mainspring.domain.answers import ClosureKind, NodeClosure, NodeRepair, RepairOutcome, Submit
from mainspring.domain.codec import encode
from mainspring.domain.fleet import Node, NodeRef
from mainspring.domain.hardware.care import BURN_IN, BurnIn, CareRules, RepairHook, Rung, put_in
from mainspring.domain.hardware.health import HealthState, Repair
from mainspring.domain.ids import NO_JOB, ClusterName, JobId, NodeName, draw_id
from mainspring.domain.job import ANY_CHIP, LAB, JobKind, JobSpec, Option, Role, Tier
from mainspring.domain.life import JobState, ended
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.wire.events.nodes import (
    NodeClosedEvent,
    NodeOpenedEvent,
    NodeRepairBegunEvent,
    NodeRepairEndedEvent,
)

HOOKS_MAX = 8  # Called at one time: each may keep a thread for its whole limit.
AT_ONCE_ONE_IN = 100  # Nodes of a cluster in burn-in at one time, one at least: so much of its time it takes at most.
WORDS_MAX = 500  # Of what a hook said.
NEW_S = 3_600.0  # How long a node is new, and a cluster whose nodes are not: all of them came at one time.
NEW_MAX = 100  # Nodes closed for being new in one step.
PASSED = "burn-in"  # Who has opened a node that passed; it counts as looked at.
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """What a hook is told.

    Args:
        number: The step's: it is the same where a hook is called once more.
        body: JSON of cluster, node, step, reason and what else is known.
    """

    number: int
    rung: Rung
    hook: RepairHook
    cluster: ClusterName
    node: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSaid:
    """What came of a call."""

    outcome: RepairOutcome
    words: str = ""


class Hooks(Protocol):
    """Calls a site's hooks, each in a thread of its own."""

    def call(self, call: HookCall) -> None:
        """Begins a call and returns at once; what comes of it within its limit is told by `said`."""

    def said(self) -> Mapping[int, HookSaid]:
        """Returns what came of calls since the last time, by number."""


@final
class Repairs:
    """The care of one controller's nodes. Used by one thread.

    Args:
        rules: What the site says.
        write: Begins a transaction of the leader's.
    """

    def __init__(
        self,
        store: Store,
        fleet: FleetView,
        clock: Clock,
        dice: Dice,
        rules: CareRules,
        hooks: Hooks,
        write: Callable[[], AbstractContextManager[sa.Connection]],
    ) -> None:
        self._store, self._fleet, self._clock, self._dice = store, fleet, clock, dice
        self._rules = rules
        self._hooks = hooks
        self._write = write

    def step(self) -> None:
        """Ends what is over, and begins what is due.

        Raises:
            Conflict: Another controller leads.
            Unavailable: The store does not answer.
        """
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            closed = any(one.owner == OWNER for one in open_closures(connection))
            if not closed and not under_way(connection) and not self._tries_new:
                return
        calls: list[HookCall] = []
        with self._write() as connection:
            ledger = StateWriter(connection, now_s)
            self._end(ledger)
            calls += self._begin(ledger)
        for call in calls:
            self._hooks.call(call)

    @property
    def _tries_new(self) -> bool:
        return self._rules.burn_in is not None and self._rules.burn_in.new_nodes

    # ---------------------------------------------------------------- what is over

    def _end(self, ledger: StateWriter) -> None:
        said, steps = self._hooks.said(), under_way(ledger.connection)
        jobs = jobs_by_id(ledger.connection, [each.job for each in steps if each.job])
        open_now = {one.number for one in open_closures(ledger.connection)}
        for step in steps:
            if step.closure not in open_now:
                words = "somebody opened the node meanwhile"
                self._over(ledger, step, RepairOutcome.FAILED, words, jobs.get(step.job))
            elif step.step == BURN_IN:
                self._end_burn_in(ledger, step, jobs.get(step.job))
            elif step.number in said:
                self._over(ledger, step, said[step.number].outcome, said[step.number].words)
            else:
                hook = self._rules.repairs.get(Rung(step.step))
                limit_s = hook.limit_s if hook is not None else 0.0
                if ledger.now_s - step.begun_s > limit_s:
                    self._over(ledger, step, RepairOutcome.LATE, f"nothing was heard of it for {limit_s:g} s")

    def _end_burn_in(self, ledger: StateWriter, step: NodeRepair, job: JobRecord | None) -> None:
        state = None if job is None else job.state
        rules = self._rules.burn_in
        limit_s = 60.0 * rules.limit_minutes if rules is not None else 0.0
        if state in (JobState.SUCCEEDED, JobState.FAILED):
            _judge(ledger, step, passed=state is JobState.SUCCEEDED)
        if state is JobState.SUCCEEDED:
            self._over(ledger, step, RepairOutcome.DONE, f"{step.job} ended well")
        elif state is None or ended(state):
            self._over(ledger, step, RepairOutcome.FAILED, f"{step.job} {'is gone' if state is None else state.value}")
        elif ledger.now_s - step.begun_s > limit_s:
            self._over(ledger, step, RepairOutcome.LATE, f"{step.job} was not over in {limit_s / 60:g} minutes", job)

    def _over(
        self, ledger: StateWriter, step: NodeRepair, outcome: RepairOutcome, words: str, job: JobRecord | None = None
    ) -> None:
        words = words[:WORDS_MAX]
        if not end_repair(ledger.connection, step.number, outcome, words, ledger.now_s):
            return
        if job is not None:
            _stop(ledger, job, f"its burn-in is over: {words}")
        told = NodeRepairEndedEvent(
            cluster=step.cluster, node=step.node, step=step.step, outcome=outcome.value, words=words
        )
        ledger.event(told, job=None)
        log = _log.info if outcome is RepairOutcome.DONE else _log.warning
        log("%s of node %s of %s is %s: %s", step.step, step.node, step.cluster, outcome.value, words)

    # ---------------------------------------------------------------- what is due

    def _begin(self, ledger: StateWriter) -> Iterator[HookCall]:
        connection = ledger.connection
        if self._tries_new:
            for at in _new_nodes(connection, ledger.now_s):
                _close_new(ledger, at)
        shut = {name for name, text in breaker_texts(connection).items() if read_text(Breaker, text).is_open}
        found, every = healths(connection), open_closures(connection)
        own = [one for one in every if one.owner == OWNER]
        others = {one.at for one in every if one.owner != OWNER}
        steps, busy = repairs_of(connection, [one.number for one in own]), _busy(connection)
        nodes = self._nodes()
        running = Counter(one.cluster for one in under_way(connection) if one.step == BURN_IN)
        hooks = sum(one.step != BURN_IN for one in under_way(connection))
        for one in own:
            node = nodes.get(one.at)
            if node is None or one.at in others:
                continue  # It is gone, or in somebody's hands.
            health = found.get(one.at)
            patient = Patient(
                asked=one.repair,
                found=health is not None and health.state is HealthState.FAILED,
                over=one.until_s is not None and one.until_s <= ledger.now_s,
                busy=one.at in busy,
                new=one.rule == NEW_RULE,
                steps=steps.get(one.number, ()),
            )
            then = next_step(patient, self._rules, ledger.now_s)
            if then is Otherwise.OPEN and one.cluster not in shut:
                _open(ledger, one, patient.steps)
            elif then == BURN_IN:
                most = max(1, sum(at.cluster == one.cluster for at in nodes) // AT_ONCE_ONE_IN)
                if running[one.cluster] < most:
                    running[one.cluster] += 1
                    self._burn_in(ledger, one, node)
            elif isinstance(then, Rung) and hooks < HOOKS_MAX:
                hooks += 1
                yield self._repair(ledger, one, then)

    def _repair(self, ledger: StateWriter, closure: NodeClosure, rung: Rung) -> HookCall:
        step = self._note(ledger, closure, rung.value, NO_JOB)
        told = {
            "id": step.number,
            "cluster": closure.cluster,
            "node": closure.node,
            "step": rung.value,
            "rule": closure.rule,
            "reason": closure.reason,
            "repair": closure.repair.value,
            "closed_s": closure.from_s,
        }
        return HookCall(
            number=step.number,
            rung=rung,
            hook=self._rules.repairs[rung],
            cluster=closure.cluster,
            node=closure.node,
            body=encode(told),
        )

    def _burn_in(self, ledger: StateWriter, closure: NodeClosure, node: Node) -> None:
        assert self._rules.burn_in is not None
        spec = _spec(self._rules.burn_in, closure.at, node)
        job = JobId(draw_id("job", self._dice))
        ledger.submit([(Submit(spec=spec), text_of(spec), [job])], owner=OWNER)
        self._note(ledger, closure, BURN_IN, job)

    def _note(self, ledger: StateWriter, closure: NodeClosure, step: str, job: JobId) -> NodeRepair:
        made = NodeRepair(
            number=NEW,
            closure=closure.number,
            cluster=closure.cluster,
            node=closure.node,
            step=step,
            job=job,
            begun_s=ledger.now_s,
        )
        told = NodeRepairBegunEvent(cluster=closure.cluster, node=closure.node, step=step)
        ledger.event(told, job=None)
        words = f"{step} {closure.node} of {closure.cluster}: {closure.reason}"
        note(ledger.connection, LAB_ITSELF, "repair a node", words, team=LAB, now_s=ledger.now_s)
        return begin_repair(ledger.connection, made)

    def _nodes(self) -> Mapping[NodeRef, Node]:
        seen = self._fleet.seen().items()
        return {
            NodeRef(cluster=name, node=node.name): node
            for name, one in seen
            if one.answering and not one.inventory.delegated
            for node in one.inventory.nodes
        }


def _judge(ledger: StateWriter, step: NodeRepair, *, passed: bool) -> None:
    """Measures the rule that closed a node: it was right where the node fails its burn-in, or was repaired before."""
    closure = next((one for one in open_closures(ledger.connection) if one.number == step.closure), None)
    if closure is None or not closure.rule or closure.rule == NEW_RULE:
        return
    steps = repairs_of(ledger.connection, [step.closure]).get(step.closure, ())
    repaired = [one.step for one in steps if one.step != BURN_IN and one.outcome is RepairOutcome.DONE]
    failed = [one for one in steps if one.step == BURN_IN and one.outcome is RepairOutcome.FAILED]
    if failed:
        return  # It was said then.
    by, words = (BURN_IN, f"it failed {step.job}") if not passed else (BURN_IN, f"it passed {step.job} as it was")
    if passed and repaired:
        by, words = "repair", f"it passed {step.job} after {repaired[-1]}"
    judge_case(
        ledger.connection,
        Case(rule=closure.rule, at=closure.at),
        right=not passed or bool(repaired),
        by=by,
        words=words,
    )


def _new_nodes(connection: sa.Connection, now_s: float) -> Sequence[NodeRef]:
    """Returns the nodes that came lately to a cluster that is known for longer, and were never closed."""
    of_node = (node_states.c.cluster, node_states.c.node)
    first_s = sa.func.min(node_states.c.since_s)
    began = sa.select(node_states.c.cluster, first_s.label("at_s")).group_by(node_states.c.cluster).subquery()
    seen = sa.select(*of_node, first_s.label("at_s")).group_by(*of_node).subquery()
    closed = sa.select(closures.c.number).where(closures.c.cluster == seen.c.cluster, closures.c.node == seen.c.node)
    new = (seen.c.at_s > now_s - NEW_S, seen.c.at_s > began.c.at_s + NEW_S, sa.not_(closed.exists()))
    query = sa.select(seen.c.cluster, seen.c.node).join(began, began.c.cluster == seen.c.cluster).where(*new)
    rows = connection.execute(query.order_by(seen.c.cluster, seen.c.node).limit(NEW_MAX))
    return [NodeRef(cluster=ClusterName(row.cluster), node=NodeName(row.node)) for row in rows]


def _close_new(ledger: StateWriter, at: NodeRef) -> None:
    made = NodeClosure(
        number=NEW,
        cluster=at.cluster,
        node=at.node,
        kind=ClosureKind.QUARANTINE,
        owner=OWNER,
        rule=NEW_RULE,
        reason="new: until it passed a burn-in",
        evidence=(),
        repair=Repair.NONE,
        from_s=ledger.now_s,
        until_s=ledger.now_s + QUARANTINE_S,
    )
    told = NodeClosedEvent(
        cluster=made.cluster,
        node=made.node,
        closure=made.kind.value,
        by=OWNER,
        reason=made.reason,
        rule=NEW_RULE,
        until_s=made.until_s,
    )
    ledger.event(told, job=None)
    add_closure(ledger.connection, made)


def _stop(ledger: StateWriter, job: JobRecord, words: str) -> None:
    if job.state is JobState.QUEUED:
        ledger.cancel_queued([job], OWNER)
    elif job.state in (JobState.STARTING, JobState.RUNNING):
        ledger.move_job(job, JobState.STOPPING, words)
        ledger.stop_attempt(attempts_of(ledger.connection, [job.id])[job.id][-1], StopCause.CANCEL, words)


def _open(ledger: StateWriter, closure: NodeClosure, steps: Sequence[NodeRepair]) -> None:
    passed = bool(steps) and steps[-1].step == BURN_IN
    reason = f"it passed: {steps[-1].words}" if passed else "nothing is found any more"
    if not passed and steps:
        reason = f"nothing is found any more, after {steps[-1].step}"
    values = {"ended_s": ledger.now_s, "ended_by": PASSED if steps else OWNER, "ended_reason": reason}
    change_closures(ledger.connection, [closure.number], **values)
    told = NodeOpenedEvent(
        cluster=closure.cluster, node=closure.node, closure=closure.kind.value, by=OWNER, reason=reason
    )
    ledger.event(told, job=None)
    _log.info("node %s of %s is open again: %s", closure.node, closure.cluster, reason)


def _busy(connection: sa.Connection) -> Collection[NodeRef]:
    """Returns the nodes where anything of ours may still run."""
    live = live_allocations(connection)
    held = parts(connection, [one.id for one in live])
    return {NodeRef(cluster=one.cluster, node=node) for one in live for node in held[one.id].nodes}


def _spec(rules: BurnIn, at: NodeRef, node: Node) -> JobSpec:
    option = Option(
        chip=node.chip if node.chips else ANY_CHIP,
        chips=float(node.chips),
        cpus=0.0 if node.chips else 1.0,
        slice=node.slice,
        tolerates=(*node.taints, trial_taint(at)),
    )
    role = Role(command=put_in(rules.words, cluster=at.cluster, node=at.node), options=(option,))
    return JobSpec(
        name=f"burn-in-{at.node}"[:63],
        team=rules.team,
        kind=JobKind.BATCH,
        tier=Tier.CRITICAL,
        roles=(role,),
        duration_s=60.0 * rules.minutes,
        restarts_max=0,
        attempts_max=1,
        notify=(),
    )
