"""Somebody who plays PushT from its state: what a policy from pictures can learn from, where no person has played.

It knows how the block answers: nothing rubs, so a push acts along the edge's normal, moves the middle of the mass that
way, and turns the block by its arm. Of all places on the edge it takes the one that brings the block nearest to its
target for the time that it takes to go there and push, goes around the block to it, pushes, and looks again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from mainspring.robots.environments.port import FloatArray

Point = NDArray[np.float64]
# Source: gym-pusht 0.1, `pusht.py`: the block's outline and middle of mass in its own frame, its target, the disc.
OUTLINE = np.asarray([[-60, 0], [60, 0], [60, 30], [15, 30], [15, 120], [-15, 120], [-15, 30], [-60, 30]], np.float64)
MIDDLE = np.asarray([0.0, 45.0])
TARGET, TARGET_ANGLE = np.asarray([256.0, 256.0]), math.pi / 4
RADIUS = 15.0
INERTIA = 3_000.0  # Over the mass: of two bars of 120 by 30 about an end of their short axis, as the package has it.
SPREAD = math.sqrt(INERTIA)  # By which an angle counts as a way: what a turn moves the block's parts by.
PLACES_APART = 6.0  # Along the edge.
ROOM = RADIUS + 3.0  # Between the disc's middle and the block, on a way.
AWAY = 10.0  # Between the disc and the edge, before it pushes and after.
AROUND = 105.0  # From the middle of mass: no part of block and disc is farther out than 92.
TURN = 0.7  # Around the block in one step, in radians: the disc follows with a lag, and cuts corners.
LEAD = 25.0  # Of the place that the disc is told, before where it is: it follows half of that in a step.
NEAR = 6.0  # To a place that is to be reached.
TABLE_EDGE, TABLE_FAR = 18.0, 494.0  # Where the disc has room.
PUSH_LEAST = 0.3  # A shorter way is none.
STEPS_OF_A_PUSH = 25  # At most, then it looks again.
STEPS_OF_A_WAY = 25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Edge:
    """Places on the block's edge that the disc can push at, in the block's frame.

    Args:
        place: [N, 2].
        inwards: [N, 2], of length 1.
    """

    place: Point
    inwards: Point


def _edge() -> _Edge:
    places, normals = [], []
    for first, second in zip(OUTLINE, np.roll(OUTLINE, -1, axis=0), strict=True):
        along = second - first
        length = float(np.hypot(*along))
        inwards = np.asarray([-along[1], along[0]]) / length  # The outline turns to the left.
        count = int((length - 8.0) // PLACES_APART) + 1
        for share in np.linspace(4.0, length - 4.0, count) / length:
            place = first + share * along
            if _clear(place - (RADIUS + 1.0) * inwards, RADIUS) and _clear(
                place - (RADIUS + AWAY) * inwards, ROOM + 1.0
            ):
                places.append(place)
                normals.append(inwards)
    return _Edge(place=np.asarray(places), inwards=np.asarray(normals))


def _clear(point: Point, room: float) -> bool:
    """Returns whether a point, in the block's frame, is so far off the block."""
    first, along = OUTLINE, np.roll(OUTLINE, -1, axis=0) - OUTLINE
    share = np.clip(((point - first) * along).sum(axis=1) / (along**2).sum(axis=1), 0.0, 1.0)
    nearest = np.hypot(*(first + share[:, None] * along - point).T).min()
    bar = abs(point[0]) < 60 and 0 < point[1] < 30
    stem = abs(point[0]) < 15 and 0 < point[1] < 120
    return bool(nearest >= room and not bar and not stem)


@final
class PushTPlayer:
    """One episode's player; each has one of its own."""

    def __init__(self) -> None:
        self._edge = _edge()
        self._chosen: int | None = None
        self._pushing = False
        self._steps = 0

    def act(self, state: FloatArray) -> FloatArray:
        """Returns where the disc is to go.

        Args:
            state: The disc's place, the block's place and angle, as `pusht-state` has them.
        """
        disc, block = np.asarray(state[:2], np.float64), _Block(np.asarray(state[2:], np.float64))
        self._steps += 1
        if self._chosen is None or self._over(self._chosen, disc, block):
            self._chosen, self._pushing, self._steps = self._best(disc, block), False, 0
        place, inwards = block.world(self._edge.place[self._chosen]), block.turned(self._edge.inwards[self._chosen])
        before = place - (RADIUS + AWAY) * inwards
        if not self._pushing and np.hypot(*(before - disc)) > NEAR:
            return self._way(disc, before, block).astype(np.float32)
        if not self._pushing:
            self._pushing, self._steps = True, 0
        away = float((place - RADIUS * inwards - disc) @ inwards)
        length = float(self._lengths(block)[self._chosen])
        ahead = min(LEAD, max(away, 0.0) + max(length, 0.0)) * inwards
        found: Point = disc + _aside(disc, place, inwards) + ahead
        return found.astype(np.float32)

    def _over(self, chosen: int, disc: Point, block: _Block) -> bool:
        """Returns whether a way took too long, or a push has done what it could, or has slipped."""
        if not self._pushing:
            return self._steps > STEPS_OF_A_WAY
        place, inwards = block.world(self._edge.place[chosen]), block.turned(self._edge.inwards[chosen])
        slipped = float(np.hypot(*_aside(disc, place, inwards))) > RADIUS
        done = float(self._lengths(block)[chosen]) < PUSH_LEAST
        return slipped or done or self._steps > STEPS_OF_A_PUSH

    def _lengths(self, block: _Block) -> Point:
        """Returns how far a push at each place is best, [N]; not positive where it does harm."""
        left, each = block.left(), self._answers(block)
        found: Point = (each @ left) / (each**2).sum(axis=1)
        return found

    def _answers(self, block: _Block) -> Point:
        """Returns what a push of length 1 at each place does: a way, and a turn as a way, [N, 3]; as a contact goes."""
        arm, inwards = self._edge.place - MIDDLE, self._edge.inwards
        turn = (arm[:, 0] * inwards[:, 1] - arm[:, 1] * inwards[:, 0]) / INERTIA
        given = 1.0 + turn**2 * INERTIA  # The place itself goes farther than the middle where the block turns too.
        found: Point = np.column_stack([inwards @ block.turn.T, turn * SPREAD]) / given[:, None]
        return found

    def _best(self, disc: Point, block: _Block) -> int:
        left, each, lengths = block.left(), self._answers(block), self._lengths(block)
        after = np.linalg.norm(left - np.maximum(lengths, 0.0)[:, None] * each, axis=1)
        gain = np.linalg.norm(left) - after
        before = block.world(self._edge.place) - (RADIUS + AWAY) * (self._edge.inwards @ block.turn.T)
        inside = ((before > TABLE_EDGE) & (before < TABLE_FAR)).all(axis=1)
        steps = 6.0 + np.hypot(*(before - disc).T) / 40.0 + lengths / 8.0
        return int(np.argmax(np.where(inside & (lengths > 0), gain / steps, -1.0)))

    def _way(self, disc: Point, goal: Point, block: _Block) -> Point:
        """Returns the next place on the way to a goal, around the block."""
        if block.way_is_clear(disc, goal):
            return goal
        middle = block.world(MIDDLE)
        here, there = disc - middle, goal - middle
        angle = math.atan2(here[1], here[0])
        if np.hypot(*here) > AROUND - 2 * NEAR:
            turn = _wrapped(math.atan2(there[1], there[0]) - angle)
            if _out_of_reach(middle, angle, turn):
                turn -= math.copysign(2 * math.pi, turn)
            angle += math.copysign(min(abs(turn), TURN), turn)
        found: Point = np.clip(_around(middle, np.asarray([angle]))[0], TABLE_EDGE, TABLE_FAR)
        return found


@final
class _Block:
    """The block where it is.

    Args:
        pose: Its place and angle.
    """

    def __init__(self, pose: Point) -> None:
        cosine, sine = math.cos(pose[2]), math.sin(pose[2])
        self.turn = np.asarray([[cosine, -sine], [sine, cosine]])
        self._place, self._angle = pose[:2], float(pose[2])

    def world(self, point: Any) -> Point:
        """Returns where points of the block are."""
        found: Point = self._place + point @ self.turn.T
        return found

    def turned(self, direction: Point) -> Point:
        """Returns a direction of the block as the table has it."""
        found: Point = self.turn @ direction
        return found

    def left(self) -> Point:
        """Returns what is left to its target: a way of the middle of mass, and a turn as a way, [3]."""
        cosine, sine = math.cos(TARGET_ANGLE), math.sin(TARGET_ANGLE)
        wanted = TARGET + np.asarray([[cosine, -sine], [sine, cosine]]) @ MIDDLE
        return np.append(wanted - self.world(MIDDLE), SPREAD * _wrapped(TARGET_ANGLE - self._angle))

    def way_is_clear(self, start: Point, end: Point) -> bool:
        """Returns whether the disc can go straight."""
        count = int(np.hypot(*(end - start)) / 5.0) + 2
        line = start + np.linspace(0.0, 1.0, count)[:, None] * (end - start)
        own = (line - self._place) @ self.turn
        return all(_clear(point, ROOM) for point in own)


def _aside(disc: Point, place: Point, inwards: Point) -> Point:
    """Returns what the disc is off the line that it pushes along."""
    off = place - disc
    aside: Point = off - (off @ inwards) * inwards
    return aside


def _around(middle: Point, angles: Point) -> Point:
    """Returns places around a block, [N, 2]."""
    found: Point = middle + AROUND * np.column_stack([np.cos(angles), np.sin(angles)])
    return found


def _out_of_reach(middle: Point, angle: float, turn: float) -> bool:
    """Returns whether the table ends on the short way around a block, and on the long one less so."""
    outs = []
    for each in (turn, turn - math.copysign(2 * math.pi, turn)):
        places = _around(middle, np.linspace(angle, angle + each, 20))
        outs.append(float((np.maximum(TABLE_EDGE - places, places - TABLE_FAR)).max()))
    return outs[0] > 0.0 and outs[1] < outs[0]


def _wrapped(angle: float) -> float:
    return (angle + math.pi) % (2 * math.pi) - math.pi
