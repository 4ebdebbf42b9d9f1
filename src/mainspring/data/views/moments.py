"""Mean, spread and range of columns in one pass, merged from parts.

Source: T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
COMPSTAT 1982.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import Floats

QUANTILES = (0.01, 0.02, 0.1, 0.5, 0.9, 0.98, 0.99)  # What recipes of robot policies clip and scale by.
STD_MIN = 1e-6  # A dimension that varies less is constant: dividing by its spread would amplify rounding.


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a column's dimensions look like, and how to bring them to a common scale.

    Args:
        count: Rows seen.
        mean: For each dimension.
        std: For each dimension; of the population.
        min: For each dimension.
        max: For each dimension.
        quantiles: For each of `QUANTILES`, for each dimension.
    """

    count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min: tuple[float, ...]
    max: tuple[float, ...]
    quantiles: tuple[tuple[float, ...], ...] = ()

    @property
    def scale(self) -> NDArray[np.float32]:
        """Returns what normalised values are multiplied by: the spread, and 1 where there is none."""
        std = np.asarray(self.std)
        return np.asarray(np.where(std < STD_MIN, 1.0, std), np.float32)

    def normalised(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Returns values with mean 0 and spread 1.

        Args:
            values: [..., D].
        """
        scaled: NDArray[np.float32] = (np.asarray(values, np.float32) - np.asarray(self.mean, np.float32)) / self.scale
        return scaled

    def restored(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Returns normalised values in their own units.

        Args:
            values: [..., D].
        """
        own: NDArray[np.float32] = np.asarray(values, np.float32) * self.scale + np.asarray(self.mean, np.float32)
        return own


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Sums over some rows, from which statistics follow.

    Args:
        count: Rows.
        mean: [D].
        squares: [D] sum of squared distances from the mean.
        min: [D].
        max: [D].
    """

    count: int
    mean: Floats
    squares: Floats
    min: Floats
    max: Floats

    @staticmethod
    def of(values: Floats) -> Moments:
        """Returns the moments of rows.

        Args:
            values: [T, D], T at least 1.
        """
        mean = values.mean(axis=0)
        return Moments(
            count=len(values),
            mean=mean,
            squares=np.square(values - mean).sum(axis=0),
            min=values.min(axis=0),
            max=values.max(axis=0),
        )

    def merged(self, other: Moments) -> Moments:
        """Returns the moments of both sets of rows.

        Args:
            other: Of the other rows.
        """
        count = self.count + other.count
        apart = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + apart * (other.count / count),
            squares=self.squares + other.squares + np.square(apart) * (self.count * other.count / count),
            min=np.minimum(self.min, other.min),
            max=np.maximum(self.max, other.max),
        )
