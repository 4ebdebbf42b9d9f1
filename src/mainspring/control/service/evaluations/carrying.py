"""Carries rules of evaluations out, while its controller leads: submits, drops, tells.

All that it remembers is in the store, so that another leader goes on: an evaluation is a job under a key that says
which rule, job and step it is of. A step that was submitted before is not submitted again, whoever does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import final

import sqlalchemy as sa

from mainspring.control.service.evaluations.deciding import DurableSteps, EvaluationDecision, decide
from mainspring.control.service.evaluations.rules import owner_of, read_rules, run_key, runs_of
from mainspring.control.service.views import find_job
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.records import read_text, specs
from mainspring.control.store.schema import events
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import EvaluationRuleView, EvaluationRun, JobView, Submit
from mainspring.domain.answers.jobs import CHECKPOINT
from mainspring.domain.errors import Conflict, MainspringError, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState
from mainspring.domain.ports import Clock
from mainspring.domain.wire.events import AnyEvent
from mainspring.domain.wire.events.jobs import (
    EvaluationDroppedEvent,
    EvaluationRefusedEvent,
    EvaluationStartedEvent,
)
from mainspring.domain.wire.events.leads import CheckpointDurableEvent

NAME_LENGTH_MAX = 40  # Of a job's name, of which an evaluation's begins with it.
_log = logging.getLogger(__name__)


@final
class EvaluationStarter:
    """Starts the evaluations that rules want. Used by one thread.

    Args:
        submit: Takes a job, or returns the one that its key made before.
        stop: Asks a job to end, for somebody and for a reason.
        write: A transaction of the leader's.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        submit: Callable[[Submit, Caller], JobView],
        stop: Callable[[str, Caller, str], object],
        write: Callable[[], AbstractContextManager[sa.Connection]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._submit = submit
        self._stop = stop
        self._write = write
        self._durable: dict[JobId, tuple[int, DurableSteps]] = {}  # With the event that each was read up to.
        self._refused: dict[tuple[str, JobId, int], str] = {}  # What was told of each, once.

    def forget(self) -> None:
        """Begins anew: another controller may have led."""
        self._durable.clear()
        self._refused.clear()

    def step(self) -> None:
        """Looks at every rule once and does what it wants.

        Raises:
            Conflict: Another controller leads.
            Unavailable: The store does not answer.
        """
        with self._store.read() as connection:
            rules = read_rules(connection)
            own = runs_of(connection, rules)
            wanted = [(rule, trained) for rule in rules for trained in self._followed(connection, rule)]
            decided = [
                (rule, trained, decide(rule.rule, durable, own[rule.name], self._clock.now_s()))
                for rule, trained in wanted
                for durable in [self._read(connection, trained, rule.rule.every)]
            ]
            views = {job: spec.views for job, spec in specs(connection, {trained for _, trained in wanted}).items()}
        for rule, trained, decision in decided:
            if decision.start is not None:
                self._carry_out(rule, trained, decision, views.get(trained, ()))

    def _followed(self, connection: sa.Connection, rule: EvaluationRuleView) -> tuple[JobId, ...]:
        try:
            return (find_job(connection, rule.rule.job, owner_of(rule)).id,)
        except NotFound:  # Removed; or of a name that nobody has had yet.
            return ()

    def _read(self, connection: sa.Connection, job: JobId, every: int) -> DurableSteps:
        """Returns what is durable of a job, reading no event twice."""
        seen, known = self._durable.get(job, (0, DurableSteps(job=job, count=0, newest=())))
        columns = (events.c.sequence, events.c.detail)
        own = (events.c.job_id == job, events.c.sequence > seen, events.c.kind == CheckpointDurableEvent.kind)
        rows = connection.execute(sa.select(*columns).where(*own).order_by(events.c.sequence)).all()
        steps = list(known.newest)
        count = known.count
        for row in rows:
            step = int(read_text(dict[str, int], row.detail)["step"])
            if step in steps:  # Saved again, after it was gone back behind.
                continue
            steps.append(step)
            count += 1
        kept = tuple(steps[-max(every, 1) - 1 :])
        found = DurableSteps(job=job, count=count, newest=kept)
        self._durable[job] = (rows[-1].sequence if rows else seen, found)
        return found

    def _carry_out(
        self, rule: EvaluationRuleView, trained: JobId, decision: EvaluationDecision, views: tuple[str, ...]
    ) -> None:
        step = decision.start
        assert step is not None
        asked = (rule.name, trained, step)
        spec = spec_of(rule, trained, step, views)
        if not all(self._dropped(rule, run, step) for run in decision.drop):
            return  # One has begun meanwhile: whether there is room for another is for the next look to say.
        try:
            made = self._submit(Submit(spec=spec, key=run_key(*asked)), owner_of(rule))
        except Conflict:
            raise
        except MainspringError as error:
            if self._refused.get(asked) != str(error):
                self._refused[asked] = str(error)
                _log.warning("evaluation of %s@%s by rule %s: %s", trained, step, rule.name, error)
                self._tell(trained, EvaluationRefusedEvent(rule=rule.name, step=step, reason=str(error)[:1_000]))
            return
        self._tell(trained, EvaluationStartedEvent(rule=rule.name, step=step, by=made.id))

    def _dropped(self, rule: EvaluationRuleView, run: EvaluationRun, newer: int) -> bool:
        """Ends an evaluation that waits; returns False for one that has begun meanwhile, which goes on."""
        with self._store.read() as connection:
            waits = find_job(connection, run.job).state is JobState.QUEUED
        if waits:
            self._stop(run.job, replace(LAB_ITSELF, holder=f"rule {rule.name}"), f"step {newer} comes first")
            self._tell(run.trained, EvaluationDroppedEvent(rule=rule.name, step=run.step, by=run.job, newer=newer))
        return waits

    def _tell(self, job: JobId, told: AnyEvent) -> None:
        with self._write() as connection:
            StateWriter(connection, self._clock.now_s()).event(told, job=job)


def spec_of(rule: EvaluationRuleView, trained: JobId, step: int, views: tuple[str, ...]) -> JobSpec:
    """Returns the spec of one evaluation.

    Args:
        views: Of the job that is evaluated.
    """
    checkpoint, spec = f"{trained}@{step}", rule.rule.spec
    roles = tuple(
        replace(role, command=tuple(word.replace(CHECKPOINT, checkpoint) for word in role.command))
        for role in spec.roles
    )
    return replace(
        spec,
        name=f"{spec.name[:NAME_LENGTH_MAX]}-{step}",
        roles=roles,
        begins_from=checkpoint,
        views=spec.views or views,
        evaluates=checkpoint,
    )
