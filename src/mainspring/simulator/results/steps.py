"""Quantities that change in steps: their values and integrals, from the changes alone."""

from __future__ import annotations

import numpy as np

from mainspring.planner.facts.snapshot import Floats


def integral(time_s: Floats, delta: Floats, until_s: Floats) -> Floats:
    """Returns the integral of a quantity from its first change to each of some times.

    Args:
        time_s: When it changed, in order.
    """
    level = np.concatenate([[0.0], np.cumsum(delta)])
    origin_s = time_s[0] if len(time_s) else 0.0  # Small numbers lose less.
    moment = np.concatenate([[0.0], np.cumsum(delta * (time_s - origin_s))])
    before = np.searchsorted(time_s, until_s, side="left")
    area: Floats = level[before] * (until_s - origin_s) - moment[before]
    return area


def values(time_s: Floats, delta: Floats, at_s: Floats) -> Floats:
    """Returns what a quantity is just after each of some times.

    Args:
        time_s: When it changed, in order.
    """
    return np.append(0.0, np.cumsum(delta))[np.searchsorted(time_s, at_s, side="right")]


def means(time_s: Floats, delta: Floats, edges_s: Floats) -> Floats:
    """Returns the mean of a quantity between each two edges.

    Args:
        time_s: When it changed, in order.
    """
    return np.diff(integral(time_s, delta, edges_s)) / np.diff(edges_s)
