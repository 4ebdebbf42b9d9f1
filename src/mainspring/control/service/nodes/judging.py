"""Whether rules of health were right, as people say: what a rule's precision is measured by, beside burn-ins."""

from __future__ import annotations

from typing import final

from mainspring.control.store.audit import note
from mainspring.control.store.nodes.cases import Case, Precision, judge_case, measured
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import NewVerdict, RuleMeasured
from mainspring.domain.errors import Conflict, NotFound
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right

JUDGED_MIN = 5  # Fewer say little of how often a rule is right:
PRECISION_MIN = 0.9  # of five, one in ten allows for none that was wrong. Ours; no source.
_ATTEMPTED = "say whether a rule of health was right"


@final
class Judging:
    """What may be said of rules at one controller. Used by many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def judge(self, rule: str, cluster: str, node: str, asked: NewVerdict, caller: Caller = LAB_ITSELF) -> RuleMeasured:
        """Takes somebody's word for the last time that a rule held for a node, and returns how often it was right.

        Raises:
            NotAllowed: The caller may not.
            NotFound: It never held for such a node.
        """
        at = NodeRef(cluster=ClusterName(cluster), node=NodeName(node))
        with self._store.write() as connection:
            caller.require(connection, Right.RULE_HEALTH, LAB)
            case = Case(rule=rule, at=at)
            if not judge_case(connection, case, right=asked.right, by=str(caller), words=asked.reason):
                on = f"{rule[:80]!r} for {node[:80]} of {cluster[:80]}"
                raise NotFound(_ATTEMPTED, on=on, got="a rule that never held there", next_step="ms health rules")
            words = f"{rule} of {node} of {cluster}: {'right' if asked.right else 'wrong'}, {asked.reason}"
            note(connection, caller, _ATTEMPTED, words, team=LAB, now_s=self._clock.now_s())
            return told(rule, measured(connection).get(rule, Precision()))


def told(rule: str, found: Precision) -> RuleMeasured:
    """Returns what is shown of a rule's precision."""
    return RuleMeasured(rule=rule, right=found.right, wrong=found.wrong, unjudged=found.unjudged)


def require_measured(attempted: str, rule: str, found: Precision) -> None:
    """Returns if a rule was not measured to be wrong too often; one that nobody measured is an operator's own risk.

    Args:
        attempted: What it is for, as a clause.

    Raises:
        Conflict: It was.
    """
    if found.judged >= JUDGED_MIN and found.part_right < PRECISION_MIN:
        raise Conflict(
            attempted,
            on=rule,
            got=f"one that was right {found.right} of {found.judged} times",
            wanted=f"at least {PRECISION_MIN:.0%} of them",
            next_step="look at what it found: ms health events; correct a verdict: ms health judge",
        )
