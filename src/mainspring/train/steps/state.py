"""The state of a run: all that changes in it, how it begins, and where it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from mainspring.session import Part
from mainspring.train.models.arrays import Weights, flattened, with_given
from mainspring.train.models.shapes import Signature
from mainspring.train.policy import Statistics, model_of, unit_statistics
from mainspring.train.recipe import Answer, Recipe
from mainspring.train.state.adapters import fresh_adapters, kept_weights, learned_weights, weights_in_use
from mainspring.train.state.begin import arrays_to_begin_with
from mainspring.train.state.optimizers import make_optimizer
from mainspring.train.state.sharding import state_shardings

PARTS = {  # By the fields of `TrainState`.
    "weights": Part.WEIGHTS,
    "adapters": Part.WEIGHTS,
    "ema": Part.WEIGHTS,
    "optimizer": Part.OPTIMIZER,
    "usual": Part.OPTIMIZER,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that changes in a run, and what was measured at its start: what a snapshot holds.

    Args:
        ema: Mean weights over the steps, where the recipe wants them; of what is learned alone, where it has adapters.
        adapters: By path, where the recipe wants them.
        usual: Where spikes are looked for: the mean length of gradients, and of how many steps that is.
    """

    weights: Weights
    statistics: Statistics
    optimizer: Any
    ema: Weights | None = None
    adapters: dict[str, jax.Array] | None = None
    usual: jax.Array | None = None

    def learned(self, recipe: Recipe) -> dict[str, jax.Array]:
        """Returns what moves, by path."""
        return {**learned_weights(self.weights, recipe), **(self.adapters or {})}

    def in_use(self, recipe: Recipe) -> Weights:
        """Returns the weights as a model takes them after training: the mean ones, where there are any."""
        if self.ema is None:
            return weights_in_use(self.weights, self.learned(recipe), recipe.lora)
        return self.ema if recipe.lora is None else weights_in_use(self.weights, self.ema, recipe.lora)


def initial_state(recipe: Recipe, signature: Signature, statistics: Statistics, mesh: jax.sharding.Mesh) -> TrainState:
    """Returns the state before the first step, the same on every rank: fresh, or with the weights that were given.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        mesh: Where the state lives.

    Raises:
        NotFound: There are no weights where the recipe says.
        InvalidInput: They are of another model.
        DamagedData: Their bytes are not what they should be.
        Unavailable: They cannot be reached.
    """
    given: dict[str, jax.Array] = {}
    if recipe.init is not None:
        shapes = flattened(abstract_state(recipe, signature, mesh).weights)
        for path, array in arrays_to_begin_with(recipe.init, recipe.policy, shapes).items():
            kept = array.astype(shapes[path].dtype, copy=False)
            given[path] = jax.make_array_from_callback(kept.shape, shapes[path].sharding, kept.__getitem__)
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(recipe, signature, mesh))
    fresh = jax.jit(_fresh_state(recipe, signature), out_shardings=places, donate_argnums=1)
    with jax.sharding.set_mesh(mesh):
        state: TrainState = fresh(statistics, given)
    return state


def abstract_state(recipe: Recipe, signature: Signature, mesh: jax.sharding.Mesh) -> TrainState:
    """Returns the shapes, types and places of the state's arrays.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        mesh: Where the state lives.

    Raises:
        InvalidInput: The mesh does not divide the weights.
    """
    shapes = jax.eval_shape(_fresh_state(recipe, signature), unit_statistics(recipe.policy, signature, recipe.data), {})
    struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
    state: TrainState = jax.tree.map(
        lambda leaf, place: struct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        state_shardings(shapes, mesh, recipe.mesh),
    )
    return state


def _fresh_state(recipe: Recipe, signature: Signature) -> Callable[[Statistics, Mapping[str, jax.Array]], TrainState]:
    def fresh(statistics: Statistics, given: Mapping[str, jax.Array]) -> TrainState:
        weights = model_of(recipe.policy).initial_weights(jax.random.key(recipe.seed), signature)
        adapters = fresh_adapters(weights, recipe)
        weights = with_given(kept_weights(weights, recipe), given)  # Nobody draws what is replaced: XLA drops it.
        begun = TrainState(weights=weights, statistics=statistics, optimizer=None, adapters=adapters)
        learned = begun.learned(recipe)
        optimizer = make_optimizer(recipe.optimizer, recipe.steps).init(learned)
        ema = None if recipe.ema_decay is None else weights if recipe.lora is None else learned
        usual = None if recipe.guard.spike is Answer.IGNORE else jnp.zeros(2)
        return replace(begun, optimizer=optimizer, ema=ema, usual=usual)

    return fresh
