"""`ms metrics` and `ms alerts`: what Prometheus and Grafana are given, and what people are told by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json
from mainspring.domain.errors import NotFound, nearest

if TYPE_CHECKING:
    from mainspring.control.service.alerts.values import Alert

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
Folder = Annotated[Path, typer.Argument(help="Made where it is absent; files of these names are replaced.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Files that were written."""

    files: tuple[str, ...]


@app.command()
def rules(
    folder: Folder,
    runbooks: Annotated[
        str, typer.Option(metavar="URL", help="Where people find the pages of docs/runbooks.")
    ] = "docs/runbooks",
    without: Annotated[
        list[str] | None, typer.Option(metavar="ALERT", help="Leave an alert out; may be given several times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write rules for Prometheus: what is promised, how fast its error budget is used up, and every alert."""
    from mainspring.control.service.alerts.rules import RULES_FILE, groups, rules_yaml

    left_out = {_alert(name).name for name in without or ()}
    text = rules_yaml(tuple(group.without(left_out) for group in groups()), runbooks=runbooks.rstrip("/"))
    _write(folder, {RULES_FILE: text}, as_json=as_json)


@app.command()
def dashboards(folder: Folder, as_json: Json = False) -> None:
    """Write dashboards for Grafana, a file each: promises, the lab, clusters, servers."""
    from mainspring.control.service.alerts.dashboards import dashboard_json
    from mainspring.control.service.alerts.dashboards import dashboards as all_dashboards

    files = {f"mainspring-{one.name}.json": dashboard_json(one) for one in all_dashboards()}
    _write(folder, files, as_json=as_json)


@app.command()
def runbooks(folder: Folder, as_json: Json = False) -> None:
    """Write the index of runbooks: README.md, beside the pages of docs/runbooks."""
    from mainspring.control.service.alerts.rules import alerts as all_alerts
    from mainspring.control.service.alerts.runbooks import index_of

    _write(folder, {"README.md": index_of(all_alerts())}, as_json=as_json)


def alerts(
    name: Annotated[str, typer.Argument(help="Of one alert; all when left out.", metavar="ALERT")] = "",
    as_json: Json = False,
) -> None:
    """List the alerts that `ms metrics rules` writes, or show one: who is told, when, and where to read on."""
    from mainspring.control.service.alerts.rules import alerts as all_alerts

    if name:
        one = _alert(name)
        render.show(one, as_json=as_json, look=lambda: render.alert_panel(one))
    else:
        told = all_alerts()
        render.show(told, as_json=as_json, look=lambda: render.alerts_table(told))


def _alert(name: str) -> Alert:
    from mainspring.control.service.alerts.rules import alerts as all_alerts

    known = {alert.name: alert for alert in all_alerts()}
    if name not in known:
        raise NotFound("find an alert", on=f"alert {name[:80]!r}", wanted=nearest(name[:80], list(known)))
    return known[name]


def _write(folder: Path, texts: Mapping[str, str], *, as_json: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text)
    files = tuple(str(folder / file) for file in texts)
    render.show(Written(files=files), as_json=as_json, look=lambda: "\n".join(files))
