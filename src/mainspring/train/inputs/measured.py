"""Statistics of a run's data: measured on a sample that is the same for every rank, or those that weights came with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data.features import ACTION, STATE
from mainspring.data.loader.batches import columns_of
from mainspring.data.loader.loader import Loader
from mainspring.domain.errors import InvalidInput
from mainspring.train.feed import fitted, history_of
from mainspring.train.inputs.sources import Sources, sampling_of
from mainspring.train.layouts.statistics import read_statistics
from mainspring.train.models.shapes import LanguageRecipe, Signature
from mainspring.train.policy import (
    RELATIVE,
    Statistics,
    measure_statistics,
    of_all_robots,
    relative_A,
    statistics_from,
)
from mainspring.train.recipe import InitRecipe

STATISTICS_BATCHES = 32  # At the recipes' batch sizes some thousands of chunks: a deviation good to about 1 %.


def statistics_of(sources: Sources, init: InitRecipe | None = None) -> Statistics:
    """Returns the statistics of each robot's data, none of words: as the recipe says, measured or given.

    Args:
        sources: What is learned from.
        init: Weights that came with statistics of their own, where these are to be kept.

    Raises:
        InvalidInput: A value is no number, or what is given is of others than the robot.
    """
    recipe = sources.recipe
    if isinstance(recipe.policy, LanguageRecipe):
        return {}
    given = None if init is None or init.statistics is None else Path(init.statistics)
    found = []
    for number, robot in enumerate(recipe.data.robots):
        own = next((one for one in sources.opened if one.robot == number), None)
        if own is None:
            raise InvalidInput("measure a robot's data", on=repr(robot.name), got="no source", wanted="one at least")
        dims = Signature(state_dim=own.dims(STATE), action_dim=own.dims(ACTION))
        relative = None
        if recipe.policy.relative_actions and recipe.data.partly_absolute:
            relative = relative_A(robot, dims.action_dim)
        if given is None:
            statistics = measure_statistics(_sampled(sources, number), recipe.policy, relative)
        else:
            kept = {} if relative is None else {RELATIVE: relative}
            statistics = {**statistics_from(read_statistics(given), recipe.policy, dims), **kept}
        _check_finite(statistics, robot.name)
        found.append(_wide(statistics, dims, sources.signature))
    return of_all_robots(found)


def _sampled(sources: Sources, robot: int) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yields batches of a robot's data; every rank the same."""
    recipe, policy = sources.recipe, sources.recipe.policy
    # Pixels have no statistics here; theirs would cost decoding.
    components = [replace(one, cameras=()) for one in sources.components(robot)]
    loader = Loader(components, sampling_of(recipe))
    for step in range(STATISTICS_BATCHES):
        samples = loader.samples(step)
        parts = [
            columns_of(
                component.view,
                samples.row[samples.component == number],
                horizon=policy.horizon,
                history=history_of(policy),
                cameras=(),
            )
            for number, component in enumerate(components)
        ]
        names = ("state", "actions", "valid")
        yield fitted({name: np.concatenate([part[name] for part in parts]) for name in names}, policy)


def _check_finite(statistics: Statistics, robot: str) -> None:
    for name, numbers in statistics.items():
        if not np.isfinite(numbers).all():
            raise InvalidInput(
                "measure a robot's data",
                on=f"{name} of {robot!r}",
                got="values that are no numbers",
                wanted="finite ones",
                next_step="look at the view's columns for values that are not finite",
            )


def _wide(statistics: Statistics, own: Signature, wide: Signature) -> Statistics:
    """Returns a robot's statistics in the width of all: of dimensions that it lacks, those that change nothing."""
    found: Statistics = {}
    for name, numbers in statistics.items():
        fill = 1.0 if name.endswith("deviation") else 0.0
        if name.startswith("state"):
            blocks = numbers.reshape(-1, own.state_dim)  # The state, and its change where a policy sees that.
            padded = np.pad(blocks, [(0, 0), (0, wide.state_dim - own.state_dim)], constant_values=fill)
            found[name] = padded.reshape(-1)
        else:
            lacks = [(0, 0)] * (numbers.ndim - 1) + [(0, wide.action_dim - own.action_dim)]
            found[name] = np.pad(numbers, lacks, constant_values=fill)
    return found
