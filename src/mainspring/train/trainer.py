"""The trainer: a loop to read in one sitting, and to copy and change.

Everything random is drawn from (seed, step), and the data's order is a function of (seed, step) too, so a run that
was interrupted and went on from a snapshot ends, on the same number of ranks, with the same bits as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from mainspring.data import Loader, Sampling, View, gather
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput
from mainspring.session import Part, Session
from mainspring.session.jax_ahead import compile_ahead
from mainspring.session.jax_state import blocks_of, tree_from
from mainspring.train.feed import fitted, history_of
from mainspring.train.layouts.statistics import read_statistics
from mainspring.train.models.arrays import Weights, flattened, with_given
from mainspring.train.models.attention import check_attention
from mainspring.train.models.shapes import REPLICA, LanguageRecipe, Policy, PolicyRecipe, Signature
from mainspring.train.policy import (
    Statistics,
    measure_statistics,
    model_of,
    row_keys,
    signature_of,
    statistics_from,
    summed_loss,
    unit_statistics,
)
from mainspring.train.recipe import Recipe
from mainspring.train.state.adapters import fresh_adapters, kept_weights, learned_weights, weights_in_use
from mainspring.train.state.begin import arrays_to_begin_with
from mainspring.train.state.optimizers import make_optimizer
from mainspring.train.state.sharding import (
    BATCH,
    WHOLE,
    batch_sharding,
    batch_shares,
    is_whole,
    make_mesh,
    mean_over_ranks,
    place_batch,
    share_of,
    state_shardings,
)

STATISTICS_BATCHES = 32  # At the recipes' batch sizes some thousands of chunks: a deviation good to about 1 %.
PARTS = {  # By the fields of `TrainState`.
    "weights": Part.WEIGHTS,
    "adapters": Part.WEIGHTS,
    "ema": Part.WEIGHTS,
    "optimizer": Part.OPTIMIZER,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that changes in a run, and what was measured at its start: what a snapshot holds.

    Args:
        ema: Mean weights over the steps, where the recipe wants them; of what is learned alone, where it has adapters.
        adapters: By path, where the recipe wants them.
    """

    weights: Weights
    statistics: Statistics
    optimizer: Any
    ema: Weights | None = None
    adapters: dict[str, jax.Array] | None = None

    def learned(self, recipe: Recipe) -> dict[str, jax.Array]:
        """Returns what moves, by path."""
        return {**learned_weights(self.weights, recipe), **(self.adapters or {})}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where a run ended.

    Args:
        state: The state after the last step.
        step: Steps done; fewer than the recipe's when it was asked to leave, and then the last snapshot is of it.
        loss: Loss of the last step; None when there was nothing left to do.
    """

    state: TrainState
    step: int
    loss: float | None


def train(session: Session, recipe: Recipe, view: View, *, facts: Mapping[str, str]) -> Outcome:
    """Trains until the recipe's last step, or until the session asks to leave; leaves snapshots on the way.

    Args:
        session: This rank's session; JAX is connected (`jax_distributed.run`).
        recipe: What to learn, and how.
        view: What to learn from.
        facts: Kept with every snapshot, beside what is needed to use the policy.

    Raises:
        InvalidInput: The recipe does not fit the view or the number of devices.
    """
    mesh = make_mesh(recipe.mesh)
    check_shares(recipe, mesh)
    share = share_of(mesh)
    loader = open_loader(view, recipe, rank=share.rank, world_size=share.world_size)
    signature = signature_of(_looked_at(view, np.arange(1), recipe.policy), recipe.policy)
    restored = session.restore()
    if restored is None:
        start, state = 0, initial_state(recipe, signature, _statistics(view, recipe, signature), mesh)
    else:
        start, state = restored.step, tree_from(restored, abstract_state(recipe, signature, mesh))
    facts = {**facts, "recipe": encode(recipe).decode(), "signature": encode(signature).decode()}
    update = make_update(recipe, mesh)
    step = start
    loss: jax.Array | None = None  # Of the step before: reading it leaves one step under way.
    with loader.stream(start) as stream:
        batches = session.timed(stream)
        for step in session.steps(start, recipe.steps):
            batch = place_batch(mesh, fitted(next(batches), recipe.policy))
            state, newest = update(state, batch, np.int32(step))
            if loss is None:
                compile_ahead(session, partial(lowered_update, recipe, signature, shapes_of(batch)))
            else:
                session.report(step - 1, {"loss": float(loss), "steps": recipe.steps})
            loss = newest
            if session.snapshot_due(step):
                session.snapshot(step, blocks_of(state, session, PARTS), facts)
    if loss is not None:
        session.report(step, {"loss": float(loss), "steps": recipe.steps})
    return Outcome(state=state, step=step, loss=None if loss is None else float(loss))


def check_shares(recipe: Recipe, mesh: jax.sharding.Mesh) -> None:
    """Checks that a recipe's batches, and its policy's tokens, can be shared out over a mesh, whose devices can do it.

    Args:
        recipe: What to learn, and how.
        mesh: Of all devices.

    Raises:
        InvalidInput: Rows are not shared out evenly, there are fewer tokens than devices to share them, or these cannot
            compute attention as the recipe says.
    """
    parts = batch_shares(mesh) * recipe.accumulate
    if recipe.batch_size % parts:
        raise InvalidInput(
            "share a batch",
            on=recipe.name,
            got=f"{recipe.batch_size} chunks for {parts} parts on {mesh.size} devices",
            wanted="a multiple",
            next_step="change batch_size, accumulate or mesh",
        )
    if recipe.mesh.sequence > recipe.policy.tokens:
        raise InvalidInput(
            "share tokens",
            on=recipe.name,
            got=f"{recipe.policy.tokens} in the longest stream for {recipe.mesh.sequence} devices",
            wanted="at least one for each",
            next_step="set mesh.sequence to 1, and give data or tensor its devices",
        )
    if not isinstance(recipe.policy, PolicyRecipe):
        platform = mesh.devices.flat[0].platform
        check_attention(recipe.policy.compute.attention, platform, sequence=recipe.mesh.sequence)


def open_loader(view: View, recipe: Recipe, *, rank: int, world_size: int) -> Loader:
    """Returns a rank's share of the recipe's batches.

    Args:
        recipe: Says how much, and in which order.

    Raises:
        InvalidInput: The batch cannot be shared equally.
    """
    sampling = Sampling(
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        horizon=recipe.policy.horizon,
        history=history_of(recipe.policy),
    )
    return Loader(view, sampling, rank=rank, world_size=world_size)


def statistics_of(view: View, recipe: Recipe) -> Statistics:
    """Returns the statistics of a sample of a view, none of words; every rank reads the same one.

    Args:
        recipe: Says what the policy learns.
    """
    if isinstance(recipe.policy, LanguageRecipe):
        return {}
    loader = open_loader(view, recipe, rank=0, world_size=1)
    policy = replace(recipe.policy, image=None)  # Pixels have no statistics here; theirs would cost decoding.
    sample = (_looked_at(view, loader.rows(step), policy) for step in range(STATISTICS_BATCHES))
    return measure_statistics(sample, policy)


def _statistics(view: View, recipe: Recipe, signature: Signature) -> Statistics:
    if recipe.init is None or recipe.init.statistics is None:
        return statistics_of(view, recipe)
    return statistics_from(read_statistics(Path(recipe.init.statistics)), recipe.policy, signature)


def _looked_at(view: View, rows: NDArray[np.int64], policy: Policy) -> dict[str, NDArray[Any]]:
    return fitted(gather(view, rows, horizon=policy.horizon, history=history_of(policy)), policy)


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
    shapes = jax.eval_shape(_fresh_state(recipe, signature), unit_statistics(recipe.policy, signature), {})
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
        return replace(begun, optimizer=optimizer, ema=ema)

    return fresh


def lowered_update(
    recipe: Recipe, signature: Signature, batch: Mapping[str, jax.ShapeDtypeStruct], devices: Sequence[jax.Device]
) -> jax.stages.Lowered:
    """Returns the program of one step on these devices, from shapes alone: nothing is put there.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        batch: What `shapes_of` gave of a global batch.
        devices: All that shall share it.

    Raises:
        InvalidInput: They cannot share it equally.
    """
    mesh = make_mesh(recipe.mesh, devices)
    check_shares(recipe, mesh)
    struct: Any = partial(jax.ShapeDtypeStruct, sharding=batch_sharding(mesh))
    shares = {name: struct(like.shape, like.dtype) for name, like in batch.items()}
    return make_update(recipe, mesh).lower(abstract_state(recipe, signature, mesh), shares, np.int32(0))


def shapes_of(batch: Mapping[str, jax.Array]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and types of a global batch, without its places."""
    struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
    return {name: struct(array.shape, array.dtype) for name, array in batch.items()}


def make_update(recipe: Recipe, mesh: jax.sharding.Mesh) -> jax.stages.Wrapped:
    """Returns the compiled function of one step: (state, global batch, step) -> (state, loss); the state is donated.

    Args:
        recipe: What to learn, and how.
        mesh: Where state and batch live.
    """
    optimizer = make_optimizer(recipe.optimizer, recipe.steps)
    sums_of = _over_ranks(recipe, mesh) if is_whole(mesh) else partial(_sums, recipe, 0)

    def update(state: TrainState, batch: Mapping[str, jax.Array], step: jax.Array) -> Any:
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
        after = replace(state, weights=weights, adapters=adapters, optimizer=moved, ema=ema)
        place: Any = jax.lax.with_sharding_constraint
        return place(after, state_shardings(after, mesh, recipe.mesh)), loss

    return jax.jit(update, donate_argnums=0)


class _Sums(NamedTuple):
    """Of some rows of a batch, over their valid steps."""

    gradient: dict[str, jax.Array]
    loss: jax.Array
    steps: jax.Array


def _sums(
    recipe: Recipe,
    first: Any,
    learned: dict[str, jax.Array],
    weights: Weights,
    statistics: Statistics,
    batch: Mapping[str, jax.Array],
    step: jax.Array,
) -> _Sums:
    """Returns the sums of a batch whose first row is row `first` of the step's, in as many parts as the recipe says."""
    key = jax.random.fold_in(jax.random.key(recipe.seed), step)
    rows = {**batch, "row": first + jax.numpy.arange(len(batch["valid"]))}

    def summed(learned: dict[str, jax.Array], rows: Mapping[str, jax.Array]) -> jax.Array:
        keys = row_keys(key, rows["row"])
        return summed_loss(weights_in_use(weights, learned, recipe.lora), statistics, recipe.policy, rows, keys)

    def part(rows: Mapping[str, jax.Array]) -> _Sums:
        loss, gradient = jax.value_and_grad(summed)(learned, rows)
        return _Sums(gradient, loss, rows["valid"].sum().astype(loss.dtype))

    if recipe.accumulate == 1:
        return part(rows)
    # Each device takes every so many'th of its own rows, so none of them travels.
    parts = jax.tree.map(lambda array: array.reshape(-1, recipe.accumulate, *array.shape[1:]).swapaxes(0, 1), rows)
    zero = jax.tree.map(lambda like: jax.numpy.zeros(like.shape, like.dtype), jax.eval_shape(part, rows))
    add: Any = lambda sums, rows: (jax.tree.map(jax.numpy.add, sums, part(rows)), None)  # noqa: E731
    sums, _ = jax.lax.scan(add, zero, parts)
    return _Sums(*sums)


def _over_ranks(recipe: Recipe, mesh: jax.sharding.Mesh) -> Callable[..., _Sums]:
    """Returns `_sums` where every device holds the whole state: each its rows, and all sums in one message."""

    def local(learned: Any, weights: Weights, statistics: Statistics, batch: Mapping[str, jax.Array], step: Any) -> Any:
        first = jax.lax.axis_index(REPLICA) * len(batch["valid"])
        return mean_over_ranks(_sums(recipe, first, learned, weights, statistics, batch, step), mesh)

    places = (WHOLE, WHOLE, WHOLE, BATCH, WHOLE)
    over: Callable[..., _Sums] = jax.shard_map(local, mesh=mesh, in_specs=places, out_specs=WHOLE, check_vma=False)
    return over
