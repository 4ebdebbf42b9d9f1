"""Ingest options: what `ms data ingest` and `ms data watch` let people say of a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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


def options_from(
    *,
    lost_max: str,
    names: Sequence[str] | None,
    cameras: Sequence[str] | None,
    without_cameras: Sequence[str] | None,
    resample_hz: float | None,
    action: str,
    stale_statistics: bool,
    allow: Sequence[str] | None,
    definitions: Path | None,
    rate_hz: float | None = None,
) -> data.IngestOptions:
    """Returns what was said on the command line.

    Args:
        lost_max: Such as "1%" or "0.01".
        names: OURS=THEIRS each.
        cameras: Wanted; none for all.
        without_cameras: Unwanted.
        resample_hz: See `IngestOptions`.
        action: See `IngestOptions`.
        stale_statistics: See `IngestOptions`.
        allow: See `IngestOptions`.
        definitions: Folder of message definitions.
        rate_hz: See `IngestOptions`.

    Raises:
        InvalidInput: A word is not of its form.
        NotFound: There is no such folder.
    """
    mapped: dict[str, str] = {}
    for word in names or ():
        ours, equals, theirs = word.partition("=")
        if not equals or not ours or not theirs or ours in mapped:
            wanted = "OURS=THEIRS, each of ours once, such as observation.state=state"
            raise InvalidInput("read --map", got=repr(word[:200]), wanted=wanted)
        mapped[ours] = theirs
    if definitions is not None and not definitions.is_dir():
        raise NotFound("read --msgs", on=str(definitions), got="no folder", wanted="a folder of .msg and .idl files")
    return data.IngestOptions(
        lost_max=_share_of(lost_max),
        names=mapped,
        cameras=tuple(sorted(set(cameras))) if cameras else None,
        without_cameras=tuple(sorted(set(without_cameras or ()))),
        resample_hz=resample_hz,
        action=action,
        stale_statistics=stale_statistics,
        allow=tuple(sorted(set(allow or ()))),
        definitions=data.definitions_in(definitions) if definitions else {},
        rate_hz=rate_hz,
    )


def _share_of(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InvalidInput("read --lost-max", got=repr(text[:40]), wanted="0% to 100%, or 0 to 1")
    return share
