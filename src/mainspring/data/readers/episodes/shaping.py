"""Episode shaping as whoever takes it in said: names, an action, even times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from mainspring.data.episode import FRAMES_MAX, NANOSECONDS, Episode, Floats, Integers, VideoFile
from mainspring.data.features import ACTION, STATE, Column, Features
from mainspring.data.options import NEXT, IngestOptions
from mainspring.data.video.packets import index_of_video
from mainspring.domain.errors import DamagedData, InvalidInput

_LEROBOT_STATE = "observation.state"
_RATE_DENOMINATOR_MAX = 1_001  # Television's 30000/1001 is the oddest rate in use.


def own_name(name: str) -> str:
    """Returns how a column is called here: what LeRobot calls "observation.state" is "state".

    Args:
        name: As somebody wrote it.
    """
    return STATE if name == _LEROBOT_STATE else name


def wanted_parts(options: IngestOptions) -> Mapping[str, tuple[str, ...]]:
    """Returns which of the source's names become each column or camera here; several, joined by +, are concatenated.

    Args:
        options: What is said of the source.

    Raises:
        InvalidInput: One name of ours is given two meanings, or a part is empty.
    """
    found: dict[str, tuple[str, ...]] = {}
    for ours, theirs in options.names.items():
        parts = tuple(part.strip() for part in theirs.split("+"))
        if own_name(ours) in found or not all(parts):
            raise InvalidInput(
                "read --map", got=f"{ours}={theirs}"[:200], wanted="each of ours once, and names joined by +"
            )
        found[own_name(ours)] = parts
    return found


def rate_of(rate_hz: float) -> Fraction:
    """Returns a rate as the exact fraction that was meant.

    Args:
        rate_hz: Steps a second.
    """
    return Fraction(rate_hz).limit_denominator(_RATE_DENOMINATOR_MAX)


def even_times(steps: int, rate_hz: float) -> Integers:
    """Returns the times of evenly spaced steps, from 0 on, each rounded down by itself.

    Args:
        steps: How many.
        rate_hz: Steps a second.
    """
    rate = rate_of(rate_hz)
    return np.arange(steps, dtype=np.int64) * (NANOSECONDS * rate.denominator) // rate.numerator


def shaped(episode: Episode, options: IngestOptions) -> Episode:
    """Returns an episode with the action and the times that its taker asked for.

    Args:
        episode: As it was read.
        options: What is said of its source.

    Raises:
        InvalidInput: There is no such column, or an action already; or the times cannot be brought to the rate.
        DamagedData: A camera's frames cannot be found.
    """
    if options.action:
        episode = with_action(episode, options.action)
    return resampled(episode, options.resample_hz) if options.resample_hz else episode


def next_values(values: Floats) -> Floats:
    """Returns what each step's next one holds; the last step, which has none, keeps its own.

    Args:
        values: [T, D].
    """
    return np.concatenate([values[1:], values[-1:]])


def with_action(episode: Episode, action: str) -> Episode:
    """Returns an episode whose action is a column's value at the next step; one that has an action stays as it is.

    Args:
        episode: The episode.
        action: "next:COLUMN".

    Raises:
        InvalidInput: There is no such column.
    """
    if ACTION in episode.columns:
        return episode
    name = own_name(action.removeprefix(NEXT))
    columns = tuple(
        sorted(
            (*episode.features.columns, Column(name=ACTION, names=episode.features.names(name))),
            key=lambda column: column.name,
        )
    )
    return replace(
        episode,
        features=Features(columns=columns, cameras=episode.features.cameras),
        columns={**episode.columns, ACTION: next_values(episode.columns[name])},
        note=with_note(episode.note, f"action is {name} at the next step"),
    )


def resampled(episode: Episode, rate_hz: float) -> Episode:
    """Returns an episode with a step every 1/rate_hz seconds, each the recorded step nearest in time.

    No value and no picture is made up: steps are left out or shown again, the earlier of two that are as near.

    Args:
        episode: The episode.
        rate_hz: Steps a second.

    Raises:
        DamagedData: Its times do not advance, or a camera's frames cannot be found.
        InvalidInput: There would be too many steps.
    """
    if len(episode.time_ns) < 2 or int(np.diff(episode.time_ns).min()) <= 0:
        raise DamagedData("bring times to a rate", got="times that do not advance", wanted="each later than the last")
    rate = rate_of(rate_hz)
    begin, end = int(episode.time_ns[0]), int(episode.time_ns[-1])
    steps = (end - begin) * rate.numerator // (NANOSECONDS * rate.denominator) + 1
    if steps > FRAMES_MAX:
        raise InvalidInput("bring times to a rate", got=f"{steps} steps", wanted=f"at most {FRAMES_MAX}")
    time_ns = begin + even_times(steps, rate_hz)
    chosen = nearest_steps(episode.time_ns, time_ns)
    if steps == len(episode.time_ns) and np.array_equal(chosen, np.arange(steps)):
        videos = episode.videos
    else:
        videos = tuple(_chosen(video, chosen, len(episode.time_ns)) for video in episode.videos)
    return replace(
        episode,
        rate_hz=rate_hz,
        time_ns=time_ns,
        columns={name: values[chosen] for name, values in episode.columns.items()},
        videos=videos,
        note=with_note(episode.note, f"brought from {len(episode.time_ns)} steps to {steps} at {rate_hz:g} Hz"),
    )


def nearest_steps(time_ns: Integers, wanted_ns: Integers) -> Integers:
    """Returns the index of the time nearest to each that is wanted, the earlier of two.

    Args:
        time_ns: [T], in order.
        wanted_ns: Any number of times.
    """
    after = np.clip(np.searchsorted(time_ns, wanted_ns), 1, max(len(time_ns) - 1, 1))
    if len(time_ns) < 2:
        return np.zeros(len(wanted_ns), np.int64)
    return np.where(wanted_ns - time_ns[after - 1] <= time_ns[after] - wanted_ns, after - 1, after).astype(np.int64)


def with_note(note: str, said: str) -> str:
    """Returns a note with one more clause.

    Args:
        note: What it says so far.
        said: The clause; "" adds nothing.
    """
    return "; ".join(filter(None, (note, said)))


def _chosen(video: VideoFile, chosen: Integers, steps: int) -> VideoFile:
    index = index_of_video(video, steps)
    shown = video.shown if video.shown is not None else np.arange(steps)
    return replace(video, first_frame=0, index=index, shown=shown[chosen].astype(np.int32))
