"""Decides whether a recording is fit for training, and says why when it is not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import NANOSECONDS, Episode, Floats, VideoFile
from mainspring.data.features import ACTION, STATE, Camera
from mainspring.data.loss import Loss
from mainspring.data.options import FROZEN_PICTURE, FROZEN_STATE, GAP, LAG, RATE
from mainspring.data.video.damage import StrictDecoding, begins_alone
from mainspring.data.video.frames import plane_sum
from mainspring.data.video.packets import index_of_video
from mainspring.domain.errors import DamagedData

FRAMES_MIN = 2  # One step has no duration, so its rate cannot be checked.
RATE_DRIFT_MAX = 0.10  # Robots of one kind differ by a few percent; a tenth is another rate or lost steps.
GAP_PERIODS_MAX = 10  # A third of a second at 30 Hz: beyond it the next state is no consequence of the last action.
FROZEN_S_MAX = 2.0  # Noise alone changes a living sensor's last bits many times a second.
MOVES = 0.05  # Of a dimension's whole range: less may be a robot that waits.
LAG_S_MAX = 0.5  # Arms follow within 0.1 to 0.2 s; beyond half a second two clocks were mixed up.
LAG_FIT_MIN = 0.95  # Correlation at the lag, and how much better than without one: lower may be chance.
LAG_GAIN_MIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """A reason to leave an episode out; with a name from `DOUBTS` where its owner may know better."""

    text: str
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found of an episode.

    Args:
        reasons: Why to leave it out, one clause each; none when it is sound.
        allowed: What would be reasons, had its owner not allowed for them.
        losses: What of it is gone.
        videos: Its own, each with the numbers of its damaged frames.
    """

    reasons: tuple[str, ...]
    losses: tuple[Loss, ...]
    videos: tuple[VideoFile, ...] = ()
    allowed: tuple[str, ...] = ()


def examined(episode: Episode, allow: Collection[str] = ()) -> Examination:
    """Returns every reason to leave an episode out, and what of it is gone.

    Args:
        episode: The episode, read. Its videos are decoded from end to end.
        allow: Which of `DOUBTS` are no reasons.
    """
    found = [*_time_problems(episode), *_value_problems(episode)]
    if all(problem.doubt in allow for problem in found):  # What follows needs times and values that can be trusted.
        found += [*_frozen_state(episode), *_lag(episode)]
    losses = [*episode.losses]
    videos = []
    for video, camera in zip(episode.videos, episode.features.cameras, strict=True):
        try:
            seen = _watched(episode, video)
        except DamagedData as error:
            found.append(_Problem(text=f"camera {camera.name}: {error}"))
            continue
        found += [
            replace(problem, text=f"camera {camera.name}: {problem.text}")
            for problem in _video_problems(episode, seen, video, camera)
        ]
        videos.append(replace(video, lost=seen.damaged))
        if seen.damaged:
            count, total = len(seen.damaged), len(seen.pictures)
            losses.append(
                Loss(
                    subject=f"camera {camera.name}",
                    lost=count,
                    total=total,
                    unit="frames",
                    seconds=count / total * float(episode.time_ns[-1] - episode.time_ns[0]) / NANOSECONDS,
                    what=seen.what,
                )
            )
    return Examination(
        reasons=tuple(_reason(problem) for problem in found if problem.doubt not in allow),
        losses=tuple(losses),
        videos=tuple(videos),
        allowed=tuple(problem.text for problem in found if problem.doubt in allow),
    )


def _reason(problem: _Problem) -> str:
    return f"{problem.text} (--allow {problem.doubt} lets it in)" if problem.doubt else problem.text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Watched:
    """What was seen of a camera's track: a hash of each frame, [F]; another each where none came."""

    height: int
    width: int
    pictures: NDArray[np.int64]
    damaged: tuple[int, ...]
    what: str


def _watched(episode: Episode, video: VideoFile) -> _Watched:
    steps = len(episode.time_ns)
    index = index_of_video(video, steps)
    if not begins_alone(video.path, index):
        index = index_of_video(video, steps, lead=1)  # What its first group refers to.
    decoding = StrictDecoding(video.path, index)
    pictures = -1 - np.arange(index.frames, dtype=np.int64)
    for frame in decoding.frames():
        pictures[frame.pts] = plane_sum(frame, 0)
    if (pictures < 0).all():
        raise DamagedData("decode a video", on=video.path.name, got=f"none of {index.frames} frames: {decoding.what}")
    damaged = decoding.damaged
    return _Watched(
        height=index.height,
        width=index.width,
        pictures=pictures,
        damaged=damaged,
        what=decoding.what if damaged else "",
    )


def _video_problems(episode: Episode, seen: _Watched, video: VideoFile, camera: Camera) -> Iterator[_Problem]:
    if (seen.height, seen.width) != (camera.height, camera.width):
        yield _Problem(text=f"{seen.width}x{seen.height}, declared {camera.width}x{camera.height}")
    shown = seen.pictures if video.shown is None else seen.pictures[video.shown]
    still = _longest(np.diff(shown) == 0)
    state = episode.columns.get(STATE)
    lasts_s = still.seconds(episode)
    if lasts_s > FROZEN_S_MAX and state is not None and _moves(state, still):
        yield _Problem(
            text=f"one picture for {lasts_s:.1f} s from step {still.first} on, while the state moves",
            doubt=FROZEN_PICTURE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Still:
    """Steps from `first` to `last` that are all alike."""

    first: int
    last: int

    def seconds(self, episode: Episode) -> float:
        return float(episode.time_ns[self.last] - episode.time_ns[self.first]) / NANOSECONDS


def _longest(same: NDArray[np.bool_]) -> _Still:
    """Returns the longest stretch of steps that are the same as the one before."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
    if len(edges) == 0:
        return _Still(first=0, last=0)
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return _Still(first=int(begins[longest]), last=int(ends[longest]))


def _moves(values: Floats, still: _Still) -> bool:
    whole = np.ptp(values, axis=0)
    return bool((np.ptp(values[still.first : still.last + 1], axis=0) > MOVES * whole)[whole > 0].any())


def _frozen_state(episode: Episode) -> Iterator[_Problem]:
    state, action = episode.columns.get(STATE), episode.columns.get(ACTION)
    if state is None or action is None:
        return
    still = _longest((np.diff(state, axis=0) == 0).all(axis=1))
    if still.seconds(episode) > FROZEN_S_MAX and _moves(action, still):
        lasts_s = still.seconds(episode)
        yield _Problem(
            text=f"the same state for {lasts_s:.1f} s from step {still.first} on, while the action moves",
            doubt=FROZEN_STATE,
        )


def _lag(episode: Episode) -> Iterator[_Problem]:
    """Tells of a state that follows the action too late, or comes before it: by dimensions of one name."""
    if not {STATE, ACTION} <= episode.columns.keys():
        return
    names = {name: [*episode.features.names(name)] for name in (STATE, ACTION)}
    shared = [name for name in names[STATE] if name in names[ACTION]]
    pairs = [
        (episode.columns[STATE][:, names[STATE].index(name)], episode.columns[ACTION][:, names[ACTION].index(name)])
        for name in shared
    ]
    steps = round(2 * LAG_S_MAX * episode.rate_hz)
    moving = [(state, action) for state, action in pairs if np.ptp(state) > 0 and np.ptp(action) > 0]
    if not moving or len(episode.time_ns) < 4 * steps:
        return
    fits = {lag: float(np.median([_fit(*pair, lag) for pair in moving])) for lag in range(-steps, steps + 1)}
    best = max(fits, key=lambda lag: fits[lag])
    late_s = best / episode.rate_hz
    if abs(late_s) > LAG_S_MAX and fits[best] > LAG_FIT_MIN and fits[best] - fits[0] > LAG_GAIN_MIN:
        yield _Problem(text=f"the state follows the action by {late_s:.2f} s, wanted at most {LAG_S_MAX} s", doubt=LAG)


def _fit(state: Floats, action: Floats, lag: int) -> float:
    """Returns the correlation of the action with the state `lag` steps later."""
    early, late = (action, state) if lag >= 0 else (state, action)
    early, late = early[: len(early) - abs(lag)], late[abs(lag) :]
    spread = early.std() * late.std()
    return float(((early - early.mean()) * (late - late.mean())).mean() / spread) if spread > 0 else 0.0


def _time_problems(episode: Episode) -> list[_Problem]:
    time_ns = episode.time_ns
    if len(time_ns) < FRAMES_MIN:
        return [_Problem(text=f"{len(time_ns)} steps, wanted at least {FRAMES_MIN}")]
    steps_ns = np.diff(time_ns)
    if time_ns[0] < 0 or steps_ns.min() <= 0:
        return [_Problem(text=f"time does not advance after step {int(np.argmin(steps_ns))}")]
    found = []
    rate_hz = (len(time_ns) - 1) * NANOSECONDS / float(time_ns[-1] - time_ns[0])
    if abs(rate_hz / episode.rate_hz - 1.0) > RATE_DRIFT_MAX:
        found.append(_Problem(text=f"{rate_hz:.2f} steps per second, declared {episode.rate_hz:g}", doubt=RATE))
    gap_s = float(steps_ns.max()) / NANOSECONDS
    if gap_s * episode.rate_hz > GAP_PERIODS_MAX:
        found.append(_Problem(text=f"a gap of {gap_s:.3f} s after step {int(np.argmax(steps_ns))}", doubt=GAP))
    return found


def _value_problems(episode: Episode) -> list[_Problem]:
    found = []
    for name, values in sorted(episode.columns.items()):
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            first = f"first at step {bad[0][0]}, dimension {bad[0][1]}"
            found.append(_Problem(text=f"{len(bad)} {name} values are not finite, {first}"))
    return found
