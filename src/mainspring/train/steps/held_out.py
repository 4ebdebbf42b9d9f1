"""The loss on episodes that nobody learns from, of each source and of each task: always of the same rows and noise.

A batch holds rows of one task alone, so that what a model's loss sums is that task's. Images are not varied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mainspring.data import View
from mainspring.data.loader.order import Integers
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.sources import OpenSource, Sources
from mainspring.train.models.shapes import LanguageRecipe, Policy
from mainspring.train.policy import row_keys, summed_loss
from mainspring.train.recipe import HeldOutRecipe, Recipe
from mainspring.train.state.sharding import WHOLE, Share, place_batch
from mainspring.train.steps.state import TrainState

LOSS = "held_out_loss"
TASKS_MAX = 64  # Of a source; beyond, the tasks with the fewest rows are one. A report has 256 names at most.
TASK_LETTERS_MAX = 60  # Of a task's name in a metric's.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Group:
    """Rows of one task of one source.

    Args:
        rows: Of a whole batch, the first `count` of them to be measured, the others to fill it.
    """

    source: OpenSource
    view: View
    task: str
    rows: Integers
    count: int


class HeldOut:
    """Measures a run's loss on what it does not learn from.

    Args:
        sources: Those with another side are measured.
        fitting: Makes of their columns what the policy sees.
        mesh: Of all devices.
        share: This process's of every batch.
    """

    def __init__(self, sources: Sources, fitting: Fitting, mesh: jax.sharding.Mesh, share: Share) -> None:
        self._recipe, self._fitting, self._mesh, self._share = sources.recipe, fitting, mesh, share
        wanted = sources.recipe.held_out
        self._groups = [] if wanted is None else list(_groups(sources, wanted))
        self._loss = _make_loss(sources.recipe, mesh)

    def due(self, step: int) -> bool:
        """Returns whether a step's state is to be measured."""
        wanted = self._recipe.held_out
        last = self._recipe.steps
        return bool(self._groups) and wanted is not None and (step % wanted.every == 0 or step == last)

    def measures(self, state: TrainState) -> dict[str, float]:
        """Returns the loss of all, of each source and of each of its tasks, where there are several."""
        sums: dict[str, NDArray[np.float64]] = {}
        with ThreadPoolExecutor(1, "held-out") as pool:
            ahead = pool.submit(self._batch, self._groups[0])
            for number, group in enumerate(self._groups):
                batch = place_batch(self._mesh, ahead.result())
                if number + 1 < len(self._groups):
                    ahead = pool.submit(self._batch, self._groups[number + 1])
                both = np.asarray(self._loss(state, batch), np.float64)
                for name in dict.fromkeys((LOSS, _name(group.source), _name(group.source, group.task))):
                    sums[name] = sums.get(name, np.zeros(2)) + both
        several = len(self._groups) > 1
        return {
            name: float(total / max(steps, 1.0)) for name, (total, steps) in sums.items() if several or name == LOSS
        }

    def _batch(self, group: _Group) -> Mapping[str, NDArray[Any]]:
        """Returns this process's part of a group's batch: in order, so that rows meet the same noise in any world."""
        each = len(group.rows) // self._share.world_size
        own = slice(self._share.rank * each, (self._share.rank + 1) * each)
        arrays = self._fitting.gathered(group.source, group.view, group.rows[own])
        counted = np.arange(len(group.rows))[own] < group.count
        return {**arrays, "valid": arrays["valid"] & counted[:, None]}


def _name(source: OpenSource, task: str | None = None) -> str:
    words = [LOSS, source.recipe.name, (task or "")[:TASK_LETTERS_MAX]]
    return "/".join(filter(None, words))


def _groups(sources: Sources, wanted: HeldOutRecipe) -> Iterator[_Group]:
    size = sources.recipe.batch_size
    for source in sources.opened:
        view = source.source.held_out
        if view is None:
            continue
        for task, rows in _rows_by_task(view, sources.recipe.policy).items():
            count = min(len(rows), wanted.rows, size)
            chosen = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
            padded = np.pad(chosen, (0, size - count), mode="edge")
            yield _Group(source=source, view=view, task=task, rows=padded, count=count)


def _rows_by_task(view: View, policy: Policy) -> dict[str, Integers]:
    """Returns the rows of each task, the rarest of too many together; of texts, all rows."""
    every = np.arange(view.rows, dtype=np.int64)
    if isinstance(policy, LanguageRecipe):
        return {"": every}
    tasks = [task or "" for task in view.episodes["task"].to_pylist()]
    lengths = dict.fromkeys(tasks, 0)
    for task, length in zip(tasks, (view.episode_ends - view.episode_starts).tolist(), strict=True):
        lengths[task] += length
    ordered = sorted(lengths, key=lambda task: (-lengths[task], task))
    kept = set(ordered if len(ordered) <= TASKS_MAX else ordered[: TASKS_MAX - 1])
    names = [task if task in kept else "other tasks" for task in ordered]
    number = {task: place for place, task in enumerate(ordered)}
    of_episode = np.asarray([number[task] for task in tasks])[view.episode_of(every)]
    found: dict[str, Integers] = {}
    for place, name in enumerate(names):
        here = every[of_episode == place]
        found[name] = np.concatenate([found[name], here]) if name in found else here
    return found


def _make_loss(recipe: Recipe, mesh: jax.sharding.Mesh) -> Any:
    """Returns the compiled sum of the loss over valid steps, and how many these are, [2]."""
    policy = recipe.policy
    if not isinstance(policy, LanguageRecipe) and policy.image is not None:
        still: Any = replace(policy.image, shift_pixels=0, tint=0.0)
        policy = replace(policy, image=still)

    def loss(state: TrainState, batch: Mapping[str, jax.Array]) -> jax.Array:
        keys = row_keys(jax.random.key(recipe.seed), jnp.arange(len(batch["valid"])))
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            summed = summed_loss(state.in_use(recipe), state.statistics, policy, batch, keys)
        return jnp.stack([summed, batch["valid"].sum().astype(summed.dtype)])

    return jax.jit(loss, out_shardings=jax.sharding.NamedSharding(mesh, WHOLE))
