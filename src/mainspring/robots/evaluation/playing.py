"""Plays episodes: a policy acts in an environment, in closed loop, from one start after another.

Decides how much of a chunk is carried out, when an episode is over, and which are filmed. What is made of the outcomes
is others' business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.robots.environments.port import Environment, EpisodeStart, FloatArray, Moment, Pixels

LANES = 16  # Environments that live at once and share a call of the policy: calls are then no longer what takes time.
FILMS_MAX = 4  # Failures that people look at: more show the same.
FILM_RATE_HZ = 5.0  # Of the robot's own time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What a policy is asked about: `LANES` robots at once, of which those of idle lanes mean nothing.

    Args:
        state: [lanes, S].
        before: [lanes, S], one control step earlier; at an episode's start the same.
        tasks: What each is to do, in words.
        images: [lanes, V, H, W, 3], None without cameras.
    """

    state: FloatArray
    before: FloatArray
    tasks: tuple[str, ...]
    images: Pixels | None = None


Actor = Callable[[Observations, int], FloatArray]
"""From what is seen and the number of the call to chunks of actions [lanes, T, A]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode.

    Args:
        task: What the policy was told.
        solved: Whether the environment's own task was done.
        score: The best of the episode, 0 to 1; None where the environment tells none.
        film: Pictures at `FILM_RATE_HZ`, where the episode was filmed.
    """

    start: EpisodeStart
    task: str
    solved: bool
    steps: int
    score: float | None = None
    film: tuple[Pixels, ...] = ()


@dataclass(slots=True)
class _Lane:
    """One environment and the episode it is in."""

    world: Environment
    start: EpisodeStart
    task: str
    filmed_every: float  # Steps.
    before: FloatArray
    moment: Moment
    steps: int = 0
    score: float | None = None
    film: list[Pixels] = field(default_factory=list)

    def begin(self, start: EpisodeStart, told: str | None, *, films: bool) -> None:
        self.start = start
        self.moment = self.world.reset(start)
        self.before = self.moment.state
        self.task = self.moment.task if told is None else told
        self.steps, self.score = 0, None
        self.film = [self.world.draw()] if films else []

    def follow(self, actions: FloatArray, steps_max: int) -> bool:
        """Carries out actions; returns whether the episode is over."""
        for action in actions:
            self.before, self.moment = self.moment.state, self.world.step(action)
            self.steps += 1
            self._rate(self.moment.score)
            if self.film and self.steps >= len(self.film) * self.filmed_every:
                self.film.append(self.world.draw())
            if self.moment.solved or self.steps >= steps_max:
                return True
        return False

    def _rate(self, score: float | None) -> None:
        """Keeps the best score; one that is told at times alone would make best ones that say nothing."""
        if self.steps > 1 and (score is None) != (self.score is None):
            got = f"{'no' if score is None else 'a'} score after step {self.steps}, unlike before"
            name = self.world.facts().name
            raise InvalidInput("play episodes", on=name, got=got, wanted="one after every step, or never")
        if score is not None:
            self.score = max(score, self.score or 0.0)

    def played(self) -> Played:
        film = () if self.moment.solved else tuple(self.film)
        return Played(
            start=self.start,
            task=self.task,
            solved=self.moment.solved,
            steps=self.steps,
            score=self.score,
            film=film,
        )


def play(
    make: Callable[[], Environment],
    actor: Actor,
    starts: Sequence[EpisodeStart],
    *,
    told: Sequence[str] | None = None,
    films: int = FILMS_MAX,
    progress: Callable[[int], object],
) -> tuple[Played, ...]:
    """Returns the episodes in the order of their starts. The first half of every chunk is carried out.

    Args:
        make: Makes an environment.
        starts: Where they begin.
        told: What the policy is told at each start, in place of the environment's own words.
        films: Failures to film, 0 to `FILMS_MAX`.
        progress: Called with the number of finished episodes, each time one finishes.

    Raises:
        InvalidInput: There are no starts, or the policy's chunks do not fit the robot.
    """
    if not starts:
        raise InvalidInput("play episodes", got="no starts", wanted="at least one")
    assert told is None or len(told) == len(starts)
    words: Sequence[str | None] = told if told is not None else [None] * len(starts)
    waiting = deque(enumerate(zip(starts, words, strict=True)))
    done: dict[int, Played] = {}
    live: dict[int, int] = {}  # Which start each lane is at.
    films_left = films
    lanes: list[_Lane] = []

    def begin(number: int) -> None:
        live[number], (start, told_it) = waiting.popleft()
        lanes[number].begin(start, told_it, films=films_left > 0)

    facts = make().facts()
    for number in range(min(LANES, len(starts))):
        lanes.append(_lane(make(), starts[0], facts.rate_hz / FILM_RATE_HZ))
        begin(number)
    calls = 0
    while live:
        chunks = _checked(actor(_seen(lanes), calls), len(facts.action_names))
        calls += 1
        for number in tuple(live):
            if not lanes[number].follow(chunks[number, : (chunks.shape[1] + 1) // 2], facts.steps_max):
                continue
            played = lanes[number].played()
            films_left -= bool(played.film)
            done[live.pop(number)] = played if films_left >= 0 else _unfilmed(played)
            progress(len(done))
            if waiting:
                begin(number)
    return tuple(done[number] for number in range(len(starts)))


def _lane(world: Environment, start: EpisodeStart, filmed_every: float) -> _Lane:
    nothing = np.zeros(0, np.float32)
    moment = Moment(state=nothing, solved=False)
    return _Lane(world=world, start=start, task="", filmed_every=filmed_every, before=nothing, moment=moment)


def _unfilmed(played: Played) -> Played:
    return replace(played, film=())


def _seen(lanes: Sequence[_Lane]) -> Observations:
    """Returns what all see; lanes that were never used see what the first does."""
    rows = [*lanes, *[lanes[0]] * (LANES - len(lanes))]
    pictured = bool(rows[0].moment.images)
    return Observations(
        state=np.stack([lane.moment.state for lane in rows]),
        before=np.stack([lane.before for lane in rows]),
        tasks=tuple(lane.task for lane in rows),
        images=np.stack([np.stack(lane.moment.images) for lane in rows]) if pictured else None,
    )


def _checked(chunks: FloatArray, actions: int) -> FloatArray:
    fits = chunks.ndim == 3 and chunks.shape[0] == LANES and chunks.shape[1] and chunks.shape[2] == actions
    if not fits:
        raise InvalidInput("play episodes", got=f"chunks {chunks.shape}", wanted=f"{LANES} lanes of {actions} actions")
    if not np.isfinite(chunks).all():
        raise InvalidInput("play episodes", got="an action that is no finite number", wanted="finite ones")
    return chunks
