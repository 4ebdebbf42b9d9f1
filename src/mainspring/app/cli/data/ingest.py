"""Ingest options: what `ms data ingest` and `ms data watch` let people say of a source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.domain.errors import InvalidInput, NotFound

SAID = "What is said of the source"
LostMax = Annotated[
    str,
    typer.Option(
        help="Take a recording in though so much of it is gone: of a topic's messages, a camera's frames, its rows.",
        metavar="PERCENT",
        rich_help_panel=SAID,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="A column or camera that the source calls otherwise, such as observation.state=state; repeat for more.",
        metavar="OURS=THEIRS",
        rich_help_panel=SAID,
    ),
]
Cameras = Annotated[
    list[str] | None,
    typer.Option("--camera", help="Take in only this camera; repeat for more.", metavar="NAME", rich_help_panel=SAID),
]
WithoutCameras = Annotated[
    list[str] | None,
    typer.Option(
        "--without-camera",
        help="Leave this camera out, or a column of a LeRobot dataset; repeat for more.",
        metavar="NAME",
        rich_help_panel=SAID,
    ),
]
Resample = Annotated[
    float | None,
    typer.Option(
        "--resample", help="Bring irregular times to so many steps a second.", metavar="HZ", rich_help_panel=SAID
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Steps a second of recordings that say no times.", metavar="HZ", rich_help_panel=SAID),
]
Action = Annotated[
    str,
    typer.Option(
        "--action",
        help="What stands for the action where there is none, such as next:observation.state.",
        metavar="next:COLUMN",
        rich_help_panel=SAID,
    ),
]
StaleStatistics = Annotated[
    bool,
    typer.Option(
        "--stale-statistics",
        help="Take in numbers that the statistics beside them disagree with, as in sets that were edited.",
        rich_help_panel=SAID,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="Take in though the doctor doubts it: frozen-picture, frozen-state, gap, lag, rate; repeat for more.",
        metavar="DOUBT",
        rich_help_panel=SAID,
    ),
]
Definitions = Annotated[
    Path | None,
    typer.Option(
        "--msgs",
        help="Folder of .msg and .idl files, for bags that hold no definitions.",
        metavar="FOLDER",
        rich_help_panel=SAID,
    ),
]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that takes the options below on its command line, and is given `options` made of them.

    Args:
        command: Its last parameters are `options` and `as_json`.
    """
    own = inspect.signature(command, eval_str=True).parameters.copy()
    said = inspect.signature(_options, eval_str=True).parameters
    as_json, _ = own.pop("as_json"), own.pop("options")

    def run(**given: Any) -> None:
        options = _options(**{name: given.pop(name) for name in said})
        command(**given, options=options)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature([*own.values(), *said.values(), as_json])  # type: ignore[attr-defined]
    return run


def _options(
    lost_max: LostMax = "1%",
    names: Names = None,
    camera: Cameras = None,
    without_camera: WithoutCameras = None,
    resample: Resample = None,
    rate: Rate = None,
    action: Action = "",
    stale_statistics: StaleStatistics = False,
    allow: Allow = None,
    msgs: Definitions = None,
) -> data.IngestOptions:
    mapped: dict[str, str] = {}
    for word in names or ():
        ours, equals, theirs = word.partition("=")
        if not equals or not ours or not theirs or ours in mapped:
            raise InvalidInput(
                "read --map",
                got=repr(word[:200]),
                wanted="OURS=THEIRS, each of ours once, such as observation.state=state",
            )
        mapped[ours] = theirs
    if msgs is not None and not msgs.is_dir():
        raise NotFound("read --msgs", on=str(msgs), got="no folder", wanted="a folder of .msg and .idl files")
    return data.IngestOptions(
        lost_max=_share_of(lost_max),
        names=mapped,
        cameras=tuple(sorted(set(camera))) if camera else None,
        without_cameras=tuple(sorted(set(without_camera or ()))),
        resample_hz=resample,
        action=action,
        stale_statistics=stale_statistics,
        allow=tuple(sorted(set(allow or ()))),
        definitions=data.definitions_in(msgs) if msgs else {},
        rate_hz=rate,
    )


def _share_of(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InvalidInput("read --lost-max", got=repr(text[:40]), wanted="0% to 100%, or 0 to 1")
    return share
