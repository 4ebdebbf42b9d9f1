"""Rules as Prometheus reads them: what is recorded of each promise, and every alert."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from mainspring.control.service.alerts.slos import SLOS
from mainspring.control.service.alerts.symptoms import SYMPTOMS
from mainspring.control.service.alerts.values import (
    Alert,
    Burn,
    Minutes,
    Recording,
    Rule,
    Severity,
    Share,
    Slo,
    duration,
    paced,
)

RULES_FILE = "mainspring.rules.yaml"
RUNBOOKS = "docs/runbooks"
ERRORS, LATE, EVENTS = "mainspring:slo_errors:ratio_rate", "mainspring:slo_late:bool", "mainspring:slo_events:increase"
OBJECTIVE = "mainspring:slo_objective:ratio"
EVENTS_MIN = 10  # Of what is rare: from fewer in the long window nothing follows, as one is a large share of them.
_SPEED = {Severity.PAGE: ("Fast", "fast"), Severity.TICKET: ("Slowly", "slowly")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that Prometheus evaluates one after the other."""

    name: str
    rules: tuple[Rule, ...]

    def without(self, names: Collection[str]) -> Group:
        """Returns the group without alerts of these names."""
        return replace(self, rules=tuple(one for one in self.rules if getattr(one, "name", "") not in names))


def groups() -> tuple[Group, ...]:
    """Returns every rule: a group for each promise, and one for all symptoms."""
    promises = (Group(name=f"mainspring-slo-{slo.name}", rules=tuple(_of_slo(slo))) for slo in SLOS)
    return (*promises, Group(name="mainspring-symptoms", rules=SYMPTOMS))


def alerts() -> tuple[Alert, ...]:
    """Returns every alert."""
    return tuple(rule for group in groups() for rule in group.rules if isinstance(rule, Alert))


def rules_yaml(wanted: Sequence[Group] | None = None, *, pace: float = 1.0, runbooks: str = RUNBOOKS) -> str:
    """Returns a rule file.

    Args:
        wanted: Some of the groups; all when None.
        pace: How many times faster than in earnest time goes by.
        runbooks: Where people find the pages of alerts: a URL or folder.
    """
    written = [
        {"name": group.name, "rules": [_plain(rule, pace, runbooks) for rule in group.rules]}
        for group in (groups() if wanted is None else wanted)
    ]
    return yaml.safe_dump({"groups": written}, sort_keys=False, width=1_000, allow_unicode=True)


def _of_slo(slo: Slo) -> Iterator[Rule]:
    """Yields what is recorded of a promise, for each window once, then its alerts."""
    labels = (("slo", slo.name),)
    yield Recording(record=OBJECTIVE, expr=f"vector({slo.objective})", labels=labels)
    if isinstance(slo.measure, Minutes):
        yield Recording(record=LATE, expr=slo.measure.late, labels=labels)
    for window_s in sorted({span for burn in slo.burns for span in (burn.long_s, burn.short_s)}):
        window = duration(window_s)
        yield Recording(record=f"{ERRORS}{window}", expr=_errors(slo, window), labels=labels)
    if isinstance(slo.measure, Share) and slo.measure.events:
        for window_s in sorted({burn.long_s for burn in slo.burns}):
            window = duration(window_s)
            events = slo.measure.events.replace("{window}", f"{{{window}}}")
            yield Recording(record=f"{EVENTS}{window}", expr=events, labels=labels)
    for severity, (title, word) in _SPEED.items():
        burns = [burn for burn in slo.burns if burn.severity is severity]
        if burns:
            yield Alert(
                name=f"Mainspring{slo.title}Burns{title}",
                severity=severity,
                expr=" or ".join(_burning(slo, burn) for burn in burns),
                for_s=0.0,
                summary=f"The error budget of {slo.name} is used up {word}. Promised: {slo.words}",
                runbook=slo.name,
            )


def _errors(slo: Slo, window: str) -> str:
    """Returns the share of a window that did not keep a promise; nothing, or NaN, where nothing happened."""
    match slo.measure:
        case Share(bad=bad, total=total):
            return f"({bad}) / ({total})".replace("{window}", f"{{{window}}}")
        case Minutes():
            return f"avg_over_time({LATE}{{slo='{slo.name}'}}[{{{window}}}])"


def _burning(slo: Slo, burn: Burn) -> str:
    limit = f"{burn.factor * (1.0 - slo.objective):.6g}"
    one = f"{{slo='{slo.name}'}}"
    long, short = (f"{ERRORS}{duration(span)}{one}" for span in (burn.long_s, burn.short_s))
    if isinstance(slo.measure, Share) and slo.measure.events:
        # Where nothing happened of late, nothing says that it has become better.
        enough = f"{EVENTS}{duration(burn.long_s)}{one} >= {EVENTS_MIN}"
        return f"({long} > {limit} and {enough} unless {short} <= {limit})"
    return f"({long} > {limit} and {short} > {limit})"


def _plain(rule: Rule, pace: float, runbooks: str) -> Mapping[str, Any]:
    match rule:
        case Recording():
            return {"record": rule.record, "expr": paced(rule.expr, pace), "labels": dict(rule.labels)}
        case Alert():
            return {
                "alert": rule.name,
                "expr": paced(rule.expr, pace),
                **({"for": duration(rule.for_s / pace)} if rule.for_s else {}),
                "labels": {"severity": rule.severity.value},
                "annotations": {"summary": rule.summary, "runbook_url": f"{runbooks}/{rule.runbook}.md"},
            }
