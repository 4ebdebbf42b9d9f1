"""Decides whether a recording is fit for training, and says why when it is not."""

from __future__ import annotations

import numpy as np

from mainspring.data.episode import NANOSECONDS, Episode
from mainspring.data.video.frames import check_video
from mainspring.domain.errors import DamagedData

FRAMES_MIN = 2  # One step has no duration, so its rate cannot be checked.
RATE_DRIFT_MAX = 0.10  # Robots of one kind differ by a few percent; a tenth is another rate or lost steps.
GAP_PERIODS_MAX = 10  # A third of a second at 30 Hz: beyond it the next state is no consequence of the last action.


def problems(episode: Episode) -> tuple[str, ...]:
    """Returns every reason to leave an episode out, one clause each; none when it is sound.

    Args:
        episode: The episode, read. Its videos are decoded from end to end.
    """
    found = [*_time_problems(episode), *_value_problems(episode)]
    for video, camera in zip(episode.videos, episode.features.cameras, strict=True):
        try:
            check_video(
                video.path,
                first_frame=video.first_frame,
                frames=len(episode.time_ns),
                rate_hz=episode.rate_hz,
                height=camera.height,
                width=camera.width,
            )
        except DamagedData as error:
            found.append(f"camera {camera.name}: {error}")
    return tuple(found)


def _time_problems(episode: Episode) -> list[str]:
    time_ns = episode.time_ns
    if len(time_ns) < FRAMES_MIN:
        return [f"{len(time_ns)} steps, wanted at least {FRAMES_MIN}"]
    steps_ns = np.diff(time_ns)
    if time_ns[0] < 0 or steps_ns.min() <= 0:
        return [f"time does not advance after step {int(np.argmin(steps_ns))}"]
    found = []
    rate_hz = (len(time_ns) - 1) * NANOSECONDS / float(time_ns[-1] - time_ns[0])
    if abs(rate_hz / episode.rate_hz - 1.0) > RATE_DRIFT_MAX:
        found.append(f"{rate_hz:.2f} steps per second, declared {episode.rate_hz:g}")
    gap_s = float(steps_ns.max()) / NANOSECONDS
    if gap_s * episode.rate_hz > GAP_PERIODS_MAX:
        found.append(f"a gap of {gap_s:.3f} s after step {int(np.argmax(steps_ns))}")
    return found


def _value_problems(episode: Episode) -> list[str]:
    found = []
    for name, values in (("state", episode.state), ("action", episode.action)):
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            found.append(f"{len(bad)} {name} values are not finite, first at step {bad[0][0]}, dimension {bad[0][1]}")
    return found
