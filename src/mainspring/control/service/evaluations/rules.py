"""Rules of evaluations as people set, list and remove them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import sqlalchemy as sa

from mainspring.control.service.views import find_job
from mainspring.control.store.audit import note
from mainspring.control.store.records import JOB_ROWS, JobRecord, read_text, tenants, text_of
from mainspring.control.store.schema import evaluation_rules, jobs
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, sight
from mainspring.domain.answers import EvaluationRuleView, EvaluationRun, NewEvaluationRule
from mainspring.domain.errors import LimitReached, NotFound, nearest
from mainspring.domain.ids import JobId, TeamName, checked_name
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right, TeamRole

RULES_MAX = 1_000  # Each is looked at every few seconds while its job runs.
RUNS_SHOWN_MAX = 20
RUNS_READ_MAX = 1_000  # More never wait or run at once; of those that ended, the newest.
RUN_KEYS = "evaluation:"  # How the keys of evaluations begin: nobody else may submit under such a one.
_RUN_KEY = re.compile(rf"{RUN_KEYS}[^:]+:([^:]+):([0-9]{{1,18}})")


@final
class EvaluationRules:
    """The rules of one controller. Used by many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def rules(self, caller: Caller = LAB_ITSELF) -> tuple[EvaluationRuleView, ...]:
        """Returns the rules whose team's jobs somebody may read, in order of name, with their newest evaluations."""
        with self._store.read() as connection:
            seen = sight(connection, caller)
            found = [rule for rule in read_rules(connection) if seen is None or rule.team in seen]
            own = runs_of(connection, found)
        return tuple(replace(rule, runs=own[rule.name][:RUNS_SHOWN_MAX]) for rule in found)

    def put(self, name: str, asked: NewEvaluationRule, caller: Caller = LAB_ITSELF) -> EvaluationRuleView:
        """Keeps a rule, in place of one of the same name that the caller may remove, and returns it.

        Raises:
            NotAllowed: The caller may not submit jobs of its team, or not use the secrets that they name.
            NotFound: There is no such job or team.
            LimitReached: There are too many rules.
            InvalidInput: The name cannot be one.
        """
        checked_name(name, "a rule of evaluations")
        team, now_s = asked.spec.team, self._clock.now_s()
        with self._store.write() as connection:
            known = {LAB, *(each.name for each in tenants(connection))}
            if team not in known:
                raise NotFound("rule evaluations", on=f"team {team!r}", wanted=nearest(team, known))
            caller.require(connection, Right.SUBMIT_JOBS, team)
            if asked.spec.secrets:
                caller.require(connection, Right.USE_SECRETS, team)
            find_job(connection, asked.job, caller)
            find_job(connection, asked.job, _member(team, caller.holder))  # As whom its evaluations are submitted.
            before = _rule(connection, name)
            if before is not None:
                caller.require(connection, Right.SUBMIT_JOBS, before.team)
                connection.execute(sa.delete(evaluation_rules).where(evaluation_rules.c.name == name))
            count = connection.execute(sa.select(sa.func.count()).select_from(evaluation_rules)).scalar_one()
            if count >= RULES_MAX:
                raise LimitReached(
                    "rule evaluations", got=f"{count} rules", wanted=f"at most {RULES_MAX}", next_step="ms eval rule rm"
                )
            row = {"name": name, "team": team, "owner": caller.holder, "made_s": now_s, "rule": text_of(asked)}
            connection.execute(sa.insert(evaluation_rules).values(row))
            note(connection, caller, "rule evaluations", name, team=team, now_s=now_s)
        return EvaluationRuleView(name=name, team=team, owner=caller.holder, made_s=now_s, rule=asked)

    def remove(self, name: str, caller: Caller = LAB_ITSELF) -> EvaluationRuleView:
        """Removes a rule and returns it; what it started goes on.

        Raises:
            NotAllowed: The caller may not submit jobs of its team.
            NotFound: There is no such rule.
        """
        with self._store.write() as connection:
            found = _rule(connection, name)
            if found is None:
                names = [rule.name for rule in read_rules(connection)]
                raise NotFound("remove a rule of evaluations", on=repr(name[:80]), wanted=nearest(name[:80], names))
            caller.require(connection, Right.SUBMIT_JOBS, found.team)
            connection.execute(sa.delete(evaluation_rules).where(evaluation_rules.c.name == name))
            note(connection, caller, "remove a rule", name, team=found.team, now_s=self._clock.now_s())
        return found


def read_rules(connection: sa.Connection) -> tuple[EvaluationRuleView, ...]:
    """Returns every rule, in order of name."""
    rows = connection.execute(sa.select(evaluation_rules).order_by(evaluation_rules.c.name))
    return tuple(map(_view, rows))


def _rule(connection: sa.Connection, name: str) -> EvaluationRuleView | None:
    row = connection.execute(sa.select(evaluation_rules).where(evaluation_rules.c.name == name)).one_or_none()
    return None if row is None else _view(row)


def _view(row: sa.Row[tuple[object, ...]]) -> EvaluationRuleView:
    return EvaluationRuleView(
        name=row.name,
        team=TeamName(row.team),
        owner=row.owner,
        made_s=row.made_s,
        rule=read_text(NewEvaluationRule, row.rule),
    )


def owner_of(rule: EvaluationRuleView) -> Caller:
    """Returns whom a rule acts for: its owner, as a member of its team."""
    return _member(rule.team, rule.owner)


def _member(team: TeamName, holder: str) -> Caller:
    return Caller(role=TeamRole.MEMBER, team=team, holder=holder)


def run_key(rule: str, trained: JobId, step: int) -> str:
    """Returns the key that an evaluation is submitted under, so that nothing is evaluated twice by one rule."""
    return f"{RUN_KEYS}{rule}:{trained}:{step}"


def runs_of(connection: sa.Connection, rules: Sequence[EvaluationRuleView]) -> Mapping[str, tuple[EvaluationRun, ...]]:
    """Returns the evaluations that each rule started, newest first."""
    found: dict[str, tuple[EvaluationRun, ...]] = {}
    for rule in rules:
        # A range, and not LIKE: it uses the index of keys, and no letter of a name means anything else.
        first = run_key(rule.name, JobId(""), 0).removesuffix(":0")
        own = (jobs.c.team == rule.team, jobs.c.submit_key >= first, jobs.c.submit_key < first[:-1] + ";")
        keyed = sa.select(jobs.c.id, jobs.c.submit_key).where(*own).order_by(jobs.c.ordinal.desc())
        keys = {row.id: row.submit_key for row in connection.execute(keyed.limit(RUNS_READ_MAX))}
        rows = JOB_ROWS.read(connection, JOB_ROWS.select.where(jobs.c.id.in_(keys)).order_by(jobs.c.ordinal.desc()))
        read = ((job, _RUN_KEY.fullmatch(keys[job.id])) for job in rows)
        found[rule.name] = tuple(
            _run(job, key) for job, key in read if key is not None
        )  # Others are of older releases.
    return found


def _run(job: JobRecord, key: re.Match[str]) -> EvaluationRun:
    return EvaluationRun(
        job=job.id,
        trained=JobId(key[1]),
        step=int(key[2]),
        state=job.state,
        submitted_s=job.submitted_s,
        result=job.result,
    )
