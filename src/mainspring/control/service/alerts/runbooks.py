"""The index of runbooks. Pages are written by people; which there are follows from the alerts."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.control.service.alerts.values import Alert, duration

_HEAD = """# Runbooks

What to do about each alert that `ms metrics rules` writes. A page wakes somebody, a ticket waits for a working day.
This page is written by `ms metrics runbooks`; `ms alerts ALERT` shows an alert with its expression.

| alert | tells | after | says |
|---|---|---|---|
"""


def index_of(alerts: Sequence[Alert]) -> str:
    """Returns the page that lists all others."""
    rows = (
        f"| [{one.name}]({one.runbook}.md) | {one.severity.value} | {duration(one.for_s) if one.for_s else 'at once'} "
        f"| {one.summary} |\n"
        for one in alerts
    )
    return _HEAD + "".join(rows)
