"""Dashboards as Grafana reads them. Grafana's `$__rate_interval` is four scrapes, or the width of a pixel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mainspring.control.service.alerts.rules import ERRORS, OBJECTIVE
from mainspring.control.service.alerts.slos import SLOS
from mainspring.control.service.alerts.values import Dashboard, Panel, PanelLine, duration

SCHEMA = 39  # Of Grafana 11; newer ones bring it up to date as they read it.
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3  # Grafana's page has 24 columns.
RATE = "$__rate_interval"


def dashboards() -> tuple[Dashboard, ...]:
    """Returns every dashboard."""
    return (_PROMISES, _LAB, _CLUSTERS, _SERVERS)


def dashboard_json(one: Dashboard) -> str:
    """Returns a dashboard as Grafana imports it; it asks for the source of data, and is the same at each call."""
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    plain = {
        "uid": f"mainspring-{one.name}",
        "title": one.title,
        "tags": ["mainspring"],
        "schemaVersion": SCHEMA,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [source]},
        "panels": [_plain(index, panel) for index, panel in enumerate(one.panels)],
    }
    return json.dumps(plain, indent=2) + "\n"


def _plain(index: int, panel: Panel) -> Mapping[str, Any]:
    row, column = divmod(index, _COLUMNS)
    return {
        "id": index + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": line.expr, "legendFormat": line.legend}
            for place, line in enumerate(panel.lines)
        ],
    }


def _panel(title: str, *lines: tuple[str, str], unit: str = "short", kind: str = "timeseries") -> Panel:
    """Returns a panel of expressions and how their lines are called."""
    made = tuple(PanelLine(expr=expr, legend=legend) for expr, legend in lines)
    return Panel(title=title, lines=made, unit=unit, kind=kind)


def _quantiles(title: str, histogram: str) -> Panel:
    """Returns a panel of a day's median of a histogram of seconds, and of what 95 % of it stay below."""
    day = f"sum by (le) (rate({histogram}_bucket[1d]))"
    return _panel(title, *((f"histogram_quantile({part}, {day})", f"{part:.0%}") for part in (0.5, 0.95)), unit="s")


def _burnt(name: str) -> Panel:
    """Returns how fast a promise's budget is used up: at 1 it lasts for 30 days."""
    slo = next(slo for slo in SLOS if slo.name == name)
    one = f"{{slo='{name}'}}"
    lines = [
        (f"{ERRORS}{window}{one} / on (slo) (1 - {OBJECTIVE}{one})", window)
        for window in (duration(burn.long_s) for burn in slo.burns)
    ]
    return _panel(f"{name}: burn rate (objective {slo.objective:.5g})", *lines)


_PROMISES = Dashboard(
    name="promises",
    title="Mainspring: promises",
    panels=(
        _panel(
            "Alerts that fire",
            ("sum by (alertname, severity) (ALERTS{alertname=~'Mainspring.*',alertstate='firing'})", "{{alertname}}"),
        ),
        *(_burnt(slo.name) for slo in SLOS),
    ),
)
_LAB = Dashboard(
    name="lab",
    title="Mainspring: the lab",
    panels=(
        _panel("Jobs", ("sum by (state) (max without (instance) (mainspring_jobs))", "{{state}}")),
        _panel("Jobs that wait, by tier", ("sum by (tier) (mainspring_queue_jobs)", "{{tier}}")),
        _panel(
            "Longest wait of those that may start, by tier",
            ("max by (tier) (mainspring_queue_oldest_seconds)", "{{tier}}"),
            unit="s",
        ),
        _panel("Chips held, by team", ("sum by (team) (mainspring_chips_held)", "{{team}}")),
        _panel("Chips held, by cluster", ("sum by (cluster) (mainspring_chips_held)", "{{cluster}}")),
        _panel(
            "Goodput, by team, over an hour",
            (
                "sum by (team) (max without (instance) (delta(mainspring_node_seconds{use='productive'}[1h])))"
                " / sum by (team) (max without (instance) (delta(mainspring_node_seconds[1h])))",
                "{{team}}",
            ),
            unit="percentunit",
        ),
        _panel(
            "Where time went, over an hour",
            ("sum by (use) (max without (instance) (delta(mainspring_node_seconds[1h])))", "{{use}}"),
            unit="s",
        ),
        _panel(
            "Where time of large jobs goes",
            (f"sum by (use) (max without (instance) (rate(mainspring_large_node_seconds_total[{RATE}])))", "{{use}}"),
        ),
        _panel(
            "Jobs that end, an hour",
            (
                "sum by (state) (max without (instance) (increase(mainspring_jobs_ended_total[1h])))",
                "{{state}}",
            ),
        ),
        _panel(
            "Promised starts that were late, over a day",
            (
                "max(increase(mainspring_promised_starts_late_total[1d]))"
                " / max(increase(mainspring_promised_starts_total[1d]))",
                "late",
            ),
            unit="percentunit",
        ),
        _panel("Oldest recording not yet read", ("max(mainspring_arrivals_oldest_seconds)", "age"), unit="s"),
    ),
)
_CLUSTERS = Dashboard(
    name="clusters",
    title="Mainspring: clusters",
    panels=(
        _panel("Answers", ("max by (cluster) (mainspring_cluster_up)", "{{cluster}}"), kind="stat"),
        _panel("Silent", ("min by (cluster) (mainspring_cluster_silent_seconds)", "{{cluster}}"), unit="s"),
        _panel(
            "Nodes",
            ("max by (cluster, condition) (mainspring_nodes)", "{{cluster}} {{condition}}"),
        ),
        _panel(
            "Chips",
            ("max by (cluster, chip, condition) (mainspring_chips)", "{{cluster}} {{chip}} {{condition}}"),
        ),
        _panel(
            "Attempts stopped, an hour",
            (
                "max by (cluster, cause) (increase(mainspring_attempts_stopped_total[1h])) > 0",
                "{{cluster}} {{cause}}",
            ),
        ),
        _panel(
            "What leads tell of, an hour",
            ("max by (cluster, kind) (increase(mainspring_events_total[1h]))", "{{cluster}} {{kind}}"),
        ),
        _quantiles("Recovery, half and 95 %", "mainspring_recovery_seconds"),
        _quantiles("Hangs seen after, half and 95 %", "mainspring_detection_seconds"),
        _panel(
            "Nodes that people and health keep closed",
            ("max by (cluster, closure, by) (mainspring_nodes_closed)", "{{cluster}} {{closure}} by {{by}}"),
        ),
        _panel("Breakers open", ("max by (cluster) (mainspring_breaker_open)", "{{cluster}}"), kind="stat"),
        _panel("Allocations held", ("max(mainspring_allocations_held)", "held"), kind="stat"),
    ),
)
_SERVERS = Dashboard(
    name="servers",
    title="Mainspring: servers",
    panels=(
        _panel("Up", ("up{job='mainspring'}", "{{instance}}"), kind="stat"),
        _panel("Leads", ("mainspring_leads", "{{instance}}"), kind="stat"),
        _panel("Releases", ("count by (release) (mainspring_release_info)", "{{release}}"), kind="stat"),
        _panel(
            "Requests",
            (f"sum by (status) (rate(mainspring_requests_total[{RATE}]))", "{{status}}"),
            unit="reqps",
        ),
        _panel(
            "Answers begin, half, 95 % and 99 %",
            *(
                (
                    f"histogram_quantile({part}, sum by (le) (rate(mainspring_request_seconds_bucket[{RATE}])))",
                    f"{part:.0%}",
                )
                for part in (0.5, 0.95, 0.99)
            ),
            unit="s",
        ),
        _panel(
            "Slowest operations, 95 %",
            (
                "topk(5, histogram_quantile(0.95,"
                f" sum by (operation, le) (rate(mainspring_request_seconds_bucket[{RATE}]))))",
                "{{operation}}",
            ),
            unit="s",
        ),
        _panel(
            "Ticks, half and 95 %",
            *(
                (
                    f"histogram_quantile({part}, sum by (le) (rate(mainspring_tick_seconds_bucket[{RATE}])))",
                    f"{part:.0%}",
                )
                for part in (0.5, 0.95)
            ),
            unit="s",
        ),
        _panel(
            "What ticks spend",
            (f"sum by (step) (rate(mainspring_tick_step_seconds_sum[{RATE}]))", "{{step}}"),
            unit="percentunit",
        ),
        _panel("Ticks cut short, an hour", ("max(increase(mainspring_ticks_failed_total[1h]))", "ticks")),
        _panel("Loop silent", ("mainspring_loop_silent_seconds", "{{instance}}"), unit="s"),
        _panel("Age of the plan", ("time() - max(mainspring_plan_timestamp_seconds)", "age"), unit="s"),
        _panel("The store's answer to this", ("mainspring_store_read_seconds", "{{instance}}"), unit="s"),
        _panel("Store's disk free", ("mainspring_store_free_ratio", "{{instance}}"), unit="percentunit"),
        _panel("Age of the back-up", ("time() - max(mainspring_backup_timestamp_seconds > 0)", "age"), unit="s"),
        _panel("Archive behind", ("max(mainspring_archive_behind_seconds)", "behind"), unit="s"),
        _panel(
            "Certificate ends in",
            ("min by (instance) (mainspring_certificate_expiry_timestamp_seconds) - time()", "{{instance}}"),
            unit="s",
        ),
        _panel("Memory", ("process_resident_memory_bytes{job='mainspring'}", "{{instance}}"), unit="bytes"),
        _panel("Open files", ("process_open_fds{job='mainspring'}", "{{instance}}")),
    ),
)
