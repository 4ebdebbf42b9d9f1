"""From a loader's batch to what a policy sees: the step before, and no images that nobody looks at."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mainspring.data import Batch
from mainspring.train.models.shapes import Policy


def history_of(policy: Policy) -> int:
    """Returns how many steps of state a policy sees.

    Args:
        policy: Says what the policy sees.
    """
    return 2 if policy.motion else 1


def fitted(batch: Batch, policy: Policy) -> dict[str, NDArray[Any]]:
    """Returns a batch with what the policy sees, and nothing else.

    Args:
        batch: From the loader, or `gather`, with `history_of` steps of state.
        policy: Says what the policy sees.
    """
    arrays = {name: batch[name] for name in ("state", "actions", "valid")}
    if policy.motion:  # An episode starts at rest: its first step is the one before it, too.
        arrays["before"], arrays["state"] = batch["state"][:, 0], batch["state"][:, 1]
    if policy.image is not None and "images" in batch:  # Whoever needs images says that there are none.
        arrays["images"] = batch["images"]
    arrays |= {name: batch[name] for name in ("prompt", "prompt_valid") if name in batch}
    return arrays
