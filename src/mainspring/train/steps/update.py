"""One step of a run, as a program: gradients of a batch, what they change, and what is measured on the way.

Measures leave in one array, so that a step's report is one message from the device, read while the next is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from mainspring.train.models.arrays import Weights, with_given
from mainspring.train.models.shapes import REPLICA
from mainspring.train.policy import Statistics, row_keys, summed_loss
from mainspring.train.recipe import Answer, Recipe
from mainspring.train.state.adapters import weights_in_use
from mainspring.train.state.optimizers import learning_rate_at, make_optimizer
from mainspring.train.state.sharding import BATCH, WHOLE, is_whole, mean_over_ranks, state_shardings
from mainspring.train.steps.state import TrainState

NOT_FINITE, SPIKE = 1, 2  # Of `Measures.upset`.
USUAL_STEPS = 100  # Over so many the length of gradients is averaged; before there were so many, none is a spike.


class Measures(NamedTuple):
    """What a step measures, in the order in which it leaves the device.

    Args:
        loss: Mean over the valid steps of the batch.
        gradient_norm: Length of the gradient, before it is cut to the optimizer's longest.
        parameter_norm: Length of all that is learned, before the step.
        learning_rate: Of the step, by the schedule.
        upset: 0 for a good step, 1 for one that is not finite, 2 for a spike.
        usual: The mean length of gradients that a spike is held against, 0 where none are looked for.
    """

    loss: float
    gradient_norm: float
    parameter_norm: float
    learning_rate: float
    upset: float
    usual: float

    @property
    def told(self) -> dict[str, float]:
        """Returns those that people are told, by name."""
        return {name: getattr(self, name) for name in ("loss", "gradient_norm", "parameter_norm", "learning_rate")}

    @staticmethod
    def of(array: NDArray[np.float32]) -> Measures:
        """Returns the measures in an array that came from the device."""
        return Measures(*array.tolist())


def make_update(recipe: Recipe, mesh: jax.sharding.Mesh) -> jax.stages.Wrapped:
    """Returns the compiled function of one step: (state, global batch, step) -> (state, `Measures` as an array).

    The state is donated. After a step that went wrong, where the recipe does anything about it, the state is what it
    was, but for what counts steps. It may be given the measures of the step before, too: where that one went wrong the
    state stays what it was in every respect, for whoever reads them later has things to do first.

    Args:
        recipe: What to learn, and how.
        mesh: Where state and batch live.
    """
    optimizer = make_optimizer(recipe.optimizer, recipe.steps)
    sums_of = _over_ranks(recipe, mesh) if is_whole(mesh) else partial(sums_of_rows, recipe, 0)

    def update(
        state: TrainState, batch: Mapping[str, jax.Array], step: jax.Array, before: jax.Array | None = None
    ) -> Any:
        learned = state.learned(recipe)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            sums = sums_of(learned, state.weights, state.statistics, batch, step)
        gradient, loss = jax.tree.map(
            lambda array: array / jax.numpy.maximum(sums.steps, 1.0), (sums.gradient, sums.loss)
        )
        changes, moved = optimizer.update(gradient, state.optimizer, learned)
        learned = optax.apply_updates(learned, changes)
        adapters = None if state.adapters is None else {path: learned[path] for path in state.adapters}
        weights = with_given(state.weights, {path: learned[path] for path in learned if path not in (adapters or {})})
        ema = None
        if recipe.ema_decay is not None:
            newest = weights if recipe.lora is None else learned
            ema = optax.incremental_update(newest, state.ema, 1.0 - recipe.ema_decay)
        norm = optax.tree.norm(gradient)
        guarded = guarded_by(recipe, state.usual, loss, norm)
        after = replace(state, weights=weights, adapters=adapters, optimizer=moved, ema=ema)
        if guarded.hold is not None:
            after = jax.tree.map(partial(_held, guarded.hold), after, state)
        after = replace(after, usual=guarded.usual)
        if before is not None:
            after = jax.tree.map(partial(jnp.where, _answered(recipe, before)), state, after)
        place: Any = jax.lax.with_sharding_constraint
        measured = {
            "loss": loss,
            "gradient_norm": norm,
            "parameter_norm": optax.tree.norm(state.learned(recipe)),
            "learning_rate": learning_rate_at(recipe.optimizer, recipe.steps)(state.optimizer[1][2].count),
            "upset": guarded.upset,
            "usual": 0.0 if state.usual is None else state.usual[0],
        }
        array = jnp.stack([jnp.asarray(measured[name], jnp.float32) for name in Measures._fields])
        everywhere = jax.sharding.NamedSharding(mesh, WHOLE)
        return place(after, state_shardings(after, mesh, recipe.mesh)), place(array, everywhere)

    return jax.jit(update, donate_argnums=0)


class Guarded(NamedTuple):
    """What is thought of a step: whether the state stays as it was, None where it never does; see `Measures`."""

    hold: Any
    upset: Any
    usual: Any


def guarded_by(recipe: Recipe, usual: jax.Array | None, loss: jax.Array, norm: jax.Array) -> Guarded:
    """Returns what is thought of a step.

    Args:
        recipe: Says what is done about which.
        usual: See `TrainState`.
        loss: Of the step, over all ranks.
        norm: Of its gradient, likewise.
    """
    guard = recipe.guard
    odd = ~(jnp.isfinite(loss) & jnp.isfinite(norm))
    hold = None if guard.not_finite is Answer.IGNORE else odd
    if usual is None:
        return Guarded(hold, jnp.where(odd, NOT_FINITE, 0), None)
    mean, count = usual
    spike = ~odd & (count >= USUAL_STEPS) & (norm > guard.spike_factor * mean)
    moved = mean + (norm - mean) / jnp.minimum(count + 1, USUAL_STEPS)
    newest = jnp.where(odd | spike, usual, jnp.stack([moved, count + 1]))
    return Guarded(
        spike if hold is None else hold | spike, jnp.where(odd, NOT_FINITE, jnp.where(spike, SPIKE, 0)), newest
    )


def answered_kinds(recipe: Recipe) -> tuple[int, ...]:
    """Returns which of `Measures.upset` anything is done about: what device and host go by, and must be one of."""
    answers = {NOT_FINITE: recipe.guard.not_finite, SPIKE: recipe.guard.spike}
    return tuple(kind for kind, answer in answers.items() if answer is not Answer.IGNORE)


def _answered(recipe: Recipe, before: jax.Array) -> Any:
    """Returns whether something is done about the step of these measures."""
    upset = before[Measures._fields.index("upset")]
    return jnp.isin(upset, jnp.asarray(answered_kinds(recipe), upset.dtype))


def _held(hold: jax.Array, after: jax.Array, before: jax.Array) -> jax.Array:
    """Returns an array as it was where the step is held, but for counters, which count all steps."""
    return jnp.where(hold, before, after) if jnp.issubdtype(after.dtype, jnp.inexact) else after


class Sums(NamedTuple):
    """Of some rows of a batch, over their valid steps."""

    gradient: dict[str, jax.Array]
    loss: jax.Array
    steps: jax.Array


def sums_of_rows(
    recipe: Recipe,
    first: Any,
    learned: dict[str, jax.Array],
    weights: Weights,
    statistics: Statistics,
    batch: Mapping[str, jax.Array],
    step: jax.Array,
) -> Sums:
    """Returns the sums of a batch whose first row is row `first` of the step's, in as many parts as the recipe says."""
    key = jax.random.fold_in(jax.random.key(recipe.seed), step)
    rows = {**batch, "row": first + jax.numpy.arange(len(batch["valid"]))}

    def summed(learned: dict[str, jax.Array], rows: Mapping[str, jax.Array]) -> jax.Array:
        keys = row_keys(key, rows["row"])
        return summed_loss(weights_in_use(weights, learned, recipe.lora), statistics, recipe.policy, rows, keys)

    def part(rows: Mapping[str, jax.Array]) -> Sums:
        loss, gradient = jax.value_and_grad(summed)(learned, rows)
        return Sums(gradient, loss, rows["valid"].sum().astype(loss.dtype))

    if recipe.accumulate == 1:
        return part(rows)
    # Each device takes every so many'th of its own rows, so none of them travels.
    parts = jax.tree.map(lambda array: array.reshape(-1, recipe.accumulate, *array.shape[1:]).swapaxes(0, 1), rows)
    zero = jax.tree.map(lambda like: jax.numpy.zeros(like.shape, like.dtype), jax.eval_shape(part, rows))
    add: Any = lambda sums, rows: (jax.tree.map(jax.numpy.add, sums, part(rows)), None)  # noqa: E731
    sums, _ = jax.lax.scan(add, zero, parts)
    return Sums(*sums)


def _over_ranks(recipe: Recipe, mesh: jax.sharding.Mesh) -> Callable[..., Sums]:
    """Returns `sums_of_rows` where every device holds the whole state: each its rows, and all sums in one message."""

    def local(learned: Any, weights: Weights, statistics: Statistics, batch: Mapping[str, jax.Array], step: Any) -> Any:
        first = jax.lax.axis_index(REPLICA) * len(batch["valid"])
        return mean_over_ranks(sums_of_rows(recipe, first, learned, weights, statistics, batch, step), mesh)

    places = (WHOLE, WHOLE, WHOLE, BATCH, WHOLE)
    over: Callable[..., Sums] = jax.shard_map(local, mesh=mesh, in_specs=places, out_specs=WHOLE, check_vma=False)
    return over
