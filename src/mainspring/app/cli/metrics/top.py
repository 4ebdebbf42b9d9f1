"""`ms top`: the lab at a glance, drawn anew every few seconds; what is asked does not grow with the lab."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.errors import InvalidInput


def top(
    context: LabContext,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as where the output is no terminal.")] = False,
    every: Annotated[float, typer.Option(min=1.0, max=3_600.0, help="Seconds between looks.", metavar="SECONDS")] = 2.0,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Show the alerts that fire there.", envvar="MAINSPRING_PROMETHEUS")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the lab at a glance, live: chips, who waits, the largest jobs, what wants a look. q ends it."""
    if prometheus and not prometheus.startswith(("http://", "https://")):
        raise InvalidInput("show alerts", on="--prometheus", got=repr(prometheus)[:120], wanted="http://HOST:PORT")
    from mainspring.app.cli.metrics.watch import LabWatch, live
    from mainspring.app.render.live.top import top_screen
    from mainspring.app.render.tables import CONSOLE

    with context.obj.client() as client:
        watch = LabWatch(client, prometheus)
        if once or as_json or not (sys.stdin.isatty() and CONSOLE.is_terminal):
            seen = watch.look()
            render.show(seen, as_json=as_json, look=lambda: top_screen(seen, height=None, width=CONSOLE.width))
        else:
            live(watch, every)
