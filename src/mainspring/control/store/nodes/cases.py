"""Cases: each time that a rule of health held for a node, and whether it was right, as a burn-in, a repair or somebody
said; what a rule's precision is measured by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.nodes.tables import rule_cases
from mainspring.domain.fleet import NodeRef

_OPEN = rule_cases.c.until_s.is_(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rule that held for a node."""

    rule: str
    at: NodeRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How often a rule was right and wrong, and how often nobody said so yet."""

    right: int = 0
    wrong: int = 0
    unjudged: int = 0

    @property
    def judged(self) -> int:
        """Returns how often somebody said so."""
        return self.right + self.wrong

    @property
    def part_right(self) -> float:
        """Returns the part of what was judged that was right, 1 while nothing was."""
        return self.right / self.judged if self.judged else 1.0


def change_cases(connection: sa.Connection, begun: Iterable[Case], over: Iterable[Case], now_s: float) -> None:
    """Writes that rules hold for nodes, and that they do not any more.

    Args:
        connection: From `Store.write`, of the leader.
    """
    for case in over:
        connection.execute(sa.update(rule_cases).where(*_of(case), _OPEN).values(until_s=now_s))
    rows = [
        {"rule": case.rule, "cluster": case.at.cluster, "node": case.at.node, "from_s": now_s, "by": "", "words": ""}
        for case in begun
    ]
    if rows:
        connection.execute(sa.insert(rule_cases), rows)


def judge_case(connection: sa.Connection, case: Case, *, right: bool, by: str, words: str) -> bool:
    """Writes whether the newest of such cases was right, and returns whether there is one.

    Args:
        connection: From `Store.write`.
        by: Who says so: "burn-in", "repair", or somebody.
    """
    newest = sa.select(sa.func.max(rule_cases.c.number)).where(*_of(case)).scalar_subquery()
    values = {"right": right, "by": by, "words": words}
    return connection.execute(sa.update(rule_cases).where(rule_cases.c.number == newest).values(values)).rowcount > 0


def measured(connection: sa.Connection) -> Mapping[str, Precision]:
    """Returns how often each rule was right, as long as cases are kept."""
    query = sa.select(rule_cases.c.rule, rule_cases.c.right, sa.func.count().label("count"))
    found: dict[str, dict[bool | None, int]] = {}
    for row in connection.execute(query.group_by(rule_cases.c.rule, rule_cases.c.right)):
        found.setdefault(row.rule, {})[row.right] = row.count  # type: ignore[assignment]
    return {
        rule: Precision(right=counts.get(True, 0), wrong=counts.get(False, 0), unjudged=counts.get(None, 0))
        for rule, counts in found.items()
    }


def _of(case: Case) -> tuple[sa.ColumnElement[bool], ...]:
    own = rule_cases.c
    return own.rule == case.rule, own.cluster == case.at.cluster, own.node == case.at.node
