"""From what a loader reads of a source to what a policy sees, in the loader's own thread: words, widths, masks.

Legend of shape suffixes:
    B batch   P word of a prompt   S state   A action   V camera view
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from mainspring.data import Batch, View, gather
from mainspring.data.features import STATE
from mainspring.data.loader.order import Integers
from mainspring.domain.errors import InvalidInput
from mainspring.train.feed import fitted, history_of
from mainspring.train.inputs.sources import OpenSource, Sources
from mainspring.train.models.shapes import LanguageRecipe, VlaRecipe
from mainspring.train.models.vla import check_prompt
from mainspring.train.policy import Statistics, statistics_of_robot
from mainspring.train.prompts import Tokenizer

TASKS_AT_ONCE = 1_024  # That are made words of together when all are looked at.


class Fitting:
    """Makes of rows of a source what the policy sees of them. See `loader.Fit`.

    Args:
        sources: What is read.
        statistics: By which prompts tell the state, as numpy arrays; None before they are known.

    Raises:
        InvalidInput: The policy needs words and there is no tokenizer, or the other way round; or a task is longer than
            its prompts.
    """

    def __init__(self, sources: Sources, statistics: Statistics | None = None) -> None:
        self._sources, self._statistics = sources, statistics
        self._policy, self._data = sources.recipe.policy, sources.recipe.data
        self._tokenizer = self._opened_tokenizer()
        self._tasks: dict[str, NDArray[np.object_]] = {}

    def _opened_tokenizer(self) -> Tokenizer | None:
        name, policy = self._data.tokenizer, self._policy
        if not isinstance(policy, VlaRecipe):
            if name:
                raise InvalidInput(
                    "make words of tasks",
                    on=self._sources.recipe.name,
                    got="a policy that reads no words",
                    wanted="a VLA",
                    next_step="leave data.tokenizer out",
                )
            return None
        if not name:
            check_prompt(policy, {})
            return None
        return Tokenizer(Path(name), policy)

    def check_tasks(self) -> None:
        """Makes words of every task, held-out ones too, so that one that is too long is found before the first step.

        Raises:
            InvalidInput: A task is longer than the policy's prompts.
        """
        if self._tokenizer is None:
            return
        sides = [(one, view) for one in self._sources.opened for view in (one.view, one.source.held_out)]
        for one, view in sides:
            tasks = [] if view is None else pc.unique(view.episodes["task"]).to_pylist()
            middle_BS = np.zeros((TASKS_AT_ONCE, one.dims(STATE)), np.float32)  # In words of three digits, the longest.
            for first in range(0, len(tasks), TASKS_AT_ONCE):
                some = [task or "" for task in tasks[first : first + TASKS_AT_ONCE]]
                self._tokenizer.prompts(some, middle_BS[: len(some)])

    def __call__(self, component: int, rows: Integers, batch: Batch) -> Batch:
        """Returns what a policy sees of rows of a source, beside images that are decoded.

        Args:
            component: The source, by number.
            rows: Of its view.
            batch: Their columns.
        """
        return self.of(self._sources.opened[component], self._sources.opened[component].view, rows, batch)

    def of(self, one: OpenSource, view: View, rows: Integers, batch: Batch) -> dict[str, NDArray[Any]]:
        """Returns what a policy sees of rows of one side of a source.

        Args:
            one: The source.
            view: Its side.
            rows: Of that.
            batch: Their columns, and images where they are there.
        """
        arrays, signature = fitted(batch, self._policy), self._sources.signature
        if isinstance(self._policy, LanguageRecipe):
            return arrays
        count = len(rows)
        if self._tokenizer is not None:
            state_BS = arrays["state"] if self._statistics is None else self._normalised(one, arrays["state"])
            prompt = self._tokenizer.prompts(self._tasks_of(view, rows), state_BS)
            arrays |= {"prompt": prompt.tokens, "prompt_valid": prompt.valid}
        widths = {"state": signature.state_dim, "before": signature.state_dim, "actions": signature.action_dim}
        for name in filter(arrays.__contains__, widths):
            arrays[name] = widened(arrays[name], widths[name])
        if len(self._data.robots) > 1:
            arrays["robot"] = np.full(count, one.robot, np.int32)
        if self._data.masked and one.cameras:
            arrays["image_valid"] = np.tile(np.asarray([bool(name) for name in one.cameras]), (count, 1))
        return arrays

    def gathered(self, one: OpenSource, view: View, rows: Integers) -> dict[str, NDArray[Any]]:
        """Returns what a policy sees of any rows of one side of a source, images too: for a look.

        Args:
            one: The source.
            view: Its side.
            rows: Of that.
        """
        policy = self._policy
        batch = gather(view, rows, horizon=policy.horizon, history=history_of(policy), cameras=one.cameras)
        return self.of(one, view, rows, batch)

    def _normalised(self, one: OpenSource, state_BS: NDArray[Any]) -> NDArray[Any]:
        assert self._statistics is not None
        own, dims = statistics_of_robot(self._statistics, one.robot), state_BS.shape[-1]
        normalised: NDArray[Any] = (state_BS - own["state_mean"][:dims]) / own["state_deviation"][:dims]
        return normalised

    def _tasks_of(self, view: View, rows: Integers) -> Sequence[str]:
        key = f"{view.manifest.id} {view.split}"
        if key not in self._tasks:
            self._tasks[key] = np.asarray([task or "" for task in view.episodes["task"].to_pylist()], object)
        tasks: list[str] = self._tasks[key][view.episode_of(rows)].tolist()
        return tasks


def widened(array: NDArray[Any], dims: int) -> NDArray[Any]:
    """Returns an array with zeros in the dimensions, its last axis, that a robot does not have."""
    if array.shape[-1] == dims:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, dims - array.shape[-1])])
