"""Makes an episode of an opened recording: one way for every format that has fields of one value a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mainspring.data.episode import FRAMES_MAX, NANOSECONDS, Episode, Floats, Integers, SourceFile, VideoFile, camera_of
from mainspring.data.features import ACTION, STATE, Column, Features
from mainspring.data.loss import Loss
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.shaping import even_times, shaped
from mainspring.data.readers.episodes.steps.choosing import (
    Choice,
    Known,
    chosen,
    known_from,
    short_name,
    success_column,
    task_field,
)
from mainspring.data.readers.episodes.steps.fields import (
    FACT_CHARS_MAX,
    FACTS_MAX,
    Array,
    Kind,
    Opened,
    StepField,
    as_doubles,
    checked_room,
    exact_pixels,
)
from mainspring.data.video.pictures import PictureFile
from mainspring.domain.errors import DamagedData, InvalidInput

_UNITS = {"s": NANOSECONDS, "ms": 1_000_000, "us": 1_000, "ns": 1}
_STEP_S_MAX = 2.0  # A robot is recorded more than once in two seconds; the unit of times that do not say theirs.
_EPOCH_S_MIN = 1e8  # Times after 1973 are counted from 1970, and their size says their unit.
_NEAR_WHOLE = 0.005
_TASKS_MAX = 16
_OWN = (
    "task",
    "language_instruction",
    "robot",
    "success",
    "rate_hz",
    "compress",
)  # Facts that have places of their own.
_NAMED_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a format's convention adds to what a recording says itself.

    Args:
        name: The convention's, for people.
        rate_hz: Steps a second by convention; None when there is none.
        joins_actions: Whether an action told in parts is all of them in name order.
        robot: Kind of robot where the recording says none.
        task: What the robot was asked to do where the recording says nothing.
    """

    name: str
    rate_hz: float | None = None
    joins_actions: bool = False
    robot: str = ""
    task: str = ""


def episode_of(
    opened: Opened,
    *,
    name: str,
    layout: Layout,
    options: IngestOptions,
    folder: Path,
    files: tuple[SourceFile, ...],
    losses: tuple[Loss, ...] = (),
) -> Episode:
    """Returns the episode that an opened recording is.

    Args:
        opened: The recording.
        name: Its name inside the source, for messages.
        layout: The convention it follows.
        options: What is said of the source.
        folder: Where packets of cameras go.
        files: Every file it is read from.
        losses: What of it is gone.

    Raises:
        DamagedData: Its bytes do not hold together.
        InvalidInput: What it is must be said by an option, which is named.
    """
    choice = chosen(opened.fields, options, on=name, joined=layout.joins_actions)
    known = known_from(opened.facts)
    steps, said = _steps(choice, name)
    others = [key for key, parts in choice.columns.items() if parts[0].steps not in (steps, steps + 1)]
    if others:
        said.append(f"left out for their length: {', '.join(sorted(others)[:_NAMED_MAX])}")
    wanted = {key: parts for key, parts in sorted(choice.columns.items()) if key not in others}
    used = list({field.name: field for parts in wanted.values() for field in parts}.values())
    checked_room(used, on=name)
    read: dict[str, Array] = {field.name: opened.numbers(field) for field in used}
    time_ns, rate_hz, by = _times(opened, choice, known, layout, options, steps, name)
    columns = {
        key: np.concatenate([as_doubles(read[field.name][:steps], on=field.name) for field in parts], axis=1)
        for key, parts in wanted.items()
    }
    videos = _videos(opened, choice.cameras, steps, folder, name)
    told_by = task_field(opened.fields)
    told = _told(opened, told_by)
    metadata, left = _metadata({**_texts(opened, told_by), **opened.facts})
    colour = any(field.kind is Kind.PIXELS and 3 in field.shape for field in choice.cameras.values())
    red = ["pixels are taken red first, as they lie"] if colour else []
    passed = [f"passed over: {', '.join(opened.passed_over[:12])}"] if opened.passed_over else []
    episode = Episode(
        task=known.task or told or known.scene or layout.task,
        robot=known.robot or layout.robot,
        success=known.success if known.success is not None else _success(columns),
        rate_hz=rate_hz,
        features=Features(
            columns=tuple(Column(name=key, names=_names(key, wanted[key])) for key in columns),
            cameras=tuple(camera_of(video) for video in videos),
        ),
        time_ns=time_ns,
        columns=columns,
        videos=videos,
        files=files,
        metadata=metadata,
        losses=losses,
        note="; ".join([f"read as {layout.name}", by, *choice.said, *said, *red, *passed, *left]),
    )
    return shaped(episode, options)


def times_from(values: Array, name: str, unit: str = "") -> tuple[Integers, str]:
    """Returns times in nanoseconds, and the unit they were in.

    Args:
        values: [T], of any type of number.
        name: Of what says them; one that ends in "_ns", "_us", "_ms" or "_s" says the unit.
        unit: The unit, where it is known; else by how large the times are, or how far apart.

    Raises:
        DamagedData: They are not finite, or too large.
    """
    ends = re.search(r"_(ns|us|ms|s)$", name)
    if not np.isfinite(values).all() or not len(values):
        raise DamagedData("read times", on=name, got="times that are not finite")
    unit = unit or (ends.group(1) if ends else _unit(values))
    scale = _UNITS[unit]
    if float(np.abs(values).max()) * scale >= 2.0**63:
        raise DamagedData("read times", on=name, got=f"{float(np.abs(values).max()):g} {unit}", wanted="before 2262")
    if values.dtype.kind in "iu":
        return values.astype(np.int64) * scale, unit
    whole = np.floor(values.astype(np.float64))
    part = np.rint((values.astype(np.float64) - whole) * scale)
    return whole.astype(np.int64) * scale + part.astype(np.int64), unit


def rate_from(time_ns: Integers, said_hz: float | None) -> float:
    """Returns steps a second: what is said where the times agree with it, else by the median of their distances.

    Args:
        time_ns: [T].
        said_hz: What the recording says.

    Raises:
        DamagedData: The times do not advance.
    """
    steps = np.diff(time_ns)
    middle = float(np.median(steps)) if len(steps) else 0.0
    if middle <= 0:
        raise DamagedData("read times", got="times that do not advance", next_step="--rate HZ passes them over")
    rate_hz = NANOSECONDS / middle
    if said_hz and abs(said_hz / rate_hz - 1) < 0.05:
        return said_hz
    whole = float(round(rate_hz))
    return whole if whole and abs(rate_hz / whole - 1) < _NEAR_WHOLE else round(rate_hz, 3)


def _unit(values: Array) -> str:
    """Returns the unit of times: of those counted from 1970 by their size, else by the distance between them."""
    size = float(np.abs(values).max())
    steps = np.diff(values.astype(np.float64))
    middle = float(np.median(np.abs(steps))) if len(steps) else 0.0
    for unit, scale in _UNITS.items():
        per_second = NANOSECONDS // scale
        if _EPOCH_S_MIN * per_second <= size < _EPOCH_S_MIN * 100 * per_second and middle <= _STEP_S_MAX * per_second:
            return unit
    return next((unit for unit, scale in _UNITS.items() if middle <= _STEP_S_MAX * NANOSECONDS / scale), "ns")


def _steps(choice: Choice, on: str) -> tuple[int, list[str]]:
    """Returns how many steps there are: lengths may differ by the last one, as recorders stop between two writes."""
    lengths = {f"camera {name}": field.steps for name, field in choice.cameras.items()}
    lengths |= {field.name: field.steps for key in (STATE, ACTION) for field in choice.columns.get(key, ())}
    if choice.time is not None:
        lengths[choice.time.name] = choice.time.steps
    least, most = min(lengths.values()), max(lengths.values())
    if most - least > 1 or not 0 < least <= FRAMES_MAX:
        raise DamagedData(
            "read a recording",
            on=on,
            got=", ".join(f"{name} of {length} steps" for name, length in sorted(lengths.items())[:_NAMED_MAX]),
            wanted="one length, but for a last step",
        )
    longer = sorted(name for name, length in lengths.items() if length > least)
    return least, [f"the last step of {', '.join(longer[:_NAMED_MAX])} is left out"] if longer else []


def _times(
    opened: Opened, choice: Choice, known: Known, layout: Layout, options: IngestOptions, steps: int, on: str
) -> tuple[Integers, float, str]:
    if choice.time is not None:
        time_ns, unit = times_from(opened.numbers(choice.time)[:steps].reshape(-1), choice.time.name)
        return time_ns, rate_from(time_ns, known.rate_hz or layout.rate_hz), f"times by {choice.time.name} in {unit}"
    rates = {
        "as said by --rate": options.rate_hz,
        f"as said by {known.rate_by}": known.rate_hz,
        f"the convention of {layout.name}": layout.rate_hz,
    }
    for by, rate_hz in rates.items():
        if rate_hz:
            return even_times(steps, rate_hz), rate_hz, f"{rate_hz:g} Hz, {by}"
    raise InvalidInput(
        "know the times of a recording",
        on=on,
        got=f"{layout.name} without times or a rate",
        wanted="steps a second",
        next_step="--rate HZ says them",
    )


def _videos(
    opened: Opened, cameras: Mapping[str, StepField], steps: int, folder: Path, on: str
) -> tuple[VideoFile, ...]:
    videos: list[VideoFile] = []
    for number, (camera, field) in enumerate(sorted(cameras.items())):
        count = 0
        with PictureFile(folder / f"pictures-{number:04d}.packets", camera) as file:
            for picture in opened.pictures(field):
                if count == steps:
                    break
                if isinstance(picture, bytes):
                    file.add_coded(picture)
                else:
                    file.add_pixels(exact_pixels(picture, on=camera))
                count += 1
            if count < steps:
                raise DamagedData("read a camera", on=f"{on} {camera}", got=f"{count} pictures", wanted=str(steps))
            videos.append(file.finish())
    return tuple(videos)


def _names(column: str, parts: tuple[StepField, ...]) -> tuple[str, ...]:
    names: list[str] = []
    for field in parts:
        prefix = column if len(parts) == 1 else field.name.split("/")[-1]
        numbered = (f"{prefix}_{dim}" for dim in range(field.dims))
        names += field.names if len(field.names) == field.dims else numbered
    return tuple(names)


def _texts(opened: Opened, told_by: StepField | None) -> dict[str, str]:
    """Returns what fields of text say beside the task."""
    texts = [field for field in opened.fields if field.kind is Kind.TEXT and field != told_by]
    return {short_name(field.name): _told(opened, field) for field in texts[:FACTS_MAX]}


def _told(opened: Opened, field: StepField | None) -> str:
    """Returns what a field of text says at the steps: each text once, in the order they come."""
    if field is None:
        return ""
    tasks: dict[str, None] = {}
    for text in opened.texts(field):
        if text.strip():
            tasks[" ".join(text.split())] = None
        if len(tasks) >= _TASKS_MAX:
            break
    return "; ".join(tasks)


def _success(columns: Mapping[str, Floats]) -> bool | None:
    name = success_column(columns)
    if name is None or not np.isin(columns[name], (0.0, 1.0)).all():
        return None
    return bool(columns[name].any())


def _metadata(facts: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    facts = {name: text for name, text in facts.items() if name not in _OWN}
    kept = {name: text for name, text in sorted(facts.items()) if text and len(text) <= FACT_CHARS_MAX}
    left = sorted(name for name, text in facts.items() if len(text) > FACT_CHARS_MAX)
    left += list(kept)[FACTS_MAX:]
    said = f"in the kept file only: {', '.join(left[:_NAMED_MAX])}" if left else ""
    return dict(list(kept.items())[:FACTS_MAX]), [said] if said else []
