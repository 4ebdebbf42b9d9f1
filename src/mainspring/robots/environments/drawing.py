"""Pictures of simple scenes as arrays: discs on a ground, without a graphics library or a display."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainspring.robots.environments.port import Pixels

WHITE, GREY, RED, GREEN, BLUE = (255, 255, 255), (190, 190, 190), (200, 40, 40), (60, 160, 70), (50, 80, 190)


def ground(height: int, width: int, colour: Sequence[int] = WHITE) -> Pixels:
    """Returns a picture of one colour, [height, width, 3]."""
    return np.full((height, width, 3), colour, np.uint8)


def disc(picture: Pixels, *, x: float, y: float, radius: float, colour: Sequence[int]) -> None:
    """Draws a disc; what of it lies outside is left out.

    Args:
        picture: Drawn into.
        x: Its middle, in pixels from the left.
        y: In pixels from the top.
        radius: In pixels.
    """
    rows, columns = np.ogrid[: picture.shape[0], : picture.shape[1]]
    picture[(columns - x) ** 2 + (rows - y) ** 2 <= radius**2] = colour
