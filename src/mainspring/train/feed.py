"""From a loader's batch to what a policy sees: adds the step before, leaves out images that nobody looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data import Batch, View
from mainspring.train.recipe import PolicyRecipe


def fitted(
    batch: Batch, rows: Callable[[], NDArray[np.int64]], view: View, policy: PolicyRecipe
) -> dict[str, NDArray[Any]]:
    """Returns a batch with what the policy sees, and nothing else.

    Args:
        batch: From the loader, or `gather`.
        rows: Gives the batch's row numbers in the view, [B]; asked only where they are needed.
        view: The view it was read from.
        policy: Says what the policy sees.
    """
    arrays = {name: array for name, array in batch.items() if name != "images" or policy.image is not None}
    if policy.motion:
        wanted = rows()
        episodes = np.searchsorted(view.episode_ends, wanted, side="right")
        starts = np.concatenate([[0], view.episode_ends[:-1]])[episodes]
        arrays["before"] = view.take("state", np.maximum(wanted - 1, starts))  # An episode starts at rest.
    return arrays
