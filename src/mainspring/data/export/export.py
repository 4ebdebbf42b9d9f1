"""Exports a version: looks at what goes out, says what a format cannot hold of it, then writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mainspring.data.catalog.log import Version
from mainspring.data.export.formats.hdf5 import Hdf5Files
from mainspring.data.export.formats.lerobot import LeRobotV3, LeRobotV21
from mainspring.data.export.formats.mcap import McapFiles
from mainspring.data.export.formats.rerun import RerunFiles
from mainspring.data.export.formats.rlds import RldsFolder
from mainspring.data.export.run import ExportFormat, ExportProgress, ExportReport, run_export
from mainspring.data.export.survey import ExportRequest, ExportSurvey, survey_export
from mainspring.domain.errors import InvalidInput
from mainspring.objects import ObjectStore


class ExportTo(str, Enum):
    """The formats."""

    LEROBOT_V3 = "lerobot-v3"
    LEROBOT_V21 = "lerobot-v2.1"
    MCAP = "mcap"
    RLDS = "rlds"
    HDF5 = "hdf5"
    RERUN = "rerun"


def export_format(word: str) -> ExportTo:
    """Returns the format of a name.

    Args:
        word: Such as "lerobot-v3".

    Raises:
        InvalidInput: There is none of that name.
    """
    names = [to.value for to in ExportTo]
    if word not in names:
        raise InvalidInput("export a version", got=repr(word[:80]), wanted=f"one of {', '.join(names)}")
    return ExportTo(word)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Export:
    """An export that nothing has been written of yet.

    Args:
        to: The format.
        survey: What goes out.
        format: What writes it.
    """

    to: ExportTo
    survey: ExportSurvey
    format: ExportFormat

    @property
    def lost(self) -> tuple[str, ...]:
        """Returns what the format cannot hold, in words."""
        return self.format.lost


def prepare_export(
    store: ObjectStore, version: Version, to: ExportTo, request: ExportRequest, *, scratch: Path
) -> Export:
    """Returns an export of a version, nothing of it written yet.

    Args:
        store: Where the version lies.
        version: What is exported.
        to: The format.
        request: What of it.
        scratch: Local folder for what is fetched.

    Raises:
        InvalidInput: See `survey_export`; or the format cannot hold it at all.
        NotFound: See `survey_export`.
    """
    survey = survey_export(store, version, request, scratch)
    return Export(to=to, survey=survey, format=_format(to, survey))


def write_export(
    store: ObjectStore,
    export: Export,
    open_dest: Callable[[], ObjectStore],
    *,
    scratch: Path,
    strict: bool = False,
    progress: Callable[[ExportProgress], None] | None = None,
) -> ExportReport:
    """Writes an export, and returns what was written. May be repeated: it then does what is missing.

    Args:
        store: Where the version lies.
        export: What `prepare_export` returned.
        open_dest: Opens where to; empty, or holding the same export, begun before. Called once all is known to be well.
        scratch: Local folder for files on their way.
        strict: Whether to refuse when the format does not hold everything.
        progress: Called after each job.

    Raises:
        InvalidInput: The format does not hold everything, and that was asked for.
        Conflict: The destination holds something else.
        StorageFull: There is no room.
    """
    if strict and export.lost:
        raise InvalidInput(
            f"export to {export.to.value}",
            on=export.survey.version,
            got="; ".join(export.lost)[:1_000],
            wanted="a format that holds everything",
            next_step="leave --strict out, or choose another format",
        )
    return run_export(
        store, export.survey, export.to.value, export.format, open_dest(), scratch=scratch, progress=progress
    )


def _format(to: ExportTo, survey: ExportSurvey) -> ExportFormat:
    match to:
        case ExportTo.LEROBOT_V3:
            return LeRobotV3(survey)
        case ExportTo.LEROBOT_V21:
            return LeRobotV21(survey)
        case ExportTo.MCAP:
            return McapFiles(survey)
        case ExportTo.RLDS:
            return RldsFolder(survey)
        case ExportTo.HDF5:
            return Hdf5Files(survey)
        case ExportTo.RERUN:
            return RerunFiles(survey)
