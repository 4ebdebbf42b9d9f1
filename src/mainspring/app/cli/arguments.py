"""Arguments that many commands take: the lab, in the context, and `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


class LabContext(typer.Context):
    """A command's context; its object is the lab that `--home` names."""

    obj: Lab
