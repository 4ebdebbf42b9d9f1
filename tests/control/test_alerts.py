"""Alerts: each fires when it should, is silent before, and ends after; judged by Prometheus's own `promtool`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.control.alert_cases import CASES, Case
from tests.control.conftest import World
from tests.programs import program

from mainspring.control.api_metrics import Metrics
from mainspring.control.service.alerts.dashboards import dashboards
from mainspring.control.service.alerts.rules import Group, alerts, groups, rules_yaml
from mainspring.control.service.alerts.slos import SLOS
from mainspring.control.service.alerts.values import (
    BURNS,
    Burn,
    Minutes,
    Recording,
    Severity,
    Slo,
    duration,
    paced,
)
from mainspring.control.service.health import HUNG_S
from mainspring.control.service.metrics.home import HomeCollector
from mainspring.control.service.metrics.large import LARGE_NODES
from mainspring.control.store.tokens import LAB_ITSELF

# What is promised: whoever changes a promise changes it here too.
OBJECTIVES = {
    "api-availability": 0.999,
    "api-latency": 0.99,
    "large-job-goodput": 0.9,
    "hang-detection": 0.95,
    "recovery": 0.95,
    "queue-critical": 0.95,
    "queue-standard": 0.9,
    "queue-opportunistic": 0.9,
    "promised-starts": 0.9,
    "data-freshness": 0.99,
}
# Of promises about single things: the series of good and bad ones; of those about time: the gauge, good and late.
COUNTED = {
    "api-availability": ("mainspring_requests_total{status='200'}", "mainspring_requests_total{status='503'}"),
    "api-latency": (
        "mainspring_request_seconds_bucket{operation='list_jobs',le='1.0'}",
        "mainspring_request_seconds_count{operation='list_jobs'}",
    ),
    "large-job-goodput": (
        "mainspring_large_node_seconds_total{cluster='west',use='productive'}",
        "mainspring_large_node_seconds_total{cluster='west',use='hang'}",
    ),
    "hang-detection": (
        "mainspring_detection_seconds_bucket{cluster='west',le='60.0'}",
        "mainspring_detection_seconds_count{cluster='west'}",
    ),
    "recovery": (
        "mainspring_recovery_seconds_bucket{cluster='west',le='120.0'}",
        "mainspring_recovery_seconds_count{cluster='west'}",
    ),
    "promised-starts": ("", "mainspring_promised_starts_late_total"),
}
GAUGES = {
    "queue-critical": ("mainspring_queue_oldest_seconds{team='arms',tier='critical'}", 899, 901),
    "queue-standard": ("mainspring_queue_oldest_seconds{team='arms',tier='standard'}", 28_799, 28_801),
    "queue-opportunistic": ("mainspring_queue_oldest_seconds{team='arms',tier='opportunistic'}", 259_199, 259_201),
    "data-freshness": ("mainspring_arrivals_oldest_seconds", 899, 901),
}
STEPS = 60  # Of a long window; a short one has 5. A test burns for a long window and is quiet for one after it;
QUIET = 6 * STEPS  # before it, for as long as the next longer window is, or the next lower rate would be reached too.
SOON = 7  # A short window after the end, and what rounding takes.


Fired = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Told:
    """Tests of some rules that are evaluated at one interval."""

    groups: Sequence[Group]
    interval: str
    tests: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Phase:
    """So many steps in which a share of all was bad."""

    steps: int
    share: float


def test_promises_are_the_ones_that_were_made() -> None:
    assert {slo.name: slo.objective for slo in SLOS} == OBJECTIVES
    assert [(burn.factor, burn.long_s / 3600, burn.short_s / 60, burn.severity.value) for burn in BURNS] == [
        (14.4, 1, 5, "page"),
        (6, 6, 30, "page"),
        (3, 24, 120, "ticket"),
        (1, 72, 360, "ticket"),
    ]


def test_no_alert_waits_for_a_share_that_cannot_be() -> None:
    watched = {slo.name: [burn.factor for burn in slo.burns] for slo in SLOS}
    assert watched["api-availability"] == [14.4, 6, 3, 1]
    assert watched["large-job-goodput"] == [6, 3, 1]  # 14.4 times a tenth is more than all.
    assert watched["queue-standard"] == [3, 1]  # It wakes nobody.


def test_every_alert_has_a_name_of_its_own_and_a_case() -> None:
    names = [alert.name for alert in alerts()]
    assert len(set(names)) == len(names)
    burning = {f"Mainspring{slo.title}Burns{speed}" for slo in SLOS for speed in ("Fast", "Slowly")}
    assert set(names) - burning == {case.alert for case in CASES}


def test_alerts_speak_of_the_limits_that_are_in_force() -> None:
    (silent,) = (alert.expr for alert in alerts() if alert.name == "MainspringLoopSilent")
    assert silent.endswith(f"> {HUNG_S:.0f}")
    (large,) = (slo.words for slo in SLOS if slo.name == "large-job-goodput")
    assert f"{LARGE_NODES} nodes" in large


def test_times_in_expressions_are_written_for_a_pace() -> None:
    assert paced("rate(a{b='c'}[{5m}]) > {1h}", 1) == "rate(a{b='c'}[5m]) > 1h"
    assert paced("rate(a[{5m}])", 600) == "rate(a[500ms])"
    assert [duration(seconds) for seconds in (259_200, 21_600, 90, 0.5)] == ["3d", "6h", "90s", "500ms"]


def test_expressions_name_metrics_that_there_are(world: World) -> None:
    control = world.control
    metrics = Metrics(control)
    home = HomeCollector(certificate=None, store_folder=Path("/"), backed_up_s=lambda: 0.0, unread_s=lambda: 0.0)
    metrics.measures.registry.register(home)
    job = world.submit()
    world.run(job)
    for _ in range(9):
        world.submit()
    world.tick(2)
    metrics.measures.answered("list_jobs", 200, world.clock.monotonic_s())
    for step in world.loop.steps():
        metrics.measures.stepped(step)
    told, _ = metrics.read(LAB_ITSELF, "text/plain")
    families = list(text_string_to_metric_families(told.decode()))
    names = {sample.name for family in families for sample in family.samples} | {family.name for family in families}
    names |= {f"{family.name}_total" for family in families if family.type == "counter"}
    rules = [rule for group in groups() for rule in group.rules]
    recorded = {rule.record for rule in rules if isinstance(rule, Recording)}
    # What a test on one machine has none of: process_ of a system without /proc, and certificates.
    beside = {"mainspring_certificate_expiry_timestamp_seconds"}
    exprs = [rule.expr for rule in rules] + [
        line.expr for one in dashboards() for panel in one.panels for line in panel.lines
    ]
    bounds = {(sample.name, sample.labels.get("le")) for family in families for sample in family.samples}
    asked = {found for expr in exprs for found in re.findall(r"(\w+_bucket)\{le='([\d.]+)'", expr)}
    assert len(asked) == 3
    assert asked <= bounds
    used = {name for expr in exprs for name in re.findall(r"\b(?:mainspring|process)[_:][\w:]*", expr)}
    assert used - recorded - names - beside == set()


# ---------------------------------------------------------------- by promtool


@pytest.mark.slow
def test_each_symptom_fires_is_silent_before_and_ends_after(tmp_path: Path) -> None:
    symptoms = next(group for group in groups() if group.name == "mainspring-symptoms")
    _promtool(tmp_path, [Told([symptoms], "1m", [_of_case(case) for case in CASES])])


@pytest.mark.slow
@pytest.mark.parametrize("burn", BURNS, ids=lambda burn: f"{burn.factor:g}")
def test_each_promise_burns_at_its_rate_and_not_below(tmp_path: Path, burn: Burn) -> None:
    interval = duration(burn.short_s / 5)
    burning = [(slo, group) for slo, group in zip(SLOS, groups(), strict=False) if burn in slo.burns]
    assert len(burning) >= 5
    _promtool(tmp_path, [Told([group], interval, [*_of_slo(slo, burn)]) for slo, group in burning])


@pytest.mark.slow
def test_of_few_events_nothing_follows(tmp_path: Path) -> None:
    good, all_ = COUNTED["recovery"]
    series = [{"series": all_, "values": "0+0x10 0+1x8 8+0x40"}, {"series": good, "values": "0+0x60"}]
    test = _test(series, "1m", "MainspringRecoveryBurnsFast", {"50m": ()})
    recovery = next(group for group in groups() if group.name == "mainspring-slo-recovery")
    _promtool(tmp_path, [Told([recovery], "1m", [test])])


def _of_case(case: Case) -> dict[str, Any]:
    alert = next(alert for alert in alerts() if alert.name == case.alert)
    labels = {**dict(case.labels), "severity": alert.severity.value}
    fired = {
        "exp_labels": labels,
        "exp_annotations": {"summary": case.says or alert.summary, **_runbook(alert.runbook)},
    }
    series = [{"series": name, "values": values} for name, values in case.series]
    at: dict[str, Fired] = dict.fromkeys(case.fires, (fired,)) | dict.fromkeys(case.silent, ())
    return _test(series, "1m", case.alert, at)


def _of_slo(slo: Slo, burn: Burn) -> Iterator[dict[str, Any]]:
    """Yields a test that burns a little faster than the rate, and one a little slower."""
    limit = burn.factor * (1 - OBJECTIVES[slo.name])
    interval_s = burn.short_s / 5
    name = f"Mainspring{slo.title}Burns{'Fast' if burn.severity is Severity.PAGE else 'Slowly'}"
    alert = next(alert for alert in alerts() if alert.name == name)
    fired = {
        "exp_labels": {"slo": slo.name, "severity": burn.severity.value},
        "exp_annotations": {"summary": alert.summary, **_runbook(slo.name)},
    }
    share = 1.1 * limit
    if isinstance(slo.measure, Minutes):  # A short window has room for fifths.
        share = -(-share // 0.2) * 0.2 if share < 0.6 else 1.0
    half = int(STEPS * limit / share / 2)
    for burnt, expected in ((share, True), (0.9 * limit, False)):
        phases = (Phase(QUIET, 0), Phase(STEPS, burnt), Phase(STEPS, 0))
        at: dict[int, Fired] = {QUIET: (), QUIET + half: (), QUIET + 2 * STEPS: ()}
        if burn.factor != 3:  # A day of three times the pace is the pace over three days, for six hours more.
            at[QUIET + STEPS + SOON] = ()
        at[QUIET + STEPS - 1] = (fired,) if expected else ()
        times = {duration(step * interval_s): wanted for step, wanted in at.items()}
        yield _test(_series(slo, phases), duration(interval_s), name, times)


def _series(slo: Slo, phases: Sequence[Phase]) -> list[dict[str, str]]:
    if slo.name in GAUGES:
        series, in_time, late = GAUGES[slo.name]
        steps = ((step, one.share) for one in phases for step in range(one.steps))
        values = (
            late if int((step + 1) * share + 1e-9) > int(step * share + 1e-9) else in_time for step, share in steps
        )
        return [{"series": series, "values": " ".join(map(str, values))}]
    good, bad = COUNTED[slo.name]
    shares = [(one.steps, one.share) for one in phases]
    told = [{"series": bad, "values": _counter(shares)}]
    if bad.partition("{")[0].endswith("_count"):  # Of a histogram: all, beside those within a bound.
        told = [{"series": bad, "values": _counter([(one.steps, 1.0) for one in phases])}]
    if slo.name == "promised-starts":
        good, shares = "mainspring_promised_starts_total", [(one.steps, 0.0) for one in phases]
    return [*told, {"series": good, "values": _counter([(steps, 1 - share) for steps, share in shares])}]


def _counter(phases: Sequence[tuple[int, float]]) -> str:
    """Returns a counter's samples, a million things a step, as promtool writes them."""
    words, value = list[str](), 0.0
    for steps, share in phases:
        step = round(1_000_000 * share)
        words.append(f"{value:.0f}+{step}x{steps - 1}")
        value += step * steps
    return " ".join(words)


def _test(series: Sequence[dict[str, str]], interval: str, alert: str, at: Mapping[str, Fired]) -> dict[str, Any]:
    checks = [{"eval_time": time, "alertname": alert, "exp_alerts": [*wanted]} for time, wanted in at.items()]
    return {"name": alert, "interval": interval, "input_series": [*series], "alert_rule_test": checks}


def _runbook(page: str) -> dict[str, str]:
    return {"runbook_url": f"docs/runbooks/{page}.md"}


def _promtool(folder: Path, told: Sequence[Told]) -> None:
    promtool = program("promtool", "apt-get install prometheus")
    for index, one in enumerate(told):
        (folder / f"{index}.rules").write_text(rules_yaml(one.groups))
        plain = {"rule_files": [f"{index}.rules"], "evaluation_interval": one.interval, "tests": [*one.tests]}
        (folder / f"{index}.tests").write_text(yaml.safe_dump(plain))
    rules, tests = ([f"{index}.{kind}" for index in range(len(told))] for kind in ("rules", "tests"))
    for words in (["check", "rules", "--lint=all", "--lint-fatal", *rules], ["test", "rules", *tests]):
        done = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-8_000:]
